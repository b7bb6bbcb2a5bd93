//! [`Hub`]: one event queue and interrupt vector for many completion channels.
//!
//! A device has a few dozen vectors; programs make a channel for each of thousands of sockets. The
//! first channels have a vector each, and wake their waiter without anybody between. The others
//! share hubs: a thread takes the events and puts each into the [`Mailbox`] of its channel.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::{io, thread};

use ferrocx_verbs_lite::{CompletionChannel, Cq, RdmaContext, VerbsError};

use super::live::Live;
use super::lock;
use crate::face::signals::held_back;
use crate::files;

/// Channels of a hub before there is another one, as long as there are vectors.
pub(super) const CHANNELS: usize = 32;

/// The event queue of many channels.
#[derive(Debug)]
pub(crate) struct Hub {
    inner: Mutex<Inner>,
    /// The thread may be the last to let go of the device.
    _live: Live,
}

/// What the lock of a hub guards.
#[derive(Debug)]
struct Inner {
    channel: CompletionChannel,
    /// Where the events of a completion queue go, by its number.
    mailboxes: HashMap<u32, Arc<Mailbox>>,
}

/// Events of a channel that its program has not taken, and a file that is readable while there are
/// any.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(crate) file: OwnedFd,
    fired: Mutex<VecDeque<u32>>,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { file: files::new()?, fired: Mutex::default() })
    }

    /// The next queue that fired. With the last, the file becomes unreadable.
    pub(crate) fn pop(&self) -> Option<u32> {
        let mut fired = lock(&self.fired);
        let next = fired.pop_front();
        if fired.is_empty() {
            files::clear(&self.file);
        }
        next
    }

    /// Drops the events of a queue.
    pub(crate) fn forget(&self, number: u32) {
        let mut fired = lock(&self.fired);
        fired.retain(|queue| *queue != number);
        if fired.is_empty() {
            files::clear(&self.file);
        }
    }

    /// Tells that a queue has fired.
    pub(crate) fn put(&self, number: u32) {
        let mut fired = lock(&self.fired);
        fired.push_back(number);
        files::signal(&self.file);
    }
}

impl Hub {
    /// Makes one that interrupt `vector` serves, and the thread.
    pub(super) fn new(context: &RdmaContext, vector: u16, live: Live) -> io::Result<Arc<Self>> {
        let mut channel = context.create_comp_channel(vector).map_err(super::refused)?;
        channel.arm();
        let file = channel.as_fd().try_clone_to_owned()?;
        let mailboxes = HashMap::new();
        let inner = Mutex::new(Inner { channel, mailboxes });
        let hub = Arc::new(Self { inner, _live: live });
        let weak = Arc::downgrade(&hub);
        let run = move || serve(&file, &weak);
        let thread = thread::Builder::new().name("ferrocx-events".into());
        held_back(|| thread.spawn(run))?;
        Ok(hub)
    }

    /// Makes a completion queue that reports to a mailbox.
    pub(crate) fn create_cq(
        &self,
        context: &RdmaContext,
        entries: u32,
        mailbox: &Arc<Mailbox>,
    ) -> Result<Cq, VerbsError> {
        let mut inner = lock(&self.inner);
        let cq = context.create_cq_unreserved(entries, Some(&inner.channel))?;
        inner.mailboxes.insert(cq.number(), Arc::clone(mailbox));
        Ok(cq)
    }

    /// Drops the events of a completion queue that is about to be destroyed.
    pub(crate) fn remove(&self, number: u32) {
        lock(&self.inner).mailboxes.remove(&number);
    }

    /// Hands out the events that came.
    pub(crate) fn hand_out(&self) {
        let mut inner = lock(&self.inner);
        let Inner { channel, mailboxes } = &mut *inner;
        files::clear(channel.as_fd());
        while let Some(number) = channel.poll() {
            // A queue that is gone has nothing to tell.
            if let Some(mailbox) = mailboxes.get(&number) {
                mailbox.put(number);
            }
        }
        // What comes from here on wakes the thread.
        channel.arm();
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // The thread finds that it is gone.
        files::signal(lock(&self.inner).channel.as_fd());
    }
}

/// Hands out events as long as there is a hub.
fn serve(file: &OwnedFd, hub: &Weak<Hub>) {
    loop {
        // A signal is the program's business.
        files::wait(file.as_fd(), None);
        let Some(hub) = hub.upgrade() else { return };
        hub.hand_out();
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use super::{Hub, Live};
    use crate::node::Node;

    /// Whether a thread holds a signal back. Source: proc(5), `SigBlk`.
    fn holds_back(task: &str, signal: libc::c_int) -> bool {
        let status = fs::read_to_string(format!("/proc/self/task/{task}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal - 1) & 1 == 1
    }

    #[test]
    fn threads_of_this_library_take_no_signals_of_the_program() {
        let node = Node::open(0).unwrap();
        let _hub = Hub::new(&node.context, 1, Live::new(0)).unwrap();
        let ours = || -> Vec<String> {
            let tasks = fs::read_dir("/proc/self/task").unwrap();
            let names = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
            let comm = |task: &String| fs::read_to_string(format!("/proc/self/task/{task}/comm"));
            names.filter(|task| comm(task).is_ok_and(|name| name.starts_with("ferrocx-"))).collect()
        };
        // Threads name themselves.
        while ours().len() < 2 {
            thread::yield_now();
        }
        for task in &ours() {
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR2, libc::SIGCHLD] {
                assert!(holds_back(task, signal), "signal {signal}");
            }
            assert!(!holds_back(task, libc::SIGSEGV), "what it does itself");
        }
        let this = rustix::thread::gettid().as_raw_nonzero().to_string();
        assert!(!holds_back(&this, libc::SIGUSR2), "the caller has its own signals back");
    }
}
