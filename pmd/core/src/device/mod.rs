//! [`Device`]: one port of a ConnectX, from bring-up to teardown.

mod port;
mod resources;

pub use resources::RawMapping;

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferrocx_bus::{Bar, Transport};
use ferrocx_mempool::{Pool, RegionConfig};
use ferrocx_net::ether::MacAddr;
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::objects::{AllocPd, AllocTransportDomain};
use ferrocx_prm::cmd::port::QueryVportCounter;
use ferrocx_prm::cmd::tir::CreateTis;
use ferrocx_prm::eqc::Eqc;
use ferrocx_prm::tirc::Tisc;

use crate::bringup::{self, Caps, FirmwareVersion, Stage};
use crate::cmd::{CommandError, DeadDevice};
use crate::config::{Checked, DeviceConfig, KeyMode, MAX_DESCRIPTORS, MIN_DESCRIPTORS};
use crate::control::Control;
use crate::eq::{self, Event};
use crate::error::DeviceError;
use crate::flow::tables::{Steering, TableSetup};
use crate::health::{HealthMonitor, HealthReport};
use crate::keys::{Keys, Registrations};
use crate::link::{LinkState, Port};
use crate::memory::Memory;
use crate::objects::Kind;
use crate::quota::Quota;
use crate::stats::VportCounters;

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// PCI address, or the model's name.
    pub name: String,
    /// Marketing name.
    pub model: &'static str,
    /// Whether it is a virtual function.
    pub is_vf: bool,
    /// NUMA node of its slot, where the system knows it.
    pub numa_node: Option<u32>,
    /// Name of the transport.
    pub transport: &'static str,
    /// Firmware revision.
    pub firmware: FirmwareVersion,
    /// The permanent MAC address.
    pub permanent_mac: MacAddr,
}

/// What a device allows, in the terms of the configuration structs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Receive queues.
    pub max_rx_queues: u32,
    /// Send queues.
    pub max_tx_queues: u32,
    /// Fewest descriptors of a queue.
    pub min_descriptors: u32,
    /// Most descriptors of a queue.
    pub max_descriptors: u32,
    /// Entries of an RSS table.
    pub max_reta: u32,
    /// Largest MTU of the port.
    pub max_mtu: u16,
    /// Most bytes that TSO cuts up, headers not counted; 0 without TSO.
    pub max_tso_bytes: u32,
    /// Whether checksums can be filled in and checked.
    pub checksum_offload: bool,
    /// Whether VLAN tags can be stripped.
    pub vlan_strip: bool,
    /// Whether VLAN tags can be inserted.
    pub vlan_insert: bool,
    /// Whether completions can be compressed.
    pub cqe_compression: bool,
    /// Whether several packets fit one work request.
    pub multi_packet: bool,
    /// Whether received packets can share large buffers.
    pub striding: bool,
    /// The events of a completion queue can wait for more completions.
    pub cq_moderation: bool,
    /// Whether flow rules can count.
    pub flow_counters: bool,
    /// Sets of queue counters, of all users of the function together: what tells a queue's
    /// [`DropCounter`](crate::DropCounter) from another's.
    pub drop_counters: u32,
    /// Bytes of each packet that the device wants inline in the work request.
    pub min_inline_bytes: u16,
}

/// What bring-up found and made, which stays as it is.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) info: DeviceInfo,
    pub(crate) limits: Limits,
    pub(crate) caps: Caps,
    pub(crate) keys: Keys,
    pub(crate) pd: u32,
    pub(crate) transport_domain: u32,
    pub(crate) tisn: u32,
    /// UAR page of the event queue and the CQs.
    pub(crate) uar_page: u32,
    pub(crate) eqn: u8,
}

/// What all handles of a device share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) bar: Arc<dyn Bar>,
    transport: Arc<dyn Transport>,
    control: Mutex<Control>,
    memory: Arc<Memory>,
    pub(crate) checked: Checked,
    pub(crate) made: Made,
    registrations: Mutex<Registrations>,
    pub(crate) quota: Arc<Quota>,
    health: Mutex<HealthMonitor>,
    pub(crate) steering: Mutex<Steering>,
    pub(crate) port: Mutex<Port>,
    /// See [`Device::shared`].
    shared: Mutex<Vec<Weak<dyn Any + Send + Sync>>>,
    /// See [`Control::gone`].
    gone: Arc<AtomicBool>,
    torn_down: AtomicBool,
}

