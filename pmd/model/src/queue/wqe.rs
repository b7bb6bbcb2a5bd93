//! Reading send WQEs: control segment, data segments, and what makes them invalid.
//!
//! Source: reference 6.1 to 6.3.

use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_prm::wqe::{Ctrl, DS_BYTES, Data, INLINE_SEG};

use super::dma;

/// Reason for which a WQE cannot be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WqeFault {
    /// Syndrome of its completion.
    pub(crate) syndrome: CqeSyndrome,
    /// The field that was wrong, for the model's log.
    pub(crate) field: &'static str,
    /// Its value.
    pub(crate) value: u64,
    /// Explanation of what is wrong with the value.
    pub(crate) why: &'static str,
}

impl WqeFault {
    /// A descriptor that the queue cannot carry out.
    #[cold]
    pub(crate) fn operation(field: &'static str, value: u64, why: &'static str) -> Self {
        Self { syndrome: CqeSyndrome::LOCAL_QP_OP_ERR, field, value, why }
    }

    /// A data segment whose memory cannot be reached.
    #[cold]
    pub(crate) fn protection(lkey: u32, refused: dma::Refused) -> Self {
        let (syndrome, why) = (refused.syndrome(), refused.why());
        Self { syndrome, field: "data.lkey", value: lkey.into(), why }
    }

    /// A length that the device does not send.
    #[cold]
    pub(crate) fn length(field: &'static str, value: u64, why: &'static str) -> Self {
        Self { syndrome: CqeSyndrome::LOCAL_LENGTH_ERR, field, value, why }
    }
}

/// Reserved bits of the control segment's words. Source: reference 6.1.
const CTRL_RESERVED: [(usize, u32); 2] = [(4, 0x0000_00c0), (8, 0x0000_0011)];
/// Reserved bits of an inline data segment's header. Source: reference 6.3.
const INLINE_RESERVED: u32 = 0x7fff_fc00;

/// Bytes of a send data segment that says 0: it has 31 bits for them, and none for "nothing", which
/// is a segment left out. Source: rdma-core `providers/mlx5/qp.c`, "2 Gbyte is represented as 0".
const ZERO_BYTES_MEANS: u32 = 1 << 31;

#[inline]
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Checks what every WQE has in common.
#[inline]
pub(crate) fn check_ctrl(ctrl: &Ctrl, sqn: u32, counter: u16) -> Result<(), WqeFault> {
    if ctrl.qpn() != sqn {
        return Err(WqeFault::operation("ctrl.qpn", ctrl.qpn().into(), "not this queue's number"));
    }
    if ctrl.wqe_index() != u32::from(counter) {
        let value = ctrl.wqe_index().into();
        return Err(WqeFault::operation("ctrl.wqe_index", value, "not the running block counter"));
    }
    for (offset, mask) in CTRL_RESERVED {
        let bits = word(&ctrl.0, offset) & mask;
        if bits != 0 {
            return Err(WqeFault::operation("ctrl", bits.into(), "a reserved bit is set"));
        }
    }
    Ok(())
}

/// One piece of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Segment<'a> {
    /// The bytes stand in the WQE.
    Inline(&'a [u8]),
    /// The bytes stand in memory.
    Pointer { byte_count: u32, lkey: u32, addr: u64 },
}

impl Segment<'_> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Pointer { byte_count, .. } => *byte_count as usize,
        }
    }
}

/// The data segments of a WQE.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segments<'a> {
    bytes: &'a [u8],
}

impl<'a> Segments<'a> {
    /// `bytes` is the WQE from its first data segment to its end.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Bytes of all segments together.
    #[inline]
    pub(crate) fn total(self) -> Result<usize, WqeFault> {
        let mut total = 0;
        for segment in self {
            total += segment?.len();
        }
        Ok(total)
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Result<Segment<'a>, WqeFault>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let head = self.bytes.first_chunk::<DS_BYTES>()?;
        let first = word(head, 0);
        if first & INLINE_SEG == 0 {
            self.bytes = &self.bytes[DS_BYTES..];
            let data = Data(*head);
            let byte_count = match data.byte_count() {
                0 => ZERO_BYTES_MEANS,
                bytes => bytes,
            };
            return Some(Ok(Segment::Pointer { byte_count, lkey: data.lkey(), addr: data.addr() }));
        }
        let len = (first & 0x3ff) as usize;
        if first & INLINE_RESERVED != 0 {
            self.bytes = &[];
            let value = (first & INLINE_RESERVED).into();
            return Some(Err(WqeFault::operation("inline", value, "a reserved bit is set")));
        }
        let padded = (4 + len).next_multiple_of(DS_BYTES);
        let Some(inline) = self.bytes.get(4..4 + len).filter(|_| padded <= self.bytes.len()) else {
            self.bytes = &[];
            let why = "inline data run past the WQE";
            return Some(Err(WqeFault::operation("inline.byte_count", len as u64, why)));
        };
        self.bytes = &self.bytes[padded..];
        Some(Ok(Segment::Inline(inline)))
    }
}

/// Copies bytes of a list of segments from `skip` on, until `out` is full. `read` is given key and
/// address of bytes that stand in memory, and their place.
#[inline]
pub(crate) fn gather<'a>(
    segments: impl Iterator<Item = Result<Segment<'a>, WqeFault>>,
    mut skip: usize,
    out: &mut [u8],
    mut read: impl FnMut(u32, u64, &mut [u8]) -> Result<(), WqeFault>,
) -> Result<(), WqeFault> {
    let mut done = 0;
    for segment in segments {
        let segment = segment?;
        let len = segment.len();
        if skip >= len {
            skip -= len;
            continue;
        }
        if done == out.len() {
            break;
        }
        let take = (len - skip).min(out.len() - done);
        let into = &mut out[done..done + take];
        match segment {
            Segment::Inline(bytes) => into.copy_from_slice(&bytes[skip..skip + take]),
            Segment::Pointer { lkey, addr, .. } => {
                read(lkey, addr.wrapping_add(skip as u64), into)?;
            }
        }
        done += take;
        skip = 0;
    }
    Ok(())
}
