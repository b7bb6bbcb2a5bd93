//! Codes by which the device says what went wrong: command status, delivery status, CQE syndrome.
//!
//! Every code keeps its raw number and explains itself; unknown numbers are not lost.

use core::fmt;

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident: $($value:literal $constant:ident $text:literal;)*) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub u8);

        impl $name {
            $( #[doc = $text] pub const $constant: Self = Self($value); )*

            /// Every code that has a name here.
            pub const ALL: &'static [Self] = &[$( Self::$constant ),*];

            /// Name of the code as the manual prints it, if it is known.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $( Self::$constant => Some(stringify!($constant)), )*
                    _ => None,
                }
            }

            /// Meaning of the code and its usual cause.
            pub fn meaning(self) -> &'static str {
                match self {
                    $( Self::$constant => $text, )*
                    _ => "not in the manual that this was written from",
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{name} ({:#04x}): {}", self.0, self.meaning()),
                    None => write!(f, "unknown code {:#04x}", self.0),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{name} ({:#04x})", self.0),
                    None => write!(f, "{}({:#04x})", stringify!($name), self.0),
                }
            }
        }
    };
}

codes! {
    /// Output status of a command: it was delivered, and this is how it ended.
    ///
    /// Source: reference 2.2; PRM "Command Return Status", `MLX5_CMD_STAT_*`.
    CommandStatus:
    0x00 OK "the command succeeded";
    0x01 INTERNAL_ERR "the firmware failed";
    0x02 BAD_OP "the opcode or op_mod is not known to the device";
    0x03 BAD_PARAM "a parameter is out of range, or a reserved bit is set";
    0x04 BAD_SYS_STATE "not allowed in this state, such as before INIT_HCA";
    0x05 BAD_RESOURCE "an object number that is not allocated";
    0x06 RESOURCE_BUSY "the object is in use; nothing was done";
    0x07 NOT_READY "the device is not ready for the command yet";
    0x08 EXCEED_LIM "a limit of the device is exceeded";
    0x09 BAD_RES_STATE "the object is in the wrong state or has another owner";
    0x0a BAD_INDEX "an index is out of range";
    0x0f NO_RESOURCES "the device has no memory or objects left";
    0x10 BAD_QP_STATE "the named current state of a queue is not its state";
    0x30 BAD_PKT "a management packet was discarded";
    0x40 BAD_SIZE_OUTS_CQES "a CQ cannot shrink below its outstanding entries";
    0x50 BAD_INPUT_LEN "the input length does not fit the command";
    0x51 BAD_OUTPUT_LEN "the output length does not fit the command";
}

codes! {
    /// Delivery status in the command queue entry: whether the device could read the command.
    ///
    /// Source: reference 2.2; PRM "Command Delivery Status", `MLX5_CMD_DELIVERY_STAT_*`.
    DeliveryStatus:
    0x00 OK "the command was delivered";
    0x01 SIGNATURE_ERR "a signature does not verify";
    0x02 TOKEN_ERR "a mailbox block has another token than the entry";
    0x03 BAD_BLOCK_NUMBER "the mailbox blocks are not numbered in order";
    0x04 BAD_OUTPUT_POINTER "the output mailbox pointer is not aligned";
    0x05 BAD_INPUT_POINTER "the input mailbox pointer is not aligned";
    0x06 FW_INTERNAL_ERR "the firmware failed";
    0x07 INPUT_LEN_ERR "the input length is too small";
    0x08 OUTPUT_LEN_ERR "the output length is too small";
    0x09 RESERVED_NOT_ZERO "a reserved field is not zero";
    0x10 BAD_COMMAND_TYPE "the command type is not 7 (PCIe)";
}

codes! {
    /// Cause of a failed work request: the `syndrome` byte of an error CQE.
    ///
    /// Source: reference 6.7; PRM "Completion with Error", `MLX5_CQE_SYNDROME_*`.
    CqeSyndrome:
    0x01 LOCAL_LENGTH_ERR "a message does not fit its scatter list or exceeds the limit";
    0x02 LOCAL_QP_OP_ERR "the queue could not carry out a work request: bad opcode or descriptor";
    0x04 LOCAL_PROT_ERR "lkey, range or access of a scatter or gather entry was refused";
    0x05 WR_FLUSH_ERR "flushed: the queue was already in error, see its first failed completion";
    0x06 MW_BIND_ERR "a memory window or mkey could not be bound";
    0x10 BAD_RESP_ERR "the peer answered with an unexpected packet";
    0x11 LOCAL_ACCESS_ERR "the responder could not reach its own memory";
    0x12 REMOTE_INVAL_REQ_ERR "the peer refused the request as invalid";
    0x13 REMOTE_ACCESS_ERR "the peer refused the access: rkey, range or rights";
    0x14 REMOTE_OP_ERR "the peer failed to carry out the operation";
    0x15 TRANSPORT_RETRY_EXC_ERR "no acknowledgement after all retries: peer or path is gone";
    0x16 RNR_RETRY_EXC_ERR "the peer had no receive buffer after all retries";
    0x22 REMOTE_ABORTED_ERR "the peer aborted the operation";
}

codes! {
    /// Health syndrome in the init segment's health buffer; 0 is healthy.
    ///
    /// Source: reference 1.2; PRM "Health Buffer", `MLX5_INITIAL_SEG_HEALTH_SYNDROME_*`.
    HealthSyndrome:
    0x00 HEALTHY "no fault";
    0x01 FW_INTERNAL_ERR "the firmware failed an internal check";
    0x07 IRISC_NOT_RESPONDING "an internal processor does not answer";
    0x08 HW_UNRECOVERABLE_ERR "unrecoverable hardware error";
    0x09 FW_CRC_ERR "a firmware image has a wrong checksum";
    0x0a ICM_FETCH_PCI_ERR "the device could not read its own memory in the host";
    0x0b HW_FATAL_ERR "fatal hardware error";
    0x0c ASYNC_EQ_OVERRUN "the driver let an event queue overrun";
    0x0d EQ_ERR "error on an event queue";
    0x0e EQ_INV "event for an event queue that does not exist";
    0x0f FFSER_ERR "link hardware error";
    0x10 HIGH_TEMP_ERR "the device is too hot";
    0x12 ICM_PCI_POISONED_ERR "the device read poisoned data from its memory in the host";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes_explain_themselves_and_unknown_ones_keep_their_number() {
        assert_eq!(
            CommandStatus(0x03).to_string(),
            "BAD_PARAM (0x03): a parameter is out of range, or a reserved bit is set"
        );
        assert_eq!(CqeSyndrome(0x77).to_string(), "unknown code 0x77");
        assert_eq!(format!("{:?}", DeliveryStatus(0x10)), "BAD_COMMAND_TYPE (0x10)");
    }
}
