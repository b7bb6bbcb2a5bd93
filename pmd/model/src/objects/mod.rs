//! Everything a driver can create, in tables indexed by object number.
//!
//! A context is decoded once, at CREATE, into what the data path needs. Objects that name others
//! hold them ([`Table::hold`]), so that destroying one in use is refused.

mod access;
pub mod budget;
pub mod device_memory;
mod memory;
pub mod mkey;
mod qp;
mod queues;
mod steering;
mod table;
mod translation;

pub use budget::{Budget, Footprint, PaidList};
pub use device_memory::DeviceMemory;
pub use memory::{Pin, QueueMemory, Umem};
pub use qp::{
    CqeScatter, InlineData, Line, MAX_INLINE_BYTES, MAX_RECEIVE_SEGMENTS, Qp, QpReceive, QpState,
    QpType, RoceGid, ScatterList, SendJob, TakenReceive, WqeBytes, XrcSrq,
};
pub use queues::{
    Cq, CqArmState, CqStatus, Eq, QueueState, QueueStats, ReceiveRing, Rmp, Rq, RqMemory, Sq,
    WorkQueue, WqType,
};
pub(crate) use steering::compiled;
pub use steering::{
    FlowCounter, FlowDest, FlowEntry, FlowGroup, FlowTable, MAX_TABLE_GROUPS, MissAction, Rqt,
    RxHash, Tir, TirTarget, Tis, flow_action,
};
pub use table::{Full, SHARED_UID, Table};

use arrayvec::ArrayVec;

use self::mkey::MkeyTable;

/// A UAR page that was allocated.
#[derive(Debug, Default)]
pub struct Uar {
    /// Send queues that may ring this page.
    pub sqns: Vec<u32>,
    /// Queue pairs that may ring this page.
    pub qpns: Vec<u32>,
}

impl Uar {
    /// Adds a queue to one of the lists; gives its place there, which the queue keeps.
    fn list(list: &mut Vec<u32>, number: u32) -> usize {
        list.push(number);
        list.len() - 1
    }

    /// Takes the queue at this place out of one of the lists, which keeps no room for those that
    /// are gone. Gives the queue that has come there from the end, if there is one.
    ///
    /// However many there are and in whichever order they go, it costs the same.
    fn unlist(list: &mut Vec<u32>, at: usize) -> Option<u32> {
        if at < list.len() {
            list.swap_remove(at);
        }
        list.shrink_to(2 * list.len());
        list.get(at).copied()
    }
}

impl Footprint for () {}

/// A user context (DevX): a number under which objects belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserContext {
    /// What it asked to be allowed, see [`ferrocx_prm::cmd::user::uctx_cap`].
    pub cap: u32,
}

impl Footprint for UserContext {}

/// Its lists are paid for by the queues in them.
impl Footprint for Uar {}

impl Footprint for QCounter {}

/// Bytes of a queue's entry in the lists of its UAR page, which double and may be moving.
const LISTED_BYTES: u64 = 3 * size_of::<u32>() as u64;

/// Counters of queue events, by QUERY_Q_COUNTER.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QCounter {
    /// Packets dropped because no receive buffer was posted.
    pub out_of_buffer: u64,
    /// CQEs that found their ring full.
    pub cq_overflow: u64,
    /// Counters of the RoCE transport.
    pub roce: RoceCounters,
}

/// Counters of the RoCE transport in a Q counter set. Source: reference 4.8.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of QUERY_Q_COUNTER")]
pub struct RoceCounters {
    pub rx_write_requests: u64,
    pub rx_read_requests: u64,
    pub rx_atomic_requests: u64,
    pub out_of_sequence: u64,
    pub duplicate_request: u64,
    pub rnr_nak_retry_err: u64,
    pub packet_seq_err: u64,
    pub implied_nak_seq_err: u64,
    pub local_ack_timeout_err: u64,
    pub resp_local_length_error: u64,
    pub resp_cqe_error: u64,
    pub req_cqe_error: u64,
    pub resp_cqe_flush_error: u64,
    pub req_cqe_flush_error: u64,
    pub req_transport_retries_exceeded: u64,
    pub req_rnr_retries_exceeded: u64,
    pub req_remote_access_errors: u64,
    pub req_remote_invalid_request: u64,
    pub resp_remote_access_errors: u64,
}

