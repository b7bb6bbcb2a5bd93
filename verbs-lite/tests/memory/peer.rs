//! Peer memory: registering, ending from every side, and providers that misbehave.
#![allow(clippy::single_range_in_vec_init, reason = "lists of one piece")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Two, pattern, small, syndromes, take};
use ferrocx_mempool::{Region, RegionConfig};
use ferrocx_verbs_lite::peer::*;
use ferrocx_verbs_lite::*;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
const SOON: Duration = Duration::from_secs(120);
const LOCAL_PROTECTION: u8 = 0x04;
const REMOTE_ACCESS: u8 = 0x13;
const FLUSHED: u8 = 0x05;

fn config() -> PeerConfig {
    PeerConfig { deadline: SOON, ..PeerConfig::new(ALL) }
}

/// A registry with one provider of host memory, in pages of 64 KiB.
struct Host {
    registry: PeerRegistry,
    client: PeerClient,
    provider: MappedProvider,
    block: PeerBlock,
}

fn host() -> Host {
    let registry = PeerRegistry::new();
    let provider = MappedProvider::new("host");
    let client = registry.register(Arc::new(provider.clone())).unwrap();
    let block = provider.host(4 << 16, 1 << 16).unwrap();
    Host { registry, client, provider, block }
}

impl Host {
    fn reg(&self, pd: &Pd, offset: u64, len: u64) -> PeerMr {
        self.registry.reg_mr(pd, self.block.range(offset, len), &config()).unwrap()
    }

    fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let (region, start) = self.block.region();
        let mut bytes = vec![0; len];
        region.copy_out(start + offset, &mut bytes).unwrap();
        bytes
    }

    fn fill(&self, offset: usize, bytes: &[u8]) {
        let (region, start) = self.block.region();
        region.copy_in(start + offset, bytes).unwrap();
    }
}

/// One request of `qa`; returns its syndrome.
fn ask(two: &mut Two, qa: &mut Qp, qb: &mut Qp, op: SendOp<'_>, buf: Buf) -> u8 {
    qa.post_send(&SendWr::signaled(1, op), Some(buf)).unwrap();
    let (done, _) = two.run(qa, qb);
    syndromes(&done)[0]
}

#[test]
fn peers_write_read_and_send_where_the_memory_is() {
    let mut two = Two::new();
    let host = host();
    let (mut qa, mut qb) = two.connected::<Buf>();
    let local = two.a.mr();
    // Neither begins nor ends with a page.
    let mr = host.reg(&two.b.pd, 65_000, 70_000);
    let (addr, rkey) = (mr.mr().addr(), mr.mr().rkey().unwrap());
    assert_eq!((addr, mr.mr().len_bytes()), (host.block.addr() + 65_000, 70_000));
    let bytes = pattern(5000, 9);
    two.a.fill(0, &bytes);
    let remote = RemoteAddr { addr, rkey };
    let write = SendOp::Write(remote.at(65_000));
    assert_eq!(ask(&mut two, &mut qa, &mut qb, write, local.buf(0..5000).unwrap()), 0);
    assert_eq!(host.read(130_000, 5000), bytes);
    let read = SendOp::Read(remote.at(65_000));
    assert_eq!(ask(&mut two, &mut qa, &mut qb, read, local.buf(8192..13_192).unwrap()), 0);
    assert_eq!(two.a.read(8192, 5000), bytes);
    qb.post_recv(2, mr.mr().buf(100..5100).unwrap()).unwrap();
    let send = SendOp::Send;
    assert_eq!(ask(&mut two, &mut qa, &mut qb, send, local.buf(0..5000).unwrap()), 0);
    assert_eq!(host.read(65_100, 5000), bytes);
    two.world.assert_clean();
    let stats = host.client.stats().unwrap();
    assert_eq!((stats.num_alloc_mrs, stats.num_reg_pages, stats.num_reg_bytes), (1, 3, 3 << 16));
    mr.dereg().unwrap();
    let stats = host.client.stats().unwrap();
    assert_eq!((stats.num_dealloc_mrs, stats.num_dereg_pages, stats.num_failures), (1, 3, 0));
    assert_eq!((stats.num_invalidations, host.block.lent()), (0, 0));
}

