//! Commands that only a device with RoCE has.
//!
//! - `qp`: queue pairs, `checks` of new ones. `srq`: shared receive queues of XRC. `addresses`:
//!   RoCE addresses, P_Keys, multicast groups. `congestion`: congestion control.

mod addresses;
mod checks;
mod congestion;
mod qp;
mod srq;

use ferrocx_prm::cmd::Opcode;

use super::handler::Handler;

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    qp::handler(opcode)
        .or_else(|| srq::handler(opcode))
        .or_else(|| addresses::handler(opcode))
        .or_else(|| congestion::handler(opcode))
}
