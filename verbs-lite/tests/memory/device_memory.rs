//! Memory of the device: lent, copied to and from, registered, used from both ends, given back.

use crate::common::{Two, config, ids, models_like, pattern, syndromes};
use ferrocx_core::{ConfigError, DeviceError};
use ferrocx_mempool::AccessError;
use ferrocx_model::config::CapOverride;
use ferrocx_model::fault::{CommandFault, Fault, FaultPlan};
use ferrocx_model::wire::link;
use ferrocx_model::{Identity, NicConfig};
use ferrocx_prm::caps::cap_type;
use ferrocx_prm::syndrome::CommandStatus;
use ferrocx_verbs_lite::*;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

fn content(dm: &Dm, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    dm.copy_out(offset, &mut bytes).unwrap();
    bytes
}

fn remote(mr: &Mr, offset: u64) -> RemoteAddr {
    RemoteAddr { addr: mr.addr() + offset, rkey: mr.rkey().unwrap() }
}

#[test]
fn words_go_in_and_out_and_nothing_else() {
    let two = Two::new();
    let most = two.a.context.attr().max_dm_bytes as usize;
    assert_eq!(most, 128 << 10, "as much as a ConnectX-5 lends");
    let dm = two.a.context.alloc_dm(6000, 0).unwrap();
    assert_eq!(dm.len_bytes(), 6000);
    dm.copy_in(0, &pattern(6000, 1)).unwrap();
    dm.copy_in(64, &[9; 8]).unwrap();
    assert_eq!(
        content(&dm, 60, 16),
        [&pattern(6000, 1)[60..64], &[9; 8], &pattern(6000, 1)[72..76]].concat()
    );
    for (offset, len, cause) in [
        (1, 4, AccessError::Misaligned),
        (4, 3, AccessError::Misaligned),
        (5996, 8, AccessError::OutOfRange),
        (6004, 0, AccessError::OutOfRange),
        (usize::MAX, 4, AccessError::OutOfRange),
    ] {
        assert_eq!(dm.copy_in(offset, &vec![0; len]), Err(cause), "{offset} {len}");
        assert_eq!(dm.copy_out(offset, &mut vec![0; len]), Err(cause), "{offset} {len}");
    }
    // Odd lengths have whole words.
    assert_eq!(two.a.context.alloc_dm(5, 12).unwrap().len_bytes(), 8);
    two.world.assert_clean();
}

#[test]
fn what_is_lent_comes_back_and_the_rest_is_refused_with_the_way_out() {
    let two = Two::new();
    let context = &two.a.context;
    for _ in 0..3 {
        let pieces: Vec<Dm> = (0..32).map(|_| context.alloc_dm(4096, 6).unwrap()).collect();
        let error = context.alloc_dm(64, 0).unwrap_err();
        assert!(matches!(error, VerbsError::Device(DeviceError::NoDeviceMemory { .. })), "{error}");
        let said = error.to_string();
        assert!(said.contains("no 64 bytes") && said.contains("use memory of the host"), "{said}");
        for (at, piece) in pieces.iter().enumerate() {
            piece.copy_in(0, &[at as u8; 4096]).unwrap();
        }
        for (at, piece) in pieces.iter().enumerate() {
            assert_eq!(content(piece, 0, 4096), [at as u8; 4096], "pieces share nothing");
        }
    }
    for (len, log_align) in [(0, 0), ((128 << 10) + 1, 0), (64, 13), (usize::MAX, 0)] {
        let error = context.alloc_dm(len, log_align).unwrap_err();
        let cause = match &error {
            VerbsError::Device(DeviceError::Config(cause)) => cause,
            _ => panic!("{len} {log_align}: {error}"),
        };
        assert!(matches!(cause, ConfigError::Range { .. }), "{len} {log_align}: {error}");
    }
    let whole = context.alloc_dm(128 << 10, 12).unwrap();
    whole.free().unwrap();
    whole.free().unwrap();
    assert_eq!(whole.copy_in(0, &[0; 4]), Err(AccessError::OutOfRange), "it is given back");
    let error = two.a.pd.reg_dm_mr(&whole, 0..64, ALL).unwrap_err();
    assert!(matches!(error, VerbsError::Revoked), "{error}");
    assert_eq!(refusals(&two), Vec::<String>::new());
}

/// What the first model refused, but for memory that was used up.
fn refusals(two: &Two) -> Vec<String> {
    let mut refused = two.world.refusals(0);
    refused.retain(|said| !said.contains("is used up"));
    refused
}

#[test]
fn a_device_without_memory_says_so() {
    let (a, b) = link(1 << 20);
    let config = NicConfig { identity: Identity::ConnectX5Vf, ..config() };
    let two = Two::of(models_like(&config, a, b));
    assert_eq!(two.a.context.attr().max_dm_bytes, 0);
    let said = two.a.context.alloc_dm(64, 0).unwrap_err().to_string();
    assert_eq!(said, "this device has no memory to lend; use memory of the host");
}

