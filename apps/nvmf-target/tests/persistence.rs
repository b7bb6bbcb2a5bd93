//! Reservations that outlive the target: over the wire, target after target on one folder, and
//! without it, where each step of a change is the test's.

mod common;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use common::NQN;
use ferrocx::verbs::GidConfig;
use ferrocx::verbs::cm::{CmConfig, ConnectionManager};
use ferrocx::{PageSize, Port, PortConfig};
use ferrocx_app_common::wait::Wait;
use ferrocx_nvmf_target::config::Config;
use ferrocx_nvmf_target::controller::reservation::{Reservation, Save};
use ferrocx_nvmf_target::controller::{
    Action, Held, Namespace, Queue, Settings, Subsystem, Target,
};
use ferrocx_nvmf_target::host::{Base, Host, HostConfig, HostQueue, connect_command, keyed, one};
use ferrocx_nvmf_target::proto::cm::Request;
use ferrocx_nvmf_target::proto::connect::ConnectData;
use ferrocx_nvmf_target::proto::identify::{self, cns};
use ferrocx_nvmf_target::proto::property;
use ferrocx_nvmf_target::proto::sgl::{Keyed, Sgl};
use ferrocx_nvmf_target::proto::sqe::{Cqe, Sqe, admin, fabrics, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::run::Running;
use zerocopy::IntoBytes;

const LIMIT: Duration = Duration::from_secs(20);
const CONFLICT: Status = Status::RESERVATION_CONFLICT.dnr();
const NAME: &str = "f0e0d0c0-0000-4000-8000-0000000000aa";
/// Write exclusive, registrants only.
const KIND: u32 = 3 << 8;
/// CPTPL: it outlives the target, or does not any more.
const KEPT: u32 = 3 << 30;
const NOT_KEPT: u32 = 2 << 30;
/// Reservation Persistence.
const FEATURE: u8 = 0x83;

/// Runs a test against a target of RAM that keeps reservations in a folder, if one is given.
fn with_target(folder: Option<&Path>, test: impl FnOnce(&Base)) {
    static NUMBER: AtomicU16 = AtomicU16::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let net = format!("persistence{}-{number}", std::process::id());
    let open = |seed: u8| {
        let name = format!("model:net={net},seed={seed}");
        Port::open_with(&name, PortConfig::default()).unwrap()
    };
    let (far, near) = (open(1), open(2));
    let mut running = Running::start(&far, &config(folder), Wait::Yield).unwrap();
    let control = running.control.take();
    let context = near.rdma().unwrap();
    let address = [10, 9, 0, 2].into();
    context.add_gid(GidConfig { address, prefix_len: 24, gateway: None, vlan: None }).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cm = ConnectionManager::open(&context, &CmConfig::default()).unwrap();
    test(&Base {
        context,
        pd,
        cm,
        target: "10.9.0.1:4420".parse().unwrap(),
        page: PageSize::default(),
    });
    drop(control);
    running.stop().unwrap();
    drop(near);
    far.close().unwrap();
}

fn config(folder: Option<&Path>) -> Config {
    let folder = folder.map(|it| format!("reservations = \"{}\"\n", it.display()));
    let text = format!(
        "address = \"10.9.0.1/24\"\nservices = [4420]\n{}[[subsystem]]\nnqn = \"{NQN}\"\n\
         allow_any_host = true\n[[subsystem.namespace]]\nsize = \"1MiB\"\nuuid = \"{NAME}\"\n",
        folder.unwrap_or_default()
    );
    Config::parse(&text).unwrap()
}

/// A host with its own identifier, and a queue of it.
struct Client {
    host: Host,
    queue: HostQueue,
    block: Sgl,
    page: ferrocx::verbs::Mr,
}

impl Client {
    fn new(base: &Base, id: u8) -> Self {
        let hostnqn = format!("nqn.2014-08.org.nvmexpress:uuid:{id}");
        let config = HostConfig { hostnqn, hostid: [id; 16], ..HostConfig::new(NQN) };
        let host = Host::connect(base, &config).unwrap();
        let queue = host.open_queue(1, 128, 0).unwrap();
        let (_, page) = host.memory(4096).unwrap();
        let block = keyed(&page.buf(0..512).unwrap());
        Self { host, queue, block, page }
    }

    fn submit(&mut self, opcode: u8, cdw10: u32, keys: &[u64]) {
        let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        let sgl = Sgl::InCapsule { offset: 0, len: data.len() as u32 };
        let sqe = Sqe { nsid: 1.into(), cdw10: cdw10.into(), ..Sqe::new(opcode, 0, sgl) };
        self.queue.submit_with(sqe, &data).unwrap();
    }

    fn reserve(&mut self, opcode: u8, cdw10: u32, keys: &[u64]) -> Status {
        self.submit(opcode, cdw10, keys);
        self.queue.wait(LIMIT).unwrap().status()
    }

    fn register(&mut self, cdw10: u32, keys: [u64; 2]) -> Status {
        self.reserve(io::RESERVATION_REGISTER, cdw10, &keys)
    }

    /// The first two entries of the report.
    fn report(&mut self) -> Vec<u8> {
        let to = self.page.buf(1024..1024 + 192).unwrap();
        let sqe = Sqe {
            nsid: 1.into(),
            cdw10: (192 / 4 - 1).into(),
            cdw11: 1.into(),
            ..Sqe::new(io::RESERVATION_REPORT, 0, keyed(&to))
        };
        assert_eq!(one(&mut self.queue, sqe).unwrap().status(), Status::SUCCESS);
        to.to_vec()
    }

    fn write(&mut self) -> Status {
        let sqe = Sqe::blocks(io::WRITE, 0, 1, (0, 1), self.block);
        one(&mut self.queue, sqe).unwrap().status()
    }

    /// Set or Get Features of its persistence: how it ended, and what was got.
    fn feature(&mut self, opcode: u8, nsid: u32, value: u32) -> (Status, u64) {
        let sqe = Sqe {
            nsid: nsid.into(),
            cdw10: u32::from(FEATURE).into(),
            cdw11: value.into(),
            ..Sqe::new(opcode, 0, Sgl::NONE)
        };
        let cqe = one(&mut self.host.admin, sqe).unwrap();
        (cqe.status(), cqe.result.get())
    }
}

/// What a folder has now: as if the power failed.
fn copy_of(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

#[test]
fn what_a_host_was_told_is_there_when_the_power_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut copy = None;
    with_target(Some(folder.path()), |base| {
        let (mut mine, mut his) = (Client::new(base, 1), Client::new(base, 2));
        assert_eq!(mine.host.identify(cns::NAMESPACE, 1).unwrap()[31], 0xff);
        assert_eq!(mine.host.identify(cns::ANY_NAMESPACE, 1).unwrap()[2], 0xff);
        assert_eq!(mine.feature(admin::GET_FEATURES, 1, 0), (Status::SUCCESS, 0));
        assert_eq!(mine.register(KEPT, [0, 0xa1]), Status::SUCCESS);
        assert_eq!(his.feature(admin::GET_FEATURES, 1, 0), (Status::SUCCESS, 1));
        assert_eq!(mine.reserve(io::RESERVATION_ACQUIRE, KIND, &[0xa1, 0]), Status::SUCCESS);
        assert_eq!(his.write(), CONFLICT);
        copy = Some(copy_of(folder.path()));
        // What comes later is not there.
        assert_eq!(his.register(0, [0, 0xb2]), Status::SUCCESS);
    });
    let copy = copy.unwrap();
    let mut last = None;
    with_target(Some(copy.path()), |base| {
        let (mut mine, mut his) = (Client::new(base, 1), Client::new(base, 2));
        let page = mine.report();
        // One registration, the kind, one registrant, and that it is kept.
        assert_eq!(page[..10], [1, 0, 0, 0, 3, 1, 0, 0, 0, 1]);
        assert_eq!((page[66], page[72], &page[80..96]), (1, 0xa1, &[1; 16][..]));
        assert_eq!((his.write(), mine.write()), (CONFLICT, Status::SUCCESS));
        // Preempt and Abort: kept, then waited for.
        assert_eq!(his.register(0, [0, 0xb2]), Status::SUCCESS);
        let preempt =
            |his: &mut Client| his.reserve(io::RESERVATION_ACQUIRE, 1 << 8 | 2, &[0xb2, 0xa1]);
        assert_eq!(preempt(&mut his), Status::SUCCESS);
        assert_eq!(mine.write(), CONFLICT);
        last = Some(copy_of(copy.path()));
        // Nobody is to know of it after the next power failure.
        assert_eq!(his.feature(admin::SET_FEATURES, 1, 0), (Status::SUCCESS, 0));
        assert_eq!(mine.write(), CONFLICT, "it is there, all the same");
    });
    assert!(!copy.path().join(NAME).exists());
    let last = last.unwrap();
    with_target(Some(last.path()), |base| {
        let (mut mine, mut his) = (Client::new(base, 1), Client::new(base, 2));
        let page = mine.report();
        assert_eq!((page[4], page[5], page[72]), (1, 1, 0xb2));
        assert_eq!((mine.write(), his.write()), (CONFLICT, Status::SUCCESS));
        // By a registration that is not to be kept: nor is the other's any more.
        assert_eq!(mine.register(NOT_KEPT, [0, 1]), Status::SUCCESS);
        assert!(!last.path().join(NAME).exists());
        // Features that name none, or all.
        let wrong = |client: &mut Client, nsid| client.feature(admin::SET_FEATURES, nsid, 1).0;
        assert_eq!(wrong(&mut mine, 9), Status::INVALID_NAMESPACE.dnr());
        assert_eq!(wrong(&mut mine, u32::MAX), Status::INVALID_FIELD.dnr());
    });
    with_target(Some(last.path()), |base| {
        let mut his = Client::new(base, 3);
        assert_eq!(his.report(), [0; 192]);
        assert_eq!(his.write(), Status::SUCCESS);
    });
}

#[test]
fn without_a_folder_nothing_is_kept_and_hosts_are_told_so() {
    with_target(None, |base| {
        let mut mine = Client::new(base, 1);
        assert_eq!(mine.host.identify(cns::NAMESPACE, 1).unwrap()[31], 0xfe);
        assert_eq!(mine.register(KEPT, [0, 1]), Status::INVALID_FIELD.dnr());
        assert_eq!(mine.feature(admin::SET_FEATURES, 1, 1).0, Status::INVALID_FIELD.dnr());
        assert_eq!(mine.register(NOT_KEPT, [0, 1]), Status::SUCCESS);
        assert_eq!(mine.report()[9], 0);
    });
}

#[test]
fn a_change_that_cannot_be_kept_is_none() {
    let folder = tempfile::tempdir().unwrap();
    with_target(Some(folder.path()), |base| {
        let mut mine = Client::new(base, 1);
        let block = folder.path().join(format!("{NAME}.new"));
        fs::create_dir(&block).unwrap();
        assert_eq!(mine.register(KEPT, [0, 1]), Status::INTERNAL);
        assert_eq!(mine.report()[..10], [0; 10]);
        fs::remove_dir(&block).unwrap();
        assert_eq!(mine.register(KEPT, [0, 1]), Status::SUCCESS);
        // Those of one host, all at once: in turn, and none is lost.
        for key in 1..100 {
            mine.submit(io::RESERVATION_REGISTER, 2 | 1 << 3, &[0, key]);
        }
        let statuses: Vec<Status> =
            (1..100).map(|_| mine.queue.wait(LIMIT).unwrap().status()).collect();
        let count = |wanted| statuses.iter().filter(|it| **it == wanted).count();
        let (done, sent_back) = (count(Status::SUCCESS), count(Status::INTERRUPTED));
        assert_eq!(done + sent_back, 99, "{statuses:?}");
        assert!(done > 32, "{done} were carried out");
        let page = mine.report();
        let text = fs::read_to_string(folder.path().join(NAME)).unwrap();
        let uuid = uuid::Uuid::parse_str(NAME).unwrap().into_bytes();
        let kept = Reservation::from_text(&text, uuid).unwrap();
        assert_eq!(page[..4], kept.generation().to_le_bytes());
        assert_eq!(page[72..80], kept.registrants()[0].key.to_le_bytes());
    });
}

#[test]
fn a_target_does_not_start_on_what_it_cannot_read() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(NAME), "{\"ptpl_activated\":true}").unwrap();
    let name = format!("model:net=unread{},seed=1", std::process::id());
    let port = Port::open_with(&name, PortConfig::default()).unwrap();
    let start = || Running::start(&port, &config(Some(folder.path())), Wait::Yield);
    let why = format!("{:#}", start().unwrap_err());
    let file = folder.path().join(NAME);
    assert_eq!(
        why,
        format!(
            "namespace 1 of {NQN}: its reservation in {}: it is no reservation of ours; take it \
             away, and hosts register again",
            file.display()
        )
    );
    fs::remove_file(file).unwrap();
    start().unwrap().stop().unwrap();
    port.close().unwrap();
}

