//! Device memory (MEMIC): taken from the device, and given back.
//!
//! Source: reference 4.2, 4.12; `mlx5_ifc_alloc_memic_in_bits`, `mlx5_ifc_dealloc_memic_in_bits`.

command! {
    without uid;
    /// The driver chooses the part of the BAR at which the memory shall appear, the device the
    /// memory behind it.
    AllocMemic ALLOC_MEMIC [0x20] {
        0x0c [7:0] log_memic_addr_alignment "Log2 of the alignment, in units of 64 bytes.";
        0x10 (u64) range_start_addr "Where in the BAR it may begin, a multiple of 4096.";
        0x18 [31:0] range_size "Bytes of the BAR that it may take.";
        0x1c [31:0] memic_size "Bytes wanted.";
    } => {
        0x08 (u64) memic_start_addr "Where in the BAR it begins.";
    }
    DeallocMemic DEALLOC_MEMIC [0x20] {
        0x10 (u64) memic_start_addr "Where in the BAR it begins.";
        0x18 [31:0] memic_size "Bytes, as they were asked for.";
    }
}
