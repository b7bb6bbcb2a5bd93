//! The rare paths of sending: faults, restart.

use super::TxRing;
use ferrocx_core::{INVALID_OPCODE, Odd, QueueFault};
use ferrocx_prm::cqe::Cqe64;

impl TxRing {
    /// Looks at a completion that is not the one expected.
    #[inline(always)]
    pub(super) fn look_closer(&mut self, last: u32, expected: u16) {
        // The usual case: nothing new. Bit 0 differs, or nothing was ever written.
        if Cqe64::OWNER.get(last) == self.cq.owner_at(self.cq.ci)
            && last & INVALID_OPCODE != INVALID_OPCODE
        {
            self.odd(last, expected);
        }
    }

    #[cold]
    #[inline(never)]
    fn odd(&mut self, last: u32, expected: u16) {
        let fault = match self.cq.odd(last, expected) {
            Odd::Empty => return,
            Odd::Compressed => QueueFault::BadCqe { opcode: 0, format: 3 },
            Odd::Fault(fault) => fault,
        };
        if self.stats.fault.is_none() {
            self.stats.errors += u64::from(self.in_flight());
            self.stats.fault = Some(fault);
        }
    }

    /// As for a device with VLAN insertion and TSO up to 256 KiB.
    pub(crate) fn enable_offloads(&mut self, inline_bytes: u16, min_inline: u16) {
        (self.inline_bytes, self.min_inline) = (inline_bytes, min_inline);
        (self.vlan_insert, self.max_tso_bytes) = (true, 1 << 18);
    }

    /// Requests whose completions were asked for behind the first `seen`.
    pub(crate) fn asked_since(&self, seen: u32) -> Vec<u16> {
        let mask = self.signals.len() - 1;
        let asked = self.signals_head.wrapping_sub(seen);
        (0..asked)
            .map(|step| self.signals[seen.wrapping_add(step) as usize & mask].wqe_index)
            .collect()
    }

    /// After the device's queue went through RST: counts from 0, with nothing in flight.
    pub(super) fn restart(&mut self) {
        self.cq.drain();
        self.doorbell_record.store_release_be32(0);
        self.free_until(self.elts_head);
        (self.pi, self.ci) = (0, 0);
        self.signals_tail = self.signals_head;
        self.signalled = self.elts_head;
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
