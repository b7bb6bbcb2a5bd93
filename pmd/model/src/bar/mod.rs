//! What the driver writes to the device's BAR.
//!
//! - `init_seg`: the initialization segment, whose command doorbell rings the command queue.
//! - `uar`: the UAR pages, whose doorbells ring queues.

mod init_seg;
pub(crate) mod uar;

pub(crate) use init_seg::Registers;
