//! Completions without a device, for benches of this library's code alone.
//!
//! The queue pair is real, on a model that nobody steps while something is measured; this plays
//! the device's end of its completion queue. Not part of the crate's stable interface.

use ferrocx_bus::Ring;
use ferrocx_prm::cqe::{Cqe64, CqeOpcode, ErrCqe};
use ferrocx_prm::syndrome::CqeSyndrome;

use crate::cq::Cq;
use crate::error::VerbsError;
use crate::mr::Buffers;
use crate::qp::Qp;

/// The device's end of a completion queue.
#[derive(Debug)]
pub struct PlayedCq {
    cqes: Ring<64>,
    log_size: u8,
    pi: u32,
}

impl PlayedCq {
    /// Over a queue that the device has not written to yet, and never will.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Bus`], for a queue that is too long for a ring.
    pub fn new(cq: &Cq) -> Result<Self, VerbsError> {
        let log_size = cq.entries().ilog2() as u8;
        let cqes = Ring::new(cq.entries_buf(), 0, log_size)?;
        Ok(Self { cqes, log_size, pi: 0 })
    }

    /// Completes the request that was posted last, and with it all before.
    pub fn complete_last<B: Buffers>(&mut self, qp: &Qp<B>) {
        self.complete(qp, qp.last_wqe_counter());
    }

    /// Completes a request.
    pub fn complete<B: Buffers>(&mut self, qp: &Qp<B>, wqe_counter: u16) {
        let cqe = Cqe64::zeroed()
            .with_sop_drop_qpn(qp.qpn().0)
            .with_wqe_counter(wqe_counter.into())
            .with_opcode(CqeOpcode::REQUESTER.0)
            .with_owner(self.owner());
        self.write(&cqe.0);
    }

    /// Completes a request with an error.
    pub fn fail<B: Buffers>(&mut self, qp: &Qp<B>, wqe_counter: u16, syndrome: CqeSyndrome) {
        let cqe = ErrCqe::zeroed()
            .with_qpn(qp.qpn().0)
            .with_wqe_counter(wqe_counter.into())
            .with_syndrome(syndrome.0.into())
            .with_opcode(CqeOpcode::REQUESTER_ERROR.0)
            .with_owner(self.owner());
        self.write(&cqe.0);
    }

    fn owner(&self) -> bool {
        (self.pi >> self.log_size) & 1 != 0
    }

    fn write(&mut self, cqe: &[u8; 64]) {
        let slot = self.cqes.at(self.pi);
        let (head, last) = cqe.split_at(56);
        slot.store_at::<0, 56>(head.try_into().expect("56 bytes"));
        let word = |at| u32::from_be_bytes([last[at], last[at + 1], last[at + 2], last[at + 3]]);
        slot.store_be32::<0x38>(word(0));
        slot.store_release_be32::<0x3c>(word(4));
        self.pi = self.pi.wrapping_add(1);
    }
}
