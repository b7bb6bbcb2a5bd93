//! One memory: a pool that is registered once with each device carries Ethernet frames, RDMA
//! messages and what peers reach by fast-register keys.

#[path = "../../../verbs-lite/tests/common/mod.rs"]
mod common;

use std::sync::{Arc, Mutex, PoisonError};

use arrayvec::ArrayVec;
use common::{Side, Two, config, ids, models, models_like, pattern, settings, small, syndromes};
use ferrocx_bus::local::LocalTransport;
use ferrocx_bus::{
    Bar, BarClaim, BusError, DmaAccess, DmaLimits, DmaMapping, DmaSpace, Interrupts, PciIdentity,
    Transport,
};
use ferrocx_core::{DeviceConfig, DeviceError, KeyMode};
use ferrocx_mempool::{Mbuf, PageSize, Pool, PoolConfig, Region, RegionConfig};
use ferrocx_model::NicConfig;
use ferrocx_model::wire::link;
use ferrocx_pmd::{Rss, RssConfig, RxQueue, RxQueueConfig, TxQueue, TxQueueConfig};
use ferrocx_verbs_lite::*;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
const S: SendFlags = SendFlags::SIGNALED;
const PAGES: ListLayout = ListLayout::Pages { log_page: 12 };
/// Bytes of data that a fresh buffer has room for.
const ROOM: usize = 224;

/// Base addresses of the regions that were mapped, one for each call.
type Maps = Arc<Mutex<Vec<usize>>>;

/// A transport that notes what is mapped.
#[derive(Debug)]
struct Counting {
    inner: Arc<LocalTransport>,
    maps: Maps,
}

#[derive(Debug)]
struct CountingDma {
    inner: Arc<dyn DmaSpace>,
    maps: Maps,
}

impl DmaSpace for CountingDma {
    fn map(&self, region: Arc<Region>, access: DmaAccess) -> Result<Arc<DmaMapping>, BusError> {
        let base = region.base().as_ptr().addr();
        self.maps.lock().unwrap_or_else(PoisonError::into_inner).push(base);
        self.inner.map(region, access)
    }

    fn unmap_all(&self) -> Result<(), BusError> {
        self.inner.unmap_all()
    }

    fn limits(&self) -> DmaLimits {
        self.inner.limits()
    }
}

impl Transport for Counting {
    fn bar(&self, claim: BarClaim) -> Arc<dyn Bar> {
        self.inner.bar(claim)
    }

    fn dma(&self) -> Arc<dyn DmaSpace> {
        Arc::new(CountingDma { inner: self.inner.dma(), maps: Arc::clone(&self.maps) })
    }

    fn interrupts(&self) -> Arc<dyn Interrupts> {
        self.inner.interrupts()
    }

    fn identity(&self) -> &PciIdentity {
        self.inner.identity()
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn reset(&self) -> Result<(), BusError> {
        self.inner.reset()
    }

    fn reset_complete(&self) -> bool {
        self.inner.reset_complete()
    }

    fn relax(&self) {
        self.inner.relax();
    }
}

fn pool_config(name: &str, data_room_bytes: usize) -> PoolConfig {
    let region = RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() };
    PoolConfig {
        name: name.into(),
        count: 512,
        data_room_bytes,
        headroom_bytes: 32,
        cache_size: 32,
        region,
    }
}

fn pool(name: &str) -> Pool {
    Pool::new(&pool_config(name, 256)).unwrap()
}

/// A packet of `len` bytes of a pattern, in as many segments as it takes.
fn packet(pool: &Pool, len: usize, seed: u8) -> Mbuf {
    let mut packet = empty(pool, len.div_ceil(ROOM));
    let mut rest = &pattern(len, seed)[..];
    let mut parts = Vec::new();
    while let Some(next) = packet.take_next() {
        parts.push(std::mem::replace(&mut packet, next));
    }
    parts.push(packet);
    let mut filled = parts.into_iter().map(|mut part| {
        let (head, tail) = rest.split_at(rest.len().min(ROOM));
        assert!(part.extend_from_slice(head));
        rest = tail;
        part
    });
    let mut packet = filled.next().unwrap();
    filled.for_each(|part| packet.chain(part).unwrap());
    packet
}

