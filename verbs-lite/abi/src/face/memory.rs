//! Protection domains and memory regions.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use ferrocx_mempool::Region;
use ferrocx_verbs_lite::mr::PhysBuf;
use ferrocx_verbs_lite::{Access, Mr, Pd, VerbsError};

use super::context::{Context, Shared};
use super::handles::{KnownDomain, KnownRegion, Region as Held, RegionPlace};
use super::life::{User, Users};
use super::shown::Shown;
use super::unmapped::Watched;
use super::{Errno, give_out, object, rights, take_back, tried};
use crate::abi::{access, ibv_context, ibv_mr, ibv_pd};
use crate::node::lock;

/// Unit of what a device can reach.
pub(super) const PAGE_BYTES: usize = 4096;

#[repr(C)]
pub(super) struct Domain {
    pub(super) _face: Shown<ibv_pd>,
    pub(super) pd: Pd,
    /// Regions, queues and addresses of it.
    pub(super) users: Users,
    /// Of a parent domain: the domains that it is made of.
    pub(super) needs: Vec<User>,
}

impl Domain {
    /// # Safety
    /// The module's: `face` is a live domain.
    pub(super) unsafe fn of<'a>(face: *mut ibv_pd) -> &'a Self {
        promised!(&*face.cast::<Self>())
    }
}

/// A region as the program has it: registered, or imported.
#[repr(C)]
pub(super) struct Registered {
    pub(super) face: Shown<ibv_mr>,
    pub(super) shared: Arc<Shared>,
    pub(super) place: RegionPlace,
    pub(super) is_import: bool,
}

impl Registered {
    /// # Safety
    /// The module's: `face` is a live region.
    unsafe fn of<'a>(face: *mut ibv_mr) -> &'a Self {
        promised!(&*face.cast::<Self>())
    }

    fn handle(&self) -> u32 {
        promised!((*self.face.get()).handle)
    }

    /// The program's memory that it covers.
    fn covers(&self) -> (*mut c_void, usize) {
        let face = self.face.get();
        promised!(((*face).addr, (*face).length))
    }

    /// A region, noted under its number: over memory of the program's, which is watched, or over
    /// memory of the device. It has an address of the program's, and a first one under its key.
    ///
    /// # Safety
    /// The module's: `pd` is a live domain.
    pub(super) unsafe fn noted(
        (mr, access): (Mr, u32),
        (pd, shared): (*mut ibv_pd, &Arc<Shared>),
        (addr, start, length): (*mut c_void, u64, usize),
        watched: Option<Watched>,
    ) -> Self {
        let (domain, key) = (promised!(Domain::of(pd)), mr.lkey().0);
        let context = promised!((*pd).context);
        let face = ibv_mr { context, pd, addr, length, handle: key >> 8, lkey: key, rkey: key };
        let held = Held { mr, access, domain: domain.users.one(), watched };
        let place = Arc::new(Mutex::new(Some(held)));
        let known = KnownRegion { start, length, key, access, place: Arc::clone(&place) };
        lock(&shared.handles.regions).insert(face.handle, known);
        Self { face: Shown::new(face), shared: Arc::clone(shared), place, is_import: false }
    }

    /// Whether it is over memory of the device.
    fn is_of_device(&self) -> bool {
        lock(&self.place).as_ref().is_some_and(|held| held.watched.is_none())
    }
}

fn alloc_pd(context: *mut ibv_context) -> Result<*mut ibv_pd, Errno> {
    let shared = promised!(Context::here(context))?;
    let pd = shared.node.context.alloc_pd()?;
    let face = ibv_pd { context, handle: pd.number() };
    let users = Users::default();
    let known = KnownDomain { pd: pd.clone(), users: users.clone() };
    lock(&shared.handles.domains).insert(face.handle, known);
    Ok(give_out(Domain { _face: Shown::new(face), pd, users, needs: Vec::new() }))
}

pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object(alloc_pd(context))
}

pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let domain = promised!(Domain::of(pd));
    let Ok(shared) = promised!(Context::of((*pd).context)) else {
        // It ended with its context, but for what the program holds.
        tried!(domain.users.none());
        drop(promised!(take_back::<Domain, _>(pd)));
        return 0;
    };
    tried!(shared.here());
    tried!(domain.users.none());
    if domain.needs.is_empty() {
        lock(&shared.handles.domains).remove(&promised!((*pd).handle));
    }
    drop(promised!(take_back::<Domain, _>(pd)));
    0
}

/// What is known of a region, which may be an import.
///
/// # Safety
/// The module's: `mr` is a live region.
pub(super) unsafe fn known(mr: *mut ibv_mr) -> Result<KnownRegion, Errno> {
    let shared = promised!(Context::here((*mr).context))?;
    let known = lock(&shared.handles.regions).get(&promised!((*mr).handle)).cloned();
    known.ok_or(Errno::INVALID)
}

