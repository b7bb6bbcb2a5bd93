//! Registers through mapped pages of the device's file, and through calls where a page is not
//! mappable; configuration space through calls only.
#![expect(unsafe_code, reason = "volatile accesses to mapped registers")]

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};

use crate::{
    Bar, BarMemory, BlueFlame, BusError, Doorbell, DoorbellKind, PciIdentity, barrier, to_usize,
};

/// The device's file, kept open by whoever holds this.
pub(super) type DeviceFile = Arc<dyn AsFd + Send + Sync>;

/// A mapped part of the BAR.
struct Area {
    start: u64,
    len_bytes: u64,
    /// Dropped before `_file`: the file outlives its mapping.
    map: MmapRaw,
    _file: DeviceFile,
}

/// A BAR as VFIO offers it.
pub(super) struct MappedBar {
    areas: Vec<Arc<Area>>,
    file: DeviceFile,
    name: String,
    file_offset: u64,
    len_bytes: u64,
}

impl MappedBar {
    /// Initialization segment and health counter end here; the UAR pages follow.
    const MIN_BYTES: u64 = 0x2000;

    /// Maps `areas` (offset and length in the BAR) of the region at `file_offset`.
    pub(super) fn new(
        file: DeviceFile,
        name: String,
        file_offset: u64,
        len_bytes: u64,
        areas: &[(u64, u64)],
    ) -> Result<Self, BusError> {
        if len_bytes < Self::MIN_BYTES {
            let needed_bytes = Self::MIN_BYTES;
            return Err(BusError::BarTooSmall { name, index: 0, len_bytes, needed_bytes });
        }
        let mut mapped = Vec::with_capacity(areas.len());
        for &(start, area_bytes) in areas.iter().filter(|area| area.1 != 0) {
            let inside = start.checked_add(area_bytes).is_some_and(|end| end <= len_bytes);
            if !inside || !start.is_multiple_of(4096) {
                let offset = start;
                return Err(BusError::BarNotMappable { name, index: 0, offset });
            }
            let map = MmapOptions::new()
                .offset(file_offset + start)
                .len(to_usize(area_bytes))
                .map_raw(&file.as_fd())
                .map_err(|error| BusError::os(format!("mapping BAR 0 of device {name}"), error))?;
            let file = Arc::clone(&file);
            mapped.push(Arc::new(Area { start, len_bytes: area_bytes, map, _file: file }));
        }
        Ok(Self { areas: mapped, file, name, file_offset, len_bytes })
    }

    /// The mapped address of a checked register, with what keeps it mapped.
    fn mapped(&self, offset: u64, len_bytes: u64) -> Option<(NonNull<u8>, &Arc<Area>)> {
        let area = self.areas.iter().find(|area| {
            offset >= area.start && offset + len_bytes <= area.start + area.len_bytes
        })?;
        let base = NonNull::new(area.map.as_mut_ptr())?;
        // SAFETY: `offset - start + len_bytes` is at most the length of the mapping.
        Some((unsafe { base.add(to_usize(offset - area.start)) }, area))
    }

    /// Panics on an offset that [`Bar::check`] refuses.
    #[track_caller]
    fn assert_fits(&self, offset: u64, len_bytes: u64) {
        if let Err(error) = self.check(offset, len_bytes) {
            panic!("{error}");
        }
    }

    /// Writes a register that is not mapped.
    fn write_by_call(&self, offset: u64, bytes: &[u8]) {
        let result = rustix::io::pwrite(self.file.as_fd(), bytes, self.file_offset + offset);
        if result != Ok(bytes.len()) {
            // A write to a device that is gone has no effect; the next read tells.
            tracing::warn!(name = self.name, offset, ?result, "register write failed");
        }
    }
}

impl Bar for MappedBar {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_be32(&self, offset: u64) -> u32 {
        self.assert_fits(offset, 4);
        let value = if let Some((register, _)) = self.mapped(offset, 4) {
            // SAFETY: four mapped bytes (`mapped`), aligned: areas start on pages, and the offset
            // was checked.
            unsafe { register.cast::<u32>().read_volatile() }
        } else {
            let mut bytes = [0xff; 4];
            let at = self.file_offset + offset;
            match rustix::io::pread(self.file.as_fd(), &mut bytes, at) {
                Ok(4) => u32::from_ne_bytes(bytes),
                // What a bus gives for a device that does not answer.
                _ => u32::MAX,
            }
        };
        barrier::io_rmb();
        u32::from_be(value)
    }