/// Fresh buffers in a chain.
fn empty(pool: &Pool, segments: usize) -> Mbuf {
    let mut packet = pool.get().unwrap();
    (1..segments).for_each(|_| packet.chain(pool.get().unwrap()).unwrap());
    packet
}

fn bytes(packet: &Mbuf) -> Vec<u8> {
    let mut bytes = vec![0; packet.pkt_len()];
    assert!(packet.read(0, &mut bytes));
    bytes
}

/// The Ethernet queues of a port.
struct Ethernet {
    _rss: Rss,
    rx: RxQueue,
    tx: TxQueue,
}

impl Ethernet {
    fn new(side: &Side, pool: &Pool) -> Self {
        let (device, descriptors) = (side.context.device(), 64);
        let rx = RxQueueConfig { descriptors, cache_size: 32, ..RxQueueConfig::default() };
        let rx = RxQueue::new(device, pool, &rx).unwrap();
        let tx = TxQueueConfig { descriptors, ..TxQueueConfig::default() };
        let tx = TxQueue::new(device, pool, &tx).unwrap();
        let rss = Rss::new(device, &[rx.queue_ref()], &RssConfig::default()).unwrap();
        Self { _rss: rss, rx, tx }
    }

    fn send(&mut self, packet: Mbuf) {
        let mut burst = ArrayVec::<Mbuf, 1>::new();
        burst.push(packet);
        assert_eq!(self.tx.tx_burst(&mut burst), 1);
    }

    fn receive(&mut self) -> Mbuf {
        let mut burst = ArrayVec::<Mbuf, 1>::new();
        assert_eq!(self.rx.rx_burst(&mut burst), 1);
        burst.pop().unwrap()
    }
}

fn pair(two: &Two) -> (Qp<Mbuf>, Qp<Mbuf>) {
    let (qa, qb) =
        two.rc(&QpConfig { fast_reg: true, max_send_sge: 4, max_recv_sge: 4, ..small() });
    (qa, qb)
}

fn reg(wr_id: u64, start: u64, access: Access) -> FastReg {
    FastReg { wr_id, flags: S, start, access, remote_invalidate: true }
}

/// The packet that a request gave back.
fn returned(done: Vec<Wc<Mbuf>>) -> Mbuf {
    let [wc] = <[_; 1]>::try_from(done).unwrap();
    wc.result.unwrap();
    wc.into_buffers().unwrap()
}

