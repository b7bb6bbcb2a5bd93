//! The layouts of the boot by the names that the facts use.

use ferrocx_prm::Layout;
use ferrocx_prm::caps::{AtomicCap, EthCap, FlowTableProps, HcaCap, RoceCap};
use ferrocx_prm::caps::{cap_type, nic_flow_table};
use ferrocx_prm::cmd::device::*;
use ferrocx_prm::cmd::objects::{AllocUarIn, AllocUarOut};
use ferrocx_prm::cmd::port::{AccessRegIn, AccessRegOut};
use ferrocx_prm::cmd::queues::{CreateEqIn, CreateEqOut};
use ferrocx_prm::cmd::{CommandEntry, Opcode};
use ferrocx_prm::eqc::Eqc;
use ferrocx_prm::layout::Field;

/// Name, size and field table of a layout.
#[derive(Debug)]
pub(crate) struct Structure {
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    pub(crate) fields: &'static [Field],
}

impl Structure {
    const fn of<T: Layout>() -> Self {
        Self { name: T::NAME, size: T::SIZE_BYTES, fields: T::FIELDS }
    }

    /// The field that has bit `high` of the double word at `at`, and the lowest bit of that word
    /// that it has; without a field, the lowest bit before the next one.
    pub(crate) fn field_at(&self, at: usize, high: u32) -> (Option<&'static str>, u32) {
        let word = at * 8;
        let bit = word + 31 - high as usize;
        let lowest = |end: usize| 31_u32.saturating_sub((end.min(word + 32) - word - 1) as u32);
        let has = |f: &&Field| (f.first_bit..f.first_bit + f.width_bits).contains(&bit);
        if let Some(field) = self.fields.iter().find(has) {
            return (Some(field.name), lowest(field.first_bit + field.width_bits));
        }
        let starts = self.fields.iter().map(|f| f.first_bit).filter(|first| *first > bit);
        (None, lowest(starts.min().unwrap_or(usize::MAX)))
    }
}

/// Every layout that the facts name.
pub(crate) static STRUCTURES: &[Structure] = &[
    Structure::of::<CommandEntry>(),
    Structure::of::<EnableHcaIn>(),
    Structure::of::<EnableHcaOut>(),
    Structure::of::<QueryIssiIn>(),
    Structure::of::<QueryIssiOut>(),
    Structure::of::<SetIssiIn>(),
    Structure::of::<SetIssiOut>(),
    Structure::of::<QueryPagesIn>(),
    Structure::of::<QueryPagesOut>(),
    Structure::of::<ManagePagesIn>(),
    Structure::of::<ManagePagesOut>(),
    Structure::of::<AccessRegIn>(),
    Structure::of::<AccessRegOut>(),
    Structure::of::<QueryHcaCapIn>(),
    Structure::of::<QueryHcaCapOut>(),
    Structure::of::<SetHcaCapIn>(),
    Structure::of::<SetHcaCapOut>(),
    Structure::of::<InitHcaIn>(),
    Structure::of::<InitHcaOut>(),
    Structure::of::<QueryAdapterIn>(),
    Structure::of::<QueryAdapterOut>(),
    Structure::of::<AllocUarIn>(),
    Structure::of::<AllocUarOut>(),
    Structure::of::<CreateEqIn>(),
    Structure::of::<CreateEqOut>(),
    Structure::of::<Eqc>(),
    Structure::of::<HcaCap>(),
    Structure::of::<EthCap>(),
    Structure::of::<AtomicCap>(),
    Structure::of::<RoceCap>(),
    Structure::of::<FlowTableProps>(),
];

/// The layout of that name.
pub(crate) fn named(name: &str) -> &'static Structure {
    let found = STRUCTURES.iter().find(|structure| structure.name == name);
    found.unwrap_or_else(|| panic!("no layout {name}"))
}

/// Input and output of a command of the boot.
pub(crate) fn structures(opcode: Opcode) -> (&'static Structure, &'static Structure) {
    let name = match opcode {
        Opcode::ENABLE_HCA => "EnableHca",
        Opcode::QUERY_ISSI => "QueryIssi",
        Opcode::SET_ISSI => "SetIssi",
        Opcode::QUERY_PAGES => "QueryPages",
        Opcode::MANAGE_PAGES => "ManagePages",
        Opcode::ACCESS_REG => "AccessReg",
        Opcode::QUERY_HCA_CAP => "QueryHcaCap",
        Opcode::SET_HCA_CAP => "SetHcaCap",
        Opcode::INIT_HCA => "InitHca",
        Opcode::QUERY_ADAPTER => "QueryAdapter",
        Opcode::ALLOC_UAR => "AllocUar",
        Opcode::CREATE_EQ => "CreateEq",
        other => panic!("{other} is not expected in this boot"),
    };
    (named(&format!("{name}In")), named(&format!("{name}Out")))
}

/// The layouts inside a capability page, by their offsets in it.
pub(crate) fn cap_blocks(kind: u32) -> Vec<(usize, &'static Structure)> {
    match kind {
        cap_type::GENERAL => vec![(0, named(HcaCap::NAME))],
        cap_type::ETHERNET_OFFLOADS => vec![(0, named(EthCap::NAME))],
        cap_type::ATOMIC => vec![(0, named(AtomicCap::NAME))],
        cap_type::ROCE => vec![(0, named(RoceCap::NAME))],
        cap_type::NIC_FLOW_TABLE => {
            let last = nic_flow_table::NIC_TRANSMIT_SNIFFER;
            let blocks = nic_flow_table::NIC_RECEIVE..=last;
            let props = named(FlowTableProps::NAME);
            blocks.step_by(props.size).map(|base| (base, props)).collect()
        }
        other => panic!("capability page {other} is not in the recording"),
    }
}
