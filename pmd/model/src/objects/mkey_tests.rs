use ferrocx_prm::mkey::Mkc;
use proptest::prelude::*;

use super::*;

const PD: u32 = 0x21;
const READ: Rights = Rights::LOCAL_READ;

fn key(start: u64, len: u64, translation: Translation) -> Mkey {
    Mkey {
        variant: 0x5a,
        is_free: false,
        pd: PD,
        qpn: ANY_QPN,
        rights: Rights::LOCAL_READ | Rights::LOCAL_WRITE,
        start,
        len: Some(len),
        translation,
        pin: None,
        context: Mkc::zeroed(),
    }
}

fn pa() -> Mkey {
    Mkey { len: None, ..key(0, 0, Translation::Pa) }
}

fn mtt(start: u64, len: u64, pages: &[u64]) -> Mkey {
    key(start, len, Translation::Mtt { pages: pages.to_vec(), log_page_size: 12, pg_access: false })
}

/// Pieces by length, key and address.
fn klm(pieces: &[(u64, u32, u64)]) -> Translation {
    let pieces = pieces.iter().map(|(len, key, va)| (*len, Place { key: *key, va: *va }));
    Translation::Klm(KlmList::new(pieces))
}

/// Adds a key; returns the number that a descriptor carries.
fn add(table: &mut MkeyTable, key: Mkey) -> u32 {
    let variant = u32::from(key.variant);
    table.insert(key).expect("room") << 8 | variant
}

fn access(key: u32, addr: u64, len: u32) -> MemAccess {
    MemAccess::local(key, addr, len, READ, PD, false)
}

fn spans(table: &MkeyTable, access: &MemAccess) -> Result<Vec<(u64, u32)>, MkeyFault> {
    Ok(table.translate(access)?.map(|span| (span.iova, span.len)).collect())
}

fn fault(table: &MkeyTable, access: &MemAccess) -> MkeyFault {
    table.translate(access).expect_err("refused")
}

#[test]
fn the_reserved_lkey_is_for_queues_that_may_and_local_access_only() {
    let table = MkeyTable::new(8, &Budget::new(u64::MAX));
    let reserved = |rights, rlky| MemAccess::local(RESERVED_LKEY, 0x1234, 99, rights, 0, rlky);
    assert_eq!(spans(&table, &reserved(READ, true)), Ok(vec![(0x1234, 99)]));
    assert_eq!(spans(&table, &reserved(Rights::LOCAL_WRITE, true)), Ok(vec![(0x1234, 99)]));
    assert_eq!(fault(&table, &reserved(READ, false)), MkeyFault::Reserved);
    assert_eq!(fault(&table, &reserved(Rights::REMOTE_READ, true)), MkeyFault::Reserved);
}

#[test]
fn a_pa_key_covers_everything_but_a_wrap() {
    let mut table = MkeyTable::new(8, &Budget::new(u64::MAX));
    let key = add(&mut table, pa());
    assert_eq!(spans(&table, &access(key, u64::MAX - 9, 10)), Ok(vec![(u64::MAX - 9, 10)]));
    assert_eq!(fault(&table, &access(key, u64::MAX - 9, 11)), MkeyFault::Bounds);
    assert_eq!(spans(&table, &access(key, 5, 0)), Ok(vec![]), "no byte, no span");
}

#[test]
fn each_check_has_its_own_fault() {
    let mut table = MkeyTable::new(8, &Budget::new(u64::MAX));
    let key = add(&mut table, pa());
    let good = access(key, 0x1000, 8);
    assert!(table.translate(&good).is_ok());
    assert_eq!(fault(&table, &access(0x99_9900, 0, 1)), MkeyFault::UnknownKey);
    assert_eq!(fault(&table, &access(key ^ 1, 0, 1)), MkeyFault::Variant);
    assert_eq!(fault(&table, &MemAccess { pd: PD + 1, ..good }), MkeyFault::Pd);
    let remote = MemAccess { rights: Rights::REMOTE_WRITE, ..good };
    assert_eq!(fault(&table, &remote), MkeyFault::Rights);
    let tied = add(&mut table, Mkey { qpn: 7, ..pa() });
    assert_eq!(fault(&table, &access(tied, 0, 1)), MkeyFault::Qpn);
    assert!(table.translate(&MemAccess { qpn: 7, ..access(tied, 0, 1) }).is_ok());
    let free = add(&mut table, Mkey { is_free: true, ..pa() });
    assert_eq!(fault(&table, &access(free, 0, 1)), MkeyFault::Free);
    table.remove(key >> 8);
    assert_eq!(fault(&table, &good), MkeyFault::UnknownKey);
}

