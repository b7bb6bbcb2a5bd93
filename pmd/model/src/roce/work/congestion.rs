//! Congestion on the way: marked packets, and what the two ends tell each other of them.
//!
//! Source: IBTA annex A17; [`crate::device::congestion`].

use ferrocx_prm::cmd::cong::CongProtocol;

use super::env::Env;
use super::output::{Output, Parcel, Sent};
use super::path::{ECT_0, connected_path};
use crate::bits::low16;
use crate::objects::Qp;
use crate::roce::transport::bth::{Header, Op, Transport};
use crate::roce::transport::packet::{Frame, Path};
use crate::roce::transport::psn::Psn;

/// Bytes behind the BTH of a notification, all zero. Source: reference 7.11.
const RESERVED_BYTES: usize = 16;

/// A packet for a queue pair arrived: counts a mark, and makes a notification due.
pub(super) fn arrived(qp: &mut Qp, env: &mut Env<'_>, frame: &Frame<'_>) {
    if !frame.is_marked() || frame.header.op == Op::Notification {
        return;
    }
    let congestion = &mut env.port.congestion;
    congestion.counts.np_ecn_marked_roce_packets += 1;
    let priority = frame.vlan.map_or(0, |vlan| u32::from(vlan >> 13));
    let is_on = congestion.is_enabled(CongProtocol::ROCE_NP, priority) == Some(true);
    if is_on && qp.qp_type.is_connected() && env.now_ns >= qp.cnp_after_ns {
        let pause_us = congestion.notification().min_time_between_cnps();
        qp.cnp_after_ns = env.now_ns.saturating_add(u64::from(pause_us) * 1000);
        qp.cnp_due = true;
    }
}

/// A notification of the peer arrived.
pub(super) fn notified(qp: &Qp, env: &mut Env<'_>, frame: &Frame<'_>) {
    let priority = frame.vlan.map_or(0, |vlan| u32::from(vlan >> 13));
    let congestion = &mut env.port.congestion;
    let is_on = congestion.is_enabled(CongProtocol::ROCE_RP, priority) == Some(true);
    let counts = &mut congestion.counts;
    if is_on && qp.qp_type.is_connected() {
        counts.rp_cnp_handled += 1;
    } else {
        counts.rp_cnp_ignored += 1;
    }
}

/// Sends the notification that is due. Returns whether there was one.
pub(super) fn notify(qp: &mut Qp, env: &mut Env<'_>, out: &mut Output<'_>) -> bool {
    if !qp.cnp_due {
        return false;
    }
    let Some(path) = connected_path(qp, env) else {
        qp.cnp_due = false;
        return false;
    };
    let path = notification_path(env, path);
    let header =
        Header::new(Transport::Cnp, Op::Notification, qp.context.remote_qpn(), Psn::default());
    let fill = |_: &mut Env<'_>, into: &mut [u8]| -> Result<(), ()> {
        into.fill(0);
        Ok(())
    };
    let parcel = Parcel {
        path: &path,
        header: &header,
        len: RESERVED_BYTES,
        mtu: RESERVED_BYTES,
        blocks_loopback: true,
    };
    if out.send(env, &parcel, fill) == Ok(Sent::Full) {
        return false;
    }
    qp.cnp_due = false;
    env.port.congestion.counts.np_cnp_sent += 1;
    true
}

/// The way of a flow, with the code point and priority of notifications.
fn notification_path(env: &Env<'_>, path: Path) -> Path {
    let set = env.port.congestion.notification();
    let tos = set.cnp_dscp().to_be_bytes()[3] << 2 | ECT_0;
    let vlan = path.vlan.map(|vlan| match set.cnp_prio_mode() {
        false => low16(set.cnp_802p_prio().into()) << 13 | vlan & 0xfff,
        true => vlan,
    });
    Path { tos, vlan, ..path }
}
