//! Transport interfaces, RSS tables and flow steering objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferrocx_prm::flow::{FlowContext, FlowMatchParam, FlowTableContext};
use ferrocx_prm::tirc::{Tirc, Tisc};

use super::budget::{Footprint, list_bytes};

/// Queue or table to which a TIR sends packets. Source: reference 5.9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TirTarget {
    /// Gives it to one RQ.
    Direct {
        /// The receive queue.
        rqn: u32,
    },
    /// Chooses an RQ of a table by hash.
    Indirect {
        /// The table.
        rqtn: u32,
    },
}

/// Hash function of a TIR. Source: reference 5.9, `rx_hash_fn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RxHash {
    /// None: the first entry of the table.
    None,
    /// Inverted XOR over 8 bits.
    InvertedXor8,
    /// Toeplitz.
    Toeplitz,
}

/// Transport interface receive. Source: reference 5.9.
#[derive(Debug)]
pub struct Tir {
    /// Queue or table to which packets go.
    pub target: TirTarget,
    /// Hash function.
    pub hash: RxHash,
    /// Toeplitz key.
    pub hash_key: [u8; 40],
    /// Source and destination are interchangeable.
    pub hash_symmetric: bool,
    /// Fields hashed, as in the context.
    pub hash_fields_outer: u32,
    /// Fields hashed of a tunnelled packet.
    pub hash_fields_inner: u32,
    /// Transport domain.
    pub transport_domain: u32,
    /// Packets of this port's own sending that are received: bit 0 unicast, bit 1 multicast. The
    /// name is Linux's and means the opposite; its users set a bit to allow (`mlx5e_refresh_tirs`
    /// for the self-test, `MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC`).
    pub self_lb_block: u32,
    /// LRO: bit 0 IPv4, bit 1 IPv6.
    pub lro_mask: u32,
    /// [`super::Objects::steering_generation`] of its last change.
    pub changed: u64,
    /// The context as given, for QUERY_TIR.
    pub context: Tirc,
}

/// Transport interface send. Source: reference 5.9.
#[derive(Debug)]
pub struct Tis {
    /// Priority.
    pub prio: u32,
    /// Transport domain.
    pub transport_domain: u32,
    /// The context as given, for QUERY_TIS.
    pub context: Tisc,
}

/// RSS table. Source: reference 5.9.
#[derive(Debug)]
pub struct Rqt {
    /// Entries that it can have.
    pub max_size: u32,
    /// Its receive queues; the length is a power of two. The compiled form has them, too.
    pub rqns: Arc<[u32]>,
}

/// Groups that a table can have: a packet is compared with each of them.
pub const MAX_TABLE_GROUPS: usize = 1 << 12;

/// Destination of packets that match no entry. Source: reference 5.12, `table_miss_action`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissAction {
    /// Receive: drop. Transmit: send.
    Default,
    /// Go on in another table.
    Forward {
        /// The other table.
        table: u32,
    },
}

/// Flow table. Its size is only a bound: storage follows the entries that exist.
#[derive(Debug)]
pub struct FlowTable {
    /// 0 NIC receive, 1 NIC transmit.
    pub table_type: u32,
    /// Level: entries forward to higher levels only.
    pub level: u32,
    /// Log2 of the number of entries.
    pub log_size: u32,
    /// Destination of packets that match no entry.
    pub miss: MissAction,
    /// Numbers of its groups, by ascending first index.
    pub groups: Vec<u32>,
    /// [`super::Objects::steering_generation`] of the last change to it or to a group of it.
    pub changed: u64,
    /// The context as given, for QUERY_FLOW_TABLE.
    pub context: FlowTableContext,
}

