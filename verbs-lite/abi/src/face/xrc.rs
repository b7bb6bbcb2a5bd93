//! XRC domains, and their targets that others open.
//!
//! Programs share a domain by a file: whoever opens one of the same file has the same domain. The
//! device is this process's own, so it is shared among the contexts of the process.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};

use ferrocx_verbs_lite::Xrcd;

use super::context::{Context, Shared};
use super::handles::{FileId, id_of};
use super::life::Users;
use super::pair::Member;
use super::shown::Shown;
use super::{Errno, give_out, object, take_back, tried};
use crate::abi::{ibv_context, ibv_qp_open_attr, ibv_xrcd, ibv_xrcd_init_attr, qpt};
use crate::node::{Node, lock};

/// A domain, as all have it who opened it.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) xrcd: Xrcd,
    node: Arc<Node>,
    file: Option<FileId>,
    targets: Mutex<Vec<(u32, Weak<Member>)>>,
}

impl Core {
    /// Lets a target be opened by its number.
    pub(super) fn add(&self, number: u32, target: &Arc<Member>) {
        let mut targets = lock(&self.targets);
        targets.retain(|(_, known)| known.strong_count() > 0);
        targets.push((number, Arc::downgrade(target)));
    }

    fn target(&self, number: u32) -> Option<Arc<Member>> {
        let targets = lock(&self.targets);
        targets.iter().find(|(known, _)| *known == number)?.1.upgrade()
    }
}

/// A domain as the program has it.
#[repr(C)]
pub(super) struct XrcDomain {
    _face: Shown<ibv_xrcd>,
    pub(super) core: Arc<Core>,
    pub(super) shared: Arc<Shared>,
    /// Queues and queue pairs of it.
    pub(super) users: Users,
}

impl XrcDomain {
    /// # Safety
    /// The module's: `face` is a live domain.
    pub(super) unsafe fn of<'a>(face: *mut ibv_xrcd) -> &'a Self {
        promised!(&*face.cast::<Self>())
    }
}

/// The domains that have a file.
static OPEN: Mutex<Vec<Weak<Core>>> = Mutex::new(Vec::new());

/// The domain of a file, or a new one of none.
fn core(shared: &Shared, file: Option<FileId>, flags: c_int) -> Result<Arc<Core>, Errno> {
    let make = || -> Result<Arc<Core>, Errno> {
        let node = Arc::clone(&shared.node);
        let xrcd = node.context.alloc_xrcd()?;
        Ok(Arc::new(Core { xrcd, node, file, targets: Mutex::default() }))
    };
    if file.is_none() {
        return if flags & libc::O_CREAT != 0 { make() } else { Err(Errno::INVALID) };
    }
    let mut open = lock(&OPEN);
    open.retain(|known| known.strong_count() > 0);
    let is_it = |core: &Arc<Core>| core.file == file && Arc::ptr_eq(&core.node, &shared.node);
    match open.iter().filter_map(Weak::upgrade).find(is_it) {
        Some(_) if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 => Err(Errno::INVALID),
        Some(known) => Ok(known),
        None if flags & libc::O_CREAT == 0 => Err(Errno(libc::ENOENT)),
        None => {
            let made = make()?;
            open.push(Arc::downgrade(&made));
            Ok(made)
        }
    }
}

fn open(context: *mut ibv_context, attr: &ibv_xrcd_init_attr) -> Result<*mut ibv_xrcd, Errno> {
    /// `IBV_XRCD_INIT_ATTR_FD`, `_OFLAGS`: both are needed.
    const NEEDED: u32 = 0b11;
    const FLAGS: c_int = libc::O_CREAT | libc::O_EXCL;
    let shared = promised!(Context::here(context))?;
    if attr.comp_mask & !NEEDED != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    if attr.comp_mask != NEEDED || attr.oflags & !FLAGS != 0 {
        return Err(Errno::INVALID);
    }
    let file = match attr.fd {
        -1 => None,
        fd if fd < 0 => return Err(Errno(libc::EBADF)),
        fd => {
            let file = promised!(BorrowedFd::borrow_raw(fd));
            Some(id_of(file).map_err(|_| Errno(libc::EBADF))?)
        }
    };
    let core = core(shared, file, attr.oflags)?;
    let (_face, shared) = (Shown::new(ibv_xrcd { context }), Arc::clone(shared));
    Ok(give_out(XrcDomain { _face, core, shared, users: Users::default() }))
}

pub(super) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    object(open(context, promised!(&*attr)))
}

pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    let domain = promised!(XrcDomain::of(xrcd));
    tried!(domain.shared.here());
    tried!(domain.users.none());
    drop(promised!(take_back::<XrcDomain, _>(xrcd)));
    0
}

/// The domain and the target that somebody asks for by its number.
pub(super) fn find_target<'a>(
    attr: &ibv_qp_open_attr,
) -> Result<(&'a XrcDomain, Arc<Member>, *mut c_void), Errno> {
    /// `IBV_QP_OPEN_ATTR_NUM`, `_XRCD`, `_CONTEXT`, `_TYPE`.
    const NUM: u32 = 1;
    const XRCD: u32 = 1 << 1;
    const CONTEXT: u32 = 1 << 2;
    const TYPE: u32 = 1 << 3;
    if attr.comp_mask & !(NUM | XRCD | CONTEXT | TYPE) != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    let is_whole = attr.comp_mask & (NUM | XRCD | TYPE) == NUM | XRCD | TYPE;
    if !is_whole || attr.qp_type != qpt::XRC_RECV || attr.xrcd.is_null() {
        return Err(Errno::INVALID);
    }
    let domain = promised!(XrcDomain::of(attr.xrcd));
    domain.shared.here()?;
    let target = domain.core.target(attr.qp_num).ok_or(Errno::INVALID)?;
    let qp_context =
        if attr.comp_mask & CONTEXT != 0 { attr.qp_context } else { std::ptr::null_mut() };
    Ok((domain, target, qp_context))
}
