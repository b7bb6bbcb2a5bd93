//! Registration pipelines: keys out, confirmations out, nothing lost, and what failures leave.
#![allow(clippy::single_range_in_vec_init, reason = "lists of one piece")]

use std::collections::HashMap;
use std::sync::Arc;

use crate::common;
use crate::common::{Two, pattern, small, syndromes};
use ferrocx_core::lcore::{Lcores, StopFlag, WaitStrategy};
use ferrocx_model::runner::{Runner, RunnerConfig};
use ferrocx_model::wire::link;
use ferrocx_verbs_lite::registrar::*;
use ferrocx_verbs_lite::*;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

fn pieces(list: &[std::ops::Range<usize>]) -> Pieces {
    list.iter().cloned().collect()
}

/// A request for a key with all rights over pieces of the only memory.
fn wanted(tag: u64, ranges: &[std::ops::Range<usize>]) -> Registration {
    Registration { tag, memory: 0, pieces: pieces(ranges), access: ALL, remote_invalidate: false }
}

/// A pipeline over `b`'s memory, its queue pair looped back.
fn pipeline(two: &Two, config: &RegistrarConfig) -> (Client, Worker) {
    let lane = Lane::looped_back(&two.b.context, &two.b.pd, 4 * config.keys.max(8)).unwrap();
    let memories = vec![Arc::clone(&two.b.memory)];
    registrar(&two.b.context, &two.b.pd, lane, memories, config).unwrap()
}

fn turn(two: &Two, worker: &mut Worker) {
    worker.turn();
    two.world.step();
}

/// Turns until an answer comes.
fn answer(two: &Two, client: &mut Client, worker: &mut Worker) -> Answer {
    for _ in 0..1000 {
        if let Some(answer) = client.poll() {
            return answer;
        }
        turn(two, worker);
    }
    panic!("no answer: {:?}", two.world.refusals(1));
}

fn key(answer: Answer) -> (u64, RegisteredKey) {
    match answer {
        Answer::Key { tag, key } => (tag, key),
        other => panic!("{other:?}"),
    }
}

#[test]
fn keys_work_for_peers_until_they_are_confirmed_ended() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected::<()>();
    let (mut client, mut worker) = pipeline(&two, &RegistrarConfig::default());
    assert!(client.register(wanted(7, &[5000..8192, 20480..20490])).is_ok());
    let (tag, key) = key(answer(&two, &mut client, &mut worker));
    assert_eq!((tag, key.len_bytes, key.remote.addr), (7, 3202, 5000 - 4096));
    let bytes = pattern(50, 3);
    for (at, part) in [(0, &bytes[..20]), (3182, &bytes[..20])] {
        let wr = SendWr::signaled(1, SendOp::Write(key.remote.at(at)));
        qa.post_send_inline(&wr, part).unwrap();
        let (done, _) = two.run(&mut qa, &mut qb);
        assert_eq!(syndromes(&done), [0]);
    }
    assert_eq!(two.b.read(5000, 20), bytes[..20]);
    assert_eq!(two.b.read(20480, 10), bytes[10..20]);
    client.invalidate(key.id).unwrap();
    assert!(matches!(answer(&two, &mut client, &mut worker), Answer::Ended { tag: 7 }));
    two.world.assert_clean();
    let wr = SendWr::signaled(1, SendOp::Write(key.remote));
    qa.post_send_inline(&wr, &[1]).unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!(syndromes(&done), [0x13]);
}

#[test]
fn every_request_is_answered_once_whatever_is_full() {
    let two = Two::new();
    let config = RegistrarConfig { keys: 3, ring_entries: 4, ..RegistrarConfig::default() };
    let (mut client, mut worker) = pipeline(&two, &config);
    let (mut next, mut held, mut ended, mut refused) = (0u64, Vec::new(), 0, 0);
    let mut seen = HashMap::new();
    let mut full = 0;
    while ended + refused < 500 {
        if next < 500 {
            // Every tenth cannot be described.
            let end = if next % 10 == 9 { common::MEMORY_BYTES + 1 } else { 4096 };
            if client.register(wanted(next, &[0..end])).is_ok() {
                next += 1;
            } else {
                full += 1;
            }
        }
        // Keys are given back late, and answers are taken late.
        if held.len() == 3 || next == 500 {
            while let Some(id) = held.pop() {
                if let Err(id) = client.invalidate(id) {
                    held.push(id);
                    break;
                }
            }
        }
        turn(&two, &mut worker);
        if next % 3 == 0 || full > 0 {
            while let Some(answer) = client.poll() {
                match answer {
                    Answer::Key { tag, key } => {
                        assert_eq!(seen.insert(tag, "key"), None);
                        held.push(key.id);
                    }
                    Answer::Ended { tag } => {
                        assert_eq!(seen.insert(tag, "ended"), Some("key"));
                        ended += 1;
                    }
                    Answer::Failed { tag, cause } => {
                        assert_eq!(cause, FailureCause::Pieces(PageListError::Range));
                        assert_eq!(seen.insert(tag, "failed"), None);
                        refused += 1;
                    }
                    Answer::Read { .. } => panic!("nobody reads"),
                }
            }
        }
    }
    assert_eq!((ended, refused, seen.len()), (450, 50, 500));
    assert!(full > 0, "the ring was full at times");
    let drained = worker.drain(|| two.world.wait_us(1));
    assert_eq!((drained.free.len(), drained.bound.len()), (3, 0));
    two.world.assert_clean();
}

