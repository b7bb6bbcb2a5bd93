//! Settings of queue pairs, and of the transitions to RTS.

use ferrocx_core::wq::{RecvSize, blocks_of};

use super::{Qp, QpType};
use crate::context::DeviceAttr;
use crate::cq::Cq;
use crate::error::VerbsError;
use crate::gid::Path;
use crate::mr::{Buf, Buffers};
use crate::pd::Pd;
use crate::srq::Srq;
use crate::types::{Access, Mtu, Psn, Qpn};

/// Service and sizes of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpConfig {
    /// Transport service.
    pub qp_type: QpType,
    /// Send requests in flight, each of which may take an entry of the completion queue: 1 to
    /// [`DeviceAttr::max_qp_wr`], less for long requests. A READ with invalidate counts as two.
    pub max_send_wr: u32,
    /// Receive requests in flight, each of which takes an entry of the completion queue: 1 to
    /// [`DeviceAttr::max_qp_wr`].
    pub max_recv_wr: u32,
    /// Gather entries of a send request: 1 to [`DeviceAttr::max_send_sge`].
    pub max_send_sge: u32,
    /// Scatter entries of a receive request: 1 to [`DeviceAttr::max_recv_sge`].
    pub max_recv_sge: u32,
    /// Bytes that may stand in a send request itself: 0 to [`QpConfig::MAX_INLINE_BYTES`].
    pub max_inline_bytes: u32,
    /// Whether memory keys are registered and ended through this queue pair: RC only. Every send
    /// request then counts as three blocks at least.
    pub fast_reg: bool,
    /// Number that completions carry, 24 bits: an index into the caller's own table.
    pub user_index: u32,
    /// Raw packets: it receives frames of a [`Spread`](crate::Spread), and has no rules of its own.
    /// Of those that complete in one queue each then has a [`QpConfig::user_index`] of its own.
    pub spread: bool,
    /// Whether a send queue sees to it that it never stays full: of requests without
    /// [`SendFlags::SIGNALED`](crate::SendFlags::SIGNALED) one behind the half of it asks for a
    /// completion all the same, and so does the end of what [`Qp::to_error`](crate::Qp::to_error)
    /// finds. Such completions take entries of their queue, wake who waits for it, and report
    /// nothing to those who take [signaled requests](crate::Qp::complete_signaled) only. Without
    /// it, a queue full of requests without the flag stays full.
    pub signals_itself: bool,
}

impl QpConfig {
    /// Bytes that fit a request beside control, address vector, and the header of the data.
    pub const MAX_INLINE_BYTES: u32 = 928;
}

impl Default for QpConfig {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 64,
            fast_reg: false,
            user_index: 0,
            spread: false,
            signals_itself: true,
        }
    }
}

/// The queues that a queue pair works with: where its requests complete, and where its receives
/// come from. A completion queue alone converts into those of both directions, without a shared
/// receive queue.
#[derive(Debug)]
pub struct QpQueues<'a, B: Buffers = Buf> {
    /// Completions of send requests.
    pub send_cq: &'a Cq,
    /// Completions of receives; it may be the queue of the sends.
    pub recv_cq: &'a Cq,
    /// A shared queue of receives, or `None` for receives of the queue pair's own. With it,
    /// [`QpConfig::max_recv_wr`] and [`QpConfig::max_recv_sge`] do not count: `recv_cq` has room
    /// for [`SrqConfig::max_wr`](crate::SrqConfig::max_wr), once for all of its queue pairs.
    pub srq: Option<&'a Srq<B>>,
}

impl<'a, B: Buffers> From<&'a Cq> for QpQueues<'a, B> {
    fn from(cq: &'a Cq) -> Self {
        Self { send_cq: cq, recv_cq: cq, srq: None }
    }
}

impl Pd {
    /// Makes a queue pair in reset: `pd.create_qp(&cq, &QpConfig::default())`. Queues that differ
    /// by direction, or a shared receive queue, are named in a [`QpQueues`].
    ///
    /// Of raw packets, completions of receives carry the number of the send queue, but for failed
    /// ones: where several queue pairs share a completion queue, tell them apart by
    /// [`QpConfig::user_index`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`], [`VerbsError::CqTooSmall`], [`VerbsError::OtherDevice`],
    /// [`VerbsError::Unsupported`] for a shared receive queue with raw packets, or what the device
    /// refused.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp<'a, B: Buffers>(
        &self,
        queues: impl Into<QpQueues<'a, B>>,
        config: &QpConfig,
    ) -> Result<Qp<B>, VerbsError> {
        Qp::new(self, &queues.into(), config)
    }
}

