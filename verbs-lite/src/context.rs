//! [`RdmaContext`]: what a device can do for RDMA, and its addresses.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferrocx_core::{Device, Event, EventReader, Housekeeping, MacAddr, Uar};
use ferrocx_mempool::unique_domain;
use ferrocx_prm::Layout;
use ferrocx_prm::caps::{
    AtomicCap, HcaCap, RoceCap, atomic_operations, atomic_size, cap_type, roce_versions,
};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::port::{ModifyNicVportContext, QueryNicVportContext};
use ferrocx_prm::vport::{NicVportContext, field_select};

use crate::command::Execute;
use crate::counters::{Counters, RoceCounters};
use crate::error::VerbsError;
use crate::fastreg::Posted;
use crate::gid::{GidConfig, GidEntry, GidTable, Path, Route};
use crate::receivers::Receivers;
use crate::types::{Gid, Mtu};
use crate::uar::UarPool;

/// Atomics that RDMA has.
const ATOMICS: u32 = atomic_operations::COMPARE_SWAP | atomic_operations::FETCH_ADD;
/// Looks in a row at which the firmware waited before that is called neglect.
const LOOKS_OF_NEGLECT: u32 = 2;
/// Bits of the prefix of a link-local address.
const LINK_LOCAL_PREFIX: u8 = 64;
/// Units of 16 bytes that a send request needs besides its gather list: control, address vector.
const SEND_OVERHEAD_DS: u32 = 4;

bitflags::bitflags! {
    /// Abilities of a device.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct DeviceCaps: u32 {
        /// Fast registration, local invalidate, send with invalidate (`MEM_MGT_EXTENSIONS`).
        const MEM_MGT_EXTENSIONS = 1;
        /// Memory windows of type 2.
        const MEM_WINDOW_TYPE_2 = 1 << 1;
        /// A reserved L_Key: see [`Pd::get_dma_mr`](crate::Pd::get_dma_mr).
        const LOCAL_DMA_LKEY = 1 << 2;
        /// READ with invalidate. RoCE has no such packet: it is a READ and a fenced local
        /// invalidate, with one completion for both.
        const READ_WITH_INV_COMPOSED = 1 << 3;
        /// Atomics of eight bytes.
        const ATOMICS = 1 << 4;
        /// Atomics work on integers in the host's byte order; big-endian ones otherwise.
        const ATOMICS_HOST_ORDER = 1 << 5;
        /// Fast registration can change the right to atomics.
        const FAST_REG_ATOMIC = 1 << 6;
        /// Connections that are shared by processes: [`crate::xrc`].
        const XRC = 1 << 7;
    }
}

/// Limits and abilities of a device (`ibv_device_attr`).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Abilities of the device.
    pub caps: DeviceCaps,
    /// Globally unique number of the function.
    pub node_guid: u64,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests in one direction of a queue pair.
    pub max_qp_wr: u32,
    /// Gather entries of a send request.
    pub max_send_sge: u32,
    /// Scatter entries of a receive request.
    pub max_recv_sge: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives of a shared receive queue.
    pub max_srq_wr: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory keys.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// READs and atomics in flight, as requester and as responder.
    pub max_qp_rd_atom: u32,
    /// Entries of a page list of a fast registration.
    pub max_fast_reg_page_list_len: u32,
    /// Bytes of a message.
    pub max_msg_bytes: u64,
    /// Bytes of the largest piece of the device's memory ([`Dm`](crate::Dm)), 0 if it lends none.
    pub max_dm_bytes: u64,
}

/// State and limits of a port.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct PortAttr {
    /// Whether the link is up.
    pub is_up: bool,
    /// The largest path MTU that its packets may have.
    pub active_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_table_len: u32,
    /// Its MAC address.
    pub mac: MacAddr,
}

/// State that all objects of a device share.
#[derive(Debug)]
pub(crate) struct ContextCore {
    /// A number that no other context in this process ever has.
    pub(crate) id: u32,
    device: Device,
    pub(crate) attr: DeviceAttr,
    pub(crate) roce: RoceCap,
    /// The reserved L_Key.
    pub(crate) lkey: Option<u32>,
    /// Of all queue pairs; `None` where the device has no more sets.
    pub(crate) counters: Option<Counters>,
    gids: Mutex<GidTable>,
    events: Mutex<EventReader>,
    uars: Mutex<UarPool>,
    /// Which queue pairs take receives from which shared queue.
    pub(crate) receivers: Receivers,
    /// Keys whose requests have not ended.
    pub(crate) posted: Posted,
    /// Looks in a row at which the firmware waited for an answer.
    looks: AtomicU32,
}

