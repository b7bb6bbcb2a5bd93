//! Random calls of the C interface, as a program that keeps its contract may make them: objects are
//! alive as long as somebody uses them, lists are as long as their counts say, and everything else
//! (keys, addresses, lengths, states, masks, numbers) may be anything.
//!
//! Shared by the seeded test beside this folder, which loads the library as programs do, and by the
//! fuzz target `verbs_calls`. Several threads may act on one [`World`].

#![allow(dead_code, unused_imports, reason = "each of its users needs a part")]
#![allow(unsafe_code, reason = "C functions are called")]

#[path = "../../src/abi/mod.rs"]
pub(crate) mod abi;
mod act;
mod batch;
mod clocks;
mod drain;
mod flows;
mod forked;
mod grants;
mod make;
mod stock;
mod windows;
mod world;

pub(crate) use forked::{Lender, child, status_of};
pub(crate) use world::{Pages, World, open};

use std::ffi::{c_char, c_int, c_void};

use abi::*;

/// Calls C functions, and uses what they gave.
macro_rules! c {
    ($($body:tt)*) => {{
        // SAFETY: the objects are alive: they are in the lists of the world, which are locked
        // against whoever destroys, and what they point to is the world's or on this stack. The
        // functions are those of the library that the table was loaded from.
        #[allow(unused_unsafe, reason = "one call may hold another")]
        unsafe { $($body)* }
    }};
}
pub(crate) use c;

/// The functions that are called by name.
macro_rules! functions {
    ($($name:ident($($kind:ty),*) $(-> $result:ty)?;)*) => {
        pub(crate) struct Api { $(pub $name: unsafe extern "C" fn($($kind),*) $(-> $result)?),* }

        impl Api {
            /// The functions that `find` knows by their names.
            ///
            /// # Safety
            /// `find` gives functions of this interface.
            pub(crate) unsafe fn load(find: impl Fn(&str) -> *const c_void) -> Self {
                let find = |name: &str| {
                    let function = find(name);
                    assert!(!function.is_null(), "{name} is missing");
                    function
                };
                // SAFETY: the caller's promise; the types are those of the header, with which the
                // tests of the library compare them.
                unsafe { Self { $($name: std::mem::transmute::<
                    *const c_void,
                    unsafe extern "C" fn($($kind),*) $(-> $result)?,
                >(find(stringify!($name)))),* } }
            }
        }
    };
}

type Ref<T> = *mut T;