/// Every object of one function.
#[derive(Debug)]
pub struct Objects {
    /// UAR pages; the number is the page's index in the BAR.
    pub uars: Table<Uar>,
    /// Numbers of the UAR pages that exist, for polling.
    pub(crate) live_uars: Vec<u32>,
    /// Protection domains.
    pub pds: Table<()>,
    /// Transport domains.
    pub tds: Table<()>,
    /// XRC domains.
    pub xrcds: Table<()>,
    /// Memory keys.
    pub mkeys: MkeyTable,
    /// Event queues.
    pub eqs: Table<Eq>,
    /// Completion queues.
    pub cqs: Table<Cq>,
    /// Send queues.
    pub sqs: Table<Sq>,
    /// Receive queues.
    pub rqs: Table<Rq>,
    /// Receive memory pools.
    pub rmps: Table<Rmp>,
    /// Queue pairs.
    pub qps: Table<Qp>,
    /// Queue pairs that lost a completion queue, and whose driver was not told yet.
    pub(crate) lost_qps: Vec<u32>,
    /// Shared receive queues of XRC.
    pub xrc_srqs: Table<XrcSrq>,
    /// The RoCE address table; it grows as entries are set.
    pub roce_gids: Vec<Option<RoceGid>>,
    /// Multicast groups and the queue pairs attached to them.
    pub multicast: PaidList<([u8; 16], u32)>,
    /// RSS tables.
    pub rqts: Table<Rqt>,
    /// Transport interfaces, receive.
    pub tirs: Table<Tir>,
    /// Transport interfaces, send.
    pub tiss: Table<Tis>,
    /// Flow tables.
    pub flow_tables: Table<FlowTable>,
    /// Flow groups.
    pub flow_groups: Table<FlowGroup>,
    /// Flow counters.
    pub flow_counters: Table<FlowCounter>,
    /// Q counters.
    pub q_counters: Table<QCounter>,
    /// User contexts.
    pub user_contexts: Table<UserContext>,
    /// Memory of user contexts.
    pub umems: Table<Umem>,
    /// Memory of the device.
    pub device_memory: DeviceMemory,
    /// Queue pairs for management datagrams, which arrive at number 1.
    pub gsi: ArrayVec<u32, MAX_GSI>,
    /// Table where received packets start, if the driver named one.
    pub rx_root: Option<u32>,
    /// Table where sent packets start, if the driver named one.
    pub tx_root: Option<u32>,
    /// Pays for all of them.
    pub budget: Budget,
    /// Changes with every change of a flow object, TIR or RQT: a compiled form is then stale.
    pub steering_generation: u64,
    caller: u16,
}

/// Queue pairs for management datagrams that there may be at a time: each such packet looks for the
/// first that receives. A driver has one.
pub const MAX_GSI: usize = 8;

/// First number of each kind. They differ, so that a number of the wrong kind is refused.
mod first {
    /// Pages 0 to 2 hold the init segment. TRACE: real hardware starts here, reference 1.3.
    pub(super) const UAR: u32 = 0x10;
    pub(super) const PD: u32 = 0x20;
    pub(super) const TD: u32 = 0x40;
    pub(super) const XRCD: u32 = 0x60;
    /// TRACE: the first EQN of real hardware, reference 4.1.
    pub(super) const EQ: u32 = 0x10;
    pub(super) const CQ: u32 = 0x400;
    pub(super) const SQ: u32 = 0x1000;
    pub(super) const RQ: u32 = 0x2000;
    pub(super) const RMP: u32 = 0x3000;
    pub(super) const QP: u32 = 0x10_0000;
    pub(super) const XRC_SRQ: u32 = 0x20_0000;
    pub(super) const RQT: u32 = 0x100;
    pub(super) const TIR: u32 = 0x4000;
    pub(super) const TIS: u32 = 0x5000;
    pub(super) const FLOW_TABLE: u32 = 0x1;
    pub(super) const FLOW_GROUP: u32 = 0x1;
    pub(super) const FLOW_COUNTER: u32 = 0x1;
    pub(super) const Q_COUNTER: u32 = 0x0;
    /// 0 is the driver itself.
    pub(super) const USER_CONTEXT: u32 = 0x1;
    pub(super) const UMEM: u32 = 0x80;
}

