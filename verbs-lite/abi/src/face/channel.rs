//! Completion channels: a file that is readable as long as an event waits.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

use ferrocx_verbs_lite::CompletionChannel;

use super::context::{Context, Shared};
use super::{Errno, give_out, object, take_back, tried};
use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::files;
use crate::node::lock;

#[repr(C)]
pub(super) struct Channel {
    pub(super) face: ibv_comp_channel,
    pub(super) shared: Arc<Shared>,
    vector: u16,
    pub(super) inner: Mutex<Inner>,
}

/// What the lock of a channel guards.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) channel: CompletionChannel,
    /// Queues that fired and that the program was not told of.
    fired: VecDeque<u32>,
    /// Its queues by number, as places that the program knows.
    queues: HashMap<u32, usize>,
}

impl Inner {
    /// Takes the events that came.
    fn collect(&mut self) {
        while let Some(number) = self.channel.poll() {
            self.fired.push_back(number);
        }
    }

    /// The next queue that fired. With the last, the file becomes unreadable until the next event.
    pub(super) fn next(&mut self) -> Option<usize> {
        self.collect();
        loop {
            let number = self.fired.pop_front();
            if self.fired.is_empty() {
                files::clear(self.channel.as_fd());
                // What comes from here on makes it readable again.
                self.channel.arm();
            }
            // A queue that is gone has nothing to tell.
            if let Some(queue) = self.queues.get(&number?) {
                return Some(*queue);
            }
        }
    }
}

impl Channel {
    /// # Safety
    /// The module's: `face` is a live channel.
    pub(super) unsafe fn of<'a>(face: *mut ibv_comp_channel) -> &'a Self {
        promised!(&*face.cast::<Self>())
    }

    /// The place that the program knows.
    pub(super) fn face(&self) -> *mut ibv_comp_channel {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    pub(super) fn add(&self, number: u32, queue: *mut ibv_cq) {
        lock(&self.inner).queues.insert(number, queue.expose_provenance());
    }

    pub(super) fn remove(&self, number: u32) {
        let mut inner = lock(&self.inner);
        inner.collect();
        inner.queues.remove(&number);
        inner.fired.retain(|fired| *fired != number);
        if inner.fired.is_empty() {
            files::clear(inner.channel.as_fd());
            inner.channel.arm();
        }
    }
}

fn create(context: *mut ibv_context) -> Result<*mut ibv_comp_channel, Errno> {
    let shared = promised!(Context::here(context))?;
    let vector = shared.node.take_vector().ok_or(Errno(libc::EMFILE))?;
    let made = shared.node.context.create_comp_channel(vector).map_err(Errno::from);
    let mut channel = made.inspect_err(|_| shared.node.give_vector(vector))?;
    files::set_blocking(channel.as_fd()).map_err(|_| Errno(libc::EIO))?;
    channel.arm();
    let fd = channel.as_fd().as_raw_fd();
    let (fired, queues) = (VecDeque::new(), HashMap::new());
    Ok(give_out(Channel {
        face: ibv_comp_channel { context, fd, refcnt: 0 },
        shared: Arc::clone(shared),
        vector,
        inner: Mutex::new(Inner { channel, fired, queues }),
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
    let channel = promised!(take_back::<Channel, _>(channel));
    let Channel { shared, vector, inner, .. } = *channel;
    // The event queue ends before somebody else has its vector.
    drop(inner);
    shared.node.give_vector(vector);
    0
}
