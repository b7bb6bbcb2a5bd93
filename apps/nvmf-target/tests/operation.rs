//! A running target, asked and changed through its socket while a host of ours uses it.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use common::NQN;
use ferrocx::lcore::Lcores;
use ferrocx::verbs::GidConfig;
use ferrocx::verbs::cm::{CmConfig, ConnectionManager};
use ferrocx::{PageSize, Port, PortConfig};
use ferrocx_app_common::signal::Stop;
use ferrocx_app_common::wait::Wait;
use ferrocx_nvmf_target::config::Config;
use ferrocx_nvmf_target::host::{Base, Host, HostConfig, HostQueue, keyed, one};
use ferrocx_nvmf_target::proto::connect::DISCOVERY_NQN;
use ferrocx_nvmf_target::proto::identify::{cns, events};
use ferrocx_nvmf_target::proto::log::lid;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, admin, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::rpc::client::Client;
use ferrocx_nvmf_target::rpc::{MAX_BYTES, MAX_CLIENTS, Service};
use ferrocx_nvmf_target::run::Running;
use ferrocx_nvmf_target::stats::Registry;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(20);
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:f0e0d0c0-0000-4000-8000-000000000001";

/// A target that runs, and a port to connect to it from.
struct Here {
    base: Base,
    socket: PathBuf,
    stop: Stop,
    registry: std::sync::Arc<Registry>,
}

impl Here {
    fn client(&self) -> Client {
        Client::connect(&self.socket).unwrap()
    }

    fn ask(&self, method: &str, params: Value) -> Value {
        self.client().ask(method, &params).unwrap()
    }

    fn refused(&self, method: &str, params: Value) -> String {
        self.client().ask(method, &params).unwrap_err().to_string()
    }

    fn host(&self) -> Host {
        common::connect(&self.base, &HostConfig::new(NQN))
    }
}

/// Runs a test against a target of this file: more lines for its head, and for its subsystem.
fn with_target(head: &str, more: &str, test: impl FnOnce(&Here)) {
    with_services("[4420]", head, more, test);
}

/// The same with these ports.
fn with_services(services: &str, head: &str, more: &str, test: impl FnOnce(&Here)) {
    static NUMBER: AtomicU16 = AtomicU16::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let net = format!("operation{}-{number}", std::process::id());
    let open = |seed: u8| {
        let name = format!("model:net={net},seed={seed}");
        Port::open_with(&name, PortConfig::default()).unwrap()
    };
    let (far, near) = (open(1), open(2));
    let text = format!(
        "address = \"10.9.0.1/24\"\nservices = {services}\n{head}\n[[subsystem]]\nnqn = \"{NQN}\"\n\
         allow_any_host = true\n[[subsystem.namespace]]\nsize = \"1MiB\"\n{more}"
    );
    let config = Config::parse(&text).unwrap();
    let mut running = Running::start(&far, &config, Wait::Yield).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (socket, stop) = (folder.path().join("socket"), Stop::new());
    let control = running.control.take().unwrap();
    let service = Service::start(&socket, control, stop.clone()).unwrap();
    let context = near.rdma().unwrap();
    let address = [10, 9, 0, 2].into();
    context.add_gid(GidConfig { address, prefix_len: 24, gateway: None, vlan: None }).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cm = ConnectionManager::open(&context, &CmConfig::default()).unwrap();
    let target = "10.9.0.1:4420".parse().unwrap();
    let registry = running.registry.clone();
    test(&Here {
        base: Base { context, pd, cm, target, page: PageSize::default() },
        socket: socket.clone(),
        stop,
        registry,
    });
    service.end();
    assert!(!socket.exists(), "the socket goes with its service");
    running.stop().unwrap();
    drop(near);
    far.close().unwrap();
}

fn status(queue: &mut HostQueue, opcode: u8, (nsid, slba): (u32, u64), sgl: Sgl) -> Status {
    one(queue, Sqe::blocks(opcode, 0, nsid, (slba, 8), sgl)).unwrap().status()
}

