//! Random calls of the C interface by several threads, through the library as programs load it:
//! nothing that a correct program may do ends it, and what is not possible is an error number.
//!
//! The sequences follow from seeds. `FERROCX_CALLS=N` runs N of them instead of a few,
//! `FERROCX_CALLS_SEED=N` begins with another seed.
#![allow(unsafe_code)]

#[path = "calls/mod.rs"]
mod calls;

use std::ffi::{CStr, CString, c_int};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use calls::{Api, Choices, Lender, Pages, World, c, child, status_of};

/// Threads of a sequence, and the choices that each makes.
const THREADS: usize = 4;
const CHOICE_BYTES: usize = 20_000;

/// The place of the library that was built beside this test.
fn library() -> CString {
    let program = env::current_exe().unwrap();
    let library = program.with_file_name("libibverbs.so");
    assert!(fs::exists(&library).unwrap(), "{} was not built", library.display());
    CString::new(library.to_str().unwrap()).unwrap()
}

/// The library, loaded as a program does.
fn api() -> &'static Api {
    static API: OnceLock<Api> = OnceLock::new();
    API.get_or_init(|| {
        let library = c!(libc::dlopen(library().as_ptr(), libc::RTLD_NOW));
        assert!(!library.is_null(), "{:?}", c!(CStr::from_ptr(libc::dlerror())));
        let find = |name: &str| {
            let name = CString::new(name).unwrap();
            c!(libc::dlsym(library, name.as_ptr())).cast_const()
        };
        c!(Api::load(find))
    })
}

/// Numbers that follow from a seed. Source: Marsaglia, "Xorshift RNGs", 2003.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 24) as u8).collect()
    }
}

/// Opens the device and lets several threads do something with it, until their choices end.
fn begin(seed: u64) -> World<'static> {
    let mut random = Random::new(seed);
    let world = World::open(api(), seed % 2 == 1);
    world.furnish(&mut Choices::new(&random.bytes(2000)));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (world, bytes) = (&world, random.bytes(CHOICE_BYTES));
            scope.spawn(move || {
                let mut choices = Choices::new(&bytes);
                while !choices.is_empty() {
                    world.act(&mut choices);
                }
            });
        }
    });
    world
}

/// A number from the environment.
fn setting(name: &str, usual: u64) -> u64 {
    env::var(name).map_or(usual, |text| text.parse().unwrap())
}

#[test]
fn threads_that_call_anything_get_what_is_documented() {
    let first = setting("FERROCX_CALLS_SEED", 1);
    let mut ended = [0; 2];
    for seed in first..first + setting("FERROCX_CALLS", 12) {
        println!("seed {seed}");
        let world = begin(seed);
        ended = [0, 1].map(|kind| ended[kind] + world.ended[kind].load(Ordering::Relaxed));
        world.close();
    }
    let [good, failed] = ended;
    println!("{good} completions, and {failed} of failures");
    assert!(good > 0 && failed > 0, "the sequences did nothing");
}

#[test]
fn what_is_open_is_found_by_its_command_file_and_numbers() {
    let api = api();
    let device = calls::open(api).0;
    let pages = Pages::new(8192);
    c!({
        let pd = (api.ibv_alloc_pd)(device);
        let mr = (api.ibv_reg_mr)(pd, pages.0.cast(), 8192, 7);
        let again = (api.ibv_import_device)(libc::dup((*device).cmd_fd));
        assert!(!pd.is_null() && !mr.is_null() && !again.is_null());
        assert!((api.ibv_import_pd)(again, (*pd).handle + 1).is_null(), "there is no such domain");
        let same = (api.ibv_import_pd)(again, (*pd).handle);
        let keys = (api.ibv_import_mr)(same, (*mr).handle);
        assert_eq!((*keys).length, 8192);
        assert_eq!(((*keys).lkey, (*keys).rkey), ((*mr).lkey, (*mr).rkey));
        assert!((*keys).addr.is_null() && (*keys).context == again);
        (api.ibv_unimport_mr)(keys);
        assert_eq!((api.ibv_dereg_mr)(mr), 0);
        assert!((api.ibv_import_mr)(same, 0).is_null(), "it is gone");
        (api.ibv_unimport_pd)(same);
        assert_eq!((api.ibv_close_device)(again), 0);
        assert_eq!((api.ibv_dealloc_pd)(pd), 0, "an import does not hold it");
        assert_eq!((api.ibv_close_device)(device), 0);
        // A file of another kind stays the program's.
        let other = libc::dup(1);
        assert!((api.ibv_import_device)(other).is_null());
        assert_eq!(libc::close(other), 0);
        assert!((api.ibv_import_device)(-1).is_null());
    });
}

