//! What a core does in a round for commands to RAM: it takes no lock that cores share, and has two
//! completions for a command at most.

mod by_hand;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use by_hand::RAM;
use by_hand::rig::{CLOCK_EVERY, Rig, What};
use ferrocx_nvmf_target::transport::{Command, Server};
use rtrb::Producer;

const MOST: usize = 32;
const WHATS: [What; 3] = [What::Read, What::Write, What::WriteInCapsule];

/// A batch of commands; rounds of the target, and completions that it had.
fn batch(rig: &mut Rig, what: What, count: usize) -> (usize, usize) {
    rig.submit(what, RAM, count).unwrap();
    let (mut rounds, mut completions, mut answered) = (0, 0, 0);
    while answered < count {
        rig.settle();
        completions += rig.server.poll().unwrap();
        rounds += 1;
        rig.settle();
        answered += rig.answered().unwrap();
    }
    (rounds, completions)
}

/// That of a command, and one for what is posted for it; many share that.
#[test]
fn a_command_has_two_completions_at_most() {
    const TIMES: usize = 64;
    let mut rig = Rig::start(MOST).unwrap();
    for what in WHATS {
        for count in [1, MOST] {
            let seen: usize = (0..TIMES).map(|_| batch(&mut rig, what, count).1).sum();
            let (commands, shared) = (count * TIMES, if count == 1 { 1 } else { 4 });
            // What a batch before has left may end in this one.
            let most = commands + commands / shared + 1;
            assert!((commands..=most).contains(&seen), "{what:?} {count}: {seen} of {commands}");
        }
    }
}

/// Rounds until the target has looked at the clock and had its turn, with naps before each.
fn until_look(rig: &mut Rig, commands: &mut Producer<Command>, nap: Duration) -> usize {
    let has_looked = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&has_looked);
    let look = Command::new(move |_| flag.store(true, Ordering::Relaxed));
    assert!(commands.push(look).is_ok());
    let mut rounds = 0;
    while !has_looked.load(Ordering::Relaxed) {
        if !nap.is_zero() {
            thread::sleep(nap);
            rig.server.napped(nap);
        }
        rig.server.poll().unwrap();
        rounds += 1;
    }
    rounds
}

/// The longer the naps, the fewer of them are between two looks.
#[test]
fn a_core_that_naps_looks_at_the_clock_each_turn() {
    let mut rig = Rig::start(1).unwrap();
    let mut commands = rig.server.commands();
    // Of 50 us, 13 may end before a turn is over, which the next 13 find then.
    for (micros, most) in [(50, 26), (200, 5), (500, 2), (1000, 1)] {
        let nap = Duration::from_micros(micros);
        until_look(&mut rig, &mut commands, nap);
        for _ in 0..8 {
            let rounds = until_look(&mut rig, &mut commands, nap);
            // Of a host that has been there for a second a turn is longer.
            let turns = (rig.server.turn().as_micros() / Server::TURN.as_micros()) as usize;
            assert!(rounds <= most * turns, "{rounds} naps of {nap:?} in {turns} ms");
        }
    }
}

/// This thread holds what cores share while it carries commands out itself: would they lock it, it
/// waited for itself for ever.
#[test]
fn commands_take_no_lock_that_cores_share() {
    let (done, wait) = channel();
    thread::spawn(move || {
        let mut rig = Rig::start(MOST).unwrap();
        let other = rig.server.another().unwrap();
        let mut commands = rig.server.commands();
        for what in WHATS {
            for count in [1, MOST] {
                // Behind a look at the clock the next one is that many rounds away.
                until_look(&mut rig, &mut commands, Duration::ZERO);
                let held = other.target();
                let (rounds, _) = batch(&mut rig, what, count);
                assert!(rounds < CLOCK_EVERY, "{rounds} rounds");
                drop(held);
            }
        }
        done.send(()).unwrap();
    });
    wait.recv_timeout(Duration::from_secs(60)).expect("a command has locked what cores share");
}
