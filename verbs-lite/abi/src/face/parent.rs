//! Parent domains, and what they are made of besides a domain: thread domains.
//!
//! A thread domain promises that one thread at a time uses what is made in it, so that a library
//! may leave locks out. This one leaves none out.
//!
//! A program's own functions give the memory in which rings of queue pairs lie, page by page; the
//! interface lets each library choose what it asks for. Raw packets, shared receive queues and
//! completion queues have theirs in the library's memory.

use std::ffi::{c_int, c_void};
use std::io::ErrorKind;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use ferrocx_mempool::{MempoolError, Region};
use ferrocx_verbs_lite::{Access, RingMemory, VerbsError};

use super::context::{Context, Shared};
use super::life::Users;
use super::memory::{Domain, PAGE_BYTES};
use super::rights;
use super::shown::Shown;
use super::unmapped::Watched;
use super::{Errno, give_out, object, take_back, tried};
use crate::abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td};

#[repr(C)]
struct ThreadDomain {
    _face: Shown<ibv_td>,
    shared: Arc<Shared>,
    users: Users,
}

pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    comp_mask: *mut u32,
) -> *mut ibv_td {
    let made = promised!(Context::here(context)).and_then(|shared| {
        if promised!(*comp_mask) != 0 {
            return Err(Errno::NOT_SUPPORTED);
        }
        let (_face, shared) = (Shown::new(ibv_td { context }), Arc::clone(shared));
        Ok(give_out(ThreadDomain { _face, shared, users: Users::default() }))
    });
    object(made)
}

pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let domain = promised!(&*td.cast::<ThreadDomain>());
    tried!(domain.shared.here());
    tried!(domain.users.none());
    drop(promised!(take_back::<ThreadDomain, _>(td)));
    0
}

/// A program's functions that give and take memory, and what it wants them to be called with.
#[derive(Debug)]
struct Allocator {
    alloc: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void,
    free: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64),
    pd_context: *mut c_void,
    /// The parent domain, once there is one.
    pd: AtomicPtr<ibv_pd>,
}

// SAFETY: the pointers are only handed back to the program, whose functions may be called by any
// thread that makes or destroys a queue pair.
unsafe impl Send for Allocator {}
// SAFETY: as above.
unsafe impl Sync for Allocator {}

/// What memory is for, as the program is told: each library has numbers of its own, and of this one
/// all is for queue pairs.
const FOR_QUEUE_PAIR: u64 = 0;
/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: usize = usize::MAX;

/// Memory of the program's, which goes back to it when the device has let go of it.
struct Lent {
    allocator: Arc<Allocator>,
    start: *mut c_void,
    /// A program that unmaps it too early is not ended by that.
    _watched: Watched,
}

// SAFETY: as of the allocator.
unsafe impl Send for Lent {}
// SAFETY: as of the allocator.
unsafe impl Sync for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        let Allocator { free, pd_context, pd, .. } = &*self.allocator;
        promised!(free(pd.load(Ordering::Relaxed), *pd_context, self.start, FOR_QUEUE_PAIR));
    }
}

/// [`RingMemory`] of a parent domain.
#[derive(Debug)]
struct Rings(Arc<Allocator>);

// SAFETY: each call asks the program for memory, which is the library's until it is freed: the
// interface has the program promise that.
unsafe impl RingMemory for Rings {
    fn take(&self, len_bytes: usize) -> Result<Option<Arc<Region>>, VerbsError> {
        let Allocator { alloc, pd_context, pd, .. } = &*self.0;
        let bytes = len_bytes.next_multiple_of(PAGE_BYTES);
        let pd = pd.load(Ordering::Relaxed);
        let start = promised!(alloc(pd, *pd_context, bytes, PAGE_BYTES, FOR_QUEUE_PAIR));
        if start.addr() == USE_DEFAULT {
            return Ok(None);
        }
        let none = || {
            let (call, source) = ("the program's allocator", ErrorKind::OutOfMemory.into());
            VerbsError::Mempool(MempoolError::Os { call, len_bytes, source })
        };
        let base = NonNull::new(start.cast::<u8>()).ok_or_else(none)?;
        let _watched = Watched::new(base.addr().get(), bytes);
        let owner = Box::new(Lent { allocator: Arc::clone(&self.0), start, _watched });
        // What cannot be written, or is not as long as was asked for, would fault later.
        if rights::check(base, bytes, Access::LOCAL_WRITE).is_err() {
            return Err(none());
        }
        // The program's promise is the interface's: the memory is the library's until it is freed.
        Ok(Some(promised!(Region::adopt(base, bytes, owner))?))
    }
}

fn alloc(
    context: *mut ibv_context,
    attr: &ibv_parent_domain_init_attr,
) -> Result<*mut ibv_pd, Errno> {
    /// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS`, `_PD_CONTEXT`.
    const ALLOCATORS: u32 = 1;
    const PD_CONTEXT: u32 = 1 << 1;
    promised!(Context::here(context))?;
    if attr.pd.is_null() {
        return Err(Errno::INVALID);
    }
    if attr.comp_mask & !(ALLOCATORS | PD_CONTEXT) != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    let has = |bit: u32| attr.comp_mask & bit != 0;
    let allocator = match (has(ALLOCATORS), attr.alloc, attr.free) {
        (false, ..) => None,
        (true, Some(alloc), Some(free)) => {
            let pd_context = if has(PD_CONTEXT) { attr.pd_context } else { null_mut() };
            Some(Arc::new(Allocator { alloc, free, pd_context, pd: AtomicPtr::default() }))
        }
        // One that frees what another one gave, or nobody.
        (true, ..) => return Err(Errno::INVALID),
    };
    let base = promised!(Domain::of(attr.pd));
    let mut needs = vec![base.users.one()];
    if !attr.td.is_null() {
        needs.push(promised!(&(*attr.td.cast::<ThreadDomain>()).users).one());
    }
    let _face = Shown::new(ibv_pd { context, handle: promised!((*attr.pd).handle) });
    let pd = match &allocator {
        Some(allocator) => base.pd.with_ring_memory(Arc::new(Rings(Arc::clone(allocator)))),
        None => base.pd.clone(),
    };
    let given = give_out(Domain { _face, pd, users: Users::default(), needs });
    if let Some(allocator) = allocator {
        allocator.pd.store(given, Ordering::Relaxed);
    }
    Ok(given)
}

pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    object(alloc(context, promised!(&*attr)))
}