#[test]
fn an_import_may_end_what_the_original_made() {
    const CHANGE_ACCESS: c_int = 4;
    let api = api();
    let device = calls::open(api).0;
    let pages = Pages::new(8192);
    c!({
        let pd = (api.ibv_alloc_pd)(device);
        let mr = (api.ibv_reg_mr)(pd, pages.0.cast(), 8192, 7);
        let again = (api.ibv_import_device)(libc::dup((*device).cmd_fd));
        let same = (api.ibv_import_pd)(again, (*pd).handle);
        let keys = [(); 2].map(|()| (api.ibv_import_mr)(same, (*mr).handle));
        assert!(!keys.contains(&std::ptr::null_mut()));
        // What is in a domain is in it for all who have it.
        assert_eq!((api.ibv_dealloc_pd)(same), libc::EBUSY);
        let changed = (api.ibv_rereg_mr)(keys[0], CHANGE_ACCESS, same, std::ptr::null_mut(), 0, 1);
        assert_eq!(changed, -1, "a region is changed by who registered it");
        assert_eq!((api.ibv_dereg_mr)(keys[0]), 0);
        assert_eq!((api.ibv_dereg_mr)(keys[1]), libc::EINVAL, "it is gone");
        assert_eq!((api.ibv_dereg_mr)(mr), libc::EINVAL, "it is gone");
        (api.ibv_unimport_mr)(keys[1]);
        (api.ibv_unimport_mr)(mr);
        let own = (api.ibv_reg_mr)(same, pages.0.cast(), 8192, 7);
        assert_eq!((api.ibv_dealloc_pd)(pd), libc::EBUSY);
        assert_eq!((api.ibv_dereg_mr)(own), 0);
        assert_eq!((api.ibv_dealloc_pd)(same), 0);
        (api.ibv_unimport_pd)(pd);
        assert_eq!((api.ibv_close_device)(again), 0);
        assert_eq!((api.ibv_close_device)(device), 0);
    });
}

