//! Which rules lead frames to a queue pair, and which of them the device follows.

use ferrocx_core::FlowMatch;
use ferrocx_verbs_lite::{Buffers, FlowId, Qp, QpState, Spread, VerbsError};

use super::Errno;

/// A rule of a queue pair, and its name on the device while it is there.
#[derive(Debug)]
struct Rule {
    number: u32,
    matches: FlowMatch,
    id: Option<FlowId>,
}

/// The rules of a queue pair.
#[derive(Debug, Default)]
pub(super) struct Rules {
    all: Vec<Rule>,
    next: u32,
}

impl Rules {
    /// Has the device follow the rules that it does not follow yet.
    pub(super) fn lead<B: Buffers>(&mut self, qp: &mut Qp<B>) -> Result<(), VerbsError> {
        for rule in &mut self.all {
            if rule.id.is_none() {
                rule.id = Some(qp.create_flow_hearing_port(&rule.matches)?);
            }
        }
        Ok(())
    }

    /// Notes that the device follows none of them any more.
    pub(super) fn forget(&mut self) {
        self.all.iter_mut().for_each(|rule| rule.id = None);
    }

    /// Adds a rule, which the device follows at once if it can do so now; its number.
    pub(super) fn add<B: Buffers>(
        &mut self,
        matches: FlowMatch,
        qp: &mut Qp<B>,
        spread: Option<&mut Spread>,
    ) -> Result<u32, Errno> {
        let id = match (spread, qp.state()) {
            (Some(spread), _) => Some(spread.create_flow(&matches)?),
            (None, QpState::Rtr | QpState::Rts | QpState::SqError) => {
                Some(qp.create_flow_hearing_port(&matches)?)
            }
            _ => None,
        };
        let number = self.next;
        self.next = number.wrapping_add(1);
        self.all.push(Rule { number, matches, id });
        Ok(number)
    }

    /// Ends a rule.
    pub(super) fn remove<B: Buffers>(
        &mut self,
        number: u32,
        qp: &mut Qp<B>,
        spread: Option<&mut Spread>,
    ) -> Result<(), Errno> {
        let at = self.all.iter().position(|rule| rule.number == number).ok_or(Errno::INVALID)?;
        match (self.all[at].id, spread) {
            (Some(id), Some(spread)) => spread.destroy_flow(id)?,
            (Some(id), None) => qp.destroy_flow(id)?,
            (None, _) => {}
        }
        self.all.swap_remove(at);
        Ok(())
    }
}
