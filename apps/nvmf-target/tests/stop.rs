//! A core that stops takes no more queues: those that are on their way to it are refused.

use std::thread;
use std::time::{Duration, Instant};

use ferrocx::verbs::cm::{CmConfig, ConnectionManager};
use ferrocx::verbs::{GidConfig, RdmaContext};
use ferrocx::{PageSize, Port, PortConfig};
use ferrocx_nvmf_target::controller::{Settings, Target};
use ferrocx_nvmf_target::host::{Base, HostError, HostQueue, QueueConfig};
use ferrocx_nvmf_target::transport::{Server, ServerConfig};

const LIMIT: Duration = Duration::from_secs(20);

fn open(number: u8) -> (Port, RdmaContext) {
    let name = format!("model:net=stop{},seed={number}", std::process::id());
    let port = Port::open_with(&name, PortConfig::default()).unwrap();
    let context = port.rdma().unwrap();
    let address = [10, 9, 0, number].into();
    context.add_gid(GidConfig { address, prefix_len: 24, gateway: None, vlan: None }).unwrap();
    (port, context)
}

/// Polls a core for as long as it is to be.
fn until(core: &mut Server, is_done: impl Fn(&Server) -> bool) {
    let begun = Instant::now();
    while !is_done(core) {
        core.poll().unwrap();
        thread::yield_now();
        assert!(begun.elapsed() < LIMIT);
    }
}

#[test]
fn a_core_that_stops_refuses_what_was_on_its_way() {
    let ((_far, served), (_near, context)) = (open(1), open(2));
    let target = Target::new(Settings::default());
    let mut first = Server::new(&served, target, &ServerConfig::default()).unwrap();
    let mut other = first.another().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cm = ConnectionManager::open(&context, &CmConfig::default()).unwrap();
    let target = "10.9.0.1:4420".parse().unwrap();
    let base = Base { context, pd, cm, target, page: PageSize::default() };
    let connect = || {
        let base = base.clone();
        thread::spawn(move || HostQueue::new(&base, &QueueConfig::default()))
    };
    let here = connect();
    until(&mut first, |_| here.is_finished());
    let queue = here.join().unwrap().unwrap();
    // The second goes to the core that has none, which has not looked yet.
    let there = connect();
    let begun = Instant::now();
    until(&mut first, |_| begun.elapsed() > Duration::from_millis(500));
    let begun = Instant::now();
    other.stop(LIMIT).unwrap();
    assert!(begun.elapsed() < LIMIT / 2, "{:?}", begun.elapsed());
    until(&mut first, |_| there.is_finished());
    assert!(matches!(there.join().unwrap(), Err(HostError::Cm(_))), "it is told at once");
    drop(queue);
    first.stop(LIMIT).unwrap();
    assert!(begun.elapsed() < LIMIT, "and nobody waits for it");
}