#[test]
fn device_memory_is_lent_copied_registered_and_found_by_its_number() {
    use calls::abi::*;

    /// Local write, remote write, and addresses from 0.
    const RIGHTS: u32 = 1 | 1 << 1 | 1 << 5;
    let api = api();
    let device = calls::open(api).0;
    c!({
        let errno = || std::io::Error::last_os_error().raw_os_error().unwrap();
        let verbs =
            &*device.byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>();
        let mut attr: ibv_device_attr_ex = std::mem::zeroed();
        let len = size_of_val(&attr);
        assert_eq!((verbs.query_device_ex)(device, std::ptr::null(), &raw mut attr, len), 0);
        let most = attr.max_dm_size as usize;
        assert_eq!(most, 128 << 10);
        let alloc = |length, log_align_req, comp_mask| {
            let mut attr = ibv_alloc_dm_attr { length, log_align_req, comp_mask };
            (verbs.alloc_dm)(device, &raw mut attr)
        };
        for (length, log_align, comp_mask) in [(0, 0, 0), (most + 1, 0, 0), (64, 40, 0), (64, 0, 1)]
        {
            assert!(alloc(length, log_align, comp_mask).is_null(), "{length} {log_align}");
            assert_eq!(errno(), libc::EINVAL, "{length} {log_align}");
        }
        let dm = alloc(100, 3, 0);
        assert!(!dm.is_null());
        assert!(alloc(most, 0, 0).is_null());
        assert_eq!(errno(), libc::ENOMEM);
        let (mut bytes, mut back) = ([0x5a_u8; 104], [0_u8; 104]);
        bytes[8] = 1;
        let (from, to) = (bytes.as_ptr().cast(), back.as_mut_ptr().cast());
        for (offset, length, result) in [
            (0, 100, 0),
            (0, 0, 0),
            (3, 4, libc::EINVAL),
            (4, 3, libc::EINVAL),
            (104, 4, libc::EFAULT),
            (0, 104, libc::EFAULT),
            (u64::MAX, 4, libc::EFAULT),
        ] {
            assert_eq!(((*dm).memcpy_to_dm)(dm, offset, from, length), result, "{offset} {length}");
            assert_eq!(((*dm).memcpy_from_dm)(to, dm, offset, length), result, "{offset} {length}");
        }
        assert_eq!((&back[..100], back[100]), (&bytes[..100], 0));
        // Found again through its file.
        let again = (api.ibv_import_device)(libc::dup((*device).cmd_fd));
        assert!((api.ibv_import_dm)(again, (*dm).handle + 1).is_null());
        assert_eq!(errno(), libc::ENOENT);
        let same = (api.ibv_import_dm)(again, (*dm).handle);
        assert!(!same.is_null() && (*same).context == again);
        assert_eq!(((*same).memcpy_from_dm)(to, same, 8, 4), 0);
        assert_eq!(back[..4], [1, 0x5a, 0x5a, 0x5a]);
        (api.ibv_unimport_dm)(same);
        // An import may end what the original made.
        let second = alloc(64, 0, 0);
        let same = (api.ibv_import_dm)(again, (*second).handle);
        assert_eq!((verbs.free_dm)(same), 0);
        assert_eq!((verbs.free_dm)(second), libc::EINVAL, "it is gone");
        (api.ibv_unimport_dm)(second);
        assert_eq!((api.ibv_close_device)(again), 0);
        // Regions of it.
        let pd = (api.ibv_alloc_pd)(device);
        let register = |offset, length, access| (verbs.reg_dm_mr)(pd, dm, offset, length, access);
        for (offset, length, access) in [
            (0, 104, RIGHTS),
            (101, 0, RIGHTS),
            (u64::MAX, 2, RIGHTS),
            (0, 64, 1),
            (0, 64, RIGHTS & !1),
            (0, 64, RIGHTS | 1 << 4),
        ] {
            assert!(register(offset, length, access).is_null(), "{offset} {length} {access:#x}");
            assert_eq!(errno(), libc::EINVAL, "{offset} {length} {access:#x}");
        }
        let mr = register(4, 96, RIGHTS);
        assert!(!mr.is_null() && (*mr).addr.is_null());
        assert_eq!(((*mr).length, (*mr).lkey), (96, (*mr).rkey));
        let start = std::ptr::null_mut();
        assert_eq!((api.ibv_rereg_mr)(mr, 1 << 2, pd, start, 0, 1), -4);
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!((verbs.free_dm)(dm), libc::EBUSY);
        assert_eq!((api.ibv_dereg_mr)(mr), 0);
        assert_eq!((verbs.free_dm)(dm), 0);
        let whole = alloc(most, 12, 0);
        assert!(!whole.is_null());
        assert_eq!((verbs.free_dm)(whole), 0);
        assert_eq!((api.ibv_dealloc_pd)(pd), 0);
        assert_eq!((api.ibv_close_device)(device), 0);
    });
}

#[test]
fn a_domain_may_end_behind_its_device() {
    let api = api();
    let device = calls::open(api).0;
    let pds = [(); 2].map(|()| c!((api.ibv_alloc_pd)(device)));
    assert_eq!(c!((api.ibv_close_device)(device)), 0);
    // Another device may have the memory of the first by now, if that went with it.
    let next = calls::open(api).0;
    assert!(next != device, "its domains name it");
    assert_eq!(pds.map(|pd| c!((api.ibv_dealloc_pd)(pd))), [0; 2]);
    assert_eq!(c!((api.ibv_close_device)(next)), 0);
}

#[test]
fn a_buffer_of_the_librarys_is_registered_within_its_bounds() {
    let api = api();
    let device = calls::open(api).0;
    c!({
        let [pd, other] = [(); 2].map(|()| (api.ibv_alloc_pd)(device));
        let mut buf = std::ptr::null_mut();
        assert!((api.ibv_alloc_buf)(pd, 0, &raw mut buf).is_null());
        let start = (api.ibv_alloc_buf)(pd, 5000, &raw mut buf);
        assert!(!start.is_null() && start.addr().is_multiple_of(4096));
        start.cast::<u8>().write_bytes(7, 5000);
        let register = |pd, at, len| (api.ibv_reg_buf_mr)(pd, buf, at, len, 7);
        assert!(register(pd, start, 5001).is_null(), "past its end");
        assert!(register(other, start, 5000).is_null(), "in another domain");
        let mr = register(pd, start.wrapping_byte_add(100), 4900);
        assert_eq!(((*mr).addr.addr(), (*mr).length), (start.addr() + 100, 4900));
        assert_eq!((api.ibv_dereg_mr)(mr), 0);
        (api.ibv_free_buf)(buf);
        assert_eq!([pd, other].map(|pd| (api.ibv_dealloc_pd)(pd)), [0; 2]);
        assert_eq!((api.ibv_close_device)(device), 0);
    });
}

