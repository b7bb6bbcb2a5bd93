//! What CREATE_QP asks before anything is made.

use ferrocx_prm::qpc::Qpc;
use ferrocx_prm::syndrome::CommandStatus;

use crate::cmd::handler::drivers_only;
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::{CqeScatter, Objects, QpType};

/// The XRC domain of a queue pair that only sends.
const NO_XRCD: u32 = 0;

/// Services that are the driver's alone: UMR above all protection domains, and management
/// datagrams, each of which looks for the queue pair that receives it among a few. One of XRC needs
/// its domain.
pub(super) fn check_service(objects: &Objects, context: &Qpc, qp_type: QpType) -> Answer<()> {
    let (is_gsi, xrcd) = (qp_type == QpType::Gsi, context.xrcd());
    drivers_only(objects, "st", is_gsi || qp_type == QpType::RegUmr)?;
    ensure(!is_gsi || !objects.gsi.is_full(), || {
        let why = "a port has 8 queue pairs for management datagrams at most";
        Refused::new(CommandStatus::EXCEED_LIM, "st", objects.gsi.len() as u64, why)
    })?;
    let needs_domain = qp_type == QpType::Xrc && xrcd != NO_XRCD;
    ensure(!needs_domain || objects.xrcds.contains(xrcd), || Refused::resource("xrcd", xrcd))
}

/// Data in completions: known values, a service whose messages have one sender, and for 64 bytes
/// entries of 128. Source: reference 5.2, 6.7.
pub(super) fn check_scatter(objects: &Objects, context: &Qpc, qp_type: QpType) -> Answer<()> {
    let sides = [
        ("cs_req", context.cs_req(), CqeScatter::of_requester(context.cs_req()), context.cqn_snd()),
        ("cs_res", context.cs_res(), CqeScatter::of_responder(context.cs_res()), context.cqn_rcv()),
    ];
    for (field, raw, scatter, cqn) in sides {
        let scatter = scatter.ok_or_else(|| Refused::param(field, raw, "no such size"))?;
        ensure(scatter == CqeScatter::Off || qp_type.is_connected(), || {
            Refused::param(field, raw, "only for connected services")
        })?;
        let has_room = objects.cqs.get(cqn).is_none_or(|cq| cq.cqe_bytes == 128);
        ensure(scatter != CqeScatter::Up64 || has_room, || {
            Refused::param(field, raw, "64 bytes need a completion queue with 128-byte entries")
        })?;
    }
    Ok(())
}
