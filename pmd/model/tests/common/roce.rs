//! Queue pairs of literal bytes: a host with a RoCE port, and two of them on a cable.

use ferrocx_bus::DmaBuf;
use ferrocx_model::NicConfig;
use ferrocx_model::caps::Caps;
use ferrocx_model::config::CapOverride;
use ferrocx_model::wire::{Wire, link};

use super::objects::create_eq;
use super::{Host, be32, input, words};

/// Bytes of every path MTU here: the smallest, so that messages have many packets.
pub const MTU: usize = 256;
const ROCE_PAGE: u32 = 4;
const CQ_LOG: u32 = 6;
const CQ_ENTRIES: u32 = 1 << CQ_LOG;
const RQ_LOG: u32 = 4;
const SQ_LOG: u32 = 5;
const RQ_BYTES: usize = 64 << RQ_LOG;
/// Remote and local rights of a key: a, rw, rr, lw, lr.
pub const ALL_RIGHTS: u32 = 0x1f << 10;
/// Event types that a responder and requester raise.
const EVENTS: u32 = 0x001f_02be;

/// Services, as `st` says them.
pub const RC: u32 = 0;
pub const UC: u32 = 1;
pub const UD: u32 = 2;
pub const QKEY: u32 = 0x1122_3344;

/// A completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cqe(pub [u8; 64]);

impl Cqe {
    pub fn opcode(&self) -> u8 {
        self.0[63] >> 4
    }
    pub fn syndrome(&self) -> u8 {
        self.0[0x37]
    }
    pub fn wqe_counter(&self) -> u16 {
        u16::from_be_bytes([self.0[0x3c], self.0[0x3d]])
    }
    pub fn word(&self, at: usize) -> u32 {
        be32(&self.0, at)
    }
    pub fn byte_cnt(&self) -> u32 {
        self.word(0x2c)
    }
}

/// A queue pair and its rings.
#[derive(Debug)]
pub struct TestQp {
    pub qpn: u32,
    rings: DmaBuf,
    record: DmaBuf,
    posted_blocks: u16,
    posted_receives: u16,
}

/// A host with a RoCE port, a PD, a CQ, one key over a buffer.
pub struct Peer {
    pub host: Host,
    pub uar: u32,
    pub pd: u32,
    pub eqn: u32,
    pub cqn: u32,
    pub key: u32,
    /// Memory that the key reaches; the key's addresses are I/O addresses.
    pub memory: DmaBuf,
    cq: DmaBuf,
    cq_record: DmaBuf,
    eq: DmaBuf,
    consumed: u32,
    pub mac: [u8; 6],
    pub ip: [u8; 4],
}

impl Peer {
    pub fn new(number: u8, wire: impl Wire + 'static) -> Self {
        Self::with(number, wire, NicConfig::default())
    }

    pub fn with(number: u8, wire: impl Wire + 'static, config: NicConfig) -> Self {
        let mac = [2, 0, 0, 0, 0, number];
        let mut config = NicConfig { mac, ..config };
        config.cap_pages.extend(chosen_ports(&config));
        let mut host = Host::up_with(config);
        host.nic.datapath_mut().plug(wire);
        host.ok(&input(0x200, &[(0, 0x0755_0000), (0xc, 2), (0x100, 1)]), 0x10);
        let ip = [192, 168, 0, number];
        let uar = host.short(0x802, 0);
        let alloc = |host: &Host, len: usize| host.heap.alloc(len, 4096).expect("room");
        let eq = alloc(&host, 4096);
        eq.fill(0xff);
        let eqn = host.ok(&create_eq(uar, 6, 0, EVENTS, eq.iova()), 0x10).word(8);
        let (cq, cq_record) = (alloc(&host, 64 << CQ_LOG), alloc(&host, 64));
        cq.fill(0xff);
        let create = super::objects::create_cq(uar, eqn, CQ_LOG, cq_record.iova(), cq.iova());
        let cqn = host.ok(&create, 0x10).word(8);
        let pd = host.short(0x800, 0);
        let memory = alloc(&host, 64 << 10);
        let mut peer = Self {
            host,
            uar,
            pd,
            eqn,
            cqn,
            key: 0,
            memory,
            cq,
            cq_record,
            eq,
            consumed: 0,
            mac,
            ip,
        };
        peer.key = peer.pa_key(ALL_RIGHTS);
        peer.set_gid(0, ip, mac);
        peer
    }