functions! {
    ibv_get_device_list(Ref<c_int>) -> Ref<Ref<ibv_device>>;
    ibv_free_device_list(Ref<Ref<ibv_device>>);
    ibv_open_device(Ref<ibv_device>) -> Ref<ibv_context>;
    ibv_close_device(Ref<ibv_context>) -> c_int;
    ibv_import_device(c_int) -> Ref<ibv_context>;
    ibv_import_pd(Ref<ibv_context>, u32) -> Ref<ibv_pd>;
    ibv_import_mr(Ref<ibv_pd>, u32) -> Ref<ibv_mr>;
    ibv_import_dm(Ref<ibv_context>, u32) -> Ref<ibv_dm>;
    ibv_unimport_dm(Ref<ibv_dm>);
    ibv_alloc_buf(Ref<ibv_pd>, usize, Ref<Ref<c_void>>) -> Ref<c_void>;
    ibv_free_buf(Ref<c_void>);
    ibv_reg_buf_mr(Ref<ibv_pd>, Ref<c_void>, Ref<c_void>, usize, c_int) -> Ref<ibv_mr>;
    ibv_unimport_pd(Ref<ibv_pd>);
    ibv_unimport_mr(Ref<ibv_mr>);
    ibv_query_device(Ref<ibv_context>, Ref<ibv_device_attr>) -> c_int;
    ibv_query_port(Ref<ibv_context>, u8, Ref<ibv_port_attr>) -> c_int;
    ibv_query_gid(Ref<ibv_context>, u8, c_int, Ref<[u8; 16]>) -> c_int;
    _ibv_query_gid_ex(Ref<ibv_context>, u32, u32, Ref<ibv_gid_entry>, u32, usize) -> c_int;
    _ibv_query_gid_table(Ref<ibv_context>, Ref<ibv_gid_entry>, usize, u32, usize) -> isize;
    ibv_query_pkey(Ref<ibv_context>, u8, c_int, Ref<u16>) -> c_int;
    ibv_get_async_event(Ref<ibv_context>, Ref<ibv_async_event>) -> c_int;
    ibv_ack_async_event(Ref<ibv_async_event>);
    ibv_event_type_str(c_int) -> *const c_char;
    ibv_wc_status_str(c_int) -> *const c_char;
    ibv_node_type_str(c_int) -> *const c_char;
    ibv_port_state_str(c_int) -> *const c_char;
    ibv_rate_to_mult(c_int) -> c_int;
    mbps_to_ibv_rate(c_int) -> c_int;
    ibv_alloc_pd(Ref<ibv_context>) -> Ref<ibv_pd>;
    ibv_dealloc_pd(Ref<ibv_pd>) -> c_int;
    ibv_reg_mr(Ref<ibv_pd>, Ref<c_void>, usize, c_int) -> Ref<ibv_mr>;
    ibv_reg_mr_iova2(Ref<ibv_pd>, Ref<c_void>, usize, u64, u32) -> Ref<ibv_mr>;
    ibv_rereg_mr(Ref<ibv_mr>, c_int, Ref<ibv_pd>, Ref<c_void>, usize, c_int) -> c_int;
    ibv_dereg_mr(Ref<ibv_mr>) -> c_int;
    ibv_create_comp_channel(Ref<ibv_context>) -> Ref<ibv_comp_channel>;
    ibv_destroy_comp_channel(Ref<ibv_comp_channel>) -> c_int;
    ibv_create_cq(Ref<ibv_context>, c_int, Ref<c_void>, Ref<ibv_comp_channel>, c_int)
        -> Ref<ibv_cq>;
    ibv_resize_cq(Ref<ibv_cq>, c_int) -> c_int;
    ibv_destroy_cq(Ref<ibv_cq>) -> c_int;
    ibv_get_cq_event(Ref<ibv_comp_channel>, Ref<Ref<ibv_cq>>, Ref<Ref<c_void>>) -> c_int;
    ibv_ack_cq_events(Ref<ibv_cq>, u32);
    ibv_create_srq(Ref<ibv_pd>, Ref<ibv_srq_init_attr>) -> Ref<ibv_srq>;
    ibv_modify_srq(Ref<ibv_srq>, Ref<ibv_srq_attr>, c_int) -> c_int;
    ibv_query_srq(Ref<ibv_srq>, Ref<ibv_srq_attr>) -> c_int;
    ibv_destroy_srq(Ref<ibv_srq>) -> c_int;
    ibv_create_qp(Ref<ibv_pd>, Ref<ibv_qp_init_attr>) -> Ref<ibv_qp>;
    ibv_modify_qp(Ref<ibv_qp>, Ref<ibv_qp_attr>, c_int) -> c_int;
    ibv_query_qp(Ref<ibv_qp>, Ref<ibv_qp_attr>, c_int, Ref<ibv_qp_init_attr>) -> c_int;
    ibv_destroy_qp(Ref<ibv_qp>) -> c_int;
    ibv_attach_mcast(Ref<ibv_qp>, *const [u8; 16], u16) -> c_int;
    ibv_detach_mcast(Ref<ibv_qp>, *const [u8; 16], u16) -> c_int;
    ibv_create_ah(Ref<ibv_pd>, Ref<ibv_ah_attr>) -> Ref<ibv_ah>;
    ibv_create_ah_from_wc(Ref<ibv_pd>, *const ibv_wc, *const [u8; 40], u8) -> Ref<ibv_ah>;
    ibv_destroy_ah(Ref<ibv_ah>) -> c_int;
}

/// What happens next, byte by byte; zeros and the end when the bytes are used up.
pub(crate) struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    pub(crate) fn long(&mut self) -> u64 {
        u64::from(self.word()) << 32 | u64::from(self.word())
    }

    /// A number below `end`, 0 if that is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        if end > 256 { self.word() as usize % end } else { usize::from(self.byte()) % end.max(1) }
    }

    /// One in `of` times.
    pub(crate) fn rarely(&mut self, of: usize) -> bool {
        self.below(of) == of - 1
    }

    /// One of a list.
    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A pointer to an object of the library's.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) *mut T);

impl<T> Clone for Object<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Object<T> {}

// SAFETY: the interface is safe to use from any thread; the world's locks keep the object alive.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Object<T> {}
