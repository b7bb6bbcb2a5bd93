//! Work requests, and the parts of completions that hold nothing of theirs.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrocx_prm::wqe::AddressVector;

use crate::gid::Path;
use crate::types::{Qpn, RemoteAddr, Rkey};

bitflags::bitflags! {
    /// How a send request is carried out.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct SendFlags: u8 {
        /// Its end is reported at once. Without it, its end is reported together with that of a
        /// later request, and what it holds comes back then.
        const SIGNALED = 1;
        /// The receiver raises a solicited event.
        const SOLICITED = 1 << 1;
        /// It starts only after all READs and atomics before it have ended.
        const FENCE = 1 << 2;
        /// Frames: the device fills in the checksums of the IPv4 header and of TCP or UDP.
        const IP_CSUM = 1 << 3;
        /// Another request follows at once, so the doorbell is not rung for this one: it is rung
        /// for the next request without this flag, or by
        /// [`Qp::ring_doorbell`](crate::Qp::ring_doorbell). A constant flag costs no branch.
        const MORE = 1 << 4;
    }
}

/// Operation of a send request.
#[derive(Debug, Clone, Copy)]
#[doc(alias = "ibv_wr_opcode")]
#[doc(alias = "IBV_WR_SEND")]
#[doc(alias = "IBV_WR_RDMA_WRITE")]
#[doc(alias = "IBV_WR_RDMA_READ")]
pub enum SendOp<'a> {
    /// Fills a receive buffer of the peer.
    Send,
    /// Fills a receive buffer of the peer, with 32 bits that stand in the peer's completion.
    SendImm(u32),
    /// Fills a receive buffer of the peer, and ends a key of the peer's.
    SendInv(Rkey),
    /// Writes to the peer's memory.
    Write(RemoteAddr),
    /// Writes to the peer's memory, and completes a receive of the peer with 32 bits.
    WriteImm(RemoteAddr, u32),
    /// Reads from the peer's memory.
    Read(RemoteAddr),
    /// Replaces eight bytes of the peer's memory if they have a value; brings the old one.
    CompareSwap {
        /// Address of the eight bytes, a multiple of 8.
        remote: RemoteAddr,
        /// The value that must be there.
        compare: u64,
        /// The value to put there.
        swap: u64,
    },
    /// Adds to eight bytes of the peer's memory; brings the old value.
    FetchAdd {
        /// Address of the eight bytes, a multiple of 8.
        remote: RemoteAddr,
        /// The number to add.
        add: u64,
    },
    /// Sends a datagram.
    Datagram {
        /// Receiver of the datagram.
        to: &'a AddressHandle,
        /// 32 bits that stand in the receiver's completion.
        imm: Option<u32>,
    },
    /// Sends an Ethernet frame, from the destination address on and without the FCS: 14 bytes to
    /// the port's MTU and 14, or 18 with a VLAN tag. The device fills it up to the wire's minimum.
    Frame,
}

impl SendOp<'_> {
    /// A number for the operation, below 16.
    #[inline(always)]
    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::Send => 0,
            Self::SendImm(_) => 1,
            Self::SendInv(_) => 2,
            Self::Write(_) => 3,
            Self::WriteImm(..) => 4,
            Self::Read(_) => 5,
            Self::CompareSwap { .. } => 6,
            Self::FetchAdd { .. } => 7,
            Self::Datagram { .. } => 8,
            Self::Frame => 9,
        }
    }
}

/// A send request, without what it carries.
#[derive(Debug, Clone, Copy)]
#[doc(alias = "ibv_send_wr")]
pub struct SendWr<'a> {
    /// Name of the request, which comes back in its completion.
    pub wr_id: u64,
    /// Flags of the request.
    pub flags: SendFlags,
    /// Operation of the request.
    pub op: SendOp<'a>,
}

impl<'a> SendWr<'a> {
    /// A request whose end is reported.
    #[inline(always)]
    #[must_use]
    pub fn signaled(wr_id: u64, op: SendOp<'a>) -> Self {
        Self { wr_id, flags: SendFlags::SIGNALED, op }
    }

    /// A request whose end is reported with that of a later one.
    #[inline(always)]
    #[must_use]
    pub fn unsignaled(wr_id: u64, op: SendOp<'a>) -> Self {
        Self { wr_id, flags: SendFlags::empty(), op }
    }

    /// The request with more flags.
    #[inline(always)]
    #[must_use]
    pub fn with(self, flags: SendFlags) -> Self {
        Self { flags: self.flags.union(flags), ..self }
    }
}