/// The key that an invalidation gave back.
fn freed(done: Vec<Wc<Mbuf>>) -> FastRegMr {
    let [wc] = <[_; 1]>::try_from(done).unwrap();
    match wc.returned {
        Returned::Mr(mr) => mr,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_pool_and_one_map_serve_frames_messages_and_keys() {
    let maps = [Maps::default(), Maps::default()];
    let mut unused = maps.to_vec();
    let (wire_a, wire_b) = link(1 << 20);
    let unused = Mutex::new(&mut unused);
    let mut two = Two::opened(models(wire_a, wire_b), &settings(), |inner| {
        Arc::new(Counting { inner, maps: unused.lock().unwrap().remove(0) })
    });
    // Frames of the port's MTU are scattered by nobody here: room for one and its tail.
    let pool = Pool::new(&pool_config("all", 2048)).unwrap();
    for side in [&two.a, &two.b] {
        side.context.device().register_pool(&pool).unwrap();
    }
    let [mut port_a, mut port_b] = [&two.a, &two.b].map(|side| Ethernet::new(side, &pool));
    let (mut qa, mut qb) = pair(&two);

    // By Ethernet from A to B.
    let mut frame = [&two.b.mac().0[..], &two.a.mac().0[..], &[0x88, 0xb5]].concat();
    frame.extend(pattern(900, 3));
    let mut packet = pool.get().unwrap();
    assert!(packet.extend_from_slice(&frame));
    port_a.send(packet);
    two.world.settle();
    let received = port_b.receive();
    assert_eq!(received.data(), frame);

    // A lets B write to another packet of the pool, and read it.
    let mut list = two.a.context.alloc_page_list(ListLayout::Pieces, 8).unwrap();
    let mut target = pool.get().unwrap();
    assert!(target.grow(frame.len()));
    list.map_mbuf(target).unwrap();
    let mr = two.a.pd.alloc_mr(ListLayout::Pieces, 8).unwrap();
    let mr = qa.post_fast_reg(&reg(1, 0x4000, ALL), mr, list).unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&done), [(1, true)]);

    // B posts what it received from the wire as a WRITE, and reads it back.
    let write = SendWr::signaled(2, SendOp::Write(mr.remote()));
    qb.post_send(&write, Some(received)).unwrap();
    let (_, done) = two.run(&mut qa, &mut qb);
    let mut sink = returned(done);
    sink.reset();
    assert!(sink.grow(frame.len()));
    sink.data_mut().unwrap().fill(0);
    let read = SendWr::signaled(3, SendOp::Read(mr.remote()));
    qb.post_send(&read, Some(sink)).unwrap();
    let (_, done) = two.run(&mut qa, &mut qb);
    assert_eq!(returned(done).data(), frame);

    // The packet is A's again when the key has ended.
    let refused = two.a.context.device().unregister_pool(&pool).unwrap_err();
    assert!(matches!(refused, DeviceError::InUse { .. }), "{refused}");
    qa.post_local_inv(4, S, mr).unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    let mut mr = freed(done);
    assert_eq!(mr.take_mbuf().unwrap().data(), frame);
    assert!(mr.take_mbuf().is_none());

    let base = pool.region().base().as_ptr().addr();
    let count = |maps: &Maps| maps.lock().unwrap().iter().filter(|at| **at == base).count();
    assert_eq!(maps.each_ref().map(count), [1, 1], "one map of the region for each device");
    two.world.assert_clean();
    drop((qa, qb, port_a, port_b));
    for side in [&two.b, &two.a] {
        side.context.device().unregister_pool(&pool).unwrap();
    }
    assert_eq!((pool.keys(), pool.stats().in_use), (None, 0));
}

/// A pool for both sides, registered first with A, whose address and key its buffers carry.
fn shared(two: &Two) -> Pool {
    let pool = pool("both");
    for side in [&two.a, &two.b] {
        side.context.device().register_pool(&pool).unwrap();
    }
    pool
}