#[test]
fn namespaces_come_change_and_go_while_a_host_is_there() {
    with_target("", "", |here| {
        let mut host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (_, mr) = host.memory(4096).unwrap();
        let sgl = keyed(&mr.buf(0..4096).unwrap());
        host.set_feature(0x0b, events::NAMESPACE_ATTRIBUTES).unwrap();
        let told = |host: &mut Host, nsid: u32| {
            let log = host.log(lid::CHANGED_NAMESPACES, 0, 4096).unwrap();
            assert_eq!(log[..8], [nsid.to_le_bytes(), [0; 4]].concat());
        };
        let change = |host: &mut Host, method: &str, params: Value| {
            host.admin.submit(Sqe::new(admin::ASYNC_EVENT, 0, Sgl::NONE)).unwrap();
            assert_eq!(here.ask(method, params), json!(true));
            let cqe = host.admin.wait(LIMIT).unwrap();
            assert_eq!((cqe.status(), cqe.result.get()), (Status::SUCCESS, 0x0004_0002));
            told(host, 7);
        };
        let size = |size: &str| json!({"nqn": NQN, "nsid": 7, "size": size});
        let added = json!({"nqn": NQN, "namespace": {"nsid": 7, "size": "64KiB"}});
        change(&mut host, "namespace.add", added.clone());
        assert!(here.refused("namespace.add", added).contains("give another number"));
        assert_eq!(host.identify(cns::NAMESPACE, 7).unwrap()[..8], 128u64.to_le_bytes());
        assert_eq!(status(&mut queue, io::WRITE, (7, 120), sgl), Status::SUCCESS);
        change(&mut host, "namespace.resize", size("32KiB"));
        assert_eq!(host.identify(cns::NAMESPACE, 7).unwrap()[..8], 64u64.to_le_bytes());
        assert_eq!(status(&mut queue, io::READ, (7, 120), sgl), Status::LBA_RANGE.dnr());
        assert!(here.refused("namespace.resize", size("128KiB")).contains("cannot grow"));
        assert!(here.refused("namespace.resize", size("1000")).contains("no multiple"));
        change(&mut host, "namespace.resize", size("64KiB"));
        assert_eq!(status(&mut queue, io::READ, (7, 120), sgl), Status::SUCCESS);
        let named = json!({"nqn": NQN, "nsid": 7});
        change(&mut host, "namespace.remove", named.clone());
        let gone = Status::INVALID_NAMESPACE.dnr();
        assert_eq!(status(&mut queue, io::READ, (7, 0), sgl), gone);
        assert!(here.refused("namespace.remove", named).contains("does not exist"));
        // The others were not touched, and the number can be another's.
        assert_eq!(status(&mut queue, io::READ, (1, 0), sgl), Status::SUCCESS);
        let again =
            json!({"nqn": NQN, "namespace": {"nsid": 7, "size": "1MiB", "backend": "null"}});
        change(&mut host, "namespace.add", again);
        assert_eq!(status(&mut queue, io::WRITE, (7, 2000), sgl), Status::SUCCESS);
        let list = here.ask("subsystem.list", json!({}));
        assert_eq!(list[0]["namespaces"][1]["backend"], "null");
        assert_eq!(list[0]["namespaces"][1]["size"], 1 << 20);
        let mut whole = json!({"nsid": 8, "size": "1MiB", "backend": "null", "atomic": true});
        let refused = here.refused("namespace.add", json!({"nqn": NQN, "namespace": whole}));
        assert!(refused.contains("atomic is for backend"), "{refused}");
        whole["backend"] = "ram".into();
        here.ask("namespace.add", json!({"nqn": NQN, "namespace": whole}));
        for opcode in [io::WRITE, io::READ] {
            assert_eq!(status(&mut queue, opcode, (8, 2000), sgl), Status::SUCCESS);
        }
        let list = here.ask("subsystem.list", json!({}));
        let is_atomic = |at: usize| list[0]["namespaces"][at]["atomic"].clone();
        assert_eq!([is_atomic(1), is_atomic(2)], [false, true]);
    });
}

#[test]
fn hosts_of_ram_flush_what_comes_later() {
    with_target("", "", |here| {
        let mut host = here.host();
        let page = host.identify(cns::CONTROLLER, 0).unwrap();
        assert_eq!(page[525], 0b101, "Linux reads it once, and never flushes without");
        let get = Sqe { cdw10: 6.into(), ..Sqe::new(admin::GET_FEATURES, 0, Sgl::NONE) };
        let cqe = host.command(get).unwrap();
        assert_eq!((cqe.status(), cqe.result.get()), (Status::SUCCESS, 1));
    });
}