    /// SET_ROCE_ADDRESS, RoCEv2, IPv4.
    pub fn set_gid(&mut self, index: u32, ip: [u8; 4], mac: [u8; 6]) {
        let mut bytes = input(0x30, &[(0, 0x0761_0000), (8, index << 16), (0x28, 2)]);
        bytes[0x10..0x20].copy_from_slice(&mapped(ip));
        bytes[0x22..0x28].copy_from_slice(&mac);
        self.host.ok(&bytes, 0x10);
    }

    /// SET_ROCE_ADDRESS, RoCEv1: version and type are 0.
    pub fn set_gid_v1(&mut self, index: u32, gid: [u8; 16], mac: [u8; 6]) {
        let mut bytes = input(0x30, &[(0, 0x0761_0000), (8, index << 16)]);
        bytes[0x10..0x20].copy_from_slice(&gid);
        bytes[0x22..0x28].copy_from_slice(&mac);
        self.host.ok(&bytes, 0x10);
    }

    /// CREATE_MKEY, PA, all addresses.
    pub fn pa_key(&mut self, rights: u32) -> u32 {
        let set =
            [(0, 0x0200_0000), (0x10, rights), (0x14, 0xffff_ff5a), (0x1c, 1 << 31 | self.pd)];
        self.host.ok(&input(0x110, &set), 0x10).word(8) << 8 | 0x5a
    }

    /// CREATE_MKEY, MTT or KLM, free, `umr_en`, room for `octwords`.
    pub fn free_key(&mut self, mode: u32, octwords: u32) -> u32 {
        let set = [
            (0, 0x0200_0000),
            (0x10, 1 << 30 | 1 << 15 | mode << 8 | 1 << 10),
            (0x14, 0xffff_ff00),
            (0x1c, self.pd),
            (0x44, octwords),
            (0x48, 12),
        ];
        self.host.ok(&input(0x110, &set), 0x10).word(8) << 8
    }

    /// CREATE_QP with its own receive queue.
    pub fn create_qp(&mut self, st: u32) -> TestQp {
        self.create_qp_with(st, &[])
    }

    /// CREATE_QP of an extended reliable connection: its requests name their receive queue. The
    /// send ring stands where those of others do, behind 1024 bytes.
    pub fn create_xrc(&mut self, xrcd: u32) -> TestQp {
        self.create_qp_with(3, &[(0xc4, 1 << 24), (0xb0, xrcd), (0xa8, 16 << 6)])
    }

    /// CREATE_QP with more words of its input.
    pub fn create_qp_with(&mut self, st: u32, fields: &[(usize, u32)]) -> TestQp {
        self.create_qp_changed(st, |bytes| {
            for (at, word) in fields {
                let old = be32(bytes, *at);
                bytes[*at..at + 4].copy_from_slice(&(old | word).to_be_bytes());
            }
        })
    }

    /// CREATE_QP as a kernel has it for a program, which may register no I/O addresses: no `fre`.
    pub fn create_programs_qp(&mut self, st: u32) -> TestQp {
        self.create_qp_changed(st, |bytes| bytes[0x88..0x8c].fill(0))
    }

    /// CREATE_QP with its input changed.
    pub fn create_qp_changed(&mut self, st: u32, change: impl FnOnce(&mut [u8])) -> TestQp {
        let alloc = |host: &Host, len: usize| host.heap.alloc(len, 4096).expect("room");
        let (rings, record) = (alloc(&self.host, 4096), alloc(&self.host, 64));
        rings.fill(0);
        let mut bytes = create_qp(st, self.pd, self.uar, self.cqn, record.iova());
        change(&mut bytes);
        bytes.extend(rings.iova().to_be_bytes());
        let qpn = self.host.ok(&bytes, 0x10).word(8);
        TestQp { qpn, rings, record, posted_blocks: 0, posted_receives: 0 }
    }

