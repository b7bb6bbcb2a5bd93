//! Memory keys: the context and its translation entries.
//!
//! Source: reference 5.1; PRM "Memory Key Context", `mlx5_ifc_mkc_bits`.

use crate::layout;
use crate::layout::values;

layout! {
    /// Memory key context, 64 bytes (`mkc`).
    pub struct Mkc [0x40] {
        0x00 [30] free "The key exists, but any access through it fails.";
        0x00 [28:26] access_mode_4_2
            "High three bits of the access mode, see [`Mkc::access_mode`].";
        0x00 [18] relaxed_ordering_write "Writes through the key may be reordered on PCIe.";
        0x00 [16] small_fence_on_rdma_read_response
            "An RDMA read response through the key is a small fence.";
        0x00 [15] umr_en "UMR requests may change this key.";
        0x00 [14] a "Atomics from remote are allowed.";
        0x00 [13] rw "Writes from remote are allowed.";
        0x00 [12] rr "Reads from remote are allowed.";
        0x00 [11] lw "Local writes are allowed.";
        0x00 [10] lr "Local reads are allowed.";
        0x00 [9:8] access_mode_1_0 "Low two bits of the access mode, see [`Mkc::access_mode`].";
        0x00 [5:4] ma_translation_mode "1: the host translates addresses (PCIe ATS).";
        0x04 [31:8] qpn "Only QP that may use the key, or [`ANY_QPN`].";
        0x04 [7:0] mkey_7_0
            "Low byte of the key, chosen by the driver; the index makes up the rest.";
        0x0c [31] length64 "The key covers the whole address space; `len` is ignored.";
        0x0c [30] bsf_en "The key carries a signature descriptor.";
        0x0c [29] sync_umr "UMR requests on this key are synchronised.";
        0x0c [26] expected_sigerr_count "Toggles with each signature error that software has seen.";
        0x0c [24] en_rinval "The other end may invalidate the key.";
        0x0c [23:0] pd "Protection domain that the key belongs to.";
        0x10 (u64) start_addr
            "First address in the key's own space; of device memory, its place in the BAR.";
        0x18 (u64) len "Number of bytes that the key covers.";
        0x20 [31:0] bsf_octword_size "Size of the signature descriptor in 16-byte units.";
        0x34 [31:0] translations_octword_size
            "Room for translations in 16-byte units: two MTTs, one KLM or one KSM each.";
        0x38 [6] relaxed_ordering_read "Reads through the key may be reordered on PCIe.";
        0x38 [4:0] log_page_size "Log2 of the bytes per MTT or KSM entry.";
    }

    /// Translation entry of an MTT mkey, 8 bytes.
    pub struct Mtt [0x8] {
        0x00 [31:0] ptag_63_32 "High half of the page address.";
        0x04 [31:3] ptag_31_3 "Bits 31 to 3 of the page address.";
        0x04 [1] wr_en "The page may be written (if the mkey was created with `pg_access`).";
        0x04 [0] rd_en "The page may be read (if the mkey was created with `pg_access`).";
    }

    /// Translation entry of a KLM mkey, 16 bytes.
    pub struct Klm [0x10] {
        0x00 [31:0] byte_count "Bytes that this entry covers.";
        0x04 [31:0] mkey "Key of the memory behind it.";
        0x08 (u64) va "Address in the space of that key.";
    }

    /// Translation entry of a KSM mkey, 16 bytes: covers 2^`log_page_size` bytes.
    pub struct Ksm [0x10] {
        0x04 [31:0] mkey "Key of the memory behind it.";
        0x08 (u64) va "Address in the space of that key.";
    }
}

values! {
    /// Access mode of an mkey, from the two fields of [`Mkc`] that hold it.
    ///
    /// Source: reference 5.1, `MLX5_MKC_ACCESS_MODE_*`.
    pub struct AccessMode(u32) {
        0 PA "Physical (bus) addresses, no translation.";
        1 MTT "Pages of equal size.";
        2 KLM "Pieces of any length of other mkeys.";
        3 KSM "Pieces of equal length of other mkeys.";
        5 MEMIC "Device memory at `start_addr` in the BAR; the key's own addresses begin at 0.";
    }
}

impl Mkc {
    /// The access mode.
    pub fn access_mode(&self) -> AccessMode {
        AccessMode(self.access_mode_4_2() << 2 | self.access_mode_1_0())
    }

    /// Returns the context with the access mode replaced.
    #[must_use]
    pub fn with_access_mode(self, mode: AccessMode) -> Self {
        self.with_access_mode_4_2(mode.0 >> 2).with_access_mode_1_0(mode.0)
    }
}

/// [`Mkc::qpn`]: the key is not tied to a queue pair. Source: reference 5.1.
pub const ANY_QPN: u32 = 0xff_ffff;

/// The key that names an mkey: its index, and its low byte ([`Mkc::mkey_7_0`]). Source: reference
/// 5.1.
pub const fn key(index: u32, variant: u32) -> u32 {
    index << 8 | variant
}
