//! Any commands of any hosts at an NVMe target without its wire: nothing panics, no command reaches
//! past its namespace or past what came in its capsule, and nothing is left behind.
#![no_main]

use std::net::SocketAddr;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use ferrocx_nvmf_target::auth::{Group, Hash, HostKey, Secret};
use ferrocx_nvmf_target::controller::io::Data;
use ferrocx_nvmf_target::controller::reservation::{Reservation, Save};
use ferrocx_nvmf_target::controller::{
    Action, Namespace, Queue, Role, Settings, Subsystem, Target,
};
use ferrocx_nvmf_target::host::auth_command;
use ferrocx_nvmf_target::proto::auth::{Ids, Message};
use ferrocx_nvmf_target::proto::cm::Request;
use ferrocx_nvmf_target::proto::connect::{ConnectData, DISCOVERY_NQN};
use ferrocx_nvmf_target::proto::identify;
use ferrocx_nvmf_target::proto::sgl::{Keyed, Listed, Sgl};
use ferrocx_nvmf_target::proto::sqe::{Sqe, fabrics};
use libfuzzer_sys::fuzz_target;
use zerocopy::{FromBytes, IntoBytes};

const NQN: &str = "nqn.2014-08.a:s";
const HOST: &str = "nqn.2014-08.a:h";
/// A host that has to show a key, which nobody here has.
const KEYED: &str = "nqn.2014-08.a:k";
const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const BLOCKS: u64 = 1000;
const CONTROLLERS: u16 = 4;

fuzz_target!(|data: &[u8]| {
    let _ = run(&mut Unstructured::new(data));
});

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

/// The core looks at what waits for it; some of that ends, and some takes longer.
fn look(u: &mut Unstructured<'_>, target: &mut Target) -> Result<()> {
    let (is_fence_clear, is_shutdown_clear) = (u.arbitrary()?, u.arbitrary()?);
    target.look_at_fences(0, |_, _| is_fence_clear);
    let mut shutdowns = 0;
    target.look_at_shutdowns(0, |_| {
        shutdowns += 1;
        is_shutdown_clear
    });
    assert!(shutdowns <= CONTROLLERS, "a controller has one shutdown");
    if u.arbitrary()?
        && let Some(flush) = target.next_flush(|_| false)
    {
        assert!(flush.numbers.len() <= usize::from(CONTROLLERS));
        let is_done = u.arbitrary()?;
        flush.numbers.iter().for_each(|number| target.flushed(*number, is_done));
    }
    while let Some(abort) = target.next_abort(|_| true) {
        target.aborted(abort, u.arbitrary()?);
    }
    Ok(())
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let mut target = Target::new(Settings { controllers: CONTROLLERS, ..Settings::default() });
    let key = HostKey {
        secret: Secret::parse(KEY).expect("a key"),
        controller: None,
        hashes: vec![Hash::Sha256],
        groups: vec![Group::Null],
    };
    let offered = Subsystem::new(NQN, "S").with_keys([(KEYED.to_owned(), key)]);
    target.add_subsystem(offered).expect("a name");
    target.keep_reservations();
    target.set_cores(u.int_in_range(0..=1)?);
    let mut queues: Vec<Queue> = Vec::new();
    let (mut now, mut out, mut next) = (Duration::ZERO, Vec::new(), 0);
    while !u.is_empty() {
        match u.int_in_range(0..=9)? {
            0 if queues.len() < 8 => {
                let mut request = ferrocx_fuzz::bytes(u, 56)?;
                if u.arbitrary()? {
                    let (hrqsize, hsqsize) = (32.into(), 31.into());
                    let qid = u.int_in_range(0..=3u16)?.into();
                    let usual = Request { qid, hrqsize, hsqsize, ..Request::default() };
                    request = usual.as_bytes().to_vec();
                }
                if let Ok(request) = Request::parse(&request, 128, u.arbitrary()?) {
                    next += 1;
                    let host = SocketAddr::from(([10, 0, 0, 1], 4420));
                    let peer = [10, 0, 0, u.int_in_range(2..=4)?].into();
                    queues.push(Queue::new(next, &request, host, peer));
                }
            }
            1 => {
                now += Duration::from_millis(u.int_in_range(0..=100_000)?);
                target.tick(now);
                look(u, &mut target)?;
                while target.next_doomed(|_| true).is_some() {}
                while target.next_held(|_| true).is_some() {}
                while target.next_again(|_| true).is_some() {}
                while let Some(Save { number, uuid, text }) = target.next_save() {
                    assert!(text.is_none_or(|text| Reservation::from_text(&text, uuid).is_ok()));
                    target.saved(number, u.ratio(3, 4)?);
                }
            }
            2 if !queues.is_empty() => {
                let at = u.choose_index(queues.len())?;
                target.closed(&mut queues.remove(at));
            }
            3 => {
                let nsid = u.int_in_range(0..=4)?;
                let done = target.put_namespace(NQN, namespace(nsid));
                assert_eq!(done.is_ok(), nsid > 0);
            }
            4 => drop(target.remove_namespace(NQN, u.int_in_range(0..=4)?)),
            _ if !queues.is_empty() => {
                let at = u.choose_index(queues.len())?;
                command(u, &mut target, &mut queues[at], &mut out)?;
            }
            _ => {}
        }
    }
    for mut queue in queues {
        target.closed(&mut queue);
    }
    assert_eq!(target.controllers(), 0);
    Ok(())
}

