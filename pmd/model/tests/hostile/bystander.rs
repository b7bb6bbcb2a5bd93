//! Two ports beside the hostile guest's: on its switch, so that they get what it sends, and on a
//! thread of the same process, as the ports of a server are. One pings the other all the time, in
//! turn with two ports of a switch that no guest is on: what a ping takes there, in the same
//! minutes, is the machine's, whose host may take the processor away within any of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrocx_model::wire::{Switch, SwitchPort};

use crate::common::roce::{Peer, RC, TestQp, Two, inline, work};
use crate::common::thread_time;

const SEND: u32 = 0x0a;
/// Numbers of the two, in their addresses; the guest has another.
const NUMBERS: [u8; 2] = [3, 4];
/// Bytes that the switch holds for each port.
const SWITCH_BYTES: usize = 1 << 22;
/// Pings before the guest begins, to know what is usual.
const IDLE_PINGS: usize = 500;
/// Rest between two pings, so that these threads sleep and wake as those of a server do.
const REST: Duration = Duration::from_micros(200);
/// No ping may take more than so many times what the longest took without a guest.
const MOST: u32 = 10;

/// How often this thread lost its processor to another one, by the kernel's count.
fn interrupted() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("proc is mounted");
    let count = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).expect("the kernel counts them")
}

/// What one ping cost: turns of both ports, time on a processor, and time that passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ping {
    turns: u32,
    busy: Duration,
    passed: Duration,
    /// Another thread had the processor meanwhile: the kernel's own work at such a change, some
    /// milliseconds at times, counts as this thread's.
    is_interrupted: bool,
}

/// The longest pings, each figure by itself, and the usual one.
#[derive(Debug, Clone, Copy)]
struct Pings {
    turns: u32,
    busy: Duration,
    median: Duration,
}

impl Pings {
    fn of(pings: &[Ping]) -> Self {
        let mut passed: Vec<_> = pings.iter().map(|ping| ping.passed).collect();
        passed.sort_unstable();
        let turns = pings.iter().map(|ping| ping.turns).max().unwrap_or(0);
        let whole = pings.iter().filter(|ping| !ping.is_interrupted);
        let busy = whole.map(|ping| ping.busy).max().unwrap_or_default();
        Self { turns, busy, median: passed[passed.len() / 2] }
    }
}

/// The thread that pings.
pub(crate) struct Bystander {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Report>,
}

/// What happened to it: pings without and beside the guest, and frames of the guest that came.
struct Report {
    idle: Vec<Ping>,
    beside: Vec<Ping>,
    heard: u64,
}

impl Bystander {
    /// Starts pinging; returns once it is known what a ping takes, with the port of the guest of
    /// this number.
    pub(crate) fn start(guest: u8) -> (Self, SwitchPort) {
        let switch = Switch::new(SWITCH_BYTES);
        let guest = switch.port_of(mac_of(guest));
        let (known, wait): (_, Receiver<()>) = sync_channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut pair = Pair::new(&switch);
            let before = pair.heard();
            let mut idle: Vec<_> = (0..IDLE_PINGS).map(|_| pair.ping()).collect();
            let of_a_ping = (pair.heard() - before) / IDLE_PINGS as u64;
            known.send(()).expect("the guest waits");
            let mut alone = Pair::new(&Switch::new(SWITCH_BYTES));
            let (before, mut beside) = (pair.heard(), vec![pair.ping()]);
            while !stopped.load(Ordering::Relaxed) {
                idle.push(alone.ping());
                beside.push(pair.ping());
            }
            let heard = pair.heard() - before - beside.len() as u64 * of_a_ping;
            Report { idle, beside, heard }
        });
        wait.recv().expect("the bystander works");
        (Self { stop, thread }, guest)
    }

    /// Ends it; asserts that it got at least so many of the guest's frames and that no ping took
    /// too long, and says what they took.
    pub(crate) fn judge(self, least: u64) -> String {
        self.stop.store(true, Ordering::Relaxed);
        let report = self.thread.join().expect("the bystander got all its answers");
        let Report { idle, beside: pings, heard } = report;
        assert!(heard >= least, "only {heard} frames of the guest came");
        let (idle, beside) = (Pings::of(&idle), Pings::of(&pings));
        assert!(beside.turns <= MOST * idle.turns, "turns of a ping: {beside:?}, idle {idle:?}");
        assert!(beside.busy <= MOST * idle.busy, "work of a ping: {beside:?}, idle {idle:?}");
        // How long a thread waits for a processor is up to the system: the usual ping counts.
        assert!(beside.median <= MOST * idle.median, "usual ping: {beside:?}, idle {idle:?}");
        let count = pings.len();
        format!("{count} pings of a bystander among {heard} frames: {beside:?}, alone {idle:?}")
    }
}

/// Two connected ports of the switch.
struct Pair {
    two: Two,
    qa: TestQp,
    qb: TestQp,
}

impl Pair {
    fn new(switch: &Switch) -> Self {
        let [a, b] = NUMBERS.map(|number| Peer::new(number, switch.port_of(mac_of(number))));
        let mut two = Two { a, b };
        let (qa, qb) = two.connected(RC);
        Self { two, qa, qb }
    }

    /// Frames that came to either, whoever sent them.
    fn heard(&self) -> u64 {
        let came = |peer: &Peer| peer.host.nic.state().port.counters.rx().packets;
        came(&self.two.a) + came(&self.two.b)
    }

    fn ping(&mut self) -> Ping {
        std::thread::sleep(REST);
        self.two.b.post_receive(&mut self.qb, 0, 64);
        let before = interrupted();
        let (begun, busy) = (Instant::now(), thread_time());
        self.two.a.post_send(&mut self.qa, &work(SEND), &inline(b"hello"));
        let (mut done, mut turns) = (0, 0);
        while done < 2 {
            self.two.a.host.step();
            self.two.b.host.step();
            done += self.two.a.polled().len() + self.two.b.polled().len();
            turns += 1;
            assert!(turns < 10_000, "the message never arrived");
        }
        let (busy, passed) = (thread_time() - busy, begun.elapsed());
        let ping = Ping { turns, busy, passed, is_interrupted: interrupted() != before };
        assert_eq!(self.two.b.read(0, 5), b"hello");
        ping
    }
}

/// Addresses of the bystanders, for a guest that means them.
pub(crate) fn addresses() -> [[u8; 6]; 2] {
    NUMBERS.map(mac_of)
}

/// Address of the peer with this number.
fn mac_of(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}
