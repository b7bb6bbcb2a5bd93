//! [`PrebuiltFrame`]: a frame that stands ready, as the device reads it, and changes by fields.

use ferrocx_core::wq::{Ready, header_units};
use ferrocx_net::packet::{self, Packet};
use ferrocx_prm::wqe::{DS_BYTES, ETH_INLINE_BYTES, Eth};
use thiserror::Error;

/// Pairs of units of the longest frame: the control segment, the Ethernet segment, which holds its
/// first two bytes, the others, and one that is not sent.
const PAIRS: usize = (3 + MAX_FRAME_BYTES.div_ceil(DS_BYTES)).div_ceil(2);
/// Longest frame. Offsets in it and of [`NOWHERE`] fit a byte, so that no field can reach past the
/// units.
const MAX_FRAME_BYTES: usize = 254;
/// Where the frame starts: its first bytes end the Ethernet segment.
const FRAME_AT: usize = 2 * DS_BYTES - ETH_INLINE_BYTES;
/// Behind the longest frame: takes the checksum of frames that have none.
const NOWHERE: u8 = MAX_FRAME_BYTES as u8;
/// Offset of the checksum in UDP's header. Source: RFC 768; TCP has it at 16 (RFC 9293).
const UDP_CHECKSUM_AT: u8 = 6;
/// Longest field: an order, as a rule.
const MAX_FIELD_BYTES: usize = 64;

/// Why a frame cannot be prebuilt, or a field not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The field does not lie between the start of what the checksum covers, or the end of the
    /// Ethernet header, and the end of the frame.
    #[error("a field at bytes {at} to {end}; those that can change are {first} to {last}")]
    FieldRange {
        /// Its first byte.
        at: usize,
        /// The byte behind it.
        end: usize,
        /// First byte that can change.
        first: usize,
        /// The byte behind the last.
        last: usize,
    },
    /// The field holds a part of the checksum, or of the length of UDP.
    #[error(
        "a field at byte {0} holds a part of the checksum or the length; these follow the rest"
    )]
    FieldFollows(usize),
}

/// A field of `LEN` bytes in a [`PrebuiltFrame`], see [`PrebuiltFrame::field`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<const LEN: usize> {
    /// Offset in the frame.
    at: u8,
    /// 8 at odd offsets, where each byte counts as the other half of a word.
    rotate: u8,
}

/// A frame of `BYTES` bytes that was built once and is sent often, with a few fields changed each
/// time: see [`TxQueue::send_one`](crate::TxQueue::send_one).
///
/// Its headers, of UDP or TCP over IPv4 or IPv6, with VLAN tags or without, come from
/// [`Headers::write`](ferrocx_net::packet::Headers::write) or from anywhere else. The checksums are
/// computed when it is made; after that, each change of a field carries the difference over.
/// Frames of other protocols are sent as they are.
///
/// ```
/// use std::error::Error;
///
/// use ferrocx_net::packet::Headers;
/// use ferrocx_pmd::{PrebuiltFrame, TxQueue};
///
/// type Done = Result<(), Box<dyn Error>>;
///
/// /// An order whose price and number change.
/// fn orders(queue: &mut TxQueue, headers: &Headers, prices: &[u64]) -> Done {
///     let mut bytes = [0; 128];
///     headers.write(&mut bytes)?;
///     let mut frame = PrebuiltFrame::new(&bytes);
///     let number = frame.field::<4>(headers.len_bytes())?;
///     let price = frame.field::<8>(headers.len_bytes() + 4)?;
///     for (at, value) in prices.iter().enumerate() {
///         frame.set(number, (at as u32).to_be_bytes());
///         frame.set(price, value.to_be_bytes());
///         while !queue.send_one(&frame) {}
///     }
///     Ok(())
/// }
/// ```
///
/// # Shape
///
/// 14 to 254 bytes, without the check sequence; the device pads what is shorter than 60. Another
/// length does not compile.
#[derive(Debug, Clone)]
#[repr(align(64))]
pub struct PrebuiltFrame<const BYTES: usize> {
    /// Room for the control segment, the Ethernet segment, and the frame from its third byte on.
    pairs: [[u8; 2 * DS_BYTES]; PAIRS],
    /// Offset of the UDP or TCP checksum in the frame.
    checksum_at: u8,
    /// First byte that can change.
    first: u8,
    /// What the checksum is raised by while a difference is added. A sum here is 1 to 0xffff, of
    /// the two zeros of ones' complement the second, which is what UDP sends: 0 would say that
    /// there is no checksum. TCP's is 0 to 0xfffe, so it is raised by 1.
    raised: u16,
}

