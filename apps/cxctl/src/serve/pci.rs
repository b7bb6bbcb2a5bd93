//! The PCI configuration space of one served function.
//!
//! A type 0 header, power management, a PCI Express endpoint with function-level reset, MSI-X with
//! table and pending bits in BAR 2, and on physical functions the vendor-specific gateway with its
//! semaphore and no address space behind it (crash dumps are not modelled).
//!
//! # Source
//!
//! PCI Local Bus 3.0, chapter 6 and §6.8.2 (MSI-X); PCI Express Base 3.0, §7.8 (capability) and
//! §6.6.2 (function-level reset). The gateway: Linux 6.12 `lib/pci_vsc.c`. The capability offsets
//! are free to choose.

/// Bytes of configuration space, the PCI Express extended part included.
pub const CONFIG_BYTES: usize = 4096;
/// BAR 0: initialization segment and UAR pages, 64-bit prefetchable.
pub const BAR0_BYTES: u64 = 32 << 20;
/// BAR 2: MSI-X table and pending bits, away from the initialization segment.
pub const BAR2_BYTES: u64 = 8 << 10;
/// Where the MSI-X pending bits begin in BAR 2; the table begins at 0.
pub const PBA_OFFSET: u32 = 0x1000;
/// MSI-X vectors of a function.
pub const MSIX_VECTORS: u16 = 64;

const VENDOR_MELLANOX: u16 = 0x15b3;

const COMMAND: usize = 0x04;
const COMMAND_BUS_MASTER: u8 = 1 << 2;
const STATUS: usize = 0x06;
const CLASS: usize = 0x09;
const BAR0: usize = 0x10;
const BAR2: usize = 0x18;
const SUBSYSTEM_VENDOR: usize = 0x2c;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_PIN: usize = 0x3d;

const PM: usize = 0x40;
const EXPRESS: usize = 0x60;
const EXPRESS_CONTROL: usize = EXPRESS + 0x08;
const MSIX: usize = 0x9c;
const GATEWAY: usize = 0xc0;
const GATEWAY_CONTROL: usize = GATEWAY + 0x04;
const GATEWAY_COUNTER: usize = GATEWAY + 0x08;
const GATEWAY_SEMAPHORE: usize = GATEWAY + 0x0c;

/// Which function the guest sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PciFunction {
    /// PCI device id, under vendor 0x15b3.
    pub device: u16,
    /// Whether the id is one of a virtual function: those have no vendor-specific gateway.
    pub is_vf: bool,
}

/// What a write to the configuration space asks of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigEffect {
    /// Nothing beyond the register itself.
    None,
    /// A function-level reset.
    FunctionLevelReset,
}

/// The configuration space: bytes, which bits of them a guest may change, and the few with effects.
#[derive(Debug)]
pub struct ConfigSpace {
    function: PciFunction,
    bytes: Box<[u8; CONFIG_BYTES]>,
    writable: Box<[u8; CONFIG_BYTES]>,
    /// The gateway's ticket counter: differs at each read, so that a lock attempt is unique.
    tickets: u32,
}

impl ConfigSpace {
    /// The configuration space after a reset.
    #[must_use]
    pub fn new(function: PciFunction) -> Self {
        let mut space = Self {
            function,
            bytes: Box::new([0; CONFIG_BYTES]),
            writable: Box::new([0; CONFIG_BYTES]),
            tickets: 0,
        };
        space.header();
        space.power_management();
        space.express();
        space.msix();
        if !function.is_vf {
            space.gateway();
        }
        space
    }

    /// Back to the state after a reset.
    pub fn reset(&mut self) {
        *self = Self::new(self.function);
    }

    /// Whether the guest lets the function read and write memory.
    #[must_use]
    pub fn bus_master(&self) -> bool {
        self.bytes[COMMAND] & COMMAND_BUS_MASTER != 0
    }