    /// RST2INIT with all remote rights.
    pub fn enter_init(&mut self, qp: &TestQp, st: u32) {
        let bytes = rst2init(qp.qpn, st, self.pd, 7 << 13);
        self.host.ok(&bytes, 0x10);
    }

    /// RST to RTS; `psn` is the first of the peer, `own` the first of this one.
    pub fn connect(&mut self, qp: &TestQp, st: u32, to: &Target, timeout: u32) {
        self.enter_init(qp, st);
        self.host.ok(&init2rtr(qp.qpn, to), 0x10);
        self.host.ok(&rtr2rts(qp.qpn, to, timeout), 0x10);
    }

    /// Posts a receive of `len` bytes at `offset` of the memory.
    pub fn post_receive(&mut self, qp: &mut TestQp, offset: usize, len: u32) {
        let (key, addr) = (self.key, self.memory.iova() + offset as u64);
        self.post_receive_raw(qp, &data(len, key, addr));
    }

    pub fn post_receive_raw(&mut self, qp: &mut TestQp, segments: &[u8]) {
        let index = usize::from(qp.posted_receives) % (1 << RQ_LOG);
        let mut wqe = segments.to_vec();
        wqe.extend(data(0, 0x100, 0));
        wqe.resize(64, 0);
        qp.rings.copy_in(index * 64, &wqe);
        qp.posted_receives = qp.posted_receives.wrapping_add(1);
        qp.record.store_release_be32(0, qp.posted_receives.into());
    }

    /// Posts a send WQE: control segment, `rest`. Returns its counter. Rings the doorbell.
    pub fn post_send(&mut self, qp: &mut TestQp, work: &Work, rest: &[u8]) -> u16 {
        let counter = qp.posted_blocks;
        let ds = 1 + rest.len().div_ceil(16);
        let flags = work.fence << 5 | work.completion << 2 | u32::from(work.solicited) << 1;
        let ctrl =
            [u32::from(counter) << 8 | work.opcode, qp.qpn << 8 | ds as u32, flags, work.imm];
        let mut wqe = words(&ctrl);
        wqe.extend(rest);
        wqe.resize(wqe.len().next_multiple_of(64), 0);
        for (block, bytes) in wqe.chunks(64).enumerate() {
            let index = (usize::from(counter) + block) % (1 << SQ_LOG);
            qp.rings.copy_in(RQ_BYTES + index * 64, bytes);
        }
        qp.posted_blocks = counter.wrapping_add((wqe.len() / 64) as u16);
        qp.record.store_release_be32(4, qp.posted_blocks.into());
        let bell = u64::from(ctrl[0]) << 32 | u64::from(ctrl[1]);
        self.host.bar.write_be64(u64::from(self.uar) * 4096 + 0x800, bell);
        counter
    }

    /// The next completion, if it was written.
    pub fn poll(&mut self) -> Option<Cqe> {
        let mut entry = [0; 64];
        self.cq.copy_out((self.consumed % CQ_ENTRIES) as usize * 64, &mut entry);
        let owner = (self.consumed >> CQ_LOG) as u8 & 1;
        if entry[63] >> 4 == 0xf || entry[63] & 1 != owner {
            return None;
        }
        self.consumed += 1;
        self.cq_record.store_release_be32(0, self.consumed & 0xff_ffff);
        Some(Cqe(entry))
    }