impl ContextCore {
    fn new(device: &Device) -> Result<Self, VerbsError> {
        let hca = device.hca_cap();
        let lacks = |what| VerbsError::Unsupported { what, way_out: "use another device" };
        if !hca.roce() || !hca.rc() {
            return Err(lacks("RoCE"));
        }
        let page = device.capability_page(cap_type::ROCE)?;
        let Some(roce) = RoceCap::read_from(&page) else { return Err(lacks("RoCE page")) };
        if roce.roce_version() & roce_versions::V2 == 0 {
            return Err(lacks("RoCE v2"));
        }
        let lkey = device.reserved_lkey()?;
        let attr = attributes(device, lkey)?;
        let counters = Counters::new(device)?;
        enable_roce(device, true)?;
        let gids = Mutex::new(GidTable::new(roce.roce_address_table_size()));
        let (device, events) = (device.clone(), Mutex::new(device.event_reader()));
        let core = Self {
            id: unique_domain(),
            device,
            attr,
            roce,
            lkey,
            counters,
            gids,
            events,
            uars: Mutex::default(),
            receivers: Receivers::default(),
            posted: Posted::default(),
            looks: AtomicU32::new(0),
        };
        let link_local = GidConfig {
            address: Gid::link_local(core.device.mac()).ip(),
            prefix_len: LINK_LOCAL_PREFIX,
            gateway: None,
            vlan: None,
        };
        core.gids().add(&core.device, core.device.mac(), link_local)?;
        Ok(core)
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn hca(&self) -> &HcaCap {
        self.device.hca_cap()
    }

    /// A doorbell register for a queue pair.
    pub(crate) fn uar(&self) -> Result<Arc<Uar>, VerbsError> {
        self.uars.lock().unwrap_or_else(PoisonError::into_inner).take(&self.device)
    }

    /// Looks whether the firmware waits for an answer, and warns once if it did at the look before:
    /// somebody who polls events would have answered since. Waits for no lock.
    pub(crate) fn look_for_neglect(&self) {
        if !self.device.has_page_requests() {
            self.looks.store(0, Ordering::Relaxed);
        } else if self.looks.fetch_add(1, Ordering::Relaxed) + 1 == LOOKS_OF_NEGLECT {
            tracing::warn!(
                "the firmware waits for memory and nobody polls events: keep what \
                 RdmaContext::background returns, or call RdmaContext::poll_async_event"
            );
        }
    }

    fn gids(&self) -> MutexGuard<'_, GidTable> {
        self.gids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ContextCore {
    fn drop(&mut self) {
        if self.device.objects_are_gone() {
            return;
        }
        let indices: Vec<u8> = self.gids().iter().map(|entry| entry.index).collect();
        let mut result = Ok(());
        for index in indices {
            let removed = self.gids().remove(&self.device, index);
            result = result.and(removed);
        }
        if let Err(error) = result.and_then(|()| enable_roce(&self.device, false)) {
            tracing::warn!(%error, "RoCE is left switched on");
        }
    }
}

/// A device that does RDMA: its addresses, and where domains, completion queues and mapped memory
/// come from (`ibv_context`). A handle: clones are the same context.
///
/// All methods are for set-up: they take a lock and talk to the firmware.
#[derive(Debug, Clone)]
#[doc(alias = "ibv_context")]
pub struct RdmaContext {
    core: Arc<ContextCore>,
}

impl RdmaContext {
    /// Switches RoCE on at a device and gives it its link-local address. The context that a device
    /// has already is found again: there is one as long as anybody holds it.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Unsupported`] for a device without RoCEv2, or what the device refused.
    #[doc(alias = "ibv_open_device")]
    pub fn open(device: &Device) -> Result<Self, VerbsError> {
        let core = device.shared(|| ContextCore::new(device))?;
        Ok(Self { core })
    }

    pub(crate) fn core(&self) -> &Arc<ContextCore> {
        &self.core
    }

    /// A handle to the context of an object.
    pub(crate) fn of(core: &Arc<ContextCore>) -> Self {
        Self { core: Arc::clone(core) }
    }

    /// The device: link, MAC address, flow rules; its Ethernet queues are made on it, too.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.core.device
    }

    /// Limits and abilities.
    #[must_use]
    #[doc(alias = "ibv_query_device")]
    pub fn attr(&self) -> &DeviceAttr {
        &self.core.attr
    }

    /// State of the port.
    ///
    /// # Errors
    ///
    /// What the device refused; [`VerbsError::OutOfRange`] for an MTU below 352 bytes.
    #[doc(alias = "ibv_query_port")]
    pub fn port_attr(&self) -> Result<PortAttr, VerbsError> {
        let mtu = u32::from(self.device().mtu());
        let Some(active_mtu) = Mtu::fitting(mtu) else {
            return Err(VerbsError::OutOfRange {
                what: "MTU of the port",
                value: mtu.into(),
                min: 352,
                max: u64::from(u16::MAX),
            });
        };
        Ok(PortAttr {
            is_up: self.device().link()?.up,
            active_mtu,
            gid_table_len: self.core.roce.roce_address_table_size(),
            mac: self.device().mac(),
        })
    }

    /// What the queue pairs of the context repeated, missed and refused so far: the first thing to
    /// look at where a network loses packets. `None` if the device had no set of counters left.
    ///
    /// Asks the device, in some microseconds. Read it at least once in 2^32 events, which is as far
    /// as the device counts.
    ///
    /// # Errors
    ///
    /// What the device refused, or that it is gone.
    #[doc(alias = "hw_counters")]
    pub fn counters(&self) -> Result<Option<RoceCounters>, VerbsError> {
        Ok(self.core.counters.as_ref().map(Counters::read).transpose()?)
    }

    /// Gives the port an address. One that it has already is found again.
    ///
    /// # Errors
    ///
    /// [`VerbsError::GidTableFull`], [`VerbsError::OutOfRange`], or what the device refused.
    pub fn add_gid(&self, config: GidConfig) -> Result<GidEntry, VerbsError> {
        let mac = self.device().mac();
        self.core.gids().add(self.device(), mac, config)
    }

    /// Takes an address away. Connections that use it stop working.
    pub fn remove_gid(&self, entry: &GidEntry) -> Result<(), VerbsError> {
        self.core.gids().remove(self.device(), entry.index)
    }

    /// The addresses of the port.
    #[must_use]
    #[doc(alias = "ibv_query_gid")]
    pub fn gids(&self) -> Vec<GidEntry> {
        self.core.gids().iter().copied().collect()
    }

    /// A number that goes up whenever an address of the port comes or goes.
    pub(crate) fn gid_changes(&self) -> u64 {
        self.core.gids().changes
    }

    /// The address that reaches a peer, and the neighbour that packets go to.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoRoute`].
    pub fn route(&self, remote: Gid) -> Result<Route, VerbsError> {
        self.core.gids().route(remote)
    }

    /// The path to a multicast group: for an [`AddressHandle`](crate::AddressHandle) to
    /// [`Qpn::MULTICAST`](crate::Qpn::MULTICAST).
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoRoute`] for an address that is no group, or of a family that the port has
    /// no address of.
    pub fn multicast_path(&self, group: Gid) -> Result<Path, VerbsError> {
        self.core.gids().multicast_path(group)
    }

    /// How a peer is reached from an address of the port that is given.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NotOurs`], [`VerbsError::NoRoute`].
    pub fn route_from(&self, local: Gid, remote: Gid) -> Result<Route, VerbsError> {
        self.core.gids().route_from(local, remote)
    }