impl<const BYTES: usize> PrebuiltFrame<BYTES> {
    const OK: () =
        assert!(BYTES >= 14 && BYTES <= MAX_FRAME_BYTES, "a prebuilt frame has 14 to 254 bytes");
    /// Units that the device reads.
    const DS: u32 = 2 + header_units(BYTES);

    /// Takes the bytes of a frame, and computes its checksums.
    #[must_use]
    pub fn new(frame: &[u8; BYTES]) -> Self {
        const { Self::OK };
        let mut frame = *frame;
        let (mut checksum_at, mut first, mut raised) = (NOWHERE, 12, 0);
        if packet::seal(&mut frame) == Ok(())
            && let Ok(packet) = Packet::parse(&frame)
        {
            checksum_at = packet.checksum_at() as u8;
            first = packet.transport_at() as u8;
            raised = u16::from(checksum_at - first != UDP_CHECKSUM_AT);
        }
        let mut pairs = [[0; 2 * DS_BYTES]; PAIRS];
        let header = Eth::zeroed().with_inline_hdr_sz(BYTES as u32);
        pairs[0][DS_BYTES..].copy_from_slice(&header.0);
        pairs.as_flattened_mut()[FRAME_AT..][..BYTES].copy_from_slice(&frame);
        Self { pairs, checksum_at, first, raised }
    }

    /// The frame, as it would go out now.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.pairs.as_flattened()[FRAME_AT..][..BYTES]
    }

    /// A field of `LEN` bytes at an offset of the frame: of the UDP or TCP header, or of the
    /// payload. In frames of other protocols, of anything behind the addresses.
    ///
    /// # Errors
    ///
    /// [`FrameError`] for bytes outside, for the checksum itself and the length of UDP.
    pub fn field<const LEN: usize>(&self, at: usize) -> Result<Field<LEN>, FrameError> {
        const { assert!(LEN >= 1 && LEN <= MAX_FIELD_BYTES, "a field has 1 to 64 bytes") };
        let (first, end) = (usize::from(self.first), at.saturating_add(LEN));
        if at < first || end > BYTES {
            return Err(FrameError::FieldRange { at, end, first, last: BYTES });
        }
        if self.checksum_at != NOWHERE {
            let checksum = usize::from(self.checksum_at);
            // The length of UDP stands before its checksum, which TCP has elsewhere.
            let is_udp = self.checksum_at - self.first == UDP_CHECKSUM_AT;
            let start = if is_udp { checksum - 2 } else { checksum };
            if at < checksum + 2 && end > start {
                return Err(FrameError::FieldFollows(at));
            }
        }
        Ok(Field { at: at as u8, rotate: 8 * (at % 2) as u8 })
    }

    /// Changes a field, and the checksum that covers it. The field must be of this frame, or of
    /// one whose headers are alike: else other bytes change.
    ///
    /// # Source
    /// RFC 1624, equation 3, sixty-four bits at a time and in little-endian words: neither changes
    /// the sum of RFC 1071.
    #[inline(always)]
    pub fn set<const LEN: usize>(&mut self, field: Field<LEN>, bytes: [u8; LEN]) {
        let frame = self.pairs.as_flattened_mut();
        let at = FRAME_AT + usize::from(field.at);
        let Some(place) = frame[at..].first_chunk_mut::<LEN>() else { return };
        // The checksum is the complement of the sum, so that it loses what the sum wins.
        let difference = subtract(word_sum(place), word_sum(&bytes));
        *place = bytes;
        let difference = fold(difference.rotate_left(field.rotate.into()));
        let at = FRAME_AT + usize::from(self.checksum_at);
        let before = u16::from_le_bytes([frame[at], frame[at + 1]]).wrapping_add(self.raised);
        let (after, carry) = difference.overflowing_add(before);
        let after = (after + u16::from(carry)).wrapping_sub(self.raised);
        frame[at..at + 2].copy_from_slice(&after.to_le_bytes());
    }

    /// The request that sends it.
    #[inline(always)]
    pub(super) fn ready(&self) -> Ready<'_> {
        Ready { pairs: &self.pairs[..Self::DS.div_ceil(2) as usize], ds: Self::DS }
    }
}