#[test]
fn a_library_that_was_loaded_stays() {
    const NAME: &str = "a_library_that_was_loaded_stays";
    if env::var("FERROCX_CALLS_ALONE").is_err() {
        // Other tests hold it.
        return assert!(alone(NAME, "1").success());
    }
    let library = library();
    let handle = c!(libc::dlopen(library.as_ptr(), libc::RTLD_NOW));
    assert!(!handle.is_null());
    assert_eq!(c!(libc::dlclose(handle)), 0);
    let still = c!(libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD));
    assert!(!still.is_null(), "its threads and handlers would run in memory that is gone");
}

#[test]
fn a_failed_queue_pair_is_drained_by_one_request_more() {
    let world = World::open(api(), false);
    for by_functions in [false, true] {
        assert_eq!(world.drain(by_functions), World::drained(), "functions: {by_functions}");
    }
    world.close();
}

#[test]
fn a_frame_for_a_group_comes_back_byte_by_byte() {
    let world = World::open(api(), false);
    let header = [1, 0x50, 0x56, 0x19, 0x20, 0xa7, 2, 0, 1, 2, 3, 4, 0x88, 0xb5];
    let frame: Vec<u8> = header.into_iter().chain(14..200).collect();
    assert_eq!(world.frame_comes_back(&frame), frame);
    world.close();
}

#[test]
fn a_rule_ends_while_its_queue_pair_is_reset() {
    let world = World::open(api(), false);
    world.rules_end_under_resets(2000);
    world.close();
}

#[test]
fn a_frame_is_hashed_to_a_work_queue() {
    let world = World::open(api(), false);
    let header = [1, 0x50, 0x56, 0x19, 0x20, 0xa8, 2, 0, 1, 2, 3, 4, 8, 0, 0x45, 0, 0, 86];
    let frame: Vec<u8> = header.into_iter().chain(18..100).collect();
    assert_eq!(world.share_out(&mut Choices::new(&[]), Some(&frame)), frame);
    world.close();
}

#[test]
fn the_limit_of_a_shared_queue_holds_once() {
    let world = World::open(api(), false);
    world.reach_limit();
    world.close();
}

#[test]
fn a_device_is_opened_again_while_it_is_closed() {
    const NAME: &str = "a_device_is_opened_again_while_it_is_closed";
    if env::var("FERROCX_CALLS_ALONE").is_err() {
        return assert!(alone(NAME, "1").success());
    }
    // With an address of its own, which the next device finds taken if it does not wait.
    c!(env::set_var("FERROCX_IP", format!("127.88.15.{}", 1 + std::process::id() % 250)));
    let api = api();
    for _ in 0..40 {
        let old = calls::open(api).0.expose_provenance();
        let close = move || {
            let old = std::ptr::with_exposed_provenance_mut(old);
            assert_eq!(c!((api.ibv_close_device)(old)), 0);
        };
        let closing = thread::spawn(close);
        let new = calls::open(api).0;
        closing.join().unwrap();
        assert_eq!(c!((api.ibv_close_device)(new)), 0);
    }
}

#[test]
fn channels_beyond_the_vectors_of_the_device_wake_their_waiters() {
    let world = World::open(api(), false);
    world.wake_each(150);
    // What they had is there again.
    world.wake_each(100);
    world.close();
}

#[test]
fn a_shared_queue_keeps_its_receives_whoever_ends_in_mid_message() {
    let world = World::open(api(), false);
    world.end_in_mid_message(false);
    world.end_in_mid_message(true);
    world.close();
}