#[test]
fn an_invalidation_ends_what_is_posted_and_what_comes_and_nothing_else() {
    for from_peer in [true, false] {
        let mut two = Two::new();
        let host = host();
        let (mut qa, mut qb) = two.connected::<Buf>();
        let (mut other_a, mut other_b) = two.connected::<Buf>();
        let (local, here) = (two.a.mr(), two.b.mr());
        let mr = host.reg(&two.b.pd, 0, 65_536);
        let remote = RemoteAddr { addr: mr.mr().addr(), rkey: mr.mr().rkey().unwrap() };
        host.fill(0, &[0xee; 4096]);
        if from_peer {
            let wr = SendWr::signaled(1, SendOp::Write(remote));
            qa.post_send(&wr, Some(local.buf(0..4096).unwrap())).unwrap();
        } else {
            let wr = SendWr::signaled(1, SendOp::Send);
            qb.post_send(&wr, Some(mr.mr().buf(0..4096).unwrap())).unwrap();
        }
        host.block.invalidate().unwrap();
        assert!(!mr.is_live());
        let (done_a, done_b) = two.run(&mut qa, &mut qb);
        let done = if from_peer { done_a } else { done_b };
        let expected = if from_peer { REMOTE_ACCESS } else { LOCAL_PROTECTION };
        assert_eq!(syndromes(&done), [expected]);
        assert_eq!(host.read(0, 4096), [0xee; 4096]);
        assert_eq!(two.world.nic(1).side().counts().dma.faults, 0, "the key stopped it");
        // The other connection, and the memory as this process sees it, are as before.
        let buf = here.buf(0..64).unwrap();
        other_b.post_recv(3, buf).unwrap();
        let wr = SendWr::signaled(4, SendOp::Send);
        other_a.post_send(&wr, Some(local.buf(0..64).unwrap())).unwrap();
        two.world.settle();
        assert_eq!(syndromes(&take(&mut two.a.cq, &mut other_a)), [0]);
        assert_eq!(syndromes(&take(&mut two.b.cq, &mut other_b)), [0]);
        assert_eq!(mr.mr().whole().unwrap().to_vec()[..2], [0xee; 2]);
        let stats = host.client.stats().unwrap();
        assert_eq!((stats.num_invalidations, stats.num_dealloc_mrs), (1, 1));
        // It can be registered again.
        host.block.invalidate().unwrap();
        let again = host.reg(&two.b.pd, 0, 1);
        assert_ne!(again.mr().rkey(), mr.mr().rkey());
    }
}

#[test]
fn a_receive_into_memory_that_was_taken_back() {
    let mut two = Two::new();
    let host = host();
    let (mut qa, mut qb) = two.connected::<Buf>();
    let mr = host.reg(&two.b.pd, 0, 4096);
    for id in 0..2 {
        qb.post_recv(id, mr.mr().whole().unwrap()).unwrap();
    }
    host.block.take_back().unwrap();
    qa.post_send_inline(&SendWr::signaled(1, SendOp::Send), &[1; 8]).unwrap();
    let (done_a, done_b) = two.run(&mut qa, &mut qb);
    // The peer learns that the responder failed, IBTA "remote operational error".
    assert_eq!(
        (syndromes(&done_a), syndromes(&done_b)),
        (vec![0x14], vec![LOCAL_PROTECTION, FLUSHED])
    );
    assert_eq!(host.read(0, 8), [0; 8]);
    let gone = host.registry.reg_mr(&two.b.pd, host.block.range(0, 8), &config()).unwrap_err();
    assert!(matches!(gone, PeerError::NotPeer(_)), "{gone}");
}

#[test]
fn unregistering_ends_regions_and_lets_nobody_in() {
    let two = Two::new();
    let mut host = host();
    let mr = host.reg(&two.b.pd, 0, 4096);
    let name_taken = host.registry.register(Arc::new(host.provider.clone())).unwrap_err();
    assert!(name_taken.to_string().contains("\"host\" is taken"), "{name_taken}");
    host.client.unregister(SOON).unwrap();
    assert!(!mr.is_live());
    assert_eq!((host.block.lent(), host.registry.stats().len()), (0, 0));
    let range = host.block.range(0, 1);
    let refused = host.registry.reg_mr(&two.b.pd, range, &config()).unwrap_err();
    assert!(refused.to_string().contains("no registered provider owns 1 bytes at"), "{refused}");
    for name in ["", &"n".repeat(64)] {
        let error = host.registry.register(Arc::new(MappedProvider::new(name))).unwrap_err();
        assert!(matches!(error, PeerError::Name { .. }), "{error}");
    }
    let again = host.registry.register(Arc::new(host.provider.clone())).unwrap();
    let _mr = host.reg(&two.b.pd, 0, 1);
    assert_eq!(again.stats().unwrap().num_alloc_mrs, 1);
}