/// Turns that 2000 cycles of register and invalidate take, and doorbells.
fn cost_of(depth: u32) -> (u64, u64) {
    let two = Two::new();
    let config = RegistrarConfig { keys: depth, ring_entries: 256, ..RegistrarConfig::default() };
    let (mut client, mut worker) = pipeline(&two, &config);
    let (mut asked, mut ended, mut turns) = (0u64, 0, 0);
    while ended < 2000 {
        while asked < 2000 && client.register(wanted(asked, &[0..4096])).is_ok() {
            asked += 1;
        }
        while let Some(answer) = client.poll() {
            match answer {
                Answer::Key { key, .. } => client.invalidate(key.id).unwrap(),
                Answer::Ended { .. } => ended += 1,
                other => panic!("{other:?}"),
            }
        }
        turn(&two, &mut worker);
        turns += 1;
    }
    let drained = worker.drain(|| two.world.wait_us(1));
    two.world.assert_clean();
    (turns, drained.qp.doorbells())
}

#[test]
fn throughput_grows_with_the_depth_of_the_pipeline() {
    let costs = [1, 4, 16, 64].map(cost_of);
    println!("turns and doorbells of 2000 cycles at depth 1, 4, 16, 64: {costs:?}");
    for pair in costs.windows(2) {
        assert!(pair[1].0 * 2 < pair[0].0, "turns: {costs:?}");
        assert!(pair[1].1 * 2 < pair[0].1, "doorbells: {costs:?}");
    }
}

#[test]
fn a_read_comes_through_a_key_that_ends_with_it() {
    let mut two = Two::new();
    let ma = two.a.mr();
    let config = QpConfig { fast_reg: true, ..small() };
    let (_qa, qb) = two.rc::<()>(&config);
    let cq = std::mem::replace(&mut two.b.cq, two.b.context.create_cq(64).unwrap());
    let lane = Lane { qp: qb, cq };
    let memories = vec![Arc::clone(&two.b.memory)];
    let config = RegistrarConfig { keys: 4, ..RegistrarConfig::default() };
    let (mut client, mut worker) =
        registrar(&two.b.context, &two.b.pd, lane, memories, &config).unwrap();
    two.a.fill(0, &pattern(6000, 4));
    let from = RemoteAddr { addr: ma.addr(), rkey: ma.rkey().unwrap() };
    for tag in 0..20 {
        let at = (tag as usize % 4) * 16384;
        let pieces = pieces(&[at + 100..at + 4096, at + 8192..at + 9000]);
        client.read_once(ReadOnce { tag, memory: 0, pieces, from }).unwrap();
    }
    for expected in 0..20 {
        let answer = answer(&two, &mut client, &mut worker);
        assert!(matches!(answer, Answer::Read { tag } if tag == expected), "{answer:?}");
    }
    let got = [two.b.read(100, 3996), two.b.read(8192, 808)].concat();
    assert_eq!(got, pattern(6000, 4)[..4804]);
    two.world.assert_clean();

    // The peer refuses: everything under way is answered, and every key is accounted for.
    assert!(client.register(wanted(50, &[0..10])).is_ok());
    let (_, held) = key(answer(&two, &mut client, &mut worker));
    let bad = RemoteAddr { rkey: Rkey(from.rkey.0 ^ 1), ..from };
    let pieces = pieces(&[0..10]);
    client.read_once(ReadOnce { tag: 51, memory: 0, pieces, from: bad }).unwrap();
    for tag in 52..60 {
        assert!(client.register(wanted(tag, &[0..10])).is_ok());
    }
    while !worker.has_failed() {
        turn(&two, &mut worker);
    }
    let drained = worker.drain(|| two.world.wait_us(1));
    let mut answered = Vec::new();
    while let Some(answer) = client.poll() {
        match answer {
            Answer::Failed { tag, cause } => answered.push((tag, cause)),
            Answer::Key { tag, .. } => answered.push((tag, FailureCause::Stopped)),
            other => panic!("{other:?}"),
        }
    }
    let mut tags: Vec<u64> = answered.iter().map(|(tag, _)| *tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (51..60).collect::<Vec<_>>());
    let cause = answered.iter().find(|(tag, _)| *tag == 51).unwrap().1;
    assert!(
        matches!(cause, FailureCause::Device(failure) if failure.syndrome.0 == 0x13),
        "the READ's own failure: {cause:?}"
    );
    assert_eq!(drained.free.len() + drained.bound.len(), 4);
    let mut bound = drained.bound.into_iter();
    assert!(bound.any(|one| one.tag == 50 && one.key.mr().unwrap().remote() == held.remote));
    for TaggedKey { mut key, .. } in bound {
        key.revoke().unwrap();
        assert_eq!(key.state(), KeyState::Free);
    }
    assert!(client.is_abandoned());
}

