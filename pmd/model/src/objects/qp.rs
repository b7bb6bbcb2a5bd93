//! Queue pairs, shared receive queues of XRC, and the RoCE address table.

use arrayvec::ArrayVec;
use ferrocx_prm::qpc::{Ads, Qpc};
use ferrocx_prm::srqc::XrcSrqc;
use ferrocx_prm::vport::RoceAddress;
use ferrocx_prm::wqe::{AddressVector, BASIC_BLOCK_BYTES, Ctrl, Data};

use super::LISTED_BYTES;
use super::budget::{Budget, Charge, Footprint};
use super::memory::QueueMemory;
use super::queues::{QueueStats, ReceiveRing, WorkQueue};
use super::table::Full;
use crate::queue::active::Active;
use crate::roce::transport::Network;
use crate::roce::transport::atomic::Operands;
use crate::roce::transport::bth::Transport;
use crate::roce::transport::requester::{Request, Requester};
use crate::roce::transport::responder::Responder;

/// Data segments of the longest receive WQE: 512 bytes of 16.
pub const MAX_RECEIVE_SEGMENTS: usize = 32;

/// Service of a queue pair. Source: reference 5.2, `st`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection, either end.
    Xrc,
    /// The general services interface: QP 1 on the wire.
    Gsi,
    /// Carries UMR requests only.
    RegUmr,
}

impl QpType {
    /// Decodes `st`; `None` for a service that is not advertised.
    #[must_use]
    pub fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::Rc),
            1 => Some(Self::Uc),
            2 => Some(Self::Ud),
            3 => Some(Self::Xrc),
            8 => Some(Self::Gsi),
            0xc => Some(Self::RegUmr),
            _ => None,
        }
    }

    /// Transport service in the opcodes of its packets; `None` when it sends none.
    #[must_use]
    pub fn transport(self) -> Option<Transport> {
        match self {
            Self::Rc => Some(Transport::Rc),
            Self::Uc => Some(Transport::Uc),
            Self::Ud | Self::Gsi => Some(Transport::Ud),
            Self::Xrc => Some(Transport::Xrc),
            Self::RegUmr => None,
        }
    }

    /// There is one peer, and its answers.
    #[must_use]
    pub fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }

    /// There is one peer.
    #[must_use]
    pub fn is_connected(self) -> bool {
        matches!(self, Self::Rc | Self::Uc | Self::Xrc)
    }
}

/// State of a queue pair. Source: reference 4.4.
///
/// There is no "send queue drained": no command enters it (there is no RTS2SQD), and Linux 6.12
/// asks only for the way out of it. Devices enter it by themselves upon signature errors, which
/// are not advertised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QpState {
    /// Nothing works.
    Reset,
    /// Receives may be posted.
    Init,
    /// Receives.
    Rtr,
    /// Sends and receives.
    Rts,
    /// The send queue failed, receives go on.
    Sqer,
    /// Everything is flushed.
    Error,
}

impl QpState {
    /// The 4-bit state field.
    #[must_use]
    pub fn raw(self) -> u32 {
        match self {
            Self::Reset => 0,
            Self::Init => 1,
            Self::Rtr => 2,
            Self::Rts => 3,
            Self::Sqer => 4,
            Self::Error => 6,
        }
    }

    /// Packets of peers are taken.
    #[must_use]
    pub fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqer)
    }
}

/// Source of a queue pair's receive buffers.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the large one is the usual one")]
pub enum QpReceive {
    /// Its own ring.
    Own(WorkQueue),
    /// A receive memory pool.
    Rmp(u32),
    /// An XRC shared receive queue.
    Srq(u32),
    /// It has none; XRC: each packet names one.
    None,
}

/// Bytes of data that a completion carries at most.
pub const MAX_INLINE_BYTES: usize = 64;

/// Data that a completion carries.
pub type InlineData = ArrayVec<u8, MAX_INLINE_BYTES>;

/// Up to which length data travel in the completion. Source: reference 5.2, `cs_req`, `cs_res`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CqeScatter {
    /// Never.
    Off,
    /// Up to 32 bytes, in the first half of 64.
    Up32,
    /// Up to 64 bytes, in the first half of 128.
    Up64,
}

