//! Any commands of any hosts at the target without its wire: nothing panics, no command reaches
//! past its namespace or past what came in its capsule, and nothing is left behind.
//! `FERROCX_NVMF_STEPS` says how many; the seed is printed.

use std::net::SocketAddr;
use std::time::Duration;

use ferrocx::model::wire::SplitMix64;
use ferrocx_nvmf_target::auth::{Group, Hash, HostKey, Secret};
use ferrocx_nvmf_target::controller::io::Data;
use ferrocx_nvmf_target::controller::reservation::{Reservation, Save};
use ferrocx_nvmf_target::controller::{
    Action, Namespace, Queue, Role, Settings, Subsystem, Target,
};
use ferrocx_nvmf_target::host::{auth_command, connect_command};
use ferrocx_nvmf_target::proto::auth::{Ids, Message};
use ferrocx_nvmf_target::proto::cm::Request;
use ferrocx_nvmf_target::proto::connect::{ConnectData, DISCOVERY_NQN};
use ferrocx_nvmf_target::proto::identify;
use ferrocx_nvmf_target::proto::property;
use ferrocx_nvmf_target::proto::sgl::{Keyed, Listed, Sgl};
use ferrocx_nvmf_target::proto::sqe::{Sqe, admin, fabrics, io};
use zerocopy::{FromBytes, IntoBytes};

const NQN: &str = "nqn.2014-08.a:s";
const HOST: &str = "nqn.2014-08.a:h";
/// A host that has to show a key, which nobody here has.
const KEYED: &str = "nqn.2014-08.a:k";
const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const BLOCKS: u64 = 1000;
const CONTROLLERS: u16 = 4;

struct Random(SplitMix64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0.next_u64() % limit
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.0.next_u64() as u8).collect()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

fn namespace(nsid: u32) -> Namespace {
    let shape = identify::Namespace {
        blocks: BLOCKS,
        block_shift: 9,
        uuid: [1; 16],
        is_read_only: nsid == 2,
        deallocates: false,
    };
    Namespace { nsid, shape, backend: 0, ana_group: nsid }
}

fn request(random: &mut Random) -> Option<Request> {
    let (hrqsize, hsqsize) = (32.into(), 31.into());
    let qid = (random.below(4) as u16).into();
    let usual = Request { qid, hrqsize, hsqsize, ..Request::default() };
    let bytes = match random.below(4) {
        0 => random.bytes(56),
        _ => usual.as_bytes().to_vec(),
    };
    Request::parse(&bytes, 128, random.below(3) as u8).ok()
}

/// A command whose fields are likely, or any.
fn sqe(random: &mut Random) -> Sqe {
    let mut bytes: [u8; 64] = std::array::from_fn(|_| random.0.next_u64() as u8);
    if random.below(8) > 0 {
        bytes[0] =
            random.pick(&[0, 1, 2, 5, 6, 8, 9, 0x0a, 0x0c, 0x0d, 0x0e, 0x11, 0x15, 0x18, 0x7f]);
        bytes[1] = Sqe::SGL;
        bytes[4..8].copy_from_slice(&(random.below(5) as u32).to_le_bytes());
        bytes[39] = random.pick(&[0x01, 0x31, 0x40, 0x4f]);
    }
    if random.below(2) == 0 {
        // Small numbers: lengths that fit, properties that exist, features that are known.
        for at in [33, 34, 35, 41, 42, 43, 44, 45, 46, 47, 49, 50, 51, 52, 53, 54, 55] {
            bytes[at] = 0;
        }
        let value = random.pick(&[0, 1, 2, 4, 7, 0x0b, 0x0f, 0x14, 0x1c, 0x70]);
        bytes[random.pick(&[40, 44, 48])] = value;
    }
    if random.below(4) == 0 {
        bytes[32..35].copy_from_slice(&[0, 0x10, 0]);
    }
    Sqe::read_from_bytes(&bytes).expect("64 bytes")
}

