//! [`Context`]: an open device, and the objects that were made in it.

use std::collections::HashMap;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use ferrocx_verbs_lite::{Completion, MrChanger, Srq};

use super::Errno;
use super::clock::Compared;
use super::handles::Handles;
use super::life::{Process, Waiters};
use super::pair::{List, Member, report};
use crate::abi::{ibv_async_event, ibv_context, ibv_wc, verbs_context};
use crate::node::{Node, lock};

/// What all objects of an open device share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) process: Process,
    pub(super) node: Arc<Node>,
    /// Queue pairs, by the number that their completions carry.
    pub(super) members: RwLock<Vec<Option<Arc<Member>>>>,
    pub(super) indices: Mutex<Indices>,
    /// Shared receive queues of XRC, by the number that their completions carry: among those of
    /// queue pairs.
    pub(super) xrc_queues: Mutex<HashMap<u32, XrcQueue>>,
    pub(super) events: Mutex<Events>,
    pub(super) event_fd: OwnedFd,
    pub(super) waiters: Waiters,
    /// What changes regions, made when it is first asked for.
    pub(super) changer: Mutex<Option<MrChanger>>,
    /// The device's clock and the host's, once a program wants the one's time in the other's.
    pub(super) clock: Mutex<Option<Compared>>,
    /// What the command file stands for.
    pub(super) handles: Arc<Handles>,
    pub(super) command_file: OwnedFd,
}

/// A shared receive queue of XRC.
pub(super) type XrcQueue = Arc<Mutex<Srq<List>>>;

/// Asynchronous events, and whom they may be about.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Those that the program has not taken yet.
    pub(super) waiting: std::collections::VecDeque<Queued>,
    pub(super) objects: HashMap<(Kind, u32), Told>,
}

/// Whom an event may be about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Cq,
    Qp,
    Srq,
}

/// An object as the program knows it, and its events that the program has and did not acknowledge.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) face: u64,
    pub(super) unacknowledged: u32,
}

/// An event that waits, and the object that it is about; `None` for the port.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queued {
    pub(super) event: ibv_async_event,
    pub(super) about: Option<(Kind, u32)>,
}

impl Shared {
    /// A number for a queue pair that is still to be made.
    pub(super) fn take_index(&self) -> u32 {
        let mut indices = lock(&self.indices);
        indices.free.pop().unwrap_or_else(|| {
            indices.next += 1;
            indices.next - 1
        })
    }

    /// Gives back a number that no queue pair has.
    pub(super) fn give_index(&self, index: u32) {
        lock(&self.indices).free.push(index);
    }

    /// Lets completions be found by their queue pair.
    pub(super) fn insert(&self, member: &Arc<Member>) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        let Some(index) = member.index else { return };
        let at = index as usize;
        if at >= members.len() {
            members.resize(at + 1, None);
        }
        members[at] = Some(Arc::clone(member));
    }

    /// Ends that. The number stays taken, until [`Shared::give_index`].
    pub(super) fn remove(&self, index: u32) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        members[index as usize] = None;
    }

    /// Gives out what a completion ends whose number no queue pair has: a receive of XRC, or
    /// nothing, if its queue pair is gone.
    #[cold]
    pub(super) fn end_xrc(&self, completion: Completion, mut out: impl FnMut(ibv_wc)) {
        let queues = lock(&self.xrc_queues);
        let queue = queues.get(&completion.user_index());
        let qpn = completion.qpn();
        if let Some(ended) = queue.and_then(|queue| lock(queue).complete(completion)) {
            out(report(&ended, qpn.0));
        }
    }
}

/// Numbers of queue pairs.
#[derive(Debug, Default)]
pub(super) struct Indices {
    free: Vec<u32>,
    next: u32,
}

/// Contexts that were closed and that objects of their programs still name.
static CLOSED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// An open device as the program has it.
#[repr(C)]
pub(super) struct Context {
    pub(super) verbs: verbs_context,
    /// `None` once it is closed.
    pub(super) shared: Option<Arc<Shared>>,
}

impl Shared {
    /// Fails in a child of the process that opened the device.
    #[inline]
    pub(super) fn here(&self) -> Result<(), Errno> {
        self.process.here()
    }
}

impl Context {
    /// The place in it that the program knows.
    pub(super) const FACE: usize = offset_of!(Context, verbs) + offset_of!(verbs_context, context);

    /// The context of a place that the program knows.
    pub(super) fn whole(face: *mut ibv_context) -> *mut Self {
        face.wrapping_byte_sub(Self::FACE).cast()
    }

    /// What its objects share.
    ///
    /// # Safety
    /// The module's: `face` is of an open device, or of one that was closed with objects left.
    pub(super) unsafe fn of<'a>(face: *mut ibv_context) -> Result<&'a Arc<Shared>, Errno> {
        promised!((*Self::whole(face)).shared.as_ref()).ok_or(Errno(libc::EBADF))
    }

    /// The same, in the process that opened it.
    ///
    /// # Safety
    /// That of [`Context::of`].
    pub(super) unsafe fn here<'a>(face: *mut ibv_context) -> Result<&'a Arc<Shared>, Errno> {
        let shared = promised!(Self::of(face))?;
        shared.here().map(|()| shared)
    }

    /// Closes it. Its memory stays if the program still has objects that name it: programs end them
    /// afterwards (pyverbs does, where a set-up failed in its middle), and are told that it is
    /// closed.
    ///
    /// # Safety
    /// The module's: `face` is of an open device, which nobody else uses any more.
    pub(super) unsafe fn close(face: *mut ibv_context) {
        let whole = Self::whole(face);
        let shared = promised!((*whole).shared.take());
        let has_objects = shared.is_some_and(|shared| {
            // The caller holds it, too.
            Arc::strong_count(&shared) > 2 || !lock(&shared.handles.domains).is_empty()
        });
        if has_objects {
            lock(&CLOSED).push(whole.expose_provenance());
        } else {
            drop(promised!(Box::from_raw(whole)));
        }
    }
}
