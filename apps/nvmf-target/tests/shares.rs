//! A stranger that takes all it can get: its address has a share, and none of it for ever.

mod common;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{BLOCK, NQN, with, with_target};
use ferrocx_nvmf_target::auth::{Group, Hash, HostKey, Secret};
use ferrocx_nvmf_target::controller::Settings;
use ferrocx_nvmf_target::host::{
    Base, Host, HostConfig, HostError, HostKeys, HostQueue, Joining, QueueConfig, connect_command,
    keyed, one, refused,
};
use ferrocx_nvmf_target::proto::connect::{ANY_CONTROLLER, ConnectData, DISCOVERY_NQN};
use ferrocx_nvmf_target::proto::log::lid;
use ferrocx_nvmf_target::proto::property;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::transport::ServerConfig;
use zerocopy::IntoBytes;

fn stranger(keep_alive_ms: u32) -> HostConfig {
    HostConfig {
        hostnqn: "nqn.2014-08.org.nvmexpress:uuid:f0e0d0c0-0000-4000-8000-000000000002".into(),
        hostid: [0x22; 16],
        keep_alive_ms,
        ..HostConfig::new(NQN)
    }
}

/// All controllers that an address gets, and how it was refused.
fn take_all(base: &Base, config: &HostConfig) -> (Vec<Host>, HostError) {
    let mut taken = Vec::new();
    loop {
        match Host::open(base, config) {
            Ok(host) => taken.push(host),
            Err(error) => return (taken, error),
        }
        assert!(taken.len() < 100, "nobody stops it");
    }
}