/// Locks without regard to poison: a panic elsewhere does not make device state unreadable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// The command channel and all that hangs on it.
    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        lock(&self.control)
    }

    /// What the flow tables are made by.
    pub(crate) fn table_setup(&self) -> TableSetup<'_> {
        let log_rules = self.checked.log_flow_rules;
        TableSetup { caps: &self.made.caps.nic_receive, log_rules }
    }

    /// Destroys what is left and hands the device back, once.
    fn tear_down(&self) -> Result<(), DeviceError> {
        if self.torn_down.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let mut control = self.control();
        let mut registrations = lock(&self.registrations);
        // Served once more, then never again; its memory is kept until the device let go of it.
        control.serve();
        let eq = control.eq.take();
        let objects = self.destroy_objects(&mut control, &registrations);
        if let Err(error) = &objects {
            tracing::error!(%error, "objects of the device were not destroyed");
        }
        let timeout = self.checked.config.reset_timeout;
        let result = bringup::teardown(&mut control, Stage::Initialised, timeout);
        if result.is_err() && control.channel.is_none() {
            // Not even a reset helped: the device may still reach the pools.
            registrations.leak();
            std::mem::forget(eq);
        } else {
            registrations.clear();
        }
        objects.map_err(DeviceError::from).and(result)
    }

    /// The objects that bring-up made, last first.
    fn destroy_objects(
        &self,
        control: &mut Control,
        registrations: &Registrations,
    ) -> Result<(), CommandError> {
        let made = &self.made;
        lock(&self.steering).destroy(control)?;
        lock(&self.port).close(control)?;
        control.destroy(Kind::Tis, made.tisn)?;
        for index in registrations.mkeys().chain(made.keys.mkey_index) {
            control.destroy(Kind::Mkey, index)?;
        }
        control.destroy(Kind::TransportDomain, made.transport_domain)?;
        control.destroy(Kind::Pd, made.pd)?;
        control.destroy(Kind::Eq, u32::from(made.eqn))?;
        control.destroy(Kind::Uar, made.uar_page)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.tear_down() {
            tracing::error!(device = %self.made.info.name, %error, "teardown");
        }
    }
}

/// A port of a ConnectX, brought up and ready for queues.
///
/// A handle: clones are the same device. Queues and flow rules hold it too, so it is torn down
/// when the last of them is dropped, or by [`Device::close`], which says how that went.
///
/// All methods take a lock and talk to the firmware: they are for set-up, not for the data path.
/// The device asks for memory by events, and stops if nobody answers: [`Device::keep_house`] has a
/// thread do that. A program that wants no thread calls [`Device::serve_events`] now and then.
///
/// # Errors
/// Where a method says no more about its error, here or at an object of the device, that is what
/// the device refused.
#[derive(Debug, Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