/// Where datagrams go: path, queue pair and Q_Key, ready to be copied into a work request.
#[derive(Debug, Clone, Copy)]
pub struct AddressHandle {
    pub(crate) av: AddressVector,
}

impl AddressHandle {
    /// Makes one. No command: RoCE address vectors live in the work requests.
    #[must_use]
    #[doc(alias = "ibv_create_ah")]
    pub fn new(path: &Path, qpn: Qpn, qkey: u32) -> Self {
        Self { av: path.address_vector() }.to(qpn, qkey)
    }

    /// The same path to a queue pair.
    #[inline(always)]
    #[must_use]
    pub fn to(self, qpn: Qpn, qkey: u32) -> Self {
        Self { av: self.av.with_dqp_dct(qpn.0).with_qkey(qkey) }
    }
}

/// Kind of a work request that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WcOpcode {
    /// [`SendOp::Send`] and its kin, [`SendOp::Datagram`], [`SendOp::Frame`].
    Send,
    /// [`SendOp::Write`], [`SendOp::WriteImm`].
    Write,
    /// [`SendOp::Read`].
    Read,
    /// [`SendOp::CompareSwap`].
    CompareSwap,
    /// [`SendOp::FetchAdd`].
    FetchAdd,
    /// A registration: [`Qp::post_fast_reg`](crate::Qp::post_fast_reg).
    FastRegMr,
    /// A window that was bound: [`Qp::post_bind_mw`](crate::Qp::post_bind_mw).
    BindMw,
    /// A local invalidate: [`Qp::post_local_inv`](crate::Qp::post_local_inv) and its kin.
    LocalInv,
    /// A READ that ended its key: [`Qp::post_read_with_inv`](crate::Qp::post_read_with_inv).
    ReadWithInv,
    /// A receive that a message filled.
    Recv,
    /// A receive that a WRITE with immediate completed.
    RecvWriteImm,
}

impl WcOpcode {
    /// Whether its completion counts bytes that arrived.
    #[inline(always)]
    pub(crate) fn brings_bytes(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }
}

/// Counts the laps of all keys together through their 256 low bytes, in odd numbers.
static LAPS: AtomicU64 = AtomicU64::new(1);

/// The lap that it is now.
fn lap() -> u64 {
    // A proof of before a lap and the key meet in the end, so whoever began the lap was behind the
    // proof or beside it, and coherence is order enough.
    LAPS.load(Ordering::Relaxed)
}

/// Begins a lap; its number.
#[cold]
pub(crate) fn new_lap() -> u64 {
    LAPS.fetch_add(2, Ordering::Relaxed) + 2
}

/// Proof that a peer ended a key of ours: only completions have one, and it is good once.
///
/// It is of the registration that the peer ended, and refused for a later one that has the same
/// key, as each 256th has: unless the completion itself was taken that late.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidatedRkey {
    rkey: Rkey,
    /// Low half of the [`lap`] in which its completion was taken.
    seen: NonZeroU32,
    /// The device whose completion it was, by the number of its context.
    device: u32,
}

impl InvalidatedRkey {
    #[inline]
    pub(crate) fn new(rkey: Rkey, device: u32) -> Self {
        // Laps are odd.
        Self { rkey, seen: NonZeroU32::MIN | lap() as u32, device }
    }

    /// Whether it is of this key of a device, whose low byte began anew in the lap `since`.
    pub(crate) fn is_of(&self, rkey: Rkey, device: u32, since: u64) -> bool {
        let now = lap();
        let age = (now as u32).wrapping_sub(self.seen.get());
        let is_key = self.rkey == rkey && self.device == device;
        is_key && now.saturating_sub(age.into()) >= since
    }

    /// The key that was ended.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }
}

/// Information that a receive completion carries beside the message.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct RecvInfo {
    /// 32 bits from the sender.
    pub imm: Option<u32>,
    /// A key of ours that the sender ended.
    pub invalidated: Option<InvalidatedRkey>,
    /// Datagrams: the sender's queue pair.
    pub source_qpn: u32,
    /// Datagrams: the kind of their network header, 1 IPv6, 2 IPv4. The device says so where
    /// InfiniBand has the service level.
    pub network_hdr_type: u8,
    /// The first 40 bytes of the buffer hold the sender's IP header: IPv4 in the last 20 of them.
    pub has_grh: bool,
    /// The sender asked for a solicited event.
    pub is_solicited: bool,
    /// Frames: IPv4 or IPv6 with TCP or UDP, whose checksums the device found right. Without it,
    /// the frame is something else, or its checksums are the caller's to check.
    pub ip_csum_ok: bool,
}
