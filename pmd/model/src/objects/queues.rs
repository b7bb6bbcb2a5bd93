//! Event, completion and work queues, decoded once when they are created.

use ferrocx_prm::cqc::Cqc;
use ferrocx_prm::eqc::Eqc;
use ferrocx_prm::wqc::{Rmpc, Rqc, Sqc, Wq};

use super::LISTED_BYTES;
use super::budget::Footprint;
use super::memory::QueueMemory;
use crate::queue::active::Active;

/// State of an SQ, RQ or RMP. Source: reference 5.7, 5.8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueState {
    /// Created, does not work yet.
    Reset,
    /// Works.
    Ready,
    /// Failed, or moved here by the driver.
    Error,
}

impl QueueState {
    /// Decodes the 4-bit state field; `None` for a value that does not exist.
    #[must_use]
    pub fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::Reset),
            1 => Some(Self::Ready),
            3 => Some(Self::Error),
            _ => None,
        }
    }

    /// The 4-bit state field.
    #[must_use]
    pub fn raw(self) -> u32 {
        match self {
            Self::Reset => 0,
            Self::Ready => 1,
            Self::Error => 3,
        }
    }
}

/// Exact costs of one queue, counted by the data path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Doorbells that made the device look at this queue (SQ), or record reads (RQ).
    pub doorbells: u64,
    /// Work queue entries executed or consumed.
    pub wqes: u64,
    /// Packets sent or received.
    pub packets: u64,
    /// Packet bytes sent or received.
    pub payload_bytes: u64,
    /// Bytes of descriptors read.
    pub descriptor_bytes: u64,
    /// Reads of host memory.
    pub dma_reads: u64,
    /// Writes to host memory.
    pub dma_writes: u64,
    /// Completions written.
    pub completions: u64,
    /// Completions with error written.
    pub errors: u64,
    /// Packets dropped because no buffer was posted.
    pub out_of_buffer: u64,
}

/// Event queue. Source: reference 5.5.
#[derive(Debug)]
pub struct Eq {
    /// The ring of 64-byte entries.
    pub memory: QueueMemory,
    /// Log2 of the number of entries.
    pub log_size: u32,
    /// UAR page that may ring it.
    pub uar_page: u32,
    /// Interrupt vector.
    pub vector: u16,
    /// Event types that come here: bit n of the 256.
    pub events: [u64; 4],
    /// Overrun is ignored.
    pub overrun_ignore: bool,
    /// Entries written so far.
    pub producer: u32,
    /// Consumer index as last told by the driver, 24 bits.
    pub consumer: u32,
    /// The next entry raises the interrupt.
    pub armed: bool,
    /// An entry was lost or could not be written: the queue is dead.
    pub failed: bool,
    /// Entries that found the ring full.
    pub overruns: u64,
    /// The context as given, for QUERY_EQ.
    pub context: Eqc,
}

/// Completion queue. Source: reference 5.4.
#[derive(Debug)]
pub struct Cq {
    /// The ring.
    pub memory: QueueMemory,
    /// Log2 of the number of entries.
    pub log_size: u32,
    /// Bytes of one entry: 64 or 128.
    pub cqe_bytes: u32,
    /// UAR page that may arm it.
    pub uar_page: u32,
    /// Event queue of its completion events.
    pub eqn: u32,
    /// Doorbell record: word 0 consumer index, word 1 arm.
    pub dbr_addr: u64,
    /// Overrun is ignored.
    pub overrun_ignore: bool,
    /// Collapsed: every CQE goes to entry 0.
    pub collapsed: bool,
    /// Moderation period in microseconds, 0 for none.
    pub period_us: u32,
    /// Moderation count, 0 for none.
    pub max_count: u32,
    /// The period starts with the CQE instead of the last event.
    pub period_from_cqe: bool,
    /// CQEs may be compressed.
    pub compression: bool,
    /// Content of a mini CQE: 0 hash, 1 checksum, 3 checksum and stride index.
    pub mini_cqe_format: u32,
    /// Enhanced compression layout.
    pub enhanced_compression: bool,
    /// CQEs written so far.
    pub producer: u32,
    /// Consumer index as last read from the doorbell record, 24 bits.
    pub consumer: u32,
    /// Condition of the next event.
    pub arm: CqArmState,
    /// 2-bit arm sequence number that the next arm must carry.
    pub arm_sn: u32,
    /// CQEs that were written at the last event.
    pub told: u64,
    /// CQEs written up to the last one that is solicited or with error; 0 for none.
    pub solicited: u64,
    /// Time at which the oldest CQE that waits for moderation was written.
    pub moderation_since_ns: Option<u64>,
    /// CQEs since the last event.
    pub moderation_count: u32,
    /// An entry was lost or could not be written.
    pub status: CqStatus,
    /// CQEs written, exactly.
    pub completions: u64,
    /// The context as given, for QUERY_CQ.
    pub context: Cqc,
}

