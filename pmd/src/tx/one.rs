//! Sending one frame at a time: no burst, no buffers, nothing looked up.

use ferrocx_core::wq::{Control, blocks_of};
use ferrocx_prm::wqe::{DS_BYTES, Opcode};

use super::{PrebuiltFrame, TxQueue, TxRing};

impl TxQueue {
    /// Sends one prebuilt frame, copied into its request; the frame is free to be changed and sent
    /// again at once. `false` if it was not sent: the ring is full, which counts in
    /// [`TxStats::full`](crate::TxStats::full), or the queue has a fault.
    ///
    /// The way for a program that answers at once: what [`TxQueue::tx_burst`] shares among packets,
    /// looking for completions and asking for them, is done here once in a quarter of the ring.
    /// A fault shows as late. It allocates nothing, takes no lock and makes no system call. Both
    /// ways of sending may take turns.
    #[inline(always)]
    pub fn send_one<const BYTES: usize>(&mut self, frame: &PrebuiltFrame<BYTES>) -> bool {
        self.hot.send_one(frame)
    }

    /// Sends one prebuilt frame as [`TxQueue::send_one`] does, and has the device note when:
    /// [`TxQueue::next_timestamp`] then tells it under this name. Takes longer, for a completion of
    /// its own. `false` also of a queue without [`TxQueueConfig::timestamps`].
    ///
    /// [`TxQueueConfig::timestamps`]: crate::TxQueueConfig::timestamps
    pub fn send_one_stamped<const BYTES: usize>(
        &mut self,
        frame: &PrebuiltFrame<BYTES>,
        id: u64,
    ) -> bool {
        self.hot.stamps.is_on() && self.hot.send_one_slowly(frame.units(), BYTES, Some(id))
    }

    /// Does what [`TxQueue::send_one`] does, in the same code and on the same memory, and sends
    /// nothing: the device is not told, and the next request takes the place. For programs that
    /// wait for long and want caches and branch predictors ready. `false`, and nothing exercised,
    /// if the next frame takes a longer way: the ring ends, it is time to ask for a completion, or
    /// the queue has a fault.
    pub fn warm_up<const BYTES: usize>(&mut self, frame: &PrebuiltFrame<BYTES>) -> bool {
        if !self.hot.is_ready_for(frame) {
            self.hot.reap();
            self.hot.look_ahead();
        }
        if !self.hot.is_ready_for(frame) {
            return false;
        }
        let (before, stats) = (self.hot.requests.ring.position(), self.hot.stats);
        self.hot.requests.ring.swap_bell(&mut self.unheard);
        let exercised = self.hot.send_one(frame);
        self.hot.requests.ring.swap_bell(&mut self.unheard);
        self.hot.requests.ring.take_back(before);
        self.hot.stats = stats;
        exercised
    }
}

impl TxRing {
    /// Whether a frame can be posted with nothing else to do.
    #[inline(always)]
    fn is_ready_for<const BYTES: usize>(&self, frame: &PrebuiltFrame<BYTES>) -> bool {
        let ring = &self.requests.ring;
        let end = ring.pi + u64::from(blocks_of(1 + frame.units().len() as u32));
        end <= self.one_until && ring.has_run()
    }

    /// Posts a frame. One function for all callers, so that a rehearsal warms the code of the
    /// performance.
    #[inline(never)]
    fn send_one<const BYTES: usize>(&mut self, frame: &PrebuiltFrame<BYTES>) -> bool {
        if !self.is_ready_for(frame) {
            return self.send_one_slowly(frame.units(), BYTES, None);
        }
        let posted = self.requests.ring.post_ready(Opcode::SEND, frame.units());
        self.stats.packets += 1;
        self.stats.bytes += BYTES as u64;
        posted
    }

    /// Reads completions, posts a frame wherever it stands in the ring, and asks for a completion.
    #[cold]
    #[inline(never)]
    fn send_one_slowly(
        &mut self,
        units: &[[u8; DS_BYTES]],
        bytes: usize,
        stamp: Option<u64>,
    ) -> bool {
        self.reap();
        let ring = &mut self.requests.ring;
        let ds = 1 + units.len() as u32;
        if self.stats.fault.is_some() {
            return false;
        }
        if blocks_of(ds) > ring.free_blocks() {
            self.stats.full += 1;
            return false;
        }
        let mut wqe = ring.begin();
        units.iter().for_each(|unit| wqe.unit().store(unit));
        ring.close(Control::new(Opcode::SEND), ds, blocks_of(ds));
        self.stats.packets += 1;
        self.stats.bytes += bytes as u64;
        self.signal(stamp);
        self.requests.ring.ring_doorbell();
        self.look_ahead();
        true
    }

    /// Finds out how far single frames may go: in the next quarter of the ring one asks for a
    /// completion, and there must be room.
    fn look_ahead(&mut self) {
        let ring = &self.requests.ring;
        let entries = u64::from(ring.entries());
        if self.stats.fault.is_none() {
            self.one_until = (self.signalled_end + entries / 4).min(ring.ci + entries);
        }
    }
}