    fn write_be32(&self, offset: u64, value: u32) {
        self.assert_fits(offset, 4);
        barrier::io_wmb();
        match self.mapped(offset, 4) {
            // SAFETY: as in `read_be32`.
            Some((register, _)) => unsafe {
                register.cast::<u32>().write_volatile(value.to_be());
            },
            None => self.write_by_call(offset, &value.to_be_bytes()),
        }
    }

    fn write_be64(&self, offset: u64, value: u64) {
        self.assert_fits(offset, 8);
        barrier::io_wmb();
        match self.mapped(offset, 8) {
            // SAFETY: as in `read_be32`, with eight bytes.
            Some((register, _)) => unsafe {
                register.cast::<u64>().write_volatile(value.to_be());
            },
            None => self.write_by_call(offset, &value.to_be_bytes()),
        }
    }

    fn doorbell(&self, offset: u64) -> Result<Doorbell, BusError> {
        self.check_doorbell(offset)?;
        let Some((register, area)) = self.mapped(offset, 8) else {
            return Err(BusError::BarNotMappable { name: self.name.clone(), index: 0, offset });
        };
        let keep = Arc::clone(area) as Arc<dyn Any + Send + Sync>;
        // SAFETY: eight mapped, aligned bytes (`mapped`, `check_doorbell`); `keep` holds the
        // mapping; nobody else in this process reads a doorbell.
        Ok(unsafe { Doorbell::new(register.cast(), keep) })
    }

    /// VFIO maps registers uncached. A second mapping that combines stores, which sysfs may offer,
    /// would give one page two memory types, which processors do not allow: so MOVDIR64B, or none.
    fn blueflame(&self, offset: u64, buffer_bytes: u64) -> Result<Option<BlueFlame>, BusError> {
        self.check_blueflame(offset, buffer_bytes)?;
        let Some((register, area)) = self.mapped(offset, 2 * buffer_bytes) else {
            return Err(BusError::BarNotMappable { name: self.name.clone(), index: 0, offset });
        };
        let keep = Arc::clone(area) as Arc<dyn Any + Send + Sync>;
        let (bytes, kind) = (to_usize(buffer_bytes), DoorbellKind::uncached());
        // SAFETY: both buffers are mapped (`mapped`), and aligned, as areas start on pages; `keep`
        // holds the mapping; the processor was asked.
        Ok(unsafe { BlueFlame::new(register, bytes, kind, keep) })
    }

    fn memory(&self, offset: u64, len_bytes: u64) -> Result<BarMemory, BusError> {
        self.check_memory(offset, len_bytes)?;
        let Some((start, area)) = self.mapped(offset, len_bytes) else {
            return Err(BusError::BarNotMappable { name: self.name.clone(), index: 0, offset });
        };
        let keep = Arc::clone(area) as Arc<dyn Any + Send + Sync>;
        // SAFETY: the whole range is mapped (`mapped`), in whole, aligned words (`check_memory`;
        // areas start on pages); `keep` holds the mapping. It is the device's, outside of all that
        // Rust allocates: if the device lies, and registers are there, the bus sees words in some
        // order, and nothing else.
        Ok(unsafe { BarMemory::new(start, to_usize(len_bytes), keep) })
    }
}

impl fmt::Debug for MappedBar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let areas: Vec<_> = self.areas.iter().map(|area| (area.start, area.len_bytes)).collect();
        f.debug_struct("MappedBar")
            .field("len_bytes", &self.len_bytes)
            .field("mapped", &areas)
            .finish_non_exhaustive()
    }
}

/// The configuration space. Little-endian, like all of PCI's own registers.
pub(super) struct ConfigSpace {
    file: DeviceFile,
    file_offset: u64,
}

/// The command register. Source: PCI Local Bus Specification 3.0, §6.2.2.
const COMMAND: u64 = 0x04;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;

