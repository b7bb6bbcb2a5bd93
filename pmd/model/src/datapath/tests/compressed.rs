//! Compressed completions, basic layout.

use super::{frame, port, put};
use crate::datapath::harness::{KEY, Port, TestCq, data};
use crate::wire::Link;

fn compressing(format: u32, change: impl FnOnce(&mut crate::objects::Cq)) -> (Port, Link, TestCq) {
    let (mut port, far) = port();
    let cq = port.cq_with(5, |cq| {
        cq.compression = true;
        cq.mini_cqe_format = format;
        change(cq);
    });
    let mut rq = port.rq(cq.cqn, 5, 4);
    port.steer_all_to(rq.rqn);
    let buf = port.alloc(2048);
    (0..32).for_each(|_| rq.post(&data(2048, KEY, buf.iova())));
    (port, far, cq)
}

fn entry(cq: &TestCq, index: usize) -> [u8; 64] {
    let mut entry = [0; 64];
    cq.ring.copy_out(index * 64, &mut entry);
    entry
}

/// Sends frames of 60, 61, ... bytes.
fn burst(port: &mut Port, far: &mut Link, count: u8) {
    for index in 0..count {
        let mut bytes = frame(index).to_vec();
        bytes.resize(60 + usize::from(index), index);
        put(far, &bytes);
    }
    port.poll();
}

#[test]
fn a_burst_becomes_one_block() {
    let (mut port, mut far, cq) = compressing(1, |_| {});
    burst(&mut port, &mut far, 10);
    let title = entry(&cq, 0);
    // Ten completions, first counter 0; opcode 2, format 3, owner 0.
    assert_eq!(title[0x2c..0x30], [0, 0, 0, 10]);
    assert_eq!(title[0x3c..0x40], [0, 0, 0, 0x2c]);
    let (first, second) = (entry(&cq, 1), entry(&cq, 8));
    for index in 0..10_u8 {
        let array = if index < 8 { &first } else { &second };
        let mini = &array[usize::from(index % 8) * 8..][..8];
        assert_eq!(mini[4..8], [0, 0, 0, 60 + index]);
        let body = vec![index; 46 + usize::from(index)];
        assert_eq!(mini[..2], crate::frame::offload::sum16(&body).to_be_bytes());
    }
    assert_eq!(second[16..], [0; 48]);
    // Entries between hold nothing of this block.
    for hole in [2, 3, 4, 5, 6, 7, 9] {
        assert_eq!(entry(&cq, hole), [0xff; 64]);
    }
    assert_eq!(port.state.objects.cqs.get(cq.cqn).map(|cq| cq.producer), Some(10));
    // One more packet stands alone and is not compressed.
    burst(&mut port, &mut far, 1);
    assert_eq!(entry(&cq, 10)[0x3c..0x40], [0, 10, 0, 0x20]);
}

#[test]
fn a_block_ends_at_sixteen_and_where_packets_differ() {
    let (mut port, mut far, cq) = compressing(0, |_| {});
    burst(&mut port, &mut far, 18);
    assert_eq!((entry(&cq, 0)[0x2f], entry(&cq, 16)[0x2f]), (16, 2));
    let (mut port, mut far, cq) = compressing(0, |_| {});
    for tpid in [0x88, 0x81, 0x88] {
        let mut bytes = frame(1);
        bytes[12..14].copy_from_slice(&[tpid, if tpid == 0x81 { 0 } else { 0xb5 }]);
        put(&mut far, &bytes);
    }
    port.poll();
    for index in 0..3 {
        assert_eq!(entry(&cq, index)[0x3f] >> 2 & 3, 0, "entry {index}");
        assert_eq!(entry(&cq, index)[0x3d], index as u8);
    }
}

#[test]
fn a_block_ends_where_the_ring_ends() {
    let (mut port, mut far, cq) = compressing(0, |cq| {
        cq.producer = 28;
        cq.consumer = 28;
    });
    burst(&mut port, &mut far, 10);
    assert_eq!((entry(&cq, 28)[0x2f], entry(&cq, 28)[0x3f]), (4, 0x2c));
    assert_eq!(entry(&cq, 29)[4..8], [0, 0, 0, 60]);
    assert_eq!(entry(&cq, 29)[0x1c..0x20], [0, 0, 0, 63]);
    assert_eq!((entry(&cq, 0)[0x2f], entry(&cq, 0)[0x3f]), (6, 0x2d), "the next lap");
    assert_eq!(entry(&cq, 1)[4..8], [0, 0, 0, 64]);
    // The last entry of the ring alone is no block.
    let (mut port, mut far, cq) = compressing(0, |cq| {
        cq.producer = 31;
        cq.consumer = 31;
    });
    burst(&mut port, &mut far, 3);
    assert_eq!((entry(&cq, 31)[0x2f], entry(&cq, 31)[0x3f]), (60, 0x20));
    assert_eq!((entry(&cq, 0)[0x2f], entry(&cq, 0)[0x3f]), (2, 0x2d));
}

#[test]
fn a_block_that_does_not_fit_overruns() {
    let (mut port, mut far, cq) = compressing(0, |cq| {
        cq.producer = 33;
        cq.consumer = 2;
    });
    burst(&mut port, &mut far, 3);
    assert_eq!(port.last_refusal(), "completion queue overrun");
    assert_eq!(entry(&cq, 1), [0xff; 64]);
}
