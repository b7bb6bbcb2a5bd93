//! Inputs of CREATE commands, by the manual's offsets.

use ferrocx_model::NicConfig;

use super::{Host, input, words};

/// Numbers of the objects that most tests need.
#[derive(Debug, Clone, Copy)]
pub struct Base {
    pub uar: u32,
    pub eqn: u32,
    pub cqn: u32,
    pub pd: u32,
    pub td: u32,
}

/// CREATE_EQ with 2^`log_size` entries.
pub fn create_eq(uar: u32, log_size: u32, vector: u32, events: u32, page: u64) -> Vec<u8> {
    let mut bytes = input(
        0x110,
        &[(0, 0x0301_0000), (0x1c, log_size << 24 | uar), (0x24, vector), (0x5c, events)],
    );
    bytes.extend(page.to_be_bytes());
    bytes
}

/// CREATE_CQ with 2^`log_size` entries of 64 bytes.
pub fn create_cq(uar: u32, eqn: u32, log_size: u32, record: u64, page: u64) -> Vec<u8> {
    let mut bytes = input(
        0x110,
        &[
            (0, 0x0400_0000),
            (0x1c, log_size << 24 | uar),
            (0x24, eqn),
            (0x48, (record >> 32) as u32),
            (0x4c, record as u32),
        ],
    );
    bytes.extend(page.to_be_bytes());
    bytes
}

/// The `wq` part at 0x50 of CREATE_SQ, CREATE_RQ and CREATE_RMP.
pub fn wq(
    kind: u32,
    pd: u32,
    uar: u32,
    record: u64,
    log_stride: u32,
    log_size: u32,
) -> Vec<(usize, u32)> {
    vec![
        (0x50, kind << 28),
        (0x58, pd),
        (0x5c, uar),
        (0x60, (record >> 32) as u32),
        (0x64, record as u32),
        (0x70, log_stride << 16 | log_size),
    ]
}

/// CREATE_SQ, cyclic, 2^`log_size` basic blocks.
pub fn create_sq(base: &Base, tisn: u32, log_size: u32, record: u64, page: u64) -> Vec<u8> {
    let mut set = vec![(0, 0x0904_0000), (0x28, base.cqn), (0x40, 1 << 16), (0x4c, tisn)];
    set.extend(wq(1, base.pd, base.uar, record, 6, log_size));
    let mut bytes = input(0x110, &set);
    bytes.extend(page.to_be_bytes());
    bytes
}

/// CREATE_RQ, cyclic, entries of 16 bytes.
pub fn create_rq(base: &Base, log_size: u32, record: u64, page: u64) -> Vec<u8> {
    let mut set = vec![(0, 0x0908_0000), (0x28, base.cqn)];
    set.extend(wq(1, base.pd, 0, record, 4, log_size));
    let mut bytes = input(0x110, &set);
    bytes.extend(page.to_be_bytes());
    bytes
}

/// CREATE_RMP, linked list, entries of 64 bytes.
pub fn create_rmp(base: &Base, log_size: u32, record: u64, page: u64) -> Vec<u8> {
    let mut set = vec![(0, 0x090c_0000), (0x20, 1 << 20)];
    set.extend(wq(0, base.pd, 0, record, 6, log_size));
    let mut bytes = input(0x110, &set);
    bytes.extend(page.to_be_bytes());
    bytes
}

/// MODIFY_SQ or MODIFY_RQ: from a state to a state.
pub fn modify_queue(opcode: u32, number: u32, from: u32, to: u32) -> Vec<u8> {
    input(0x110, &[(0, opcode << 16), (8, from << 28 | number), (0x20, to << 20)])
}

/// CREATE_TIR that hands packets to one RQ.
pub fn create_direct_tir(td: u32, rqn: u32) -> Vec<u8> {
    input(0x110, &[(0, 0x0900_0000), (0x3c, rqn), (0x44, td)])
}

/// CREATE_TIR that spreads packets over a table by Toeplitz hash of the IPv4 addresses.
pub fn create_indirect_tir(td: u32, rqtn: u32) -> Vec<u8> {
    input(
        0x110,
        &[(0, 0x0900_0000), (0x24, 1 << 28), (0x40, rqtn), (0x44, 2 << 28 | td), (0x70, 3)],
    )
}

/// CREATE_RQT.
pub fn create_rqt(max_size: u32, rqns: &[u32]) -> Vec<u8> {
    let mut bytes = input(0x110, &[(0, 0x0916_0000), (0x34, max_size), (0x38, rqns.len() as u32)]);
    bytes.extend(words(rqns));
    bytes
}

