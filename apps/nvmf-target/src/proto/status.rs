//! [`Status`]: how a command ended.

use std::fmt;

/// Status of a completion: code in bits 7:0, type in 10:8, "more" in 13, "do not retry" in 14.
///
/// # Source
///
/// NVM Express base, "Status Field Definition"; reference 10.2.10 and 10.1.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

impl Status {
    const DNR: u16 = 1 << 14;

    /// The command did what was asked.
    pub const SUCCESS: Self = Self(0);
    /// No such command here.
    pub const INVALID_OPCODE: Self = Self(0x01);
    /// A field has a value that it cannot have.
    pub const INVALID_FIELD: Self = Self(0x02);
    /// Data did not get to where they should, or from there.
    pub const DATA_TRANSFER: Self = Self(0x04);
    /// The target failed.
    pub const INTERNAL: Self = Self(0x06);
    /// The command was taken back.
    pub const ABORTED: Self = Self(0x07);
    /// The other command of its pair has failed.
    pub const FAILED_FUSED: Self = Self(0x09);
    /// The other command of its pair is not there.
    pub const MISSING_FUSED: Self = Self(0x0a);
    /// No such namespace.
    pub const INVALID_NAMESPACE: Self = Self(0x0b);
    /// Not now: the controller is in another state.
    pub const SEQUENCE: Self = Self(0x0c);
    /// The descriptor of a list of descriptors is no such.
    pub const SGL_SEGMENT: Self = Self(0x0d);
    /// More descriptors than there can be.
    pub const SGL_COUNT: Self = Self(0x0e);
    /// The data's length is not the command's.
    pub const DATA_LENGTH: Self = Self(0x0f);
    /// A kind of SGL descriptor that is not known.
    pub const SGL_TYPE: Self = Self(0x11);
    /// In-capsule data lie outside the capsule.
    pub const SGL_OFFSET: Self = Self(0x16);
    /// A report that has no room for identifiers of 128 bits, which hosts have here.
    pub const HOST_ID_FORMAT: Self = Self(0x18);
    /// The keep-alive time is not one.
    pub const KEEP_ALIVE: Self = Self(0x1a);
    /// The target could not do it now; the host tries again.
    pub const INTERRUPTED: Self = Self(0x21);
    /// The namespace cannot be written to.
    pub const WRITE_PROTECTED: Self = Self(0x20);
    /// Blocks beyond the end of the namespace.
    pub const LBA_RANGE: Self = Self(0x80);
    /// There is no room behind the namespace.
    pub const CAPACITY: Self = Self(0x81);
    /// The namespace cannot be reached now.
    pub const NOT_READY: Self = Self(0x82);
    /// Another host's reservation is in the way, or the key is not the host's.
    pub const RESERVATION_CONFLICT: Self = Self(0x83);
    /// More Aborts than can be under way.
    pub const ABORT_LIMIT: Self = Self(0x103);
    /// More Asynchronous Event Requests than can wait.
    pub const AER_LIMIT: Self = Self(0x105);
    /// No such log page.
    pub const INVALID_LOG: Self = Self(0x109);
    /// The feature cannot be saved.
    pub const NOT_SAVEABLE: Self = Self(0x10d);
    /// The feature has one value alone.
    pub const NOT_CHANGEABLE: Self = Self(0x10e);
    /// Connect: a record format that is not known.
    pub const CONNECT_FORMAT: Self = Self(0x180);
    /// Connect: the controller cannot take it now.
    pub const CONNECT_BUSY: Self = Self(0x181);
    /// Connect: a parameter is wrong; the result says which.
    pub const CONNECT_PARAMETER: Self = Self(0x182);
    /// Connect: this host is not on the list.
    pub const CONNECT_HOST: Self = Self(0x184);
    /// Disconnect: not of this kind of queue.
    pub const QUEUE_TYPE: Self = Self(0x185);
    /// The queue's host has to authenticate itself first.
    pub const AUTH_REQUIRED: Self = Self(0x191);
    /// The back end could not write.
    pub const WRITE_FAULT: Self = Self(0x280);
    /// The back end could not read.
    pub const READ_ERROR: Self = Self(0x281);
    /// There is no way to the namespace by this port, and none later.
    pub const ANA_PERSISTENT_LOSS: Self = Self(0x301);
    /// There is no way to the namespace by this port now.
    pub const ANA_INACCESSIBLE: Self = Self(0x302);
    /// The port is on its way to another state.
    pub const ANA_TRANSITION: Self = Self(0x303);
    /// The data differ.
    pub const COMPARE_FAILURE: Self = Self(0x285);