#[test]
fn packets_are_sent_received_written_and_read_whatever_their_segments() {
    for mode in [KeyMode::Reserved, KeyMode::Physical, KeyMode::Translated] {
        let settings = DeviceConfig { key_mode: Some(mode), ..settings() };
        let (wire_a, wire_b) = link(1 << 20);
        let mut two = Two::opened(models(wire_a, wire_b), &settings, |transport| transport);
        let pool = shared(&two);
        if mode != KeyMode::Reserved {
            // Only here are the keys of the pool good.
            let (mut qa, mut qb) = pair(&two);
            for qp in [&mut qa, &mut qb] {
                let refused = qp.post_recv(1, empty(&pool, 1)).unwrap_err();
                assert_eq!(refused.cause, PostError::Pd, "{mode}");
            }
            two.a.pd = two.a.context.device_pd();
            two.b.pd = two.b.context.device_pd();
        }
        let target = two.b.mr();
        let (mut qa, mut qb) = pair(&two);
        for (sent, segments) in [(1, 1), (ROOM, 1), (ROOM + 1, 2), (3 * ROOM + 50, 4)] {
            qb.post_recv(1, empty(&pool, segments)).unwrap();
            let wr = SendWr::signaled(2, SendOp::Send);
            qa.post_send(&wr, Some(packet(&pool, sent, 1))).unwrap();
            let (done, received) = two.run(&mut qa, &mut qb);
            assert_eq!((received[0].byte_len as usize, received[0].opcode), (sent, WcOpcode::Recv));
            let received = returned(received);
            let lens: Vec<usize> = received.segments().map(|segment| segment.data_len()).collect();
            let full = vec![ROOM; segments - 1];
            assert_eq!(lens, [full, vec![sent - (segments - 1) * ROOM]].concat());
            assert_eq!((received.pkt_len(), bytes(&received)), (sent, pattern(sent, 1)));
            let sent_again = returned(done);
            // Written to B's memory, and read back over what the packet held.
            let remote = RemoteAddr { addr: target.addr() + 77, rkey: target.rkey().unwrap() };
            let wr = SendWr::signaled(3, SendOp::Write(remote));
            qa.post_send(&wr, Some(sent_again)).unwrap();
            let (done, _) = two.run(&mut qa, &mut qb);
            drop(returned(done));
            assert_eq!(two.b.read(77, sent), pattern(sent, 1));
            let wr = SendWr::signaled(4, SendOp::Read(remote));
            qa.post_send(&wr, Some(packet(&pool, sent, 99))).unwrap();
            let (done, _) = two.run(&mut qa, &mut qb);
            assert_eq!(bytes(&returned(done)), pattern(sent, 1));
        }
        // Behind what a packet has.
        let mut room = empty(&pool, 1);
        assert!(room.extend_from_slice(b"had: "));
        qb.post_recv(5, room).unwrap();
        let wr = SendWr::signaled(6, SendOp::SendImm(7));
        qa.post_send(&wr, Some(packet(&pool, 9, 2))).unwrap();
        let (_, done) = two.run(&mut qa, &mut qb);
        assert_eq!(returned(done).data(), [b"had: ", &pattern(9, 2)[..]].concat());
        // A WRITE with immediate puts nothing there.
        qb.post_recv(7, empty(&pool, 1)).unwrap();
        let remote = RemoteAddr { addr: target.addr(), rkey: target.rkey().unwrap() };
        let wr = SendWr::signaled(8, SendOp::WriteImm(remote, 7));
        qa.post_send(&wr, Some(packet(&pool, 100, 2))).unwrap();
        let (_, done) = two.run(&mut qa, &mut qb);
        assert_eq!((done[0].byte_len, returned(done).pkt_len()), (100, 0));
        let wr = SendWr::signaled(9, SendOp::FetchAdd { remote, add: 1 });
        let refused = qa.post_send(&wr, Some(packet(&pool, 9, 2))).unwrap_err();
        assert_eq!(refused.cause, PostError::AtomicBuffer);
        qa.post_send(&wr, Some(packet(&pool, 8, 2))).unwrap();
        let (done, _) = two.run(&mut qa, &mut qb);
        assert_eq!(bytes(&returned(done)), &pattern(100, 2)[..8]);
        two.world.assert_clean();
    }
}

