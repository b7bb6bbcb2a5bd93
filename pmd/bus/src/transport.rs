//! What a transport hands to the driver, and which devices the driver knows.
#![expect(unsafe_code, reason = "a claim to registers is a promise")]

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use crate::{Bar, BusError, DmaSpace};

/// A device behind a transport: VFIO, or the software model.
///
/// # Shape
///
/// Held as `Arc<dyn Transport>`. Queues hold a [`crate::Doorbell`] and [`crate::DmaBuf`]s instead.
pub trait Transport: Send + Sync + fmt::Debug {
    /// The registers, for the driver alone. A transport around another passes the claim on.
    fn bar(&self, claim: BarClaim) -> Arc<dyn Bar>;

    /// The memory the device may reach.
    fn dma(&self) -> Arc<dyn DmaSpace>;

    /// The interrupt vectors.
    fn interrupts(&self) -> Arc<dyn Interrupts>;

    /// PCI identity of the device.
    fn identity(&self) -> &PciIdentity;

    /// Name of the transport: `vfio`, `model`.
    fn name(&self) -> &'static str;

    /// Starts a function-level reset. It is over when [`Transport::reset_complete`] says so.
    ///
    /// Mappings stay; all state inside the device is lost.
    ///
    /// # Errors
    ///
    /// The transport's reason, for example a device without reset.
    fn reset(&self) -> Result<(), BusError>;

    /// Whether the last [`Transport::reset`] is over (also `true` before the first).
    fn reset_complete(&self) -> bool;

    /// The system's notice about the device since it was opened, the worst if there are several.
    ///
    /// The default never says anything: only a kernel knows more than the registers tell.
    fn notice(&self) -> Option<Notice> {
        None
    }

    /// Gives the device a chance to make progress; called in each turn of a control-path wait loop.
    ///
    /// The default yields the core. The model's transport steps a model that lives in the
    /// same thread, so that a test needs no second one.
    fn relax(&self) {
        std::thread::yield_now();
    }

    /// The time by which the drivers of this device wait, repeat and forget. It never goes back.
    ///
    /// The default is the system's monotonic clock. A simulation gives its own, so that a time-out
    /// of a minute takes no minute, and comes at the same step in every run.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// 64 bits that nobody can guess: first sequence numbers, connection numbers, ports.
    ///
    /// A simulation draws them from its seed.
    fn random(&self) -> u64 {
        RandomState::new().build_hasher().finish()
    }
}

/// The word of a driver that it is the only one, without which nobody gets at registers.
///
/// A device does what its registers and doorbells say: whoever writes them can make it write to
/// all memory that is mapped for it, packets and buffers that others read at the time included.
#[derive(Debug)]
pub struct BarClaim(());

impl BarClaim {
    /// Makes a claim, for one call of [`Transport::bar`].
    ///
    /// # Safety
    ///
    /// What is written to the registers, and rung at their doorbells, leads the device to no memory
    /// that anybody borrows meanwhile. While a driver is at work, only it can vouch for that.
    #[must_use]
    pub unsafe fn new() -> Self {
        Self(())
    }
}

/// Notice of the system about a device that a driver holds. It is never taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum Notice {
    /// The kernel waits for the device: it is being unplugged, or taken from its kernel driver.
    ///
    /// Until it is closed the device works as before, so an orderly end is possible.
    #[error(
        "the kernel asks for the device back: it is being unplugged, or unbound from vfio-pci; \
         close it now, the kernel waits for that"
    )]
    RemovalRequested,
    /// An uncorrectable error of the PCI bus: the kernel stopped or reset the device.
    #[error(
        "the kernel reports an uncorrectable PCI error of the device and its slot; the kernel log \
         says which (AER), open the device again after mending it"
    )]
    BusError,
}

/// The message-signalled interrupt vectors of a device, as eventfds.
pub trait Interrupts: Send + Sync + fmt::Debug {
    /// Vectors the device has.
    fn vectors(&self) -> u16;

    /// Enables vectors `0..count` at once, replacing what was enabled before; 0 disables all.
    ///
    /// # Errors
    ///
    /// [`BusError::OutOfRange`] for more than [`Interrupts::vectors`], or the system's reason.
    fn enable(&self, count: u16) -> Result<(), BusError>;

    /// A new handle to the eventfd of a vector; non-blocking, close-on-exec.
    ///
    /// # Errors
    ///
    /// [`BusError::VectorNotEnabled`], or the system's reason for refusing a duplicate.
    fn eventfd(&self, vector: u16) -> Result<OwnedFd, BusError>;
}

/// Eventfds as [`Interrupts::enable`] makes them for `count` of a device's vectors.
pub(crate) fn eventfds(count: u16, vectors: u16) -> Result<Vec<OwnedFd>, BusError> {
    if count > vectors {
        return Err(BusError::OutOfRange {
            what: "interrupt vectors to enable",
            value: u64::from(count),
            min: 0,
            max: u64::from(vectors),
            hint: "; let several EQs share a vector",
        });
    }
    (0..count)
        .map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
        .collect::<Result<_, _>>()
        .map_err(|errno| BusError::os("eventfd for an interrupt vector", errno))
}

