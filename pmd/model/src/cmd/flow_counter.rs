//! Flow counters.
//!
//! Source: reference 4.2, 4.3 (QUERY_FLOW_COUNTER).

use ferrocx_prm::cmd::flow::{
    AllocFlowCounter, AllocFlowCounterOut, DeallocFlowCounter, DeallocFlowCounterOut,
    QueryFlowCounter, QueryFlowCounterOut,
};

use super::handler::{Exec, no_tail, parse, plain, remove};
use crate::device::caps::{FLOW_COUNTER_BULK, log_max};
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::FlowCounter;

/// Counters for each bit of `flow_counter_bulk`. Source: Linux `MLX5_FC_BULK_SIZE_FACTOR`.
const BULK_UNIT: u32 = 128;

pub(super) fn alloc(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<AllocFlowCounter>(exec, input, |exec, input| {
        let log_size = input.flow_counter_bulk_log_size();
        ensure(log_size == 0, || {
            Refused::param("flow_counter_bulk_log_size", log_size, "not advertised")
        })?;
        let sizes = input.flow_counter_bulk();
        ensure(sizes == 0 || sizes == FLOW_COUNTER_BULK, || {
            Refused::param("flow_counter_bulk", sizes, "not in flow_counter_bulk_alloc")
        })?;
        let count = if sizes == 0 { 1 } else { BULK_UNIT * sizes };
        let counters = &mut exec.ctx.state.objects.flow_counters;
        let counter = |index: u32| FlowCounter {
            bulk: if index == 0 { count } else { 0 },
            ..FlowCounter::default()
        };
        let id = counters.insert_run(count, counter);
        let id = id.map_err(|full| Refused::full("flow_counter_id", full))?;
        Ok(AllocFlowCounterOut::zeroed().with_flow_counter_id(id))
    })
}

pub(super) fn dealloc(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DeallocFlowCounter>(exec, input, |exec, input| {
        let counters = &mut exec.ctx.state.objects.flow_counters;
        let first = input.flow_counter_id();
        let count = counters.get(first).map_or(0, |counter| counter.bulk);
        // Those of a bulk go together.
        ensure(count != 0, || Refused::resource("flow_counter_id", first))?;
        let held = (first..first + count).find(|id| counters.holders(*id) != 0);
        held.map_or(Ok(()), |id| Err(Refused::busy("flow_counter_id", id)))?;
        for id in first..first + count {
            remove(counters, "flow_counter_id", id)?;
        }
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
    ensure(count <= 1 << log_max::FLOW_COUNTER_BULK, || {
        Refused::param("num_of_counters", count, "above log_max_flow_counter_bulk")
    })?;
    // 0 asks for the one counter that is named, which then has to be there.
    ensure(count != 0 || counters.contains(first), || Refused::resource("flow_counter_id", first))?;
    for index in 0..count.max(1) {
        let id = first.saturating_add(index);
        let is_seen = counters.contains(id);
        let Some(counter) = counters.get_mut(id).filter(|_| is_seen) else {
            // Linux reads from a multiple of four on, whether or not all of them are its own.
            output.extend([0; 16]);
            continue;
        };
        output.extend(counter.packets.to_be_bytes());
        output.extend(counter.octets.to_be_bytes());
        if input.fixed.clear() {
            *counter = FlowCounter { bulk: counter.bulk, ..FlowCounter::default() };
        }
    }
    Ok(output)
}