#[test]
fn two_workers_and_the_model_on_threads_of_their_own() {
    let (a, b) = link(1 << 20);
    let (transports, nics) = common::models(a, b);
    let runner = Runner::start(nics.into(), RunnerConfig::default()).unwrap();
    let [_, second] = transports;
    let side = common::open(second, 2);
    let lcores = Lcores::detect().unwrap();
    let cores: Vec<usize> = lcores.ids().collect();
    let config = RegistrarConfig { keys: 16, ring_entries: 64, ..RegistrarConfig::default() };
    let launch = |at: usize| {
        let lane = Lane::looped_back(&side.context, &side.pd, 64).unwrap();
        let memories = vec![Arc::clone(&side.memory)];
        let (client, worker) = registrar(&side.context, &side.pd, lane, memories, &config).unwrap();
        let core = cores[at % cores.len()];
        let run = move |stop: &StopFlag| worker.run(stop, WaitStrategy::Yield);
        (client, lcores.launch(core, StopFlag::new(), run).unwrap())
    };
    let mut workers = [launch(0), launch(1)];
    let (mut asked, mut ended) = ([0u64; 2], [0u64; 2]);
    const CYCLES: u64 = 3000;
    while ended.iter().any(|count| *count < CYCLES) {
        for (at, (client, _)) in workers.iter_mut().enumerate() {
            if asked[at] < CYCLES && client.register(wanted(asked[at], &[0..100])).is_ok() {
                asked[at] += 1;
            }
            while let Some(answer) = client.poll() {
                match answer {
                    Answer::Key { key, .. } => client.invalidate(key.id).unwrap(),
                    Answer::Ended { .. } => ended[at] += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        std::thread::yield_now();
    }
    for (client, worker) in workers {
        let drained = worker.join().unwrap();
        assert_eq!((drained.free.len(), drained.bound.len()), (16, 0));
        drop(client);
    }
    drop(side);
    let refused =
        runner.with(|nics| nics.iter().map(|nic| nic.log().iter().count()).sum::<usize>());
    assert_eq!(refused, 0);
}

#[test]
fn a_pipeline_over_peer_memory_ends_with_it() {
    use ferrocx_verbs_lite::peer::{MappedProvider, PeerConfig, PeerRegistry};
    let mut two = Two::new();
    let registry = PeerRegistry::new();
    let provider = MappedProvider::new("peer");
    let _client = registry.register(Arc::new(provider.clone())).unwrap();
    let block = provider.host(65_536, 4096).unwrap();
    let mr = registry.reg_mr(&two.b.pd, block.range(0, 65_536), &PeerConfig::new(ALL)).unwrap();
    let make = |memories| {
        let lane = Lane::looped_back(&two.b.context, &two.b.pd, 64).unwrap();
        registrar(&two.b.context, &two.b.pd, lane, memories, &RegistrarConfig::default())
    };
    let mixed = make(vec![Arc::clone(&mr.memories()[0]), Arc::clone(&two.b.memory)]).unwrap_err();
    assert!(mixed.to_string().contains("make one for each"), "{mixed}");
    let (mut client, mut worker) = make(mr.memories().to_vec()).unwrap();
    let (mut qa, mut qb) = two.connected::<()>();
    assert!(client.register(wanted(7, &[4096..12_288])).is_ok());
    let (_, key) = key(answer(&two, &mut client, &mut worker));
    let write = SendWr::signaled(1, SendOp::Write(key.remote));
    qa.post_send_inline(&write, b"into the peer").unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!(syndromes(&done), [0]);
    let (region, start) = block.region();
    let mut bytes = [0; 13];
    region.copy_out(start + 4096, &mut bytes).unwrap();
    assert_eq!(&bytes, b"into the peer");
    block.invalidate().unwrap();
    qa.post_send_inline(&write, b"refused").unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!(syndromes(&done), [0x13]);
    region.copy_out(start + 4096, &mut bytes).unwrap();
    assert_eq!(&bytes, b"into the peer");
    // Whoever asks for more is told so.
    assert!(client.register(wanted(8, &[0..4096])).is_ok());
    let refused = answer(&two, &mut client, &mut worker);
    assert!(!matches!(refused, Answer::Key { .. }), "{refused:?}");
}