/// Ones' complement addition.
#[inline(always)]
fn add(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u64::from(carry)
}

/// Ones' complement subtraction; 0 if both are the same.
#[inline(always)]
fn subtract(a: u64, b: u64) -> u64 {
    let (difference, borrow) = a.overflowing_sub(b);
    difference - u64::from(borrow)
}

/// A ones' complement sum of sixteen bits; 0 only for 0, so that a checksum, which is not 0, never
/// becomes the 0 that says that there is none.
#[inline(always)]
fn fold(sum: u64) -> u16 {
    let halves = sum.wrapping_add(sum.rotate_left(32)) >> 32;
    let halves = halves as u32;
    (halves.wrapping_add(halves.rotate_left(16)) >> 16) as u16
}

/// The ones' complement sum of a field, as little-endian words.
#[inline(always)]
fn word_sum<const LEN: usize>(bytes: &[u8; LEN]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    words.fold(u64::from_le_bytes(last), add)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use ferrocx_net::ether::MacAddr;
    use ferrocx_net::packet::{Headers, Transport};
    use proptest::prelude::*;

    use super::*;

    fn headers(ipv6: bool, vlan_tci: Option<u16>, transport: Transport) -> Headers {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (source, destination) = if ipv6 {
            (address("[fd00::1]:4000"), address("[fd00::2]:5000"))
        } else {
            (address("192.0.2.1:4000"), address("192.0.2.2:5000"))
        };
        let (destination_mac, source_mac) = (MacAddr([2; 6]), MacAddr([4; 6]));
        let (hop_limit, traffic_class) = (64, 0);
        Headers {
            destination_mac,
            source_mac,
            vlan_tci,
            source,
            destination,
            hop_limit,
            traffic_class,
            transport,
        }
    }

    fn frame<const BYTES: usize>(headers: &Headers) -> PrebuiltFrame<BYTES> {
        let mut bytes = [0x5a; BYTES];
        headers.write(&mut bytes).unwrap();
        PrebuiltFrame::new(&bytes)
    }

    const TCP: Transport =
        Transport::Tcp { sequence: 1, acknowledgment: 2, flags: 24, window: 9, max_segment: None };

    #[test]
    fn the_units_hold_the_frame_as_the_device_reads_it() {
        let headers = headers(false, None, Transport::Udp);
        let mut bytes = [0; 128];
        headers.write(&mut bytes).unwrap();
        let frame = PrebuiltFrame::new(&bytes);
        let Ready { pairs, ds } = frame.ready();
        let units = pairs.as_flattened();
        assert_eq!((units.len(), ds), (10 * 16, 10));
        assert_eq!(units[..29], [0; 29], "the control segment stands nowhere yet");
        assert_eq!(units[29], 128);
        assert_eq!((&units[30..158], &units[158..]), (&bytes[..], &[0; 2][..]));
        assert_eq!(frame.bytes(), bytes);
    }

    #[test]
    fn fields_that_cannot_change_are_refused() {
        let udp = frame::<64>(&headers(false, None, Transport::Udp));
        let outside = FrameError::FieldRange { at: 33, end: 35, first: 34, last: 64 };
        assert_eq!(udp.field::<2>(33), Err(outside));
        assert!(udp.field::<4>(61).is_err() && udp.field::<4>(usize::MAX).is_err());
        assert!(udp.field::<4>(60).is_ok() && udp.field::<4>(34).is_ok());
        assert_eq!(udp.field::<4>(35), Err(FrameError::FieldFollows(35)));
        assert_eq!(udp.field::<1>(41), Err(FrameError::FieldFollows(41)));
        let tcp = frame::<64>(&headers(false, None, TCP));
        assert!(tcp.field::<8>(38).is_ok(), "sequence number and acknowledgment");
        assert_eq!(tcp.field::<2>(50), Err(FrameError::FieldFollows(50)));
        assert!(tcp.field::<2>(48).is_ok() && tcp.field::<2>(52).is_ok());
        let mut other = PrebuiltFrame::new(&[0x77; 60]);
        let field = other.field::<6>(12).unwrap();
        other.set(field, [9; 6]);
        let mut expected = [0x77; 60];
        expected[12..18].fill(9);
        assert_eq!(other.bytes(), expected, "nothing else changes");
    }

    /// A checksum of UDP is never 0, which would say that there is none, and one of TCP never
    /// 0xffff, which is no complement of a sum: whatever the value, as in a fresh frame.
    #[test]
    fn each_protocol_has_its_zero() {
        for (transport, at, zero) in [(Transport::Udp, 40, [0xff; 2]), (TCP, 50, [0; 2])] {
            let mut changed = frame::<60>(&headers(false, None, transport));
            let field = changed.field::<2>(54).unwrap();
            let mut zeros = 0;
            for value in 0..=u16::MAX {
                changed.set(field, value.to_be_bytes());
                let checksum = &changed.bytes()[at..at + 2];
                assert_ne!(checksum, zero.map(|byte: u8| !byte));
                zeros += u32::from(checksum == zero);
                if value % 257 == 0 || checksum == zero {
                    let fresh = PrebuiltFrame::<60>::new(changed.bytes().try_into().unwrap());
                    assert_eq!(checksum, &fresh.bytes()[at..at + 2]);
                    assert!(Packet::parse(changed.bytes()).unwrap().is_intact());
                }
            }
            assert!(zeros > 0, "the case arose");
        }
    }

    proptest! {
        /// Whatever changes, at even and odd places, the checksums are those of a fresh frame.
        #[test]
        fn changes_keep_the_checksums(
            ipv6 in any::<bool>(),
            tagged in any::<bool>(),
            tcp in any::<bool>(),
            changes in prop::collection::vec((0usize..40, any::<u64>(), 0u8..6), 1..40),
        ) {
            let transport = if tcp { TCP } else { Transport::Udp };
            let headers = headers(ipv6, tagged.then_some(5), transport);
            let mut frame = frame::<134>(&headers);
            let payload = headers.len_bytes();
            for (at, seed, kind) in changes {
                let bytes = std::array::from_fn(|at| (seed >> (at * 7 % 57)) as u8);
                fn change<const LEN: usize>(
                    frame: &mut PrebuiltFrame<134>,
                    at: usize,
                    bytes: &[u8; 50],
                ) {
                    let bytes = *bytes.first_chunk::<LEN>().unwrap();
                    let field = frame.field::<LEN>(at).unwrap();
                    frame.set(field, bytes);
                    assert_eq!(frame.bytes()[at..][..LEN], bytes);
                }
                match kind {
                    0 => change::<1>(&mut frame, payload + at, &bytes),
                    1 => change::<2>(&mut frame, payload + at, &bytes),
                    2 => change::<8>(&mut frame, payload + at, &bytes),
                    3 => change::<14>(&mut frame, payload + at, &bytes),
                    4 => change::<50>(&mut frame, payload, &bytes),
                    _ => change::<4>(&mut frame, payload - headers_back(tcp), &bytes),
                }
                let packet = Packet::parse(frame.bytes()).unwrap();
                prop_assert!(packet.is_intact());
                let fresh = PrebuiltFrame::<134>::new(frame.bytes().try_into().unwrap());
                prop_assert_eq!(frame.bytes(), fresh.bytes());
            }
        }
    }

    /// From the payload back to the ports, or to the sequence number.
    fn headers_back(tcp: bool) -> usize {
        if tcp { 16 } else { 8 }
    }
}