/// Largest number of objects of each kind, as the capability pages advertise it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectLimits {
    /// UAR pages.
    pub uars: u32,
    /// Event queues.
    pub eqs: u32,
    /// Protection domains, transport domains, XRC domains: each.
    pub domains: u32,
    /// Memory keys.
    pub mkeys: u32,
    /// Completion queues.
    pub cqs: u32,
    /// QPs, XRC SRQs, SQs, RQs, RMPs, TIRs, TISs: each.
    pub queues: u32,
    /// RSS tables.
    pub rqts: u32,
    /// Flow tables.
    pub flow_tables: u32,
    /// Flow groups.
    pub flow_groups: u32,
    /// Flow counters.
    pub flow_counters: u32,
    /// Q counters.
    pub q_counters: u32,
    /// User contexts.
    pub user_contexts: u32,
    /// User memory objects.
    pub umems: u32,
}

impl Objects {
    /// No objects, with room for `limits`, whose memory `budget` pays for.
    #[must_use]
    pub fn new(limits: ObjectLimits, budget: &Budget) -> Self {
        Self {
            uars: Table::new(first::UAR, limits.uars, budget),
            live_uars: Vec::new(),
            pds: Table::new(first::PD, limits.domains, budget),
            tds: Table::new(first::TD, limits.domains, budget),
            xrcds: Table::new(first::XRCD, limits.domains, budget).shared(),
            mkeys: MkeyTable::new(limits.mkeys, budget),
            eqs: Table::new(first::EQ, limits.eqs, budget).shared(),
            cqs: Table::new(first::CQ, limits.cqs, budget),
            sqs: Table::new(first::SQ, limits.queues, budget),
            rqs: Table::new(first::RQ, limits.queues, budget),
            rmps: Table::new(first::RMP, limits.queues, budget),
            qps: Table::new(first::QP, limits.queues, budget),
            xrc_srqs: Table::new(first::XRC_SRQ, limits.queues, budget).shared(),
            lost_qps: Vec::new(),
            roce_gids: Vec::new(),
            multicast: PaidList::new(budget),
            rqts: Table::new(first::RQT, limits.rqts, budget),
            tirs: Table::new(first::TIR, limits.queues, budget),
            tiss: Table::new(first::TIS, limits.queues, budget),
            flow_tables: Table::new(first::FLOW_TABLE, limits.flow_tables, budget),
            flow_groups: Table::new(first::FLOW_GROUP, limits.flow_groups, budget),
            flow_counters: Table::new(first::FLOW_COUNTER, limits.flow_counters, budget),
            q_counters: Table::new(first::Q_COUNTER, limits.q_counters, budget).shared(),
            user_contexts: Table::new(first::USER_CONTEXT, limits.user_contexts, budget),
            umems: Table::new(first::UMEM, limits.umems, budget),
            device_memory: DeviceMemory::new(budget),
            gsi: ArrayVec::new(),
            rx_root: None,
            tx_root: None,
            budget: budget.clone(),
            steering_generation: 0,
            caller: 0,
        }
    }

    /// What follows is done for this user context, or, with 0, for the driver.
    pub(crate) fn set_caller(&mut self, uid: u16) {
        self.caller = uid;
        macro_rules! set {
            ($($table:ident)*) => { $( self.$table.set_caller(uid); )* };
        }
        set! {
            uars pds tds xrcds mkeys eqs cqs sqs rqs rmps qps xrc_srqs rqts tirs tiss
            flow_tables flow_groups flow_counters q_counters umems
        }
    }