    /// All completions that were written.
    pub fn polled(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.poll()).collect()
    }

    /// The events in the EQ: type and queue number.
    pub fn events(&self) -> Vec<(u8, u32)> {
        let mut events = Vec::new();
        for index in 0..64 {
            let mut entry = [0; 64];
            self.eq.copy_out(index * 64, &mut entry);
            if entry[63] & 1 != 0 {
                break;
            }
            events.push((entry[1], be32(&entry, 0x38) & 0xff_ffff));
        }
        events
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.memory.copy_in(offset, bytes);
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.copy_out(offset, &mut bytes);
        bytes
    }

    /// A data segment over the memory.
    pub fn sge(&self, offset: usize, len: u32) -> Vec<u8> {
        data(len, self.key, self.memory.iova() + offset as u64)
    }

    /// A remote address segment that names the memory of `other`.
    pub fn raddr(other: &Self, offset: usize, key: u32) -> Vec<u8> {
        let mut bytes = (other.memory.iova() + offset as u64).to_be_bytes().to_vec();
        bytes.extend(words(&[key, 0]));
        bytes
    }

    /// State of a queue pair, by QUERY_QP.
    pub fn state(&mut self, qp: &TestQp) -> u32 {
        self.query(qp, 0) >> 28
    }

    /// A word of the context, by QUERY_QP.
    pub fn query(&mut self, qp: &TestQp, offset: usize) -> u32 {
        self.host.ok(&words(&[0x050b_0000, 0, qp.qpn, 0]), 0x110).word(0x18 + offset)
    }
}

/// What a work request is, beside its segments.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    pub opcode: u32,
    pub imm: u32,
    pub fence: u32,
    pub completion: u32,
    pub solicited: bool,
}

/// A work request that completes always.
pub fn work(opcode: u32) -> Work {
    Work { opcode, imm: 0, fence: 0, completion: 2, solicited: false }
}

/// Where a connection leads, and how.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    pub qpn: u32,
    pub mac: [u8; 6],
    pub ip: [u8; 4],
    pub send_psn: u32,
    pub receive_psn: u32,
    pub retry: u32,
    pub rnr_retry: u32,
}

pub fn mapped(ip: [u8; 4]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&ip);
    gid
}

pub fn data(len: u32, key: u32, addr: u64) -> Vec<u8> {
    let mut bytes = words(&[len, key]);
    bytes.extend(addr.to_be_bytes());
    bytes
}

/// The page of a device whose driver has said that it chooses UDP source ports.
fn chosen_ports(config: &NicConfig) -> Option<CapOverride> {
    let max = Box::new(*Caps::new(config).page(ROCE_PAGE, false)?);
    Some(CapOverride { kind: ROCE_PAGE, cur: max.clone(), max })
}

/// An address vector with everything that RoCE needs.
pub fn av(qkey: u32, qpn: u32, mac: [u8; 6], ip: [u8; 4]) -> Vec<u8> {
    let mut bytes = words(&[qkey, 0, 1 << 31 | qpn, 0xc077, 0]);
    bytes.extend(mac);
    bytes.extend([0x02, 64]);
    bytes.extend(words(&[1 << 30]));
    bytes.extend(mapped(ip));
    bytes
}

/// An inline data segment.
pub fn inline(payload: &[u8]) -> Vec<u8> {
    let mut bytes = words(&[1 << 31 | payload.len() as u32]);
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(16), 0);
    bytes
}

/// CREATE_QP without its page list.
pub fn create_qp(st: u32, pd: u32, uar: u32, cqn: u32, record: u64) -> Vec<u8> {
    input(
        0x110,
        &[
            (0, 0x0500_0000),
            (0x18, st << 16 | 3 << 11),
            (0x1c, pd),
            (0x20, RQ_LOG << 19 | 2 << 16 | SQ_LOG << 11),
            (0x24, uar),
            (0x28, 0xabc),
            (0x88, 1 << 11),
            (0x94, cqn),
            (0xb4, cqn),
            (0xb8, (record >> 32) as u32),
            (0xbc, record as u32),
        ],
    )
}

/// RST2INIT.
pub fn rst2init(qpn: u32, st: u32, pd: u32, rights: u32) -> Vec<u8> {
    let set = [
        (0, 0x0502_0000),
        (8, qpn),
        (0x18, st << 16 | 3 << 11),
        (0x1c, pd),
        (0x54, 1 << 16),
        (0xa8, rights),
        (0xc0, QKEY),
    ];
    input(0x110, &set)
}