    /// The status with "do not retry": trying again brings the same.
    #[must_use]
    pub const fn dnr(self) -> Self {
        Self(self.0 | Self::DNR)
    }

    /// The status without "do not retry".
    #[must_use]
    pub const fn code(self) -> Self {
        Self(self.0 & !Self::DNR)
    }

    /// Whether the medium is to blame.
    #[must_use]
    pub fn is_of_medium(self) -> bool {
        matches!(self.code(), Self::WRITE_FAULT | Self::READ_ERROR)
    }

    /// Whether the command did what was asked.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// The field of a completion, whose bit 0 is the phase, always 0 on fabrics.
    #[must_use]
    pub const fn on_wire(self) -> u16 {
        self.0 << 1
    }

    /// What a completion's field says.
    #[must_use]
    pub const fn from_wire(field: u16) -> Self {
        Self(field >> 1)
    }

    /// A name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.code() {
            Self::SUCCESS => "success",
            Self::INVALID_OPCODE => "invalid opcode",
            Self::INVALID_FIELD => "invalid field",
            Self::DATA_TRANSFER => "data transfer error",
            Self::INTERNAL => "internal error",
            Self::ABORTED => "aborted",
            Self::FAILED_FUSED => "aborted, the other fused command has failed",
            Self::MISSING_FUSED => "aborted, the other fused command is missing",
            Self::INVALID_NAMESPACE => "invalid namespace",
            Self::SEQUENCE => "command sequence error",
            Self::DATA_LENGTH => "invalid data length",
            Self::SGL_SEGMENT => "invalid SGL segment descriptor",
            Self::SGL_COUNT => "invalid number of SGL descriptors",
            Self::SGL_TYPE => "invalid SGL descriptor type",
            Self::SGL_OFFSET => "invalid SGL offset",
            Self::HOST_ID_FORMAT => "host identifier inconsistent format",
            Self::RESERVATION_CONFLICT => "reservation conflict",
            Self::KEEP_ALIVE => "invalid keep-alive timeout",
            Self::ANA_PERSISTENT_LOSS => "asymmetric access persistent loss",
            Self::ANA_INACCESSIBLE => "asymmetric access inaccessible",
            Self::ANA_TRANSITION => "asymmetric access transition",
            Self::INTERRUPTED => "interrupted",
            Self::WRITE_PROTECTED => "namespace is write-protected",
            Self::LBA_RANGE => "block out of range",
            Self::CAPACITY => "capacity exceeded",
            Self::NOT_READY => "namespace not ready",
            Self::ABORT_LIMIT => "too many aborts",
            Self::QUEUE_TYPE => "Disconnect: invalid queue type",
            Self::AER_LIMIT => "too many event requests",
            Self::INVALID_LOG => "invalid log page",
            Self::NOT_SAVEABLE => "feature is not saveable",
            Self::NOT_CHANGEABLE => "feature is not changeable",
            Self::CONNECT_FORMAT => "Connect: unknown format",
            Self::CONNECT_BUSY => "Connect: controller busy",
            Self::CONNECT_PARAMETER => "Connect: invalid parameter",
            Self::CONNECT_HOST => "Connect: invalid host",
            Self::AUTH_REQUIRED => "authentication required",
            Self::WRITE_FAULT => "write fault",
            Self::READ_ERROR => "unrecovered read error",
            Self::COMPARE_FAILURE => "compare failure",
            _ => "unknown status",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#05x})", self.name(), self.code().0)?;
        if self.0 & Self::DNR != 0 { f.write_str(", do not retry") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out by hand: 0x182 is type 1, code 0x82; shifted by the phase bit it is 0x0304, and
    /// "do not retry" is then bit 15.
    #[test]
    fn the_wire_has_the_phase_below_and_dnr_on_top() {
        assert_eq!(Status::CONNECT_PARAMETER.on_wire(), 0x0304);
        assert_eq!(Status::CONNECT_PARAMETER.dnr().on_wire(), 0x8304);
        assert_eq!(Status::from_wire(0x8304), Status::CONNECT_PARAMETER.dnr());
        assert_eq!(Status::INVALID_FIELD.dnr().to_string(), "invalid field (0x002), do not retry");
    }
}