    /// Whether the present command is that of a user context.
    pub(crate) fn is_for_user(&self) -> bool {
        !matches!(self.caller, 0 | SHARED_UID)
    }

    /// Number of live objects of all kinds.
    #[must_use]
    pub fn len(&self) -> u32 {
        let domains = self.pds.len() + self.tds.len() + self.xrcds.len() + self.uars.len();
        let pairs = self.qps.len() + self.xrc_srqs.len();
        let queues = pairs + self.eqs.len() + self.cqs.len() + self.sqs.len() + self.rqs.len();
        let transport = self.rmps.len() + self.rqts.len() + self.tirs.len() + self.tiss.len();
        let flow = self.flow_tables.len() + self.flow_groups.len() + self.flow_counters.len();
        let user = self.user_contexts.len() + self.umems.len();
        let memory = self.mkeys.len() + self.device_memory.len();
        domains + queues + transport + flow + user + self.q_counters.len() + memory
    }

    /// Whether nothing exists.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry of the RoCE address table at an index, if it is set.
    #[must_use]
    pub fn roce_gid(&self, index: u32) -> Option<&RoceGid> {
        self.roce_gids.get(index as usize)?.as_ref()
    }

    /// Puts a send queue into the list of its UAR page.
    pub(crate) fn list_sq(&mut self, sqn: u32) {
        let Some(sq) = self.sqs.get_mut(sqn) else { return };
        if let Some(uar) = self.uars.get_mut(sq.uar_page) {
            sq.listed_at = Uar::list(&mut uar.sqns, sqn);
        }
    }

    /// Takes a send queue that is gone out of the list of its UAR page.
    pub(crate) fn unlist_sq(&mut self, sq: &Sq) {
        if let Some(uar) = self.uars.get_mut(sq.uar_page)
            && let Some(moved) = Uar::unlist(&mut uar.sqns, sq.listed_at)
            && let Some(moved) = self.sqs.get_mut(moved)
        {
            moved.listed_at = sq.listed_at;
        }
    }

    /// Puts a queue pair into the list of its UAR page.
    pub(crate) fn list_qp(&mut self, qpn: u32) {
        let Some(qp) = self.qps.get_mut(qpn) else { return };
        if let Some(uar) = self.uars.get_mut(qp.context.uar_page()) {
            qp.listed_at = Uar::list(&mut uar.qpns, qpn);
        }
    }

    /// Takes a queue pair that is gone out of the list of its UAR page.
    pub(crate) fn unlist_qp(&mut self, qp: &Qp) {
        if let Some(uar) = self.uars.get_mut(qp.context.uar_page())
            && let Some(moved) = Uar::unlist(&mut uar.qpns, qp.listed_at)
            && let Some(moved) = self.qps.get_mut(moved)
        {
            moved.listed_at = qp.listed_at;
        }
    }

    /// The steering objects changed: some are gone, or what they lead to.
    pub fn steering_changed(&mut self) {
        self.steering_generation += 1;
    }

    /// A flow table changed.
    pub fn table_changed(&mut self, table_id: u32) {
        self.steering_changed();
        if let Some(table) = self.flow_tables.get_mut(table_id) {
            table.changed = self.steering_generation;
        }
    }

    /// A flow group or its entries changed, and so its table.
    pub fn group_changed(&mut self, group_id: u32) {
        let Some(group) = self.flow_groups.get_mut(group_id) else { return };
        let table_id = group.table;
        group.changed = self.steering_generation + 1;
        self.table_changed(table_id);
    }

    /// A TIR changed.
    pub fn tir_changed(&mut self, tirn: u32) {
        self.steering_changed();
        if let Some(tir) = self.tirs.get_mut(tirn) {
            tir.changed = self.steering_generation;
        }
    }
}