    /// The oldest asynchronous event since the context was opened that was not read by this call
    /// yet: queue pairs in error, limits of shared receive queues, link changes. Whoever else reads
    /// the device's events takes none away from here.
    ///
    /// The firmware asks for memory by events too, and commands fail if nobody answers. Commands
    /// that are under way, this call, [`RdmaContext::background`] and a
    /// [`ConnectionManager`](crate::cm::ConnectionManager) that is polled do; a program that does
    /// none of it for long is told so by a warning in its log: [`RdmaContext::is_neglected`].
    #[doc(alias = "ibv_get_async_event")]
    pub fn poll_async_event(&self) -> Option<Event> {
        self.core.events.lock().unwrap_or_else(PoisonError::into_inner).poll()
    }

    /// Has a thread answer the firmware every `interval`, until what is returned is dropped: the
    /// device's one [`Housekeeping`], whoever else asked for it. Events stay for
    /// [`RdmaContext::poll_async_event`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::Thread`].
    pub fn background(&self, interval: Duration) -> Result<Housekeeping, VerbsError> {
        self.device().keep_house(interval).map_err(VerbsError::Thread)
    }

    /// Whether the firmware has been waiting for an answer while completion queues were polled in
    /// vain, some millions of times.
    #[must_use]
    pub fn is_neglected(&self) -> bool {
        self.core.looks.load(Ordering::Relaxed) >= LOOKS_OF_NEGLECT
    }
}

