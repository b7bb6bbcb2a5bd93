//! PCI Express: width and speed of a link, access control on the way between two devices, BARs.
//!
//! Source: PCI Express Base Specification 5.0, sections 7.6 (extended capabilities) and 7.7.8
//! (ACS).

use std::fs;

use serde::Serialize;

use super::Tree;

/// A device's link to the port above it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Lanes in use.
    pub width: u32,
    /// Lanes that the device has.
    pub max_width: u32,
    /// As the kernel prints it: `8.0 GT/s PCIe`.
    pub speed: String,
    /// The highest that the device can.
    pub max_speed: String,
}

impl Link {
    /// Reads a device's link; `None` where the kernel shows none.
    #[must_use]
    pub fn read(tree: &Tree, address: &str) -> Option<Self> {
        let path = Tree::device(address);
        let width = tree.number(path.join("current_link_width"))?;
        Some(Self {
            // 255 is "no link", which some emulated ports say.
            width: if width == 255 { 0 } else { width },
            max_width: tree.number(path.join("max_link_width"))?,
            speed: tree.text(path.join("current_link_speed"))?,
            max_speed: tree.text(path.join("max_link_speed"))?,
        })
    }
}

/// Length of the part of configuration space that every device has.
const LEGACY_BYTES: usize = 256;
/// Extended capability of access control services.
const ACS: u16 = 0x000d;
/// Most extended capabilities that fit.
const MAX_CAPABILITIES: usize = (4096 - LEGACY_BYTES) / 8;
/// P2P request redirect and completion redirect. Source: 7.7.8.3.
const REDIRECT: u16 = 1 << 2 | 1 << 3;

/// The ACS control register of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcsControl {
    /// The bridge has the capability; the register.
    Value(u16),
    /// The bridge has no such capability.
    None,
    /// Extended configuration space cannot be read, for which one must be root.
    Unreadable,
}

impl AcsControl {
    /// Whether requests between two devices below the bridge go up to the root complex first.
    #[must_use]
    pub fn redirects(self) -> bool {
        matches!(self, Self::Value(value) if value & REDIRECT != 0)
    }
}

/// Reads the ACS control register of a bridge out of its configuration space.
#[must_use]
pub fn acs(tree: &Tree, address: &str) -> AcsControl {
    let config = tree.bytes(Tree::device(address).join("config")).unwrap_or_default();
    if config.len() <= LEGACY_BYTES {
        return AcsControl::Unreadable;
    }
    let word = |at: usize| {
        let bytes = config.get(at..at + 4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let mut at = LEGACY_BYTES;
    for _ in 0..MAX_CAPABILITIES {
        let Some(header) = word(at) else { break };
        if header & 0xffff == u32::from(ACS) {
            // Capability register in the low half, control register in the high half.
            return word(at + 4).map_or(AcsControl::None, |word| {
                AcsControl::Value(u16::try_from(word >> 16).unwrap_or(0))
            });
        }
        at = (header >> 20) as usize & !3;
        if at < LEGACY_BYTES {
            break;
        }
    }
    AcsControl::None
}

/// Addresses of the bridges above a device, the nearest first, and the root of its hierarchy such
/// as `pci0000:3a` last. Empty if the tree does not say.
#[must_use]
pub fn path_to_root(tree: &Tree, address: &str) -> Vec<String> {
    let Ok(path) = fs::canonicalize(tree.path(Tree::device(address))) else { return Vec::new() };
    let mut above = Vec::new();
    for part in path.ancestors().skip(1) {
        let Some(name) = part.file_name().and_then(|name| name.to_str()) else { break };
        above.push(name.to_owned());
        if name.starts_with("pci") {
            return above;
        }
    }
    Vec::new()
}

/// A BAR that is memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bar {
    /// Its number.
    pub index: usize,
    /// Its address on the bus; 0 if it got none.
    pub start: u64,
    /// Its bytes.
    pub len: u64,
    /// Sizes that it can have, bit 0 for a MiB, bit 1 for two, and so on; 0 if it cannot be
    /// resized, or only root may see that.
    ///
    /// # Source
    ///
    /// Linux `Documentation/ABI/testing/sysfs-bus-pci`, `resource<N>_resize`.
    pub sizes: u64,
}

/// `IORESOURCE_MEM`. Source: Linux `include/linux/ioport.h`.
const RESOURCE_MEM: u64 = 0x200;
/// BARs of a function; bridges' windows and the expansion ROM follow in the same file.
const BARS: usize = 6;

/// The BARs of a device that are memory, ascending.
#[must_use]
pub fn bars(tree: &Tree, address: &str) -> Vec<Bar> {
    let text = tree.text(Tree::device(address).join("resource")).unwrap_or_default();
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let bar = |(index, line): (usize, &str)| {
        let mut words = line.split_whitespace().map(hex);
        let (start, end, flags) = (words.next()??, words.next()??, words.next()??);
        let len = end.checked_sub(start)?.checked_add(1)?;
        let sizes = Tree::device(address).join(format!("resource{index}_resize"));
        let sizes = tree.text(sizes).and_then(|text| hex(&text)).unwrap_or(0);
        (flags & RESOURCE_MEM != 0).then_some(Bar { index, start, len, sizes })
    };
    text.lines().take(BARS).enumerate().filter_map(bar).collect()
}
