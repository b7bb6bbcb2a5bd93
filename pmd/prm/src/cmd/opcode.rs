//! Command opcodes.
//!
//! Source: reference 4.2; PRM "Command Reference"; `MLX5_CMD_OP_*`.

/// Opcode of a command. An open set: a device or a driver may know more than we do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opcode(pub u16);

macro_rules! opcodes {
    ($($value:literal $name:ident;)*) => {
        #[allow(missing_docs, reason = "the names are the manual's own command names")]
        impl Opcode {
            $( pub const $name: Self = Self($value); )*

            /// Every opcode that has a name here, in ascending order.
            pub const ALL: &'static [Self] = &[$( Self::$name ),*];

            /// Name of the command as the manual prints it, if it is known.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $( Self::$name => Some(stringify!($name)), )*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    0x100 QUERY_HCA_CAP;
    0x101 QUERY_ADAPTER;
    0x102 INIT_HCA;
    0x103 TEARDOWN_HCA;
    0x104 ENABLE_HCA;
    0x105 DISABLE_HCA;
    0x107 QUERY_PAGES;
    0x108 MANAGE_PAGES;
    0x109 SET_HCA_CAP;
    0x10a QUERY_ISSI;
    0x10b SET_ISSI;
    0x10d SET_DRIVER_VERSION;
    0x200 CREATE_MKEY;
    0x201 QUERY_MKEY;
    0x202 DESTROY_MKEY;
    0x203 QUERY_SPECIAL_CONTEXTS;
    0x205 ALLOC_MEMIC;
    0x206 DEALLOC_MEMIC;
    0x301 CREATE_EQ;
    0x302 DESTROY_EQ;
    0x303 QUERY_EQ;
    0x304 GEN_EQE;
    0x400 CREATE_CQ;
    0x401 DESTROY_CQ;
    0x402 QUERY_CQ;
    0x403 MODIFY_CQ;
    0x500 CREATE_QP;
    0x501 DESTROY_QP;
    0x502 RST2INIT_QP;
    0x503 INIT2RTR_QP;
    0x504 RTR2RTS_QP;
    0x505 RTS2RTS_QP;
    0x506 SQERR2RTS_QP;
    0x507 MODIFY_QP_2ERR;
    0x50a MODIFY_QP_2RST;
    0x50b QUERY_QP;
    0x50c SQD2RTS_QP;
    0x50d MAD_IFC;
    0x50e INIT2INIT_QP;
    0x600 CREATE_PSV;
    0x601 DESTROY_PSV;
    0x700 CREATE_SRQ;
    0x701 DESTROY_SRQ;
    0x702 QUERY_SRQ;
    0x703 ARM_RQ;
    0x705 CREATE_XRC_SRQ;
    0x706 DESTROY_XRC_SRQ;
    0x707 QUERY_XRC_SRQ;
    0x708 ARM_XRC_SRQ;
    0x710 CREATE_DCT;
    0x711 DESTROY_DCT;
    0x712 DRAIN_DCT;
    0x717 CREATE_XRQ;
    0x718 DESTROY_XRQ;
    0x719 QUERY_XRQ;
    0x71a ARM_XRQ;
    0x740 QUERY_ESW_FUNCTIONS;
    0x750 QUERY_VPORT_STATE;
    0x751 MODIFY_VPORT_STATE;
    0x754 QUERY_NIC_VPORT_CONTEXT;
    0x755 MODIFY_NIC_VPORT_CONTEXT;
    0x760 QUERY_ROCE_ADDRESS;
    0x761 SET_ROCE_ADDRESS;
    0x762 QUERY_HCA_VPORT_CONTEXT;
    0x763 MODIFY_HCA_VPORT_CONTEXT;
    0x764 QUERY_HCA_VPORT_GID;
    0x765 QUERY_HCA_VPORT_PKEY;
    0x76f QUERY_VNIC_ENV;
    0x770 QUERY_VPORT_COUNTER;
    0x771 ALLOC_Q_COUNTER;
    0x772 DEALLOC_Q_COUNTER;
    0x773 QUERY_Q_COUNTER;
    0x800 ALLOC_PD;
    0x801 DEALLOC_PD;
    0x802 ALLOC_UAR;
    0x803 DEALLOC_UAR;
    0x805 ACCESS_REG;
    0x806 ATTACH_TO_MCG;
    0x807 DETACH_FROM_MCG;
    0x80d NOP;
    0x80e ALLOC_XRCD;
    0x80f DEALLOC_XRCD;
    0x816 ALLOC_TRANSPORT_DOMAIN;
    0x817 DEALLOC_TRANSPORT_DOMAIN;
    0x822 QUERY_CONG_STATUS;
    0x823 MODIFY_CONG_STATUS;
    0x824 QUERY_CONG_PARAMS;
    0x825 MODIFY_CONG_PARAMS;
    0x826 QUERY_CONG_STATISTICS;
    0x827 ADD_VXLAN_UDP_DPORT;
    0x829 SET_L2_TABLE_ENTRY;
    0x82a QUERY_L2_TABLE_ENTRY;
    0x82b DELETE_L2_TABLE_ENTRY;
    0x842 QUERY_LAG;
    0x900 CREATE_TIR;
    0x901 MODIFY_TIR;
    0x902 DESTROY_TIR;
    0x903 QUERY_TIR;
    0x904 CREATE_SQ;
    0x905 MODIFY_SQ;
    0x906 DESTROY_SQ;
    0x907 QUERY_SQ;
    0x908 CREATE_RQ;
    0x909 MODIFY_RQ;
    0x90a DESTROY_RQ;
    0x90b QUERY_RQ;
    0x90c CREATE_RMP;
    0x90d MODIFY_RMP;
    0x90e DESTROY_RMP;
    0x90f QUERY_RMP;
    0x912 CREATE_TIS;
    0x913 MODIFY_TIS;
    0x914 DESTROY_TIS;
    0x915 QUERY_TIS;
    0x916 CREATE_RQT;
    0x917 MODIFY_RQT;
    0x918 DESTROY_RQT;
    0x919 QUERY_RQT;
    0x92f SET_FLOW_TABLE_ROOT;
    0x930 CREATE_FLOW_TABLE;
    0x931 DESTROY_FLOW_TABLE;
    0x932 QUERY_FLOW_TABLE;
    0x933 CREATE_FLOW_GROUP;
    0x934 DESTROY_FLOW_GROUP;
    0x936 SET_FTE;
    0x937 QUERY_FTE;
    0x938 DELETE_FTE;
    0x939 ALLOC_FLOW_COUNTER;
    0x93a DEALLOC_FLOW_COUNTER;
    0x93b QUERY_FLOW_COUNTER;
    0x93c MODIFY_FLOW_TABLE;
    0xa04 CREATE_UCTX;
    0xa06 DESTROY_UCTX;
    0xa08 CREATE_UMEM;
    0xa0a DESTROY_UMEM;
}

impl core::fmt::Display for Opcode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "opcode {:#06x}", self.0),
        }
    }
}

impl core::fmt::Debug for Opcode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}