impl Device {
    /// Brings up the device behind `transport`.
    ///
    /// Buffer keys are chosen by what the device offers and reported in the log and by
    /// [`Device::key_mode`]. The link comes up by itself; see [`Device::link`].
    ///
    /// # Errors
    /// [`DeviceError`] with the step that failed. Everything done so far is undone first: nothing
    /// stays mapped, and the firmware keeps no page.
    pub fn open(transport: Arc<dyn Transport>, config: &DeviceConfig) -> Result<Self, DeviceError> {
        let checked = config.check()?;
        let identity = transport.identity().clone();
        let Some(known) = identity.known() else {
            let (name, vendor, device) = (identity.name, identity.vendor, identity.device);
            return Err(DeviceError::UnknownDevice { name, vendor, device });
        };
        let region = RegionConfig {
            page: config.page,
            numa_node: config.numa_node.or(identity.numa_node),
            shared: config.shared_memory,
            ..RegionConfig::default()
        };
        let memory = Arc::new(Memory::new(transport.dma(), region)?);
        let mut control =
            Control::new(Arc::clone(&transport), Arc::clone(&memory), config.max_firmware_pages);
        let mut stage = Stage::Closed;
        let made = bringup::bring_up(&mut control, &checked, known.is_vf, &mut stage).and_then(
            |(firmware, caps)| {
                let info = DeviceInfo {
                    name: identity.name,
                    model: known.name,
                    is_vf: known.is_vf,
                    numa_node: identity.numa_node,
                    transport: transport.name(),
                    firmware,
                    permanent_mac: MacAddr::default(),
                };
                Made::make(&mut control, &checked, info, caps)
            },
        );
        match made {
            Ok((made, port)) => {
                let shown = control.channel_mut().shown;
                let health = HealthMonitor::new(config.health_interval, shown);
                let keys = 1u32.checked_shl(made.caps.hca.log_max_mkey()).unwrap_or(u32::MAX);
                let inner = Inner {
                    bar: Arc::clone(&control.bar),
                    transport,
                    gone: Arc::clone(&control.gone),
                    control: Mutex::new(control),
                    memory,
                    checked,
                    quota: Quota::new(config.max_memory_keys.min(keys)),
                    made,
                    registrations: Mutex::default(),
                    health: Mutex::new(health),
                    steering: Mutex::default(),
                    port: Mutex::new(port),
                    shared: Mutex::default(),
                    torn_down: AtomicBool::new(false),
                };
                Ok(Self { inner: Arc::new(inner) })
            }
            Err(error) => {
                // TEARDOWN_HCA and the reset behind it end objects that were made already. Until
                // then the device may write events, and nothing else lies where it does.
                let _eq = control.eq.take();
                if let Err(also) = bringup::teardown(&mut control, stage, config.reset_timeout) {
                    tracing::warn!(error = %also, "while undoing a failed bring-up");
                }
                Err(error)
            }
        }
    }