impl CqeScatter {
    /// Decodes `cs_res`.
    #[must_use]
    pub fn of_responder(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::Off),
            1 => Some(Self::Up32),
            2 => Some(Self::Up64),
            _ => None,
        }
    }

    /// Decodes `cs_req`.
    #[must_use]
    pub fn of_requester(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::Off),
            0x11 => Some(Self::Up32),
            0x22 => Some(Self::Up64),
            _ => None,
        }
    }

    /// Whether so many bytes travel in the completion. A length of 0 has nothing to travel.
    #[must_use]
    pub fn takes(self, len: usize) -> bool {
        let limit = match self {
            Self::Off => 0,
            Self::Up32 => 32,
            Self::Up64 => 64,
        };
        (1..=limit).contains(&len)
    }
}

/// The buffers of a receive WQE.
pub type ScatterList = ArrayVec<Data, MAX_RECEIVE_SEGMENTS>;

/// A receive WQE that was taken from its ring and is being filled. Its buffers are in
/// [`Qp::buffers`], where they stay: they are many bytes to move for each message.
#[derive(Debug, Clone, Copy)]
pub struct TakenReceive {
    /// Counter or index, as its completion carries it.
    pub wqe_counter: u16,
    /// Bytes that arrived.
    pub filled: u32,
    /// The shared queue that it came from, XRC only.
    pub xrc_srqn: Option<u32>,
    /// Protection domain of its ring.
    pub pd: u32,
    /// The reserved L_Key may be used.
    pub rlky: bool,
}

/// Bytes of a send WQE. Most fit one basic block, and take no memory of their own.
#[derive(Debug, Clone)]
pub enum WqeBytes {
    /// Up to a basic block.
    Short(ArrayVec<u8, BASIC_BLOCK_BYTES>),
    /// More than that.
    Long(Box<[u8]>),
}

impl From<&[u8]> for WqeBytes {
    fn from(bytes: &[u8]) -> Self {
        ArrayVec::try_from(bytes).map_or_else(|_| Self::Long(bytes.into()), Self::Short)
    }
}

impl std::ops::Deref for WqeBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Long(bytes) => bytes,
        }
    }
}

/// A send WQE, decoded.
#[derive(Debug, Clone)]
pub struct SendJob {
    /// The whole WQE.
    pub wqe: WqeBytes,
    /// Its control segment.
    pub ctrl: Ctrl,
    /// Counter of its first basic block.
    pub counter: u16,
    /// Offset of its data segments, in bytes.
    pub data_at: usize,
    /// Bytes of data.
    pub len: u32,
    /// Remote address.
    pub raddr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Operands of an atomic.
    pub operands: Operands,
    /// XRC: shared receive queue of the peer.
    pub xrc_srqn: u32,
    /// Datagrams: where to.
    pub av: Option<AddressVector>,
    /// The answer, if its completion is to carry it.
    pub answer: Option<Box<InlineData>>,
}

/// Queue pair. Source: reference 5.2.
#[derive(Debug)]
pub struct Qp {
    /// Service.
    pub qp_type: QpType,
    /// State.
    pub state: QpState,
    /// Both rings: receive, then send.
    pub memory: QueueMemory,
    /// I/O address of the doorbell record.
    pub dbr_addr: u64,
    /// Offset of the send ring in `memory`, in bytes.
    pub sq_at: u64,
    /// Log2 of the send basic blocks; `None` without a send queue.
    pub log_sq_size: Option<u32>,
    /// Receive buffers.
    pub receive: QpReceive,
    /// Position in its own receive ring.
    pub ring: ReceiveRing,
    /// The receive that is being filled.
    pub taken: Option<TakenReceive>,
    /// The buffers of the receive that was taken last.
    pub buffers: ScatterList,
    /// Basic blocks posted, modulo 2^16.
    pub sq_posted: u16,
    /// Basic blocks fetched, modulo 2^16.
    pub sq_fetched: u16,
    /// Its place among the queue pairs of its UAR page.
    pub(crate) listed_at: usize,
    /// Room for requests in line.
    pub line: Line,
    /// The sending half.
    pub requester: Requester<SendJob>,
    /// The receiving half.
    pub responder: Responder,
    /// The first packet arrived before RTS: the driver was told.
    pub established: bool,
    /// A notification of congestion is due to the peer.
    pub cnp_due: bool,
    /// No notification before this time.
    pub cnp_after_ns: u64,
    /// Exact costs.
    pub stats: QueueStats,
    /// The context: as given, and as every transition changed it.
    pub context: Qpc,
}