/// A target without a wire, and queues of hosts.
struct Bare {
    target: Target,
    next: u32,
}

/// A host's I/O queue, and the admin queue behind it.
struct BareHost {
    _admin: Queue,
    io: Queue,
}

fn answer(action: Action) -> Cqe {
    match action {
        Action::Answer(cqe) => cqe,
        other => panic!("{other:?}"),
    }
}

impl Bare {
    fn new() -> Self {
        let mut target = Target::new(Settings::default());
        target.keep_reservations();
        target.add_subsystem(Subsystem::new(NQN, "S")).unwrap();
        let mut it = Self { target, next: 0 };
        it.offer(1);
        it
    }

    fn offer(&mut self, uuid: u8) {
        let shape = identify::Namespace {
            blocks: 1000,
            block_shift: 9,
            uuid: [uuid; 16],
            is_read_only: false,
            deallocates: false,
        };
        let namespace = Namespace { nsid: 1, shape, backend: 0, ana_group: 1 };
        self.target.put_namespace(NQN, namespace).unwrap();
    }

    fn queue(&mut self, qid: u16) -> Queue {
        self.next += 1;
        let (hrqsize, hsqsize) = (128.into(), 127.into());
        let request = Request { qid: qid.into(), hrqsize, hsqsize, ..Request::default() };
        let local: SocketAddr = "10.0.0.1:4420".parse().unwrap();
        Queue::new(self.next, &request, local, [10, 0, 0, 2].into())
    }

