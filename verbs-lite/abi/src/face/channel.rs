//! Completion channels: a file that is readable as long as an event waits.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use ferrocx_verbs_lite::{CompletionChannel, Cq, RdmaContext, VerbsError};

use super::context::{Context, Shared};
use super::life::Waiters;
use super::shown::Shown;
use super::{Errno, give_out, object, take_back, tried};
use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::files;
use crate::node::{Hub, Mailbox, lock};

#[repr(C)]
pub(super) struct Channel {
    pub(super) face: Shown<ibv_comp_channel>,
    pub(super) shared: Arc<Shared>,
    pub(super) inner: Mutex<Inner>,
    pub(super) waiters: Waiters,
}

/// What the lock of a channel guards.
#[derive(Debug)]
pub(super) struct Inner {
    events: Events,
    /// Its queues by number, as places that the program knows.
    queues: HashMap<u32, usize>,
}

/// Where the events of a channel come from.
#[derive(Debug)]
enum Events {
    /// A vector of its own.
    Own {
        channel: CompletionChannel,
        vector: u16,
        /// What the program has of it: the vector's file outlives the channel.
        file: OwnedFd,
        /// Queues that fired and that the program was not told of.
        fired: VecDeque<u32>,
    },
    /// One that it shares.
    Shared { hub: Arc<Hub>, mailbox: Arc<Mailbox> },
}

impl Events {
    fn new(shared: &Shared) -> Result<Self, Errno> {
        let Some(vector) = shared.node.take_vector() else {
            let hub = shared.node.hub().map_err(|error| {
                tracing::info!(%error, "no more completion channels");
                Errno(libc::EMFILE)
            })?;
            let mailbox = Arc::new(Mailbox::new().map_err(|_| Errno(libc::EMFILE))?);
            return Ok(Self::Shared { hub, mailbox });
        };
        let made = shared.node.context.create_comp_channel(vector).map_err(Errno::from);
        let made = made.and_then(|channel| {
            let file = files::beside(channel.as_fd()).map_err(|_| Errno(libc::EMFILE))?;
            Ok((channel, file))
        });
        let (mut channel, file) = made.inspect_err(|_| shared.node.give_vector(vector))?;
        let fired = VecDeque::new();
        // Of what the vector's last channel was woken for, nothing is left.
        settle(&mut channel, &fired);
        Ok(Self::Own { channel, vector, file, fired })
    }

    /// The file that is readable as long as an event waits.
    fn file(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own { file, .. } => file.as_fd(),
            Self::Shared { mailbox, .. } => mailbox.file.as_fd(),
        }
    }

    /// Makes that file readable.
    fn wake(&self) {
        match self {
            Self::Own { channel, .. } => files::signal(channel.as_fd()),
            Self::Shared { mailbox, .. } => files::signal(&mailbox.file),
        }
    }

    /// The next queue that fired. With the last, the file becomes unreadable until the next event.
    fn next(&mut self) -> Option<u32> {
        match self {
            Self::Own { channel, fired, .. } => {
                fired.extend(std::iter::from_fn(|| channel.poll()));
                let next = fired.pop_front();
                settle(channel, fired);
                next
            }
            Self::Shared { hub, mailbox } => {
                hub.hand_out();
                mailbox.pop()
            }
        }
    }

    /// Tells that a queue has fired.
    fn put(&mut self, number: u32) {
        match self {
            Self::Own { channel, fired, .. } => {
                fired.push_back(number);
                files::signal(channel.as_fd());
            }
            Self::Shared { mailbox, .. } => mailbox.put(number),
        }
    }

    /// Drops the events of a queue that ends.
    fn forget(&mut self, number: u32) {
        match self {
            Self::Own { channel, fired, .. } => {
                fired.extend(std::iter::from_fn(|| channel.poll()));
                fired.retain(|fired| *fired != number);
                settle(channel, fired);
            }
            Self::Shared { hub, mailbox } => {
                hub.hand_out();
                hub.remove(number);
                mailbox.forget(number);
            }
        }
    }
}

/// Makes the file of a channel unreadable if nothing has fired.
fn settle(channel: &mut CompletionChannel, fired: &VecDeque<u32>) {
    if fired.is_empty() {
        files::clear(channel.as_fd());
        // What comes from here on makes it readable again.
        channel.arm();
    }
}

impl Inner {
    /// The next queue that fired.
    pub(super) fn next(&mut self) -> Option<usize> {
        loop {
            // A queue that is gone has nothing to tell.
            if let Some(queue) = self.queues.get(&self.events.next()?) {
                return Some(*queue);
            }
        }
    }

    /// Makes a completion queue that reports here.
    pub(super) fn create_cq(&self, context: &RdmaContext, entries: u32) -> Result<Cq, VerbsError> {
        match &self.events {
            Events::Own { channel, .. } => context.create_cq_unreserved(entries, Some(channel)),
            Events::Shared { hub, mailbox } => hub.create_cq(context, entries, mailbox),
        }
    }
}

impl Channel {
    /// # Safety
    /// The module's: `face` is a live channel.
    pub(super) unsafe fn of<'a>(face: *mut ibv_comp_channel) -> &'a Self {
        promised!(&*face.cast::<Self>())
    }

    pub(super) fn add(&self, number: u32, queue: *mut ibv_cq) {
        lock(&self.inner).queues.insert(number, queue.expose_provenance());
    }

    /// Has an event of a queue come, whatever the device says.
    pub(super) fn fire(&self, number: u32) {
        lock(&self.inner).events.put(number);
    }

    pub(super) fn remove(&self, number: u32) {
        let mut inner = lock(&self.inner);
        inner.queues.remove(&number);
        inner.events.forget(number);
    }
}

fn create(context: *mut ibv_context) -> Result<*mut ibv_comp_channel, Errno> {
    let shared = promised!(Context::here(context))?;
    let events = Events::new(shared)?;
    let fd = events.file().as_raw_fd();
    Ok(give_out(Channel {
        face: Shown::new(ibv_comp_channel { context, fd, refcnt: 0 }),
        shared: Arc::clone(shared),
        inner: Mutex::new(Inner { events, queues: HashMap::new() }),
        waiters: Waiters::default(),
    }))
}

pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    object(create(context))
}

pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let open = promised!(Channel::of(channel));
    tried!(open.shared.here());
    if !lock(&open.inner).queues.is_empty() {
        return libc::EBUSY;
    }
    open.waiters.end(|| lock(&open.inner).events.wake());
    let channel = promised!(take_back::<Channel, _>(channel));
    let Channel { shared, inner, .. } = *channel;
    let inner = inner.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Events::Own { channel, vector, .. } = inner.events {
        // The event queue ends before somebody else has its vector.
        drop(channel);
        shared.node.give_vector(vector);
    }
    0
}
