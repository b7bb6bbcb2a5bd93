//! What is wrong with a request of a batch, said before the first of them is posted: a batch that
//! is refused leaves nothing behind. Source: rdma-core, man page ibv_wr_post(3).
//!
//! Posting looks at the same things again, request by request. Frames it alone looks at: their
//! length is the port's affair.

use ferrocx_verbs_lite::{DeviceCaps, QpType};

use super::Errno;
use super::batch::{Batch, Data, Request};
use super::pair::Pair;
use super::window::{check_binding, has_room_for_windows};
use crate::abi::{ibv_sge, wr_op};

/// Bytes of an atomic.
const ATOMIC_BYTES: u32 = 8;

/// The operations that a service has, as bits of `enum ibv_qp_create_send_ops_flags`: each at the
/// place that is its number.
pub(super) fn operations(service: QpType, caps: DeviceCaps) -> u64 {
    const WRITE: u64 = 1 | 1 << 1;
    const SEND: u64 = 1 << 2 | 1 << 3;
    const FRAME: u64 = 1 << 2;
    const READ_ATOMIC: u64 = 1 << 4 | 1 << 5 | 1 << 6;
    const LOCAL_INV: u64 = 1 << 7;
    const BIND_MW: u64 = 1 << 8;
    const SEND_INV: u64 = 1 << 9;
    let keys = if caps.contains(DeviceCaps::MEM_MGT_EXTENSIONS) { LOCAL_INV } else { 0 };
    let windows = if caps.contains(DeviceCaps::MEM_WINDOW_TYPE_2) { BIND_MW } else { 0 };
    match service {
        QpType::Rc => WRITE | SEND | READ_ATOMIC | SEND_INV | keys | windows,
        QpType::XrcSend => WRITE | SEND | READ_ATOMIC | SEND_INV,
        QpType::Uc => WRITE | SEND,
        QpType::Raw => FRAME,
        _ => SEND,
    }
}

/// Whether a reliable connection takes a request of this operation whatever it says.
pub(super) const fn is_plain(opcode: i32) -> bool {
    matches!(
        opcode,
        wr_op::RDMA_WRITE
            | wr_op::RDMA_WRITE_WITH_IMM
            | wr_op::SEND
            | wr_op::SEND_WITH_IMM
            | wr_op::SEND_WITH_INV
            | wr_op::RDMA_READ
    )
}

/// Looks at every request of a batch.
///
/// # Safety
/// The module's: what the requests name is alive.
#[cold]
#[inline(never)]
pub(super) unsafe fn check_all(pair: &Pair, caps: DeviceCaps, batch: &Batch) -> Result<(), Errno> {
    batch.requests().iter().try_for_each(|request| promised!(check(pair, caps, request, batch)))
}

unsafe fn check(
    pair: &Pair,
    caps: DeviceCaps,
    Request { wr, data }: &Request,
    batch: &Batch,
) -> Result<(), Errno> {
    let service = pair.qp.qp_type();
    let is_known = operations(service, caps) >> wr.opcode & 1 != 0;
    let is_right = match wr.opcode {
        _ if !is_known => false,
        wr_op::RDMA_READ => !matches!(data, Data::Inline(_)),
        wr_op::ATOMIC_CMP_AND_SWP | wr_op::ATOMIC_FETCH_AND_ADD => is_of_atomic(data, batch),
        wr_op::LOCAL_INV => has_room_for_windows(&pair.attr.cap),
        wr_op::BIND_MW => {
            promised!(check_binding(pair, caps, wr))?;
            has_room_for_windows(&pair.attr.cap)
        }
        _ => service != QpType::Ud || !promised!(wr.wr.ud.ah).is_null(),
    };
    if is_right { Ok(()) } else { Err(Errno::INVALID) }
}

/// Whether data are one piece of memory of the length of an atomic; pieces of no length are none.
fn is_of_atomic(data: &Data, batch: &Batch) -> bool {
    let list = match data {
        Data::One(sge) => std::slice::from_ref(sge),
        Data::List(range) => batch.list(range),
        Data::Nothing | Data::Inline(_) => return false,
    };
    let mut pieces = list.iter().filter(|sge| sge.length > 0);
    matches!((pieces.next(), pieces.next()), (Some(ibv_sge { length: ATOMIC_BYTES, .. }), None))
}