#[test]
fn a_device_writes_to_no_packet_that_a_clone_shares() {
    let mut two = Two::new();
    let pool = shared(&two);
    let target = two.b.mr();
    let remote = RemoteAddr { addr: target.addr(), rkey: target.rkey().unwrap() };
    let (mut qa, mut qb) = pair(&two);
    let mut cache = pool.cache();
    let packet = packet(&pool, 8, 5);
    let mut clone = packet.clone_ref(&mut cache).unwrap();
    for op in [SendOp::Read(remote), SendOp::FetchAdd { remote, add: 1 }] {
        let refused = qa.post_send(&SendWr::signaled(1, op), Some(clone)).unwrap_err();
        assert_eq!(refused.cause, PostError::NotExclusive);
        clone = refused.held.unwrap();
    }
    let refused = qa.post_recv(2, clone).unwrap_err();
    assert_eq!(refused.cause, PostError::NotExclusive);
    let mut list = two.a.context.alloc_page_list(PAGES, 8).unwrap();
    list.map_mbuf(refused.held).unwrap();
    let mr = two.a.pd.alloc_mr(PAGES, 8).unwrap();
    let start = list.first_offset();
    let refused = qa.post_fast_reg(&reg(3, start, ALL), mr, list).unwrap_err();
    assert_eq!(refused.cause, PostError::NotExclusive);
    // Reading harms nobody: two requests and a peer share the data.
    let (mr, list) = refused.held;
    let mr = qa.post_fast_reg(&reg(4, start, Access::REMOTE_READ), mr, list).unwrap();
    let second = packet.clone_ref(&mut cache).unwrap();
    for clone in [packet, second] {
        qa.post_send(&SendWr::signaled(5, SendOp::Write(remote)), Some(clone)).unwrap();
    }
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&done), [(4, true), (5, true), (5, true)]);
    drop(done);
    qb.post_send(&SendWr::signaled(6, SendOp::Read(mr.remote())), Some(empty_of(&pool, 8)))
        .unwrap();
    let (_, done) = two.run(&mut qa, &mut qb);
    assert_eq!(bytes(&returned(done)), pattern(8, 5));
    let mut mr = mr.revoke().unwrap();
    assert!(mr.take_mbuf().unwrap().is_exclusive(), "the others are gone");
    two.world.assert_clean();
}

/// A packet of `len` bytes that are to be replaced.
fn empty_of(pool: &Pool, len: usize) -> Mbuf {
    let mut packet = empty(pool, len.div_ceil(ROOM));
    assert!(packet.grow(len));
    packet
}

#[test]
fn a_key_owns_its_packet_until_it_is_known_to_have_ended() {
    let mut two = Two::new();
    let pool = shared(&two);
    let device = two.b.context.device().clone();
    let (mut qa, mut qb) = pair(&two);
    // Another device stamped the pool, so it is the mapping that is in use.
    let kept = || matches!(device.unregister_pool(&pool), Err(DeviceError::InUse { .. }));

    // Written by the peer, ended by the peer.
    let mut list = two.b.context.alloc_page_list(ListLayout::Pieces, 8).unwrap();
    list.map_mbuf(packet(&pool, 2 * ROOM, 1)).unwrap();
    assert_eq!((list.len(), list.len_bytes()), (2, 2 * ROOM as u64));
    let mr = two.b.pd.alloc_mr(ListLayout::Pieces, 8).unwrap();
    let mr = qb.post_fast_reg(&reg(1, 0, ALL), mr, list).unwrap();
    let (_, done) = two.run(&mut qa, &mut qb);
    let [wc] = <[_; 1]>::try_from(done).unwrap();
    let Returned::PageList(mut list) = wc.returned else { panic!("{wc:?}") };
    assert_eq!((list.len(), list.take_mbuf().is_none()), (0, true), "the key has it");
    let to = mr.remote();
    qa.post_send(&SendWr::signaled(2, SendOp::Write(to.at(10))), Some(packet(&pool, 300, 8)))
        .unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    drop(returned(done));
    assert!(kept());
    qb.post_recv(3, empty(&pool, 1)).unwrap();
    qa.post_send(&SendWr::signaled(4, SendOp::SendInv(mr.rkey())), Some(packet(&pool, 1, 0)))
        .unwrap();
    let (_, mut done) = two.run(&mut qa, &mut qb);
    let proof = done[0].recv.invalidated.take().unwrap();
    let mut mr = mr.invalidated_by(proof).unwrap();
    let held = mr.take_mbuf().unwrap();
    let mut expected = pattern(2 * ROOM, 1);
    expected[10..310].copy_from_slice(&pattern(300, 8));
    assert_eq!(bytes(&held), expected);
    drop(done);

    // A registration that was flushed may have been carried out, and its invalidation too.
    list.map_mbuf(held).unwrap();
    qb.abandon(&[&two.b.cq]).unwrap();
    let refused = qb.post_fast_reg(&reg(5, 0, ALL), mr, list).unwrap_err();
    assert_eq!(refused.cause, PostError::State);
    let (mr, list) = refused.held;
    let (mut qa, mut qb) = pair(&two);
    let wr = FastReg { flags: S | SendFlags::MORE, ..reg(6, 0, ALL) };
    let registered = qb.post_fast_reg(&wr, mr, list).unwrap();
    qb.post_local_inv(7, S | SendFlags::MORE, registered).unwrap();
    qb.to_error().unwrap();
    let (_, done) = two.run(&mut qa, &mut qb);
    assert_eq!(syndromes(&done), [5, 5]);
    let Some(Returned::Stale(mr)) = done.into_iter().map(|wc| wc.returned).last() else {
        panic!("the invalidation brings the key back")
    };
    assert!(kept(), "nobody knows whether peers reach it");
    let mut mr = mr.revoke().unwrap();
    assert_eq!(bytes(&mr.take_mbuf().unwrap()), expected);
    two.world.assert_clean();
}

