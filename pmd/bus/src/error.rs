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
        /// Which parameter.
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
        "no free run of {len_bytes} bytes aligned to {align_bytes} in the DMA heap ({free_bytes} of \
         {total_bytes} bytes free); give the heap a larger region"
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
    /// The operating system refused a call.
    #[error("{what}: {source}")]
    Os {
        /// What was being done, with its object.
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