#[test]
fn memory_is_registered_for_what_the_program_may_do_with_it() {
    const LOCAL_WRITE: c_int = 1;
    const REMOTE_READ: c_int = 4;
    let api = api();
    let device = calls::open(api).0;
    let pd = c!((api.ibv_alloc_pd)(device));
    let pages = Pages::new(3 * 4096);
    let protect = |at: usize, rights| {
        assert_eq!(c!(libc::mprotect(pages.0.add(at * 4096).cast(), 4096, rights)), 0);
    };
    let register = |first: usize, count: usize, access| {
        let mr = c!((api.ibv_reg_mr)(pd, pages.0.add(first * 4096).cast(), count * 4096, access));
        if mr.is_null() {
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
        } else {
            assert_eq!(c!((api.ibv_dereg_mr)(mr)), 0);
        }
        !mr.is_null()
    };
    protect(1, libc::PROT_READ);
    protect(2, libc::PROT_NONE);
    assert!(register(0, 1, LOCAL_WRITE) && register(0, 2, REMOTE_READ) && register(0, 1, 0));
    assert!(!register(1, 1, LOCAL_WRITE), "it is only read");
    assert!(!register(0, 2, LOCAL_WRITE), "a part of it is only read");
    assert!(!register(2, 1, 0) && !register(1, 2, REMOTE_READ), "nobody may read it");
    assert_eq!(c!((api.ibv_dealloc_pd)(pd)), 0);
    assert_eq!(c!((api.ibv_close_device)(device)), 0);
}

/// Runs one of the tests below in a process of its own, with something to tell it apart.
fn alone(test: &str, value: &str) -> ExitStatus {
    let mut child = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env("FERROCX_CALLS_ALONE", value)
        // A process that ends in the middle holds what it holds.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .spawn()
        .unwrap();
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("{test} {value} hangs");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// How some child ended.
fn status_of_any() -> c_int {
    let mut status = -1;
    assert!(c!(libc::wait(&raw mut status)) > 0);
    status
}

/// Lets a failed check in any thread be seen in how the process ends.
fn end_with_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        std::process::abort();
    }));
}

#[test]
fn a_program_may_end_in_the_middle() {
    const NAME: &str = "a_program_may_end_in_the_middle";
    let Ok(seed) = env::var("FERROCX_CALLS_ALONE") else {
        for seed in 0..6 {
            assert!(alone(NAME, &seed.to_string()).success(), "seed {seed}");
        }
        return;
    };
    let seed = seed.parse().unwrap();
    end_with_panics();
    // The threads go on while this one ends the process, in one of the ways that there are.
    thread::spawn(move || begin(seed));
    thread::sleep(Duration::from_millis(30 + 40 * seed));
    match seed % 3 {
        0 => std::process::exit(0),
        1 => c!(libc::_exit(0)),
        _ => {}
    }
}

#[test]
fn a_wait_goes_on_after_a_signal_whose_handler_asks_for_it() {
    const NAME: &str = "a_wait_goes_on_after_a_signal_whose_handler_asks_for_it";
    if env::var("FERROCX_CALLS_ALONE").is_err() {
        // Handlers are the whole process's.
        return assert!(alone(NAME, "1").success());
    }
    let world = World::open(api(), false);
    world.is_disturbed();
    world.close();
}

#[test]
fn a_thread_that_polls_by_functions_may_make_other_calls() {
    let world = World::open(api(), false);
    world.calls_between_polls();
    world.close();
}

#[test]
fn a_batch_of_all_kinds_of_requests_arrives() {
    let world = World::open(api(), false);
    world.batches();
    world.close();
}

#[test]
fn data_that_stand_in_a_request_arrive_whatever_their_pieces() {
    let world = World::open(api(), false);
    world.pieces();
    world.close();
}

#[test]
fn a_batch_that_is_refused_leaves_nothing_behind() {
    let world = World::open(api(), false);
    world.refused_batches();
    world.close();
}

#[test]
fn a_queue_pair_takes_inline_what_its_requests_have_room_for() {
    let world = World::open(api(), false);
    let asked = [(1, 0), (1, 60), (1, 61), (4, 0), (5, 0), (16, 1), (1, 928), (16, 900)];
    let granted = world.inline_granted(&asked);
    assert_eq!(granted, [60, 60, 124, 60, 124, 252, 928, 928].map(|bytes| [bytes; 2]));
    let bytes: Vec<u8> = (1..=16).collect();
    assert_eq!(world.write_inline_unasked(&bytes), bytes);
    world.close();
}

#[test]
fn a_target_names_the_domain_that_it_was_made_in() {
    let world = World::open(api(), false);
    assert_eq!(world.targets_name_their_domain(), [true, false]);
    world.close();
}

#[test]
fn a_channel_has_a_file_of_its_own() {
    const NAME: &str = "a_channel_has_a_file_of_its_own";
    if env::var("FERROCX_CALLS_ALONE").is_err() {
        // Nobody else takes the number that a file leaves.
        return assert!(alone(NAME, "1").success());
    }
    let world = World::open(api(), false);
    world.channels_in_a_row();
    world.close();
}

