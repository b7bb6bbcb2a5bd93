//! Pages of Identify: what a controller and a namespace are.

use super::connect::MAX_NQN_BYTES;
use super::sgl::MAX_DESCRIPTORS;
use super::{property, put, put_text};

/// Bytes of every page.
pub const PAGE_BYTES: usize = 4096;

/// Kinds of pages: the CNS field. Source: reference 10.2.5.
pub mod cns {
    /// A namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Numbers of the active namespaces.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Identifiers of a namespace.
    pub const DESCRIPTORS: u8 = 0x03;
    /// What the NVM command set says of a namespace.
    pub const NVM_NAMESPACE: u8 = 0x05;
    /// What the NVM command set says of the controller.
    pub const NVM_CONTROLLER: u8 = 0x06;
    /// What holds for a namespace of any command set.
    pub const ANY_NAMESPACE: u8 = 0x08;
    /// Numbers of the controllers that have a namespace.
    pub const NAMESPACE_CONTROLLERS: u8 = 0x12;
    /// Numbers of the controllers of the subsystem.
    pub const CONTROLLERS: u8 = 0x13;
}

/// Asynchronous events that a controller can report, as feature 0Bh and `OAES` have them.
pub mod events {
    /// Namespaces were added, changed or removed.
    pub const NAMESPACE_ATTRIBUTES: u32 = 1 << 8;
    /// Ports have become other ways to namespaces.
    pub const ANA: u32 = 1 << 11;
    /// The discovery log has changed.
    pub const DISCOVERY: u32 = 1 << 31;
    /// A registrant of a reservation is told something: always wanted, and no bit of a register.
    pub(crate) const RESERVATION: u32 = 1 << 30;
    /// SMART's, which may be asked for and never come.
    pub const SMART: u32 = 0x1f;
}

/// What a controller says of itself.
#[derive(Debug, Clone, Copy)]
pub struct Controller<'a> {
    /// Serial number of the subsystem, at most 20 characters.
    pub serial: &'a str,
    /// Model, at most 40 characters.
    pub model: &'a str,
    /// Its number.
    pub cntlid: u16,
    /// Whether it is the discovery service.
    pub is_discovery: bool,
    /// Name of the subsystem.
    pub subnqn: &'a str,
    /// log2 of the largest transfer in pages of 4 KiB.
    pub mdts: u8,
    /// Entries of a queue.
    pub entries: u16,
    /// Bytes of data in a command capsule.
    pub in_capsule_bytes: u32,
    /// The highest number that a namespace can have.
    pub max_nsid: u32,
    /// Groups of namespaces that ports differ for; 0 if the ports do not differ.
    pub ana_groups: u32,
}

/// Version of this program, as the firmware revision: at most eight characters.
pub const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
/// Aborts that may be under way.
pub const ABORTS: usize = 4;
/// Requests for asynchronous events that may wait.
pub const EVENT_REQUESTS: usize = 4;
/// Entries of the error log.
pub const ERROR_ENTRIES: usize = 64;

