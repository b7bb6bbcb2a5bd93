//! Parent domains, and what they are made of besides a domain: thread domains.
//!
//! A thread domain promises that one thread at a time uses what is made in it, so that a library
//! may leave locks out. This one leaves none out.

use std::ffi::c_int;
use std::sync::Arc;

use super::context::{Context, Shared};
use super::life::Users;
use super::memory::Domain;
use super::{Errno, give_out, object, take_back, tried};
use crate::abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td};

#[repr(C)]
struct ThreadDomain {
    face: ibv_td,
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
        let (face, shared) = (ibv_td { context }, Arc::clone(shared));
        Ok(give_out(ThreadDomain { face, shared, users: Users::default() }))
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

fn alloc(
    context: *mut ibv_context,
    attr: &ibv_parent_domain_init_attr,
) -> Result<*mut ibv_pd, Errno> {
    /// `IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT`; what it is for, allocators, are not used: rings
    /// lie in memory of the library's own.
    const PD_CONTEXT: u32 = 1 << 1;
    promised!(Context::here(context))?;
    if attr.pd.is_null() {
        return Err(Errno::INVALID);
    }
    if attr.comp_mask & !PD_CONTEXT != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    let base = promised!(Domain::of(attr.pd));
    let mut needs = vec![base.users.clone()];
    if !attr.td.is_null() {
        needs.push(promised!(&(*attr.td.cast::<ThreadDomain>()).users).clone());
    }
    let face = ibv_pd { context, handle: base.face.handle };
    Ok(give_out(Domain { face, pd: base.pd.clone(), users: Users::default(), needs }))
}

pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    object(alloc(context, promised!(&*attr)))
}
