//! Sending one frame at a time: no burst, no buffers, nothing looked up.

use ferrocx_core::wq::{Control, ONE_RUN_BYTES, Ready, blocks_of};
use ferrocx_prm::wqe::{BASIC_BLOCK_BYTES, DS_BYTES, Opcode};

use super::{PrebuiltFrame, TxQueue, TxRing};

impl TxQueue {
    /// Sends one prebuilt frame, copied into its request; the frame is free to be changed and sent
    /// again at once. `false` if it was not sent: the ring is full, which counts in
    /// [`TxStats::full`](crate::TxStats::full), or the queue has a fault.
    ///
    /// The way for a program that answers at once: what [`TxQueue::tx_burst`] shares among packets,
    /// looking for completions and asking for them, is done here once in half of the ring.
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
        self.hot.stamps.is_on() && self.hot.send_one_slowly(frame.ready(), BYTES, Some(id))
    }

    /// Does what [`TxQueue::send_one`] does, in the same code and on the same memory, and sends
    /// nothing: the device is not told, and the next request takes the place. For programs that
    /// wait for long and want caches and branch predictors ready. `false`, and nothing exercised,
    /// if the next frame takes a longer way: the ring ends, it is time to ask for a completion, or
    /// the queue has a fault.
    pub fn warm_up<const BYTES: usize>(&mut self, frame: &PrebuiltFrame<BYTES>) -> bool {
        if !self.hot.requests.ring.has_line() {
            self.hot.reap();
            if !self.hot.look_ahead() {
                return false;
            }
        }
        let (before, stats, ones) =
            (self.hot.requests.ring.position(), self.hot.stats, self.hot.ones);
        self.hot.requests.ring.swap_bell(&mut self.unheard);
        let exercised = self.hot.send_one(frame);
        self.hot.requests.ring.swap_bell(&mut self.unheard);
        self.hot.requests.ring.take_back(before);
        (self.hot.stats, self.hot.ones) = (stats, ones);
        self.hot.look_ahead();
        exercised
    }
}

impl TxRing {
    /// Posts a frame. One function for all callers, so that a rehearsal warms the code of the
    /// performance.
    #[inline(never)]
    fn send_one<const BYTES: usize>(&mut self, frame: &PrebuiltFrame<BYTES>) -> bool {
        let Ready { pairs, ds } = frame.ready();
        if !self.requests.ring.post_ready(frame.ready()) {
            return self.send_one_else(pairs, ds, BYTES);
        }
        self.ones += 1;
        self.stats.bytes += BYTES as u64;
        true
    }

    /// Posts a frame that is told to the device in another way, or where the line of them has
    /// ended. Its arguments fit registers.
    #[inline(never)]
    fn send_one_else(&mut self, pairs: &[[u8; 2 * DS_BYTES]], ds: u32, bytes: usize) -> bool {
        let frame = Ready { pairs, ds };
        // After a burst there is room for more without a look at completions.
        if self.requests.ring.post_ready_anyway(frame)
            || self.look_ahead() && self.requests.ring.post_ready_anyway(frame)
        {
            self.ones += 1;
            self.stats.bytes += bytes as u64;
            return true;
        }
        self.send_one_slowly(frame, bytes, None)
    }

    /// Reads completions, posts a frame wherever it stands in the ring, and asks for a completion.
    #[cold]
    #[inline(never)]
    fn send_one_slowly(&mut self, frame: Ready<'_>, bytes: usize, stamp: Option<u64>) -> bool {
        self.reap();
        let ring = &mut self.requests.ring;
        if self.stats.fault.is_some() {
            return false;
        }
        if blocks_of(frame.ds) > ring.free_blocks() {
            self.stats.full += 1;
            return false;
        }
        let (units, _) = frame.pairs.as_flattened().as_chunks();
        if let Some(run) = ring.run() {
            run.copy_units::<0>(units);
        } else {
            let mut wqe = ring.begin();
            units.iter().take(frame.ds as usize).skip(1).for_each(|unit| wqe.unit().store(unit));
        }
        ring.close(Control::new(Opcode::SEND), frame.ds, blocks_of(frame.ds));
        self.stats.packets += 1;
        self.stats.bytes += bytes as u64;
        self.signal(stamp);
        self.requests.ring.ring_doorbell();
        self.look_ahead();
        true
    }

    /// Finds out how far single frames may go with nothing else to do: in the next half of the
    /// ring one asks for a completion, and there must be room. Whether there is any.
    fn look_ahead(&mut self) -> bool {
        const MOST: u64 = (ONE_RUN_BYTES / BASIC_BLOCK_BYTES) as u64;
        let ring = &mut self.requests.ring;
        if self.stats.fault.is_some() {
            return false;
        }
        let entries = u64::from(ring.entries());
        let end = (self.signalled_end + (entries / 2).max(MOST)).min(ring.ci + entries);
        // The last may be as long as any.
        ring.start_line((end + 1).saturating_sub(MOST))
    }
}