/// Whether a CQ raises an event. Source: reference 6.9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CqArmState {
    /// Not armed.
    #[default]
    Idle,
    /// The next CQE whose index is at least `ci` raises an event.
    Next {
        /// Consumer index that the driver had seen, 24 bits.
        ci: u32,
    },
    /// The next solicited CQE, or CQE with error, raises an event.
    Solicited {
        /// Consumer index that the driver had seen, 24 bits.
        ci: u32,
    },
}

/// Health of a CQ. Source: reference 5.4, `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CqStatus {
    /// Working.
    #[default]
    Ok,
    /// A CQE found the ring full.
    Overflow,
    /// A CQE could not be written.
    WriteFailure,
}

/// Kind of work queue. Source: reference 5.6, `wq_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WqType {
    /// Entries linked by their next segments.
    LinkedList,
    /// Entries in ring order.
    Cyclic,
    /// Linked entries, each a buffer for many packets.
    LinkedListStriding,
    /// Entries in ring order, each a buffer for many packets.
    CyclicStriding,
}

impl WqType {
    /// Decodes `wq_type`.
    #[must_use]
    pub fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::LinkedList),
            1 => Some(Self::Cyclic),
            2 => Some(Self::LinkedListStriding),
            3 => Some(Self::CyclicStriding),
            _ => None,
        }
    }

    /// Whether one entry holds many packets.
    #[must_use]
    pub fn is_striding(self) -> bool {
        matches!(self, Self::LinkedListStriding | Self::CyclicStriding)
    }

    /// Whether entries are linked by next segments.
    #[must_use]
    pub fn is_linked(self) -> bool {
        matches!(self, Self::LinkedList | Self::LinkedListStriding)
    }
}

/// The work queue inside an SQ, RQ or RMP. Source: reference 5.6.
#[derive(Debug, Clone)]
pub struct WorkQueue {
    /// Kind of queue.
    pub wq_type: WqType,
    /// The ring.
    pub memory: QueueMemory,
    /// Log2 of the number of entries (SQ: of basic blocks).
    pub log_size: u32,
    /// Log2 of the bytes of one entry (SQ: 6).
    pub log_stride: u32,
    /// Protection domain.
    pub pd: u32,
    /// Doorbell record: word 0 receive counter, word 1 send counter.
    pub dbr_addr: u64,
    /// Entries start with a next segment: linked ones, and those of a shared queue that is cyclic
    /// but not `basic_cyclic_rcv_wqe`, which does not look at where it points.
    pub next_segment: bool,
    /// The first 16 bytes of an entry are a signature segment.
    pub signature: bool,
    /// Packets start two bytes into the buffer.
    pub two_byte_shift: bool,
    /// Pad scattered data to the cache line.
    pub end_padding: bool,
    /// Striding: log2 of the strides of one entry.
    pub log_strides_per_wqe: u32,
    /// Striding: log2 of the bytes of a stride.
    pub log_stride_bytes: u32,
    /// The context as given.
    pub context: Wq,
}

