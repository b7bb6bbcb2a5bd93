//! What this device does not have, said as the interface says it.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::{Errno, set_errno};

/// Functions that return an error number, whatever they are called with.
macro_rules! numbers {
    ($($name:ident),* $(,)?) => {$(
        pub(crate) extern "C" fn $name() -> c_int {
            libc::EOPNOTSUPP
        }
    )*};
}

/// Functions that return an object, or null and the thread's error number.
macro_rules! objects {
    ($($name:ident),* $(,)?) => {$(
        pub(crate) extern "C" fn $name() -> *mut c_void {
            set_errno(Errno::NOT_SUPPORTED);
            null_mut()
        }
    )*};
}

/// Functions that have nothing to do.
macro_rules! nothing {
    ($($name:ident),* $(,)?) => {$(
        pub(crate) extern "C" fn $name() -> c_int {
            0
        }
    )*};
}

numbers! {
    ibv_query_ece, ibv_set_ece, ibv_dealloc_dmah, ibv_dm_export_dmabuf_fd, ibv_query_port_speed,
    _ibv_query_comp_cntr_caps, ibv_destroy_comp_cntr, ibv_inc_comp_cntr, ibv_inc_err_comp_cntr,
    ibv_qp_attach_comp_cntr, ibv_read_comp_cntr, ibv_read_err_comp_cntr, ibv_set_comp_cntr,
    ibv_set_err_comp_cntr,
}

objects! {
    ibv_reg_dmabuf_mr, ibv_alloc_dmah, ibv_reg_mr_ex, ibv_create_comp_cntr,
}

nothing! {
    ibv_register_driver,
    // Threads of this process reach its own memory: copies on write do no harm.
    ibv_fork_init, ibv_dofork_range, ibv_dontfork_range,
}

/// Forking needs no preparation.
pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_int {
    /// `IBV_FORK_UNNEEDED`.
    const UNNEEDED: c_int = 2;
    UNNEEDED
}
