//! Commands that make, move and destroy the device's objects, typed, over the command channel.

use std::sync::Arc;

use ferrocx_bus::{DmaBuf, Ring};
use ferrocx_prm::Layout;
use ferrocx_prm::cmd::device::QuerySpecialContexts;
use ferrocx_prm::cmd::flow::{DeallocFlowCounter, DeleteFte, DestroyFlowGroup, DestroyFlowTable};
use ferrocx_prm::cmd::objects::{
    AllocUar, CreateMkey, DeallocPd, DeallocTransportDomain, DeallocUar, DeallocXrcd, DestroyMkey,
};
use ferrocx_prm::cmd::port::DeallocQCounter;
use ferrocx_prm::cmd::qp::DestroyQp;
use ferrocx_prm::cmd::queues::{CreateEq, DestroyCq, DestroyEq};
use ferrocx_prm::cmd::srq::DestroyXrcSrq;
use ferrocx_prm::cmd::tir::{DestroyRqt, DestroyTir, DestroyTis};
use ferrocx_prm::cmd::wq::{DestroyRmp, DestroyRq, DestroySq};
use ferrocx_prm::cmd::{Command, CommandInput, PAGE_BYTES};
use ferrocx_prm::eqc::Eqc;
use ferrocx_prm::eqe::Eqe;
use ferrocx_prm::init_seg::uar;
use ferrocx_prm::mkey::{ANY_QPN, AccessMode, Mkc};
use ferrocx_prm::wqc::state;

use crate::cmd::CommandError;
use crate::control::Control;
use crate::eq::{self, EqRing};
use crate::error::DeviceError;

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
    /// Carries out a command that is no longer than its fixed parts.
    pub(crate) fn call<I: CommandInput>(
        &mut self,
        input: &I,
    ) -> Result<<I::Command as Command>::Out, CommandError> {
        self.execute::<I::Command>(input, &[], &mut [])
    }

    /// Takes a UAR page. It lies in the BAR, so that writes to its registers need no check.
    pub(crate) fn alloc_uar(&mut self) -> Result<u32, DeviceError> {
        let page = self.call(&AllocUar::input())?.uar();
        let bar_len_bytes = self.bar.len_bytes();
        if (u64::from(page) + 1) * uar::PAGE_BYTES <= bar_len_bytes {
            return Ok(page);
        }
        // The device cannot know a page that it does not have; what it says to that is its affair.
        let _ = self.destroy(Kind::Uar, page);
        Err(DeviceError::UarOutside { page, bar_len_bytes })
    }

    /// The reserved L_Key; 0 if the device has none.
    pub(crate) fn reserved_lkey(&mut self) -> Result<u32, CommandError> {
        Ok(self.call(&QuerySpecialContexts::input())?.resd_lkey())
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

    /// Makes an event queue of `2^log_size` entries on the page and vector that `eqc` names.
    pub(crate) fn create_eq(
        &mut self,
        eqc: Eqc,
        log_size: u8,
        event_bitmask: [u8; 32],
    ) -> Result<(EqRing, Arc<DmaBuf>), DeviceError> {
        let buf = Arc::new(self.memory.alloc(Eqe::SIZE_BYTES << log_size, 4096)?);
        eq::initialise(&buf);
        let eqc = eqc.with_log_eq_size(log_size.into());
        let input = CreateEq::input().with_eq_context_entry(eqc).with_event_bitmask(event_bitmask);
        let (ring, bar) = (Ring::new(Arc::clone(&buf), 0, log_size)?, Arc::clone(&self.bar));
        let eqn = self.execute::<CreateEq>(&input, &page_list(&buf), &mut [])?.eq_number() as u8;
        Ok((EqRing::new(ring, log_size, eqn, bar, eqc.uar_page()), buf))
    }
}

/// The context of an mkey for local reads and writes by any queue.
pub(crate) fn local_mkc(mode: AccessMode, pd: u32) -> Mkc {
    Mkc::zeroed().with_access_mode(mode).with_lr(true).with_lw(true).with_qpn(ANY_QPN).with_pd(pd)
}

/// Declares the kinds of objects, and the command that destroys each, with its field for the
/// object's number.
macro_rules! kinds {
    ($($kind:ident $({ $table:ident })? $doc:literal $command:ident $with:ident;)*) => {
        /// What kind of object a number is, and so how it is destroyed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Kind {
            $(
                #[doc = $doc]
                $kind $({
                    /// Its table.
                    $table: u32,
                })?,
            )*
        }

        impl Control {
            /// Destroys one object; nothing to do if it is gone with all the others.
            pub(crate) fn destroy(&mut self, kind: Kind, number: u32) -> Result<(), CommandError> {
                if self.is_gone() {
                    return Ok(());
                }
                let destroyed = match kind {
                    $( Kind::$kind $({ $table })? => {
                        let input = $command::input().$with(number)$( .with_table_id($table) )?;
                        self.call(&input).map(|_| ())
                    } )*
                };
                // The device may have died under this very command, and its objects with it.
                if self.is_gone() { Ok(()) } else { destroyed }
            }
        }
    };
}

kinds! {
    Uar "UAR page." DeallocUar with_uar;
    Pd "Protection domain." DeallocPd with_pd;
    TransportDomain "Transport domain." DeallocTransportDomain with_transport_domain;
    Mkey "Memory key, by its index." DestroyMkey with_mkey_index;
    Eq "Event queue." DestroyEq with_eq_number;
    Cq "Completion queue." DestroyCq with_cqn;
    Qp "Queue pair." DestroyQp with_qpn;
    Sq "Send queue." DestroySq with_sqn;
    Rq "Receive queue." DestroyRq with_rqn;
    Rmp "Receive memory pool." DestroyRmp with_rmpn;
    Xrcd "XRC domain." DeallocXrcd with_xrcd;
    XrcSrq "Shared receive queue of an XRC domain." DestroyXrcSrq with_xrc_srqn;
    Rqt "Table of receive queues." DestroyRqt with_rqtn;
    Tir "Receive transport interface." DestroyTir with_tirn;
    Tis "Send transport interface." DestroyTis with_tisn;
    FlowTable "Flow table." DestroyFlowTable with_table_id;
    FlowGroup { table } "Flow group." DestroyFlowGroup with_group_id;
    FlowEntry { table } "Flow table entry." DeleteFte with_flow_index;
    FlowCounter "Flow counter." DeallocFlowCounter with_flow_counter_id;
    QueueCounters "Set of queue counters." DeallocQCounter with_counter_set_id;
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