/// Flow group: entries of one table that compare the same fields.
#[derive(Debug)]
pub struct FlowGroup {
    /// Its table.
    pub table: u32,
    /// First entry index.
    pub start: u32,
    /// Last entry index, inclusive.
    pub end: u32,
    /// Match parts that count: bit 0 outer, 1 misc, 2 inner, 3 misc2.
    pub criteria_enable: u32,
    /// Mask of the bits that are compared.
    pub mask: Box<FlowMatchParam>,
    /// Its entries by index.
    pub entries: BTreeMap<u32, FlowEntry>,
    /// [`super::Objects::steering_generation`] of the last change to it or to an entry of it.
    pub changed: u64,
}

/// Destination of an entry. Source: reference 5.12, `destination_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowDest {
    /// Another table.
    Table(u32),
    /// A transport interface.
    Tir(u32),
}

/// Flow table entry.
#[derive(Debug, Clone)]
pub struct FlowEntry {
    /// Value that a packet must carry in the bits of the group's mask.
    pub value: Box<FlowMatchParam>,
    /// Tag returned in the CQE.
    pub flow_tag: u32,
    /// Bits 0x1 allow, 0x2 drop, 0x4 forward, 0x8 count.
    pub action: u32,
    /// Destinations of the packet; several for multicast.
    pub destinations: Vec<FlowDest>,
    /// Counters that count it.
    pub counters: Vec<u32>,
    /// The context as given, for QUERY_FTE.
    pub context: Box<FlowContext>,
}

/// [`FlowEntry::action`] bits. Source: reference 5.12.
pub mod flow_action {
    /// Send it on (transmit).
    pub const ALLOW: u32 = 0x1;
    /// Drop it.
    pub const DROP: u32 = 0x2;
    /// Forward it to the destinations.
    pub const FORWARD: u32 = 0x4;
    /// Count it.
    pub const COUNT: u32 = 0x8;
}

/// Memory that the compiled form of a TIR takes, and of a group without its entries; and an entry
/// while it is being compiled. The former form is there until the new one is done.
pub(crate) mod compiled {
    pub(crate) const TIR_BYTES: usize = 768;
    /// Rows that a Toeplitz hash is computed with: 16 words for each half of 36 input bytes.
    pub(crate) const TIR_HASH_BYTES: usize = 72 * 16 * size_of::<u32>();
    pub(crate) const GROUP_BYTES: usize = 512;
    pub(crate) const ENTRY_BYTES: usize = 512;
}

impl Footprint for Tir {
    const PER_NUMBER: usize = 2 * compiled::TIR_BYTES;

    /// Any may be given a Toeplitz hash later.
    fn heap_bytes(&self) -> u64 {
        compiled::TIR_HASH_BYTES as u64
    }
}

impl Footprint for Tis {}

impl Footprint for Rqt {
    fn heap_bytes(&self) -> u64 {
        list_bytes::<u32>(self.rqns.len())
    }
}

/// The lists of groups are paid for by the groups in them.
impl Footprint for FlowTable {
    const PER_NUMBER: usize = 2 * 64;
}

impl Footprint for FlowGroup {
    const PER_NUMBER: usize = 3 * size_of::<u32>();

    fn heap_bytes(&self) -> u64 {
        (size_of::<FlowMatchParam>() + 2 * compiled::GROUP_BYTES) as u64
    }
}

impl Footprint for FlowCounter {}

impl FlowEntry {
    /// Memory of an entry in its group, compiled form included.
    pub(crate) fn bytes(&self) -> u64 {
        let boxes = size_of::<FlowMatchParam>() + size_of::<FlowContext>();
        // A node of the tree may be half full.
        let node = 2 * (size_of::<u32>() + size_of::<Self>());
        let lists = list_bytes::<FlowDest>(self.destinations.capacity())
            + list_bytes::<u32>(self.counters.capacity());
        3 * lists + (boxes + node + 2 * compiled::ENTRY_BYTES) as u64
    }
}

/// A counter of packets and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowCounter {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub octets: u64,
    /// Counters that were allocated together, of which this is the first; 0 for the others.
    pub bulk: u32,
}