    /// Reads; bytes past the end are all ones.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        let Some(at) = usize::try_from(offset).ok().filter(|at| *at < CONFIG_BYTES) else {
            return;
        };
        if !self.function.is_vf && (GATEWAY_COUNTER..GATEWAY_COUNTER + 4).contains(&at) {
            self.tickets = self.tickets.wrapping_add(1).max(1);
            self.put32(GATEWAY_COUNTER, self.tickets);
        }
        let len = data.len().min(CONFIG_BYTES - at);
        data[..len].copy_from_slice(&self.bytes[at..at + len]);
    }

    /// Writes; read-only bits keep their value, bytes past the end are dropped.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> ConfigEffect {
        let Some(at) = usize::try_from(offset).ok().filter(|at| *at < CONFIG_BYTES) else {
            return ConfigEffect::None;
        };
        let len = data.len().min(CONFIG_BYTES - at);
        let range = at..at + len;
        if self.refused_by_semaphore(&range, data) {
            return ConfigEffect::None;
        }
        for (i, new) in range.clone().zip(data) {
            self.bytes[i] = (self.bytes[i] & !self.writable[i]) | (new & self.writable[i]);
        }
        // Bit 15 of Device Control, a bit that reads as zero.
        let reset_bit = EXPRESS_CONTROL + 1;
        if range.contains(&reset_bit) && data[reset_bit - at] & 0x80 != 0 {
            return ConfigEffect::FunctionLevelReset;
        }
        ConfigEffect::None
    }

    /// Whether this is an attempt to take the gateway's semaphore from whoever holds it.
    fn refused_by_semaphore(&self, range: &std::ops::Range<usize>, data: &[u8]) -> bool {
        let held = self.bytes[GATEWAY_SEMAPHORE..GATEWAY_SEMAPHORE + 4] != [0; 4];
        !self.function.is_vf
            && range.contains(&GATEWAY_SEMAPHORE)
            && held
            && data.iter().any(|byte| *byte != 0)
    }

    fn header(&mut self) {
        self.put16(0x00, VENDOR_MELLANOX);
        self.put16(0x02, self.function.device);
        // I/O space (there is none) and the interrupt-disable bit stay out; memory, master, parity
        // and SERR are kept.
        self.allow16(COMMAND, 0x0146);
        self.put16(STATUS, 1 << 4); // capability list
        self.bytes[CLASS + 1] = 0x00; // Ethernet controller
        self.bytes[CLASS + 2] = 0x02; // network controller
        self.bar(BAR0, 0x0c, BAR0_BYTES); // memory, 64-bit, prefetchable
        self.put32(BAR0 + 4, 0);
        self.allow32(BAR0 + 4, u32::MAX);
        self.bar(BAR2, 0x00, BAR2_BYTES); // memory, 32-bit
        // A subsystem id of no board that was ever made.
        self.put16(SUBSYSTEM_VENDOR, VENDOR_MELLANOX);
        self.bytes[CAPABILITIES] = byte(PM);
        self.bytes[INTERRUPT_PIN] = 0; // MSI-X only
    }

    /// Power management 1.2 with D0 and D3hot and no PME.
    fn power_management(&mut self) {
        self.capability(PM, 0x01, EXPRESS);
        self.put16(PM + 2, 0x0003);
        self.put16(PM + 4, 0x0008); // no soft reset on the way back from D3hot
        self.allow16(PM + 4, 0x0003);
    }

    /// An endpoint with function-level reset on an 8 GT/s x16 link.
    fn express(&mut self) {
        const SPEED_8GT: u32 = 3;
        const WIDTH_16: u32 = 16 << 4;
        self.capability(EXPRESS, 0x10, MSIX);
        self.put16(EXPRESS + 0x02, 0x0002); // version 2, endpoint
        // Payload to 512 bytes, extended tags, role-based errors, function-level reset.
        self.put32(EXPRESS + 0x04, 0x1000_8022);
        self.put16(EXPRESS_CONTROL, 0x2810); // relaxed ordering, no snoop, 512-byte reads
        self.allow16(EXPRESS_CONTROL, 0x7fff);
        self.put32(EXPRESS + 0x0c, WIDTH_16 | SPEED_8GT);
        self.allow16(EXPRESS + 0x10, 0x01fb);
        self.put16(EXPRESS + 0x12, (WIDTH_16 | SPEED_8GT) as u16);
        self.put32(EXPRESS + 0x24, 0x0000_001f); // completion time-out ranges, and disable
        self.allow16(EXPRESS + 0x28, 0x001f);
        self.put32(EXPRESS + 0x2c, 0x0000_000e); // 2.5, 5 and 8 GT/s
        self.put16(EXPRESS + 0x30, SPEED_8GT as u16);
    }

    fn msix(&mut self) {
        let next = if self.function.is_vf { 0 } else { GATEWAY };
        self.capability(MSIX, 0x11, next);
        self.put16(MSIX + 2, MSIX_VECTORS - 1);
        self.allow16(MSIX + 2, 0xc000); // enable, mask all
        self.put32(MSIX + 4, 2); // table: offset 0 of BAR 2
        self.put32(MSIX + 8, PBA_OFFSET | 2);
    }

    /// Semaphore, counter and an address register that reports "no such space" (status 0).
    fn gateway(&mut self) {
        self.capability(GATEWAY, 0x09, 0);
        self.bytes[GATEWAY + 2] = 0x18; // length
        self.allow16(GATEWAY_CONTROL, 0xffff);
        self.allow32(GATEWAY_SEMAPHORE, u32::MAX);
    }

    fn capability(&mut self, at: usize, id: u8, next: usize) {
        self.bytes[at] = id;
        self.bytes[at + 1] = byte(next);
    }

    /// A BAR of `len` bytes, a power of two: the bits below it read as `flags`.
    fn bar(&mut self, at: usize, flags: u32, len: u64) {
        self.put32(at, flags);
        #[expect(clippy::cast_possible_truncation, reason = "the low half of the mask is meant")]
        self.allow32(at, !(len - 1) as u32);
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn allow16(&mut self, at: usize, mask: u16) {
        self.writable[at..at + 2].copy_from_slice(&mask.to_le_bytes());
    }

    fn allow32(&mut self, at: usize, mask: u32) {
        self.writable[at..at + 4].copy_from_slice(&mask.to_le_bytes());
    }
}

