//! The list of devices: one, or as many as the environment names.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::{Once, OnceLock};

use crate::abi::{ABSENT, ibv_device};
use crate::node::Node;

/// Starts logging, once, if the environment asks for it.
pub(super) fn start_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Ok(filter) = std::env::var("FERROCX_LOG") {
            let filter = tracing_subscriber::EnvFilter::new(filter);
            let log = tracing_subscriber::fmt().with_env_filter(filter);
            // A program that logs by the same means already keeps its own.
            let _ = log.with_writer(std::io::stderr).try_init();
        }
    });
}

/// Copies a short name into a field of the interface.
pub(super) fn put_name(field: &mut [c_char], name: &str) {
    let (last, field) = field.split_last_mut().expect("fields of names are not empty");
    *last = 0;
    for (to, from) in field.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
}

/// A device as programs have it. They get its first member, and stock libraries of adapters compare
/// a word behind that with their own.
#[repr(C)]
struct Listed {
    face: ibv_device,
    behind: [u64; 6],
    index: usize,
}

/// The devices of this process, which live as long as the process does.
pub(super) fn devices() -> &'static [*mut ibv_device] {
    struct Places(Vec<*mut ibv_device>);
    // SAFETY: what they point to is written before it is shared, and never after.
    unsafe impl Send for Places {}
    // SAFETY: as above.
    unsafe impl Sync for Places {}
    static DEVICES: OnceLock<Places> = OnceLock::new();
    let make = |index: usize| {
        let mut face = ibv_device {
            ops: [ABSENT; 2],
            // A channel adapter, of InfiniBand's transport.
            node_type: 1,
            transport_type: 0,
            name: [0; 64],
            dev_name: [0; 64],
            dev_path: [0; 256],
            ibdev_path: [0; 256],
        };
        put_name(&mut face.name, &format!("ferrocx{index}"));
        put_name(&mut face.dev_name, &format!("uverbs{index}"));
        put_name(&mut face.dev_path, &format!("/sys/class/infiniband_verbs/uverbs{index}"));
        put_name(&mut face.ibdev_path, &format!("/sys/class/infiniband/ferrocx{index}"));
        Box::into_raw(Box::new(Listed { face, behind: [0; 6], index })).cast()
    };
    &DEVICES.get_or_init(|| Places((0..Node::count()).map(make).collect())).0
}

/// The number of a device.
///
/// # Safety
/// The module's: it is one of [`devices`].
pub(super) unsafe fn index_of(device: *mut ibv_device) -> usize {
    promised!((*device.cast::<Listed>()).index)
}

pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    start_log();
    super::rdma_cm::serve_librdmacm();
    super::tree::show_to_ucx();
    let devices = devices();
    if !count.is_null() {
        promised!(count.write(devices.len() as c_int));
    }
    let list: Box<[_]> = devices.iter().copied().chain([null_mut()]).collect();
    Box::into_raw(list).cast()
}

pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        let list = std::ptr::slice_from_raw_parts_mut(list, devices().len() + 1);
        drop(promised!(Box::from_raw(list)));
    }
}

pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    promised!(&raw const (*device).name).cast()
}

pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    promised!(index_of(device)) as c_int
}

pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    start_log();
    Node::open_and_keep(promised!(index_of(device)))
        .map_or(0, |node| node.context.attr().node_guid.to_be())
}