#[test]
fn a_file_can_be_larger_than_ram_can() {
    with_target("", "", |here| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let file = fs::File::create(&path).unwrap();
        if let Err(error) = file.set_len(2 << 40) {
            println!("skipped: no sparse file of 2 TiB: {error}");
            return;
        }
        let last = [0x5a; 4096];
        std::os::unix::fs::FileExt::write_all_at(&file, &last, (2 << 40) - 4096).unwrap();
        let namespace = json!({"nsid": 2, "backend": "file", "path": path, "direct": false});
        match here.client().ask("namespace.add", &json!({"nqn": NQN, "namespace": namespace})) {
            Ok(_) => {}
            Err(error) if error.to_string().contains("io_uring") => {
                println!("skipped: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
        let host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (_, mr) = host.memory(4096).unwrap();
        let buf = mr.buf(0..4096).unwrap();
        let at = (2, (2 << 31) - 8);
        assert_eq!(status(&mut queue, io::READ, at, keyed(&buf)), Status::SUCCESS);
        assert_eq!(buf.to_vec(), last);
        let ram = json!({"nsid": 3, "size": "2048GiB"});
        let refused = here.refused("namespace.add", json!({"nqn": NQN, "namespace": ram}));
        assert!(refused.contains("size is 2199023255552; give 512 to 1099511627776"), "{refused}");
    });
}

#[test]
fn what_cannot_be_offered_is_refused_with_the_way_out() {
    with_target("", "", |here| {
        let add = |namespace: Value| json!({"nqn": NQN, "namespace": namespace});
        let uuid = "f0e0d0c0-0000-4000-8000-000000000001";
        let named = |nsid: u32| add(json!({"nsid": nsid, "size": "64KiB", "uuid": uuid}));
        assert_eq!(here.ask("namespace.add", named(2)), json!(true));
        let refused = here.refused("namespace.add", named(3));
        assert!(refused.contains("is namespace 2's of"), "{refused}");
        // No file there can be read past the kernel's cache.
        let path = "/proc/version";
        let file = json!({"nsid": 3, "backend": "file", "path": path, "read_only": true});
        let refused = here.refused("namespace.add", add(file));
        assert!(refused.contains("give direct = false"), "{refused}");
    });
}

#[test]
fn a_file_that_was_made_for_a_namespace_that_is_refused_goes_again() {
    let folder = tempfile::tempdir().unwrap();
    let (new, none) = (folder.path().join("new"), folder.path().join("none"));
    let left = || fs::read_dir(folder.path()).unwrap().count();
    with_target("", "", |here| {
        let made = json!({"nsid": 1, "backend": "file", "path": new, "direct": false,
            "size": "64KiB"});
        let not_there = json!({"nsid": 2, "backend": "file", "path": none, "direct": false});
        let both = [made, not_there];
        let both = json!({"nqn": "nqn.2014-08.a:b", "namespace": both});
        let refused = here.refused("subsystem.add", both);
        assert!(refused.contains("none"), "{refused}");
        assert_eq!(left(), 0, "{refused}");
    });
    let port =
        Port::open_with("model:net=operation-refused,seed=1", PortConfig::default()).unwrap();
    let namespace = "\n[[subsystem.namespace]]\nbackend = \"file\"\ndirect = false\npath = ";
    let text = format!(
        "address = \"10.9.0.1/24\"\n[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\
         {namespace}{new:?}\nsize = \"64KiB\"{namespace}{none:?}"
    );
    let config = Config::parse(&text).unwrap();
    let refused = format!("{:#}", Running::start(&port, &config, Wait::Yield).unwrap_err());
    assert!(refused.contains("none"), "{refused}");
    assert_eq!(left(), 0, "{refused}");
}

#[test]
fn a_file_is_let_go_with_its_namespace() {
    with_target("", "", |here| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let namespace = json!({"nsid": 2, "backend": "file", "path": path, "size": "64KiB",
            "direct": false});
        let added = json!({"nqn": NQN, "namespace": namespace});
        match here.client().ask("namespace.add", &added) {
            Ok(_) => {}
            Err(error) if error.to_string().contains("io_uring") => {
                println!("skipped: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
        let other = json!({"nsid": 3, "backend": "file", "path": path, "direct": false});
        let other = json!({"nqn": NQN, "namespace": other});
        assert!(here.refused("namespace.add", other.clone()).contains("somebody else has it"));
        let grown = json!({"nqn": NQN, "nsid": 2, "size": "128KiB"});
        here.ask("namespace.resize", grown);
        assert_eq!(fs::metadata(&path).unwrap().len(), 128 << 10);
        here.ask("namespace.remove", json!({"nqn": NQN, "nsid": 2}));
        // The lock is free at once, since nothing was under way.
        here.ask("namespace.add", other);
    });
}

#[test]
fn hosts_and_subsystems_come_and_go() {
    with_target("", "", |here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 16, 0).unwrap();
        let named = json!({"nqn": NQN, "host": HOST});
        here.ask("host.allow", named.clone());
        assert_eq!(here.ask("subsystem.list", json!({}))[0]["hosts"], json!([HOST]));
        assert_eq!(here.ask("controller.list", json!({}))[0]["host"], HOST);
        assert_eq!(here.ask("controller.list", json!({}))[0]["io_queues"], 1);
        // A host that goes off the list is disconnected, and does not come in again.
        here.ask("host.disallow", named.clone());
        queue.wait_for_end(LIMIT).unwrap();
        assert!(Host::connect(&here.base, &HostConfig::new(NQN)).is_err());
        assert!(here.refused("host.disallow", named).contains("is not on the list"));
        assert!(here.refused("host.allow", json!({"nqn": NQN, "host": "me"})).contains("`me`"));
        here.ask("host.allow_any", json!({"nqn": NQN, "any": true}));
        let host = here.host();
        let mut queue = host.open_queue(1, 16, 0).unwrap();
        let cntlid = json!({"cntlid": host.cntlid});
        here.ask("controller.remove", cntlid);
        queue.wait_for_end(LIMIT).unwrap();
        assert!(here.refused("controller.remove", json!({"cntlid": 0})).contains("controller 0"));
        drop((queue, host));
        // All of a subsystem or nothing of it.
        let other = "nqn.2026-11.org.ferrocx:other";
        let with = |them: Value| json!({"nqn": other, "allow_any_host": true, "namespace": them});
        let wrong = json!([{"size": "64KiB"}, {"backend": "file", "path": "/none/of/it"}]);
        assert!(here.refused("subsystem.add", with(wrong)).contains("/none/of/it"));
        assert_eq!(here.ask("subsystem.list", json!({})).as_array().unwrap().len(), 1);
        here.ask("subsystem.add", with(json!([{"size": "64KiB"}])));
        let host = Host::connect(&here.base, &HostConfig::new(other)).unwrap();
        let mut queue = host.open_queue(1, 16, 0).unwrap();
        here.ask("subsystem.remove", json!({"nqn": other}));
        queue.wait_for_end(LIMIT).unwrap();
        let said = here.refused("subsystem.remove", json!({"nqn": other}));
        assert!(said.contains("there is no subsystem"), "{said}");
    });
}

#[test]
fn ports_come_and_go() {
    with_target("", "", |here| {
        here.ask("port.add", json!({"port": 4421}));
        assert_eq!(here.ask("port.list", json!({})), json!([4420, 4421]));
        assert!(here.refused("port.add", json!({"port": 4421})).contains("already"));
        assert!(here.refused("port.add", json!({"port": 0})).contains("give 1 to 65535"));
        let base = Base { target: "10.9.0.1:4421".parse().unwrap(), ..here.base.clone() };
        let host = Host::connect(&base, &HostConfig::new(NQN)).unwrap();
        here.ask("port.remove", json!({"port": 4421}));
        here.ask("port.add", json!({"port": 4430}));
        let named = here.refused("port.remove", json!({"port": 4420}));
        let only = "port 4420 is the only one that discovery names to hosts; leave it there";
        assert!(named.contains(only), "{named}");
        let with_state = json!({"port": 4431, "state": "optimized"});
        let said = here.refused("port.add", with_state);
        assert!(said.contains("port 4431 has no state: `[ana]` is not in the file"), "{said}");
        assert_eq!(here.ask("port.list", json!({})), json!([4420, 4430]), "nothing stays of it");
        here.ask("port.remove", json!({"port": 4430}));
        // Whoever is there stays; nobody else comes.
        let mut queue = Host::connect(&here.base, &HostConfig::new(NQN)).unwrap();
        queue.identify(cns::CONTROLLER, 0).unwrap();
        assert!(Host::connect(&base, &HostConfig::new(NQN)).is_err());
        drop(host);
        assert!(here.refused("port.remove", json!({"port": 4420})).contains("the last one"));
    });
}

#[test]
fn ports_are_other_ways_when_somebody_says_so() {
    let head = "ana = { 4420 = \"optimized\", 4421 = \"non-optimized\" }";
    with_services("[4420, 4421]", head, "ana_group = 2", |here| {
        let states = |here: &Here, port: usize| here.ask("ana.list", json!({}))[port].clone();
        assert_eq!(states(here, 1)["port"], 4421);
        assert_eq!(states(here, 1)["states"], json!(vec!["non-optimized"; 8]));
        let host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (_, mr) = host.memory(4096).unwrap();
        let sgl = keyed(&mr.buf(0..4096).unwrap());
        let set = |group: u32| json!({"port": 4420, "state": "inaccessible", "group": group});
        here.ask("ana.set", set(1));
        assert_eq!(status(&mut queue, io::READ, (1, 0), sgl), Status::SUCCESS, "another group");
        here.ask("ana.set", set(2));
        assert_eq!(status(&mut queue, io::READ, (1, 0), sgl), Status::ANA_INACCESSIBLE);
        assert_eq!(states(here, 0)["states"][1], "inaccessible");
        here.ask("ana.set", json!({"port": 4420, "state": "optimized"}));
        assert_eq!(status(&mut queue, io::READ, (1, 0), sgl), Status::SUCCESS);
        assert!(here.refused("ana.set", set(9)).contains("give 1 to 8"));
        let none = json!({"port": 1, "state": "optimized"});
        assert!(here.refused("ana.set", none).contains("`[ana]` in the file"));
        let wrong = json!({"port": 4420, "state": "fast"});
        assert!(here.refused("ana.set", wrong).contains("fast"));
    });
}

/// A host of the discovery service.
fn discovery(here: &Here) -> Host {
    let mut host = Host::open(&here.base, &HostConfig::new(DISCOVERY_NQN)).unwrap();
    host.enable().unwrap();
    host
}

/// Ports that discovery names for the subsystem, with their numbers, as a host reads them.
fn named(host: &mut Host) -> Vec<(u8, u16)> {
    let records = host.log(lid::DISCOVERY, 8, 8).unwrap()[0];
    let log = host.log(lid::DISCOVERY, 1024, usize::from(records) * 1024).unwrap();
    let of_all = log.chunks(1024).filter(|it| it[256..].starts_with(NQN.as_bytes()));
    let port = |it: &[u8]| (it[4], std::str::from_utf8(&it[32..36]).unwrap().parse().unwrap());
    of_all.map(port).collect()
}

#[test]
fn discovery_names_a_port_that_was_added_with_a_state() {
    let head = "ana = { 4420 = \"optimized\", 4421 = \"non-optimized\" }";
    with_services("[4420, 4421]", head, "", |here| {
        let mut asks = discovery(here);
        assert_eq!(named(&mut asks), [(1, 4420), (2, 4421)]);
        here.ask("port.add", json!({"port": 4440}));
        assert_eq!(
            named(&mut asks),
            [(1, 4420), (2, 4421)],
            "one without a state is for whom it may"
        );
        let mut stays = discovery(here);
        stays.set_feature(0x0b, events::DISCOVERY).unwrap();
        stays.admin.submit(Sqe::new(admin::ASYNC_EVENT, 0, Sgl::NONE)).unwrap();
        here.ask("port.add", json!({"port": 4422, "state": "inaccessible"}));
        assert_eq!(stays.admin.wait(LIMIT).unwrap().result.get(), 0x0070_f002);
        assert_eq!(named(&mut asks), [(1, 4420), (2, 4421), (3, 4422)]);
        // Whoever comes by it is told, and stays as it was when the port goes.
        let base = Base { target: "10.9.0.1:4422".parse().unwrap(), ..here.base.clone() };
        let host = Host::connect(&base, &HostConfig::new(NQN)).unwrap();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (_, mr) = host.memory(4096).unwrap();
        let sgl = keyed(&mr.buf(0..4096).unwrap());
        assert_eq!(status(&mut queue, io::READ, (1, 0), sgl), Status::ANA_INACCESSIBLE);
        here.ask("port.remove", json!({"port": 4422}));
        here.ask("port.remove", json!({"port": 4421}));
        assert_eq!(named(&mut asks), [(1, 4420)]);
        assert_eq!(status(&mut queue, io::READ, (1, 0), sgl), Status::ANA_INACCESSIBLE);
        let gone = &here.ask("ana.list", json!({}))[2];
        assert!(gone["port"] == 4422 && gone["id"] == 3 && gone["is_named"] == false, "{gone}");
        // The same port again.
        here.ask("port.add", json!({"port": 4422, "state": "optimized"}));
        assert_eq!(named(&mut asks), [(1, 4420), (3, 4422)]);
        assert_eq!(status(&mut queue, io::READ, (1, 0), sgl), Status::SUCCESS);
        here.ask("port.remove", json!({"port": 4420}));
        assert!(here.refused("port.remove", json!({"port": 4422})).contains("is the only one"));
    });
}

/// Waits until the cores have shown what they counted.
fn until(here: &Here, is_there: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..1000 {
        let stats = here.ask("stats", json!({}));
        if is_there(&stats) {
            return stats;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it is not shown: {}", here.registry.snapshot().text());
}

#[test]
fn what_is_moved_is_counted_by_queue_host_and_namespace() {
    with_target("", "", |here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        until(here, |stats| stats["queues"].as_array().is_some_and(|it| it.len() == 2));
        let (_, mr) = host.memory(4096).unwrap();
        let sgl = keyed(&mr.buf(0..4096).unwrap());
        for _ in 0..20 {
            assert_eq!(status(&mut queue, io::WRITE, (1, 0), sgl), Status::SUCCESS);
            assert_eq!(status(&mut queue, io::READ, (1, 0), sgl), Status::SUCCESS);
        }
        assert_ne!(status(&mut queue, io::READ, (9, 0), sgl), Status::SUCCESS);
        let stats = until(here, |stats| stats["namespaces"][0]["reads"] == 20);
        let stats = if stats["queues"][1]["errors"] == 1 {
            stats
        } else {
            until(here, |stats| stats["queues"][1]["errors"] == 1)
        };
        assert_eq!(stats["queues"][1]["bytes_written"], 20 * 4096);
        assert_eq!(stats["hosts"][0]["reads"], 20);
        let times = &stats["namespaces"][0]["times"];
        let timed = |it: &Value| it["count"].as_u64().unwrap();
        assert!(timed(&times["reads"]) + timed(&times["writes"]) > 0, "{times}");
        let text = here.ask("stats", json!({"format": "prometheus"}));
        let line = format!("nvmf_target_namespace_reads_total{{nqn=\"{NQN}\",nsid=\"1\"}} 20");
        assert!(text.as_str().unwrap().contains(&line), "{text}");
        assert!(here.ask("stats", json!({"format": "text"})).as_str().unwrap().contains(HOST));
        // A host keeps its sums when its queues have ended.
        drop((queue, host));
        let stats = until(here, |stats| stats["queues"].as_array().is_some_and(Vec::is_empty));
        assert_eq!(
            (&stats["hosts"][0]["reads"], &stats["hosts"][0]["queues"]),
            (&json!(20), &json!(0))
        );
    });
}

#[test]
fn the_socket_is_its_users_and_has_limits() {
    with_target("", "", |here| {
        let mode = fs::metadata(&here.socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut client = here.client();
        let answer = client.exchange(b"{\"jsonrpc\"\n").unwrap();
        assert!(String::from_utf8(answer).unwrap().contains("-32700"));
        // The same client goes on.
        assert_eq!(client.ask("target.show", &json!({})).unwrap()["address"], "10.9.0.1");
        let mut long = vec![b' '; MAX_BYTES + 1];
        long.push(b'\n');
        let answer = client.exchange(&long).unwrap();
        assert!(String::from_utf8(answer).unwrap().contains("make it shorter"));
        drop(client);
        let mut clients: Vec<Client> = (0..MAX_CLIENTS).map(|_| here.client()).collect();
        // Each has its place: the one before may be leaving.
        for client in &mut clients {
            while client.ask("port.list", &json!({})).is_err() {
                *client = here.client();
            }
        }
        let mut one_more = here.client();
        // It hears why, also when the target has hung up before it asks.
        std::thread::sleep(Duration::from_millis(300));
        let said = one_more.ask("port.list", &json!({})).unwrap_err().to_string();
        assert_eq!(said, "8 clients are connected; try again later");
        drop(clients);
        let is_stopping = |here: &Here| here.client().ask("stop", &json!({})).is_ok();
        while !is_stopping(here) {
            std::thread::yield_now();
        }
        assert!(here.stop.is_raised());
    });
}

#[test]
fn what_stands_where_the_socket_should_be_is_told() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plain"), "x").unwrap();
    with_target("", "", |here| {
        let client = |path: &Path| Client::connect(path).unwrap_err().to_string();
        assert!(client(&folder.path().join("none")).contains("is the target running"));
        assert!(here.socket.exists());
    });
}

/// The cores that two pollers can have; `None` where there is one.
fn two_cores() -> Option<(usize, usize)> {
    let ids: Vec<usize> = Lcores::detect().unwrap().ids().collect();
    Some((*ids.first()?, *ids.get(1)?))
}

#[test]
fn two_cores_share_the_queues_of_a_host() {
    let Some((one, two)) = two_cores() else {
        println!("skipped: one core");
        return;
    };
    with_target(&format!("cores = [{one}, {two}]"), "", |here| {
        let mut host = here.host();
        let mut queues: Vec<HostQueue> =
            (1..=3).map(|qid| host.open_queue(qid, 32, 0).unwrap()).collect();
        let loads: Vec<u64> = until(here, |stats| {
            let queues = stats["queues"].as_array().map_or(0, Vec::len);
            queues == 4
        })["pollers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["queues"].as_u64().unwrap())
            .collect();
        assert_eq!(loads, [2, 2], "the admin queue and three of I/O");
        let (memory, mr) = host.memory(16 << 10).unwrap();
        let buf = |at: usize| keyed(&mr.buf(at * 4096..(at + 1) * 4096).unwrap());
        // What is written by one core is read by the others.
        for (at, queue) in queues.iter_mut().enumerate() {
            memory.region().copy_in(at * 4096, &[at as u8 + 1; 4096]).unwrap();
            let slba = at as u64 * 8;
            assert_eq!(status(queue, io::WRITE, (1, slba), buf(at)), Status::SUCCESS);
        }
        for at in 0..3 {
            let other = &mut queues[(at + 1) % 3];
            let slba = at as u64 * 8;
            assert_eq!(status(other, io::READ, (1, slba), buf(3)), Status::SUCCESS);
            let read = mr.buf(3 * 4096..4 * 4096).unwrap().to_vec();
            assert_eq!(read, [at as u8 + 1; 4096]);
        }
        // Both see a change at once: when it is answered, it holds.
        let namespace = json!({"nsid": 5, "size": "64KiB"});
        here.ask("namespace.add", json!({"nqn": NQN, "namespace": namespace}));
        for queue in &mut queues {
            assert_eq!(status(queue, io::WRITE, (5, 0), buf(0)), Status::SUCCESS);
        }
        here.ask("namespace.remove", json!({"nqn": NQN, "nsid": 5}));
        for queue in &mut queues {
            let gone = Status::INVALID_NAMESPACE.dnr();
            assert_eq!(status(queue, io::READ, (5, 0), buf(0)), gone);
        }
        // An event reaches the host whichever core has its admin queue, and a controller that is
        // reset ends the queues of both.
        host.set_feature(0x0b, events::NAMESPACE_ATTRIBUTES).unwrap();
        host.admin.submit(Sqe::new(admin::ASYNC_EVENT, 0, Sgl::NONE)).unwrap();
        assert_eq!(host.admin.wait(LIMIT).unwrap().result.get(), 0x0004_0002);
        host.set_property(0x14, 0x0046_0000).unwrap();
        for queue in &mut queues {
            queue.wait_for_end(LIMIT).unwrap();
        }
    });
}

/// The control is somebody's whose request takes its time: cores tell their hosts all the same.
#[test]
fn a_target_is_left_by_its_hosts_while_a_request_is_under_way() {
    let net = format!("operation-stop-{}", std::process::id());
    let far = Port::open_with(&format!("model:net={net}"), PortConfig::default()).unwrap();
    let config = Config::parse("address = \"10.9.0.1/24\"").unwrap();
    let mut running = Running::start(&far, &config, Wait::Yield).unwrap();
    let mut control = running.control.take().unwrap();
    assert_eq!(control.ports().unwrap(), [4420, 8009]);
    running.begin_stop();
    let begun = Instant::now();
    while !running.has_ended() {
        assert!(begun.elapsed() < LIMIT, "the cores go on");
        std::thread::sleep(Duration::from_millis(10));
    }
    // It is told so at once, rather than when a core has not answered for long.
    let asked = Instant::now();
    let said = control.ports().unwrap_err().to_string();
    assert!(said.contains("core 0 has ended: the target stops"), "{said}");
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    drop(control);
    running.stop().unwrap();
    far.close().unwrap();
}
