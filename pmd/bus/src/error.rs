//! Why the bus refused something, in one sentence with the value, the limit and the way out.

use std::io;

/// An error of a transport: registers, DMA mappings, interrupts, or finding the device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// A register access outside the BAR, or one that is not aligned to its own width.
    #[error(
        "register access of {len_bytes} bytes at {offset:#x} does not fit the BAR of \
         {bar_len_bytes:#x} bytes or is not aligned to its width; use an offset the device reported"
    )]
    BarRange {
        /// Offset asked for.
        offset: u64,
        /// Width of the access.
        len_bytes: u64,
        /// Length of the BAR.
        bar_len_bytes: u64,
    },
    /// Memory of the device was asked for where its BAR has none.
    #[error(
        "the {len_bytes:#x} bytes at {offset:#x} of the BAR are not whole words of memory of the \
         device; use what it gave out as such"
    )]
    NotBarMemory {
        /// Offset asked for.
        offset: u64,
        /// Bytes asked for.
        len_bytes: u64,
    },
    /// A doorbell was asked for at an offset that is not a send doorbell of a UAR page.
    #[error(
        "{offset:#x} is not an 8-byte aligned send doorbell (0x800 to 0xff8 of a UAR page above \
         page 2); arm CQs and EQs with Bar::write_be64 and Bar::write_be32 instead"
    )]
    NotADoorbell {
        /// Offset asked for.
        offset: u64,
    },
    /// A size, count or alignment outside its range.
    #[error("{what} is {value}, outside {min} to {max}{hint}")]
    OutOfRange {
        /// Name of the parameter.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Smallest allowed value.
        min: u64,
        /// Largest allowed value.
        max: u64,
        /// The way out, starting with a separator, or nothing.
        hint: &'static str,
    },
    /// No free run of a DMA heap is long enough.
    #[error(
        "no free run of {len_bytes} bytes aligned to {align_bytes} in the DMA heap ({free_bytes} \
         of {total_bytes} bytes free); give the heap a larger region"
    )]
    HeapExhausted {
        /// Bytes asked for, rounded up.
        len_bytes: usize,
        /// Alignment asked for.
        align_bytes: usize,
        /// Free bytes in all mappings together.
        free_bytes: usize,
        /// Bytes of all mappings together.
        total_bytes: usize,
    },
    /// The IOMMU's address space has no room for a mapping.
    #[error(
        "no free range of {len_bytes:#x} bytes aligned to {align_bytes:#x} in the device's I/O \
         address space; unmap a region or use smaller regions"
    )]
    IovaExhausted {
        /// Bytes asked for.
        len_bytes: u64,
        /// Alignment asked for.
        align_bytes: u64,
    },
    /// A mapping would overlap one that exists.
    #[error(
        "mapping {iova:#x}..+{len_bytes:#x} overlaps {other_iova:#x}..+{other_len_bytes:#x}; \
         unmap that one first"
    )]
    MappingOverlap {
        /// Start of the refused mapping.
        iova: u64,
        /// Length of the refused mapping.
        len_bytes: u64,
        /// Start of the existing mapping.
        other_iova: u64,
        /// Length of the existing mapping.
        other_len_bytes: u64,
    },
    /// A mapping that is not there was to be removed.
    #[error("no mapping is {iova:#x}..+{len_bytes:#x}; unmap exactly what was mapped")]
    NotMapped {
        /// Start asked for.
        iova: u64,
        /// Length asked for.
        len_bytes: u64,
    },
    /// An interrupt vector was used before [`crate::Interrupts::enable`] or past its count.
    #[error("interrupt vector {vector} is not enabled ({enabled} are); enable more vectors first")]
    VectorNotEnabled {
        /// Vector asked for.
        vector: u16,
        /// Vectors enabled.
        enabled: u16,
    },
    /// Every register reads as ones: the device fell off the bus or is held in reset.
    #[error(
        "device {name} reads as all ones: it left the bus or is held in reset; reset it, or check \
         the slot and the kernel log"
    )]
    DeviceGone {
        /// Name of the device.
        name: String,
    },
    /// Not a PCI address.
    #[error("{value:?} is not a PCI address; write it as 0000:3b:00.0 or 3b:00.0")]
    BadPciAddress {
        /// The text that was given.
        value: String,
    },
    /// No PCI device at this address.
    #[error("no PCI device {name}; ConnectX devices here: {present}")]
    NoSuchDevice {
        /// Address asked for.
        name: String,
        /// The addresses that would do, or `none`.
        present: String,
    },
    /// The device is there but is none that the driver knows.
    #[error(
        "device {name} has PCI id {vendor:04x}:{device:04x}, which this driver does not know; it \
         drives {accepted}"
    )]
    WrongPciId {
        /// Its address.
        name: String,
        /// Its vendor id.
        vendor: u16,
        /// Its device id.
        device: u16,
        /// The accepted ids.
        accepted: String,
    },
    /// The device is behind no IOMMU.
    #[error(
        "device {name} has no IOMMU group; turn on VT-d or AMD-Vi in the firmware, and boot with \
         intel_iommu=on on Intel (a virtual machine needs a virtual IOMMU)"
    )]
    NoIommuGroup {
        /// Its address.
        name: String,
    },
    /// Another device of the IOMMU group belongs to a kernel driver.
    #[error(
        "IOMMU group {group} of {name} is not viable: {siblings} must be bound to vfio-pci or to \
         no driver; `cxctl bind` them too, or move the card to a slot with ACS"
    )]
    GroupNotViable {
        /// The device's address.
        name: String,
        /// Group number.
        group: u32,
        /// The devices in the way, with their drivers.
        siblings: String,
    },
    /// The device is bound to another driver than vfio-pci, or to none.
    #[error(
        "device {name} is bound to {driver}, not to vfio-pci; run `cxctl bind {name} --apply` \
         (or `driverctl set-override {name} vfio-pci`)"
    )]
    NotBoundToVfio {
        /// Its address.
        name: String,
        /// Its driver, or `no driver`.
        driver: String,
    },
    /// The limit of locked memory does not allow another mapping.
    #[error(
        "mapping {len_bytes} bytes for DMA needs {needed_bytes} bytes of locked memory, the limit \
         is {limit_bytes}; raise it with `ulimit -l` or LimitMEMLOCK"
    )]
    MemlockTooSmall {
        /// Length of the refused mapping.
        len_bytes: u64,
        /// Locked bytes with it, as far as mappings of this address space go.
        needed_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// VFIO has no more entries for mappings.
    #[error(
        "VFIO has no room for another DMA mapping beside {mappings}; use fewer and larger regions, \
         or raise vfio_iommu_type1's dma_entry_limit"
    )]
    TooManyMappings {
        /// Mappings of this address space.
        mappings: u64,
    },
    /// Memory that must not be given to a device.
    #[error(
        "heap memory cannot be mapped for DMA by a real device; allocate the region with huge \
         pages or 4 KiB pages of its own"
    )]
    HeapRegion,
    /// Memory of another driver that the kernel does not give to an IOMMU.
    #[error(
        "the kernel maps {len_bytes} bytes of another driver's memory for no IOMMU: they are \
         neither pages that it can pin nor a device's BAR, as with a dma-buf of system memory; \
         lend a BAR, or memory that its driver lets be pinned{hint}"
    )]
    ForeignPages {
        /// Bytes wanted.
        len_bytes: u64,
        /// Another thing to change, starting with a separator, or nothing.
        hint: &'static str,
    },
    /// A part of the BAR that must be mapped cannot be.
    #[error(
        "BAR {index} of {name} cannot be mapped at {offset:#x}; the kernel keeps that page to \
         itself (the MSI-X table?), and doorbells need a mapped page"
    )]
    BarNotMappable {
        /// The device's address.
        name: String,
        /// Number of the BAR.
        index: u32,
        /// Offset in the BAR.
        offset: u64,
    },
    /// The BAR ends before the registers that every device of this family has.
    #[error(
        "BAR {index} of {name} has {len_bytes:#x} bytes, the registers need {needed_bytes:#x}; \
         the firmware or the slot gave it too little room: reassign it (pci=realloc), or reset it"
    )]
    BarTooSmall {
        /// The device's address.
        name: String,
        /// Number of the BAR.
        index: u32,
        /// Its length.
        len_bytes: u64,
        /// The least that does.
        needed_bytes: u64,
    },
    /// The kernel has something mapped at the chosen addresses.
    #[error(
        "I/O addresses {iova:#x}..+{len_bytes:#x} are mapped already in the kernel; another \
         program uses the same container or iommufd: give each its own"
    )]
    IovaTaken {
        /// Start of the refused mapping.
        iova: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// A device cannot join an address space that others use.
    #[error("device {name} cannot join this address space: {why}; or give it one of its own")]
    NotShareable {
        /// The device's address.
        name: String,
        /// The reason, and what to change.
        why: &'static str,
    },
    /// Access cannot be taken from one of several devices in one address space.
    #[error(
        "device {name} shares its address space with {others} other devices, so its access to \
         memory cannot be ended alone; close them, or give each its own address space"
    )]
    SpaceShared {
        /// The device's address.
        name: String,
        /// Devices beside it.
        others: usize,
    },
    /// VFIO refused a step of opening or using the device.
    #[error("{what} of device {name}: {source}{hint}")]
    Vfio {
        /// The step.
        what: &'static str,
        /// The device's address.
        name: String,
        /// The library's reason.
        source: vfio_ioctls::VfioError,
        /// The way out, starting with a separator.
        hint: &'static str,
    },
    /// The operating system refused a call.
    #[error("{what}: {source}")]
    Os {
        /// Action that failed, with its object.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
}

impl BusError {
    /// Builds a [`BusError::Os`].
    pub(crate) fn os(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Os { what: what.into(), source: source.into() }
    }
}