impl Controller<'_> {
    /// The page.
    ///
    /// # Source
    ///
    /// NVM Express base, "Identify Controller"; reference 10.2.4.
    #[must_use]
    pub fn page(&self) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        put_text(&mut page, 4, 20, self.serial, b' ');
        put_text(&mut page, 24, 40, self.model, b' ');
        put_text(&mut page, 64, 8, FIRMWARE, b' ');
        page[72] = 6; // RAB
        // CMIC: several controllers of a subsystem; several ports, which differ.
        page[76] = if self.ana_groups > 0 { 1 | 1 << 1 | 1 << 3 } else { 1 << 1 };
        page[77] = self.mdts;
        put(&mut page, 78, &self.cntlid.to_le_bytes());
        put(&mut page, 80, &property::VERSION.to_le_bytes());
        put(&mut page, 92, &self.events().to_le_bytes());
        // CTRATT: host identifiers of 128 bits, keep-alive by traffic.
        put(&mut page, 96, &(1u32 | 1 << 6).to_le_bytes());
        page[111] = if self.is_discovery { 2 } else { 1 };
        page[258] = ABORTS as u8 - 1; // ACL
        page[259] = EVENT_REQUESTS as u8 - 1;
        page[260] = 0x03; // FRMW: one slot, read-only.
        // LPA: commands and their effects, lengths and offsets of 32 bits.
        page[261] = if self.is_discovery { 1 << 2 } else { 1 << 1 | 1 << 2 };
        page[262] = ERROR_ENTRIES as u8 - 1;
        put(&mut page, 320, &KEEP_ALIVE_GRANULARITY.to_le_bytes());
        put(&mut page, 514, &self.entries.to_le_bytes());
        // SGLS: supported, keyed, offsets into the capsule.
        put(&mut page, 536, &(1u32 | 1 << 2 | 1 << 20).to_le_bytes());
        put_text(&mut page, 768, 256, &self.subnqn[..self.subnqn.len().min(MAX_NQN_BYTES)], 0);
        put(&mut page, 1796, &1u32.to_le_bytes()); // IORCSZ
        page[1803] = if self.is_discovery { 1 } else { MAX_DESCRIPTORS as u8 }; // MSDBD
        if self.is_discovery {
            put(&mut page, 1792, &4u32.to_le_bytes());
            page[1806] = 1; // DCTYPE
            return page;
        }
        page[1804] = 1; // OFCS: Disconnect.
        put(&mut page, 88, &SHUTDOWN_US.to_le_bytes()); // RTD3E
        if self.ana_groups > 0 {
            page[342] = ANA_TRANSITION_SECS;
            page[343] = 0x5f; // ANACAP: all states; the group of a namespace stays.
            put(&mut page, 344, &self.ana_groups.to_le_bytes()); // ANAGRPMAX
            put(&mut page, 348, &self.ana_groups.to_le_bytes()); // NANAGRPID
            put(&mut page, 540, &self.max_nsid.to_le_bytes()); // MNAN
        }
        page[512] = 0x66; // SQES
        page[513] = 0x44; // CQES
        put(&mut page, 516, &self.max_nsid.to_le_bytes());
        // ONCS: Compare, Dataset Management, Write Zeroes, reservations, Verify.
        put(&mut page, 520, &(1u16 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 7).to_le_bytes());
        page[522] = 1; // FUSES: Compare and Write.
        // VWC: there is a cache; no Flush for all namespaces at once. Hosts read it when they
        // connect, and namespaces with a cache may come later: of the others a Flush costs nothing.
        page[525] = 1 | 0b10 << 1;
        put(&mut page, 1792, &(4 + self.in_capsule_bytes / 16).to_le_bytes());
        page
    }

    /// Events that it can report: `OAES`.
    #[must_use]
    pub fn events(&self) -> u32 {
        match (self.is_discovery, self.ana_groups > 0) {
            (true, _) => events::DISCOVERY,
            (false, false) => events::NAMESPACE_ATTRIBUTES,
            (false, true) => events::NAMESPACE_ATTRIBUTES | events::ANA,
        }
    }
}

/// RESCAP: all six kinds, keys ignored as of version 1.3. Bit 0, that they may outlive the target,
/// is not always so.
pub const RESERVATIONS: u8 = 0xfe;

/// RTD3E: how long a shutdown may take, in microseconds, since what was written is flushed before:
/// Linux waits so long, 5 s at least and 60 s at most.
pub const SHUTDOWN_US: u32 = 30_000_000;

/// KAS: a second, in units of 100 ms.
pub const KEEP_ALIVE_GRANULARITY: u16 = 10;

/// ANATT: how long a port may be on its way to another state.
pub const ANA_TRANSITION_SECS: u8 = 10;

/// What a namespace is here, and by the port that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Way {
    /// Its group; 0 where ports do not differ.
    pub ana_group: u32,
    /// Whether there is no way to its blocks.
    pub is_blocked: bool,
    /// Whether its reservations may outlive the target.
    pub keeps_reservations: bool,
}

impl Way {
    /// RESCAP.
    fn reservations(self) -> u8 {
        RESERVATIONS | u8::from(self.keeps_reservations)
    }
}

/// What a namespace says of itself.
#[derive(Debug, Clone, Copy)]
pub struct Namespace {
    /// Blocks.
    pub blocks: u64,
    /// log2 of the bytes of a block.
    pub block_shift: u8,
    /// Its identifier.
    pub uuid: [u8; 16],
    /// Whether it can only be read.
    pub is_read_only: bool,
    /// Whether blocks that were deallocated read as zeros.
    pub deallocates: bool,
}

