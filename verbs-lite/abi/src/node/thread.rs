//! The thread that serves everybody who does not poll.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::{io, thread};

use super::{NAP, Node, SLEEP};

/// Empty polls during a nap that mean that somebody polls all the time.
const POLLERS: u32 = 8;
/// Calls from other machines in a row that came to nothing, after which the thread leaves the next
/// ones to whoever polls.
const IN_VAIN: u32 = 16;

/// Starts the thread of a node, which ends with it.
///
/// # Errors
///
/// The system's, when it has no room for a thread.
pub(super) fn start(node: &Arc<Node>) -> io::Result<()> {
    let mut server = Server { node: Arc::downgrade(node), in_vain: 0 };
    let run = move || while server.serve() {};
    thread::Builder::new().name("ferrocx-node".into()).spawn(run).map(drop)
}

/// What the thread remembers.
#[derive(Debug)]
struct Server {
    node: Weak<Node>,
    /// Calls in a row that woke it although somebody else had done the work.
    in_vain: u32,
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
        let hears_remote = !is_polled || self.in_vain < IN_VAIN;
        // A signal is the program's business.
        let woken = node.sleep(&[], hears_remote, if is_polled { NAP } else { SLEEP });
        match woken {
            Ok(woken) if woken.has_worked => self.in_vain = 0,
            Ok(woken) if woken.was_called => self.in_vain = self.in_vain.saturating_add(1),
            // One try after each nap.
            _ => self.in_vain = self.in_vain.min(IN_VAIN - 1),
        }
        true
    }
}
