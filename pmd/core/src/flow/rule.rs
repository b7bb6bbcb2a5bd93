//! Rules that users add: packets that match are forwarded, dropped, marked, counted.

use std::sync::Arc;

use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::flow::{AllocFlowCounter, QueryFlowCounter};
use ferrocx_prm::flow::{FlowContext, FlowMatchParam, action};
use ferrocx_prm::tirc::{Tirc, disp_type};

use super::matches::FlowMatch;
use super::spread::{Target, TrafficTirs};
use super::tables::{destination, matches_ip_version, set_entry};
use crate::device::{Device, lock};
use crate::error::{ConfigError, DeviceError};
use crate::handle::Handle;
use crate::objects::Kind;
use crate::stats::FlowCounts;

/// A receive queue as flow rules and RSS name it. Holding it keeps the queue's number in use, but
/// receives nothing.
#[derive(Debug, Clone)]
pub struct RxQueueRef {
    rq: Arc<Handle>,
    hears_port: bool,
}

impl RxQueueRef {
    /// Names the receive queue that `rq` is.
    #[must_use]
    pub fn new(rq: &Arc<Handle>) -> Self {
        Self { rq: Arc::clone(rq), hears_port: false }
    }

    /// Names a queue whose rules take frames of the port's own queues, too: of those for a group it
    /// gets a copy; those for an address of the port come back to it, and do not go out.
    #[must_use]
    pub fn hearing_port(rq: &Arc<Handle>) -> Self {
        Self { hears_port: true, ..Self::new(rq) }
    }

    /// The device's number of the queue.
    #[must_use]
    pub fn rqn(&self) -> u32 {
        self.rq.number()
    }

    /// Keeps the queue's number in use until an object is gone whose context names it.
    #[must_use]
    pub fn needed_by(&self, handle: Handle) -> Handle {
        handle.needing(&self.rq)
    }

    /// Makes a TIR that leads to this queue alone.
    pub fn direct_tir(&self) -> Result<Handle, DeviceError> {
        /// Both kinds come back, despite the field's name. Source: reference 5.9.
        const UNICAST_AND_MULTICAST: u32 = 0b11;
        let tirc = Tirc::zeroed()
            .with_disp_type(disp_type::DIRECT)
            .with_self_lb_block(if self.hears_port { UNICAST_AND_MULTICAST } else { 0 })
            .with_inline_rqn(self.rqn());
        Ok(self.needed_by(self.rq.device().create_tir(tirc)?))
    }
}

/// What happens to packets that match.
#[derive(Debug, Clone)]
#[doc(alias = "rte_flow_action")]
pub enum FlowAction {
    /// They go to one queue, past RSS.
    Queue(RxQueueRef),
    /// They go where a TIR of the caller's leads them: for crates that have objects of their own,
    /// as verbs-lite has.
    Tir(Arc<Handle>),
    /// Each type of traffic goes to its TIR, past the port's RSS: a second RSS for what matches.
    /// ferrocx-pmd's `Rss::action` makes it.
    Spread(TrafficTirs),
    /// They are dropped.
    Drop,
}

/// A rule.
#[derive(Debug, Clone)]
pub struct FlowRule {
    /// Which packets.
    pub matches: FlowMatch,
    /// What happens to them.
    pub action: FlowAction,
    /// Handed out with each packet as `flow_mark`: 1 to 0xffffff. Not for `Drop`.
    pub mark: Option<u32>,
    /// Count packets and bytes.
    pub count: bool,
}

/// A rule in force, until it is dropped.
#[derive(Debug)]
#[must_use = "the rule is in force as long as it lives"]
pub struct FlowRuleHandle {
    /// It holds what it leads to, which holds the queues, and its counter.
    entry: Handle,
    counter: Option<Arc<Handle>>,
}

impl FlowRuleHandle {
    /// Packets and bytes that matched since the rule was made.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] for a rule that does not count, or what the device refused.
    #[doc(alias = "rte_flow_query")]
    pub fn counts(&self) -> Result<FlowCounts, DeviceError> {
        let Some(counter) = &self.counter else {
            let what = "the rule does not count; make it with `count: true`";
            return Err(ConfigError::Conflict { what }.into());
        };
        let input = QueryFlowCounter::input()
            .with_num_of_counters(1)
            .with_flow_counter_id(counter.number());
        let mut tail = [0; 16];
        self.entry.device().execute::<QueryFlowCounter>(&input, &[], &mut tail)?;
        let (packets, bytes) = tail.split_at(8);
        let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
        Ok(FlowCounts { packets: number(packets), bytes: number(bytes) })
    }

