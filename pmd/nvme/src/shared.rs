//! [`QueueShared`]: what a queue and its controller tell each other.
//!
//! | from | to | who, when |
//! |---|---|---|
//! | `CLEAN` | `MAKING` | the controller begins to make the queue: the drive may know it |
//! | `MAKING` | `ACTIVE` | the drive has made it: from now on its core may ring |
//! | `ACTIVE` | `QUIET` | the controller, before it switches the drive off: nothing new is told |
//! | `MAKING`, `ACTIVE`, `QUIET` | `DOWN` | the controller was reset: the drive reaches nothing of it |
//! | `DOWN` | `CLEAN` | the queue's core has ended what was under way, and emptied the rings |
//! | any | `DEAD` | the controller: there will be no drive, and it reaches nothing of the queue |
//! | any | `STUCK` | the controller: there will be no drive, and it may reach the memory still |

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::identify::Namespace;
use crate::parts::Parts;

/// Values of [`QueueShared::state`].
pub(crate) const CLEAN: u8 = 0;
pub(crate) const ACTIVE: u8 = 1;
pub(crate) const DOWN: u8 = 2;
pub(crate) const DEAD: u8 = 3;
pub(crate) const STUCK: u8 = 4;
pub(crate) const MAKING: u8 = 5;
pub(crate) const QUIET: u8 = 6;

/// In [`QueueShared::late`]: the command has ended, and the controller has not seen it.
const HAS_ENDED: u32 = 1 << 31;

/// What a queue and its controller share.
#[derive(Debug)]
pub(crate) struct QueueShared {
    pub(crate) qid: u16,
    /// What it was made for.
    pub(crate) namespace: Namespace,
    /// I/O addresses of its rings, and their entries.
    pub(crate) sq_iova: u64,
    pub(crate) cq_iova: u64,
    pub(crate) entries: u32,
    state: AtomicU8,
    /// One more than the number of a command that takes too long; 0 for none. The queue sets it
    /// from 0, and adds that the command has ended; the controller makes it 0 then, while no abort
    /// is on its way, and only then is the number used again: an abort never hits another command.
    late: AtomicU32,
    /// The drive completed what it cannot have completed.
    is_insane: AtomicBool,
    /// What a queue was made of that was dropped: the drive may still use it.
    left: Mutex<Left>,
}

/// What a queue left behind.
#[derive(Debug, Default)]
pub(crate) struct Left {
    pub(crate) is_dropped: bool,
    pub(crate) parts: Option<Parts>,
}

impl QueueShared {
    pub(crate) fn new(
        qid: u16,
        namespace: Namespace,
        (sq_iova, cq_iova): (u64, u64),
        entries: u32,
    ) -> Self {
        Self {
            qid,
            namespace,
            sq_iova,
            cq_iova,
            entries,
            state: AtomicU8::new(CLEAN),
            late: AtomicU32::new(0),
            is_insane: AtomicBool::new(false),
            left: Mutex::default(),
        }
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }

    /// The queue's own step, from `DOWN`; nothing if the controller has taken another meanwhile.
    pub(crate) fn cleaned(&self) {
        self.late.store(0, Ordering::Relaxed);
        self.is_insane.store(false, Ordering::Relaxed);
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.state.compare_exchange(DOWN, CLEAN, success, failure);
    }

    /// A step of the controller.
    pub(crate) fn set(&self, state: u8) {
        // Under the lock, so that a queue that is dropped either sees it or leaves its parts.
        let _left = self.left();
        self.state.store(state, Ordering::Release);
    }

    /// Whether the drive may know the queue, and reach its memory.
    pub(crate) fn is_known(&self) -> bool {
        matches!(self.state(), MAKING | ACTIVE | QUIET)
    }

    pub(crate) fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The command that takes too long, and has not ended.
    pub(crate) fn late(&self) -> Option<u16> {
        self.late.load(Ordering::Acquire).checked_sub(1).and_then(|cid| u16::try_from(cid).ok())
    }

    /// Whether there is none, and the controller has seen that the last one ended.
    pub(crate) fn is_punctual(&self) -> bool {
        self.late.load(Ordering::Acquire) == 0
    }

    /// A step of the queue, which is punctual.
    pub(crate) fn set_late(&self, cid: u16) {
        self.late.store(u32::from(cid) + 1, Ordering::Release);
    }

    /// A step of the queue: the command that took too long has ended.
    #[cold]
    pub(crate) fn late_has_ended(&self) {
        self.late.fetch_or(HAS_ENDED, Ordering::AcqRel);
    }

    /// A step of the controller, when no abort is on its way.
    pub(crate) fn see_late(&self) {
        if self.late.load(Ordering::Acquire) & HAS_ENDED != 0 {
            self.late.store(0, Ordering::Release);
        }
    }

    pub(crate) fn is_insane(&self) -> bool {
        self.is_insane.load(Ordering::Acquire)
    }

    pub(crate) fn set_insane(&self) {
        self.is_insane.store(true, Ordering::Release);
    }
}
