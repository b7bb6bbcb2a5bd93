//! Devices: opened, asked what they can do.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null;
use std::sync::{Arc, Mutex, RwLock};

use ferrocx_verbs_lite::{Cq, DeviceCaps, Gid};

use super::context::{Context, Events, Shared};
use super::device_list::{devices, index_of, put_name, start_log};
use super::handles::{self, Handles};
use super::life::{Process, Waiters};
use super::pair::MAX_SGE;
use super::tree::BOARD;
use super::{
    Errno, cq, cq_ex, dm, flow, left, number, object, parent, poll, post, qp, qp_ex, set_errno,
    srq, tried, window, work, xrc,
};
use crate::abi::{
    ABSENT, OLD_PORT_ATTR_BYTES, ibv_context, ibv_context_ops, ibv_device, ibv_device_attr,
    ibv_device_attr_ex, ibv_gid_entry, ibv_port_attr, ibv_rss_caps, ibv_values_ex, qpt,
    verbs_context,
};
use crate::files;
use crate::node::{Listener, Node};

/// The vendor, as rdma_rxe says it: no adapter's, whose own library programs would ask.
const NO_VENDOR: u32 = 0xff_ffff;
/// The one partition.
const DEFAULT_PKEY: u16 = 0xffff;
/// `IBV_GID_TYPE_ROCE_V2`, and the number that the same type has in sysfs.
const ROCE_V2: u32 = 2;
const ROCE_V2_SYSFS: c_int = 1;
/// Bytes of a GID entry that every caller knows.
const GID_ENTRY_BYTES: usize = size_of::<ibv_gid_entry>();

/// The functions that programs find in the context itself.
fn operations() -> ibv_context_ops {
    ibv_context_ops {
        before_alloc_mw: [ABSENT; 7],
        alloc_mw: window::alloc_mw,
        bind_mw: post::bind_mw,
        dealloc_mw: window::dealloc_mw,
        before_poll_cq: ABSENT,
        poll_cq: poll::poll_cq,
        req_notify_cq: cq::req_notify_cq,
        before_post_srq_recv: [ABSENT; 7],
        post_srq_recv: srq::post_srq_recv,
        before_post_send: [ABSENT; 4],
        post_send: post::post_send,
        post_recv: post::post_recv,
        last: [ABSENT; 5],
    }
}

/// Opens the device, with a command file and what that stands for.
pub(super) fn open(
    command_file: OwnedFd,
    handles: Arc<Handles>,
) -> std::io::Result<*mut ibv_context> {
    let device = devices()[handles.device];
    let node = Node::open(handles.device)?;
    let event_fd = files::new()?;
    let (async_fd, cmd_fd) = (event_fd.as_raw_fd(), command_file.as_raw_fd());
    let vectors = node.context.device().interrupt_vectors();
    let shared = Arc::new(Shared {
        process: Process::this(),
        node: Arc::clone(&node),
        members: RwLock::default(),
        indices: Mutex::default(),
        xrc_queues: Mutex::default(),
        events: Mutex::new(Events::default()),
        event_fd,
        waiters: Waiters::default(),
        changer: Mutex::default(),
        clock: Mutex::default(),
        handles,
        command_file,
    });
    let listener: Arc<dyn Listener> = Arc::<Shared>::clone(&shared);
    node.listen(Arc::downgrade(&listener));
    let context = ibv_context {
        device,
        ops: operations(),
        cmd_fd,
        async_fd,
        num_comp_vectors: vectors.into(),
        mutex: [0; _],
        // All ones: the extended functions stand in front.
        abi_compat: std::ptr::without_provenance_mut(usize::MAX),
    };
    let verbs = verbs_context {
        query_port,
        before_reg_dm_mr: [ABSENT; 6],
        reg_dm_mr: dm::reg_dm_mr,
        alloc_dm: dm::alloc_dm,
        free_dm: dm::free_dm,
        before_alloc_parent_domain: [ABSENT; 4],
        alloc_parent_domain: parent::alloc_parent_domain,
        dealloc_td: parent::dealloc_td,
        alloc_td: parent::alloc_td,
        modify_cq: cq::modify_cq,
        before_rwq_ind_table: ABSENT,
        destroy_rwq_ind_table: work::destroy_rwq_ind_table,
        create_rwq_ind_table: work::create_rwq_ind_table,
        destroy_wq: work::destroy_wq,
        modify_wq: work::modify_wq,
        create_wq: work::create_wq,
        query_rt_values,
        create_cq_ex: cq_ex::create_cq_ex,
        private: null(),
        query_device_ex,
        destroy_flow: flow::destroy_flow,
        before_create_flow: ABSENT,
        create_flow: flow::create_flow,
        before_open_qp: ABSENT,
        open_qp: qp::open_qp,
        create_qp_ex: qp_ex::create_qp_ex,
        get_srq_num: srq::get_srq_num,
        create_srq_ex: srq::create_srq_ex,
        open_xrcd: xrc::open_xrcd,
        close_xrcd: xrc::close_xrcd,
        before_size: ABSENT,
        size: size_of::<verbs_context>(),
        context,
    };
    shared.handles.open();
    let whole = Box::into_raw(Box::new(Context { verbs, shared: Some(shared) }));
    Ok(whole.wrapping_byte_add(Context::FACE).cast())
}

pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    start_log();
    let file = handles::new_file(promised!(index_of(device)));
    let opened = file.and_then(|(file, handles)| open(file, handles));
    object(opened.map_err(|error| {
        // Nobody else says it: the caller has a null pointer.
        tracing::error!(%error, "the device cannot be opened");
        eprintln!("ferrocx: the device cannot be opened: {error}");
        Errno(error.raw_os_error().unwrap_or(libc::ENODEV))
    }))
}

pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let shared = Arc::clone(tried!(promised!(Context::here(context))));
    shared.waiters.end(|| files::signal(&shared.event_fd));
    promised!(Context::close(context));
    let handles = Arc::clone(&shared.handles);
    handles.close(move || left::end_all(&shared));
    0
}

/// What the device can do, in the interface's words. What is 0 is not supported.
fn attributes(node: &Node) -> ibv_device_attr {
    /// `IBV_DEVICE_*`: RNR NAKs, port events, the system's GUID.
    const FLAGS: u32 = 1 << 12 | 1 << 10 | 1 << 11;
    const XRC: u32 = 1 << 20;
    const RAW_IP_CSUM: u32 = 1 << 26;
    const MEM_WINDOW: u32 = 1 << 17;
    const MEM_MGT_EXTENSIONS: u32 = 1 << 21;
    const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
    let attr = node.context.attr();
    let int = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    // SAFETY: a structure of numbers, for which zeros are a value.
    let mut out: ibv_device_attr = unsafe { std::mem::zeroed() };
    put_name(&mut out.fw_ver, &node.context.device().info().firmware.to_string());
    out.node_guid = attr.node_guid.to_be();
    out.sys_image_guid = out.node_guid;
    out.max_mr_size = i64::MAX as u64;
    out.page_size_cap = !0xfff;
    out.vendor_id = NO_VENDOR;
    out.max_qp = int(attr.max_qp);
    out.max_qp_wr = int(attr.max_qp_wr);
    let has_xrc = attr.caps.contains(DeviceCaps::XRC);
    out.device_cap_flags = FLAGS | if has_xrc { XRC } else { 0 };
    if node.context.device().limits().checksum_offload {
        out.device_cap_flags |= RAW_IP_CSUM;
    }
    if attr.caps.contains(DeviceCaps::MEM_MGT_EXTENSIONS) {
        out.device_cap_flags |= MEM_MGT_EXTENSIONS;
        if attr.caps.contains(DeviceCaps::MEM_WINDOW_TYPE_2) {
            out.device_cap_flags |= MEM_WINDOW | MEM_WINDOW_TYPE_2B;
            out.max_mw = int(attr.max_mr);
        }
    }
    out.max_sge = int(attr.max_send_sge.min(attr.max_recv_sge).min(MAX_SGE));
    out.max_sge_rd = out.max_sge;
    out.max_cq = int(attr.max_cq);
    // One entry of a queue is never used, see `cq::create`.
    out.max_cqe = int(attr.max_cqe - 1);
    out.max_mr = int(attr.max_mr);
    out.max_pd = int(attr.max_pd);
    out.max_qp_rd_atom = int(attr.max_qp_rd_atom);
    out.max_res_rd_atom = int(attr.max_qp_rd_atom.saturating_mul(attr.max_qp));
    out.max_qp_init_rd_atom = int(attr.max_qp_rd_atom);
    let is_atomic = attr.caps.contains(DeviceCaps::ATOMICS | DeviceCaps::ATOMICS_HOST_ORDER);
    out.atomic_cap = c_int::from(is_atomic);
    out.max_mcast_grp = 1 << 13;
    out.max_mcast_qp_attach = 240;
    out.max_total_mcast_qp_attach = out.max_mcast_grp * out.max_mcast_qp_attach;
    out.max_ah = c_int::MAX;
    out.max_srq = int(attr.max_srq);
    out.max_srq_wr = int(attr.max_srq_wr);
    out.max_srq_sge = int((attr.max_recv_sge - 1).min(MAX_SGE));
    out.max_pkeys = 1;
    out.local_ca_ack_delay = 16;
    out.phys_port_cnt = 1;
    out
}

pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    out: *mut ibv_device_attr,
) -> c_int {
    let node = &tried!(promised!(Context::of(context))).node;
    promised!(out.write(attributes(node)));
    0
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const c_void,
    out: *mut ibv_device_attr_ex,
    len: usize,
) -> c_int {
    // The input is a mask of what the caller knows beyond; there is nothing yet.
    if !input.is_null() && promised!(input.cast::<u32>().read()) != 0 {
        return libc::EINVAL;
    }
    if len < size_of::<ibv_device_attr>() {
        return libc::EINVAL;
    }
    let node = &tried!(promised!(Context::of(context))).node;
    // SAFETY: a structure of numbers, for which zeros are a value.
    let mut whole: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
    whole.base = attributes(node);
    // Source: Linux 6.12 `mlx5_ib_query_device`.
    whole.completion_timestamp_mask = i64::MAX as u64;
    whole.hca_core_clock = node.context.device().clock_khz().into();
    whole.device_cap_flags_ex = whole.base.device_cap_flags.into();
    let (hca, limits) = (node.context.device().hca_cap(), node.context.device().limits());
    whole.rss_caps = ibv_rss_caps {
        supported_qpts: 1 << qpt::RAW_PACKET,
        max_rwq_indirection_tables: 1 << hca.log_max_rqt(),
        max_rwq_indirection_table_size: limits.max_reta,
        rx_hash_fields_mask: work::FIELDS,
        rx_hash_function: work::TOEPLITZ,
    };
    whole.max_wq_type_rq = 1 << hca.log_max_rq();
    if limits.checksum_offload {
        /// `IBV_RAW_PACKET_CAP_IP_CSUM`.
        const IP_CSUM: u32 = 1 << 2;
        whole.raw_packet_caps = IP_CSUM;
    }
    if hca.cq_moderation() {
        whole.cq_mod_caps = [u16::MAX, Cq::MAX_PERIOD_US];
    }
    whole.max_dm_size = node.context.attr().max_dm_bytes;
    whole.phys_port_cnt_ex = 1;
    promised!(out.cast::<u8>().write_bytes(0, len));
    let bytes = len.min(size_of_val(&whole));
    promised!(out.cast::<u8>().copy_from_nonoverlapping((&raw const whole).cast(), bytes));
    0
}

fn port(node: &Node) -> Result<ibv_port_attr, Errno> {
    /// `IBV_PORT_CM_SUP`, `IBV_PORT_IP_BASED_GIDS`.
    const FLAGS: u32 = 1 << 16 | 1 << 26;
    /// 4096 bytes.
    const MAX_MTU: c_int = 5;
    let attr = node.context.port_attr()?;
    let is_up = attr.is_up;
    Ok(ibv_port_attr {
        // Active or down; the link is up, or polls.
        state: if is_up { 4 } else { 1 },
        max_mtu: MAX_MTU,
        active_mtu: attr.active_mtu as c_int,
        gid_tbl_len: c_int::try_from(attr.gid_table_len).unwrap_or(c_int::MAX),
        port_cap_flags: FLAGS,
        max_msg_sz: u32::try_from(node.context.attr().max_msg_bytes).unwrap_or(1 << 31),
        pkey_tbl_len: 1,
        max_vl_num: 1,
        // Four lanes of 25 Gbit/s.
        active_width: 2,
        active_speed: 32,
        phys_state: if is_up { 5 } else { 2 },
        // Ethernet.
        link_layer: 2,
        ..ibv_port_attr::default()
    })
}

/// Writes a port's attributes, as many bytes of them as the caller knows.
unsafe fn put_port(
    context: *mut ibv_context,
    number: u8,
    out: *mut ibv_port_attr,
    len: usize,
) -> Result<(), Errno> {
    if number != 1 {
        return Err(Errno::INVALID);
    }
    let attr = port(&promised!(Context::here(context))?.node)?;
    promised!(out.cast::<u8>().write_bytes(0, len));
    let bytes = len.min(size_of_val(&attr));
    promised!(out.cast::<u8>().copy_from_nonoverlapping((&raw const attr).cast(), bytes));
    Ok(())
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    out: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    number(promised!(put_port(context, port, out, len)))
}

pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    out: *mut ibv_port_attr,
) -> c_int {
    number(promised!(put_port(context, port, out, OLD_PORT_ATTR_BYTES)))
}

/// The GID at an index of the table; zeros at one that is free.
fn gid_at(node: &Node, port: u32, index: u32) -> Result<Option<Gid>, Errno> {
    let gids = node.gids();
    let size = node.context.port_attr()?.gid_table_len;
    if port != 1 || index >= size {
        return Err(Errno::INVALID);
    }
    Ok(gids.get(index as usize).map(|entry| entry.gid))
}

pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut [u8; 16],
) -> c_int {
    let known = promised!(Context::here(context)).and_then(|shared| {
        let index = u32::try_from(index).map_err(|_| Errno::INVALID)?;
        gid_at(&shared.node, port.into(), index)
    });
    match known {
        Ok(gid) => {
            promised!(out.write(gid.map_or([0; 16], |gid| gid.0)));
            0
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

fn entry(gid: Gid, index: u32) -> ibv_gid_entry {
    let (high, low) = gid.0.split_at(8);
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    ibv_gid_entry {
        gid: [word(high), word(low)],
        gid_index: index,
        port_num: 1,
        gid_type: ROCE_V2,
        ndev_ifindex: 0,
    }
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    len: usize,
) -> c_int {
    let shared = tried!(promised!(Context::here(context)));
    if flags != 0 || len < GID_ENTRY_BYTES {
        return libc::EINVAL;
    }
    match gid_at(&shared.node, port, index) {
        Ok(Some(gid)) => {
            promised!(out.write(entry(gid, index)));
            0
        }
        Ok(None) => libc::ENODATA,
        Err(errno) => errno.0,
    }
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    out: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    len: usize,
) -> isize {
    let shared = match promised!(Context::here(context)) {
        Ok(shared) => shared,
        Err(errno) => return -(errno.0 as isize),
    };
    if flags != 0 || len < GID_ENTRY_BYTES {
        return -(libc::EINVAL as isize);
    }
    let gids = shared.node.gids();
    if gids.len() > max {
        return -(libc::EINVAL as isize);
    }
    for (at, known) in gids.iter().enumerate() {
        promised!(out.byte_add(at * len).write(entry(known.gid, at as u32)));
    }
    gids.len() as isize
}

/// The type of an entry of the table; of a place without one, what the stock library says there:
/// InfiniBand, or the first RoCE.
fn gid_type(node: &Node, port: u32, index: u32) -> Result<c_int, Errno> {
    /// `IBV_GID_TYPE_SYSFS_IB_ROCE_V1`.
    const IB_OR_ROCE_V1: c_int = 0;
    let entry = gid_at(node, port, index)?;
    Ok(if entry.is_some() { ROCE_V2_SYSFS } else { IB_OR_ROCE_V1 })
}

pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    out: *mut c_int,
) -> c_int {
    let known = promised!(Context::here(context))
        .and_then(|shared| gid_type(&shared.node, port.into(), index));
    match known {
        Ok(known) => {
            promised!(out.write(known));
            0
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

pub(crate) unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut u16,
) -> c_int {
    if port != 1 || index != 0 {
        set_errno(Errno::INVALID);
        return -1;
    }
    promised!(out.write(DEFAULT_PKEY));
    0
}

pub(crate) extern "C" fn ibv_get_pkey_index(
    _context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    if port == 1 && pkey == DEFAULT_PKEY { 0 } else { -1 }
}

pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// What programs read of the device: the name of the board.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    _folder: *const c_char,
    file: *const c_char,
    out: *mut u8,
    len: usize,
) -> c_int {
    let name = promised!(CStr::from_ptr(file));
    // Its line, without the end of it.
    let board = BOARD.trim_ascii_end();
    if !name.to_bytes().ends_with(b"board_id") || len <= board.len() {
        return -1;
    }
    promised!({
        out.copy_from_nonoverlapping(board.as_ptr(), board.len());
        out.add(board.len()).write(0);
    });
    board.len() as c_int
}

/// What the device's clock shows now, in ticks, where a program looks for nanoseconds.
unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    /// `IBV_VALUES_MASK_RAW_CLOCK`.
    const RAW_CLOCK: u32 = 1;
    let shared = tried!(promised!(Context::here(context)));
    let values = promised!(&mut *values);
    let asked = values.comp_mask;
    values.comp_mask = asked & RAW_CLOCK;
    if asked & !RAW_CLOCK != 0 {
        return libc::EINVAL;
    }
    if asked & RAW_CLOCK != 0 {
        // The model's counter shows when its last step began.
        shared.node.step();
        let ticks = shared.node.context.device().clock_ticks();
        let tv_nsec = i64::try_from(ticks).unwrap_or(i64::MAX);
        values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_without_an_entry_has_the_type_that_the_stock_library_says() {
        let node = Node::open(0).unwrap();
        let size = node.context.port_attr().unwrap().gid_table_len;
        let kinds = [0, size - 1, size].map(|index| gid_type(&node, 1, index));
        assert_eq!(kinds, [Ok(1), Ok(0), Err(Errno::INVALID)]);
    }
}