impl Namespace {
    /// The page of the namespace.
    ///
    /// # Source
    ///
    /// NVM command set, "Identify Namespace"; reference 10.2.6.
    #[must_use]
    pub fn page(&self, way: Way) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        // Size and capacity; and use, which nobody knows of without a way to it.
        for at in if way.is_blocked { 0..2 } else { 0..3 } {
            put(&mut page, at * 8, &self.blocks.to_le_bytes());
        }
        put(&mut page, 92, &way.ana_group.to_le_bytes());
        page[30] = 1; // NMIC: shared.
        page[31] = way.reservations(); // RESCAP
        page[33] = if self.deallocates { 0b1001 } else { 0 }; // DLFEAT
        page[99] = self.is_read_only.into(); // NSATTR
        put(&mut page, 104, &self.uuid); // NGUID
        page[128 + 2] = self.block_shift; // LBAF 0: LBADS
        page
    }

    /// The page of its identifiers.
    ///
    /// # Source
    ///
    /// NVM Express base, "Namespace Identification Descriptor"; reference 10.2.5.
    #[must_use]
    pub fn descriptors(&self) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        put(&mut page, 0, &[2, 16]); // NGUID
        put(&mut page, 4, &self.uuid);
        put(&mut page, 20, &[3, 16]); // UUID
        put(&mut page, 24, &self.uuid);
        put(&mut page, 40, &[4, 1]); // Command set: NVM.
        page
    }

    /// The page of what holds for any command set: shared, ready.
    #[must_use]
    pub fn common(&self, way: Way) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        put(&mut page, 4, &way.ana_group.to_le_bytes());
        page[1] = 1; // NMIC
        page[2] = way.reservations(); // RESCAP
        page[8] = self.is_read_only.into(); // NSATTR
        page[14] = 1; // NSTAT: ready.
        page
    }
}

/// Blocks of the namespace that a page is of, and log2 of their bytes; `None` for one that is not
/// there, or whose blocks have less than 512 bytes or more than 64 KiB.
///
/// # Source
///
/// NVM command set, "Identify Namespace"; reference 10.2.6.
#[must_use]
pub fn geometry(page: &[u8]) -> Option<(u64, u8)> {
    let blocks = u64::from_le_bytes(*page.first_chunk()?);
    // FLBAS: the low four bits, and two more above the metadata's.
    let flbas = *page.get(26)?;
    let format = usize::from(flbas & 0xf | flbas >> 1 & 0x30);
    let shift = *page.get(128 + 4 * format + 2)?;
    (blocks > 0 && (9..=16).contains(&shift)).then_some((blocks, shift))
}

/// What the NVM command set says of the controller: Verify and Write Zeroes have the limit of
/// transfers, because each is done in one go.
///
/// # Source
///
/// NVM command set, "I/O Command Set specific Identify Controller"; reference 10.2.5.
#[must_use]
pub fn nvm_controller(mdts: u8) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    page[0] = mdts; // VSL
    page[1] = mdts; // WZSL
    page
}

/// A page of namespace numbers above `after`, in ascending order.
#[must_use]
pub fn namespace_list(nsids: impl Iterator<Item = u32>, after: u32) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    for (slot, nsid) in page.chunks_exact_mut(4).zip(nsids.filter(|nsid| *nsid > after)) {
        slot.copy_from_slice(&nsid.to_le_bytes());
    }
    page
}