#[test]
fn lists_of_pages_take_packets_that_meet_at_page_borders() {
    let mut two = Two::new();
    // Rooms of a page each: data that fills its room goes on in the next page.
    let config = PoolConfig { headroom_bytes: 0, ..pool_config("pages", 4096) };
    let pool = Pool::new(&config).unwrap();
    two.b.context.device().register_pool(&pool).unwrap();
    let (mut qa, mut qb) = pair(&two);
    let page = |len: usize| {
        let mut packet = pool.get().unwrap();
        assert!(packet.grow(len));
        packet
    };
    let mut list = two.b.context.alloc_page_list(PAGES, 2).unwrap();
    let mut packet = page(4096);
    assert!(packet.adj(0xff0));
    packet.chain(page(32)).unwrap();
    let iovas: Vec<u64> = packet.pieces().map(|piece| piece.iova).collect();
    assert_eq!(iovas.iter().map(|iova| iova % 4096).collect::<Vec<_>>(), [0xff0, 0]);
    packet.chain(page(1)).unwrap();
    let refused = list.map_mbuf(packet).unwrap_err();
    assert_eq!((refused.cause, list.is_empty()), (PageListError::Unaligned, true));
    let mut packet = refused.mbuf;
    let mut tail = packet.take_next().unwrap();
    assert_eq!(tail.take_next().unwrap().pkt_len(), 1);
    packet.chain(tail).unwrap();
    list.map_mbuf(packet).unwrap();
    assert_eq!((list.len(), list.len_bytes(), list.first_offset()), (2, 48, 0xff0));
    let mr = two.b.pd.alloc_mr(PAGES, 8).unwrap();
    let mr = qb.post_fast_reg(&reg(1, 0x7ff0, ALL), mr, list).unwrap();
    let (_, done) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&done), [(1, true)]);
    qa.post_send_inline(&SendWr::signaled(2, SendOp::Write(mr.remote())), &pattern(48, 4)).unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&done), [(2, true)]);
    qb.post_local_inv(3, S, mr).unwrap();
    let (_, done) = two.run(&mut qa, &mut qb);
    assert_eq!(bytes(&freed(done).take_mbuf().unwrap()), pattern(48, 4));
    two.world.assert_clean();
    let refused = two.b.context.alloc_page_list(PAGES, 2).unwrap().map_mbuf(pool_alone());
    assert_eq!(refused.unwrap_err().cause, PageListError::OtherDevice);
}

/// A packet of a pool that no device knows.
fn pool_alone() -> Mbuf {
    packet(&pool("alone"), 5, 5)
}