/// CREATE_TIS.
pub fn create_tis(td: u32) -> Vec<u8> {
    input(0xc0, &[(0, 0x0912_0000), (0x44, td)])
}

/// CREATE_MKEY of PA mode, length64, local read and write.
pub fn create_pa_mkey(pd: u32, variant: u8) -> Vec<u8> {
    input(
        0x110,
        &[
            (0, 0x0200_0000),
            (0x10, 1 << 11 | 1 << 10),
            (0x14, 0xffff_ff00 | u32::from(variant)),
            (0x1c, 1 << 31 | pd),
        ],
    )
}

/// CREATE_FLOW_TABLE, receive.
pub fn create_flow_table(level: u32, log_size: u32) -> Vec<u8> {
    input(0x40, &[(0, 0x0930_0000), (0x18, level << 16 | log_size)])
}

/// CREATE_FLOW_GROUP that compares the destination MAC.
pub fn create_flow_group(table: u32, start: u32, end: u32) -> Vec<u8> {
    input(
        0x400,
        &[
            (0, 0x0933_0000),
            (0x14, table),
            (0x1c, start),
            (0x24, end),
            (0x3c, 1),
            (0x48, 0xffff_ffff),
            (0x4c, 0xffff_0000),
        ],
    )
}

/// SET_FTE: forward to a TIR.
pub fn set_fte(table: u32, group: u32, index: u32, tirn: u32) -> Vec<u8> {
    let mut bytes = input(
        0x340,
        &[
            (0, 0x0936_0000),
            (0x14, table),
            (0x20, index),
            (0x44, group),
            (0x4c, 4),
            (0x50, 1),
            (0x88, 0x02fe_0c00),
            (0x8c, 0x0001_0000),
        ],
    );
    bytes.extend(words(&[2 << 24 | tirn, 0]));
    bytes
}

/// A device with one object of each kind, and a valid input for each CREATE.
pub fn furnished() -> (Host, Vec<Vec<u8>>) {
    furnished_with(NicConfig::default())
}

/// The same for a device of another kind.
pub fn furnished_with(config: NicConfig) -> (Host, Vec<Vec<u8>>) {
    let mut host = Host::up_with(config);
    let base = host.base();
    let (record, page) = (host.ring(64), host.ring(4096));
    let mut templates = vec![
        create_eq(base.uar, 4, 0, 0x200, page),
        create_cq(base.uar, base.eqn, 4, record, page),
        create_rq(&base, 4, record, page),
        create_rmp(&base, 4, record, page),
        create_tis(base.td),
        create_pa_mkey(base.pd, 1),
        create_flow_table(1, 4),
    ];
    let numbers: Vec<u32> =
        templates.iter().map(|input| host.ok(input, 0x10).word(8) & 0xff_ffff).collect();
    let [_, _, rqn, _, tisn, _, table] = numbers[..] else { panic!("seven objects") };
    templates.push(create_sq(&base, tisn, 4, record, page));
    templates.push(create_rqt(4, &[rqn, rqn]));
    templates.push(create_direct_tir(base.td, rqn));
    let sqn = host.ok(&templates[7], 0x10).word(8);
    let rqtn = host.ok(&templates[8], 0x10).word(8);
    let tirn = host.ok(&templates[9], 0x10).word(8);
    templates.push(create_indirect_tir(base.td, rqtn));
    templates.push(create_flow_group(table, 0, 3));
    let group = host.ok(&templates[11], 0x10).word(8);
    templates.push(set_fte(table, group, 1, tirn));
    host.ok(&templates[12], 0x10);
    templates.push(modify_queue(0x905, sqn, 0, 1));
    templates.push(modify_queue(0x909, rqn, 0, 1));
    (host, templates)
}

impl Host {
    /// A four-word command that must succeed.
    #[track_caller]
    pub fn short(&mut self, opcode: u32, at8: u32) -> u32 {
        self.ok(&words(&[opcode << 16, 0, at8, 0]), 0x10).word(8)
    }

    /// UAR, EQ, CQ, PD, TD.
    #[track_caller]
    pub fn base(&mut self) -> Base {
        let uar = self.short(0x802, 0);
        let page = self.ring(4096);
        let eqn = self.ok(&create_eq(uar, 4, 0, 0, page), 0x10).word(8);
        let (record, page) = (self.ring(64), self.ring(4096));
        let cqn = self.ok(&create_cq(uar, eqn, 5, record, page), 0x10).word(8);
        let (pd, td) = (self.short(0x800, 0), self.short(0x816, 0));
        Base { uar, eqn, cqn, pd, td }
    }
}
