//! Literal headers, every opcode, and any bytes at all.

use proptest::prelude::*;

use super::*;
use crate::roce::transport::testing::hex;

#[track_caller]
fn is(header: &Header, bytes: &str) {
    let bytes = hex(bytes);
    let mut out = [0xa5; MAX_HEADER_BYTES];
    assert_eq!(header.write_to(&mut out), bytes.len());
    assert_eq!(out[..bytes.len()], bytes[..]);
    assert_eq!(header.len_bytes(), bytes.len());
    assert_eq!(Header::parse(&bytes), Some((*header, bytes.len())));
    for len in 0..bytes.len() {
        assert_eq!(Header::parse(&bytes[..len]), None, "cut to {len} bytes");
    }
}

#[test]
fn headers_have_the_bytes_of_the_specification() {
    let mut header = Header::new(Transport::Rc, Op::SendOnly, 0x12, Psn::new(0x345));
    header.ack_request = true;
    is(&header, "0440ffff 00000012 80000345");
    header.solicited = true;
    header.pad = 3;
    is(&header, "04f0ffff 00000012 80000345");

    let mut header = Header::new(Transport::Rc, Op::WriteOnlyImm, 0x10_0001, Psn::new(0xff_ffff));
    header.reth = Reth { va: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc, len: 0xddee_ff00 };
    header.imm = 0x0102_0304;
    is(&header, "0b40ffff 00100001 00ffffff 1122334455667788 99aabbcc ddeeff00 01020304");

    let mut header = Header::new(Transport::Rc, Op::CompareSwap, 2, Psn::new(3));
    header.atomic = AtomicEth { va: 0x10, rkey: 0x20, operands: Operands::plain(0x30, 0x40) };
    is(
        &header,
        "1340ffff 00000002 00000003 0000000000000010 00000020 0000000000000030 0000000000000040",
    );

    let mut header = Header::new(Transport::Rc, Op::MaskedFetchAdd, 2, Psn::new(3));
    let (size, masks) = (Size::Four, (0x50, 0x60));
    let operands =
        Operands { swap_add: 0x30, compare: 0x40, swap_mask: masks.0, compare_mask: masks.1, size };
    header.atomic = AtomicEth { va: 0x10, rkey: 0x20, operands };
    is(
        &header,
        "d440ffff 00000002 00000003 0000000000000010 00000020 00000004 0000000000000030 \
         0000000000000040 0000000000000050 0000000000000060",
    );

    let mut header = Header::new(Transport::Rc, Op::AtomicAcknowledge, 2, Psn::new(3));
    header.aeth = Aeth { syndrome: AckSyndrome::ACK, msn: 0x12_3456 };
    header.original = 0x0102_0304_0506_0708;
    is(&header, "1240ffff 00000002 00000003 1f123456 0102030405060708");

    let mut header = Header::new(Transport::Ud, Op::SendOnlyImm, 1, Psn::new(0));
    header.deth = Deth { qkey: 0x8001_0000, sqpn: 1 };
    header.imm = 7;
    is(&header, "6540ffff 00000001 00000000 80010000 00000001 00000007");

    let header = Header::new(Transport::Cnp, Op::Notification, 0x118, Psn::new(0));
    is(&header, "8100ffff 40000118 00000000");

    let mut header = Header::new(Transport::Xrc, Op::SendLastInvalidate, 9, Psn::new(1));
    header.xrc_srqn = 0x20_0000;
    header.ieth = 0xcafe;
    is(&header, "b640ffff 00000009 00000001 00200000 0000cafe");

    let mut header = Header::new(Transport::Xrc, Op::Acknowledge, 9, Psn::new(1));
    header.aeth = Aeth { syndrome: AckSyndrome::rnr(12), msn: 0 };
    is(&header, "b140ffff 00000009 00000001 2c000000");
}

#[test]
fn what_does_not_exist_is_refused() {
    let base = hex("0440ffff 00000012 80000345 0000000000000000 0000000000000000 00000000");
    let parse = |opcode: u8, flags: u8| {
        let mut bytes = base.clone();
        (bytes[0], bytes[1]) = (opcode, flags);
        Header::parse(&bytes)
    };
    assert!(parse(0x04, 0x40).is_some());
    assert!(parse(0x04, 0x00).is_some(), "MigReq is not compared: soft-RoCE sends 0");
    assert!(parse(0x04, 0x41).is_none(), "transport version 1");
    let unknown = [0x15, 0x18, 0x1f, 0x2c, 0x33, 0x36, 0x60, 0x66, 0x40, 0x80, 0x82, 0xff];
    for opcode in unknown.into_iter().chain([0xc0, 0xd2, 0xd5, 0xf3]) {
        assert!(parse(opcode, 0x40).is_none(), "opcode {opcode:#04x}");
    }
}

#[test]
fn syndromes_say_what_they_mean() {
    assert_eq!(AckSyndrome::ACK.meaning(), Meaning::Ack);
    assert_eq!(AckSyndrome(0x00).meaning(), Meaning::Ack, "with a credit count");
    assert_eq!(AckSyndrome(0x3f).meaning(), Meaning::Rnr { timer: 31 });
    assert_eq!(AckSyndrome(0x40).meaning(), Meaning::Reserved);
    assert_eq!(AckSyndrome::NAK_SEQUENCE.meaning(), Meaning::Nak);
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Some((header, len)) = Header::parse(&bytes) {
            prop_assert!(len <= bytes.len());
            let mut out = [0; MAX_HEADER_BYTES];
            prop_assert_eq!(header.write_to(&mut out), len);
            prop_assert_eq!(Header::parse(&out), Some((header, len)));
        }
    }
}