#[test]
fn a_region_that_is_changed_keeps_its_addresses() {
    let world = World::open(api(), false);
    assert_eq!(world.write_to_changed(), (0, 0x5a));
    world.close();
}

#[test]
fn a_queue_pair_that_was_never_used_does_not_fail() {
    let world = World::open(api(), false);
    assert_eq!(world.fail_unused(), libc::EINVAL);
    world.close();
}

#[test]
fn who_waits_is_told_that_there_is_nothing_to_wait_for_any_more() {
    World::open(api(), false).ends_under_waiters();
}

#[test]
#[cfg(target_arch = "x86_64")]
fn who_waits_may_be_cancelled() {
    World::open(api(), false).ends_after_cancelled_waiters();
}

#[test]
fn a_device_may_be_closed_when_the_process_ends() {
    const NAME: &str = "a_device_may_be_closed_when_the_process_ends";
    if env::var("FERROCX_CALLS_ALONE").is_err() {
        return assert_eq!(alone(NAME, "1").code(), Some(7));
    }
    end_with_panics();
    World::open(api(), false).ends_in_exit();
}

#[test]
fn nobody_reaches_what_a_program_left_when_it_closed_its_device() {
    const RETRY_EXCEEDED: i32 = 12;
    let [world, other] = [(); 2].map(|()| World::open(api(), false));
    assert_eq!(world.write_to_left(&other), [0, RETRY_EXCEEDED]);
    world.close();
}

#[test]
fn a_child_of_a_fork_is_refused_and_harms_nobody() {
    const NAME: &str = "a_child_of_a_fork_is_refused_and_harms_nobody";
    if env::var("FERROCX_CALLS_ALONE").is_err() {
        // Other tests' threads hold locks when this process forks.
        return assert!(alone(NAME, "1").success());
    }
    end_with_panics();
    let world = begin(7);
    let bytes = Random::new(8).bytes(3000);
    // Whatever the parent's objects are asked for: the child has no device, and does not hang.
    let status = status_of(child(|| world.look_around(&mut Choices::new(&bytes))));
    assert_eq!(status, 0, "a child that uses its parent's objects");
    let status = status_of(child(|| begin(9).close()));
    assert_eq!(status, 0, "a child that opens a device of its own");
    let status = status_of(child(|| std::process::exit(0)));
    assert_eq!(status, 0, "a child that ends as programs do");
    let mut choices = Choices::new(&bytes);
    while !choices.is_empty() {
        world.act(&mut choices);
    }
    world.close();
}

#[test]
fn a_daemon_has_the_address_that_its_parent_had() {
    const NAME: &str = "a_daemon_has_the_address_that_its_parent_had";
    if env::var("FERROCX_CALLS_ALONE").is_err() {
        return assert!(alone(NAME, "1").success());
    }
    c!(env::set_var("FERROCX_IP", format!("127.88.14.{}", 1 + std::process::id() % 250)));
    assert_eq!(c!(libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1)), 0);
    let api = api();
    let parent = child(|| {
        let _device = calls::open(api);
        let this = c!(libc::getpid());
        child(|| {
            while c!(libc::getppid()) == this {
                thread::yield_now();
            }
            let device = calls::open(api).0;
            c!(libc::_exit(if (api.ibv_close_device)(device) == 0 { 7 } else { 8 }));
        });
    });
    assert_eq!(status_of(parent), 0);
    assert_eq!(status_of_any(), 7 << 8, "the daemon has no device");
}

#[test]
fn children_of_a_fork_share_memory_of_their_parents_device() {
    const NAME: &str = "children_of_a_fork_share_memory_of_their_parents_device";
    if env::var("FERROCX_CALLS_ALONE").is_err() {
        return assert!(alone(NAME, "1").success());
    }
    end_with_panics();
    let api = api();
    let context = calls::open(api).0;
    Lender { api, context }.lend_to_children();
    assert_eq!(c!((api.ibv_close_device)(context)), 0);
    // A parent that ends: its children are then this process's.
    assert_eq!(c!(libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1)), 0);
    let parent = child(|| Lender { api, context: calls::open(api).0 }.outlive_parent());
    assert_eq!(status_of(parent), 0);
    let orphans = [(); 2].map(|()| status_of_any());
    assert!(orphans.contains(&(7 << 8)), "{orphans:?}");
}
