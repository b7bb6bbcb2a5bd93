//! [`Belief`] of a queue pair in completions, by their [eras](crate::era), and its [`Name`] in a
//! completion queue.

use std::sync::Arc;

use crate::cq::{Completion, CqCore, Ends, SPREAD};
use crate::era::{MARK_EVERY, NONE, qpn_be};
use crate::error::{VerbsError, lock};

/// Which completions are of a queue of requests, in its life of now. Positions are modulo 2^32.
#[derive(Debug)]
pub(crate) struct Belief {
    /// Number of completions that are believed without a look.
    known: u64,
    qpn_be: u32,
    cq: Arc<CqCore>,
    /// Where the latest eras began, the last one first, and these.
    marks: [(u32, u64); 3],
    /// The era that its life began with.
    since: u64,
}

impl Belief {
    /// Of a queue that completes in `cq`, of a queue pair that is new, at its first position.
    pub(crate) fn new(cq: &Arc<CqCore>, qpn: u32) -> Self {
        let since = cq.stamps.begin();
        Self::since(cq, qpn, since)
    }

    /// Of a queue whose completions are its own from a known era on.
    pub(crate) fn since(cq: &Arc<CqCore>, qpn: u32, since: u64) -> Self {
        let qpn_be = qpn.to_be();
        Self { known: NONE, qpn_be, cq: Arc::clone(cq), marks: [(0, since); 3], since }
    }

    /// Whether a completion is of this queue pair, in this life, and of whatever request it names:
    /// the answer is yes only where it needs no look. Ask [`Belief::looks_at`] else.
    #[inline(always)]
    pub(crate) fn knows(&self, completion: &Completion) -> bool {
        completion.number == self.known
    }

    /// The number of completions that need no look.
    #[inline(always)]
    pub(crate) fn known(&self) -> u64 {
        self.known
    }

    /// Whether a completion that names this queue pair, or whose number the caller knows, can be of
    /// the request at a position.
    pub(crate) fn looks_at(&mut self, completion: &Completion, position: u32) -> bool {
        let era = completion.era();
        let is_behind = |mark: &&(u32, u64)| position.wrapping_sub(mark.0).cast_signed() >= 0;
        let floor = self.marks.iter().find(is_behind).map_or(NONE, |(_, era)| *era);
        let is_right = self.is_of_life(completion) && era >= floor;
        // All that comes behind it is of this era or a later one.
        if is_right && era >= self.marks[0].1 && self.is_named_by(completion) {
            self.known = completion.number;
        }
        is_right
    }

    /// Whether a completion names this queue pair.
    pub(crate) fn is_named_by(&self, completion: &Completion) -> bool {
        qpn_be(completion.number) == self.qpn_be
    }

    /// Whether a completion is of this life, if it is of this queue pair.
    pub(crate) fn is_of_life(&self, completion: &Completion) -> bool {
        completion.source == self.cq.stamps.source && completion.era() >= self.since
    }

    /// Whether these completions are taken from a queue.
    pub(crate) fn completes_in(&self, cq: &Arc<CqCore>) -> bool {
        Arc::ptr_eq(&self.cq, cq)
    }

    /// The number of the queue that they are taken from.
    pub(crate) fn cqn(&self) -> u32 {
        self.cq.number()
    }

    /// Begins an era for requests from a position on, if that is [`MARK_EVERY`] behind where the
    /// last one began. The caller asks often enough, so that it is never twice that.
    #[inline(always)]
    pub(crate) fn keep_marks(&mut self, position: u32) {
        if position.wrapping_sub(self.marks[0].0) >= MARK_EVERY {
            self.mark(position);
        }
    }

    #[cold]
    #[inline(never)]
    fn mark(&mut self, position: u32) {
        let [last, before, _] = self.marks;
        self.marks = [(position, self.cq.stamps.begin()), last, before];
        self.known = NONE;
    }

    /// Begins another life at a position: everything that was posted has ended.
    pub(crate) fn begin_life(&mut self, position: u32) {
        self.since = self.cq.stamps.begin();
        (self.marks, self.known) = ([(position, self.since); 3], NONE);
    }
}

/// The number under which completions of a queue pair stand in a queue: of those that live, each
/// has its own there. Numbers of raw packet queue pairs may be those of others for the device.
#[derive(Debug)]
pub(crate) struct Name {
    cq: Arc<CqCore>,
    name: (u32, Ends),
}

impl Name {
    /// Takes a number for completions of one kind.
    pub(crate) fn take(cq: &Arc<CqCore>, name: (u32, Ends)) -> Result<Self, VerbsError> {
        if name.0 == SPREAD {
            let (what, way_out) = ("queue pair of this number", "make another queue pair");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        Self::hold(cq, name)
    }

    /// Takes the index of a queue pair that shares frames, for its receives. It stands where no
    /// number of a queue pair does: those have 24 bits.
    pub(crate) fn take_spread(cq: &Arc<CqCore>, user_index: u32) -> Result<Self, VerbsError> {
        Self::hold(cq, (1 << 31 | user_index, Ends::Receive))
    }

    fn hold(cq: &Arc<CqCore>, name: (u32, Ends)) -> Result<Self, VerbsError> {
        if !lock(&cq.names).insert(name) {
            let what = "two queue pairs in a completion queue that have one number, of raw packets \
                        and not, or one user_index and spread frames";
            return Err(VerbsError::Unsupported { what, way_out: "use another completion queue" });
        }
        Ok(Self { cq: Arc::clone(cq), name })
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        lock(&self.cq.names).remove(&self.name);
    }
}