/// Send queue. Source: reference 5.7.
#[derive(Debug)]
pub struct Sq {
    /// State.
    pub state: QueueState,
    /// The ring of 64-byte basic blocks.
    pub wq: WorkQueue,
    /// UAR page that may ring it.
    pub uar_page: u32,
    /// Completion queue.
    pub cqn: u32,
    /// The reserved L_Key may be used.
    pub rlky: bool,
    /// Transport interface, none for a queue that never sends packets.
    pub tisn: Option<u32>,
    /// Headers that must be inline: 0 none, 1 L2, 2 IP, 3 TCP or UDP.
    pub min_wqe_inline_mode: u32,
    /// Multi-packet WQEs are allowed.
    pub allow_multi_pkt: bool,
    /// UMR WQEs are allowed.
    pub reg_umr: bool,
    /// Flush with CQEs after an error.
    pub flush_in_error: bool,
    /// User index, returned in CQEs.
    pub user_index: u32,
    /// Basic blocks posted, as last read from the doorbell record, modulo 2^16.
    pub posted: u16,
    /// Basic blocks executed, modulo 2^16.
    pub executed: u16,
    /// Packets of the WQE at `executed` that are sent already, when the wire held the rest back.
    pub wqe_progress: u32,
    /// An error was reported by a CQE since the queue was last ready.
    pub error_reported: bool,
    /// A doorbell was rung and `posted` may be ahead of `executed`.
    pub is_active: bool,
    /// Its place among the send queues of its UAR page.
    pub(crate) listed_at: usize,
    /// Exact costs.
    pub stats: QueueStats,
    /// The context as given, for QUERY_SQ.
    pub context: Sqc,
}

/// Source of a receive queue's buffers.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the large one is the usual one, and hot")]
pub enum RqMemory {
    /// Its own ring.
    Inline(WorkQueue),
    /// A receive memory pool.
    Rmp(u32),
}

/// Receive side of a ring: what is posted and what is used. Source: reference 6.5, 6.6.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiveRing {
    /// Entries posted, as last read from the doorbell record, modulo 2^16.
    pub posted: u16,
    /// Entries consumed, modulo 2^16.
    pub consumed: u16,
    /// Linked list: index of the entry to use next.
    pub next_wqe: u16,
    /// Striding: strides already used of the current entry.
    pub strides_used: u32,
}

/// Receive queue. Source: reference 5.8.
#[derive(Debug)]
pub struct Rq {
    /// State.
    pub state: QueueState,
    /// Buffers.
    pub memory: RqMemory,
    /// Completion queue.
    pub cqn: u32,
    /// The reserved L_Key may be used.
    pub rlky: bool,
    /// Do not strip the VLAN tag.
    pub vlan_strip_disable: bool,
    /// Scatter the FCS too.
    pub scatter_fcs: bool,
    /// Flush with CQEs after an error.
    pub flush_in_error: bool,
    /// User index, returned in CQEs.
    pub user_index: u32,
    /// Q counter for dropped packets.
    pub counter_set_id: u32,
    /// Position in its own ring; unused with an RMP.
    pub ring: ReceiveRing,
    /// Posted entries that are still to be flushed since the queue failed.
    pub owed: u16,
    /// Exact costs.
    pub stats: QueueStats,
    /// The context as given, for QUERY_RQ.
    pub context: Rqc,
}

/// Receive memory pool. Source: reference 5.9.
#[derive(Debug)]
pub struct Rmp {
    /// State.
    pub state: QueueState,
    /// The ring.
    pub wq: WorkQueue,
    /// Position in the ring.
    pub ring: ReceiveRing,
    /// Limit at which an event is raised, 0 when not armed.
    pub limit: u32,
    /// The context as given, for QUERY_RMP.
    pub context: Rmpc,
}

impl Footprint for Eq {
    fn heap_bytes(&self) -> u64 {
        self.memory.heap_bytes()
    }
}

impl Footprint for Cq {
    /// Its number may stand among those whose event waits for moderation.
    const PER_NUMBER: usize = Active::BYTES_PER_NUMBER;

    fn heap_bytes(&self) -> u64 {
        self.memory.heap_bytes()
    }
}

impl Footprint for Sq {
    /// Its number may stand among those that have work.
    const PER_NUMBER: usize = Active::BYTES_PER_NUMBER;

    fn heap_bytes(&self) -> u64 {
        self.wq.memory.heap_bytes() + LISTED_BYTES
    }
}

impl Footprint for Rq {
    /// Its number may stand among those that owe flushed entries.
    const PER_NUMBER: usize = Active::BYTES_PER_NUMBER;

    fn heap_bytes(&self) -> u64 {
        match &self.memory {
            RqMemory::Inline(wq) => wq.memory.heap_bytes(),
            RqMemory::Rmp(_) => 0,
        }
    }
}

impl Footprint for Rmp {
    fn heap_bytes(&self) -> u64 {
        self.wq.memory.heap_bytes()
    }
}
