//! Basic objects: UAR, PD, transport domain, XRCD, mkey.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::rows;
use crate::mkey::Mkc;

rows! { $
    uar {
        0x08 [23:0] uar "UAR page, counted in pages from the start of BAR0.";
    }
    pd {
        0x08 [23:0] pd "Number of the protection domain.";
    }
    transport_domain {
        0x08 [23:0] transport_domain "Number of the transport domain.";
    }
    xrcd {
        0x08 [23:0] xrcd "Number of the XRC domain.";
    }
    mkey_index {
        0x08 [23:0] mkey_index "Upper 24 bits of the mkey.";
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
        0x0c [31] pg_access "The low two bits of each MTT grant read and write.";
        0x0c [30] mkey_umem_valid "The translations come from a user memory object.";
        0x10 (Mkc) memory_key_mkey_entry "The mkey's context.";
        0x60 [31:0] translations_octword_actual_size
            "16-byte units of translation that follow; 0: to be filled in by UMR.";
        0x64 [31:0] mkey_umem_id "User memory object of the translations.";
        0x68 (u64) mkey_umem_offset "Offset of the region in its user memory object.";
    } => { ..mkey_index; }
    /// `op_mod` 0 mkc, 1 bsf.
    QueryMkey QUERY_MKEY {
        ..mkey_index;
        0x0c [31] pg_access "The low two bits of each MTT grant read and write.";
    } => [0x130] {
        0x10 (Mkc) memory_key_mkey_entry "The mkey's context.";
        0x110 ([u8; 16]) bsf0_klm0_pas_mtt0_1 "First 16 bytes of translation or signature.";
        0x120 ([u8; 16]) bsf1_klm1_pas_mtt2_3 "Second 16 bytes of translation or signature.";
    }
    DestroyMkey DESTROY_MKEY { ..mkey_index; }
}
