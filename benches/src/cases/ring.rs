//! Hand-over through an `rtrb` ring, both ends on one core: instructions without cache misses.

use std::hint::black_box;

use rtrb::{Consumer, Producer, RingBuffer};

use super::{Case, Work};

const CHUNKS: u64 = 64;
const CHUNK: usize = 32;

/// Chunks of 32 words in and out.
pub(super) const SPSC_32: Case = Case {
    name: "spsc_push_pop_32",
    elements: CHUNKS * CHUNK as u64,
    make: || {
        let (producer, consumer) = RingBuffer::new(1024);
        Box::new(Spsc { producer, consumer, next: 0, sum: 0 })
    },
};

struct Spsc {
    producer: Producer<u64>,
    consumer: Consumer<u64>,
    next: u64,
    sum: u64,
}

impl Work for Spsc {
    fn run(&mut self) {
        for _ in 0..CHUNKS {
            let chunk = self.producer.write_chunk_uninit(CHUNK).expect("the ring was emptied");
            let pushed = chunk.fill_from_iter(self.next..self.next + CHUNK as u64);
            let chunk = self.consumer.read_chunk(pushed).expect("as many were pushed");
            self.sum = self.sum.wrapping_add(black_box(chunk.into_iter().sum()));
            self.next += pushed as u64;
        }
    }

    fn verify(&mut self) {
        let n = self.next;
        assert_eq!(self.sum, n * (n - 1) / 2, "every word arrived once");
    }
}
