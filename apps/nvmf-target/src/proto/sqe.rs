//! Commands and completions: [`Sqe`], [`Cqe`], and the numbers of commands.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::sgl::Sgl;
use super::status::Status;

/// Bytes of a command without its data.
pub const SQE_BYTES: usize = 64;
/// Bytes of a completion.
pub const CQE_BYTES: usize = 16;

/// Commands of the admin queue. Source: reference 10.2.3.
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Fabrics commands, on I/O queues as well.
    pub const FABRICS: u8 = 0x7f;
}

/// Kinds of fabrics commands. Source: reference 10.1.5.
pub mod fabrics {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTH_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTH_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}

/// Commands of I/O queues. Source: reference 10.2.10.
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DSM: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
    /// Reservation Register.
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Reservation Report.
    pub const RESERVATION_REPORT: u8 = 0x0e;
    /// Reservation Acquire.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Reservation Release.
    pub const RESERVATION_RELEASE: u8 = 0x15;

    /// Whether a command is one of reservations.
    #[inline]
    #[must_use]
    pub const fn is_reservation(opcode: u8) -> bool {
        matches!(
            opcode,
            RESERVATION_REGISTER | RESERVATION_REPORT | RESERVATION_ACQUIRE | RESERVATION_RELEASE
        )
    }
}

/// A command.
///
/// # Source
///
/// NVM Express base, "Submission Queue Entry"; reference 10.1.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Sqe {
    /// Number of the command.
    pub opcode: u8,
    /// Fused operation in bits 1:0, kind of data pointer in 7:6.
    pub flags: u8,
    /// Name of the command, which comes back in its completion.
    pub cid: U16,
    /// Namespace; of fabrics commands the kind, in the lowest byte.
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// Address of metadata, which nobody has here.
    pub mptr: U64,
    /// The SGL descriptor.
    pub sgl: [u8; 16],
    /// Command dword 10.
    pub cdw10: U32,
    /// Command dword 11.
    pub cdw11: U32,
    /// Command dword 12.
    pub cdw12: U32,
    /// Command dword 13.
    pub cdw13: U32,
    /// Command dword 14.
    pub cdw14: U32,
    /// Command dword 15.
    pub cdw15: U32,
}

/// What a command is of a pair that is carried out as one. Source: reference 10.1.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fuse {
    /// It is none.
    No,
    /// The first.
    First,
    /// The second.
    Second,
    /// A value that is reserved.
    Unknown,
}

impl Sqe {
    /// The bits of `flags` that say what it is of a pair.
    const FUSE: u8 = 0b11;

    /// What it is of a pair.
    #[must_use]
    pub fn fuse(&self) -> Fuse {
        match self.flags & Self::FUSE {
            0 => Fuse::No,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Unknown,
        }
    }

    /// The command by itself.
    #[must_use]
    pub fn unfused(self) -> Self {
        Self { flags: self.flags & !Self::FUSE, ..self }
    }

    /// The command as one of a pair.
    #[must_use]
    pub fn fused(self, fuse: Fuse) -> Self {
        Self { flags: self.flags & !Self::FUSE | fuse as u8, ..self }
    }

    /// `flags` of a command with an SGL and no fused operation: all that is allowed here.
    pub const SGL: u8 = 0x40;

    /// A command with an SGL.
    #[must_use]
    pub fn new(opcode: u8, cid: u16, sgl: Sgl) -> Self {
        Self { opcode, flags: Self::SGL, cid: cid.into(), sgl: sgl.encode(), ..Self::default() }
    }

    /// A fabrics command.
    #[must_use]
    pub fn fabrics(kind: u8, cid: u16, sgl: Sgl) -> Self {
        Self { nsid: u32::from(kind).into(), ..Self::new(admin::FABRICS, cid, sgl) }
    }

    /// A command for blocks: the first, and how many.
    #[must_use]
    pub fn blocks(opcode: u8, cid: u16, nsid: u32, (slba, count): (u64, u32), sgl: Sgl) -> Self {
        Self {
            nsid: nsid.into(),
            cdw10: (slba as u32).into(),
            cdw11: ((slba >> 32) as u32).into(),
            cdw12: (count.wrapping_sub(1) & 0xffff).into(),
            ..Self::new(opcode, cid, sgl)
        }
    }