/// A command of authentication with a message that is likely, or any.
fn authentication(random: &mut Random) -> (Sqe, Vec<u8>) {
    if random.below(2) == 0 {
        let keyed = Keyed { addr: 0, len: 4096, rkey: 1, inv: false };
        return (auth_command(fabrics::AUTH_RECEIVE, 4096, Sgl::Keyed(keyed)), Vec::new());
    }
    let ids = Ids { hashes: [1].into_iter().collect(), groups: [0].into_iter().collect() };
    let (answer, value) = ([random.below(256) as u8; 32], [1; 32]);
    let challenge = (random.below(2) == 0).then_some((&value[..], 1));
    let message = match random.below(6) {
        0 => Message::Success2.encode(1),
        1 => random.bytes(100),
        2 => Message::Reply { answer: &answer, challenge, public: &[] }.encode(1),
        _ => Message::Negotiate { secure_channel: 0, ids: Some(ids) }.encode(1),
    };
    let sgl = Sgl::InCapsule { offset: 0, len: message.len() as u32 };
    (auth_command(fabrics::AUTH_SEND, message.len(), sgl), message)
}

/// Whatever a list says, its blocks have the bytes of the command together, or it is refused.
fn listed(bytes: &[u8], len: u64) {
    if let Ok(listed) = Listed::exactly(bytes, len) {
        assert_eq!(listed.iter().map(|(_, it)| u64::from(it.len)).sum::<u64>(), len);
    }
    if let Ok(listed) = Listed::at_least(bytes, 4096) {
        assert_eq!(listed.iter().map(|(_, it)| it.len).sum::<u32>(), 4096);
    }
}

fn command(random: &mut Random, target: &mut Target, queue: &mut Queue, out: &mut Vec<u8>) {
    let mut sqe = sqe(random);
    let mut data = random.bytes(64);
    if random.below(4) == 0 {
        let nqn = random.pick(&[NQN, DISCOVERY_NQN]);
        let cntlid = if queue.qid == 0 { 0xffff } else { random.below(6) as u16 };
        data =
            ConnectData::new([1; 16], cntlid, nqn, random.pick(&[HOST, KEYED])).as_bytes().to_vec();
        let sgl = Sgl::InCapsule { offset: 0, len: 1024 };
        sqe = connect_command(queue.qid, 32, random.below(5000) as u32, sgl);
    } else if random.below(6) == 0 {
        (sqe, data) = authentication(random);
    } else if random.below(8) == 0 {
        let cc = random.pick(&[0x4000, 0x0046_0001, 0x0046_4001, 0x0046_0000]);
        let (cdw11, cdw12) = (property::CC.into(), cc.into());
        sqe = Sqe { cdw11, cdw12, ..Sqe::fabrics(fabrics::PROPERTY_SET, 0, Sgl::NONE) };
    }
    queue.fetched();
    if matches!(queue.role, Role::Io(_)) && sqe.opcode != 0x7f && !io::is_reservation(sqe.opcode) {
        if let Ok(command) = target.io(queue, &sqe, data.len()) {
            assert!(target.info(queue).is_some_and(|info| info.hostnqn != KEYED));
            assert!(command.offset + command.len <= BLOCKS << 9);
            if let Data::Capsule { start, len } = command.data {
                assert!(start + len <= data.len());
            }
            if let Data::List(list) = command.data {
                listed(&data[list.start..list.start + list.len_bytes()], command.len);
            }
        }
        return;
    }
    let slot = random.below(32) as u16;
    match target.command(queue, slot, &sqe, &data, out) {
        Action::Answer(cqe) => assert_eq!(cqe.cid, sqe.cid),
        Action::Bring { cqe, len, to } => {
            assert_eq!((cqe.cid, len, out.len()), (sqe.cid, to.len, len as usize));
            assert!(len <= 1 << 20);
        }
        Action::Fetch { from, len } => {
            assert_eq!(from.len, len);
            let most = if sqe.opcode == admin::FABRICS { 4096 } else { 16 };
            assert!(len <= most, "{len}");
            let bytes = random.bytes(u64::from(len));
            let done = target.fetched(queue, slot, &sqe, &bytes);
            let may_hold = io::is_reservation(sqe.opcode);
            assert!(matches!(done, Action::Answer(_)) || may_hold && matches!(done, Action::Hold));
        }
        Action::Hold => {
            assert!(matches!(queue.role, Role::Admin(_)) || io::is_reservation(sqe.opcode));
        }
        Action::Leave => {
            assert!(matches!(queue.role, Role::Io(_)));
            target.departed(queue);
        }
    }
    target.account(queue);
}