#[test]
fn an_mtt_key_starts_inside_its_first_page() {
    let mut table = MkeyTable::new(8, &Budget::new(u64::MAX));
    let key = add(&mut table, mtt(0x5_0800, 0x1900, &[0xa000, 0xc000, 0x7000]));
    assert_eq!(spans(&table, &access(key, 0x5_0800, 4)), Ok(vec![(0xa800, 4)]));
    assert_eq!(
        spans(&table, &access(key, 0x5_0800, 0x1900)),
        Ok(vec![(0xa800, 0x800), (0xc000, 0x1000), (0x7000, 0x100)])
    );
    assert_eq!(spans(&table, &access(key, 0x5_20ff, 1)), Ok(vec![(0x70ff, 1)]));
    assert_eq!(fault(&table, &access(key, 0x5_20ff, 2)), MkeyFault::Bounds);
    assert_eq!(fault(&table, &access(key, 0x5_07ff, 1)), MkeyFault::Bounds);
    let wraps = access(key, u64::MAX, 2);
    assert_eq!(fault(&table, &wraps), MkeyFault::Bounds);
}

#[test]
fn page_bits_count_only_when_asked_to() {
    let mut table = MkeyTable::new(8, &Budget::new(u64::MAX));
    let pages = vec![0xa000 | 1, 0xb000 | 2];
    let with = |pg_access| {
        key(0, 0x2000, Translation::Mtt { pages: pages.clone(), log_page_size: 12, pg_access })
    };
    let (strict, lenient) = (add(&mut table, with(true)), add(&mut table, with(false)));
    let write = |key, addr| MemAccess::local(key, addr, 4, Rights::LOCAL_WRITE, PD, false);
    assert_eq!(spans(&table, &access(strict, 0, 4)), Ok(vec![(0xa000, 4)]));
    assert_eq!(fault(&table, &access(strict, 0x1000, 4)), MkeyFault::Rights);
    assert_eq!(fault(&table, &write(strict, 0)), MkeyFault::Rights);
    assert_eq!(spans(&table, &write(strict, 0x1000)), Ok(vec![(0xb000, 4)]));
    assert_eq!(spans(&table, &access(lenient, 0x1000, 4)), Ok(vec![(0xb000, 4)]));
    let across = access(strict, 0xffe, 4);
    assert_eq!(fault(&table, &across), MkeyFault::Rights, "refused before its first byte");
}

#[test]
fn klm_pieces_of_any_length_lead_to_other_keys() {
    let mut table = MkeyTable::new(8, &Budget::new(u64::MAX));
    let below = add(&mut table, pa());
    let pieces = [(3, below, 0x100), (0x2000, below, 0x9000)];
    let klm = add(&mut table, key(0x40, 0x2003, klm(&pieces)));
    assert_eq!(spans(&table, &access(klm, 0x41, 6)), Ok(vec![(0x101, 2), (0x9000, 4)]));
    let missing = add(&mut table, key(0, 8, self::klm(&[(4, below, 0)])));
    assert_eq!(fault(&table, &access(missing, 0, 5)), MkeyFault::Indirection);
}

#[test]
fn ksm_pieces_have_equal_length() {
    let mut table = MkeyTable::new(8, &Budget::new(u64::MAX));
    let below = add(&mut table, mtt(0, 0x3000, &[0xa000, 0xc000, 0xe000]));
    let pieces = vec![Place { key: below, va: 0x2000 }, Place { key: below, va: 0 }];
    let ksm = add(&mut table, key(0, 0x2000, Translation::Ksm { pieces, log_entity_size: 12 }));
    assert_eq!(spans(&table, &access(ksm, 0xffc, 8)), Ok(vec![(0xeffc, 4), (0xa000, 4)]));
}

