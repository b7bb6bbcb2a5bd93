//! A port whose objects tests put in place directly: rings, keys and tables, without commands.

#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::cast_possible_truncation, reason = "test data")]

use std::sync::Arc;

use ferrocx_bus::local::{DeviceSide, LocalConfig, LocalTransport, pair};
use ferrocx_bus::{DmaAccess, DmaBuf, DmaHeap, Transport};
use ferrocx_mempool::{Region, RegionConfig};
use ferrocx_prm::cqc::Cqc;
use ferrocx_prm::flow::{FlowContext, FlowMatchParam, FlowTableContext};
use ferrocx_prm::tirc::Tirc;
use ferrocx_prm::wqc::{Rmpc, Rqc, Sqc, Wq};

use super::DataPath;
use crate::device::config::NicConfig;
use crate::device::state::{Ctx, State};
use crate::objects::mkey::{Mkey, RESERVED_LKEY, Rights, Translation};
use crate::objects::{
    Cq, CqArmState, CqStatus, FlowDest, FlowEntry, FlowGroup, FlowTable, MissAction, QueueMemory,
    QueueState, QueueStats, ReceiveRing, Rmp, Rq, RqMemory, RxHash, Sq, Tir, TirTarget, WorkQueue,
    WqType, flow_action,
};
use crate::wire::Wire;

/// Protection domain of everything here.
pub(super) const PD: u32 = 0x21;

pub(super) struct Port {
    _transport: Arc<LocalTransport>,
    pub(super) side: DeviceSide,
    pub(super) heap: DmaHeap,
    pub(super) state: State,
    pub(super) datapath: DataPath,
    pub(super) now_ns: u64,
}

/// A completion queue and the driver's view of it.
pub(super) struct TestCq {
    pub(super) cqn: u32,
    pub(super) ring: DmaBuf,
    pub(super) record: DmaBuf,
    pub(super) log_size: u32,
    pub(super) ci: u32,
}

impl TestCq {
    /// The next entry, if it is the driver's: opcode not 15 and owner as the lap wants it.
    pub(super) fn poll(&mut self) -> Option<[u8; 64]> {
        let index = self.ci & ((1 << self.log_size) - 1);
        let mut entry = [0; 64];
        self.ring.copy_out(index as usize * 64, &mut entry);
        let lap = (self.ci >> self.log_size & 1) as u8;
        if entry[63] >> 4 == 15 || entry[63] & 1 != lap {
            return None;
        }
        self.ci += 1;
        self.record.store_be32(0, self.ci & 0xff_ffff);
        Some(entry)
    }
}

pub(super) struct TestSq {
    pub(super) sqn: u32,
    pub(super) ring: DmaBuf,
    pub(super) record: DmaBuf,
    pub(super) log_size: u32,
    pub(super) posted: u16,
}

impl TestSq {
    /// Writes a WQE at the next free block; returns the counter of its first one.
    ///
    /// The first word and the queue number are filled in: `wqe` starts with the opcode word's low
    /// byte at 3 and `ds` at 7, as in literal bytes with index and number zero.
    pub(super) fn write(&mut self, wqe: &[u8]) -> u16 {
        let counter = self.posted;
        let mut bytes = wqe.to_vec();
        bytes[1..3].copy_from_slice(&counter.to_be_bytes());
        bytes[4..7].copy_from_slice(&self.sqn.to_be_bytes()[1..]);
        self.write_raw(&bytes);
        counter
    }

    pub(super) fn write_raw(&mut self, wqe: &[u8]) {
        let blocks = 1usize << self.log_size;
        for block in wqe.chunks(64) {
            let index = usize::from(self.posted) & (blocks - 1);
            self.ring.copy_in(index * 64, block);
            self.posted = self.posted.wrapping_add(1);
        }
    }

    pub(super) fn record(&self) {
        self.record.store_release_be32(4, self.posted.into());
    }
}

pub(super) struct TestRq {
    pub(super) rqn: u32,
    pub(super) ring: DmaBuf,
    pub(super) record: DmaBuf,
    pub(super) log_size: u32,
    pub(super) log_stride: u32,
    pub(super) posted: u16,
}

