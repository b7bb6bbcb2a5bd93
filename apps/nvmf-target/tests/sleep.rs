//! A core that sleeps until its device has something.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{with, with_target};
use ferrocx_nvmf_target::controller::Settings;
use ferrocx_nvmf_target::host::one;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::transport::{Command, Server, ServerConfig};

/// Longer than all that a host does here; a core that nobody wakes sleeps so long each time.
const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_core_that_sleeps_is_woken_for_each_command() {
    const COMMANDS: usize = 50;
    let config = ServerConfig { interrupts: Some(Duration::ZERO), ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let served = here.begin(|server| {
            let (start, mut done, mut naps) = (Instant::now(), 0, 0);
            // The end of a Flush's answer is not asked for: its capsule is all that comes.
            while done < COMMANDS && start.elapsed() < LONG {
                match server.poll().unwrap() {
                    0 => naps += usize::from(server.sleep(LONG).unwrap()),
                    some => done += some,
                }
            }
            (done, naps, start.elapsed())
        });
        for _ in 0..COMMANDS {
            let flush = Sqe { nsid: 1.into(), ..Sqe::new(io::FLUSH, 0, Sgl::NONE) };
            assert_eq!(one(&mut queue, flush).unwrap().status(), Status::SUCCESS);
        }
        let (done, naps, time) = served.recv().unwrap();
        assert!(done >= COMMANDS && time < LONG, "{done} completions, {naps} naps, {time:?}");
        assert!(naps > COMMANDS / 2, "{naps} naps for {COMMANDS} commands, one after the other");
        // With nothing to do it sleeps as long as it may.
        let nap = Duration::from_millis(30);
        let slept = here.change(move |server| {
            let start = Instant::now();
            while server.poll().unwrap() > 0 {}
            (server.sleep(nap).unwrap(), start.elapsed())
        });
        assert!(slept.0 && slept.1 >= nap, "{slept:?}");
        drop(queue);
        host.shut_down().unwrap();
        here.until_queues(0);
    });
}

/// What other threads want wakes nobody, nor do timers: they have their turn however often the core
/// is woken.
#[test]
fn a_core_that_is_woken_again_and_again_looks_at_the_clock_each_turn() {
    const COMMANDS: usize = 200;
    let config = ServerConfig { interrupts: Some(Duration::ZERO), ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let served = here.begin(|server| {
            let (mut work, looks) = (server.commands(), Arc::new(AtomicUsize::new(0)));
            let mut ask = move |looks: &Arc<AtomicUsize>| {
                let looks = Arc::clone(looks);
                let look = move |_: &mut Server| {
                    looks.fetch_add(1, Ordering::Relaxed);
                };
                assert!(work.push(Command::new(look)).is_ok());
                Instant::now()
            };
            let (start, mut done, mut asked, mut late) = (Instant::now(), 0, 1, 0);
            let (mut since, mut has_slept) = (ask(&looks), false);
            while done < COMMANDS && start.elapsed() < LONG {
                let is_due = has_slept && since.elapsed() > server.turn();
                let found = server.poll().unwrap();
                if looks.load(Ordering::Relaxed) == asked {
                    (since, asked) = (ask(&looks), asked + 1);
                } else {
                    late += usize::from(is_due);
                }
                has_slept = found == 0 && server.sleep(LONG).unwrap();
                done += found;
            }
            (done, asked, late)
        });
        for _ in 0..COMMANDS {
            let flush = Sqe { nsid: 1.into(), ..Sqe::new(io::FLUSH, 0, Sgl::NONE) };
            assert_eq!(one(&mut queue, flush).unwrap().status(), Status::SUCCESS);
        }
        let (done, asked, late) = served.recv().unwrap();
        assert!(done >= COMMANDS && asked > 2, "{done} completions, {asked} turns");
        assert_eq!(late, 0, "of {done} completions, {asked} turns");
        drop(queue);
        host.shut_down().unwrap();
        here.until_queues(0);
    });
}

#[test]
fn a_core_is_woken_no_sooner_than_it_wants() {
    const COMMANDS: u32 = 20;
    let apart = Duration::from_millis(3);
    let config = ServerConfig { interrupts: Some(apart), ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let served = here.begin(|server| {
            let (start, mut done) = (Instant::now(), 0);
            while done < COMMANDS as usize && start.elapsed() < LONG {
                match server.poll().unwrap() {
                    0 => _ = server.sleep(LONG).unwrap(),
                    some => done += some,
                }
            }
            (done, start.elapsed())
        });
        for _ in 0..COMMANDS {
            let flush = Sqe { nsid: 1.into(), ..Sqe::new(io::FLUSH, 0, Sgl::NONE) };
            assert_eq!(one(&mut queue, flush).unwrap().status(), Status::SUCCESS);
        }
        let (done, time) = served.recv().unwrap();
        // Half of them may have come before it slept.
        assert!(done >= 20 && time >= apart * (COMMANDS / 2 - 1) && time < LONG, "{time:?}");
        drop(queue);
        host.shut_down().unwrap();
        here.until_queues(0);
    });
}

#[test]
fn a_core_without_an_interrupt_does_not_sleep() {
    with_target(|here| {
        assert!(!here.change(|server| server.sleep(Server::TURN).unwrap()));
    });
}