/// `atomic_mode` that lets masked atomics of up to eight bytes in.
pub const ATOMIC_MODE_8B: u32 = 3;

/// INIT2RTR with MTU 256, GID 0, four reads, RNR timer 1 (10 us).
pub fn init2rtr(qpn: u32, to: &Target) -> Vec<u8> {
    let mac = u64::from_be_bytes([
        0, 0, to.mac[0], to.mac[1], to.mac[2], to.mac[3], to.mac[4], to.mac[5],
    ]);
    let set = [
        (0, 0x0503_0000),
        (8, qpn),
        // With the right to atomics, and their kind.
        (0x10, 1 << 2),
        (0x20, 1 << 29 | 30 << 24),
        (0x2c, to.qpn),
        (0x38, 64),
        (0x50, 0xc123),
        (0x54, (mac >> 32) as u32),
        (0x58, mac as u32),
        (0xa8, 2 << 21 | ATOMIC_MODE_8B << 16 | 1 << 13),
        (0xac, 1 << 24 | to.receive_psn),
    ];
    let mut bytes = input(0x110, &set);
    bytes[0x40..0x50].copy_from_slice(&mapped(to.ip));
    bytes
}

/// RTR2RTS with four reads.
pub fn rtr2rts(qpn: u32, to: &Target, timeout: u32) -> Vec<u8> {
    let set = [
        (0, 0x0504_0000),
        (8, qpn),
        (0x38, timeout << 27),
        (0x88, 2 << 21 | to.retry << 16 | to.rnr_retry << 13),
        (0x90, to.send_psn),
    ];
    input(0x110, &set)
}

/// Two peers on a cable.
pub struct Two {
    pub a: Peer,
    pub b: Peer,
}

/// First PSNs: close to the wrap, and different.
pub const A_PSN: u32 = 0xff_fffd;
pub const B_PSN: u32 = 0x12_3456;
/// Code of 4.096 us times 2^8, about a millisecond.
pub const TIMEOUT: u32 = 8;

impl Two {
    pub fn new() -> Self {
        let (to_b, to_a) = link(1 << 20);
        Self { a: Peer::new(1, to_b), b: Peer::new(2, to_a) }
    }

    pub fn on(a: impl Wire + 'static, b: impl Wire + 'static) -> Self {
        Self { a: Peer::new(1, a), b: Peer::new(2, b) }
    }

    /// A connected pair of queue pairs, in RTS.
    pub fn connected(&mut self, st: u32) -> (TestQp, TestQp) {
        let (qa, qb) = (self.a.create_qp(st), self.b.create_qp(st));
        self.connect(st, &qa, &qb);
        (qa, qb)
    }

    pub fn connect(&mut self, st: u32, qa: &TestQp, qb: &TestQp) {
        let (to_b, to_a) = self.targets(qa, qb);
        self.a.connect(qa, st, &to_b, TIMEOUT);
        self.b.connect(qb, st, &to_a, TIMEOUT);
    }

    pub fn targets(&self, qa: &TestQp, qb: &TestQp) -> (Target, Target) {
        let target = |qpn, peer: &Peer, send_psn, receive_psn| Target {
            qpn,
            mac: peer.mac,
            ip: peer.ip,
            send_psn,
            receive_psn,
            retry: 3,
            rnr_retry: 3,
        };
        (target(qb.qpn, &self.b, A_PSN, B_PSN), target(qa.qpn, &self.a, B_PSN, A_PSN))
    }

    /// Steps both until neither did anything for a while.
    pub fn run(&mut self) {
        let mut quiet = 0;
        for _ in 0..200_000 {
            let busy = self.a.host.step() | self.b.host.step();
            quiet = if busy { 0 } else { quiet + 1 };
            if quiet > 8 {
                return;
            }
        }
        panic!("still busy");
    }

    /// Lets time pass, in steps of a microsecond.
    pub fn wait_us(&mut self, count: usize) {
        for _ in 0..count {
            self.a.host.step();
            self.b.host.step();
        }
    }
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed).wrapping_add((at >> 8) as u8))
        .collect()
}