    /// What the device is.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.made.info
    }

    /// What the device allows.
    #[must_use]
    #[doc(alias = "rte_eth_dev_info_get")]
    pub fn limits(&self) -> Limits {
        self.inner.made.limits
    }

    /// How buffers are addressed.
    #[must_use]
    pub fn key_mode(&self) -> KeyMode {
        self.inner.made.keys.mode
    }

    /// Lets the device reach a pool's buffers: maps its region, makes a key where needed, and
    /// stamps the buffers if no other device has.
    ///
    /// Call it for every pool whose packets pass through this device's queues, before making them.
    /// A pool of another device is fine: its addresses are translated. Again is harmless. One whose
    /// [`Device::unregister_pool`] failed is registered anew, once what is left of it can be ended.
    ///
    /// # Errors
    /// [`DeviceError::Bus`] if the region cannot be mapped, [`DeviceError::Command`] if the key is
    /// refused, [`DeviceError::Mempool`] if buffers of an unstamped pool are in use.
    #[doc(alias = "rte_dev_dma_map")]
    pub fn register_pool(&self, pool: &Pool) -> Result<(), DeviceError> {
        let mut control = self.inner.control();
        lock(&self.inner.registrations).add(&mut control, &self.inner.made.keys, pool)
    }

    /// Ends the device's reach into a pool's buffers: takes the stamp back, and with the last pool
    /// of a region destroys its key and unmaps it. When this returns `Ok` for that one, the device
    /// reaches none of that memory (in an address space of several devices: once the last of them
    /// has let go). A pool that is not registered is none of its business: `Ok`.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] while queues live that may name the region: receive queues that were
    /// made with the pool, and every send queue made since it was registered.
    /// [`DeviceError::Mempool`] while packets of the pool are out: with the caller or in a cache,
    /// posted on a queue pair, or registered under a key. Nothing has changed then. What device or
    /// system refused: the device may then still reach the memory; try again, or
    /// [`Device::close`].
    pub fn unregister_pool(&self, pool: &Pool) -> Result<(), DeviceError> {
        let mut control = self.inner.control();
        lock(&self.inner.registrations).remove(&mut control, pool)
    }

    /// Takes a pool's [foreign](ferrocx_mempool::Mbuf::is_foreign) memory back from under whatever
    /// uses it, from any thread: destroys the key of its region and unmaps that. When this returns
    /// `Ok`, the device reaches none of it, through this or another pool of the region.
    ///
    /// A queue stops with a [`QueueFault`](crate::QueueFault) when it next needs the memory: for a
    /// packet with a payload to receive, or one to send from there (which a send queue learns up to
    /// 64 packets later). Destroy it then: it names a key that is gone, so a reset would not help.
    /// Everything else goes on. The pool may be registered again.
    ///
    /// # Errors
    /// [`DeviceError::Config`] for a pool that is not foreign. What device or system refused: the
    /// device may then still reach the memory; try again, or [`Device::close`].
    pub fn revoke_pool(&self, pool: &Pool) -> Result<(), DeviceError> {
        let mut control = self.inner.control();
        lock(&self.inner.registrations).revoke(&mut control, pool)
    }

    /// The oldest event that was not read by this call yet. Also serves the firmware's page
    /// requests. All handles of the device share the place; a part of a program that must see
    /// every event takes an [`EventReader`](crate::EventReader) of its own.
    #[doc(alias = "rte_eth_dev_callback_register")]
    pub fn poll_event(&self) -> Option<Event> {
        self.inner.control().next_event()
    }

    /// Answers what the firmware asks for. Events stay for those who read them.
    pub fn serve_events(&self) {
        self.inner.control().serve();
    }

    /// Whether the firmware waits for pages, or to give some back, until somebody polls events.
    /// Waits for no lock: `false` while another thread holds it, which serves the firmware.
    #[must_use]
    pub fn has_page_requests(&self) -> bool {
        self.inner.control.try_lock().is_ok_and(|mut control| control.has_requests())
    }

    /// Events that [`Device::poll_event`] missed: the device keeps the latest 4096.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.inner.control().lost_events()
    }

    /// Looks at the device's health. Call it every few seconds; it takes a few register reads.
    ///
    /// A report with a notice of removal asks for an orderly end: stop the queues, drop them, and
    /// close the device. The kernel waits for that.
    #[doc(alias = "rte_eth_dev_is_removed")]
    pub fn health(&self) -> HealthReport {
        let notice = self.inner.transport.notice();
        let bar = self.inner.bar.as_ref();
        let report = lock(&self.inner.health).look(bar, notice, self.now());
        if let Some(cause) = report.dead {
            self.inner.control().set_dead(cause);
        }
        report
    }

    /// Counters of the vport, kept by the device.
    #[doc(alias = "rte_eth_stats_get")]
    pub fn vport_counters(&self) -> Result<VportCounters, DeviceError> {
        Ok(VportCounters::read(&self.inner.control().call(&QueryVportCounter::input())?))
    }

    /// Link state, as the device reports it now.
    #[doc(alias = "rte_eth_link_get")]
    pub fn link(&self) -> Result<LinkState, DeviceError> {
        crate::link::query(&mut self.inner.control())
    }

    /// Pages of 4 KiB that the firmware has.
    #[must_use]
    pub fn firmware_pages(&self) -> usize {
        self.inner.control().pages.lent()
    }

    /// Carries out a command that this crate has no method for.
    ///
    /// `tail_in` follows the fixed part of the input; `tail_out` is filled with what follows the
    /// fixed part of the output.
    ///
    /// # Safety
    /// A command can tell the device where to read and write, and end objects that others use. What
    /// it names must be the caller's to give away: memory that nothing borrows for as long as the
    /// device may use it, and objects that nobody else holds, or that lose nothing by it.
    ///
    /// ```compile_fail,E0133
    /// # use ferrocx_core::{CommandError, Device};
    /// # use ferrocx_prm::cmd::{Command, device::Nop};
    /// fn safe(device: &Device) -> Result<(), CommandError> {
    ///     device.execute_raw::<Nop>(&Nop::input(), &[], &mut []).map(|_| ())
    /// }
    /// ```
    #[expect(unsafe_code, reason = "commands tell the device where to read and write")]
    pub unsafe fn execute_raw<C: Command>(
        &self,
        input: &C::In,
        tail_in: &[u8],
        tail_out: &mut [u8],
    ) -> Result<C::Out, CommandError> {
        self.execute::<C>(input, tail_in, tail_out)
    }

    /// Carries out a command, as [`Device::execute_raw`] says.
    pub(crate) fn execute<C: Command>(
        &self,
        input: &C::In,
        tail_in: &[u8],
        tail_out: &mut [u8],
    ) -> Result<C::Out, CommandError> {
        self.inner.control().execute::<C>(input, tail_in, tail_out)
    }

    /// Resets the function. Every queue, rule and key of this device is void afterwards: bursts
    /// move nothing, and the handles can only be dropped. Open the device again to go on.
    ///
    /// # Errors
    /// [`DeviceError::Timeout`] if the reset does not end in time. Memory that the device may still
    /// own is then kept until it is closed, which tries another reset.
    #[doc(alias = "rte_eth_dev_reset")]
    pub fn reset(&self) -> Result<(), DeviceError> {
        let mut control = self.inner.control();
        control.set_dead(DeadDevice::WasReset);
        let transport = Arc::clone(&control.transport);
        bringup::reset_function(transport.as_ref(), self.inner.checked.config.reset_timeout)?;
        control.eq = None;
        control.release_memory();
        control.set_gone();
        Ok(())
    }

    /// Tears the device down and says how that went.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] while queues, rules or clones of the handle live: the device is then
    /// torn down when the last of them is dropped. Otherwise the first step that failed.
    pub fn close(self) -> Result<(), DeviceError> {
        match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner.tear_down(),
            Err(inner) => Err(DeviceError::InUse { handles: Arc::strong_count(&inner) - 1 }),
        }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Made {
    /// Makes the objects that every user of the device needs.
    fn make(
        control: &mut Control,
        checked: &Checked,
        mut info: DeviceInfo,
        caps: Caps,
    ) -> Result<(Self, Port), DeviceError> {
        let uar_page = control.alloc_uar()?;
        let eqc = Eqc::zeroed().with_uar_page(uar_page);
        let (eq, _) = control.create_eq(eqc, checked.log_event_entries, eq::event_bitmask())?;
        let eqn = eq.eqn;
        control.eq = Some(eq);
        let pd = control.call(&AllocPd::input())?.pd();
        let transport_domain = control.call(&AllocTransportDomain::input())?.transport_domain();
        let relaxed = caps.hca.relaxed_ordering_write();
        let keys = Keys::choose(control, pd, checked.config.key_mode, relaxed)?;
        let tisc = Tisc::zeroed().with_transport_domain(transport_domain);
        let tisn = control.call(&CreateTis::input().with_ctx(tisc))?.tisn();
        let port = Port::open(control, &checked.config, &caps.hca)?;
        info.permanent_mac = port.permanent_mac;
        let limits = limits(&caps, &port);
        let made = Self { info, limits, caps, keys, pd, transport_domain, tisn, uar_page, eqn };
        Ok((made, port))
    }
}