/// Switches RoCE of the vport on or off. Source: reference 4.5, `roce_en`.
fn enable_roce(device: &Device, on: bool) -> Result<(), VerbsError> {
    let input = ModifyNicVportContext::input()
        .with_field_select(field_select::ROCE_EN)
        .with_nic_vport_context(NicVportContext::zeroed().with_roce_en(on));
    device.execute::<ModifyNicVportContext>(&input, &[], &mut [])?;
    Ok(())
}

/// The GUID of a function, or one made of its MAC address where the device has none, as of a VF
/// whose administrator gave it no address: Linux's connection manager tells peers by it alone
/// (`cm_insert_remote_id`), so two such functions would take each other's connections down.
/// Source: RFC 4291, appendix A (EUI-64), as in the link-local address.
fn node_guid(given: u64, mac: MacAddr) -> u64 {
    let [_, _, _, _, _, _, _, _, made @ ..] = Gid::link_local(mac).0;
    if given == 0 { u64::from_be_bytes(made) } else { given }
}

fn attributes(device: &Device, lkey: Option<u32>) -> Result<DeviceAttr, VerbsError> {
    let hca = device.hca_cap();
    let log2 = |value: u32| 1u32.checked_shl(value).unwrap_or(u32::MAX);
    let input = QueryNicVportContext::input();
    let vport = device.execute::<QueryNicVportContext>(&input, &[], &mut [])?.nic_vport_context();
    // Fast registration needs lists that the reserved L_Key points to, and gives each key its page
    // size. Source: Linux 6.12 `mlx5_ib_query_device`.
    let can_register = lkey.is_some() && hca.umr_ptr_rlky();
    let can_register = can_register && !hca.umr_modify_entity_size_disabled();
    let mut caps = DeviceCaps::READ_WITH_INV_COMPOSED;
    caps.set(DeviceCaps::LOCAL_DMA_LKEY, lkey.is_some());
    caps.set(DeviceCaps::MEM_MGT_EXTENSIONS, can_register);
    caps.set(DeviceCaps::MEM_WINDOW_TYPE_2, hca.imaicl());
    caps.set(DeviceCaps::FAST_REG_ATOMIC, !hca.umr_modify_atomic_disabled());
    caps.set(DeviceCaps::XRC, hca.xrc());
    if hca.atomic() {
        let page = device.capability_page(cap_type::ATOMIC)?;
        let atomic = AtomicCap::read_from(&page).unwrap_or_default();
        let has = atomic.atomic_operations() & ATOMICS == ATOMICS
            && atomic.atomic_size_qp() & atomic_size::BYTES_8 != 0;
        caps.set(DeviceCaps::ATOMICS, has);
        let is_host_order = atomic.atomic_req_8b_endianness_mode() == 1;
        caps.set(DeviceCaps::ATOMICS_HOST_ORDER, has && is_host_order);
    }
    let max_dm_bytes = device.memory_limits().map_or(0, |limits| limits.max_bytes);
    let send_ds = (hca.max_wqe_sz_sq() / 16).min(ferrocx_prm::wqe::MAX_DS);
    Ok(DeviceAttr {
        caps,
        node_guid: node_guid(vport.node_guid(), device.mac()),
        max_qp: log2(hca.log_max_qp()),
        max_qp_wr: log2(hca.log_max_qp_sz()),
        max_send_sge: send_ds.saturating_sub(SEND_OVERHEAD_DS),
        max_recv_sge: hca.max_wqe_sz_rq() / 16,
        max_srq: log2(hca.log_max_rmp()),
        max_srq_wr: log2(hca.log_max_srq_sz().min(15)) - 1,
        max_cq: log2(hca.log_max_cq()),
        max_cqe: log2(hca.log_max_cq_sz()),
        max_mr: device.key_use().max,
        max_pd: log2(hca.log_max_pd()),
        max_qp_rd_atom: log2(hca.log_max_ra_req_qp().min(hca.log_max_ra_res_qp())),
        max_fast_reg_page_list_len: log2(hca.log_max_klm_list_size()),
        max_msg_bytes: 1 << hca.log_max_msg(),
        max_dm_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_without_a_guid_has_one_of_its_address() {
        let mac = MacAddr([0x02, 1, 2, 3, 4, 5]);
        assert_eq!(node_guid(7, mac), 7);
        assert_eq!(node_guid(0, mac), 0x0001_02ff_fe03_0405);
    }
}
