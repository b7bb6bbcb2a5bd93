//! Frames out and in, without errors.

use super::{frame, port, put};
use crate::datapath::harness::{KEY, data, send};
use crate::wire::Wire;

#[test]
fn one_frame_goes_out_as_it_stands_in_memory() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(4);
    let mut sq = port.sq(cq.cqn, 4);
    let buf = port.bytes(&frame(0x77));
    sq.write(&send(2, 0, &[(60, KEY, buf.iova())]));
    sq.record();
    port.ring(&sq);
    port.poll();
    assert_eq!(far.receive(0).expect("a frame").bytes, frame(0x77));
    assert_eq!(far.receive(0), None);

    let cqe = cq.poll().expect("a completion");
    // user index, opcode of the WQE and SQ number, block 0, opcode 0 with owner 0.
    assert_eq!(cqe[0x20..0x24], [0, 0, 0xab, 0xcd]);
    assert_eq!(cqe[0x38..0x3c], [0x0a, 0, 0x10, 0x00]);
    assert_eq!(cqe[0x3c..0x40], [0, 0, 0, 0]);
    assert_eq!(cq.poll(), None);
    let counters = &port.state.port.counters;
    assert_eq!((counters.tx_unicast.packets, counters.tx_unicast.octets), (1, 60));
}

#[test]
fn a_short_frame_is_padded_with_zeros() {
    let (mut port, mut far) = port();
    let cq = port.cq(4);
    let mut sq = port.sq(cq.cqn, 4);
    let buf = port.bytes(&frame(0x77)[..20]);
    sq.write(&send(2, 0, &[(20, KEY, buf.iova())]));
    sq.record();
    port.ring(&sq);
    port.poll();
    let received = far.receive(0).expect("a frame");
    assert_eq!(received.bytes.len(), 60);
    assert_eq!(received.bytes[..20], frame(0x77)[..20]);
    assert_eq!(received.bytes[20..], [0; 40]);
}

#[test]
fn one_frame_comes_in_with_its_completion() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(4);
    let mut rq = port.rq(cq.cqn, 4, 4);
    port.steer_all_to(rq.rqn);
    let buf = port.alloc(128);
    buf.fill(0xa5);
    rq.post(&data(128, KEY, buf.iova()));
    put(&mut far, &frame(0x11));
    port.poll();
    let mut bytes = [0; 64];
    buf.copy_out(0, &mut bytes);
    assert_eq!(bytes[..60], frame(0x11));
    assert_eq!(bytes[60..], [0xa5; 4]);
    let cqe = cq.poll().expect("a completion");
    // Sum of 46 bytes 0x11: 23 words of 0x1111 are 0x18887, folded 0x8888.
    assert_eq!(cqe[0x14..0x16], [0x88, 0x88]);
    assert_eq!(cqe[0x1c..0x20], [0x01, 0, 0, 0]);
    assert_eq!(cqe[0x20..0x24], [0, 0, 0x43, 0x21]);
    assert_eq!(cqe[0x2c..0x30], [0, 0, 0, 60]);
    assert_eq!(cqe[0x38..0x40], [0, 0, 0, 0, 0, 0, 0, 0x20]);
    assert_eq!(cq.poll(), None);
}

/// Linux's mlx5e sets bit 31 of `byte_count` in every receive entry: padding, not an inline
/// segment.
#[test]
fn start_padding_is_no_part_of_a_receive_length() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(4);
    let mut rq = port.rq(cq.cqn, 4, 4);
    port.steer_all_to(rq.rqn);
    let buf = port.alloc(64);
    rq.post(&data(0x8000_0000 | 60, KEY, buf.iova()));
    put(&mut far, &frame(0x11));
    port.poll();
    let cqe = cq.poll().expect("a completion");
    assert_eq!(cqe[0x2c..0x30], [0, 0, 0, 60]);
    assert_eq!(cqe[0x3c], 0, "a good completion");
    // The bit adds no room: 59 bytes do not hold the frame.
    rq.post(&data(0x8000_0000 | 59, KEY, buf.iova()));
    put(&mut far, &frame(0x11));
    port.poll();
    let cqe = cq.poll().expect("a completion");
    assert_eq!((cqe[0x37], cqe[0x3f] >> 4), (0x01, 0xe), "local length error");
}
