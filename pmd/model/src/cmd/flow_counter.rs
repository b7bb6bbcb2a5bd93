//! Flow counters.
//!
//! Source: reference 4.2, 4.3 (QUERY_FLOW_COUNTER).

use ferrocx_prm::cmd::flow::{
    AllocFlowCounter, AllocFlowCounterOut, DeallocFlowCounter, DeallocFlowCounterOut,
    QueryFlowCounter, QueryFlowCounterOut,
};

use super::handler::{Exec, add, no_tail, parse, plain, remove};
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::FlowCounter;

pub(super) fn alloc(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<AllocFlowCounter>(exec, input, |exec, input| {
        let bulk = input.flow_counter_bulk() | input.flow_counter_bulk_log_size();
        ensure(bulk == 0, || {
            Refused::param("flow_counter_bulk", bulk, "bulk counters are not advertised")
        })?;
        let counters = &mut exec.ctx.state.objects.flow_counters;
        let id = add(counters, "flow_counter_id", FlowCounter::default())?;
        Ok(AllocFlowCounterOut::zeroed().with_flow_counter_id(id))
    })
}

pub(super) fn dealloc(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DeallocFlowCounter>(exec, input, |exec, input| {
        let counters = &mut exec.ctx.state.objects.flow_counters;
        remove(counters, "flow_counter_id", input.flow_counter_id())?;
        Ok(DeallocFlowCounterOut::zeroed())
    })
}

pub(super) fn query(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<QueryFlowCounter>(bytes, |op_mod| op_mod == 0)?;
    no_tail(input.tail)?;
    let first = input.fixed.flow_counter_id();
    let count = input.fixed.num_of_counters();
    let counters = &mut exec.ctx.state.objects.flow_counters;
    let mut output = QueryFlowCounterOut::zeroed().0.to_vec();
    // 0 asks for the one counter that is named.
    let last = first.saturating_add(count.max(1) - 1);
    for id in first..=last {
        let counter = counters.get_mut(id);
        let counter = counter.ok_or_else(|| Refused::resource("flow_counter_id", id))?;
        output.extend(counter.packets.to_be_bytes());
        output.extend(counter.octets.to_be_bytes());
        if input.fixed.clear() {
            *counter = FlowCounter::default();
        }
    }
    Ok(output)
}
