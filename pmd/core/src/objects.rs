//! Commands that make, move and destroy the device's objects, typed, over the command channel.

use ferrocx_bus::DmaBuf;
use ferrocx_prm::cmd::device::QuerySpecialContexts;
use ferrocx_prm::cmd::flow::{DeallocFlowCounter, DeleteFte, DestroyFlowGroup, DestroyFlowTable};
use ferrocx_prm::cmd::objects::{
    AllocPd, AllocTransportDomain, AllocUar, CreateMkey, DeallocPd, DeallocTransportDomain,
    DeallocUar, DestroyMkey,
};
use ferrocx_prm::cmd::qp::DestroyQp;
use ferrocx_prm::cmd::queues::{CreateCq, CreateEq, DestroyCq, DestroyEq};
use ferrocx_prm::cmd::tir::{CreateRqt, CreateTir, CreateTis, DestroyRqt, DestroyTir, DestroyTis};
use ferrocx_prm::cmd::wq::{
    DestroyRmp, DestroyRq, DestroySq, ModifyRq, ModifySq, QueryRq, QuerySq,
};
use ferrocx_prm::cmd::{Command, PAGE_BYTES};
use ferrocx_prm::cqc::Cqc;
use ferrocx_prm::eqc::Eqc;
use ferrocx_prm::mkey::{ANY_QPN, AccessMode, Mkc};
use ferrocx_prm::tirc::{Rqtc, Tirc, Tisc};
use ferrocx_prm::wqc::{Rqc, Sqc, state};

use crate::cmd::CommandError;
use crate::control::Control;

/// States of an SQ and an RQ. Source: reference 4.3, MODIFY_SQ / MODIFY_RQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueState(pub u32);

impl QueueState {
    /// Reset: the device does not touch the queue.
    pub const RST: Self = Self(state::RST);
    /// Ready: the device works on it.
    pub const RDY: Self = Self(state::RDY);
    /// Error: the device flushes it.
    pub const ERR: Self = Self(state::ERR);
}

/// The page list of a queue buffer: one big-endian address for each 4 KiB page.
#[must_use]
pub fn page_list(buf: &DmaBuf) -> Vec<u8> {
    (0..buf.len_bytes().div_ceil(PAGE_BYTES))
        .flat_map(|page| (buf.iova() + (page * PAGE_BYTES) as u64).to_be_bytes())
        .collect()
}

/// Typed commands of bring-up and queues.
impl Control {
    pub(crate) fn alloc_uar(&mut self) -> Result<u32, CommandError> {
        Ok(self.execute::<AllocUar>(&AllocUar::input(), &[], &mut [])?.uar())
    }

    pub(crate) fn alloc_pd(&mut self) -> Result<u32, CommandError> {
        Ok(self.execute::<AllocPd>(&AllocPd::input(), &[], &mut [])?.pd())
    }

    pub(crate) fn alloc_transport_domain(&mut self) -> Result<u32, CommandError> {
        let input = AllocTransportDomain::input();
        Ok(self.execute::<AllocTransportDomain>(&input, &[], &mut [])?.transport_domain())
    }

    /// The reserved L_Key; 0 if the device has none.
    pub(crate) fn reserved_lkey(&mut self) -> Result<u32, CommandError> {
        let input = QuerySpecialContexts::input();
        Ok(self.execute::<QuerySpecialContexts>(&input, &[], &mut [])?.resd_lkey())
    }

    /// Makes an mkey; returns its index.
    pub(crate) fn create_mkey(&mut self, mkc: Mkc, mtts: &[u64]) -> Result<u32, CommandError> {
        let mut tail: Vec<u8> = mtts.iter().flat_map(|mtt| mtt.to_be_bytes()).collect();
        tail.resize(tail.len().next_multiple_of(16), 0);
        let octowords = (tail.len() / 16) as u32;
        let input = CreateMkey::input()
            .with_memory_key_mkey_entry(mkc.with_translations_octword_size(octowords))
            .with_translations_octword_actual_size(octowords);
        Ok(self.execute::<CreateMkey>(&input, &tail, &mut [])?.mkey_index())
    }

    pub(crate) fn create_eq(
        &mut self,
        eqc: Eqc,
        event_bitmask: [u8; 32],
        buf: &DmaBuf,
    ) -> Result<u8, CommandError> {
        let input = CreateEq::input().with_eq_context_entry(eqc).with_event_bitmask(event_bitmask);
        Ok(self.execute::<CreateEq>(&input, &page_list(buf), &mut [])?.eq_number() as u8)
    }

    pub(crate) fn create_cq(&mut self, cqc: Cqc, buf: &DmaBuf) -> Result<u32, CommandError> {
        let input = CreateCq::input().with_cq_context(cqc);
        Ok(self.execute::<CreateCq>(&input, &page_list(buf), &mut [])?.cqn())
    }

    pub(crate) fn modify_sq(
        &mut self,
        sqn: u32,
        from: QueueState,
        to: QueueState,
    ) -> Result<(), CommandError> {
        let input = ModifySq::input()
            .with_sqn(sqn)
            .with_sq_state(from.0)
            .with_ctx(Sqc::zeroed().with_state(to.0));
        self.execute::<ModifySq>(&input, &[], &mut []).map(|_| ())
    }

    pub(crate) fn modify_rq(
        &mut self,
        rqn: u32,
        from: QueueState,
        to: QueueState,
    ) -> Result<(), CommandError> {
        let input = ModifyRq::input()
            .with_rqn(rqn)
            .with_rq_state(from.0)
            .with_ctx(Rqc::zeroed().with_state(to.0));
        self.execute::<ModifyRq>(&input, &[], &mut []).map(|_| ())
    }