#[test]
fn peers_need_rights_to_the_first_key_only() {
    let mut table = MkeyTable::new(64, &Budget::new(u64::MAX));
    let remote = Rights::REMOTE_WRITE;
    let read_only = add(&mut table, Mkey { rights: Rights::LOCAL_READ, ..pa() });
    let below = add(&mut table, pa());
    let over = |table: &mut MkeyTable, key_below, rights| {
        let pieces = klm(&[(0x1000, key_below, 0x700)]);
        add(table, Mkey { rights, ..key(0, 0x1000, pieces) })
    };
    let write = |key| MemAccess { rights: remote, ..access(key, 4, 8) };
    for leaf in [below, RESERVED_LKEY] {
        let granted = over(&mut table, leaf, remote);
        assert_eq!(spans(&table, &write(granted)), Ok(vec![(0x704, 8)]));
        let local = over(&mut table, leaf, Rights::LOCAL_WRITE);
        assert_eq!(fault(&table, &write(local)), MkeyFault::Rights);
    }
    let granted = over(&mut table, read_only, remote);
    assert_eq!(fault(&table, &write(granted)), MkeyFault::Rights, "nobody may write there");
    assert_eq!(fault(&table, &write(RESERVED_LKEY)), MkeyFault::Reserved);
}

#[test]
fn indirection_has_a_depth() {
    let mut table = MkeyTable::new(16, &Budget::new(u64::MAX));
    let mut top = add(&mut table, pa());
    let over = |below| {
        let pieces = vec![Place { key: below, va: 0 }];
        key(0, 0x1000, Translation::Ksm { pieces, log_entity_size: 12 })
    };
    for _ in 0..MAX_INDIRECTION {
        top = add(&mut table, over(top));
    }
    assert_eq!(spans(&table, &access(top, 8, 8)), Ok(vec![(8, 8)]));
    top = add(&mut table, over(top));
    assert_eq!(fault(&table, &access(top, 8, 8)), MkeyFault::Indirection);
    // A key that leads to itself ends too.
    let index = table.insert(pa()).expect("room");
    let own = index << 8 | 0x5a;
    *table.get_mut(index).expect("exists") = over(own);
    assert_eq!(fault(&table, &access(own, 0, 1)), MkeyFault::Indirection);
}

#[test]
fn each_level_checks_its_own_key() {
    let mut table = MkeyTable::new(16, &Budget::new(u64::MAX));
    let foreign = add(&mut table, Mkey { pd: PD + 1, ..pa() });
    let small = add(&mut table, mtt(0, 0x800, &[0xa000]));
    for (below, expected) in [(foreign, MkeyFault::Pd), (small, MkeyFault::Bounds)] {
        let top = add(&mut table, key(0, 0x1000, klm(&[(0x1000, below, 0x700)])));
        assert_eq!(fault(&table, &access(top, 0, 0x200)), expected);
    }
}

/// Lists of one-byte pieces, four deep: what an access costs is bounded by its length, not by the
/// length of the lists times it.
#[test]
fn nested_lists_cost_a_few_steps_for_each_piece() {
    const PIECES: u64 = 1 << 16;
    let mut table = MkeyTable::new(16, &Budget::new(u64::MAX));
    let mut top = add(&mut table, pa());
    for _ in 0..MAX_INDIRECTION {
        let bytes = (0..PIECES).map(|va| (1, Place { key: top, va }));
        let list = Translation::Klm(KlmList::new(bytes));
        top = add(&mut table, key(0, PIECES, list));
    }
    let len = 4096;
    let last = access(top, PIECES - u64::from(len), len);
    assert_eq!(spans(&table, &last).expect("permitted").len(), 4096);
    // Twice for each byte: once to check, once to go.
    let levels = u64::from(MAX_INDIRECTION) + 1;
    assert!(table.steps() <= 2 * u64::from(len) * levels * 4, "{} steps", table.steps());
}