    /// Removes the rule and says how that went.
    #[doc(alias = "rte_flow_destroy")]
    pub fn destroy(mut self) -> Result<(), DeviceError> {
        self.entry.destroy()?;
        Ok(())
    }
}

impl Drop for FlowRuleHandle {
    fn drop(&mut self) {
        if let Err(error) = self.entry.destroy() {
            tracing::error!(index = self.entry.number(), %error, "flow rule not removed");
            return;
        }
        lock(&self.entry.device().inner().steering).free_rule(self.entry.number());
    }
}

impl Device {
    /// Adds a rule that is looked at before addresses and RSS.
    ///
    /// There are no priorities. Rules that test the same fields with the same masks form a run.
    /// Runs are looked at in the order in which the first rule of each was ever added to the
    /// device, and the first match decides; a run keeps its place when all of its rules are gone.
    /// So the narrow rules go first. Of two rules that match the very same, either may decide.
    ///
    /// # Errors
    /// [`ConfigError`] for fields that contradict each other, a mark out of range, a counter on a
    /// device without, or a full table; or what the device refused.
    #[doc(alias = "rte_flow_create")]
    pub fn add_flow_rule(&self, rule: &FlowRule) -> Result<FlowRuleHandle, DeviceError> {
        let inner = self.inner();
        let (mask, value) =
            rule.matches.encode(matches_ip_version(&inner.made.caps.nic_receive))?;
        self.check_rule(rule)?;
        let mark = rule.mark.unwrap_or(0);
        let target = match &rule.action {
            FlowAction::Queue(queue) => Some(Target::tir(Arc::new(queue.direct_tir()?))),
            FlowAction::Tir(tir) => Some(Target::tir(Arc::clone(tir))),
            FlowAction::Spread(tirs) => Some(self.spread_rule(&rule.matches, tirs, mark)?),
            FlowAction::Drop => None,
        };
        let counter = if rule.count { Some(Arc::new(self.alloc_flow_counter()?)) } else { None };
        let mut control = inner.control();
        let mut steering = lock(&inner.steering);
        steering.create(&mut control, inner.table_setup())?;
        let (table, group, index) = steering.place_rule(&mut control, mask)?;
        let to: Vec<_> = target.iter().map(|to| destination(to.kind, to.id)).collect();
        let what = if target.is_some() { action::FORWARD } else { action::DROP };
        let context = FlowContext::zeroed()
            .with_group_id(group)
            .with_flow_tag(mark)
            .with_action(what)
            .with_match_value(FlowMatchParam::zeroed().with_outer_headers(value));
        let counter_id = counter.as_ref().map(|counter| counter.number());
        if let Err(error) = set_entry(&mut control, table, index, context, &to, counter_id) {
            steering.free_rule(index);
            // The locks go before the handles, which take them again.
            drop((steering, control));
            return Err(error.into());
        }
        let mut entry = Handle::new(self, Kind::FlowEntry { table }, index, Vec::new());
        for needed in target.iter().flat_map(|to| &to.needs).chain(&counter) {
            entry = entry.needing(needed);
        }
        Ok(FlowRuleHandle { entry, counter })
    }

    fn alloc_flow_counter(&self) -> Result<Handle, DeviceError> {
        let output = self.inner().control().call(&AllocFlowCounter::input())?;
        Ok(Handle::new(self, Kind::FlowCounter, output.flow_counter_id(), Vec::new()))
    }

    /// Checks what does not depend on the match.
    fn check_rule(&self, rule: &FlowRule) -> Result<(), ConfigError> {
        if let Some(mark) = rule.mark {
            let hint = "; 0 means no mark";
            ConfigError::range(
                "mark of a flow rule",
                mark.into(),
                1,
                FlowContext::FLOW_TAG.mask().into(),
                hint,
            )?;
            if matches!(rule.action, FlowAction::Drop) {
                let what = "a rule that drops packets cannot mark them; leave the mark out";
                return Err(ConfigError::Conflict { what });
            }
        }
        if rule.count && !self.limits().flow_counters {
            let (what, way_out) = ("flow counters", "make the rule with `count: false`");
            return Err(ConfigError::Unsupported { what, way_out });
        }
        Ok(())
    }
}