/// 16-byte units in front of the data of messages: control, and address vector or remote address
/// and operands.
pub(super) const HEADER_DS: u32 = 4;
/// Blocks of the longest registration: 128 bytes of segments, 64 of list.
pub(super) const FAST_REG_BLOCKS: u32 = 3;
/// Smallest receive ring: the send ring behind it starts at a whole block.
const MIN_RECV_WR: u32 = 4;
/// Requests of a ring, and blocks of it. Source: reference 5.2, four-bit sizes.
const MAX_LOG_SIZE: u32 = 15;

/// Sizes of rings, checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) log_sq_blocks: u8,
    pub(super) recv: RecvSize,
}

impl Sizes {
    /// Of requests with so many 16-byte units in front of the data.
    pub(super) fn of(
        config: &QpConfig,
        attr: &DeviceAttr,
        header_ds: u32,
    ) -> Result<Self, VerbsError> {
        let check = |what, value: u32, min, max: u32| {
            VerbsError::range(what, value.into(), min, max.into())
        };
        check("max_send_wr", config.max_send_wr, 1, attr.max_qp_wr)?;
        check("max_recv_wr", config.max_recv_wr, 1, attr.max_qp_wr)?;
        let max_send_sge = attr.max_send_sge.saturating_sub(header_ds.saturating_sub(HEADER_DS));
        check("max_send_sge", config.max_send_sge, 1, max_send_sge)?;
        check("max_recv_sge", config.max_recv_sge, 1, attr.max_recv_sge)?;
        let most = QpConfig::MAX_INLINE_BYTES;
        check("max_inline_bytes", config.max_inline_bytes, 0, most)?;
        check("user_index", config.user_index, 0, 0xff_fffe)?;
        let inline_ds = (4 + config.max_inline_bytes).div_ceil(16);
        let data_ds = config.max_send_sge.max(inline_ds);
        let data_blocks = blocks_of(header_ds + data_ds);
        let max_blocks =
            if config.fast_reg { data_blocks.max(FAST_REG_BLOCKS) } else { data_blocks };
        let blocks = u64::from(config.max_send_wr) * u64::from(max_blocks);
        let what = "blocks of the send ring (max_send_wr times blocks of a request)";
        VerbsError::range(what, blocks, 1, 1 << MAX_LOG_SIZE)?;
        let log = |value: u32| value.next_power_of_two().ilog2() as u8;
        Ok(Self {
            log_sq_blocks: log(blocks as u32),
            recv: RecvSize {
                log_entries: log(config.max_recv_wr.max(MIN_RECV_WR)),
                log_units: log(config.max_recv_sge),
            },
        })
    }
}

/// Attributes of the step to INIT: rights of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InitAttr {
    /// Rights of the peer, beside those of the keys. Only the remote ones count.
    pub access: Access,
    /// Datagrams: the key that they must carry.
    pub qkey: u32,
}

/// Attributes of the step to RTR: where the peer is, and what it will send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtrAttr {
    /// The way to the peer.
    pub path: Path,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The first number that the peer will send.
    pub psn: Psn,
    /// Payload of a full packet; the same at both ends.
    pub mtu: Mtu,
    /// READs and atomics of the peer to serve at a time: 0 to [`DeviceAttr::max_qp_rd_atom`].
    pub max_dest_rd_atomic: u8,
    /// Code of the time that the peer waits when no receive is posted: 0 to 31.
    pub min_rnr_timer: u8,
}

impl RtrAttr {
    /// A connection with the usual settings: 16 READs, a wait of 0.64 ms.
    #[must_use]
    pub fn new(path: Path, remote_qpn: Qpn, psn: Psn, mtu: Mtu) -> Self {
        Self { path, remote_qpn, psn, mtu, max_dest_rd_atomic: 16, min_rnr_timer: 12 }
    }
}

/// Attributes of the step to RTS: how to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtsAttr {
    /// The first number to send.
    pub psn: Psn,
    /// Waiting for an acknowledgement takes 4.096 us times 2 to this power: 0 (for ever) to 31.
    pub timeout: u8,
    /// Repetitions without an acknowledgement: 0 to 7.
    pub retry_count: u8,
    /// Repetitions when the peer has no receive: 0 to 6, 7 for ever.
    pub rnr_retry: u8,
    /// READs and atomics in flight: 0 to [`DeviceAttr::max_qp_rd_atom`].
    pub max_rd_atomic: u8,
}

impl RtsAttr {
    /// The usual settings: 67 ms, seven repetitions, for ever when the peer is not ready.
    #[must_use]
    pub fn new(psn: Psn) -> Self {
        Self { psn, timeout: 14, retry_count: 7, rnr_retry: 7, max_rd_atomic: 16 }
    }
}

/// log2 of a number of READs, rounded up; 0 counts as 1.
pub(super) fn log_reads(what: &'static str, reads: u8, max: u32) -> Result<u32, VerbsError> {
    VerbsError::range(what, reads.into(), 0, max.into())?;
    Ok(u32::from(reads).max(1).next_power_of_two().ilog2())
}