/// Rights in verbs-lite's words; `None` for flags that are not supported.
pub(super) fn access_of(flags: u32) -> Option<Access> {
    const KNOWN: [(u32, Access); 6] = [
        (access::LOCAL_WRITE, Access::LOCAL_WRITE),
        (access::REMOTE_WRITE, Access::REMOTE_WRITE),
        (access::REMOTE_READ, Access::REMOTE_READ),
        (access::REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (access::MW_BIND, Access::MW_BIND),
        (access::ZERO_BASED, Access::ZERO_BASED),
    ];
    let known = KNOWN.iter().fold(access::HUGETLB | access::OPTIONAL, |all, (flag, _)| all | flag);
    if flags & !known != 0 {
        return None;
    }
    let rights = KNOWN.iter().filter(|(flag, _)| flags & flag != 0);
    Some(rights.fold(Access::empty(), |all, (_, right)| all | *right))
}

/// The whole pages that bytes of the program's stand in: where they begin, and their bytes. They
/// end below the end of all addresses.
fn pages_of(addr: *mut c_void, length: usize) -> Result<(NonNull<u8>, usize), Errno> {
    let offset = addr.addr() % PAGE_BYTES;
    let end = addr.addr().checked_add(length).filter(|_| length > 0);
    let end = end.and_then(|end| end.checked_next_multiple_of(PAGE_BYTES)).ok_or(Errno::INVALID)?;
    let bytes = end - (addr.addr() - offset);
    let base = NonNull::new(addr.wrapping_byte_sub(offset).cast()).ok_or(Errno(libc::EFAULT))?;
    Ok((base, bytes))
}

/// Registers a program's memory under addresses that start at `start`.
fn register(
    pd: *mut ibv_pd,
    (addr, length): (*mut c_void, usize),
    start: u64,
    flags: u32,
) -> Result<Registered, Errno> {
    let access = access_of(flags).ok_or(Errno::NOT_SUPPORTED)?;
    let (domain, context) = promised!((Domain::of(pd), (*pd).context));
    let shared = promised!(Context::here(context))?;
    let start = if access.contains(Access::ZERO_BASED) { 0 } else { start };
    let (offset, (base, bytes)) = (addr.addr() % PAGE_BYTES, pages_of(addr, length)?);
    rights::check(base, bytes, access)?;
    // The program's promise is the interface's: the memory stays until it is deregistered. One that
    // breaks it is caught, see `unmapped`.
    let region = promised!(Region::adopt(base, bytes, Box::new(()))).map_err(|error| {
        tracing::info!(%error, "refused");
        Errno::INVALID
    })?;
    let memory = shared.node.context.map_memory(region)?;
    let piece = PhysBuf { memory: Arc::clone(&memory), range: offset..offset + length };
    let mr = domain.pd.reg_phys_mr(&[piece], start, access)?;
    // The device's view begins and ends with whole pages.
    let watched = Some(Watched::new(base.addr().get(), bytes));
    let covered = (addr, start, length);
    Ok(promised!(Registered::noted((mr, flags), (pd, shared), covered, watched)))
}

pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    object(register(pd, (addr, length), addr.addr() as u64, access as u32).map(give_out))
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    object(register(pd, (addr, length), iova, access as u32).map(give_out))
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    object(register(pd, (addr, length), iova, access).map(give_out))
}

pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let registered = promised!(Registered::of(mr));
    tried!(registered.shared.here());
    tried!(registered.end());
    drop(promised!(take_back::<Registered, _>(mr)));
    0
}

/// Changes what a region covers, grants, or belongs to, as `flags` say. Where it covers what it
/// did, its key stays if the device can do that, as mlx5_ib has it; else the keys change, and the
/// old ones end only when the new ones are there.
unsafe fn register_anew(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    memory: (*mut c_void, usize),
    access: u32,
) -> Result<(), Errno> {
    /// `IBV_REREG_MR_CHANGE_*`.
    const TRANSLATION: c_int = 1;
    const PD: c_int = 1 << 1;
    const ACCESS: c_int = 1 << 2;
    // Source of the second: rdma-core, libibverbs/verbs.c, `ibv_rereg_mr`.
    if flags == 0 || flags & !(TRANSLATION | PD | ACCESS) != 0 || flags & ACCESS == 0 && access != 0
    {
        return Err(Errno::INVALID);
    }
    let registered = promised!(Registered::of(mr));
    registered.shared.here()?;
    if registered.is_import {
        return Err(Errno::INVALID);
    }
    let had = lock(&registered.place).as_ref().map(|held| held.access).ok_or(Errno::INVALID)?;
    let pd = if flags & PD != 0 { pd } else { promised!((*mr).pd) };
    let access = if flags & ACCESS != 0 { access } else { had };
    if pd.is_null() {
        return Err(Errno::INVALID);
    }
    if flags & TRANSLATION == 0 && promised!(registered.change(pd, access))? {
        return Ok(());
    }
    let (memory, start) = if flags & TRANSLATION != 0 {
        (memory, memory.0.addr() as u64)
    } else {
        // Its addresses stay, which need not be the program's own.
        let known = promised!(known(mr))?;
        (registered.covers(), known.start)
    };
    let anew = register(pd, memory, start, access)?;
    if let Err(errno) = registered.end() {
        // Nobody knows its key.
        anew.end()?;
        return Err(errno);
    }
    // Nobody else is in a call about it.
    drop(promised!(mr.cast::<Registered>().replace(anew)));
    Ok(())
}

