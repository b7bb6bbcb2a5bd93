//! Frames that `txonly` sends: UDP over IPv4, one template per flow and size.
//!
//! The number of a frame stands in it twice, once inverted. The two add nothing to the UDP
//! checksum, so stamping a frame is two stores, and a receiver can tell a damaged number.

use crate::{
    checksum,
    config::{Load, MIN_FRAME_BYTES},
    ether::MacAddr,
    ip,
};

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
/// Where the number stands; the inverted one follows.
const NUMBER_AT: usize = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
const NUMBER_BYTES: usize = 16;
/// First UDP source port; the flow is added.
const FIRST_PORT: u16 = 1024;
/// UDP destination port: the first of those that are nobody's (RFC 6335 section 6).
const TO_PORT: u16 = 49152;
const TTL: u8 = 64;

const _: () = assert!(NUMBER_AT + NUMBER_BYTES <= MIN_FRAME_BYTES);

/// A supply of numbered frames.
#[derive(Debug, Clone)]
pub struct Frames {
    templates: Vec<Box<[u8]>>,
    next_template: usize,
    next_number: u64,
}

impl Frames {
    /// Frames of `load` from `source` to `destination`, sent by stream `stream` of this run: the
    /// stream tells its flows from those of the others.
    #[must_use]
    pub fn new(load: &Load, source: MacAddr, destination: MacAddr, stream: u8) -> Self {
        let flows = 0..load.flows;
        let templates = flows.flat_map(|flow| {
            load.sizes.iter().map(move |&size| template(size, flow, source, destination, stream))
        });
        Self { templates: templates.collect(), next_template: 0, next_number: 0 }
    }

    /// Length of the next frame.
    #[inline]
    #[must_use]
    pub fn next_len(&self) -> usize {
        self.templates[self.next_template].len()
    }

    /// Writes the next frame into `out` and moves on. `out` has [`Frames::next_len`] bytes.
    ///
    /// # Panics
    /// If `out` has another length.
    #[inline]
    pub fn write_next(&mut self, out: &mut [u8]) {
        out.copy_from_slice(&self.templates[self.next_template]);
        let number = self.next_number;
        out[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_be_bytes());
        out[NUMBER_AT + 8..NUMBER_AT + 16].copy_from_slice(&(!number).to_be_bytes());
        self.next_number = number.wrapping_add(1);
        self.next_template += 1;
        if self.next_template == self.templates.len() {
            self.next_template = 0;
        }
    }
}

fn template(
    size: usize,
    flow: u16,
    source: MacAddr,
    destination: MacAddr,
    stream: u8,
) -> Box<[u8]> {
    let mut frame = vec![0; size];
    frame[..6].copy_from_slice(&destination.0);
    frame[6..12].copy_from_slice(&source.0);
    frame[12..14].copy_from_slice(&crate::ether::IPV4.to_be_bytes());
    // RFC 2544 appendix C.2.2 sets 198.18.0.0/15 aside for such traffic.
    let from = [198, 18, stream, 1];
    let [high, low] = flow.to_be_bytes();
    let to = [198, 19, high, low];
    let ip = &mut frame[ETHERNET_BYTES..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&len16(size - ETHERNET_BYTES));
    // Don't fragment.
    ip[6] = 0x40;
    ip[8] = TTL;
    ip[9] = ip::UDP;
    ip[12..16].copy_from_slice(&from);
    ip[16..20].copy_from_slice(&to);
    let header = checksum::finish(checksum::sum(&ip[..IPV4_BYTES]));
    ip[10..12].copy_from_slice(&header.to_be_bytes());
    let udp = &mut ip[IPV4_BYTES..];
    let udp_len = len16(udp.len());
    udp[..2].copy_from_slice(&(FIRST_PORT + flow).to_be_bytes());
    udp[2..4].copy_from_slice(&TO_PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len);
    for (at, byte) in udp[UDP_BYTES + NUMBER_BYTES..].iter_mut().enumerate() {
        *byte = (at % 251) as u8;
    }
    // Number 0 and its inverse.
    udp[UDP_BYTES + 8..UDP_BYTES + 16].fill(0xff);
    let pseudo = checksum::pseudo_v4(from, to, ip::UDP, u16::from_be_bytes(udp_len));
    let field = match checksum::finish(pseudo + checksum::sum(udp)) {
        // RFC 768: a computed zero is sent as all ones, as zero means no checksum.
        0 => 0xffff,
        field => field,
    };
    udp[6..8].copy_from_slice(&field.to_be_bytes());
    frame.into_boxed_slice()
}

/// A length field. Sizes are checked against the MTU, which has 16 bits.
fn len16(len_bytes: usize) -> [u8; 2] {
    u16::try_from(len_bytes).expect("a frame fits the MTU").to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(sizes: &[usize], flows: u16) -> Load {
        Load { sizes: sizes.to_vec(), flows, rate: None }
    }

    fn next(frames: &mut Frames) -> Vec<u8> {
        let mut out = vec![0; frames.next_len()];
        frames.write_next(&mut out);
        out
    }

    #[test]
    fn the_first_frame_has_these_bytes() {
        let mut frames = Frames::new(&load(&[60], 1), MacAddr([2; 6]), MacAddr([6; 6]), 3);
        let expected = [
            6, 6, 6, 6, 6, 6, 2, 2, 2, 2, 2, 2, 0x08, 0x00, // Ethernet
            0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0xab, 0x98, 198, 18, 3, 1, 198, 19, 0,
            0, // IP
            4, 0, 0xc0, 0, 0, 26, 0xac, 0x91, // UDP
            0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 1,
        ];
        assert_eq!(next(&mut frames), expected);
    }

    #[test]
    fn sizes_and_flows_take_turns_and_numbers_go_up() {
        let mut frames = Frames::new(&load(&[60, 61], 2), MacAddr([2; 6]), MacAddr([6; 6]), 0);
        frames.next_number = u64::MAX - 1;
        for (len, flow, number) in
            [(60, 0, u64::MAX - 1), (61, 0, u64::MAX), (60, 1, 0), (61, 1, 1), (60, 0, 2)]
        {
            let frame = next(&mut frames);
            assert_eq!((frame.len(), frame[33]), (len, flow));
            assert_eq!(frame[42..50], number.to_be_bytes());
            assert_eq!(frame[50..58], (!number).to_be_bytes());
        }
    }

    #[test]
    fn every_frame_is_intact() {
        let sizes: Vec<usize> = (60..80).chain([1514, 1518, 9018]).collect();
        let mut frames = Frames::new(&load(&sizes, 3), MacAddr([2; 6]), MacAddr([6; 6]), 0);
        frames.next_number = 0x0123_4567_89ab_cdef;
        for _ in 0..sizes.len() * 3 {
            let frame = next(&mut frames);
            let sliced = etherparse::SlicedPacket::from_ethernet(&frame).unwrap();
            let Some(etherparse::NetSlice::Ipv4(ip)) = &sliced.net else { panic!("no IPv4") };
            let ip = ip.header().to_header();
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            let Some(etherparse::TransportSlice::Udp(udp)) = &sliced.transport else {
                panic!("no UDP")
            };
            let header = udp.to_header();
            let expected = header.calc_checksum_ipv4(&ip, udp.payload()).unwrap();
            assert_eq!(header.checksum, expected);
            assert_eq!(frame.len(), 42 + udp.payload().len());
        }
    }
}
