//! The thread that serves everybody who does not poll.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::{io, thread};

use super::ring::{QUIET_NS, now_ns};
use super::sleep::Sleep;
use super::{GLANCE, NAP, Node, SLEEP};

/// Empty polls during a sleep that mean that somebody polls all the time.
const POLLERS: u32 = 8;
/// Calls from other machines in a row that came to nothing, after which the thread leaves the next
/// ones to whoever polls.
const IN_VAIN: u32 = 16;
/// How long somebody who polled is believed to go on, in nanoseconds.
const POLLED_NS: u64 = 200_000;

/// Starts the thread of a node, which ends with it.
///
/// # Errors
///
/// The system's, when it has no room for a thread.
pub(super) fn start(node: &Arc<Node>) -> io::Result<()> {
    let node = Arc::downgrade(node);
    let mut server = Server { node, in_vain: 0, polled_ns: 0, quiet_until_ns: 0 };
    let run = move || while server.serve() {};
    thread::Builder::new().name("ferrocx-node".into()).spawn(run).map(drop)
}

/// What the thread remembers.
#[derive(Debug)]
struct Server {
    node: Weak<Node>,
    /// Calls in a row that woke it although somebody else had done the work.
    in_vain: u32,
    /// When it last saw that somebody polls.
    polled_ns: u64,
    /// Until when peers of this machine do not call, because somebody polls; 0 when they do.
    quiet_until_ns: u64,
}

impl Server {
    /// One round; `false` when the node is gone.
    fn serve(&mut self) -> bool {
        let Some(node) = self.node.upgrade() else { return false };
        node.tell_events();
        let polls = node.empty_polls.swap(0, Ordering::Relaxed);
        if node.sleepers.load(Ordering::Relaxed) > 0 {
            node.take_turns();
            drop(node);
            thread::sleep(NAP);
            return true;
        }
        // Who polls takes what comes from other machines, and what comes from this one; if it
        // stops, this one's processes call. One that polls now and then looks the same, except
        // that the thread does not come in vain.
        let is_polled = polls >= POLLERS;
        let started_ns = now_ns();
        if polls > 0 {
            self.polled_ns = started_ns;
        }
        let beside_poller = started_ns.saturating_sub(self.polled_ns) < POLLED_NS;
        let calls_from_ns = if self.quiet_until_ns > started_ns { self.quiet_until_ns } else { 0 };
        let longest = match () {
            () if calls_from_ns != 0 => GLANCE,
            () if is_polled => NAP,
            () => SLEEP,
        };
        let hears_remote = !is_polled || self.in_vain < IN_VAIN;
        let sleep = Sleep { longest, beside_poller, hears_remote, calls_from_ns };
        // A signal is the program's business.
        let woken = node.sleep(&[], sleep);
        // A call that came too late takes the core from somebody, and the next one would again.
        let is_in_vain = woken.is_ok_and(|woken| woken.was_called && !woken.has_worked);
        let has_poller = beside_poller || node.empty_polls.load(Ordering::Relaxed) > 0;
        self.quiet_until_ns = if is_in_vain && has_poller { now_ns() + QUIET_NS } else { 0 };
        match woken {
            Ok(woken) if woken.has_worked => self.in_vain = 0,
            Ok(woken) if woken.was_called => self.in_vain = self.in_vain.saturating_add(1),
            // One try after each nap.
            _ => self.in_vain = self.in_vain.min(IN_VAIN - 1),
        }
        true
    }
}