/// A page of controller numbers from `first` on: how many, and they, in ascending order.
#[must_use]
pub fn controller_list(cntlids: &mut Vec<u16>, first: u16) -> [u8; PAGE_BYTES] {
    cntlids.retain(|cntlid| *cntlid >= first);
    cntlids.sort_unstable();
    cntlids.truncate(PAGE_BYTES / 2 - 1);
    let mut page = [0; PAGE_BYTES];
    put(&mut page, 0, &(cntlids.len() as u16).to_le_bytes());
    for (slot, cntlid) in page[2..].chunks_exact_mut(2).zip(cntlids) {
        slot.copy_from_slice(&cntlid.to_le_bytes());
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROLLER: Controller<'_> = Controller {
        serial: "ABC",
        model: "ferrocx",
        cntlid: 0x0102,
        is_discovery: false,
        subnqn: "nqn.2014-08.a:s",
        mdts: 8,
        entries: 128,
        in_capsule_bytes: 4096,
        max_nsid: 16,
        ana_groups: 0,
    };

    /// Every byte that is not zero, from the table by hand.
    #[test]
    fn the_controller_page_has_the_bytes_of_the_table() {
        let page = CONTROLLER.page();
        assert_eq!(&page[4..24], b"ABC                 ");
        assert_eq!(&page[24..64], b"ferrocx                                 ");
        assert_eq!(page[76..84], [2, 8, 2, 1, 0, 4, 1, 0]);
        assert_eq!(page[84..92], [0, 0, 0, 0, 0x80, 0xc3, 0xc9, 0x01], "0x01c9c380 us are 30 s");
        assert_eq!(page[92..100], [0, 1, 0, 0, 0x41, 0, 0, 0]);
        assert_eq!((page[111], page[258], page[259], page[261]), (1, 3, 3, 6));
        assert_eq!(page[320..322], [10, 0]);
        assert_eq!(page[512..522], [0x66, 0x44, 128, 0, 16, 0, 0, 0, 0xad, 0]);
        assert_eq!((page[522], page[525]), (1, 0b101));
        assert_eq!(page[536..540], [5, 0, 0x10, 0]);
        assert_eq!(&page[768..784], b"nqn.2014-08.a:s\0");
        // 64 and 4096 bytes in units of 16.
        assert_eq!(page[1792..1804], [4, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 16]);
        assert_eq!(page[1804..1807], [1, 0, 0], "Disconnect");
    }

    #[test]
    fn the_discovery_page_says_what_it_is() {
        let page = Controller { is_discovery: true, ..CONTROLLER }.page();
        assert_eq!((page[111], page[1806]), (2, 1));
        assert_eq!(page[92..96], [0, 0, 0, 0x80]);
        assert_eq!(page[516..520], [0; 4], "no namespaces");
        assert_eq!(page[1792..1796], [4, 0, 0, 0], "no data in capsules");
    }

    #[test]
    fn the_namespace_pages_have_the_bytes_of_the_tables() {
        let uuid = std::array::from_fn(|at| at as u8 + 1);
        let ns = Namespace {
            blocks: 0x1234,
            block_shift: 9,
            uuid,
            is_read_only: false,
            deallocates: true,
        };
        let page = ns.page(Way::default());
        assert_eq!(page[..8], [0x34, 0x12, 0, 0, 0, 0, 0, 0]);
        assert_eq!(page[8..24], [page[..8].to_vec(), page[..8].to_vec()].concat());
        assert_eq!((page[30], page[31], page[33], page[130]), (1, 0xfe, 9, 9));
        assert_eq!(page[104..120], uuid);
        let ids = ns.descriptors();
        assert_eq!((&ids[..4], &ids[4..20]), ([2, 16, 0, 0].as_slice(), uuid.as_slice()));
        assert_eq!((&ids[20..24], &ids[24..40]), ([3, 16, 0, 0].as_slice(), uuid.as_slice()));
        assert_eq!(ids[40..48], [4, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(page[92..96], [0; 4]);
        let way = Way { ana_group: 0x0302, is_blocked: true, keeps_reservations: true };
        let page = ns.page(way);
        assert_eq!((&page[..2], &page[16..18]), (&[0x34, 0x12][..], &[0, 0][..]));
        assert_eq!(page[92..96], [2, 3, 0, 0]);
        assert_eq!(ns.common(way)[4..8], [2, 3, 0, 0]);
        assert_eq!(ns.common(way)[14], 1);
        assert_eq!(geometry(&page), Some((0x1234, 9)));
        assert_eq!((geometry(&[0; PAGE_BYTES]), geometry(&page[..100])), (None, None));
        let mut other = page;
        (other[26], other[128 + 4 * 0x11 + 2]) = (0x21, 12);
        assert_eq!(geometry(&other), Some((0x1234, 12)));
        assert_eq!((page[31], ns.common(way)[2], ns.common(Way::default())[2]), (0xff, 0xff, 0xfe));
    }

    #[test]
    fn zeros_are_limited_like_transfers() {
        assert_eq!(nvm_controller(8)[..4], [8, 8, 0, 0]);
    }

    #[test]
    fn lists_begin_where_they_are_asked_to() {
        let page = namespace_list([1, 2, 7].into_iter(), 1);
        assert_eq!(page[..12], [2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        let page = controller_list(&mut vec![9, 3, 5], 4);
        assert_eq!(page[..8], [2, 0, 5, 0, 9, 0, 0, 0]);
        assert_eq!(namespace_list(1..=2000, 0)[4092..], 1024u32.to_le_bytes());
    }
}
