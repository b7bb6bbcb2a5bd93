//! Entries of submission queues, opcodes, and the status of completions.

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Opcodes of the admin queue. Source: reference 12.3.
pub(crate) mod admin {
    pub(crate) const DELETE_SQ: u8 = 0x00;
    pub(crate) const CREATE_SQ: u8 = 0x01;
    pub(crate) const DELETE_CQ: u8 = 0x04;
    pub(crate) const CREATE_CQ: u8 = 0x05;
    pub(crate) const IDENTIFY: u8 = 0x06;
    pub(crate) const ABORT: u8 = 0x08;
    pub(crate) const SET_FEATURES: u8 = 0x09;
}

/// Opcodes of I/O queues. Source: reference 12.5.
pub(crate) mod io {
    pub(crate) const FLUSH: u8 = 0x00;
    pub(crate) const WRITE: u8 = 0x01;
    pub(crate) const READ: u8 = 0x02;
    pub(crate) const WRITE_ZEROES: u8 = 0x08;
    pub(crate) const DATASET: u8 = 0x09;
}

/// In dword 12 of a write: on the medium before it ends.
pub(crate) const FUA: u32 = 1 << 30;
/// In dword 12 of Write Zeroes: the blocks may be deallocated.
pub(crate) const MAY_DEALLOCATE: u32 = 1 << 25;
/// In dword 11 of Dataset Management: the ranges are deallocated.
pub(crate) const DEALLOCATE: u32 = 1 << 2;
/// In the flags of a command: its data are described by an SGL, in the command itself.
pub(crate) const BY_SGL: u8 = 1 << 6;

/// A command. Source: reference 12.2.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Sqe {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) cid: U16,
    pub(crate) nsid: U32,
    pub(crate) reserved: U64,
    pub(crate) metadata: U64,
    /// Two entries of a list of pages, or an SGL descriptor.
    pub(crate) data: [U64; 2],
    pub(crate) cdw10: U32,
    pub(crate) cdw11: U32,
    pub(crate) cdw12: U32,
    pub(crate) cdw13: U32,
    pub(crate) cdw14: U32,
    pub(crate) cdw15: U32,
}

impl Sqe {
    pub(crate) fn new(opcode: u8) -> Self {
        Self { opcode, ..Self::default() }
    }

    /// Its bytes.
    #[inline(always)]
    pub(crate) fn bytes(self) -> [u8; 64] {
        zerocopy::transmute!(self)
    }

    /// Blocks that it names: the first, and how many, of which there is at least one.
    #[inline(always)]
    pub(crate) fn blocks(mut self, lba: u64, count: u32, flags: u32) -> Self {
        let [a, b, c, d, e, f, g, h] = lba.to_le_bytes();
        self.cdw10 = U32::from_bytes([a, b, c, d]);
        self.cdw11 = U32::from_bytes([e, f, g, h]);
        self.cdw12 = U32::new(flags | (count.wrapping_sub(1) & 0xffff));
        self
    }
}

/// How a command of the drive ended, when that was not well.
///
/// Code in bits 7:0, type in 10:8, "do not retry" in 14. Source: reference 12.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

impl Status {
    /// No such command.
    pub const INVALID_OPCODE: Self = Self(0x01);
    /// No such form of the command.
    pub const INVALID_FIELD: Self = Self(0x02);
    /// More blocks or ranges than the drive takes in one command of this kind.
    pub const SIZE_LIMIT: Self = Self(0x183);
    /// Blocks beyond the end of the namespace.
    pub const LBA_RANGE: Self = Self(0x80);
    /// There is no room behind the namespace.
    pub const CAPACITY: Self = Self(0x81);
    /// The namespace cannot be written to.
    pub const WRITE_PROTECTED: Self = Self(0x20);
    /// The drive broke off for something of its own: the same command may do at another try.
    pub const INTERRUPTED: Self = Self(0x21);
    /// The namespace cannot be reached now.
    pub const NOT_READY: Self = Self(0x82);
    /// Another host's reservation is in the way.
    pub const RESERVATION_CONFLICT: Self = Self(0x83);
    /// Blocks that can be read alone.
    pub const READ_ONLY_RANGE: Self = Self(0x182);
    /// "Do not retry": trying again brings the same.
    const DNR: u16 = 1 << 14;
    /// The type of errors of the medium and of data.
    pub const MEDIUM: u8 = 2;

    /// The type: 0 generic, 1 of the command, 2 of the medium, 3 of the path.
    #[must_use]
    pub const fn kind(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }

    /// The code with its type, without the bits that say what the host should do.
    #[must_use]
    pub const fn code(self) -> Self {
        Self(self.0 & 0x7ff)
    }

    /// Whether the drive says that trying again brings the same.
    #[must_use]
    pub const fn is_final(self) -> bool {
        self.0 & Self::DNR != 0
    }

    fn name(self) -> &'static str {
        match self.code().0 {
            0x000 => "success",
            0x001 => "invalid opcode",
            0x002 => "invalid field",
            0x004 => "data transfer error",
            0x006 => "internal error",
            0x007 => "aborted on request",
            0x008 => "aborted, its queue was deleted",
            0x00b => "invalid namespace or format",
            0x013 => "invalid PRP offset",
            0x020 => "namespace is write-protected",
            0x021 => "interrupted",
            0x080 => "block out of range",
            0x081 => "capacity exceeded",
            0x082 => "namespace not ready",
            0x083 => "reservation conflict",
            0x100 => "invalid completion queue",
            0x101 => "invalid queue number",
            0x102 => "invalid queue size",
            0x182 => "write to a read-only range",
            0x183 => "command size limit exceeded",
            0x280 => "write fault",
            0x281 => "unrecovered read error",
            0x286 => "access denied",
            0x287 => "deallocated or unwritten block",
            _ => "a status without a name here",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (type {}, code {:#04x})", self.name(), self.kind(), self.0 & 0xff)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out by hand from the table of reference 12.2.
    #[test]
    fn a_command_has_its_fields_where_the_drive_looks() {
        let mut sqe = Sqe::new(io::WRITE).blocks(0x0102_0304_0506_0708, 0x10000, FUA);
        sqe.flags = BY_SGL;
        sqe.cid = U16::new(0x1122);
        sqe.nsid = U32::new(0x3344_5566);
        sqe.data = [U64::new(0x99), U64::new(0xaa)];
        let mut expected = [0; 64];
        expected[..8].copy_from_slice(&[1, 0x40, 0x22, 0x11, 0x66, 0x55, 0x44, 0x33]);
        expected[24] = 0x99;
        expected[32] = 0xaa;
        expected[40..48].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
        expected[48..52].copy_from_slice(&[0xff, 0xff, 0, 0x40]);
        assert_eq!(sqe.bytes(), expected);
    }

    #[test]
    fn a_status_has_a_type_and_a_name() {
        let status = Status(0x4281);
        assert_eq!((status.kind(), status.code()), (Status::MEDIUM, Status(0x281)));
        assert!(status.is_final() && !status.code().is_final());
        assert_eq!(status.to_string(), "unrecovered read error (type 2, code 0x81)");
        assert!(Status(0x3ff).to_string().contains("without a name"));
    }
}