#[test]
fn requests_that_cannot_be_met() {
    let two = Two::new();
    let host = host();
    let refuse = |range, config: &PeerConfig| {
        host.registry.reg_mr(&two.b.pd, range, config).unwrap_err().to_string()
    };
    let strict = PeerConfig { invalidation: false, ..config() };
    assert!(refuse(host.block.range(0, 1), &strict).contains("may take its memory back"));
    assert!(refuse(host.block.range(0, 0), &config()).contains("is no range"));
    assert!(refuse(PeerRange { addr: u64::MAX, len_bytes: 2 }, &config()).contains("is no range"));
    assert!(refuse(host.block.range(0, (4 << 16) + 1), &config()).contains("no registered"));
    let rights = PeerConfig { access: Access::REMOTE_WRITE, ..config() };
    assert!(refuse(host.block.range(0, 1), &rights).contains("add Access::LOCAL_WRITE"));
    assert_eq!(host.block.lent(), 0, "nothing is left behind");
    assert_eq!(host.client.stats().unwrap().num_failures, 2);
    let mr = host.reg(&two.b.pd, 0, 1);
    drop(mr);
    assert_eq!(host.block.lent(), 0);
}

#[test]
fn every_race_to_the_end_has_one_winner() {
    let two = Two::new();
    let host = host();
    for round in 0..50 {
        let mr = host.reg(&two.b.pd, 0, 65_536);
        let dead = mr.mr().clone();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| host.block.invalidate().unwrap());
            }
            scope.spawn(move || mr.dereg().unwrap());
        });
        assert_eq!(host.block.lent(), 0);
        let stats = host.client.stats().unwrap();
        assert_eq!((stats.num_alloc_mrs, stats.num_dealloc_mrs), (round + 1, round + 1));
        drop(dead);
    }
    assert_eq!(host.client.stats().unwrap().num_failures, 0);
}

#[test]
fn fast_register_keys_end_with_the_memory_they_are_attached_to() {
    let mut two = Two::new();
    let host = host();
    let config = QpConfig { fast_reg: true, ..small() };
    let (mut qa, mut qb) = two.rc::<Buf>(&config);
    let local = two.a.mr();
    let mr = host.reg(&two.b.pd, 0, 1 << 16);
    let layout = ListLayout::Pages { log_page: 12 };
    let mut key = two.b.pd.alloc_mr(layout, 8).unwrap();
    let mut list = two.b.context.alloc_page_list(layout, 8).unwrap();
    list.map(&mr.memories()[0], &[8192..16_384, 0..4096]).unwrap();
    let wr = FastReg {
        wr_id: 1,
        flags: SendFlags::SIGNALED,
        start: 0,
        access: ALL,
        remote_invalidate: false,
    };
    let refused = qb.post_fast_reg(&wr, key, list).unwrap_err();
    assert_eq!(refused.cause, PostError::Peer, "not attached");
    (key, list) = refused.held;
    for _ in 0..2 {
        key.attach(&mr.memories()[0]).unwrap();
    }
    let other = host.reg(&two.b.pd, 0, 1);
    let twice = key.attach(&other.memories()[0]).unwrap_err();
    assert!(twice.to_string().contains("make a key for each"), "{twice}");
    drop(other);
    let bound = qb.post_fast_reg(&wr, key, list).unwrap();
    let (_, mut done) = two.run(&mut qa, &mut qb);
    let Returned::PageList(list) = done.remove(0).returned else { panic!("{done:?}") };
    two.a.fill(0, &[0xab; 12_288]);
    let write = SendOp::Write(bound.remote());
    let buf = local.buf(0..12_288).unwrap();
    assert_eq!(ask(&mut two, &mut qa, &mut qb, write, buf), 0);
    assert_eq!(host.read(8192, 8192), [0xab; 8192]);
    assert_eq!((host.read(0, 4096), host.read(4096, 1)), (vec![0xab; 4096], vec![0]));
    host.block.invalidate().unwrap();
    host.fill(0, &[0xee; 1 << 16]);
    let write = SendOp::Write(bound.remote());
    let buf = local.buf(0..8).unwrap();
    assert_eq!(ask(&mut two, &mut qa, &mut qb, write, buf), REMOTE_ACCESS);
    assert_eq!(host.read(0, 1 << 16), [0xee; 1 << 16]);
    assert_eq!(two.world.nic(1).side().counts().dma.faults, 0, "the key stopped it");
    // The key has another life with memory of any kind, once it was made again.
    let (mut qa, mut qb) = two.rc::<Buf>(&config);
    let mut key = bound.revoke().unwrap();
    assert!(matches!(key.attach(&mr.memories()[0]), Err(VerbsError::Revoked)));
    let refused = qb.post_fast_reg(&wr, key, list).unwrap_err();
    assert_eq!(refused.cause, PostError::Peer, "taken back");
    let (key, mut list) = refused.held;
    list.map(&two.b.memory, &[0..4096]).unwrap();
    let bound = qb.post_fast_reg(&wr, key, list).unwrap();
    let write = SendOp::Write(bound.remote());
    two.run(&mut qa, &mut qb);
    assert_eq!(ask(&mut two, &mut qa, &mut qb, write, local.buf(0..8).unwrap()), 0);
}