#[test]
fn a_pool_stays_registered_while_its_packets_are_posted() {
    let mut two = Two::new();
    let pool = pool("own");
    let device = two.b.context.device().clone();
    device.register_pool(&pool).unwrap();
    let (mut qa, mut qb) = pair(&two);
    qb.post_recv(1, empty(&pool, 1)).unwrap();
    let refused = device.unregister_pool(&pool).unwrap_err();
    assert!(matches!(refused, DeviceError::Mempool(_)), "{refused}");
    // It is as it was: packets are posted, and filled.
    qb.post_recv(2, empty(&pool, 1)).unwrap();
    for wr_id in [3, 4] {
        qa.post_send_inline(&SendWr::signaled(wr_id, SendOp::Send), b"here").unwrap();
    }
    let (_, done) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&done), [(1, true), (2, true)]);
    drop(done);
    device.unregister_pool(&pool).unwrap();
    let refused = qb.post_recv(5, empty(&pool, 1)).unwrap_err();
    assert_eq!(refused.cause, PostError::Pd);
    drop(refused);
    // Again, under the queue pairs that were made before.
    device.register_pool(&pool).unwrap();
    qb.post_recv(6, empty(&pool, 1)).unwrap();
    qa.post_send_inline(&SendWr::signaled(7, SendOp::Send), b"there").unwrap();
    let (_, done) = two.run(&mut qa, &mut qb);
    assert_eq!(returned(done).data(), b"there");
    two.world.assert_clean();
}

/// Memory of somebody else, and a pool over our mapping of it.
struct Foreign {
    owner: Arc<Region>,
    ours: Arc<Region>,
    pool: Pool,
}

impl Foreign {
    fn new() -> Self {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let map = || Region::map_file(&file, 0, 1 << 20).unwrap();
        let (owner, ours) = (map(), map());
        let pool = Pool::with_region(&pool_config("foreign", 256), &ours, 0).unwrap();
        Self { owner, ours, pool }
    }

    /// What the owner finds where the data of a packet starts.
    fn at(&self, address: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.owner.copy_out(address - self.ours.as_ptr().addr(), &mut bytes).unwrap();
        bytes
    }
}

#[test]
fn foreign_packets_go_on_the_devices_own_domain() {
    let mut two = Two::new();
    let foreign = Foreign::new();
    two.a.context.device().register_pool(&foreign.pool).unwrap();
    let (mut other, _) = pair(&two);
    let refused = other.post_recv(1, empty(&foreign.pool, 1)).unwrap_err();
    assert_eq!(refused.cause, PostError::Pd);
    two.a.pd = two.a.context.device_pd();
    let (mut qa, mut qb) = pair(&two);
    let own = pool("own");
    two.b.context.device().register_pool(&own).unwrap();

    qa.post_recv(2, refused.held).unwrap();
    qb.post_send(&SendWr::signaled(3, SendOp::Send), Some(packet(&own, 50, 6))).unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    let received = returned(done);
    assert_eq!((received.is_foreign(), bytes(&received)), (true, pattern(50, 6)));
    assert_eq!(foreign.at(received.data_address(), 50), pattern(50, 6));
    // And sent from there.
    qb.post_recv(4, empty(&own, 1)).unwrap();
    qa.post_send(&SendWr::signaled(5, SendOp::Send), Some(received)).unwrap();
    let (_, done) = two.run(&mut qa, &mut qb);
    assert_eq!(returned(done).data(), pattern(50, 6));

    // A peer reaches it by pieces, which end with it; not by pages.
    let mut list = two.a.context.alloc_page_list(PAGES, 8).unwrap();
    let refused = list.map_mbuf(empty_of(&foreign.pool, 100)).unwrap_err();
    assert_eq!(refused.cause, PageListError::Foreign);
    let address = refused.mbuf.data_address();
    let mut list = two.a.context.alloc_page_list(ListLayout::Pieces, 8).unwrap();
    list.map_mbuf(refused.mbuf).unwrap();
    let mr = two.a.context.alloc_pd().unwrap().alloc_mr(ListLayout::Pieces, 8).unwrap();
    let refused = qa.post_fast_reg(&reg(6, 0, ALL), mr, list).unwrap_err();
    assert_eq!(refused.cause, PostError::Pd);
    let mr = two.a.pd.alloc_mr(ListLayout::Pieces, 8).unwrap();
    let mr = qa.post_fast_reg(&reg(6, 0, ALL), mr, refused.held.1).unwrap();
    two.run(&mut qa, &mut qb);
    let wr = SendWr::signaled(7, SendOp::Write(mr.remote()));
    qb.post_send_inline(&wr, &pattern(30, 7)).unwrap();
    let (_, done) = two.run(&mut qa, &mut qb);
    assert_eq!((syndromes(&done), foreign.at(address, 30)), (vec![0], pattern(30, 7)));
    two.world.assert_clean();

    two.a.context.device().revoke_pool(&foreign.pool).unwrap();
    qb.post_send_inline(&wr, &pattern(30, 8)).unwrap();
    let (_, done) = two.run(&mut qa, &mut qb);
    assert_eq!((syndromes(&done), foreign.at(address, 30)), (vec![0x13], pattern(30, 7)));
}

