//! The rare paths of receiving: faults, refilling from a pool that runs dry, a reset.

use ferrocx_core::{QueueFault, Undelivered, Unexpected};
use ferrocx_prm::cqe::Cqe64;

use super::compressed::Mini;
use super::strides::Strides;
use super::{Kind, REFILL, RxRing};

impl RxRing {
    /// Looks at a completion that is not the expected one, of a queue that was made for no other.
    #[cold]
    #[inline(never)]
    pub(super) fn look_closer(&mut self, last: u32) {
        match self.cq.unexpected(last, self.ring.ci as u16) {
            // Nobody asked for them.
            Unexpected::Compressed => self.stop(QueueFault::COMPRESSED),
            Unexpected::Undelivered(packets) => {
                self.pass_over(packets, self.ring.outstanding(), None);
            }
            Unexpected::Fault(fault) => self.stop(fault),
            Unexpected::Empty => {}
        }
    }

    /// Passes over packets that the device could not deliver, at most `most` of them; the buffers
    /// of their work requests are posted again. `strides` are those of a striding queue.
    #[cold]
    #[inline(never)]
    pub(super) fn pass_over(
        &mut self,
        packets: Undelivered,
        most: u32,
        mut strides: Option<&mut Strides>,
    ) {
        let Undelivered { wqe_counter, byte_cnt, is_block } = packets;
        let expected = self.ring.ci as u16;
        // Of a striding queue a completion names a stride, or the request: sources differ.
        if strides.is_none() && wqe_counter != expected {
            self.stop(QueueFault::WrongIndex { expected, got: wqe_counter });
        } else if !is_block {
            self.pass_one(byte_cnt, strides);
            self.cq.ci = self.cq.ci.wrapping_add(1);
        } else if self.open_block(most) {
            while self.mini.is_active() && self.stats.fault.is_none() {
                let (_, byte_cnt, _) = self.next_mini();
                self.pass_one(byte_cnt, strides.as_deref_mut());
            }
        }
        self.cq.tell();
    }

    /// Passes over one of them.
    fn pass_one(&mut self, byte_cnt: u32, strides: Option<&mut Strides>) {
        if let Some(strides) = strides {
            if let Err(fault) = strides.pass_over(byte_cnt, &mut self.ring) {
                return self.stop(fault);
            }
        } else {
            self.take_packet(0).into_iter().for_each(|packet| self.cache.put(packet));
        }
        self.stats.errors += 1;
    }

    /// Stops the queue for good, until it is reset.
    #[cold]
    pub(super) fn stop(&mut self, fault: QueueFault) {
        if self.stats.fault.is_none() {
            self.stats.errors += 1;
            self.stats.fault = Some(fault);
        }
    }

    /// A completion although no buffer is posted: the device is out of step.
    #[cold]
    #[inline(never)]
    pub(super) fn look_for_overrun(&mut self) {
        let last = self.cq.ring.at(self.cq.ci).load_acquire_be32::<{ Cqe64::OWNER.offset }>();
        let expected = self.expected_at(self.ring.ci, self.cq.ci);
        if (last ^ expected) & self.last_mask == 0 {
            let counter = self.ring.pi as u16;
            self.stop(QueueFault::WrongIndex { expected: counter, got: counter });
        }
    }

    /// A completion with more bytes than the buffers have.
    #[cold]
    #[inline(never)]
    pub(super) fn too_long(&mut self, len_bytes: u32) {
        let room_bytes = self.room_bytes;
        self.stop(QueueFault::TooLong { len_bytes, room_bytes });
    }

    /// The pool has fewer buffers than a whole refill: takes what there is.
    #[cold]
    #[inline(never)]
    pub(super) fn refill_from_rest(&mut self) {
        self.stats.no_mbuf += 1;
        for _ in 0..REFILL {
            if self.post(1) == 0 {
                break;
            }
        }
    }

    /// Puts buffers into every slot; whether all have one.
    pub(crate) fn fill(&mut self) -> bool {
        if self.kind == Kind::Striding {
            return self.fill_strides();
        }
        self.post_all();
        self.ring.missing() == 0
    }

    /// Tells the device what is posted.
    pub(crate) fn announce(&self) {
        self.cq.tell();
        self.ring.tell();
    }

    /// After the device's queue went through RST: counts from 0, with fresh buffers.
    pub(super) fn restart(&mut self) {
        self.end_line();
        self.cq.drain();
        self.ring.restart();
        self.mini = Mini::default();
        self.stats.fault = None;
        self.stats.resets += 1;
        self.elts.free(self.elts.len(), &mut self.cache);
        if let Some(strides) = &mut self.strides {
            strides.restart();
        }
        if let Some(tails) = &mut self.tails {
            tails.restart();
        }
        self.fill();
    }

    /// Lets go of the buffers without freeing them: the device may still write to them.
    #[cold]
    pub(super) fn leak(&mut self) {
        self.elts.leak();
        if let Some(strides) = &mut self.strides {
            strides.leak();
        }
        if let Some(tails) = &mut self.tails {
            tails.leak();
        }
        std::mem::forget(self._keys.clone());
    }
}