#[test]
fn keys_that_could_not_be_ended_are_not_made() {
    let two = Two::new();
    let host = host();
    let mr = host.reg(&two.b.pd, 0, 4096);
    let dma = two.b.pd.get_dma_mr().unwrap().over(&mr.memories()[0]).unwrap_err();
    assert!(dma.to_string().contains("DMA key"), "{dma}");
    let rights = PeerConfig { access: ALL | Access::MW_BIND, ..config() };
    let range = host.block.range(0, 4096);
    let windows = host.registry.reg_mr(&two.b.pd, range, &rights).unwrap_err();
    assert!(windows.to_string().contains("memory windows over peer memory"), "{windows}");
    let more = two.b.pd.reg_mr(&mr.memories()[0], 0..64, Access::LOCAL_WRITE).unwrap();
    host.block.invalidate().unwrap();
    let late = two.b.pd.reg_mr(&mr.memories()[0], 0..64, Access::LOCAL_WRITE).unwrap_err();
    assert!(matches!(late, VerbsError::Revoked), "{late}");
    more.dereg().unwrap();
}

/// What a provider does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    PageSize(u64),
    ShortPages,
    NoPages,
    PieceOutside,
    PieceInsidePage,
    OddPiece,
    GetPagesFails,
    GetPagesPanics,
    GetPagesInvalidates,
    DmaMapFails,
    DmaMapPanics,
    DmaMapInvalidates,
    PutPagesPanics,
    ReleasePanics,
    AcquirePanics,
    AcquireIsSlow,
}

#[derive(Debug)]
struct Faulty {
    fault: Fault,
    calls: Arc<Mutex<Vec<&'static str>>>,
    acquired: AtomicUsize,
}

#[derive(Debug)]
struct FaultyMemory {
    fault: Fault,
    len: u64,
    calls: Arc<Mutex<Vec<&'static str>>>,
    ticket: Option<PeerTicket>,
}

const AT: u64 = 0x7_0000_0000;

impl PeerProvider for Faulty {
    fn name(&self) -> &str {
        "faulty"
    }

    fn version(&self) -> &str {
        "0"
    }

    fn may_invalidate(&self) -> bool {
        false
    }

    fn acquire(&self, range: PeerRange) -> Option<Box<dyn PeerMemory>> {
        assert_ne!(self.fault, Fault::AcquirePanics);
        self.acquired.fetch_add(1, Ordering::Release);
        if self.fault == Fault::AcquireIsSlow {
            while !HAS_WAITED.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
        let (fault, len, calls) = (self.fault, range.len_bytes, Arc::clone(&self.calls));
        (range.addr >= AT).then(|| Box::new(FaultyMemory { fault, len, calls, ticket: None }) as _)
    }
}

impl PeerMemory for FaultyMemory {
    fn page_size(&self) -> u64 {
        if let Fault::PageSize(size) = self.fault { size } else { 4096 }
    }