impl Registered {
    /// Ends the region for all who have a handle of it.
    fn end(&self) -> Result<(), Errno> {
        let mut place = lock(&self.place);
        let held = place.as_ref().ok_or(Errno::INVALID)?;
        // Its number may be another region's as soon as the device knows it no more.
        let handle = self.handle();
        let known = lock(&self.shared.handles.regions).remove(&handle);
        if let Err(error) = held.mr.dereg() {
            let again = known.map(|known| (handle, known));
            lock(&self.shared.handles.regions).extend(again);
            return Err(error.into());
        }
        *place = None;
        Ok(())
    }

    /// Changes what the key grants and where; `false` if this cannot be done under the same key.
    unsafe fn change(&self, pd: *mut ibv_pd, flags: u32) -> Result<bool, Errno> {
        let access = access_of(flags).ok_or(Errno::NOT_SUPPORTED)?;
        let mut place = lock(&self.place);
        let held = place.as_mut().ok_or(Errno::INVALID)?;
        let had = access_of(held.access).unwrap_or(Access::empty());
        if rights::writes(access) && !rights::writes(had) {
            let (addr, length) = self.covers();
            let (base, bytes) = pages_of(addr, length)?;
            rights::check(base, bytes, access)?;
        }
        let domain = promised!(Domain::of(pd));
        let mut changer = lock(&self.shared.changer);
        let changer = match &mut *changer {
            Some(changer) => changer,
            none => match self.shared.node.context.mr_changer() {
                Ok(made) => none.insert(made),
                // Without one the region can be registered anew all the same.
                Err(error) => {
                    tracing::info!(%error, "no key is changed in place");
                    return Ok(false);
                }
            },
        };
        match changer.change(&mut held.mr, &domain.pd, access) {
            Ok(()) => {
                let mut regions = lock(&self.shared.handles.regions);
                regions.entry(self.handle()).and_modify(|known| known.access = flags);
                (held.access, held.domain) = (flags, domain.users.one());
                promised!((*self.face.get()).pd = pd);
                Ok(true)
            }
            Err(VerbsError::Unsupported { .. } | VerbsError::NotChanged { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    /// `IBV_REREG_MR_ERR_INPUT`, `IBV_REREG_MR_ERR_CMD`: the old registration is as it was.
    const INPUT: c_int = -1;
    const COMMAND: c_int = -4;
    let registered = promised!(Registered::of(mr));
    // In a child of a fork, somebody may hold the region's lock who is not there.
    if registered.shared.here().is_ok() && registered.is_of_device() {
        super::set_errno(Errno::INVALID);
        return COMMAND;
    }
    match promised!(register_anew(mr, flags, pd, (addr, length), access as u32)) {
        Ok(()) => 0,
        Err(errno) => {
            super::set_errno(errno);
            if errno == Errno::INVALID { INPUT } else { COMMAND }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::without_provenance_mut;

    use super::*;

    #[test]
    fn pages_of_a_range_end_below_the_end_of_all_addresses() {
        let page = PAGE_BYTES;
        let last = 0usize.wrapping_sub(page);
        for (addr, length, expected) in [
            (page, 1, Ok((page, page))),
            (page + 7, page, Ok((page, 2 * page))),
            (page, 0, Err(libc::EINVAL)),
            (7, 1, Err(libc::EFAULT)),
            (page, usize::MAX, Err(libc::EINVAL)),
            (page, usize::MAX - page, Err(libc::EINVAL)),
            (last - page, page, Ok((last - page, page))),
            (last, 1, Err(libc::EINVAL)),
            (last + 7, page, Err(libc::EINVAL)),
        ] {
            let pages = pages_of(without_provenance_mut(addr), length);
            let pages = pages.map(|(base, bytes)| (base.addr().get(), bytes)).map_err(|e| e.0);
            assert_eq!(pages, expected, "{addr:#x} {length:#x}");
        }
    }
}