impl TestRq {
    pub(super) fn post(&mut self, wqe: &[u8]) {
        let index = usize::from(self.posted) & ((1 << self.log_size) - 1);
        self.ring.copy_in(index << self.log_stride, wqe);
        self.posted = self.posted.wrapping_add(1);
        self.record.store_release_be32(0, self.posted.into());
    }
}

/// Sixteen bytes of a data segment.
pub(super) fn data(byte_count: u32, lkey: u32, addr: u64) -> Vec<u8> {
    [&byte_count.to_be_bytes()[..], &lkey.to_be_bytes(), &addr.to_be_bytes()].concat()
}

/// A SEND WQE with control segment `ce`, Ethernet flags and one data segment per triple.
pub(super) fn send(ce: u8, cs_flags: u8, segments: &[(u32, u32, u64)]) -> Vec<u8> {
    let ds = 2 + segments.len() as u8;
    let mut wqe = vec![0, 0, 0, 0x0a, 0, 0, 0, ds, 0, 0, 0, ce << 2, 0, 0, 0, 0];
    wqe.extend([0, 0, 0, 0, cs_flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for &(len, lkey, addr) in segments {
        wqe.extend(data(len, lkey, addr));
    }
    wqe
}

impl Port {
    pub(super) fn new(seed: u64) -> Self {
        let (transport, side) =
            pair(LocalConfig { seed, ..LocalConfig::default() }).expect("a transport");
        let region = Region::alloc(&RegionConfig::heap(4 << 20)).expect("memory");
        let mapping = transport.dma().map(region, DmaAccess::ReadWrite).expect("a mapping");
        let mut state = State::new(NicConfig::default());
        state.port.enabled = true;
        Self {
            _transport: transport,
            side,
            heap: DmaHeap::new(mapping),
            state,
            datapath: DataPath::default(),
            now_ns: 0,
        }
    }

    pub(super) fn plug(&mut self, wire: impl Wire + 'static) {
        self.datapath.plug(wire);
    }

    /// Runs `action` as a step of the device would.
    pub(super) fn with<R>(&mut self, action: impl FnOnce(&mut DataPath, &mut Ctx<'_>) -> R) -> R {
        let Self { side, state, datapath, now_ns, .. } = self;
        state.objects.mkeys.start_turn();
        let mem = side.memory();
        action(datapath, &mut Ctx { side, mem: &mem, state, now_ns: *now_ns })
    }

    pub(super) fn poll(&mut self) -> bool {
        self.now_ns += 1000;
        self.with(|datapath, ctx| datapath.poll(ctx))
    }

    /// Rings the doorbell of a queue as its last WQE says.
    pub(super) fn ring(&mut self, sq: &TestSq) {
        let sqn = sq.sqn;
        self.with(|datapath, ctx| datapath.send_doorbell(ctx, sqn, None));
    }

    pub(super) fn alloc(&self, len: usize) -> DmaBuf {
        self.heap.alloc(len, 4096).expect("DMA memory")
    }

    /// Memory with these bytes.
    pub(super) fn bytes(&self, bytes: &[u8]) -> DmaBuf {
        let buf = self.alloc(bytes.len().max(1));
        buf.copy_in(0, bytes);
        buf
    }

    pub(super) fn last_refusal(&self) -> &'static str {
        self.state.log.last().map_or("", |refusal| refusal.why)
    }

    pub(super) fn cq(&mut self, log_size: u32) -> TestCq {
        self.cq_with(log_size, |_| {})
    }

    pub(super) fn cq_with(&mut self, log_size: u32, change: impl FnOnce(&mut Cq)) -> TestCq {
        let ring = self.alloc(64 << log_size);
        ring.fill(0xff);
        let record = self.alloc(8);
        let mut cq = Cq {
            memory: QueueMemory::new(vec![ring.iova()], 20, 0, 64 << log_size),
            log_size,
            cqe_bytes: 64,
            uar_page: 0x10,
            eqn: 0,
            dbr_addr: record.iova(),
            overrun_ignore: false,
            collapsed: false,
            period_us: 0,
            max_count: 0,
            period_from_cqe: false,
            compression: false,
            mini_cqe_format: 0,
            enhanced_compression: false,
            producer: 0,
            consumer: 0,
            arm: CqArmState::Idle,
            arm_sn: 0,
            told: 0,
            solicited: 0,
            moderation_since_ns: None,
            moderation_count: 0,
            status: CqStatus::Ok,
            completions: 0,
            context: Cqc::zeroed(),
        };
        change(&mut cq);
        let ci = cq.consumer;
        record.store_be32(0, ci);
        let cqn = self.state.objects.cqs.insert(cq).expect("a number");
        TestCq { cqn, ring, record, log_size, ci }
    }

    fn wq(ring: &DmaBuf, record: &DmaBuf, log_size: u32, log_stride: u32) -> WorkQueue {
        WorkQueue {
            wq_type: WqType::Cyclic,
            memory: QueueMemory::new(vec![ring.iova()], 20, 0, 1 << (log_size + log_stride)),
            log_size,
            log_stride,
            pd: PD,
            dbr_addr: record.iova(),
            next_segment: false,
            signature: false,
            two_byte_shift: false,
            end_padding: false,
            log_strides_per_wqe: 0,
            log_stride_bytes: 0,
            context: Wq::zeroed(),
        }
    }

    pub(super) fn sq(&mut self, cqn: u32, log_size: u32) -> TestSq {
        self.sq_with(cqn, log_size, |_| {})
    }

    pub(super) fn sq_with(
        &mut self,
        cqn: u32,
        log_size: u32,
        change: impl FnOnce(&mut Sq),
    ) -> TestSq {
        let ring = self.alloc(64 << log_size);
        let record = self.alloc(8);
        let mut sq = Sq {
            state: QueueState::Ready,
            wq: Self::wq(&ring, &record, log_size, 6),
            uar_page: 0x10,
            cqn,
            rlky: true,
            tisn: Some(0x5000),
            min_wqe_inline_mode: 0,
            allow_multi_pkt: true,
            reg_umr: false,
            flush_in_error: true,
            user_index: 0x00_abcd,
            posted: 0,
            executed: 0,
            wqe_progress: 0,
            error_reported: false,
            is_active: false,
            listed_at: 0,
            stats: QueueStats::default(),
            context: Sqc::zeroed(),
        };
        change(&mut sq);
        let posted = sq.executed;
        let sqn = self.state.objects.sqs.insert(sq).expect("a number");
        TestSq { sqn, ring, record, log_size, posted }
    }

    pub(super) fn rq(&mut self, cqn: u32, log_size: u32, log_stride: u32) -> TestRq {
        self.rq_with(cqn, log_size, log_stride, |_, _| {})
    }

    pub(super) fn rq_with(
        &mut self,
        cqn: u32,
        log_size: u32,
        log_stride: u32,
        change: impl FnOnce(&mut Rq, &mut WorkQueue),
    ) -> TestRq {
        let ring = self.alloc(1 << (log_size + log_stride));
        let record = self.alloc(8);
        let mut wq = Self::wq(&ring, &record, log_size, log_stride);
        let mut rq = Rq {
            state: QueueState::Ready,
            memory: RqMemory::Rmp(0),
            cqn,
            rlky: true,
            vlan_strip_disable: false,
            scatter_fcs: false,
            flush_in_error: true,
            user_index: 0x00_4321,
            counter_set_id: 0,
            ring: ReceiveRing::default(),
            owed: 0,
            stats: QueueStats::default(),
            context: Rqc::zeroed(),
        };
        change(&mut rq, &mut wq);
        let posted = rq.ring.consumed;
        rq.memory = RqMemory::Inline(wq);
        let rqn = self.state.objects.rqs.insert(rq).expect("a number");
        TestRq { rqn, ring, record, log_size, log_stride, posted }
    }

    /// Turns the ring of a queue into a pool that the queue uses.
    pub(super) fn pool_of(&mut self, rqn: u32, limit: u32) -> u32 {
        let rq = self.state.objects.rqs.get_mut(rqn).expect("the queue");
        let RqMemory::Inline(wq) = std::mem::replace(&mut rq.memory, RqMemory::Rmp(0)) else {
            panic!("the queue has a pool already")
        };
        let (state, ring) = (QueueState::Ready, ReceiveRing::default());
        let rmp = Rmp { state, wq, ring, limit, context: Rmpc::zeroed() };
        let rmpn = self.state.objects.rmps.insert(rmp).expect("a number");
        self.state.objects.rqs.get_mut(rqn).expect("the queue").memory = RqMemory::Rmp(rmpn);
        rmpn
    }

    /// A key over `len` bytes of I/O addresses from `iova`, bound to the same addresses.
    pub(super) fn mkey(&mut self, iova: u64, len: u64, rights: Rights) -> u32 {
        let key = Mkey {
            variant: 0x5a,
            is_free: false,
            pd: PD,
            qpn: ferrocx_prm::mkey::ANY_QPN,
            rights,
            start: iova,
            len: Some(len),
            translation: Translation::Pa,
            pin: None,
            context: Default::default(),
        };
        self.state.objects.mkeys.insert(key).expect("a key") << 8 | 0x5a
    }

    /// A table that gives every packet to one queue.
    pub(super) fn steer_all_to(&mut self, rqn: u32) {
        let tirn = self.tir(TirTarget::Direct { rqn }, RxHash::None, 0);
        let table = self.table(0, MissAction::Default);
        self.group(table, 0, FlowMatchParam::zeroed());
        self.entry(table, 0, FlowMatchParam::zeroed(), 0, &[FlowDest::Tir(tirn)]);
        self.state.objects.rx_root = Some(table);
    }

    pub(super) fn tir(&mut self, target: TirTarget, hash: RxHash, fields: u32) -> u32 {
        let mut hash_key = [0; 40];
        hash_key.iter_mut().zip(1..).for_each(|(byte, value)| *byte = value);
        let tir = Tir {
            target,
            hash,
            hash_key,
            hash_symmetric: false,
            hash_fields_outer: fields,
            hash_fields_inner: 0,
            transport_domain: 0,
            self_lb_block: 0,
            lro_mask: 0,
            changed: 0,
            context: Tirc::zeroed(),
        };
        self.state.objects.steering_changed();
        self.state.objects.tirs.insert(tir).expect("a number")
    }

    pub(super) fn table(&mut self, level: u32, miss: MissAction) -> u32 {
        let table = FlowTable {
            table_type: 0,
            level,
            log_size: 10,
            miss,
            groups: Vec::new(),
            changed: 0,
            context: FlowTableContext::zeroed(),
        };
        self.state.objects.steering_changed();
        self.state.objects.flow_tables.insert(table).expect("a number")
    }

    /// Adds a group of 64 entries behind the ones the table has.
    pub(super) fn group(&mut self, table: u32, enable: u32, mask: FlowMatchParam) -> u32 {
        let objects = &mut self.state.objects;
        let groups = &mut objects.flow_tables.get_mut(table).expect("the table").groups;
        let start = groups.len() as u32 * 64;
        let group = FlowGroup {
            table,
            start,
            end: start + 63,
            criteria_enable: enable,
            mask: Box::new(mask),
            entries: Default::default(),
            changed: 0,
        };
        let number = objects.flow_groups.insert(group).expect("a number");
        groups.push(number);
        objects.group_changed(number);
        number
    }

    /// Adds an entry that forwards, or without destinations one that drops.
    pub(super) fn entry(
        &mut self,
        table: u32,
        group: usize,
        value: FlowMatchParam,
        flow_tag: u32,
        destinations: &[FlowDest],
    ) {
        let action = if destinations.is_empty() { flow_action::DROP } else { flow_action::FORWARD };
        let entry = FlowEntry {
            value: Box::new(value),
            flow_tag,
            action,
            destinations: destinations.to_vec(),
            counters: Vec::new(),
            context: Box::new(FlowContext::zeroed()),
        };
        self.add_entry(table, group, entry);
    }

    pub(super) fn add_entry(&mut self, table: u32, group: usize, entry: FlowEntry) {
        let objects = &mut self.state.objects;
        let number = objects.flow_tables.get(table).expect("the table").groups[group];
        let group = objects.flow_groups.get_mut(number).expect("the group");
        let index = group.entries.last_key_value().map_or(group.start, |(index, _)| index + 1);
        group.entries.insert(index, entry);
        objects.group_changed(number);
    }
}

/// The key with which tests reach memory unless they want to be refused.
pub(super) const KEY: u32 = RESERVED_LKEY;