/// An offset of the first 256 bytes, as a capability pointer holds it.
fn byte(offset: usize) -> u8 {
    u8::try_from(offset).expect("capabilities lie in the first 256 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pf() -> ConfigSpace {
        ConfigSpace::new(PciFunction { device: 0x1019, is_vf: false })
    }

    fn read<const N: usize>(space: &mut ConfigSpace, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        space.read(offset, &mut data);
        data
    }

    /// The ids of the capabilities in list order, as a guest walks them.
    fn capabilities(space: &mut ConfigSpace) -> Vec<u8> {
        let mut ids = Vec::new();
        let mut at = read::<1>(space, 0x34)[0];
        while at != 0 {
            let [id, next] = read::<2>(space, u64::from(at));
            ids.push(id);
            at = next;
        }
        ids
    }

    #[test]
    fn header_names_an_ethernet_connectx() {
        let mut space = pf();
        assert_eq!(read(&mut space, 0), [0xb3, 0x15, 0x19, 0x10]);
        assert_eq!(read(&mut space, 8), [0x00, 0x00, 0x00, 0x02]);
        assert_eq!(read(&mut space, 0x0e), [0x00]);
        assert_eq!(read(&mut space, 0x06), [0x10, 0x00]);
    }

    #[test]
    fn bars_report_their_size() {
        let mut space = pf();
        for at in [0x10, 0x14, 0x18, 0x1c] {
            space.write(at, &[0xff; 4]);
        }
        assert_eq!(read(&mut space, 0x10), 0xfe00_000c_u32.to_le_bytes());
        assert_eq!(read(&mut space, 0x14), [0xff; 4]);
        assert_eq!(read(&mut space, 0x18), 0xffff_e000_u32.to_le_bytes());
        assert_eq!(read(&mut space, 0x1c), [0; 4]);
    }

    #[test]
    fn only_a_physical_function_has_the_gateway() {
        assert_eq!(capabilities(&mut pf()), [0x01, 0x10, 0x11, 0x09]);
        let mut vf = ConfigSpace::new(PciFunction { device: 0x101a, is_vf: true });
        assert_eq!(capabilities(&mut vf), [0x01, 0x10, 0x11]);
    }

    #[test]
    fn msix_points_into_bar_2() {
        let mut space = pf();
        assert_eq!(read(&mut space, 0x9e), 63u16.to_le_bytes());
        assert_eq!(read(&mut space, 0xa0), 0x0000_0002_u32.to_le_bytes());
        assert_eq!(read(&mut space, 0xa4), 0x0000_1002_u32.to_le_bytes());
    }

    #[test]
    fn identity_is_read_only_and_bus_mastering_is_not() {
        let mut space = pf();
        assert_eq!(space.write(0, &[0; 4]), ConfigEffect::None);
        assert_eq!(read(&mut space, 0), [0xb3, 0x15, 0x19, 0x10]);
        assert!(!space.bus_master());
        space.write(4, &[0x06, 0x00]);
        assert!(space.bus_master());
        space.reset();
        assert!(!space.bus_master());
    }

    #[test]
    fn function_level_reset_reads_back_as_zero() {
        let mut space = pf();
        assert_eq!(space.write(0x68, &[0x10, 0x28]), ConfigEffect::None);
        assert_eq!(space.write(0x68, &[0x10, 0xa8]), ConfigEffect::FunctionLevelReset);
        assert_eq!(read(&mut space, 0x68), [0x10, 0x28]);
    }

    #[test]
    fn gateway_semaphore_is_taken_by_one_ticket() {
        let mut space = pf();
        assert_eq!(read(&mut space, 0xcc), [0; 4]);
        let ticket: [u8; 4] = read(&mut space, 0xc8);
        let other: [u8; 4] = read(&mut space, 0xc8);
        assert_ne!(ticket, other);
        space.write(0xcc, &ticket);
        space.write(0xcc, &other);
        assert_eq!(read(&mut space, 0xcc), ticket);
        space.write(0xcc, &[0; 4]);
        assert_eq!(read(&mut space, 0xcc), [0; 4]);
    }

    #[test]
    fn accesses_past_the_end_are_harmless() {
        let mut space = pf();
        assert_eq!(read(&mut space, 4094), [0, 0, 0xff, 0xff]);
        assert_eq!(read(&mut space, 4096), [0xff; 4]);
        assert_eq!(read(&mut space, u64::MAX), [0xff; 4]);
        assert_eq!(space.write(4094, &[0xff; 4]), ConfigEffect::None);
        assert_eq!(space.write(u64::MAX, &[0xff; 4]), ConfigEffect::None);
    }
}