/// A command whose fields are likely, or any.
fn sqe(u: &mut Unstructured<'_>) -> Result<Sqe> {
    let mut bytes: [u8; 64] = u.arbitrary()?;
    if u.ratio(7, 8)? {
        bytes[0] = *u.choose(&[
            0x00, 0x01, 0x02, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x0d, 0x0e, 0x11, 0x15, 0x18,
            0x7f,
        ])?;
        bytes[1] = Sqe::SGL;
        bytes[4..8].copy_from_slice(&u.int_in_range(0..=4u32)?.to_le_bytes());
        bytes[39] = *u.choose(&[0x01, 0x31, 0x40, 0x4f])?;
    }
    if u.arbitrary()? {
        // Small numbers: lengths that fit, properties that exist, features that are known.
        for at in [33, 34, 35, 43, 46, 47, 51, 52, 53, 54, 55] {
            bytes[at] = 0;
        }
    }
    Ok(Sqe::read_from_bytes(&bytes).expect("64 bytes"))
}

/// A command of authentication with a message that is likely, or any.
fn authentication(u: &mut Unstructured<'_>) -> Result<(Sqe, Vec<u8>)> {
    if u.arbitrary()? {
        let keyed = Keyed { addr: 0, len: 4096, rkey: 1, inv: false };
        return Ok((auth_command(fabrics::AUTH_RECEIVE, 4096, Sgl::Keyed(keyed)), Vec::new()));
    }
    let mut message = ferrocx_fuzz::bytes(u, 200)?;
    if u.ratio(2, 3)? {
        let ids = Ids { hashes: [1].into_iter().collect(), groups: [0].into_iter().collect() };
        message = Message::Negotiate { secure_channel: 0, ids: Some(ids) }.encode(1);
    } else if let Some(head) = message.get_mut(..8) {
        // A reply, a success or a failure for that negotiation.
        let number = *u.choose(&[2, 4, 0xf0])?;
        head.copy_from_slice(&[u8::from(number < 0xf0), number, 0, 0, 1, 0, 32, 0]);
    }
    let sgl = Sgl::InCapsule { offset: 0, len: message.len() as u32 };
    Ok((auth_command(fabrics::AUTH_SEND, message.len(), sgl), message))
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

fn command(
    u: &mut Unstructured<'_>,
    target: &mut Target,
    queue: &mut Queue,
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut sqe = sqe(u)?;
    let mut data = ferrocx_fuzz::bytes(u, 64)?;
    let is_connect = u.ratio(1, 4)?;
    if is_connect {
        let nqn = u.choose(&[NQN, DISCOVERY_NQN])?;
        let cntlid = if queue.qid == 0 { 0xffff } else { u.int_in_range(0..=5)? };
        let host = u.choose(&[HOST, HOST, KEYED])?;
        data = ConnectData::new([1; 16], cntlid, nqn, host).as_bytes().to_vec();
        let sgl = Sgl::InCapsule { offset: 0, len: 1024 };
        sqe = ferrocx_nvmf_target::host::connect_command(queue.qid, 32, u.arbitrary()?, sgl);
    }
    if !is_connect && u.ratio(1, 6)? {
        (sqe, data) = authentication(u)?;
    }
    queue.fetched();
    let is_reservation = ferrocx_nvmf_target::proto::sqe::io::is_reservation(sqe.opcode);
    if matches!(queue.role, Role::Io(_)) && sqe.opcode != 0x7f && !is_reservation {
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
        return Ok(());
    }
    let slot = u.int_in_range(0..=31)?;
    match target.command(queue, slot, &sqe, &data, out) {
        Action::Answer(cqe) => assert_eq!(cqe.cid, sqe.cid),
        Action::Bring { cqe, len, to } => {
            assert_eq!((cqe.cid, len, out.len()), (sqe.cid, to.len, len as usize));
            assert!(len <= 1 << 20);
        }
        Action::Fetch { from, len } => {
            let most = if sqe.opcode == 0x7f { 4096 } else { 16 };
            assert!(len <= most && from.len == len);
            let bytes = ferrocx_fuzz::bytes(u, 1024)?;
            let done = target.fetched(queue, slot, &sqe, &bytes);
            let is_held = is_reservation && matches!(done, Action::Hold);
            assert!(matches!(done, Action::Answer(_)) || is_held);
        }
        Action::Hold => assert!(is_reservation || matches!(queue.role, Role::Admin(_))),
        Action::Leave => {
            assert!(matches!(queue.role, Role::Io(_)));
            target.departed(queue);
        }
    }
    target.account(queue);
    Ok(())
}