/// Translates capabilities.
fn limits(caps: &Caps, port: &Port) -> Limits {
    let log2 = |value: u32| 1u32.checked_shl(value).unwrap_or(u32::MAX);
    let (hca, eth) = (&caps.hca, &caps.eth);
    Limits {
        max_rx_queues: log2(hca.log_max_rq()),
        max_tx_queues: log2(hca.log_max_sq()),
        min_descriptors: MIN_DESCRIPTORS,
        max_descriptors: log2(hca.log_max_wq_sz().min(hca.log_max_cq_sz())).min(MAX_DESCRIPTORS),
        max_reta: log2(hca.log_max_rqt_size().min(eth.rss_ind_tbl_cap())),
        max_mtu: port.max_mtu,
        max_tso_bytes: if eth.max_lso_cap() == 0 { 0 } else { log2(eth.max_lso_cap()) },
        checksum_offload: eth.csum_cap(),
        vlan_strip: eth.vlan_cap(),
        vlan_insert: eth.wqe_vlan_insert(),
        cqe_compression: hca.cqe_compression(),
        multi_packet: eth.enhanced_multi_pkt_send_wqe() && port.min_inline_bytes(eth) == 0,
        striding: hca.striding_rq(),
        cq_moderation: hca.cq_moderation(),
        flow_counters: caps.nic_receive.flow_counter(),
        drop_counters: hca.max_qp_cnt(),
        min_inline_bytes: port.min_inline_bytes(eth),
    }
}
