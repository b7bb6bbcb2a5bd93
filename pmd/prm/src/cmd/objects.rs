//! Basic objects: UAR, PD, transport domain, XRCD, mkey.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::mkey::Mkc;
use crate::{command, layout};

layout! {
    /// ALLOC_UAR input, 0x10 bytes.
    pub struct AllocUarIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
    }

    /// ALLOC_UAR output, 0x10 bytes.
    pub struct AllocUarOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// UAR page, counted in pages from the start of BAR0.
        0x08 [23:0] uar;
    }

    /// DEALLOC_UAR input, 0x10 bytes.
    pub struct DeallocUarIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// UAR page, counted in pages from the start of BAR0.
        0x08 [23:0] uar;
    }

    /// DEALLOC_UAR output, 0x10 bytes.
    pub struct DeallocUarOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// ALLOC_PD input, 0x10 bytes.
    pub struct AllocPdIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
    }

    /// ALLOC_PD output, 0x10 bytes.
    pub struct AllocPdOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the protection domain.
        0x08 [23:0] pd;
    }

    /// DEALLOC_PD input, 0x10 bytes.
    pub struct DeallocPdIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the protection domain.
        0x08 [23:0] pd;
    }

    /// DEALLOC_PD output, 0x10 bytes.
    pub struct DeallocPdOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// ALLOC_TRANSPORT_DOMAIN input, 0x10 bytes.
    pub struct AllocTransportDomainIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
    }

    /// ALLOC_TRANSPORT_DOMAIN output, 0x10 bytes.
    pub struct AllocTransportDomainOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the transport domain.
        0x08 [23:0] transport_domain;
    }

    /// DEALLOC_TRANSPORT_DOMAIN input, 0x10 bytes.
    pub struct DeallocTransportDomainIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the transport domain.
        0x08 [23:0] transport_domain;
    }

    /// DEALLOC_TRANSPORT_DOMAIN output, 0x10 bytes.
    pub struct DeallocTransportDomainOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// ALLOC_XRCD input, 0x10 bytes.
    pub struct AllocXrcdIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
    }

    /// ALLOC_XRCD output, 0x10 bytes.
    pub struct AllocXrcdOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the XRC domain.
        0x08 [23:0] xrcd;
    }

    /// DEALLOC_XRCD input, 0x10 bytes.
    pub struct DeallocXrcdIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the XRC domain.
        0x08 [23:0] xrcd;
    }

    /// DEALLOC_XRCD output, 0x10 bytes.
    pub struct DeallocXrcdOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// CREATE_MKEY input, 0x110 bytes. The translation entries follow.
    pub struct CreateMkeyIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The low two bits of each MTT grant read and write.
        0x0c [31] pg_access;
        /// The translations come from a user memory object.
        0x0c [30] mkey_umem_valid;
        /// The mkey's context.
        0x10 (Mkc) memory_key_mkey_entry;
        /// 16-byte units of translation that follow; 0: to be filled in by UMR.
        0x60 [31:0] translations_octword_actual_size;
    }

    /// CREATE_MKEY output, 0x10 bytes.
    pub struct CreateMkeyOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Upper 24 bits of the mkey.
        0x08 [23:0] mkey_index;
    }

    /// QUERY_MKEY input, 0x10 bytes; op_mod 0 mkc, 1 bsf.
    pub struct QueryMkeyIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Upper 24 bits of the mkey.
        0x08 [23:0] mkey_index;
        /// The low two bits of each MTT grant read and write.
        0x0c [31] pg_access;
    }

    /// QUERY_MKEY output, 0x130 bytes.
    pub struct QueryMkeyOut [0x130] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The mkey's context.
        0x10 (Mkc) memory_key_mkey_entry;
        /// First 16 bytes of translation or signature.
        0x110 ([u8; 16]) bsf0_klm0_pas_mtt0_1;
        /// Second 16 bytes of translation or signature.
        0x120 ([u8; 16]) bsf1_klm1_pas_mtt2_3;
    }

    /// DESTROY_MKEY input, 0x10 bytes.
    pub struct DestroyMkeyIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Upper 24 bits of the mkey.
        0x08 [23:0] mkey_index;
    }

    /// DESTROY_MKEY output, 0x10 bytes.
    pub struct DestroyMkeyOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }
}

command! {
    AllocUar ALLOC_UAR: AllocUarIn => AllocUarOut,
    DeallocUar DEALLOC_UAR: DeallocUarIn => DeallocUarOut,
    AllocPd ALLOC_PD: AllocPdIn => AllocPdOut,
    DeallocPd DEALLOC_PD: DeallocPdIn => DeallocPdOut,
    AllocTransportDomain ALLOC_TRANSPORT_DOMAIN: AllocTransportDomainIn => AllocTransportDomainOut,
    DeallocTransportDomain DEALLOC_TRANSPORT_DOMAIN:
        DeallocTransportDomainIn => DeallocTransportDomainOut,
    AllocXrcd ALLOC_XRCD: AllocXrcdIn => AllocXrcdOut,
    DeallocXrcd DEALLOC_XRCD: DeallocXrcdIn => DeallocXrcdOut,
    CreateMkey CREATE_MKEY: CreateMkeyIn => CreateMkeyOut,
    QueryMkey QUERY_MKEY: QueryMkeyIn => QueryMkeyOut,
    DestroyMkey DESTROY_MKEY: DestroyMkeyIn => DestroyMkeyOut,
}
