//! Any bytes as a frame: the model's header parser, with a stranger's beside it, and its RoCE
//! parser behind it.
#![no_main]

use arbitrary::Unstructured;
use etherparse::{LaxSlicedPacket, TransportSlice};
use ferrocx_fuzz::frame;
use ferrocx_model::datapath::packet::{L4, Lengths, Packet};
use ferrocx_model::roce::{bth::Header, packet::Frame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check(data);
    if let Ok(made) = frame(&mut Unstructured::new(data)) {
        check(&made);
    }
});

fn check(frame: &[u8]) {
    let packet = Packet::parse(frame);
    assert!(packet.l3_end <= frame.len());
    if packet.malformed.is_none() {
        assert!(packet.l3_offset <= packet.l4_offset);
        assert!(packet.l4_offset <= packet.payload_offset);
        assert!(packet.payload_offset <= packet.l3_end);
        stranger(frame, &packet);
    }
    let headers = Packet::parse_with(frame, Lengths::HeadersOnly);
    assert!(headers.l3_end <= frame.len() && headers.payload_offset <= frame.len());
    if let Ok(parsed) = Frame::parse(frame, &packet) {
        assert!(parsed.payload.len() + parsed.header.len_bytes() < frame.len());
        // Headers of a good frame are written as they came, but for MigReq, which is always set,
        // and reserved bits.
        let mut bytes = [0; 128];
        let len = parsed.header.write_to(&mut bytes);
        assert_eq!(Header::parse(&bytes[..len]), Some((parsed.header, len)));
    }
    if let Some((header, len)) = Header::parse(frame) {
        assert_eq!(header.len_bytes(), len);
    }
}

/// A layer 4 that the model sees is where etherparse sees it.
fn stranger(frame: &[u8], packet: &Packet) {
    if packet.l4 == L4::None {
        return;
    }
    let theirs = LaxSlicedPacket::from_ethernet(frame).expect("an Ethernet header");
    let (kind, header) = match &theirs.transport {
        Some(TransportSlice::Tcp(tcp)) => (L4::Tcp, tcp.slice()),
        Some(TransportSlice::Udp(udp)) => (L4::Udp, udp.slice()),
        other => panic!("{packet:?}\nis to etherparse {other:?}, {:?}", theirs.stop_err),
    };
    let at = header.as_ptr().addr() - frame.as_ptr().addr();
    assert_eq!((packet.l4, packet.l4_offset), (kind, at));
}
