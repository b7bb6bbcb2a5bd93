//! [`Spread`]: frames shared out among raw packet queue pairs by a hash of their headers.
//!
//! On the device it is a table of receive queues and a TIR that hashes into it. All of its rules
//! carry one mark, so completions of receives do not name their queue pair by its number: it is
//! told by its `user_index` then, of which each has its own in a completion queue. Source:
//! reference 5.9.

use std::sync::Arc;

use ferrocx_core::{Device, FlowAction, FlowMatch, FlowRule, FlowRuleHandle, Handle};
use ferrocx_prm::tirc::{Tirc, disp_type, hash_field, hash_fn};

use super::Qp;
use super::raw::{FlowId, Objects};
use crate::error::VerbsError;
use crate::mr::Buffers;
use crate::names::SPREAD;

bitflags::bitflags! {
    /// Fields that a hash covers, and of which packets it is: the others have hash 0.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct HashFields: u32 {
        /// Source address.
        const SRC_IP = hash_field::SRC_IP;
        /// Destination address.
        const DST_IP = hash_field::DST_IP;
        /// Source port.
        const SRC_PORT = hash_field::L4_SPORT;
        /// Destination port.
        const DST_PORT = hash_field::L4_DPORT;
        /// Ports are those of UDP; of TCP without it.
        const UDP = hash_field::L4_UDP;
        /// Addresses are those of IPv6; of IPv4 without it.
        const IPV6 = hash_field::L3_IPV6;
    }
}

/// How frames are hashed, by Toeplitz' function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHash {
    /// The key.
    pub key: [u8; 40],
    /// What is hashed.
    pub fields: HashFields,
}

/// Frames that are shared out among raw packet queue pairs, until it is dropped.
#[derive(Debug)]
pub struct Spread {
    // Dropped in this order; the TIR holds the table, and that the queues.
    flows: Vec<(FlowId, FlowRuleHandle)>,
    tir: Arc<Handle>,
    device: Device,
    next_flow: u64,
}

impl Spread {
    /// Makes one over queue pairs that were made with [`QpConfig::spread`](crate::QpConfig::spread)
    /// and receive what they have receives for, in the order of the table: the low bits of a hash
    /// are the place in it. A queue pair may stand in it several times.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] for a list whose length is not a power of two up to
    /// [`Limits::max_reta`](ferrocx_core::Limits::max_reta), [`VerbsError::Unsupported`] for other
    /// queue pairs, [`VerbsError::OtherDevice`], or what the device refused.
    #[doc(alias = "ibv_create_rwq_ind_table")]
    pub fn new<B: Buffers>(table: &[&Qp<B>], hash: &FrameHash) -> Result<Self, VerbsError> {
        let what = "queue pairs that share frames (a power of two)";
        let Some(first) = table.first() else {
            return Err(VerbsError::OutOfRange { what, value: 0, min: 1, max: 1 });
        };
        let device = first.pd.core.device();
        let most = device.limits().max_reta.into();
        let len = table.len() as u64;
        VerbsError::range(what, len, 1, most)?;
        if !len.is_power_of_two() {
            let max = len.next_power_of_two() / 2;
            return Err(VerbsError::OutOfRange { what, value: len, min: max, max });
        }
        let mut queues = Vec::with_capacity(table.len());
        for qp in table {
            if qp.pd.core.id != first.pd.core.id {
                return Err(VerbsError::OtherDevice { what: "queue pair" });
            }
            match &qp.objects {
                Objects::Raw(raw) if qp.spread => queues.push(raw.rq()),
                _ => {
                    let what = "queue pair that shares no frames";
                    return Err(VerbsError::Unsupported { what, way_out: "use QpConfig::spread" });
                }
            }
        }
        let numbers: Vec<_> = queues.iter().map(|queue| queue.number()).collect();
        let made = device.create_rqt(&numbers)?;
        let made = queues.into_iter().fold(made, |made, queue| made.needing(queue));
        let has_hash = !hash.fields.is_empty();
        let tirc = Tirc::zeroed()
            .with_disp_type(disp_type::INDIRECT)
            .with_indirect_table(made.number())
            .with_rx_hash_fn(if has_hash { hash_fn::TOEPLITZ } else { hash_fn::NONE })
            .with_rx_hash_toeplitz_key(hash.key)
            .with_rx_hash_field_selector_outer(hash.fields.bits());
        // Both kinds of frames of the port's own come back, as to rules that hear the port.
        let tir = device.create_tir(tirc.with_self_lb_block(0b11))?.needing(&Arc::new(made));
        let (flows, tir) = (Vec::new(), Arc::new(tir));
        Ok(Self { flows, tir, device: device.clone(), next_flow: 0 })
    }

    /// Has frames that match shared out, those of the port's own queues too, until
    /// [`Spread::destroy_flow`]. Which rule decides is said of [`Qp::create_flow`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::Device`] for fields that contradict each other and for a full table, or what
    /// the device refused.
    #[doc(alias = "ibv_create_flow")]
    pub fn create_flow(&mut self, matches: &FlowMatch) -> Result<FlowId, VerbsError> {
        let action = FlowAction::Tir(Arc::clone(&self.tir));
        let count = self.device.limits().flow_counters;
        let rule = FlowRule { matches: *matches, action, mark: Some(SPREAD), count };
        let handle = self.device.add_flow_rule(&rule)?;
        let id = FlowId(self.next_flow);
        self.next_flow += 1;
        self.flows.push((id, handle));
        Ok(id)
    }

    /// Ends [`Spread::create_flow`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoSuchFlow`], or what the device refused.
    pub fn destroy_flow(&mut self, id: FlowId) -> Result<(), VerbsError> {
        let at = self.flows.iter().position(|(known, _)| *known == id);
        let at = at.ok_or(VerbsError::NoSuchFlow)?;
        Ok(self.flows.remove(at).1.destroy()?)
    }
}

impl<B: Buffers> Qp<B> {
    /// The index that tells its receives of spread frames from others', if it has those.
    pub(super) fn spread_index(&self) -> Option<u32> {
        self.spread.then_some(self.user_index)
    }
}