    /// State of an SQ, as the device knows it.
    pub(crate) fn sq_state(&mut self, sqn: u32) -> Result<QueueState, CommandError> {
        let output = self.execute::<QuerySq>(&QuerySq::input().with_sqn(sqn), &[], &mut [])?;
        Ok(QueueState(output.sq_context().state()))
    }

    /// State of an RQ, as the device knows it.
    pub(crate) fn rq_state(&mut self, rqn: u32) -> Result<QueueState, CommandError> {
        let output = self.execute::<QueryRq>(&QueryRq::input().with_rqn(rqn), &[], &mut [])?;
        Ok(QueueState(output.rq_context().state()))
    }

    pub(crate) fn create_rqt(&mut self, rqns: &[u32]) -> Result<u32, CommandError> {
        let tail: Vec<u8> = rqns.iter().flat_map(|rqn| rqn.to_be_bytes()).collect();
        let count = rqns.len() as u32;
        let context = Rqtc::zeroed().with_rqt_max_size(count).with_rqt_actual_size(count);
        let input = CreateRqt::input().with_rqt_context(context);
        Ok(self.execute::<CreateRqt>(&input, &tail, &mut [])?.rqtn())
    }

    pub(crate) fn create_tir(&mut self, tirc: Tirc) -> Result<u32, CommandError> {
        let input = CreateTir::input().with_ctx(tirc);
        Ok(self.execute::<CreateTir>(&input, &[], &mut [])?.tirn())
    }

    pub(crate) fn create_tis(&mut self, tisc: Tisc) -> Result<u32, CommandError> {
        let input = CreateTis::input().with_ctx(tisc);
        Ok(self.execute::<CreateTis>(&input, &[], &mut [])?.tisn())
    }

    /// Destroys one object.
    pub(crate) fn destroy(&mut self, kind: Kind, number: u32) -> Result<(), CommandError> {
        macro_rules! destroy {
            ($command:ty, $input:expr) => {
                self.execute::<$command>(&$input, &[], &mut []).map(|_| ())
            };
        }
        match kind {
            Kind::Uar => destroy!(DeallocUar, DeallocUar::input().with_uar(number)),
            Kind::Pd => destroy!(DeallocPd, DeallocPd::input().with_pd(number)),
            Kind::TransportDomain => destroy!(
                DeallocTransportDomain,
                DeallocTransportDomain::input().with_transport_domain(number)
            ),
            Kind::Mkey => destroy!(DestroyMkey, DestroyMkey::input().with_mkey_index(number)),
            Kind::Eq => destroy!(DestroyEq, DestroyEq::input().with_eq_number(number)),
            Kind::Cq => destroy!(DestroyCq, DestroyCq::input().with_cqn(number)),
            Kind::Qp => destroy!(DestroyQp, DestroyQp::input().with_qpn(number)),
            Kind::Sq => destroy!(DestroySq, DestroySq::input().with_sqn(number)),
            Kind::Rq => destroy!(DestroyRq, DestroyRq::input().with_rqn(number)),
            Kind::Rmp => destroy!(DestroyRmp, DestroyRmp::input().with_rmpn(number)),
            Kind::Rqt => destroy!(DestroyRqt, DestroyRqt::input().with_rqtn(number)),
            Kind::Tir => destroy!(DestroyTir, DestroyTir::input().with_tirn(number)),
            Kind::Tis => destroy!(DestroyTis, DestroyTis::input().with_tisn(number)),
            Kind::FlowTable => {
                destroy!(DestroyFlowTable, DestroyFlowTable::input().with_table_id(number))
            }
            Kind::FlowGroup { table } => destroy!(
                DestroyFlowGroup,
                DestroyFlowGroup::input().with_table_id(table).with_group_id(number)
            ),
            Kind::FlowEntry { table } => {
                destroy!(DeleteFte, DeleteFte::input().with_table_id(table).with_flow_index(number))
            }
            Kind::FlowCounter => destroy!(
                DeallocFlowCounter,
                DeallocFlowCounter::input().with_flow_counter_id(number)
            ),
        }
    }
}

/// The context of an mkey for local reads and writes by any queue.
pub(crate) fn local_mkc(mode: AccessMode, pd: u32) -> Mkc {
    Mkc::zeroed().with_access_mode(mode).with_lr(true).with_lw(true).with_qpn(ANY_QPN).with_pd(pd)
}

/// What kind of object a number is, and so how it is destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// UAR page.
    Uar,
    /// Protection domain.
    Pd,
    /// Transport domain.
    TransportDomain,
    /// Memory key, by its index.
    Mkey,
    /// Event queue.
    Eq,
    /// Completion queue.
    Cq,
    /// Queue pair.
    Qp,
    /// Send queue.
    Sq,
    /// Receive queue.
    Rq,
    /// Receive memory pool.
    Rmp,
    /// Table of receive queues.
    Rqt,
    /// Receive transport interface.
    Tir,
    /// Send transport interface.
    Tis,
    /// Flow table.
    FlowTable,
    /// Flow group.
    FlowGroup {
        /// Its table.
        table: u32,
    },
    /// Flow table entry.
    FlowEntry {
        /// Its table.
        table: u32,
    },
    /// Flow counter.
    FlowCounter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_key_context_is_literal() {
        let mkc = local_mkc(AccessMode::PA, 0x12).with_length64(true);
        let mut expected = [0u8; 64];
        expected[0x02] = 0x0c; // lw, lr, PA
        expected[0x04..0x07].copy_from_slice(&[0xff; 3]); // any QP
        expected[0x0c] = 0x80; // length64
        expected[0x0f] = 0x12; // PD
        assert_eq!(mkc.0, expected);
        assert_eq!(local_mkc(AccessMode::MTT, 0).0[0x02], 0x0d);
    }
}
