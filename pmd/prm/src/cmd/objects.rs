//! Basic objects: UAR, PD, transport domain, XRCD, mkey.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::rows;
use crate::mkey::Mkc;

rows! { $
    uar {
        /// UAR page, counted in pages from the start of BAR0.
        0x08 [23:0] uar;
    }
    pd {
        /// Number of the protection domain.
        0x08 [23:0] pd;
    }
    transport_domain {
        /// Number of the transport domain.
        0x08 [23:0] transport_domain;
    }
    xrcd {
        /// Number of the XRC domain.
        0x08 [23:0] xrcd;
    }
    mkey_index {
        /// Upper 24 bits of the mkey.
        0x08 [23:0] mkey_index;
    }
}

command! {
    AllocUar ALLOC_UAR {} => { ..uar; }
    DeallocUar DEALLOC_UAR { ..uar; }
    AllocPd ALLOC_PD {} => { ..pd; }
    DeallocPd DEALLOC_PD { ..pd; }
    AllocTransportDomain ALLOC_TRANSPORT_DOMAIN {} => { ..transport_domain; }
    DeallocTransportDomain DEALLOC_TRANSPORT_DOMAIN { ..transport_domain; }
    AllocXrcd ALLOC_XRCD {} => { ..xrcd; }
    DeallocXrcd DEALLOC_XRCD { ..xrcd; }
    /// The translation entries follow the input.
    CreateMkey CREATE_MKEY [0x110] {
        /// The low two bits of each MTT grant read and write.
        0x0c [31] pg_access;
        /// The translations come from a user memory object.
        0x0c [30] mkey_umem_valid;
        /// The mkey's context.
        0x10 (Mkc) memory_key_mkey_entry;
        /// 16-byte units of translation that follow; 0: to be filled in by UMR.
        0x60 [31:0] translations_octword_actual_size;
    } => { ..mkey_index; }
    /// `op_mod` 0 mkc, 1 bsf.
    QueryMkey QUERY_MKEY {
        ..mkey_index;
        /// The low two bits of each MTT grant read and write.
        0x0c [31] pg_access;
    } => [0x130] {
        /// The mkey's context.
        0x10 (Mkc) memory_key_mkey_entry;
        /// First 16 bytes of translation or signature.
        0x110 ([u8; 16]) bsf0_klm0_pas_mtt0_1;
        /// Second 16 bytes of translation or signature.
        0x120 ([u8; 16]) bsf1_klm1_pas_mtt2_3;
    }
    DestroyMkey DESTROY_MKEY { ..mkey_index; }
}