#[test]
fn a_device_that_shows_its_memory_outside_its_bar_is_not_believed() {
    let mut page = Box::new([0; 4096]);
    page[0] = 0x80;
    page[8..16].copy_from_slice(&(1_u64 << 40).to_be_bytes());
    page[16..20].copy_from_slice(&(1_u32 << 20).to_be_bytes());
    page[20..24].copy_from_slice(&(1_u32 << 17).to_be_bytes());
    let lie = CapOverride { kind: cap_type::DEVICE_MEMORY, max: page.clone(), cur: page };
    let (a, b) = link(1 << 20);
    let two = Two::of(models_like(&NicConfig { cap_pages: vec![lie], ..config() }, a, b));
    assert_eq!(two.a.context.attr().max_dm_bytes, 0);
    let error = two.a.context.alloc_dm(64, 0).unwrap_err();
    assert!(matches!(error, VerbsError::Device(DeviceError::MemoryOutside { .. })), "{error}");
}

#[test]
fn a_region_keeps_its_memory() {
    let two = Two::new();
    let dm = two.a.context.alloc_dm(4096, 0).unwrap();
    let (one, other) = (
        two.a.pd.reg_dm_mr(&dm, 0..4096, ALL).unwrap(),
        two.a.pd.reg_dm_mr(&dm, 64..64, ALL).unwrap(),
    );
    assert_eq!((one.addr(), one.len_bytes(), other.len_bytes()), (0, 4096, 0));
    assert!(one.access().contains(Access::ZERO_BASED));
    let said = dm.free().unwrap_err().to_string();
    assert_eq!(said, "2 regions are registered over the device memory; drop them first");
    drop(other);
    let buf = one.buf(0..8).unwrap();
    drop(one);
    assert!(
        matches!(dm.free(), Err(VerbsError::StillRegistered { regions: 1 })),
        "a buffer is out"
    );
    drop(buf);
    dm.free().unwrap();
    // Without a handle it lives as long as its region.
    let dm = two.a.context.alloc_dm(128 << 10, 0).unwrap();
    let mr = two.a.pd.reg_dm_mr(&dm, 0..128 << 10, ALL).unwrap();
    drop(dm);
    assert!(two.a.context.alloc_dm(64, 0).is_err());
    drop(mr);
    two.a.context.alloc_dm(128 << 10, 0).unwrap();
    assert_eq!(refusals(&two), Vec::<String>::new());
}

#[test]
fn memory_under_a_key_that_did_not_end_goes_to_nobody_else() {
    let two = Two::new();
    let commands = || two.world.nic(0).state().counters.commands;
    let dm = two.a.context.alloc_dm(128 << 10, 0).unwrap();
    let mr = two.a.pd.reg_dm_mr(&dm, 0..64, ALL).unwrap();
    // DESTROY_MKEY, and once more.
    let (before, fault) = (commands(), CommandFault::Status(CommandStatus::INTERNAL_ERR));
    let refused = [1, 2].map(|nth| Fault::Command { nth: before + nth, fault });
    two.world.nic(0).set_faults(FaultPlan::at(&refused));
    drop(mr);
    assert_eq!(commands(), before + 2);
    assert!(matches!(dm.free(), Err(VerbsError::StillRegistered { regions: 1 })));
    dm.copy_in(0, &[1; 4]).unwrap();
    drop(dm);
    assert_eq!(commands(), before + 2, "nothing is given back");
    assert!(two.a.context.alloc_dm(64, 0).is_err());
}

#[test]
fn rights_and_ranges_are_checked_before_the_device_is_asked() {
    let two = Two::new();
    let dm = two.a.context.alloc_dm(4096, 0).unwrap();
    let register = |range, access| two.a.pd.reg_dm_mr(&dm, range, access).unwrap_err();
    assert!(matches!(register(0..64, Access::REMOTE_WRITE), VerbsError::RemoteWithoutLocalWrite));
    let error = register(0..64, ALL | Access::MW_BIND);
    assert!(matches!(error, VerbsError::Unsupported { .. }), "{error}");
    for range in [0..4097, 4097..4097, usize::MAX - 1..usize::MAX] {
        let error = register(range.clone(), ALL);
        assert!(matches!(error, VerbsError::OutOfRange { .. }), "{range:?}: {error}");
    }
    #[expect(clippy::reversed_empty_ranges, reason = "a caller's mistake")]
    let error = register(64..0, ALL);
    assert!(matches!(error, VerbsError::OutOfRange { .. }), "{error}");
    let error = two.b.pd.reg_dm_mr(&dm, 0..64, ALL).unwrap_err();
    assert_eq!(error.to_string(), "the device memory belongs to another device");
    dm.free().unwrap();
    two.world.assert_clean();
}