    fn get_pages(&mut self, _: Access, ticket: &PeerTicket) -> Result<Vec<PeerPiece>, PeerFault> {
        self.calls.lock().unwrap().push("get_pages");
        self.ticket = Some(ticket.clone());
        let len = self.len.next_multiple_of(4096) as usize;
        let region = Region::alloc(&RegionConfig::heap(2 * len))?;
        let piece = |range| PeerPiece { region: Arc::clone(&region), range };
        match self.fault {
            Fault::GetPagesFails => return Err("no memory on this device".into()),
            Fault::GetPagesPanics => panic!("as told"),
            Fault::GetPagesInvalidates => ticket.invalidate()?,
            _ => {}
        }
        Ok(match self.fault {
            Fault::ShortPages => vec![piece(0..len - 4096)],
            Fault::NoPages => vec![],
            Fault::PieceOutside => vec![piece(2 * len - 4096..2 * len + 4096)],
            Fault::PieceInsidePage => vec![piece(64..len + 64)],
            Fault::OddPiece => vec![piece(0..len - 1), piece(len..len + 1)],
            // In two pieces, the second first.
            _ => vec![piece(len..len + 4096), piece(0..len - 4096)],
        })
    }

    fn dma_map(&mut self, _: &RdmaContext) -> Result<(), PeerFault> {
        self.calls.lock().unwrap().push("dma_map");
        match self.fault {
            Fault::DmaMapFails => Err("this device cannot reach that one".into()),
            Fault::DmaMapPanics => panic!("as told"),
            Fault::DmaMapInvalidates => Ok(self.ticket.as_ref().unwrap().invalidate()?),
            _ => Ok(()),
        }
    }

    fn dma_unmap(&mut self) {
        self.calls.lock().unwrap().push("dma_unmap");
        // Too late to matter, and no deadlock.
        self.ticket.as_ref().unwrap().invalidate().unwrap();
    }

    fn put_pages(&mut self, _: Vec<PeerPiece>) {
        self.calls.lock().unwrap().push("put_pages");
        assert_ne!(self.fault, Fault::PutPagesPanics);
    }