    fn ask(&mut self, queue: &mut Queue, sqe: &Sqe, data: &[u8]) -> Action {
        self.target.command(queue, 0, sqe, data, &mut Vec::new())
    }

    fn host(&mut self, id: u8) -> BareHost {
        let hostnqn = format!("nqn.2014-08.org.nvmexpress:uuid:{id}");
        let (mut admin, mut io) = (self.queue(0), self.queue(1));
        let keyed = Sgl::Keyed(Keyed { addr: 0, len: 1024, rkey: 1, inv: false });
        let mut cntlid = 0xffff;
        for (qid, entries, queue) in [(0, 32, &mut admin), (1, 128, &mut io)] {
            let data = ConnectData::new([id; 16], cntlid, NQN, &hostnqn);
            let sqe = connect_command(qid, entries, 0, keyed);
            assert!(matches!(self.ask(queue, &sqe, &[]), Action::Fetch { .. }));
            let cqe = answer(self.target.fetched(queue, 0, &sqe, data.as_bytes()));
            assert_eq!(cqe.status(), Status::SUCCESS);
            cntlid = cqe.result.get() as u16;
            if qid == 0 {
                let on = Sqe {
                    cdw11: property::CC.into(),
                    cdw12: 0x0046_0001.into(),
                    ..Sqe::fabrics(fabrics::PROPERTY_SET, 0, Sgl::NONE)
                };
                assert!(answer(self.ask(queue, &on, &[])).status().is_success());
                let queues = Sqe { cdw10: 7.into(), ..Sqe::new(admin::SET_FEATURES, 0, Sgl::NONE) };
                assert!(answer(self.ask(queue, &queues, &[])).status().is_success());
            }
        }
        BareHost { _admin: admin, io }
    }

