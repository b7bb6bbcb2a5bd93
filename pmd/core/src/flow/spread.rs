//! Rules whose packets are hashed: each type of traffic goes to a TIR of its own.

use std::sync::Arc;

use ferrocx_prm::flow::destination_type;

use super::matches::FlowMatch;
use super::tables::{self, destination, forward, matches_ip_version, set_entry};
use super::traffic::{self, TrafficType};
use crate::device::Device;
use crate::error::DeviceError;
use crate::handle::Handle;
use crate::objects::Kind;

/// A TIR for each type of traffic, in the order of [`TrafficType::ALL`].
pub type TrafficTirs = [Arc<Handle>; TrafficType::ALL.len()];

/// Where packets of a rule go on, and what it is made of.
#[derive(Debug)]
pub(super) struct Target {
    /// Of [`destination_type`].
    pub(super) kind: u32,
    /// The number of a TIR or of a table.
    pub(super) id: u32,
    /// What must outlive the rule's entry.
    pub(super) needs: Vec<Arc<Handle>>,
}

impl Target {
    /// One TIR for all of them.
    pub(super) fn tir(tir: Arc<Handle>) -> Self {
        Self { kind: destination_type::TIR, id: tir.number(), needs: vec![tir] }
    }
}

impl Device {
    /// Leads packets that match to the TIRs of their types: a table of the rule's own tells those
    /// apart, where the match does not. The mark stands in it, too: so it counts on devices that
    /// go by the first entry of a packet, and on those that go by the last.
    pub(super) fn spread_rule(
        &self,
        matches: &FlowMatch,
        tirs: &TrafficTirs,
        mark: u32,
    ) -> Result<Target, DeviceError> {
        if let Some(traffic) = TrafficType::of(matches) {
            return Ok(Target::tir(Arc::clone(&tirs[traffic as usize])));
        }
        let inner = self.inner();
        let version = matches_ip_version(&inner.made.caps.nic_receive);
        let handle = |kind, number| Handle::new(self, kind, number, Vec::new());
        // Each is destroyed before what it stands in. No lock is held while one may be dropped.
        let id = tables::table(&mut inner.control(), tables::OF_A_RULE, traffic::LOG_ENTRIES)?;
        let table = Arc::new(handle(Kind::FlowTable, id));
        let mut groups = Vec::new();
        for (mask, places) in traffic::groups(version)? {
            let number =
                tables::group(&mut inner.control(), id, mask, *places.start(), *places.end())?;
            groups.push(Arc::new(handle(Kind::FlowGroup { table: id }, number).needing(&table)));
        }
        let mut needs = Vec::new();
        for ((place, (group, value)), tir) in (0..).zip(traffic::values(version)?).zip(tirs) {
            let to = destination(destination_type::TIR, tir.number());
            let entry = forward(groups[group].number(), value).with_flow_tag(mark);
            set_entry(&mut inner.control(), id, place, entry, &[to], None)?;
            let entry = handle(Kind::FlowEntry { table: id }, place);
            needs.push(Arc::new(entry.needing(&groups[group]).needing(tir)));
        }
        Ok(Target { kind: destination_type::FLOW_TABLE, id, needs })
    }
}
