//! Hosts that have to authenticate themselves, by the wire: those who know the key get in, with
//! each hash and group; others do not, and what they send before is refused. Meanwhile others are
//! served.

mod common;

use std::time::{Duration, Instant};

use common::{BLOCKS, Here, NQN, with_target};
use ferrocx::verbs::Access;
use ferrocx_nvmf_target::auth::{Group, Hash, HostKey, Secret};
use ferrocx_nvmf_target::backend;
use ferrocx_nvmf_target::host::{
    AuthError, Host, HostConfig, HostError, HostKeys, HostQueue, Prover, QueueConfig, auth_command,
    connect_command, keyed, one,
};
use ferrocx_nvmf_target::proto::auth::{Explanation, Message};
use ferrocx_nvmf_target::proto::connect::{ANY_CONTROLLER, AUTH_REQUIRED, ConnectData};
use ferrocx_nvmf_target::proto::log::{ERROR_BYTES, lid};
use ferrocx_nvmf_target::proto::property;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, admin, fabrics, io};
use ferrocx_nvmf_target::proto::status::Status;
use zerocopy::IntoBytes;

/// Made as [`Secret::parse`] says, of the bytes 0 to 31, and of 0 to 47.
const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const OTHER: &str = "DHHC-1:02:\
    AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";
const LIMIT: Duration = Duration::from_secs(60);

fn secret(text: &str) -> Secret {
    Secret::parse(text).unwrap()
}

fn name() -> String {
    HostConfig::new(NQN).hostnqn
}

/// The host has to know a key from now on.
fn ask_for_key(here: &Here, hash: Hash, group: Group) {
    let (secret, controller) = (secret(KEY), Some(secret(OTHER)));
    let key = HostKey { secret, controller, hashes: vec![hash], groups: vec![group] };
    here.change(move |server| server.target_mut().set_key(NQN, &name(), Some(key))).unwrap();
}

fn config(keys: Option<HostKeys>) -> HostConfig {
    HostConfig { keys, ..HostConfig::new(NQN) }
}

fn with_key(text: &str, controller: Option<&str>) -> HostConfig {
    let keys = HostKeys::new(secret(text)).with_null_group();
    config(Some(HostKeys { controller: controller.map(secret), ..keys }))
}

fn write(queue: &mut HostQueue) -> Status {
    try_write(queue).unwrap()
}

fn try_write(queue: &mut HostQueue) -> Result<Status, HostError> {
    let sgl = Sgl::InCapsule { offset: 0, len: 512 };
    queue.submit_with(Sqe::blocks(io::WRITE, 0, 1, (BLOCKS - 1, 1), sgl), &[7; 512])?;
    Ok(queue.wait(LIMIT)?.status())
}

/// The target knows whose queue it is, takes nothing from it, and ends it: maybe before the write
/// comes, or even before the host has heard that it is known.
fn is_sent_away(queue: &mut HostQueue, known: Result<(), HostError>) {
    match known.and_then(|()| try_write(queue)) {
        Ok(status) => assert_ne!(status, Status::SUCCESS),
        Err(error) => assert!(matches!(error, HostError::Ended(_)), "{error}"),
    }
    queue.wait_for_end(LIMIT).unwrap();
}