    /// Registers a host, under the name of a slot.
    fn register(&mut self, host: &mut BareHost, slot: u16, cdw10: u32, key: u64) -> Action {
        let data = [[0; 8], key.to_le_bytes()].concat();
        let sgl = Sgl::InCapsule { offset: 0, len: 16 };
        let sqe = Sqe {
            cid: slot.into(),
            nsid: 1.into(),
            cdw10: cdw10.into(),
            ..Sqe::new(io::RESERVATION_REGISTER, 0, sgl)
        };
        self.target.command(&mut host.io, slot, &sqe, &data, &mut Vec::new())
    }

    fn reservation(&self) -> Reservation {
        let subsystem = self.target.subsystem(NQN).unwrap();
        subsystem.reservation(1).cloned().unwrap_or_default()
    }

    fn save(&mut self) -> Save {
        let save = self.target.next_save().unwrap();
        assert_eq!(self.target.next_save(), None, "one at a time");
        save
    }

    fn held(&mut self) -> Option<Held> {
        self.target.next_held(|_| true)
    }
}

#[test]
fn a_change_is_made_when_it_is_on_disk_and_others_wait_for_it() {
    let mut it = Bare::new();
    let (mut mine, mut his) = (it.host(1), it.host(2));
    assert!(matches!(it.register(&mut mine, 5, KEPT, 0xa1), Action::Hold));
    assert!(matches!(it.register(&mut his, 6, 0, 0xb2), Action::Hold));
    let save = it.save();
    assert_eq!((save.uuid, it.reservation()), ([1; 16], Reservation::default()));
    assert_eq!((it.held(), it.target.next_again(|_| true)), (None, None));
    it.target.saved(save.number + 1, true);
    assert_eq!(it.held(), None, "another's end");
    it.target.saved(save.number, true);
    let held = it.held().unwrap();
    assert_eq!((held.queue, held.slot, held.cid), (mine.io.id, 5, 5));
    assert_eq!(held.status, Status::SUCCESS);
    let after = it.reservation();
    assert_eq!(Reservation::from_text(&save.text.unwrap(), [1; 16]), Ok(after));
    // The other is begun again, and is kept in its turn.
    assert_eq!(it.target.next_again(|_| true), Some((his.io.id, 6)));
    assert!(matches!(it.register(&mut his, 6, 0, 0xb2), Action::Hold));
    let save = it.save();
    it.target.saved(save.number, false);
    assert_eq!(it.held().map(|held| held.status), Some(Status::INTERNAL));
    assert_eq!(it.reservation().registrants().len(), 1);
    // What changes nothing is answered at once.
    let same = it.register(&mut mine, 1, 0, 0xa1);
    assert_eq!(answer(same).status(), Status::SUCCESS);
    assert_eq!(it.target.next_save(), None);
}

