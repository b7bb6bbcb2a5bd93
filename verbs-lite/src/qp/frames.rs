//! [`Frames`]: what whole Ethernet frames must be like, and the segments that describe them.

use ferrocx_core::wq::Wqe;
use ferrocx_net::ether;
use ferrocx_prm::wqe::{DS_BYTES, ETH_INLINE_BYTES, Eth};

use super::wqe::{Data, gather};
use crate::context::ContextCore;
use crate::error::PostError;
use crate::mr::{Buffers, Reach};
use crate::wr::SendFlags;

/// Bytes of an Ethernet header.
const HEADER_BYTES: u64 = 14;
/// Bytes of a VLAN tag, and where its type stands. Source: IEEE 802.1Q.
const TAG_BYTES: u64 = 4;
const TAG_AT: usize = 12;
const TAG_TYPES: [[u8; 2]; 2] = [ether::VLAN.to_be_bytes(), ether::SERVICE_VLAN.to_be_bytes()];
/// Most bytes of headers that a device wants inline; more than any of
/// [`Limits::min_inline_bytes`](ferrocx_core::Limits::min_inline_bytes).
const MAX_HEADERS: usize = 128;
/// Units of 16 bytes of control and Ethernet segment.
const CTRL_AND_ETH_DS: u32 = 2;
/// Both checksums, in their word of the Ethernet segment.
const CHECKSUMS: u32 = Eth::L4_CSUM.mask() | Eth::L3_CSUM.mask();

/// What frames must be like that a queue sends.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Frames {
    /// The longest without a VLAN tag: MTU and Ethernet header.
    pub(super) max_bytes: u64,
    /// Headers of each frame that stand in the request.
    pub(super) inline: usize,
    /// The device fills in checksums.
    pub(super) checksums: bool,
}

impl Frames {
    /// For queues of a device, before they send.
    pub(super) fn new(core: &ContextCore) -> Self {
        let limits = core.device().limits();
        let inline = usize::from(limits.min_inline_bytes).min(MAX_HEADERS);
        Self { max_bytes: 0, inline, checksums: limits.checksum_offload }
    }

    /// 16-byte units of control and Ethernet segment.
    pub(super) fn header_ds(self) -> u32 {
        CTRL_AND_ETH_DS + self.inline.saturating_sub(ETH_INLINE_BYTES).div_ceil(DS_BYTES) as u32
    }

    /// Notes the port's MTU.
    pub(super) fn start(&mut self, mtu: u16) {
        self.max_bytes = u64::from(mtu) + HEADER_BYTES;
    }

    /// Checks a frame by its length and by the bytes that tell whether it has a VLAN tag.
    fn check(
        &self,
        flags: SendFlags,
        len: u64,
        tag: impl FnOnce() -> Option<[u8; 2]>,
    ) -> Result<(), PostError> {
        let max = self.max_bytes;
        let is_tagged = || tag().is_some_and(|tag| TAG_TYPES.contains(&tag));
        let fits = (HEADER_BYTES..=max).contains(&len)
            || (max..=max + TAG_BYTES).contains(&len) && is_tagged();
        match fits {
            false => Err(PostError::FrameLength),
            true if flags.contains(SendFlags::IP_CSUM) && !self.checksums => {
                Err(PostError::Operation)
            }
            true => Ok(()),
        }
    }

    /// Writes the segments of a frame, of buffers that the queue reaches, `max_sge` at most; gives
    /// its length in units.
    pub(super) fn write<B: Buffers>(
        &self,
        mut wqe: Wqe<'_>,
        flags: SendFlags,
        data: Data<'_, B>,
        (max_sge, reach): (u32, &Reach),
    ) -> Result<u32, PostError> {
        let checksums = if flags.contains(SendFlags::IP_CSUM) { CHECKSUMS } else { 0 };
        let held = match data {
            Data::Inline(frame) => {
                let tag = || frame.get(TAG_AT..)?.first_chunk().copied();
                self.check(flags, frame.len() as u64, tag)?;
                let (headers, data) = frame.split_at(frame.len().min(self.inline));
                wqe.eth(checksums, headers);
                if !data.is_empty() {
                    wqe.inline(data.len(), [data]);
                }
                return Ok(wqe.ds());
            }
            Data::Held(held) => held.ok_or(PostError::FrameLength)?,
        };
        let len = held.sges().map(|sge| u64::from(sge.len)).sum();
        let tag = || {
            let mut head = [0; TAG_AT + 2];
            held.copy_head(&mut head).then(|| [head[TAG_AT], head[TAG_AT + 1]])
        };
        self.check(flags, len, tag)?;
        let mut headers = [0; MAX_HEADERS];
        let headers = &mut headers[..self.inline.min(len as usize)];
        if !held.copy_head(headers) {
            return Err(PostError::Headers);
        }
        wqe.eth(checksums, headers);
        let skip = headers.len() as u32;
        gather(&mut wqe, max_sge, reach, held.sges(), skip)?;
        Ok(wqe.ds())
    }
}