    /// Kind of a fabrics command.
    #[must_use]
    pub fn fctype(&self) -> u8 {
        self.nsid.get() as u8
    }

    /// First block.
    #[inline]
    #[must_use]
    pub fn slba(&self) -> u64 {
        u64::from(self.cdw11.get()) << 32 | u64::from(self.cdw10.get())
    }

    /// Blocks, 1 to 65536: the field has one less.
    #[inline]
    #[must_use]
    pub fn block_count(&self) -> u32 {
        (self.cdw12.get() & 0xffff) + 1
    }

    /// Whether a write shall be on the medium before it ends.
    #[inline]
    #[must_use]
    pub fn fua(&self) -> bool {
        self.cdw12.get() & 1 << 30 != 0
    }

    /// The kind of the data pointer must be an SGL and nothing may be fused.
    ///
    /// # Errors
    ///
    /// [`Status::INVALID_FIELD`].
    #[inline]
    pub fn check_flags(&self) -> Result<(), Status> {
        // The bits between are reserved, and hosts leave them 0.
        if self.flags & 0xc3 == Self::SGL { Ok(()) } else { Err(Status::INVALID_FIELD.dnr()) }
    }
}

/// A completion.
///
/// # Source
///
/// NVM Express base, "Completion Queue Entry"; reference 10.1.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Cqe {
    /// What the command brings.
    pub result: U64,
    /// The submission queue's head: how far the host may go on.
    pub sqhd: U16,
    /// The submission queue, 0 on fabrics.
    pub sqid: U16,
    /// Name of the command.
    pub cid: U16,
    /// Phase 0 and the [`Status`].
    pub status: U16,
}

impl Cqe {
    /// How the command ended.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_wire(self.status.get())
    }
}

#[cfg(test)]
mod tests {
    use super::super::sgl::Keyed;
    use super::*;

    /// A Read of eight blocks at 0x1_0000_0002 of namespace 1, as the tables say by hand.
    #[test]
    fn a_read_has_the_bytes_of_the_tables() {
        let keyed = Keyed { addr: 0x1122_3344_5566_7788, len: 4096, rkey: 0xa1b2_c3d4, inv: true };
        let sqe = Sqe::blocks(io::READ, 0x1005, 1, (0x1_0000_0002, 8), Sgl::Keyed(keyed));
        let mut expected = [0; SQE_BYTES];
        expected[..8].copy_from_slice(&[0x02, 0x40, 0x05, 0x10, 1, 0, 0, 0]);
        expected[24..32].copy_from_slice(&[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        expected[32..40].copy_from_slice(&[0x00, 0x10, 0x00, 0xd4, 0xc3, 0xb2, 0xa1, 0x4f]);
        expected[40..50].copy_from_slice(&[2, 0, 0, 0, 1, 0, 0, 0, 7, 0]);
        assert_eq!(sqe.as_bytes(), expected);
        let read = Sqe::read_from_bytes(&expected).unwrap();
        assert_eq!((read.slba(), read.block_count()), (0x1_0000_0002, 8));
        assert!(!read.fua() && read.check_flags().is_ok());
    }

    #[test]
    fn a_completion_has_the_bytes_of_the_table() {
        let status = Status::LBA_RANGE.dnr().on_wire().into();
        let cqe = Cqe {
            result: 5.into(),
            sqhd: 0x102.into(),
            cid: 0x1005.into(),
            status,
            ..Cqe::default()
        };
        let expected = [5, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x01, 0, 0, 0x05, 0x10, 0x00, 0x81];
        assert_eq!(cqe.as_bytes(), expected);
        assert_eq!(cqe.status(), Status::LBA_RANGE.dnr());
    }

    #[test]
    fn fused_commands_and_prps_are_refused() {
        for flags in [0x00, 0x41, 0x42, 0x80, 0xc0] {
            let sqe = Sqe { flags, ..Sqe::default() };
            assert_eq!(sqe.check_flags(), Err(Status::INVALID_FIELD.dnr()), "{flags:#x}");
        }
    }
}
