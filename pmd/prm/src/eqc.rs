//! Event queue context.
//!
//! Source: reference 5.5; PRM "Event Queue Context", `mlx5_ifc_eqc_bits`.

use crate::layout;

layout! {
    /// Event queue context, 64 bytes (`eqc`).
    pub struct Eqc [0x40] {
        0x00 [31:28] status "0 ok, 0xa write failure.";
        0x00 [18] ec "Collapsed: every EQE overwrites entry 0.";
        0x00 [17] oi "The device does not check the consumer index for overruns.";
        0x00 [11:8] st "9 armed, 0xa fired, 0xb always armed.";
        0x08 [11:6] page_offset "Start of the queue in its first page, in units of 64 bytes.";
        0x0c [28:24] log_eq_size "Log2 of the number of entries.";
        0x0c [23:0] uar_page "UAR page from which the queue is armed.";
        0x14 [11:0] intr "MSI-X vector that is raised; eight bits on older devices.";
        0x18 [28:24] log_page_size "Log2 of the page size of the buffer, minus 12.";
        0x28 [23:0] consumer_counter "Consumer index as the device knows it.";
        0x2c [23:0] producer_counter "Index of the next EQE that the device writes.";
    }
}
