//! Requests that hold headers of a usual length: what is cut into segments, mostly.

use ferrocx_core::wq::{Control, SendRing, Unit, blocks_of, put_eth};
use ferrocx_prm::wqe::{BASIC_BLOCK_BYTES, Ctrl, DS_BYTES, ETH_INLINE_BYTES, Eth, Opcode};

/// Units that control and Ethernet segment take.
pub(super) const HEADER_DS: u32 = 2;
/// Headers up to here are copied with no loop: Ethernet, IPv6, and TCP with timestamps.
const USUAL_BYTES: usize = ETH_INLINE_BYTES + 6 * DS_BYTES;

/// Posts a request with headers of a usual length, which one copy of a constant length takes; `put`
/// writes the data segment behind them. What is copied beside the headers is overwritten, or not
/// the device's business. `false`, and nothing posted, for others, and where the ring ends.
#[inline(always)]
pub(super) fn post_usual(
    ring: &mut SendRing,
    opcode: Opcode,
    flags_mss: u32,
    (data, headers): (&[u8], usize),
    put: impl FnOnce(Unit<'_>),
) -> bool {
    let (Some(run), Some(copied)) = (ring.run(), data.first_chunk::<USUAL_BYTES>()) else {
        return false;
    };
    let Some(behind) = headers.checked_sub(ETH_INLINE_BYTES + 1) else { return false };
    // The control segment, the Ethernet segment, and the headers behind its two bytes.
    let ds = HEADER_DS as usize + 1 + behind / DS_BYTES;
    let Some(unit) = run.piece::<DS_BYTES>(ds).filter(|_| headers <= USUAL_BYTES) else {
        return false;
    };
    let [first, second, behind @ ..] = copied;
    let start = u16::from_be_bytes([*first, *second]);
    let word = Eth::INLINE_HDR_SZ.of(headers as u32) | u32::from(start);
    put_eth(run.part::<DS_BYTES, DS_BYTES>(), flags_mss, word);
    run.copy_units::<{ HEADER_DS as usize * DS_BYTES }>(behind.as_chunks().0);
    put(unit);
    let ds = ds as u32 + 1;
    let block = run.part::<{ Ctrl::OPCODE.offset }, BASIC_BLOCK_BYTES>();
    let written = ring.written((block, ring.pi), Control::new(opcode), ds, blocks_of(ds));
    ring.post(written);
    true
}