impl ConfigSpace {
    pub(super) fn new(file: DeviceFile, file_offset: u64) -> Self {
        Self { file, file_offset }
    }

    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], BusError> {
        let mut bytes = [0xff; N];
        match rustix::io::pread(self.file.as_fd(), &mut bytes, self.file_offset + offset) {
            Ok(len) if len == N => Ok(bytes),
            Ok(_) => Err(Self::error(offset, io::ErrorKind::UnexpectedEof.into())),
            Err(errno) => Err(Self::error(offset, errno.into())),
        }
    }

    fn error(offset: u64, error: io::Error) -> BusError {
        BusError::os(format!("configuration space at {offset:#x}"), error)
    }

    fn read_u32(&self, offset: u64) -> Result<u32, BusError> {
        self.read(offset).map(u32::from_le_bytes)
    }

    /// Compares the device's own ids with those in sysfs.
    pub(super) fn check(&self, identity: &PciIdentity) -> Result<(), BusError> {
        let ids = self.read_u32(0)?;
        if ids == u32::MAX {
            return Err(BusError::DeviceGone { name: identity.name.clone() });
        }
        let expected = u32::from(identity.device) << 16 | u32::from(identity.vendor);
        if ids != expected {
            let found = format!("expected PCI ids {expected:#010x}, found {ids:#010x}");
            let error = io::Error::new(io::ErrorKind::InvalidData, found);
            let what = format!("configuration space of device {}", identity.name);
            return Err(BusError::os(what, error));
        }
        Ok(())
    }

    /// Changes bits of the command register and checks that they took.
    fn set_command(&self, set: u16, clear: u16) -> Result<(), BusError> {
        let old = self.read(COMMAND).map(u16::from_le_bytes)?;
        let new = old & !clear | set;
        let at = self.file_offset + COMMAND;
        match rustix::io::pwrite(self.file.as_fd(), &new.to_le_bytes(), at) {
            Ok(2) => {}
            Ok(_) => return Err(Self::error(COMMAND, io::ErrorKind::WriteZero.into())),
            Err(errno) => return Err(Self::error(COMMAND, errno.into())),
        }
        let read_back = self.read(COMMAND).map(u16::from_le_bytes)?;
        if read_back & (set | clear) != set {
            let found = format!("command register stays {read_back:#06x}, wanted {new:#06x}");
            return Err(Self::error(COMMAND, io::Error::other(found)));
        }
        Ok(())
    }

    /// Lets the device answer at its BARs.
    pub(super) fn enable_memory(&self) -> Result<(), BusError> {
        self.set_command(COMMAND_MEMORY, 0)
    }

    /// Lets the device read and write memory, and answer at its BARs.
    pub(super) fn enable_bus_master(&self) -> Result<(), BusError> {
        self.set_command(COMMAND_MEMORY | COMMAND_BUS_MASTER, 0)
    }

    /// Stops the device's own accesses to memory.
    pub(super) fn disable_bus_master(&self) -> Result<(), BusError> {
        self.set_command(0, COMMAND_BUS_MASTER)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use ferrocx_mempool::AccessError;

    use super::*;

    /// A file in the place of a device, with its region at 64 KiB.
    fn device(len_bytes: u64) -> (Arc<File>, DeviceFile) {
        let file = Arc::new(tempfile::tempfile().expect("a temporary file"));
        file.set_len(0x1_0000 + len_bytes).expect("grown");
        (Arc::clone(&file), file)
    }

    fn bar(areas: &[(u64, u64)]) -> (Arc<File>, MappedBar) {
        let (file, device) = device(0x1_0000);
        let bar = MappedBar::new(device, "0000:3b:00.0".into(), 0x1_0000, 0x1_0000, areas);
        (file, bar.expect("mapped"))
    }

    #[test]
    fn mapped_and_unmapped_registers_have_the_same_bytes() {
        // The page at 0x2000, where a device may keep its MSI-X table, is not mapped.
        let (file, bar) = bar(&[(0, 0x2000), (0x3000, 0xd000)]);
        for offset in [0x10, 0x1ffc, 0x2000, 0x2ffc, 0x3000, 0xfffc] {
            bar.write_be32(offset, 0x0102_0304);
            let mut bytes = [0; 4];
            file.read_exact_at(&mut bytes, 0x1_0000 + offset).expect("in the file");
            assert_eq!(bytes, [1, 2, 3, 4], "{offset:#x}");
            file.write_all_at(&[9, 8, 7, 6], 0x1_0000 + offset).expect("in the file");
            assert_eq!(bar.read_be32(offset), 0x0908_0706, "{offset:#x}");
        }
        for offset in [0x2008, 0x3020] {
            bar.write_be64(offset, 0x0102_0304_0506_0708);
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, 0x1_0000 + offset).expect("in the file");
            assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8], "{offset:#x}");
        }
    }

    #[test]
    fn doorbells_need_a_mapped_page_and_outlive_the_bar() {
        let (file, bar) = bar(&[(0, 0x2000), (0x4000, 0xc000)]);
        let doorbell = bar.doorbell(0x4800).expect("mapped");
        assert!(matches!(
            bar.doorbell(0x3800),
            Err(BusError::BarNotMappable { offset: 0x3800, .. })
        ));
        assert!(matches!(bar.doorbell(0x4020), Err(BusError::NotADoorbell { .. })));
        drop(bar);
        doorbell.ring(u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]));
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0x1_4800).expect("in the file");
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn memory_is_copied_in_whole_words_and_outlives_the_bar() {
        let (file, bar) = bar(&[(0, 0x2000), (0x4000, 0xc000)]);
        let memory = bar.memory(0x4040, 0x40).expect("mapped");
        assert!(matches!(bar.memory(0x3040, 0x40), Err(BusError::BarNotMappable { .. })));
        for (offset, len_bytes) in [(0x2000, 4), (0x4002, 4), (0x4000, 6), (0x4000, 0)] {
            let refused = bar.memory(offset, len_bytes);
            assert!(matches!(refused, Err(BusError::NotBarMemory { .. })), "{offset:#x}");
        }
        assert!(matches!(bar.memory(0xfffc, 8), Err(BusError::NotBarMemory { .. })));
        drop(bar);
        memory.copy_in(4, &[1, 2, 3, 4, 5, 6, 7, 8]).expect("whole words");
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0x1_4044).expect("in the file");
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
        let mut word = [0; 4];
        memory.copy_out(8, &mut word).expect("a whole word");
        assert_eq!(word, [5, 6, 7, 8]);
        for (offset, len, error) in [
            (2, 4, AccessError::Misaligned),
            (4, 2, AccessError::Misaligned),
            (0x40, 4, AccessError::OutOfRange),
            (usize::MAX - 3, 8, AccessError::OutOfRange),
        ] {
            assert_eq!(memory.copy_in(offset, &vec![0; len]), Err(error));
            assert_eq!(memory.copy_out(offset, &mut vec![0; len]), Err(error));
        }
        assert_eq!((memory.copy_in(0x40, &[]), memory.len_bytes()), (Ok(()), 0x40));
    }

    #[test]
    fn a_device_that_does_not_answer_reads_as_ones() {
        let (file, bar) = bar(&[]);
        file.set_len(0x1_0000).expect("shrunk");
        assert_eq!(bar.read_be32(0), u32::MAX);
    }

    #[test]
    fn areas_outside_the_bar_are_refused() {
        for area in [(0, 0x1_1000), (0x1_0000, 0x1000), (0x800, 0x1000), (u64::MAX, 2)] {
            let (_, device) = device(0x1_0000);
            let refused = MappedBar::new(device, "x".into(), 0x1_0000, 0x1_0000, &[area]);
            assert!(matches!(refused, Err(BusError::BarNotMappable { .. })), "{area:x?}");
        }
    }

    #[test]
    fn a_bar_without_room_for_the_registers_is_refused() {
        for len_bytes in [0, 0x1000, 0x1fff] {
            let (_, device) = device(0x1_0000);
            let refused = MappedBar::new(device, "0000:3b:00.0".into(), 0x1_0000, len_bytes, &[]);
            let said = refused.unwrap_err().to_string();
            let size = format!("BAR 0 of 0000:3b:00.0 has {len_bytes:#x} bytes");
            assert!(said.starts_with(&size), "{said}");
        }
        let (_, device) = device(0x1_0000);
        assert!(MappedBar::new(device, "x".into(), 0x1_0000, 0x2000, &[]).is_ok());
    }

    #[test]
    #[should_panic(expected = "does not fit the BAR")]
    fn a_misaligned_register_panics() {
        let (_file, bar) = bar(&[(0, 0x1_0000)]);
        bar.write_be64(0x3044, 1);
    }

    #[test]
    fn the_bus_master_bit_is_set_checked_and_cleared() {
        let (file, device) = device(256);
        file.write_all_at(&[0xb3, 0x15, 0x17, 0x10, 0x40, 0x01], 0x1_0000).expect("written");
        let config = ConfigSpace::new(device, 0x1_0000);
        assert_eq!(config.read_u32(0).expect("readable"), 0x1017_15b3);
        let command = || {
            let mut bytes = [0; 2];
            file.read_exact_at(&mut bytes, 0x1_0004).expect("in the file");
            bytes
        };
        config.enable_bus_master().expect("writable");
        assert_eq!(command(), [0x46, 0x01]);
        config.disable_bus_master().expect("writable");
        assert_eq!(command(), [0x42, 0x01]);
        assert!(config.read_u32(0x1_0000).is_err());
    }
}