#[test]
fn messages_go_from_memory_of_one_device_to_that_of_another() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected::<Buf>();
    let [da, db] = [&two.a, &two.b].map(|side| side.context.alloc_dm(8192, 0).unwrap());
    let ma = two.a.pd.reg_dm_mr(&da, 64..8192, ALL).unwrap();
    let mb = two.b.pd.reg_dm_mr(&db, 0..8192, ALL).unwrap();
    da.copy_in(0, &pattern(8192, 5)).unwrap();
    qb.post_recv(1, mb.buf(3..5003).unwrap()).unwrap();
    qa.post_send(&SendWr::signaled(2, SendOp::Send), Some(ma.buf(7..4007).unwrap())).unwrap();
    let (sent, got) = two.run(&mut qa, &mut qb);
    assert_eq!((ids(&sent), got[0].byte_len), (vec![(2, true)], 4000));
    assert_eq!(content(&db, 0, 4004)[3..4003], pattern(8192, 5)[71..4071]);
    // Between memory of the host and that of the device, both ways.
    let host = two.a.mr();
    two.a.fill(0, &pattern(4000, 9));
    let write = SendWr::signaled(3, SendOp::Write(remote(&mb, 4096)));
    qa.post_send(&write, Some(host.buf(0..4000).unwrap())).unwrap();
    let read = SendWr::signaled(4, SendOp::Read(remote(&mb, 4097)));
    qa.post_send(&read, Some(ma.buf(0..3999).unwrap())).unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&done), [(3, true), (4, true)]);
    assert_eq!(content(&db, 4096, 4000), pattern(4000, 9));
    assert_eq!(content(&da, 64, 3996), pattern(4000, 9)[1..3997]);
    two.world.assert_clean();
}

#[test]
fn atomics_work_on_memory_of_the_device() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected::<Buf>();
    let db = two.b.context.alloc_dm(64, 3).unwrap();
    let mb = two.b.pd.reg_dm_mr(&db, 0..64, ALL).unwrap();
    let ma = two.a.mr();
    db.copy_in(8, &41u64.to_le_bytes()).unwrap();
    let at = remote(&mb, 8);
    let result = || Some(ma.buf(0..8).unwrap());
    let add = SendOp::FetchAdd { remote: at, add: 1 };
    qa.post_send(&SendWr::signaled(1, add), result()).unwrap();
    let swap = SendOp::CompareSwap { remote: at, compare: 42, swap: 99 };
    qa.post_send(&SendWr::signaled(2, swap), result()).unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&done), [(1, true), (2, true)]);
    assert_eq!(
        (two.a.read(0, 8), content(&db, 8, 8)),
        (42u64.to_le_bytes().to_vec(), 99u64.to_le_bytes().to_vec())
    );
    two.world.assert_clean();
}

#[test]
fn buffers_take_whole_words_and_give_any_bytes() {
    let two = Two::new();
    let dm = two.a.context.alloc_dm(1024, 0).unwrap();
    let mr = two.a.pd.reg_dm_mr(&dm, 0..1024, ALL).unwrap();
    let mut buf = mr.buf(4..1024).unwrap();
    buf.copy_in(0, &pattern(1020, 3)).unwrap();
    assert_eq!(buf.copy_in(1, &[0; 4]), Err(AccessError::Misaligned));
    assert_eq!(buf.copy_in(0, &[0; 2]), Err(AccessError::Misaligned));
    assert_eq!(buf.copy_in(1020, &[0; 4]), Err(AccessError::OutOfRange));
    let mut some = [0; 999];
    buf.copy_out(3, &mut some).unwrap();
    assert_eq!(some, pattern(1020, 3)[3..1002]);
    assert_eq!(buf.split_off(1001).to_vec(), pattern(1020, 3)[1001..]);
    // Between buffers: from the host, and within the device.
    let host = two.a.mr();
    two.a.fill(0, &pattern(1000, 8));
    let (from, mut second) = (host.buf(0..1000).unwrap(), mr.buf(0..1000).unwrap());
    assert_eq!(second.copy_from(2, &from, 0, 4), Err(AccessError::Misaligned));
    second.copy_from(0, &from, 1, 996).unwrap();
    assert_eq!(content(&dm, 0, 996), pattern(1000, 8)[1..997]);
    let mut back = host.buf(5000..6000).unwrap();
    back.copy_from(3, &second, 5, 600).unwrap();
    assert_eq!(two.a.read(5003, 600), pattern(1000, 8)[6..606]);
    assert_eq!((second.piece().len_bytes, second.piece().iova), (0, 0), "nobody else reaches it");
    two.world.assert_clean();
}

#[test]
fn access_ends_with_the_key_and_stays_within_it() {
    let mut two = Two::new();
    let db = two.b.context.alloc_dm(4096, 0).unwrap();
    let mb = two.b.pd.reg_dm_mr(&db, 1024..2048, ALL).unwrap();
    db.copy_in(0, &[7; 4096]).unwrap();
    let write = |two: &mut Two, offset: u64| {
        let (mut qa, mut qb) = two.connected::<()>();
        qa.post_send_inline(&SendWr::signaled(1, SendOp::Write(remote(&mb, offset))), &[1; 8])
            .unwrap();
        let (done, _) = two.run(&mut qa, &mut qb);
        syndromes(&done)[0]
    };
    assert_eq!([1016, 1017, 1 << 40].map(|at| write(&mut two, at)), [0, 0x13, 0x13]);
    assert_eq!(content(&db, 2040, 12), [1, 1, 1, 1, 1, 1, 1, 1, 7, 7, 7, 7]);
    mb.dereg().unwrap();
    assert_eq!(write(&mut two, 0), 0x13);
}
