//! Hand-over between two cores through an `rtrb` ring, both ends on one core: instructions only.

use std::hint::black_box;

use super::Case;

/// Chunks of 32 words in and out.
pub(super) const SPSC_32: Case = Case { name: "spsc_push_pop_32", elements: 32, make: spsc };

fn spsc() -> Box<dyn FnMut(u64)> {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<u64>::new(1024);
    let mut next = 0u64;
    Box::new(move |iterations| {
        for _ in 0..iterations {
            let chunk = producer.write_chunk_uninit(32).expect("the ring was emptied");
            chunk.fill_from_iter(next..next + 32);
            let chunk = consumer.read_chunk(32).expect("32 were pushed");
            let sum: u64 = chunk.into_iter().sum();
            assert_eq!(black_box(sum), 32 * next + 31 * 16);
            next += 32;
        }
    })
}