/// The core looks at what waits for it; some of that ends, and some takes longer.
fn look(random: &mut Random, target: &mut Target) {
    target.look_at_fences(0, |_, _| random.below(4) > 0);
    let mut shutdowns = 0;
    target.look_at_shutdowns(0, |_| {
        shutdowns += 1;
        random.below(4) == 0
    });
    assert!(shutdowns <= CONTROLLERS, "a controller has one shutdown");
    if random.below(2) == 0
        && let Some(flush) = target.next_flush(|_| false)
    {
        assert!(flush.numbers.len() <= usize::from(CONTROLLERS));
        flush.numbers.iter().for_each(|number| target.flushed(*number, random.below(4) > 0));
    }
    while let Some(abort) = target.next_abort(|_| true) {
        target.aborted(abort, random.below(2) == 0);
    }
}

/// One target's life; how many commands were Connects that succeeded.
fn run(random: &mut Random, steps: u64) -> u64 {
    let mut target = Target::new(Settings { controllers: CONTROLLERS, ..Settings::default() });
    let key = HostKey {
        secret: Secret::parse(KEY).expect("a key"),
        controller: None,
        hashes: vec![Hash::Sha256],
        groups: vec![Group::Null],
    };
    let offered = Subsystem::new(NQN, "S").with_keys([(KEYED.to_owned(), key)]);
    target.add_subsystem(offered).expect("a name");
    if random.below(2) == 0 {
        target.set_cores(1);
    }
    if random.below(2) == 0 {
        target.keep_reservations();
    }
    let mut queues: Vec<Queue> = Vec::new();
    let (mut now, mut out, mut next, mut connected) = (Duration::ZERO, Vec::new(), 0, 0);
    for _ in 0..steps {
        match random.below(24) {
            0 | 1 if queues.len() < 8 => {
                if let Some(request) = request(random) {
                    next += 1;
                    queues.push(Queue::new(
                        next,
                        &request,
                        SocketAddr::from(([10, 0, 0, 1], 4420)),
                        [10, 0, 0, 2].into(),
                    ));
                }
            }
            2 => {
                now += Duration::from_millis(random.below(5_000));
                target.tick(now);
                look(random, &mut target);
                while target.next_doomed(|_| true).is_some() {}
                while target.next_held(|_| true).is_some() {}
                while target.next_again(|_| true).is_some() {}
                // Some go wrong, and some take longer.
                while random.below(4) > 0
                    && let Some(Save { number, uuid, text }) = target.next_save()
                {
                    assert!(text.is_none_or(|text| Reservation::from_text(&text, uuid).is_ok()));
                    target.saved(number, random.below(4) > 0);
                }
            }
            3 if !queues.is_empty() => {
                let at = random.below(queues.len() as u64) as usize;
                target.closed(&mut queues.remove(at));
            }
            4 => {
                let nsid = random.below(5) as u32;
                assert_eq!(target.put_namespace(NQN, namespace(nsid)).is_ok(), nsid > 0);
            }
            5 => drop(target.remove_namespace(NQN, random.below(5) as u32)),
            _ if !queues.is_empty() => {
                let at = random.below(queues.len() as u64) as usize;
                let was = queues[at].role;
                command(random, &mut target, &mut queues[at], &mut out);
                connected += u64::from(was != queues[at].role);
            }
            _ => {}
        }
    }
    for mut queue in queues {
        target.closed(&mut queue);
    }
    assert_eq!(target.controllers(), 0);
    connected
}

#[test]
fn whatever_hosts_send_the_target_lives() {
    let steps = std::env::var("FERROCX_NVMF_STEPS").ok().and_then(|text| text.parse().ok());
    let lives = steps.unwrap_or(200_000u64).div_ceil(2_000);
    let mut connected = 0;
    for seed in 0..lives {
        println!("seed {seed}");
        connected += run(&mut Random(SplitMix64::new(seed)), 2_000);
    }
    assert!(connected > lives, "hardly anybody was connected: {connected} in {lives} lives");
}
