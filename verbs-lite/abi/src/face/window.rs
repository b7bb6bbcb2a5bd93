//! Memory windows of both types: made, bound by calls and by requests, ended.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ferrocx_verbs_lite::{
    Access, BindUntyped, DeviceCaps, Lkey, MwKind, Rkey, SendFlags, UntypedMw,
};

use super::context::{Context, Shared};
use super::handles::KnownRegion;
use super::life::User;
use super::memory::{self, Domain};
use super::pair::{Pair, flags_of};
use super::shown::Shown;
use super::{Errno, give_out, object, take_back, tried};
use crate::abi::{
    access, ibv_mw, ibv_mw_bind_info, ibv_pd, ibv_qp_cap, ibv_send_wr, wr_bind_mw, wr_op,
};

#[repr(C)]
struct Window {
    _face: Shown<ibv_mw>,
    mw: UntypedMw,
    shared: Arc<Shared>,
    _domain: User,
}

fn alloc(pd: *mut ibv_pd, kind: c_int) -> Result<*mut ibv_mw, Errno> {
    let (domain, context) = promised!((Domain::of(pd), (*pd).context));
    let shared = promised!(Context::here(context))?;
    let of_verbs = match kind {
        1 => MwKind::Type1,
        2 => MwKind::Type2,
        _ => return Err(Errno::INVALID),
    };
    let mw = domain.pd.alloc_untyped_mw(of_verbs)?;
    let rkey = mw.rkey().0;
    let _face = Shown::new(ibv_mw { context, pd, rkey, handle: rkey >> 8, kind });
    let (shared, _domain) = (Arc::clone(shared), domain.users.one());
    Ok(give_out(Window { _face, mw, shared, _domain }))
}

/// The key of a window, which each binding changes.
///
/// # Safety
/// The module's: `mw` is a live window.
pub(super) unsafe fn key_of<'a>(mw: *mut ibv_mw) -> &'a AtomicU32 {
    promised!(AtomicU32::from_ptr(&raw mut (*mw).rkey))
}

pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    object(alloc(pd, kind))
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    let window = promised!(&*mw.cast::<Window>());
    tried!(window.shared.here());
    tried!(window.mw.dealloc().map_err(Errno::from));
    drop(promised!(take_back::<Window, _>(mw)));
    0
}

/// Requests of the longest queue that has room for bindings of windows: a ring has 2^15 blocks, a
/// binding takes three.
const MAX_WR_WITH_WINDOWS: u32 = (1 << 15) / 3;

/// Whether a queue pair of such sizes takes requests that bind windows and end keys.
pub(super) fn has_room_for_windows(cap: &ibv_qp_cap) -> bool {
    cap.max_send_wr <= MAX_WR_WITH_WINDOWS
}

/// Checks that a region lets a window be bound so; `None` for one that is ended.
unsafe fn region_of(info: &ibv_mw_bind_info) -> Result<Option<Lkey>, Errno> {
    const WRITES: u32 = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    if info.length == 0 {
        return Ok(None);
    }
    if info.mr.is_null() {
        return Err(Errno::INVALID);
    }
    let KnownRegion { start, length, key, access: rights, .. } = promised!(memory::known(info.mr))?;
    let end = info.addr.checked_add(info.length).ok_or(Errno::INVALID)?;
    let is_inside = start <= info.addr && end - start <= length as u64;
    let may_write = info.mw_access_flags & WRITES == 0 || rights & access::LOCAL_WRITE != 0;
    if !is_inside || !may_write || rights & access::MW_BIND == 0 {
        return Err(Errno::INVALID);
    }
    Ok(Some(Lkey(key)))
}

/// The binding that a request asks for, and its window.
unsafe fn binding<'a>(pair: &Pair, wr: &ibv_send_wr) -> Result<(BindUntyped, &'a Window), Errno> {
    let wr_bind_mw { mw, rkey, bind_info } = wr.bind_mw;
    if mw.is_null() {
        return Err(Errno::INVALID);
    }
    let window = promised!(&*mw.cast::<Window>());
    let lkey = promised!(region_of(&bind_info))?;
    let access = memory::access_of(bind_info.mw_access_flags).ok_or(Errno::INVALID)?;
    let bind = BindUntyped {
        wr_id: wr.wr_id,
        flags: flags_of(wr.send_flags, pair.signals_all),
        access,
        old: Rkey(promised!(key_of(mw)).load(Ordering::Relaxed)),
        variant: rkey as u8,
        lkey: lkey.unwrap_or(Lkey(0)),
        addr: bind_info.addr,
        len_bytes: lkey.map_or(0, |_| bind_info.length),
    };
    Ok((bind, window))
}

/// Checks what posting a binding checks, apart from the queue pair's state and room.
///
/// # Safety
/// The module's: what the request names is alive.
pub(super) unsafe fn check_binding(
    pair: &Pair,
    caps: DeviceCaps,
    wr: &ibv_send_wr,
) -> Result<(), Errno> {
    /// Above, a length is not one of a window.
    const MAX_BYTES: u64 = (1 << 31) - 1;
    let (bind, window) = promised!(binding(pair, wr))?;
    let is_atomic = bind.access.contains(Access::REMOTE_ATOMIC);
    let is_right = promised!(Domain::of((*wr.bind_mw.mw).pd)).pd.domain() == pair.domain
        && bind.old.0 >> 8 == window.mw.rkey().0 >> 8
        && bind.len_bytes <= MAX_BYTES
        && (!is_atomic || caps.contains(DeviceCaps::FAST_REG_ATOMIC));
    if is_right { Ok(()) } else { Err(Errno::INVALID) }
}

/// Posts a binding or a local invalidate; anything else is not supported.
///
/// # Safety
/// The module's: what the request names is alive.
#[cold]
#[inline(never)]
pub(super) unsafe fn post_change(
    pair: &mut Pair,
    wr: &ibv_send_wr,
    more: bool,
) -> Result<(), Errno> {
    let mut flags = flags_of(wr.send_flags, pair.signals_all);
    flags.set(SendFlags::MORE, more);
    if wr.opcode == wr_op::LOCAL_INV {
        // A key, not data: as it is.
        return Ok(pair.qp.post_local_inv_rkey(wr.wr_id, flags, Rkey(wr.imm_data))?);
    }
    if wr.opcode != wr_op::BIND_MW {
        return Err(Errno::NOT_SUPPORTED);
    }
    let (bind, window) = promised!(binding(pair, wr))?;
    let bind = BindUntyped { flags, ..bind };
    // The region is one that the program registered, and the bytes are within it: `region_of`.
    Ok(promised!(pair.qp.post_bind_untyped(&bind, &window.mw))?)
}