/// PCI identity of the device that a transport found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciIdentity {
    /// PCI vendor id.
    pub vendor: u16,
    /// PCI device id.
    pub device: u16,
    /// PCI address (`0000:3b:00.0`), or the model's name.
    pub name: String,
    /// NUMA node of the slot, where the system knows it.
    pub numa_node: Option<u32>,
}

impl PciIdentity {
    /// The vendor id of every device in [`KNOWN_DEVICES`].
    pub const VENDOR_MELLANOX: u16 = 0x15b3;

    /// The entry of [`KNOWN_DEVICES`] for this device, if there is one.
    #[must_use]
    pub fn known(&self) -> Option<&'static KnownDevice> {
        if self.vendor != Self::VENDOR_MELLANOX {
            return None;
        }
        KNOWN_DEVICES.iter().find(|known| known.device == self.device)
    }
}

/// One device that the driver accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownDevice {
    /// PCI device id, under vendor 0x15b3.
    pub device: u16,
    /// Marketing name.
    pub name: &'static str,
    /// Whether this id is a virtual function. Drivers tell VFs by id only.
    pub is_vf: bool,
}

const fn pf(device: u16, name: &'static str) -> KnownDevice {
    KnownDevice { device, name, is_vf: false }
}

const fn vf(device: u16, name: &'static str) -> KnownDevice {
    KnownDevice { device, name, is_vf: true }
}

/// The devices that the driver accepts: ConnectX-4 and later, and their BlueField relatives.
///
/// Connect-IB (0x1011, 0x1012) is left out: it is older than the commands this driver uses.
///
/// # Source
///
/// Linux 6.1 `mlx5_core_pci_table`; DPDK `mlx5_common.h` for the ids that Linux lacks.
pub const KNOWN_DEVICES: &[KnownDevice] = &[
    pf(0x1013, "ConnectX-4"),
    vf(0x1014, "ConnectX-4 VF"),
    pf(0x1015, "ConnectX-4 Lx"),
    vf(0x1016, "ConnectX-4 Lx VF"),
    pf(0x1017, "ConnectX-5"),
    vf(0x1018, "ConnectX-5 VF"),
    pf(0x1019, "ConnectX-5 Ex"),
    vf(0x101a, "ConnectX-5 Ex VF"),
    pf(0x101b, "ConnectX-6"),
    vf(0x101c, "ConnectX-6 VF"),
    pf(0x101d, "ConnectX-6 Dx"),
    vf(0x101e, "ConnectX family VF"),
    pf(0x101f, "ConnectX-6 Lx"),
    pf(0x1021, "ConnectX-7"),
    pf(0x1023, "ConnectX-8"),
    pf(0x1025, "ConnectX-9"),
    pf(0x1027, "ConnectX-10"),
    pf(0x2101, "ConnectX-10 NVLink-C2C"),
    pf(0xa2d2, "BlueField"),
    vf(0xa2d3, "BlueField VF"),
    pf(0xa2d6, "BlueField-2"),
    pf(0xa2dc, "BlueField-3"),
    pf(0xa2df, "BlueField-4"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(vendor: u16, device: u16) -> PciIdentity {
        PciIdentity { vendor, device, name: "0000:3b:00.0".into(), numa_node: None }
    }

    #[test]
    fn known_devices_are_found_by_both_ids() {
        assert_eq!(identity(0x15b3, 0x1015).known().map(|k| k.name), Some("ConnectX-4 Lx"));
        assert_eq!(identity(0x15b3, 0x1016).known().map(|k| k.is_vf), Some(true));
        assert!(identity(0x8086, 0x1015).known().is_none());
        assert!(identity(0x15b3, 0x1011).known().is_none());
    }

    /// Written down again from the PCI ID database, without a look at the list.
    #[test]
    fn every_generation_from_4_to_8_is_known_with_its_functions() {
        let (physical, virtual_function) = (false, true);
        for (device, name, is_vf) in [
            (0x1013, "ConnectX-4", physical),
            (0x1014, "ConnectX-4", virtual_function),
            (0x1015, "ConnectX-4 Lx", physical),
            (0x1016, "ConnectX-4 Lx", virtual_function),
            (0x1017, "ConnectX-5", physical),
            (0x1018, "ConnectX-5", virtual_function),
            (0x1019, "ConnectX-5 Ex", physical),
            (0x101a, "ConnectX-5 Ex", virtual_function),
            (0x101b, "ConnectX-6", physical),
            (0x101c, "ConnectX-6", virtual_function),
            (0x101d, "ConnectX-6 Dx", physical),
            // Of 6 Dx and all that came after it.
            (0x101e, "ConnectX family", virtual_function),
            (0x101f, "ConnectX-6 Lx", physical),
            (0x1021, "ConnectX-7", physical),
            (0x1023, "ConnectX-8", physical),
        ] {
            let known = identity(0x15b3, device).known().expect(name);
            assert!(known.name.starts_with(name), "{device:#x} is {}", known.name);
            assert_eq!(known.is_vf, is_vf, "{device:#x}");
        }
        // Connect-IB, its VF, and ConnectX-3.
        for device in [0x1011, 0x1012, 0x1003, 0x1007] {
            assert!(identity(0x15b3, device).known().is_none(), "{device:#x}");
        }
    }

    #[test]
    fn device_ids_are_unique_and_ascending() {
        assert!(KNOWN_DEVICES.windows(2).all(|pair| pair[0].device < pair[1].device));
    }
}