#[test]
fn an_address_has_a_share_of_the_controllers_and_its_silence_ends_them() {
    let silence = Duration::from_secs(8);
    let settings = Settings { controllers: 8, silence, ..Settings::default() };
    with(settings, ServerConfig::default(), |here| {
        let (_port, base) = here.neighbour(1);
        let from = Instant::now();
        // Whoever has no keep-alive time may be silent for a time all the same.
        let (taken, error) = take_all(&base, &stranger(0));
        assert_eq!(taken.len(), 6, "three quarters");
        let HostError::Refused { status, .. } = error else { panic!("{error}") };
        assert_eq!(status, Status::CONNECT_BUSY, "it may try again");
        // One of them is in the state that it calls failed: that does not keep it.
        let mut taken = taken;
        taken[0].set_property(property::CC, 0x0045_0001).unwrap();
        assert_eq!(taken[0].property(property::CSTS).unwrap() & 3, 2);
        let host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (_memory, mr) = host.memory(4096).unwrap();
        let read = Sqe::blocks(io::READ, 0, 1, (0, 1), keyed(&mr.buf(0..BLOCK).unwrap()));
        let mut reads = 0;
        while here.change(|server| server.target().controllers()) > 1 {
            assert_eq!(one(&mut queue, read).unwrap().status(), Status::SUCCESS);
            reads += 1;
            assert!(from.elapsed() < Duration::from_secs(60), "they stay");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(from.elapsed() >= silence && reads > 10, "{reads} in {:?}", from.elapsed());
        here.until_queues(2);
        drop(taken);
        Host::open(&base, &stranger(0)).unwrap();
        let counted = here.change(|server| server.target().refused_shares());
        assert!(counted >= 1, "it is counted");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(here.change(|server| server.stats().refused_shares), counted);
    });
}

#[test]
fn an_address_has_a_share_of_the_queues() {
    let settings = Settings { io_queues: 1, ..Settings::default() };
    let config = ServerConfig { queues: 8, ..ServerConfig::default() };
    with(settings, config, |here| {
        let (_port, base) = here.neighbour(1);
        let mut taken: Vec<Host> = Vec::new();
        while let Ok(host) = Host::open(&base, &stranger(0)) {
            taken.push(host);
            assert!(taken.len() < 9, "nobody stops it");
        }
        assert_eq!(taken.len(), 6, "three quarters");
        let host = here.host();
        let queue = host.open_queue(1, 32, 0).unwrap();
        // What ends is its address's again.
        taken.pop();
        here.until_queues(7);
        taken.push(Host::open(&base, &stranger(0)).unwrap());
        assert!(HostQueue::new(&base, &QueueConfig::default()).is_err(), "a seventh");
        drop((taken, queue));
    });
}

/// Who comes by many addresses and never says what it wants does not keep others out.
#[test]
fn queues_without_connect_make_way_whose_ever_they_are() {
    let settings = Settings { io_queues: 1, ..Settings::default() };
    let config = ServerConfig { queues: 16, ..ServerConfig::default() };
    with(settings, config, |here| {
        let strangers: Vec<_> = (1..=4).map(|number| here.neighbour(number)).collect();
        let mut taken: Vec<Vec<HostQueue>> = strangers
            .iter()
            .map(|(_, base)| {
                (0..6).map_while(|_| HostQueue::new(base, &QueueConfig::default()).ok()).collect()
            })
            .collect();
        let left = here.change(|server| server.stats().queues);
        assert!(left <= 4, "{left} of 16 queues are silent ones");
        let mut host = here.host();
        let _queue = host.open_queue(1, 32, 0).unwrap();
        // The oldest of the address that has most goes first; it is told.
        taken[0][0].wait_for_end(Duration::from_secs(5)).unwrap();
        host.property(property::CSTS).unwrap();
    });
}

/// Nor does who asks and never answers: such queues make way before those that came about.
#[test]
fn who_never_answered_makes_way_first() {
    let settings = Settings { io_queues: 1, ..Settings::default() };
    let config = ServerConfig { queues: 16, ..ServerConfig::default() };
    with(settings, config, |here| {
        // The oldest of those without Connect.
        let mut slow = HostQueue::new(&here.base, &QueueConfig::default()).unwrap();
        let strangers: Vec<_> = (1..=6).map(|number| here.neighbour(number)).collect();
        let mut begun = Vec::new();
        for (at, (_, base)) in strangers.iter().enumerate() {
            begun.push(Joining::begin(base, &QueueConfig::default()).unwrap());
            let from = Instant::now();
            while here.change(|server| server.stats().queues) < 4.min(2 + at as u32)
                || from.elapsed() < Duration::from_millis(300)
            {
                assert!(from.elapsed() < Duration::from_secs(20), "its request does not come");
                base.cm.poll();
            }
        }
        assert_eq!(here.change(|server| server.stats().queues), 4, "a quarter");
        let still_there = slow.wait_for_end(Duration::from_millis(300));
        assert!(matches!(still_there, Err(HostError::Silent(_))), "{still_there:?}");
        drop(begun);
    });
}

/// A key, which the host of [`HostConfig::new`] has to show.
const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

/// The queue of somebody who names that host, and shows no key.
fn nameless(base: &Base, qid: u16, cntlid: u16) -> Result<HostQueue, HostError> {
    let config = QueueConfig { qid, entries: 16, ..QueueConfig::default() };
    let mut queue = HostQueue::new(base, &config)?;
    let named = HostConfig::new(NQN);
    let data = ConnectData::new(named.hostid, cntlid, NQN, &named.hostnqn);
    let sgl = Sgl::InCapsule { offset: 0, len: 1024 };
    queue.submit_with(connect_command(qid, 16, 0, sgl), data.as_bytes())?;
    let cqe = queue.wait(Duration::from_secs(20))?;
    refused("Connect", &cqe)?;
    Ok(queue)
}

/// Who comes by many addresses in the name of a host, and does not show that host's key, keeps
/// nobody out who does: neither controllers nor queues.
#[test]
fn who_shows_no_key_makes_way_whose_ever_the_address_is() {
    let settings = Settings { controllers: 8, ..Settings::default() };
    with(settings, ServerConfig::default(), |here| {
        let secret = || Secret::parse(KEY).unwrap();
        let (hashes, groups) = (vec![Hash::Sha256], vec![Group::Ffdhe2048]);
        let key = HostKey { secret: secret(), controller: None, hashes, groups };
        let name = HostConfig::new(NQN).hostnqn;
        here.change(move |server| server.target_mut().set_key(NQN, &name, Some(key))).unwrap();
        let strangers: Vec<_> = (1..=2).map(|number| here.neighbour(number)).collect();
        let fill = |qid, cntlid| -> Vec<HostQueue> {
            let all = strangers.iter().flat_map(|(_, base)| [base; 5]);
            all.filter_map(|base| nameless(base, qid, cntlid).ok()).collect()
        };
        let taken = fill(0, ANY_CONTROLLER);
        assert!(!taken.is_empty());
        here.until_queues(2);
        assert_eq!(here.change(|server| server.target().controllers()), 2, "a quarter");
        let keys = Some(HostKeys::new(secret()));
        let config = HostConfig { keys, ..HostConfig::new(NQN) };
        let host = Host::connect(&here.base, &config).unwrap();
        // Queues of a controller that they have not either.
        let queues = fill(1, host.cntlid);
        assert!(!queues.is_empty());
        here.until_queues(3);
        // From its own address, the host has as many as it needs.
        let own: Vec<HostQueue> =
            (1..=3).map(|qid| nameless(&here.base, qid, host.cntlid).unwrap()).collect();
        let mut queue = host.open_queue(4, 16, 0).unwrap();
        here.until_queues(7);
        let (_memory, mr) = host.memory(4096).unwrap();
        let read = Sqe::blocks(io::READ, 0, 1, (0, 1), keyed(&mr.buf(0..BLOCK).unwrap()));
        assert_eq!(one(&mut queue, read).unwrap().status(), Status::SUCCESS);
        drop((taken, queues, own));
    });
}

/// Nor does one who only asks what there is.
#[test]
fn discovery_makes_way_for_those_who_ask_next() {
    let settings = Settings { controllers: 8, ..Settings::default() };
    with(settings, ServerConfig::default(), |here| {
        let asks = HostConfig { subnqn: DISCOVERY_NQN.into(), ..stranger(0) };
        let strangers: Vec<_> = (1..=2).map(|number| here.neighbour(number)).collect();
        let taken: Vec<Host> =
            strangers.iter().filter_map(|(_, base)| Host::open(base, &asks).ok()).collect();
        assert_eq!(taken.len(), 2, "a quarter");
        let mut host = Host::open(&here.base, &asks).unwrap();
        host.enable().unwrap();
        host.log(lid::DISCOVERY, 0, 1024).unwrap();
        here.until_queues(2);
        // Hosts of subsystems do not lose theirs.
        let others: Vec<Host> = (0..5).map(|_| here.host()).collect();
        Host::open(&strangers[0].1, &asks).unwrap();
        drop((taken, others));
    });
}

#[test]
fn a_keep_alive_time_has_an_upper_bound() {
    let settings = Settings { silence: Duration::from_secs(10), ..Settings::default() };
    with(settings, ServerConfig::default(), |here| {
        for too_long in [10_001, u32::MAX] {
            let refused = Host::open(&here.base, &stranger(too_long));
            let Err(HostError::Refused { status, .. }) = refused else { panic!("{too_long} ms") };
            assert_eq!(status, Status::KEEP_ALIVE.dnr());
        }
        let mut host = Host::connect(&here.base, &stranger(10_000)).unwrap();
        let refused = host.set_feature(0x0f, 10_001);
        let Err(HostError::Refused { status, .. }) = refused else { panic!("10,001 ms") };
        assert_eq!(status, Status::KEEP_ALIVE.dnr());
        host.set_feature(0x0f, 9_000).unwrap();
    });
}

/// Who asks for many queues at a time has them one by one: others are served between.
#[test]
fn queues_are_made_one_at_a_turn() {
    const COUNT: u32 = 12;
    with(Settings::default(), ServerConfig::default(), |here| {
        let (_port, base) = here.neighbour(1);
        // It knows the way to the target.
        drop(HostQueue::new(&base, &QueueConfig::default()).unwrap());
        here.until_queues(0);
        let (asked, wait) = channel();
        let turns = here.begin(move |server| {
            wait.recv().unwrap();
            let (begun, mut last) = (Instant::now(), Instant::now());
            let (mut turns, mut sum) = (Vec::new(), 0);
            while sum < COUNT && begun.elapsed() < Duration::from_secs(30) {
                let (before, from) = (server.stats().queues, Instant::now());
                server.poll().unwrap();
                let made = server.stats().queues - before;
                sum += made;
                if made > 0 {
                    turns.push((made, last.elapsed()));
                    // Whatever the machine did after it: the turn's time began behind this.
                    last = from;
                }
            }
            turns
        });
        let begin = |_| Joining::begin(&base, &QueueConfig::default()).unwrap();
        let joining: Vec<Joining> = (0..COUNT).map(begin).collect();
        // All requests are at the target's port when it looks.
        for _ in 0..300 {
            base.cm.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
        asked.send(()).unwrap();
        let turns = turns.recv().unwrap();
        assert!(turns.iter().all(|(made, _)| *made == 1), "{turns:?}");
        // The first may have had its turn's time before.
        let is_apart = |(_, apart): &(u32, Duration)| *apart >= Duration::from_micros(900);
        assert!(turns.len() == COUNT as usize && turns[1..].iter().all(is_apart), "{turns:?}");
        drop(joining);
    });
}

/// The port that they have called is no more: those that the target has heard of come up or are
/// gone, and nothing of them is left.
#[test]
fn a_port_goes_while_queues_of_it_come_up() {
    with_target(|here| {
        let mut came_up = 0;
        for round in 0..8 {
            let begin = |_| Joining::begin(&here.base, &QueueConfig::default()).unwrap();
            let mut coming: Vec<Joining> = (0..12).map(begin).collect();
            // One is made in a millisecond at most.
            std::thread::sleep(Duration::from_millis(round));
            assert!(here.change(|server| server.listen_no_more(4420)));
            let (begun, mut came) = (Instant::now(), Vec::new());
            while !coming.is_empty() {
                assert!(
                    begun.elapsed() < Duration::from_secs(60),
                    "{} come for ever",
                    coming.len()
                );
                here.base.cm.poll();
                let polled = coming.drain(..).filter_map(|it| it.poll().ok());
                let (joined, others): (Vec<_>, Vec<_>) = polled.partition(Result::is_ok);
                came.extend(joined.into_iter().flatten());
                coming = others.into_iter().filter_map(Result::err).collect();
            }
            came_up += came.len();
            drop(came);
            here.until_queues(0);
            here.change(|server| server.listen(4420).unwrap());
        }
        assert!((1..8 * 12).contains(&came_up), "{came_up} came up");
        here.host();
    });
}
