//! [`Quirks`]: drives that need another treatment than the specification asks for.

use std::time::Duration;

use ferrocx_bus::PciIdentity;

/// How long a drive is left alone behind a reset of its function. Source: SPDK
/// `nvme_ctrlr_process_init`, which waits so long where `NVME_QUIRK_DELAY_BEFORE_INIT` is.
const AFTER_RESET: Duration = Duration::from_secs(2);
/// How long one is left alone behind EN = 0 before its status is read. Source: SPDK, where
/// `NVME_QUIRK_DELAY_BEFORE_CHK_RDY` is; Linux has 2.3 s.
const AFTER_STOP: Duration = Duration::from_millis(2500);

/// What is different about a drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Quirks {
    /// How long it is left alone behind a reset of its function.
    pub(crate) after_reset: Duration,
    /// How long it is left alone behind EN = 0.
    pub(crate) after_stop: Duration,
    /// Its data are not described by SGLs, though it says that it takes them.
    pub(crate) no_sgl: bool,
}

impl Quirks {
    /// Those of a device, by its vendor and its number.
    ///
    /// # Source
    ///
    /// SPDK, `nvme_quirks.c`: all but those of vendors 1bb1 and 1c58, which are of Linux,
    /// `nvme_id_table` of drivers/nvme/host/pci.c.
    pub(crate) fn of(device: &PciIdentity) -> Self {
        let none = Self::default();
        match (device.vendor, device.device) {
            // Intel's P3500 to P3700, P3520, P4500 and P4600.
            (0x8086, 0x0953 | 0x0a53 | 0x0a54) => Self { after_reset: AFTER_RESET, ..none },
            // Samsung's PM1725, PM1725a and what followed; Memblaze; Seagate; HGST and WDC.
            (0x144d, 0xa821 | 0xa822 | 0xa826)
            | (0x1c5f, 0x0540)
            | (0x1bb1, 0x0100)
            | (0x1c58, 0x0003 | 0x0023) => Self { after_stop: AFTER_STOP, ..none },
            // All of Huawei.
            (0x19e5, _) => Self { no_sgl: true, ..none },
            _ => none,
        }
    }
}
