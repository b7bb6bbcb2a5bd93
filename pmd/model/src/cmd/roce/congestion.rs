//! Commands about congestion control.
//!
//! Source: reference 4.2 "Ports, vports, RoCE"; Linux 6.12 `hw/mlx5/cong.c`, `counters.c`.

use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::cong::{
    CongProtocol, ModifyCongParams, ModifyCongParamsOut, ModifyCongStatus, ModifyCongStatusOut,
    QueryCongParams, QueryCongParamsOut, QueryCongStatistics, QueryCongStatisticsOut,
    QueryCongStatus, QueryCongStatusOut,
};

use crate::cmd::handler::{Exec, Handler, plain};
use crate::device::congestion::CongestionCounts;
use crate::device::refused::{Answer, Refused, ensure};

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::QUERY_CONG_STATUS => query_status,
        Opcode::MODIFY_CONG_STATUS => modify_status,
        Opcode::QUERY_CONG_PARAMS => query_params,
        Opcode::MODIFY_CONG_PARAMS => modify_params,
        Opcode::QUERY_CONG_STATISTICS => statistics,
        _ => return None,
    })
}

fn no_part(protocol: u32) -> Refused {
    Refused::param("cong_protocol", protocol, "only 1 (RoCE, reaction) and 2 (notification)")
}

fn check_priority(priority: u32) -> Answer<()> {
    ensure(priority < 8, || Refused::param("priority", priority, "priorities are 0 to 7"))
}

fn query_status(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QueryCongStatus>(exec, input, |exec, input| {
        let (protocol, priority) = (input.cong_protocol(), input.priority());
        check_priority(priority)?;
        let congestion = &exec.ctx.state.port.congestion;
        let enabled = congestion.is_enabled(CongProtocol(protocol), priority);
        let enabled = enabled.ok_or_else(|| no_part(protocol))?;
        Ok(QueryCongStatusOut::zeroed().with_enable(enabled))
    })
}

fn modify_status(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<ModifyCongStatus>(exec, input, |exec, input| {
        let (protocol, priority) = (input.cong_protocol(), input.priority());
        check_priority(priority)?;
        if input.tag_enable() {
            return Err(Refused::param("tag_enable", 1_u32, "802.1Qau is not supported"));
        }
        let congestion = &mut exec.ctx.state.port.congestion;
        let done = congestion.enable(CongProtocol(protocol), priority, input.enable());
        done.map(|()| ModifyCongStatusOut::zeroed()).ok_or_else(|| no_part(protocol))
    })
}

fn query_params(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QueryCongParams>(exec, input, |exec, input| {
        let protocol = input.cong_protocol();
        let params = exec.ctx.state.port.congestion.params(CongProtocol(protocol));
        let params = params.ok_or_else(|| no_part(protocol))?;
        Ok(QueryCongParamsOut::zeroed().with_congestion_parameters(*params))
    })
}

fn modify_params(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<ModifyCongParams>(exec, input, |exec, input| {
        let (protocol, select) = (input.cong_protocol(), input.field_select());
        let congestion = &mut exec.ctx.state.port.congestion;
        congestion.params(CongProtocol(protocol)).ok_or_else(|| no_part(protocol))?;
        let new = input.congestion_parameters();
        let done = congestion.set_params(CongProtocol(protocol), select, &new);
        done.ok_or_else(|| Refused::param("field_select", select, "a bit without a parameter"))?;
        Ok(ModifyCongParamsOut::zeroed())
    })
}

fn statistics(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QueryCongStatistics>(exec, input, |exec, input| {
        let now_ns = exec.ctx.now_ns;
        let counts = &mut exec.ctx.state.port.congestion.counts;
        let output = QueryCongStatisticsOut::zeroed()
            .with_rp_cnp_ignored(counts.rp_cnp_ignored)
            .with_rp_cnp_handled(counts.rp_cnp_handled)
            .with_time_stamp(now_ns)
            .with_np_ecn_marked_roce_packets(counts.np_ecn_marked_roce_packets)
            .with_np_cnp_sent(counts.np_cnp_sent);
        if input.clear() {
            *counts = CongestionCounts::default();
        }
        Ok(output)
    })
}
