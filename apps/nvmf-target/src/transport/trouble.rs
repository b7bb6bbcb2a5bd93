//! [`Trouble`]: why a store did not do what it should, and what the host is told.

use std::io;

use ferrocx::AccessError;
use ferrocx_nvme::{Failure, Refused, Status as DriveStatus};

use super::NO_DATA;
use crate::controller::io::Kind;
use crate::proto::status::Status;

/// What the system says where a file system lacks a call. Source: `errno.h`.
const NOT_SUPPORTED: i32 = 95;
/// What a block device says of zeros and room that begin or end inside a block of its own.
const INVALID: i32 = 22;
/// What it says where there is no room left.
const NO_ROOM: i32 = 28;

/// Why a request did not do what it should.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The system says so, of a file.
    System(io::Error),
    /// A drive did not take it.
    Refused(Refused),
    /// A drive took it, and it failed.
    Failed(Failure),
}

/// The status of a command whose data cannot be reached.
pub(super) fn medium_error(kind: Kind) -> Status {
    match kind {
        Kind::Read | Kind::Compare | Kind::Verify => Status::READ_ERROR,
        _ => Status::WRITE_FAULT,
    }
}

impl Trouble {
    /// Whether the file system or the drive has no such call, or none for these bytes: of calls
    /// for zeros and room.
    pub(super) fn is_lacking(&self) -> bool {
        match self {
            Self::System(error) => {
                matches!(error.raw_os_error(), Some(NOT_SUPPORTED | INVALID))
            }
            Self::Refused(refused) => *refused == Refused::Unsupported,
            // Drives have limits of their own for these commands.
            Self::Failed(Failure::Status(status)) => matches!(
                status.code(),
                DriveStatus::INVALID_OPCODE | DriveStatus::INVALID_FIELD | DriveStatus::SIZE_LIMIT
            ),
            Self::Failed(_) => false,
        }
    }

    /// Whether there is room as soon as another request ends.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Refused(Refused::Full))
    }

    /// Whether it is a matter of time: the command waits, and is begun again.
    pub(super) fn will_pass(&self) -> bool {
        let is_reset =
            matches!(self, Self::Refused(Refused::NotReady) | Self::Failed(Failure::Reset));
        is_reset || self.is_not_now()
    }

    /// Whether a drive that is there says that it cannot now: for how long, it does not say.
    pub(super) fn is_not_now(&self) -> bool {
        let Self::Failed(Failure::Status(status)) = self else { return false };
        let is_short = matches!(status.code(), DriveStatus::NOT_READY | DriveStatus::INTERRUPTED);
        is_short && !status.is_final()
    }

    /// The status for the host: errors of the medium, but for what says something better. What may
    /// work at another try, the host tries again; where the drive says that it is of no use, the
    /// host is told so.
    pub(super) fn status(&self, kind: Kind) -> Status {
        let medium = medium_error(kind);
        match self {
            Self::System(error) if error.raw_os_error() == Some(NO_ROOM) => Status::CAPACITY,
            Self::System(_) => medium,
            Self::Refused(Refused::NotReady | Refused::Gone) => medium,
            // For a full one a command waits. A checked one is inside the namespace, and its
            // buffer is the drive's.
            Self::Refused(_) => Status::INTERNAL,
            Self::Failed(Failure::Status(said)) => {
                let status = of_drive(*said);
                if said.is_final() { status.dnr() } else { status }
            }
            Self::Failed(_) => medium,
        }
    }
}

/// What a host is told of what a drive says, but for "do not retry".
fn of_drive(said: DriveStatus) -> Status {
    match said.code() {
        code if said.kind() == DriveStatus::MEDIUM => Status(code.0),
        DriveStatus::CAPACITY => Status::CAPACITY,
        DriveStatus::WRITE_PROTECTED => Status::WRITE_PROTECTED,
        DriveStatus::LBA_RANGE => Status::LBA_RANGE,
        DriveStatus::INTERRUPTED => Status::INTERRUPTED,
        DriveStatus::NOT_READY => Status::NOT_READY,
        DriveStatus::RESERVATION_CONFLICT => Status::RESERVATION_CONFLICT,
        // Trying again brings the same, whether the drive says so or not.
        DriveStatus::READ_ONLY_RANGE => Status::WRITE_FAULT.dnr(),
        _ => Status::INTERNAL,
    }
}

/// The status of a Compare.
pub(super) fn same(is_same: Result<bool, AccessError>) -> Result<(), Status> {
    match is_same {
        Ok(true) => Ok(()),
        Ok(false) => Err(Status::COMPARE_FAILURE.dnr()),
        Err(_) => Err(NO_DATA),
    }
}