fn refused(result: Result<Host, HostError>) -> AuthError {
    match result {
        Err(HostError::Auth(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn whoever_knows_the_key_gets_in_with_each_hash_and_group() {
    with_target(|here| {
        let all = [Group::Null].into_iter().chain(Group::FFDHE);
        for (at, group) in all.enumerate() {
            let hash = Hash::ALL[at % 3];
            ask_for_key(here, hash, group);
            let is_mutual = at % 2 == 0;
            let config = with_key(KEY, is_mutual.then_some(OTHER));
            let host = Host::connect(&here.base, &config).unwrap();
            let mut queue = host.open_queue(1, 16, 0).unwrap();
            assert_eq!(write(&mut queue), Status::SUCCESS);
            let proof = here.change(|server| server.target().infos().last().unwrap().proof);
            let proof = proof.unwrap();
            assert_eq!((proof.hash, proof.group, proof.is_mutual), (hash, group, is_mutual));
            drop(queue);
            host.shut_down().unwrap();
            here.until_queues(0);
        }
    });
}

#[test]
fn whoever_does_not_know_it_stays_outside() {
    with_target(|here| {
        ask_for_key(here, Hash::Sha256, Group::Ffdhe2048);
        let connect = |config: &HostConfig| refused(Host::connect(&here.base, config));
        assert_eq!(connect(&config(None)), AuthError::NoKey);
        let failed = AuthError::Refused(Explanation::FAILED);
        assert_eq!(connect(&with_key(OTHER, None)), failed);
        let wrong = AuthError::Wrong(Explanation::FAILED);
        assert_eq!(connect(&with_key(KEY, Some(KEY))), wrong);
        here.until_queues(0);
        assert_eq!(here.change(|server| server.target().controllers()), 0);
        // Another host has no key, and the first one has none any more.
        let other = HostConfig { hostnqn: "nqn.2014-08.a:other".into(), ..config(None) };
        Host::connect(&here.base, &other).unwrap();
        here.change(|server| server.target_mut().set_key(NQN, &name(), None)).unwrap();
        here.host();
    });
}

/// A target that has to show its key does so, or is none for the host: that it asks for nothing is
/// what somebody would do who stands in its place.
#[test]
fn a_target_that_asks_for_nothing_has_to_show_its_key_all_the_same() {
    with_target(|here| {
        let mutual = with_key(KEY, Some(OTHER));
        assert_eq!(refused(Host::open(&here.base, &mutual)), AuthError::NoProof);
        let alone = Host::open(&here.base, &with_key(KEY, None)).unwrap();
        drop(alone);
        // So it is on each I/O queue.
        ask_for_key(here, Hash::Sha256, Group::Ffdhe2048);
        let host = Host::connect(&here.base, &mutual).unwrap();
        let mut queue = host.open_queue(1, 16, 0).unwrap();
        assert_eq!(write(&mut queue), Status::SUCCESS);
        here.change(|server| server.target_mut().set_key(NQN, &name(), None)).unwrap();
        let Err(HostError::Auth(why)) = host.open_queue(2, 16, 0) else { panic!("it was let in") };
        assert_eq!(why, AuthError::NoProof);
        // The null group has to be asked for.
        ask_for_key(here, Hash::Sha256, Group::Null);
        let keys = Some(HostKeys::new(secret(KEY)));
        let expected = AuthError::Refused(Explanation::GROUP);
        assert_eq!(refused(Host::open(&here.base, &config(keys))), expected);
    });
}

/// A queue that was connected and no more, the result of its Connect, and the data of that.
fn connected(here: &Here, qid: u16, cntlid: u16) -> (HostQueue, u64) {
    let config = QueueConfig { qid, entries: 16, ..QueueConfig::default() };
    let mut queue = HostQueue::new(&here.base, &config).unwrap();
    let host = HostConfig::new(NQN);
    let data = ConnectData::new(host.hostid, cntlid, NQN, &host.hostnqn);
    let sgl = Sgl::InCapsule { offset: 0, len: 1024 };
    queue.submit_with(connect_command(qid, 16, 0, sgl), data.as_bytes()).unwrap();
    let cqe = queue.wait(LIMIT).unwrap();
    assert_eq!(cqe.status(), Status::SUCCESS);
    (queue, cqe.result.get())
}

#[test]
fn nothing_is_done_before() {
    with_target(|here| {
        ask_for_key(here, Hash::Sha256, Group::Null);
        let (mut queue, result) = connected(here, 0, ANY_CONTROLLER);
        assert_eq!(result & u64::from(AUTH_REQUIRED), u64::from(AUTH_REQUIRED));
        for sqe in [
            Sqe::new(admin::IDENTIFY, 0, Sgl::NONE),
            Sqe::new(admin::ASYNC_EVENT, 0, Sgl::NONE),
            Sqe::new(admin::KEEP_ALIVE, 0, Sgl::NONE),
            Sqe { cdw11: property::CC.into(), ..Sqe::fabrics(fabrics::PROPERTY_SET, 0, Sgl::NONE) },
            Sqe::fabrics(fabrics::PROPERTY_GET, 0, Sgl::NONE),
        ] {
            let status = one(&mut queue, sqe).unwrap().status();
            assert_eq!(status, Status::AUTH_REQUIRED.dnr(), "{sqe:?}");
        }
        // Commands of authentication with wrong fields.
        let fine = auth_command(fabrics::AUTH_RECEIVE, 4096, Sgl::NONE);
        for (sqe, expected) in [
            (Sqe { cdw10: 0.into(), ..fine }, Status::INVALID_FIELD),
            (Sqe { cdw11: 0.into(), ..fine }, Status::INVALID_FIELD),
            (Sqe { cdw11: 4097.into(), ..fine }, Status::INVALID_FIELD),
            (fine, Status::DATA_LENGTH),
            (auth_command(fabrics::AUTH_SEND, 4096, Sgl::NONE), Status::DATA_LENGTH),
        ] {
            assert_eq!(one(&mut queue, sqe).unwrap().status(), expected.dnr(), "{sqe:?}");
        }
        // An I/O queue of a host that is inside waits for its own.
        let mut host = Host::connect(&here.base, &with_key(KEY, None)).unwrap();
        let (mut queue, result) = connected(here, 1, host.cntlid);
        assert_eq!(result & u64::from(AUTH_REQUIRED), u64::from(AUTH_REQUIRED));
        assert_eq!(write(&mut queue), Status::AUTH_REQUIRED.dnr());
        let report = Sqe::new(io::RESERVATION_REPORT, 0, Sgl::NONE);
        assert_eq!(one(&mut queue, report).unwrap().status(), Status::AUTH_REQUIRED.dnr());
        // Whoever it is, the controller's log has nothing of it.
        let errors = host.log(lid::ERRORS, 0, ERROR_BYTES).unwrap();
        assert_eq!(errors, [0; ERROR_BYTES]);
        // A stranger's queue has no number that its host could miss.
        let mut same = host.open_queue(1, 16, 0).unwrap();
        assert_eq!(write(&mut same), Status::SUCCESS);
        // A stranger's failure on it is its own end, and not that of the controller.
        queue.auth_send(&Message::Success2.encode(1)).unwrap();
        queue.wait_for_end(LIMIT).unwrap();
        assert_eq!(write(&mut same), Status::SUCCESS);
    });
}

/// Two queues of a number wait for their host to show who it is: the first that does has it.
#[test]
fn a_number_is_that_of_the_queue_whose_host_is_known_first() {
    with_target(|here| {
        ask_for_key(here, Hash::Sha256, Group::Null);
        let mut host = Host::connect(&here.base, &with_key(KEY, None)).unwrap();
        let (mut first, _) = connected(here, 1, host.cntlid);
        let (mut second, _) = connected(here, 1, host.cntlid);
        host.authenticate_queue(&mut second).unwrap();
        let known = host.authenticate_queue(&mut first);
        is_sent_away(&mut first, known);
        assert_eq!(write(&mut second), Status::SUCCESS);
        let io_queues = here.change(|server| server.target().infos().last().unwrap().io_queues);
        assert_eq!(io_queues, 1);
        // A number that the host has not been granted is none, even if it was when it connected.
        let (mut third, _) = connected(here, 2, host.cntlid);
        drop(second);
        here.until_queues(2);
        host.set_feature(0x07, 0).unwrap();
        let known = host.authenticate_queue(&mut third);
        is_sent_away(&mut third, known);
    });
}

/// A slow host sends nothing while it computes; its keep-alive time begins when it is inside.
#[test]
fn a_host_may_be_silent_while_it_computes() {
    with_target(|here| {
        ask_for_key(here, Hash::Sha256, Group::Ffdhe2048);
        let config = QueueConfig { entries: 16, ..QueueConfig::default() };
        let mut queue = HostQueue::new(&here.base, &config).unwrap();
        let data = ConnectData::new([1; 16], ANY_CONTROLLER, NQN, &name());
        let sqe = connect_command(0, 16, 1000, Sgl::InCapsule { offset: 0, len: 1024 });
        queue.submit_with(sqe, data.as_bytes()).unwrap();
        assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
        std::thread::sleep(Duration::from_millis(2500));
        let keys = HostKeys::new(secret(KEY));
        let memory = backend::memory(&here.base.context, 4096, here.base.page).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = here.base.pd.reg_mr(&memory, 0..4096, access).unwrap();
        queue.authenticate(Prover::new(&keys, (&name(), NQN), 1), &mr).unwrap();
        // From now on silence counts.
        let why = queue.wait_for_end(LIMIT).unwrap();
        println!("{why}");
        here.until_queues(0);
    });
}

#[test]
fn it_is_done_again_while_commands_go_on() {
    with_target(|here| {
        ask_for_key(here, Hash::Sha512, Group::Ffdhe3072);
        let mut host = Host::connect(&here.base, &with_key(KEY, Some(OTHER))).unwrap();
        let mut queue = host.open_queue(1, 16, 0).unwrap();
        std::thread::sleep(Duration::from_secs(2));
        host.authenticate().unwrap();
        // At once is too soon, and does no harm.
        let soon = host.authenticate().unwrap_err();
        assert!(matches!(soon, HostError::Refused { status: Status::INTERRUPTED, .. }), "{soon}");
        host.authenticate_queue(&mut queue).unwrap();
        assert_eq!(write(&mut queue), Status::SUCCESS);
        // With another key since, the host fails, and is sent away.
        let key = HostKey {
            secret: secret(OTHER),
            controller: None,
            hashes: Hash::ALL.to_vec(),
            groups: vec![Group::Null],
        };
        here.change(move |server| server.target_mut().set_key(NQN, &name(), Some(key))).unwrap();
        std::thread::sleep(Duration::from_secs(2));
        let failed = host.authenticate().unwrap_err();
        let expected = AuthError::Refused(Explanation::FAILED);
        assert!(matches!(failed, HostError::Auth(why) if why == expected), "{failed}");
        queue.wait_for_end(LIMIT).unwrap();
        here.until_queues(0);
    });
}

/// Strangers ask for the largest powers and go; a host at work does not wait for those.
#[test]
fn others_do_not_wait_for_large_numbers() {
    with_target(|here| {
        let mut host = here.host();
        let mut queue = host.open_queue(1, 16, 0).unwrap();
        ask_for_key(here, Hash::Sha512, Group::Ffdhe8192);
        let keys = HostKeys::new(secret(KEY));
        let negotiate = Prover::new(&keys, (&name(), NQN), 1).negotiate();
        let mut strangers: Vec<HostQueue> =
            (0..6).map(|_| connected(here, 0, ANY_CONTROLLER).0).collect();
        let (_memory, mr) = host.memory(4096).unwrap();
        let buf = mr.buf(0..4096).unwrap();
        for stranger in &mut strangers {
            stranger.auth_send(&negotiate).unwrap();
            let fetch = auth_command(fabrics::AUTH_RECEIVE, 4096, keyed(&buf));
            stranger.submit(fetch).unwrap();
        }
        let start = Instant::now();
        let mut longest = Duration::ZERO;
        for _ in 0..200 {
            let one = Instant::now();
            assert_eq!(write(&mut queue), Status::SUCCESS);
            longest = longest.max(one.elapsed());
        }
        println!("200 writes in {:?}, the longest {longest:?}", start.elapsed());
        // All are answered in the end, or their queues end.
        drop(strangers.pop());
        for stranger in &mut strangers {
            assert_eq!(stranger.wait(LIMIT).unwrap().status(), Status::SUCCESS);
        }
        host.property(property::CSTS).unwrap();
    });
}