#[test]
fn a_queue_that_ends_leaves_its_change_and_nobody_its_answer() {
    let mut it = Bare::new();
    let (mut mine, mut his) = (it.host(1), it.host(2));
    assert!(matches!(it.register(&mut mine, 5, KEPT, 0xa1), Action::Hold));
    assert!(matches!(it.register(&mut his, 6, 0, 0xb2), Action::Hold));
    it.target.closed(&mut mine.io);
    it.target.closed(&mut his.io);
    let save = it.save();
    it.target.saved(save.number, true);
    assert_eq!((it.held(), it.target.next_again(|_| true)), (None, None));
    assert_eq!(it.reservation().registrants().len(), 1, "what is on disk is so");
}

#[test]
fn a_change_of_a_namespace_that_has_gone_is_none_of_the_next() {
    let mut it = Bare::new();
    let mut mine = it.host(1);
    assert!(matches!(it.register(&mut mine, 5, KEPT, 0xa1), Action::Hold));
    let save = it.save();
    it.target.remove_namespace(NQN, 1).unwrap();
    it.offer(9);
    it.target.saved(save.number, true);
    assert_eq!(it.held().map(|held| held.status), Some(Status::INVALID_NAMESPACE.dnr()));
    assert_eq!(it.reservation(), Reservation::default());
}

#[test]
fn no_more_commands_wait_than_there_is_room_for() {
    let mut it = Bare::new();
    let mut mine = it.host(1);
    assert!(matches!(it.register(&mut mine, 0, KEPT, 1), Action::Hold));
    for slot in 1..=32 {
        assert!(matches!(it.register(&mut mine, slot, 2 | 1 << 3, 2), Action::Hold));
    }
    let status = answer(it.register(&mut mine, 33, 2 | 1 << 3, 2)).status();
    assert_eq!(status, Status::INTERRUPTED);
    let save = it.save();
    it.target.saved(save.number, true);
    let again = std::iter::from_fn(|| it.target.next_again(|_| true)).count();
    assert_eq!(again, 32);
}