/// Room of a queue pair for requests that were fetched and are not over.
#[derive(Debug)]
pub struct Line {
    requests: usize,
    charge: Charge,
}

impl Line {
    /// Requests that a queue pair always has room for, so that it can work whatever else is there.
    const LEAST: usize = 4;
    /// A request in line with the longest WQE.
    const REQUEST_BYTES: u64 = (size_of::<Request<SendJob>>() + 1024) as u64;

    /// Pays for the least.
    ///
    /// # Errors
    ///
    /// [`Full::Memory`].
    pub fn new(budget: &Budget) -> Result<Self, Full> {
        let charge = budget.charge(Self::LEAST as u64 * Self::REQUEST_BYTES)?;
        Ok(Self { requests: Self::LEAST, charge })
    }

    /// Whether a request joins `waiting` others: where memory is scarce, lines are short.
    #[inline]
    pub(crate) fn has_room(&mut self, waiting: usize) -> bool {
        waiting < self.requests || self.grow()
    }

    /// Doubles the room, as the list of requests does.
    fn grow(&mut self) -> bool {
        let is_paid = self.charge.try_grow(self.requests as u64 * Self::REQUEST_BYTES);
        self.requests *= if is_paid { 2 } else { 1 };
        is_paid
    }

    /// The requests are gone, and so is their list.
    pub(crate) fn empty(&mut self) {
        self.requests = Self::LEAST;
        self.charge.shrink_to(Self::LEAST as u64 * Self::REQUEST_BYTES);
    }
}

impl Footprint for Qp {
    /// Its number may wait for its turn, and stand in the list of those that lost their CQ, which
    /// doubles.
    const PER_NUMBER: usize = Active::BYTES_PER_NUMBER + 2 * size_of::<u32>();

    fn heap_bytes(&self) -> u64 {
        let own = match &self.receive {
            QpReceive::Own(wq) => wq.memory.heap_bytes(),
            QpReceive::Rmp(_) | QpReceive::Srq(_) | QpReceive::None => 0,
        };
        self.memory.heap_bytes() + own + LISTED_BYTES + Responder::HEAP_BYTES
    }
}

impl Footprint for XrcSrq {
    fn heap_bytes(&self) -> u64 {
        self.wq.memory.heap_bytes()
    }
}

impl Qp {
    /// Bytes of payload of a full packet.
    #[must_use]
    pub fn mtu_bytes(&self) -> u32 {
        // 1 is 256 bytes, 5 is 4096. Source: reference 7.7.
        128 << self.context.mtu().clamp(1, 5)
    }

    /// Receives that are completed with their data.
    #[must_use]
    pub fn receive_scatter(&self) -> CqeScatter {
        CqeScatter::of_responder(self.context.cs_res()).unwrap_or(CqeScatter::Off)
    }

    /// READs and atomics that are completed with their data.
    #[must_use]
    pub fn answer_scatter(&self) -> CqeScatter {
        CqeScatter::of_requester(self.context.cs_req()).unwrap_or(CqeScatter::Off)
    }

    /// The address path.
    #[must_use]
    pub fn path(&self) -> Ads {
        self.context.primary_address_path()
    }
}

/// Shared receive queue of XRC. Source: reference 4.9.
#[derive(Debug)]
pub struct XrcSrq {
    /// The ring.
    pub wq: WorkQueue,
    /// Position in the ring.
    pub ring: ReceiveRing,
    /// Completion queue.
    pub cqn: u32,
    /// XRC domain.
    pub xrcd: u32,
    /// The reserved L_Key may be used.
    pub rlky: bool,
    /// User index of completions, or the queue's own number.
    pub user_index: u32,
    /// Limit at which an event is raised, 0 when not armed.
    pub limit: u32,
    /// The context as given.
    pub context: XrcSrqc,
}

/// Entry of the RoCE address table. Source: reference 4.6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoceGid {
    /// The 16 bytes; an IPv4 address in its mapped form, whatever the version.
    pub gid: [u8; 16],
    /// Source MAC address.
    pub mac: [u8; 6],
    /// VLAN id of its frames.
    pub vlan: Option<u16>,
    /// Network header of what is sent with it: the version of RoCE, and of IP.
    pub network: Network,
    /// The entry as given.
    pub raw: RoceAddress,
}