    fn release(self: Box<Self>) {
        self.calls.lock().unwrap().push("release");
        assert_ne!(self.fault, Fault::ReleasePanics);
    }
}

const PINNED: &[&str] = &["get_pages", "put_pages", "release"];
const REFUSED: &[&str] = &["get_pages", "dma_map", "put_pages", "release"];
const MAPPED: &[&str] = &["get_pages", "dma_map", "dma_unmap", "put_pages", "release"];

#[test]
fn providers_that_misbehave_harm_themselves_only() {
    type Case = (Fault, &'static str, &'static [&'static str]);
    let cases: [Case; 16] = [
        (Fault::None, "", MAPPED),
        (Fault::PageSize(0), "pages of 0 bytes", &["release"]),
        (Fault::PageSize(12_288), "pages of 12288 bytes", &["release"]),
        (Fault::PageSize(1 << 63), "past the address space", &["release"]),
        (Fault::ShortPages, "4096 bytes, for 8192 bytes at 0x700000000", PINNED),
        (Fault::NoPages, "0 bytes, for", PINNED),
        (Fault::PieceOutside, "a piece from 0x3000 to 0x5000 of 0x4000 bytes", PINNED),
        (Fault::PieceInsidePage, "starts at 0x40, inside a page", PINNED),
        (Fault::OddPiece, "a piece of 8191 bytes, with pages of 4096", PINNED),
        (Fault::GetPagesFails, "no memory on this device", &["get_pages", "release"]),
        (Fault::GetPagesPanics, "get_pages failed: it panicked", &["get_pages", "release"]),
        (Fault::GetPagesInvalidates, "took the memory back during", MAPPED),
        (Fault::DmaMapFails, "cannot reach that one", REFUSED),
        (Fault::DmaMapPanics, "dma_map failed: it panicked", REFUSED),
        (Fault::DmaMapInvalidates, "took the memory back during", MAPPED),
        (Fault::AcquirePanics, "acquire failed: it panicked", &[]),
    ];
    let two = Two::new();
    for (fault, sentence, expected) in cases {
        let registry = PeerRegistry::new();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (log, acquired) = (Arc::clone(&calls), AtomicUsize::new(0));
        let faulty = Arc::new(Faulty { fault, calls: log, acquired });
        let mut client = registry.register(faulty).unwrap();
        let at =
            if let Fault::PageSize(0x8000_0000_0000_0000) = fault { u64::MAX - 9000 } else { AT };
        let range = PeerRange { addr: at, len_bytes: 8192 };
        let result = registry.reg_mr(&two.b.pd, range, &config());
        let failed = result.is_err();
        match result {
            Ok(mr) => {
                assert_eq!(sentence, "");
                drop(mr);
            }
            Err(error) => {
                let said = error.to_string();
                assert!(!sentence.is_empty() && said.contains(sentence), "{fault:?}: {said}");
            }
        }
        client.unregister(SOON).unwrap();
        assert_eq!(*calls.lock().unwrap(), expected, "{fault:?}");
        let regions = two.world.nic(1).side().counts();
        assert_eq!((failed, regions.dma.faults), (fault != Fault::None, 0), "{fault:?}");
    }
    two.world.assert_clean();
}

#[test]
fn providers_that_fail_at_the_end_are_counted() {
    for fault in [Fault::PutPagesPanics, Fault::ReleasePanics] {
        let two = Two::new();
        let registry = PeerRegistry::new();
        let calls = Arc::default();
        let acquired = AtomicUsize::new(0);
        let client = registry.register(Arc::new(Faulty { fault, calls, acquired })).unwrap();
        let range = PeerRange { addr: AT, len_bytes: 8192 };
        let mr = registry.reg_mr(&two.b.pd, range, &config()).unwrap();
        mr.dereg().unwrap();
        assert_eq!(client.stats().unwrap().num_failures, 1, "{fault:?}");
    }
}

/// Somebody has waited for the slow callback in vain, who is not to wait for ever.
static HAS_WAITED: AtomicBool = AtomicBool::new(false);

#[test]
fn a_slow_callback_delays_unregistering_only() {
    let two = Two::new();
    let registry = PeerRegistry::new();
    let (calls, acquired) = (Arc::default(), AtomicUsize::new(0));
    let faulty = Arc::new(Faulty { fault: Fault::AcquireIsSlow, calls, acquired });
    let mut client = registry.register(Arc::<Faulty>::clone(&faulty)).unwrap();
    let host = host();
    let range = PeerRange { addr: AT, len_bytes: 8192 };
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| registry.reg_mr(&two.b.pd, range, &config()));
        while faulty.acquired.load(Ordering::Acquire) == 0 {
            std::hint::spin_loop();
        }
        drop(host.reg(&two.b.pd, 0, 4096));
        let late = client.unregister(Duration::from_millis(20));
        HAS_WAITED.store(true, Ordering::Release);
        let late = late.unwrap_err();
        assert!(late.to_string().contains("takes longer than 20 ms"), "{late}");
        client.unregister(SOON).unwrap();
        // It was let in before: nothing of it goes live any more.
        let error = slow.join().unwrap().unwrap_err();
        assert!(matches!(error, PeerError::Invalidated(_)), "{error}");
        let calls = faulty.calls.lock().unwrap();
        assert_eq!(calls.last(), Some(&"release"), "{calls:?}");
    });
}

#[test]
fn a_list_of_pages_in_disorder_is_one_region() {
    let mut two = Two::new();
    let registry = PeerRegistry::new();
    let (calls, acquired) = (Arc::default(), AtomicUsize::new(0));
    let faulty = Faulty { fault: Fault::None, calls, acquired };
    let _client = registry.register(Arc::new(faulty)).unwrap();
    let (mut qa, mut qb) = two.connected::<Buf>();
    let local = two.a.mr();
    let range = PeerRange { addr: AT + 100, len_bytes: 8000 };
    let mr = registry.reg_mr(&two.b.pd, range, &config()).unwrap();
    let bytes = pattern(8000, 5);
    two.a.fill(0, &bytes);
    let remote = RemoteAddr { addr: AT + 100, rkey: mr.mr().rkey().unwrap() };
    let buf = local.buf(0..8000).unwrap();
    assert_eq!(ask(&mut two, &mut qa, &mut qb, SendOp::Write(remote), buf), 0);
    let buf = local.buf(16_384..24_384).unwrap();
    assert_eq!(ask(&mut two, &mut qa, &mut qb, SendOp::Read(remote), buf), 0);
    assert_eq!(two.a.read(16_384, 8000), bytes);
    let outside = SendOp::Write(remote.at(7_993));
    let buf = local.buf(0..8).unwrap();
    assert_eq!(ask(&mut two, &mut qa, &mut qb, outside, buf), REMOTE_ACCESS);
}
