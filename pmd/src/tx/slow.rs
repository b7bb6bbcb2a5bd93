//! The rare paths of sending: faults, restart.

use super::TxRing;
use ferrocx_core::{INVALID_OPCODE, QueueFault, Unexpected};
use ferrocx_prm::cqe::Cqe64;

impl TxRing {
    /// Looks at a completion that is not the one expected.
    #[inline(always)]
    pub(super) fn look_closer(&mut self, last: u32, expected: u16) {
        // The usual case: nothing new. Bit 0 differs, or nothing was ever written.
        if Cqe64::OWNER.get(last) == self.cq.owner_at(self.cq.ci)
            && last & INVALID_OPCODE != INVALID_OPCODE
        {
            self.unexpected(last, expected);
        }
    }

    #[cold]
    #[inline(never)]
    fn unexpected(&mut self, last: u32, expected: u16) {
        let fault = match self.cq.unexpected(last, expected) {
            Unexpected::Empty => return,
            Unexpected::Compressed => QueueFault::BadCqe { opcode: 0, format: 3 },
            // Of a queue that receives.
            Unexpected::Undelivered(_) => QueueFault::BadCqe { opcode: 14, format: 0 },
            Unexpected::Fault(fault) => fault,
        };
        if self.stats.fault.is_none() {
            self.stats.errors += u64::from(self.in_flight());
            self.stats.fault = Some(fault);
            self.requests.ring.stop_line();
        }
    }

    /// After the device's queue went through RST: nothing is in flight.
    pub(super) fn restart(&mut self) {
        self.cq.drain();
        self.free_until(self.elts.end());
        self.requests.ring.restart();
        self.signals_tail = self.signals_head;
        self.signalled_end = self.requests.ring.pi;
        (self.signalled, self.completed) = (self.packets(), self.packets());
        self.stats.fault = None;
        self.stats.resets += 1;
    }

    /// Lets go of the buffers without freeing them: the device may still read them.
    #[cold]
    pub(super) fn leak(&mut self) {
        self.elts.leak();
        std::mem::forget(std::mem::take(&mut self.regions));
    }
}