#[test]
fn foreign_packets_that_are_taken_back_fail_what_is_posted() {
    let mut two = Two::new();
    let foreign = Foreign::new();
    let device = two.a.context.device().clone();
    device.register_pool(&foreign.pool).unwrap();
    two.a.pd = two.a.context.device_pd();
    let (mut qa, mut qb) = pair(&two);
    let (posted, late) = (empty(&foreign.pool, 1), empty(&foreign.pool, 1));
    let address = posted.data_address();
    qa.post_recv(1, posted).unwrap();
    device.revoke_pool(&foreign.pool).unwrap();
    let refused = qa.post_recv(2, late).unwrap_err();
    assert_eq!(refused.cause, PostError::Pd);
    qb.post_send_inline(&SendWr::signaled(3, SendOp::Send), b"late").unwrap();
    let (received, sent) = two.run(&mut qa, &mut qb);
    // A local protection error here, a remote operation error there.
    assert_eq!((syndromes(&received), syndromes(&sent)), (vec![0x04], vec![0x14]));
    assert_eq!(foreign.at(address, 4), [0; 4]);
}

#[test]
fn a_device_without_a_reserved_key_carries_packets_on_its_own_domain() {
    let config = NicConfig { reserved_lkey: false, ..config() };
    let (wire_a, wire_b) = link(1 << 20);
    let mut two = Two::of(models_like(&config, wire_a, wire_b));
    let pool = shared(&two);
    let usual = QpConfig { max_send_sge: 2, ..small() };
    let (mut other, _) = {
        let (a, b) = two.rc::<Payload>(&usual);
        (a, b)
    };
    let refused = other.post_recv(1, empty(&pool, 1).into()).unwrap_err();
    assert_eq!(refused.cause, PostError::Pd);
    (two.a.pd, two.b.pd) = (two.a.context.device_pd(), two.b.context.device_pd());
    let (qa, qb) = two.rc::<Payload>(&usual);
    let (mut qa, mut qb) = (qa, qb);
    // A small message of registered memory fills a packet, and a packet registered memory.
    two.a.fill(9, &pattern(20, 3));
    let (ma, mb) = (two.a.mr(), two.b.mr());
    qb.post_recv(1, refused.held).unwrap();
    qb.post_recv(2, mb.buf(100..400).unwrap().into()).unwrap();
    let wr = SendWr::signaled(3, SendOp::Send);
    qa.post_send(&wr, Some(ma.buf(9..29).unwrap().into())).unwrap();
    qa.post_send(&wr, Some(packet(&pool, 300, 4).into())).unwrap();
    let (done, received) = two.run(&mut qa, &mut qb);
    assert_eq!((ids(&done), ids(&received)), (vec![(3, true); 2], vec![(1, true), (2, true)]));
    let received: Vec<Payload> = received.into_iter().filter_map(Wc::into_buffers).collect();
    let [Payload::Mbuf(packet), Payload::Buf(buf)] = &received[..] else { panic!("{received:?}") };
    assert_eq!((packet.data(), buf.to_vec()), (&pattern(20, 3)[..], pattern(300, 4)));
    let piece = buf.piece();
    assert_eq!((piece.iova, piece.len_bytes), (two.b.memory.iova() + 100, 300));
    two.world.assert_clean();
}
