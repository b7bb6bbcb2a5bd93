//! What the fuzz targets share: frames that get past the first check, and words that are often
//! near something.
#![forbid(unsafe_code)]

use arbitrary::{Result, Unstructured};
use ferrocx_model::roce::icrc::icrc;

/// Longest frame made here.
const MAX_FRAME_BYTES: usize = 1600;
/// Source and destination of every frame; the destination is the model's first MAC address.
const MACS: [u8; 12] = [0x02, 0xfe, 0x0c, 0, 0, 1, 2, 0, 0, 0, 0, 9];
/// UDP destination port of RoCEv2.
const ROCE_PORT: [u8; 2] = [0x12, 0xb7];
const UDP: u8 = 17;

/// Bytes of memory that requests are led to: more than addresses and lengths that are near it
/// reach, so that none writes over the queues behind it, whose completions are counted.
pub const REACHED_BYTES: usize = 256 << 10;

/// Any bytes, at most `most`.
pub fn bytes(u: &mut Unstructured<'_>, most: usize) -> Result<Vec<u8>> {
    let len = u.arbitrary_len::<u8>()?.min(most);
    Ok(u.bytes(len)?.to_vec())
}

/// Small numbers, single bits, ends of ranges, object numbers, or anything.
pub fn word(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match u.int_in_range(0..=6)? {
        0 => u.int_in_range(0..=0x40)?,
        1 => 1 << u.int_in_range(0..=31)?,
        2 => u32::MAX,
        3 => 0xff_ffff,
        4 => u.int_in_range(0x400..=0x404)?,
        5 => u.int_in_range(1..=5)? << 12,
        _ => u.arbitrary()?,
    })
}

/// A frame: headers that fit together around any bytes, spoiled now and then; or noise.
pub fn frame(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut frame = MACS.to_vec();
    if u.ratio(1, 4)? {
        u.fill_buffer(&mut frame)?;
    }
    while frame.len() < 24 && u.ratio(1, 4)? {
        frame.extend(u.choose(&[[0x81, 0x00], [0x88, 0xa8]])?);
        frame.extend(u.arbitrary::<[u8; 2]>()?);
    }
    match u.int_in_range(0..=5)? {
        0 | 1 => ip_packet(u, 4, &mut frame)?,
        2 | 3 => ip_packet(u, 6, &mut frame)?,
        4 => frame.extend(bytes(u, MAX_FRAME_BYTES)?),
        _ => {
            frame.extend([0x08, 0x06]);
            frame.extend(bytes(u, 64)?);
        }
    }
    if u.ratio(1, 4)? && !frame.is_empty() {
        let at = u.choose_index(frame.len())?;
        frame[at] = u.arbitrary()?;
    }
    if u.ratio(1, 8)? {
        frame.truncate(u.choose_index(frame.len() + 1)?);
    }
    frame.truncate(MAX_FRAME_BYTES);
    Ok(frame)
}

/// EtherType, IP header with right lengths and checksum, and what it carries.
fn ip_packet(u: &mut Unstructured<'_>, version: u8, frame: &mut Vec<u8>) -> Result<()> {
    let protocol = *u.choose(&[UDP, UDP, 6, 0, 43, 44, 51, 60, 1])?;
    let is_roce = protocol == UDP && u.arbitrary()?;
    let carried = match protocol {
        UDP => udp(u, is_roce)?,
        6 => tcp(u)?,
        _ => bytes(u, 256)?,
    };
    frame.extend(if version == 4 { [0x08, 0x00] } else { [0x86, 0xdd] });
    let start = frame.len();
    let len = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    if version == 4 {
        let fragment = if u.ratio(1, 8)? { u.arbitrary::<[u8; 2]>()? } else { [0x40, 0] };
        frame.extend([0x45, u.arbitrary()?]);
        frame.extend(len(20 + carried.len()));
        frame.extend([0, 0, fragment[0], fragment[1], 64, protocol, 0, 0]);
        frame.extend([10, 0, 0, u.int_in_range(1..=3)?, 10, 0, 0, u.int_in_range(1..=3)?]);
        let sum = sum16(&frame[start..]);
        frame[start + 10..start + 12].copy_from_slice(&(!sum).to_be_bytes());
    } else {
        frame.extend([0x60, 0, 0, 0]);
        frame.extend(len(carried.len()));
        frame.extend([protocol, 64]);
        frame.extend([0xfe; 32]);
    }
    frame.extend(carried);
    if is_roce && frame.len() >= start + 24 {
        let crc_at = frame.len() - 4;
        let crc = icrc(&frame[start..crc_at]).to_le_bytes();
        frame[crc_at..].copy_from_slice(&crc);
    }
    Ok(())
}

/// A UDP datagram; for RoCE with a base transport header and room for the ICRC.
fn udp(u: &mut Unstructured<'_>, is_roce: bool) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    if is_roce {
        data.extend([u.arbitrary()?, u.arbitrary::<u8>()? & 0xf0, 0xff, 0xff]);
        data.extend(u.int_in_range(0..=0x42_u32)?.to_be_bytes());
        data.extend(u.int_in_range(0x60..=0x68_u32)?.to_be_bytes());
        let mut rest = bytes(u, 300)?;
        rest.truncate(rest.len() / 4 * 4);
        data.extend(rest);
        data.extend([0; 4]);
    } else {
        data.extend(bytes(u, 256)?);
    }
    let mut out = u.arbitrary::<[u8; 2]>()?.to_vec();
    out.extend(if is_roce { ROCE_PORT } else { u.arbitrary()? });
    out.extend(u16::try_from(8 + data.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend([0, 0]);
    out.extend(data);
    Ok(out)
}

/// A TCP segment.
fn tcp(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut out = vec![0; 20];
    u.fill_buffer(&mut out)?;
    if u.ratio(3, 4)? {
        out[12] = 0x50;
    }
    out.extend(bytes(u, 256)?);
    Ok(out)
}

/// Ones' complement sum of big-endian words. Source: RFC 1071.
fn sum16(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks_exact(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(0)
}

/// Kind of a message of ITCH, its reference, another one, shares and price, all small.
pub type ItchFields = (u8, u8, u8, u8, u8);

/// The message of a kind that touches books, with its fields filled from small numbers.
pub fn itch_message((kind, a, b, shares, price): ItchFields) -> Vec<u8> {
    let kinds = b"AFECXDUR";
    let kind = kinds.get(usize::from(kind)).copied().unwrap_or(kind);
    let len = ferrocx_tick2trade::proto::itch::MESSAGES.iter().find(|m| m.0 == kind);
    let mut bytes = vec![0; len.map_or(usize::from(a), |m| m.1)];
    let mut put = |at: usize, value: u8| {
        if let Some(byte) = bytes.get_mut(at) {
            *byte = value;
        }
    };
    put(0, kind);
    put(2, 1);
    put(18, a);
    match kind {
        b'A' | b'F' => {
            put(19, if b % 2 == 0 { b'B' } else { b'S' });
            put(23, shares);
            put(35, price);
        }
        b'U' => {
            put(26, b);
            put(30, shares);
            put(34, price);
        }
        _ => put(22, shares),
    }
    bytes
}
