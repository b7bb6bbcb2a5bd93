//! What kind of device the model is.

use ferrocx_prm::caps::CAP_PAGE_BYTES;
use ferrocx_prm::reg::speed;

use crate::objects::budget::SET_ASIDE_BYTES;

/// Device that the model claims to be. Source: reference 1.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Identity {
    /// ConnectX-5, physical function: 15b3:1017.
    #[default]
    ConnectX5,
    /// ConnectX-5, virtual function: 15b3:1018. Linux skips what only PFs do. The embedded switch
    /// forwards it the addresses that its driver listed, and no others.
    ConnectX5Vf,
    /// ConnectX-6 Dx, physical function: 15b3:101d.
    ConnectX6Dx,
}

impl Identity {
    /// PCI device id, under vendor 0x15b3.
    #[must_use]
    pub fn device_id(self) -> u16 {
        match self {
            Self::ConnectX5 => 0x1017,
            Self::ConnectX5Vf => 0x1018,
            Self::ConnectX6Dx => 0x101d,
        }
    }

    /// Firmware revision: major, minor, sub-minor. The major number names the generation.
    #[must_use]
    pub fn firmware(self) -> (u16, u16, u16) {
        match self {
            Self::ConnectX5 | Self::ConnectX5Vf => (16, 35, 2000),
            Self::ConnectX6Dx => (22, 35, 2000),
        }
    }

    /// Whether this is a virtual function.
    #[must_use]
    pub fn is_vf(self) -> bool {
        matches!(self, Self::ConnectX5Vf)
    }
}

/// The smallest [`NicConfig::memory_bytes`]: what is set aside, and 8 MiB for objects.
pub const MIN_MEMORY_BYTES: u64 = SET_ASIDE_BYTES + (8 << 20);

/// Everything that can be chosen about one model device. All fields have working defaults.
#[derive(Debug, Clone)]
pub struct NicConfig {
    /// Device that the model claims to be.
    pub identity: Identity,
    /// Permanent MAC address.
    pub mac: [u8; 6],
    /// Pages that QUERY_PAGES asks for before the capabilities are set.
    pub boot_pages: u32,
    /// Pages that QUERY_PAGES asks for before INIT_HCA.
    pub init_pages: u32,
    /// Pages asked for by a page request event once INIT_HCA is done, 0 for none.
    pub regular_pages: u32,
    /// Nanoseconds of device time for which `initializing` reads as 1 after power-on and reset.
    pub boot_ns: u64,
    /// Largest frame of the port in bytes, with Ethernet header, VLAN tag and FCS.
    pub max_mtu: u32,
    /// Speeds of the port, bits of PTYS.
    pub speeds: u32,
    /// Whether the device does RoCE; without it, it has neither the capabilities nor the commands.
    pub roce: bool,
    /// Whether QUERY_SPECIAL_CONTEXTS tells the reserved L_Key, or 0, as a device without one does.
    pub reserved_lkey: bool,
    /// Nanoseconds that a packet without an answer waits at least before it is sent again, however
    /// short the timeout of its queue pair: for peers that the processor is taken away from. 0
    /// keeps to the queue pair.
    pub min_ack_timeout_ns: u64,
    /// Bytes that the driver can make the model hold, [`MIN_MEMORY_BYTES`] at least. What goes
    /// beyond is refused with EXCEED_LIM. The default translates more than 64 GiB of 4 KiB pages.
    pub memory_bytes: u64,
    /// Text of the NODE_DESC register, at most 63 bytes.
    pub node_desc: String,
    /// Capability pages in place of the model's own, to replay a recorded device. What they
    /// advertise beyond the model's own is not implemented.
    pub cap_pages: Vec<CapOverride>,
}

/// One capability page, as QUERY_HCA_CAP gives it.
pub type CapPage = [u8; CAP_PAGE_BYTES];

/// A capability page of another device.
#[derive(Debug, Clone)]
pub struct CapOverride {
    /// Page type, as in QUERY_HCA_CAP.
    pub kind: u32,
    /// The page of what the device can do.
    pub max: Box<CapPage>,
    /// The page of what the device is set to after power-on.
    pub cur: Box<CapPage>,
}

impl Default for NicConfig {
    fn default() -> Self {
        Self {
            identity: Identity::default(),
            mac: [0x02, 0xfe, 0x0c, 0x00, 0x00, 0x01],
            boot_pages: 6,
            init_pages: 64,
            regular_pages: 0,
            boot_ns: 0,
            max_mtu: 9978,
            speeds: speed::ETH_100G_CR4 | speed::ETH_25G_CR,
            roce: true,
            reserved_lkey: true,
            min_ack_timeout_ns: 0,
            memory_bytes: 256 << 20,
            node_desc: "ferrocx model".into(),
            cap_pages: Vec::new(),
        }
    }
}