/// A peer may ask for 2 GiB at once, and is answered or refused at a bounded cost.
#[test]
fn an_access_that_needs_too_many_pieces_is_refused() {
    const PIECES: u64 = 1 << 16;
    let mut table = MkeyTable::new(16, &Budget::new(u64::MAX));
    let below = add(&mut table, pa());
    let bytes = (0..PIECES).map(|va| (1, Place { key: below, va }));
    let low = add(&mut table, key(0, PIECES, Translation::Klm(KlmList::new(bytes))));
    let lists = (0..PIECES).map(|_| (PIECES, Place { key: low, va: 0 }));
    let top = add(&mut table, key(0, PIECES * PIECES, Translation::Klm(KlmList::new(lists))));
    assert_eq!(fault(&table, &access(top, 0, 1 << 31)), MkeyFault::Steps);
    assert!(table.steps() <= 2 * MAX_STEPS, "{} steps", table.steps());
    // As much through pages costs little, also where each has bits of its own.
    for pg_access in [false, true] {
        let pages = (0..1 << 19).map(|page| page << 12 | 3).collect();
        let pages = Translation::Mtt { pages, log_page_size: 12, pg_access };
        let key = add(&mut table, key(0, 1 << 31, pages));
        let before = table.steps();
        assert!(table.translate(&access(key, 0, 1 << 31)).is_ok());
        assert!(table.steps() - before <= 1 << 17, "{} steps", table.steps() - before);
    }
}

#[test]
fn a_changed_list_is_searched_anew() {
    let mut table = MkeyTable::new(16, &Budget::new(u64::MAX));
    let below = add(&mut table, pa());
    let top =
        add(&mut table, key(0, 30, klm(&[(10, below, 0), (10, below, 100), (10, below, 200)])));
    assert_eq!(spans(&table, &access(top, 25, 1)), Ok(vec![(205, 1)]));
    let changed = &mut table.get_mut(top >> 8).expect("the key").translation;
    changed.replace(0, [(1, Place { key: below, va: 0 })].into_iter());
    assert_eq!(spans(&table, &access(top, 10, 2)), Ok(vec![(109, 1), (200, 1)]));
    assert_eq!(fault(&table, &access(top, 25, 1)), MkeyFault::Indirection);
}

proptest! {
    /// Spans cover the access byte by byte as a table of single bytes says.
    #[test]
    fn spans_agree_with_a_table_of_bytes(
        pages in prop::collection::vec(0_u64..64, 1..8),
        start in 0_u64..0x3000,
        from in 0_u64..0x8000,
        len in 0_u32..0x5000,
    ) {
        let pages: Vec<u64> = pages.iter().map(|page| page << 12).collect();
        let size = (pages.len() as u64 * 0x1000) - (start & 0xfff);
        let mut table = MkeyTable::new(1, &Budget::new(u64::MAX));
        let key = add(&mut table, mtt(start, size, &pages));
        let wanted = access(key, start + from, len);
        let is_inside = from + u64::from(len) <= size;
        match table.translate(&wanted) {
            Ok(found) => {
                prop_assert!(is_inside);
                let bytes_of = |span: Span| (span.iova..).take(span.len as usize);
                let bytes: Vec<u64> = found.flat_map(bytes_of).collect();
                let expected: Vec<u64> = (0..u64::from(len))
                    .map(|i| (start & 0xfff) + from + i)
                    .map(|at| pages[(at >> 12) as usize] + (at & 0xfff))
                    .collect();
                prop_assert_eq!(bytes, expected);
            }
            Err(fault) => {
                prop_assert!(!is_inside);
                prop_assert_eq!(fault, MkeyFault::Bounds);
            }
        }
    }
}

#[test]
fn addresses_at_the_end_of_all_addresses_wrap() {
    let mut table = MkeyTable::new(16, &Budget::new(u64::MAX));
    // Entries that a request wrote are not looked at before they are used.
    let odd = add(&mut table, mtt(0, 0x2000, &[!7, !7]));
    assert_eq!(spans(&table, &access(odd, 0x10, 8)), Ok(vec![(8, 8)]));
    let across = spans(&table, &access(odd, 0xfff, 2)).expect("both pages are there");
    assert_eq!(across, [(0xff7, 1), (!7, 1)]);
    // A key of the whole address space that starts within a page.
    let whole = add(&mut table, Mkey { len: None, ..mtt(0x1fff, 0, &[0x7000]) });
    assert_eq!(spans(&table, &access(whole, 0x1fff, 1)), Ok(vec![(0x7fff, 1)]));
    assert_eq!(spans(&table, &access(whole, 0x1000, 8)), Ok(vec![(0x7000, 8)]));
    assert_eq!(fault(&table, &access(whole, 0xfff, 0x10)), MkeyFault::Bounds);
}
