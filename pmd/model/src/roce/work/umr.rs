//! Requests that change memory keys: register, invalidate, re-key, bind; and invalidation by peers.
//!
//! A request is checked as a whole before anything changes.
//!
//! Source: reference 5.1, 6.4.

use ferrocx_prm::Layout;
use ferrocx_prm::layout::Part;
use ferrocx_prm::mkey::{ANY_QPN, AccessMode, Klm, Ksm, Mkc};
use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_prm::wqe::{DS_BYTES, Data, UmrCtrl, mkey_mask};

use super::env::Env;
use crate::bits::be64;
use crate::device::caps::log_max;
use crate::objects::mkey::{MemAccess, Mkey, Place, RESERVED_LKEY, Rights, Translation};
use crate::objects::{Qp, QpType, SendJob};
use crate::queue::dma;
use crate::queue::wqe::WqeFault;

/// Where the parts of the WQE stand. Source: reference 6.4.
const UMR_AT: usize = DS_BYTES;
const MKEY_AT: usize = 0x40;
const LIST_AT: usize = 0x80;
/// Longest list of one request: 16 bits of 16-byte units.
const OCTWORD_BYTES: usize = 16;
const PAGES_PER_OCTWORD: usize = 2;

/// Fields that a request may change.
const KNOWN: u64 = mkey_mask::LEN
    | mkey_mask::PAGE_SIZE
    | mkey_mask::START_ADDR
    | mkey_mask::PD
    | mkey_mask::EN_RINVAL
    | mkey_mask::KEY
    | mkey_mask::QPN
    | mkey_mask::LR
    | mkey_mask::LW
    | mkey_mask::RR
    | mkey_mask::RW
    | mkey_mask::A
    | mkey_mask::SMALL_FENCE
    | mkey_mask::FREE
    | mkey_mask::RELAXED_ORDERING_READ
    | mkey_mask::RELAXED_ORDERING_WRITE;

fn bind(field: &'static str, value: impl Into<u64>, why: &'static str) -> WqeFault {
    WqeFault { syndrome: CqeSyndrome::MW_BIND_ERR, field, value: value.into(), why }
}

/// The driver's own UMR queue pair stands above protection domains. Source: Linux 6.12, which
/// creates it without one and changes keys of all domains through it.
fn is_privileged(qp: &Qp) -> bool {
    qp.qp_type == QpType::RegUmr
}

/// Carries out a UMR WQE.
pub(super) fn execute(qp: &Qp, env: &mut Env<'_>, job: &SendJob) -> Result<(), WqeFault> {
    let wqe = &job.wqe;
    let (Some(umr), Some(new)) = (wqe.get(UMR_AT..MKEY_AT), wqe.get(MKEY_AT..LIST_AT)) else {
        let why = "too short for a UMR request";
        return Err(WqeFault::operation("ctrl.ds", wqe.len() as u64, why));
    };
    let (umr, new) = (UmrCtrl::load(umr), Mkc::load(new));
    let rkey = job.ctrl.imm();
    let mask = umr.mkey_mask();
    if mask & !KNOWN != 0 {
        return Err(bind("umr.mkey_mask", mask & !KNOWN, "a field that cannot be changed"));
    }
    let key = env.keys.get(rkey >> 8);
    let key = key.ok_or_else(|| bind("ctrl.imm", rkey, "no mkey has this index"))?;
    check_key(qp, env.qpn, key, rkey, &umr, mask, &new)?;
    // Changed as a whole or not at all.
    let list = list(qp, env, wqe, &umr)?;
    let first = if umr.xlt_octowords() == 0 { 0 } else { check_list(key, &umr, &list)? };
    let list = if matches!(key.translation, Translation::Klm(_)) { unroll(list)? } else { list };
    check_reach(qp, key, &list)?;
    let context = changed_context(key, mask, &new)?;
    let pd = context.pd();
    if pd != key.pd && env.pds.get(pd).is_none() {
        return Err(bind("mkey.pd", pd, "no such protection domain"));
    }
    let per_octword = if is_mtt(key) { PAGES_PER_OCTWORD } else { 1 };
    let entries = list.len() / (OCTWORD_BYTES / per_octword);
    if entries != 0
        && env
            .keys
            .make_room(rkey >> 8, first * per_octword, first * per_octword + entries)
            .is_err()
    {
        let why = "no memory is left for the list";
        return Err(bind("umr.xlt_octowords", umr.xlt_octowords(), why));
    }
    let Some(key) = env.keys.get_mut(rkey >> 8) else { return Ok(()) };
    apply_list(key, first, &list);
    let was_free = std::mem::replace(&mut key.is_free, context.free());
    let counts = &mut *env.key_counts;
    *match (was_free, key.is_free) {
        (true, false) => &mut counts.umr_registrations,
        (false, true) => &mut counts.local_invalidates,
        _ => &mut counts.umr_changes,
    } += 1;
    // The domain that it is in from now on is the one that stays as long as it.
    if pd != key.pd {
        env.pds.release(key.pd);
        env.pds.hold(pd);
    }
    key.adopt(context);
    Ok(())
}

fn is_mtt(key: &Mkey) -> bool {
    matches!(key.translation, Translation::Mtt { .. })
}

/// Fields of a key over I/O addresses that say which of them it reaches, and for what: of whoever
/// chooses the addresses.
const REACH: u64 = mkey_mask::LEN
    | mkey_mask::PAGE_SIZE
    | mkey_mask::START_ADDR
    | mkey_mask::LR
    | mkey_mask::LW
    | mkey_mask::RR
    | mkey_mask::RW
    | mkey_mask::A;

/// Checks that a request leaves what a key reaches to those that may choose I/O addresses: whole
/// pages lie behind it, of which its program was given a part, and maybe to read only.
fn check_fields(qp: &Qp, key: &Mkey, mask: u64) -> Result<(), WqeFault> {
    let is_of_keys = matches!(key.translation, Translation::Klm(_) | Translation::Ksm { .. });
    let chooses = is_privileged(qp) || qp.context.fre() && key.pin.is_none();
    if is_of_keys || chooses || mask & REACH == 0 {
        return Ok(());
    }
    let why = "bounds or rights of pages, from a queue pair without fre or of a user context";
    Err(bind("umr.mkey_mask", mask & REACH, why))
}

fn check_key(
    qp: &Qp,
    qpn: u32,
    key: &Mkey,
    rkey: u32,
    umr: &UmrCtrl,
    mask: u64,
    new: &Mkc,
) -> Result<(), WqeFault> {
    if !key.context.umr_en() || matches!(key.translation, Translation::Memic { .. }) {
        let why = "the mkey was created without umr_en, or over device memory";
        return Err(bind("ctrl.imm", rkey, why));
    }
    if !is_privileged(qp) {
        if key.pd != qp.context.pd() {
            return Err(bind("ctrl.imm", rkey, "the mkey belongs to another protection domain"));
        }
        // Or it could hand its domain's keys to others.
        if mask & mkey_mask::PD != 0 && new.pd() != key.pd {
            let why = "only the driver's own queue pair moves keys to another protection domain";
            return Err(bind("mkey.pd", new.pd(), why));
        }
    }
    check_fields(qp, key, mask)?;
    // The request names no mode to change it, but its entries have one: reference 6.4, "entries".
    // libmlx5 leaves it out, which is 0.
    let mode = new.access_mode();
    if umr.xlt_octowords() != 0 && mode != AccessMode::PA && mode != key.context.access_mode() {
        return Err(bind("mkey.access_mode", mode.0, "the mkey was created with another mode"));
    }
    // The variant of a request that sets it is the new one.
    if mask & mkey_mask::KEY == 0 && u32::from(key.variant) != rkey & 0xff {
        return Err(bind("ctrl.imm", rkey, "the mkey has another variant byte now"));
    }
    // Bit 5 of the flags wants a free key, bit 6 one in use. Source: reference 6.4, "Check field".
    if umr.check_free() && !key.is_free {
        return Err(bind("umr.flags", rkey, "the mkey is not free"));
    }
    if umr.check_not_free() && key.is_free {
        return Err(bind("umr.flags", rkey, "the mkey is free"));
    }
    if umr.check_qpn() && key.qpn != ANY_QPN && key.qpn != qpn {
        return Err(bind("umr.flags", rkey, "the mkey is tied to another queue pair"));
    }
    let frees = mask & mkey_mask::FREE != 0 && new.free();
    if frees && key.is_free {
        return Err(bind("mkey.free", rkey, "the mkey is free already"));
    }
    Ok(())
}

/// The translation entries of a request: inline, or where its data segment points.
fn list(qp: &Qp, env: &Env<'_>, wqe: &[u8], umr: &UmrCtrl) -> Result<Vec<u8>, WqeFault> {
    let octwords = umr.xlt_octowords() as usize;
    let len = octwords * OCTWORD_BYTES;
    if len == 0 {
        return Ok(Vec::new());
    }
    let rest = wqe.get(LIST_AT..).unwrap_or_default();
    if umr.inline() {
        let inline = rest.get(..len).ok_or_else(|| {
            bind("umr.xlt_octowords", octwords as u64, "more than stands in the WQE")
        })?;
        return Ok(inline.to_vec());
    }
    let segment = rest.get(..DS_BYTES).map(Data::load);
    let data = segment.ok_or_else(|| bind("ctrl.ds", wqe.len() as u64, "no data segment"))?;
    let len = len.min(data.byte_count() as usize);
    let mut bytes = vec![0; len];
    let pd = match env.keys.get(data.lkey() >> 8) {
        Some(key) if is_privileged(qp) => key.pd,
        _ => qp.context.pd(),
    };
    let access = MemAccess {
        key: data.lkey(),
        addr: data.addr(),
        len: u32::try_from(len).unwrap_or(u32::MAX),
        rights: Rights::LOCAL_READ,
        pd,
        rlky: qp.context.rlky(),
        qpn: env.qpn,
    };
    dma::fetch(env.mem, env.keys, &access, &mut bytes).map_err(|refused| {
        let (syndrome, why) = (refused.syndrome(), refused.why());
        WqeFault { syndrome, field: "data.lkey", value: data.lkey().into(), why }
    })?;
    Ok(bytes)
}

/// Checks that a list has its place in the translation table; gives the place, in octwords.
fn check_list(key: &Mkey, umr: &UmrCtrl, list: &[u8]) -> Result<usize, WqeFault> {
    let offset = if umr.translation_offset_en() {
        u64::from(umr.xlt_offset_47_16()) << 16 | u64::from(umr.xlt_offset_15_0())
    } else {
        0
    };
    let room = u64::from(key.context.translations_octword_size());
    let octwords = list.len().div_ceil(OCTWORD_BYTES) as u64;
    // Lists are filled up to 64 bytes; the table need not have room for that.
    let room = room.next_multiple_of(4);
    if offset.saturating_add(octwords) > room {
        let why = "past translations_octword_size";
        return Err(bind("umr.xlt_octowords", offset.saturating_add(octwords), why));
    }
    if matches!(key.translation, Translation::Pa) {
        return Err(bind("umr.xlt_octowords", octwords, "a PA key has no translations"));
    }
    Ok(usize::try_from(offset).unwrap_or(usize::MAX))
}

/// Replaces entries of the translation table from octword `first` on, which was checked.
fn apply_list(key: &mut Mkey, first: usize, list: &[u8]) {
    if is_mtt(key) {
        let page = |entry: &[u8]| (0, Place { key: 0, va: be64(entry) });
        let pages = list.chunks_exact(OCTWORD_BYTES / PAGES_PER_OCTWORD).map(page);
        key.translation.replace(first * PAGES_PER_OCTWORD, pages);
    } else if matches!(key.translation, Translation::Klm(_)) {
        key.translation.replace(first, list.chunks_exact(OCTWORD_BYTES).map(klm));
    } else {
        let ksm = |entry: &[u8]| {
            let ksm = Ksm::read_from(entry).unwrap_or_default();
            (0, Place { key: ksm.mkey(), va: ksm.va() })
        };
        key.translation.replace(first, list.chunks_exact(OCTWORD_BYTES).map(ksm));
    }
}

/// Checks that a list reaches only what its sender may: I/O addresses are all of what the guest's
/// kernel mapped, and the memory of a user context is the kernel's to describe.
fn check_reach(qp: &Qp, key: &Mkey, list: &[u8]) -> Result<(), WqeFault> {
    if list.is_empty() || is_privileged(qp) {
        return Ok(());
    }
    if is_mtt(key) && (!qp.context.fre() || key.pin.is_some()) {
        let why = "I/O addresses from a queue pair without fre, or for memory of a user context";
        return Err(bind("ctrl.imm", key.context.mkey_7_0(), why));
    }
    if !is_mtt(key) && names_all_memory(list) && !qp.context.rlky() {
        let why = "the reserved L_Key in the list of a queue without rlky";
        return Err(bind("klm.mkey", RESERVED_LKEY, why));
    }
    Ok(())
}

/// Whether a list of keys has the reserved one, whose addresses are the whole of what the guest's
/// kernel mapped: programs inside it may not put it behind keys of theirs.
fn names_all_memory(list: &[u8]) -> bool {
    list.chunks_exact(OCTWORD_BYTES).any(|entry| klm(entry).1.key == RESERVED_LKEY)
}

/// Where a KLM has its key, a block of repeated entries has this.
///
/// Source: rdma-core `mlx5_wqe_umr_repeat_block_seg`, and `umr_strided_seg_create`.
const REPEAT_BLOCK: u32 = 0x400;

/// Entries as KLMs, one behind the other: a block that repeats its entries, each at its own stride,
/// is written out.
fn unroll(list: Vec<u8>) -> Result<Vec<u8>, WqeFault> {
    let word = |at: usize| u32::from_be_bytes(list[at..at + 4].try_into().unwrap_or_default());
    if list.len() < OCTWORD_BYTES || word(4) != REPEAT_BLOCK {
        return Ok(list);
    }
    let (repeats, count) = (u64::from(word(8)), word(12) & 0xffff);
    let entries = list[OCTWORD_BYTES..].get(..count as usize * OCTWORD_BYTES);
    let entries = entries.ok_or_else(|| {
        bind("repeat_block.num_ent", count, "more entries than stand in the list")
    })?;
    // Nothing, repeated, would take time without an entry that it is charged to.
    if count == 0 {
        return Err(bind("repeat_block.num_ent", count, "a block that repeats nothing"));
    }
    if repeats == 0 {
        return Err(bind("repeat_block.repeat_count", repeats, "a block that is repeated no time"));
    }
    if repeats * u64::from(count) > 1 << log_max::KLM {
        return Err(bind("repeat_block.repeat_count", repeats, "above log_max_klm_list_size"));
    }
    let mut klms = Vec::new();
    for turn in 0..repeats {
        for entry in entries.chunks_exact(OCTWORD_BYTES) {
            let half = |at: usize| u16::from_be_bytes([entry[at], entry[at + 1]]);
            let place = Klm::read_from(entry).unwrap_or_default();
            let va = place.va().wrapping_add(turn * u64::from(half(0)));
            let klm = Klm::zeroed().with_byte_count(half(2).into()).with_mkey(place.mkey());
            klms.extend(klm.with_va(va).0);
        }
    }
    Ok(klms)
}

fn klm(entry: &[u8]) -> (u64, Place) {
    let klm = Klm::read_from(entry).unwrap_or_default();
    // Entries that only fill up the list are all zero.
    let len = match (klm.byte_count(), klm.mkey()) {
        (0, 0) => 0,
        // 0 stands for 2^31. Source: reference 5.1, marked as not verified.
        (0, _) => 1 << 31,
        (count, _) => u64::from(count),
    };
    (len, Place { key: klm.mkey(), va: klm.va() })
}

/// The context of a key with the fields that the mask selects, checked.
fn changed_context(key: &Mkey, mask: u64, new: &Mkc) -> Result<Mkc, WqeFault> {
    let has = |bit: u64| mask & bit != 0;
    let mut context = key.context;
    if has(mkey_mask::LEN) {
        context = context.with_len(new.len()).with_length64(new.length64());
    }
    if has(mkey_mask::START_ADDR) {
        context = context.with_start_addr(new.start_addr());
    }
    if has(mkey_mask::PAGE_SIZE) {
        context = context.with_log_page_size(new.log_page_size());
    }
    if has(mkey_mask::PD) {
        context = context.with_pd(new.pd());
    }
    if has(mkey_mask::EN_RINVAL) {
        context = context.with_en_rinval(new.en_rinval());
    }
    if has(mkey_mask::KEY) {
        context = context.with_mkey_7_0(new.mkey_7_0());
    }
    if has(mkey_mask::QPN) {
        context = context.with_qpn(new.qpn());
    }
    context = take_rights(context, mask, new);
    if has(mkey_mask::FREE) {
        context = context.with_free(new.free());
    }
    check_context(key, &context, has(mkey_mask::PAGE_SIZE))?;
    Ok(context)
}

/// Takes the access rights that the mask names.
fn take_rights(mut context: Mkc, mask: u64, new: &Mkc) -> Mkc {
    let has = |bit: u64| mask & bit != 0;
    if has(mkey_mask::LR) {
        context = context.with_lr(new.lr());
    }
    if has(mkey_mask::LW) {
        context = context.with_lw(new.lw());
    }
    if has(mkey_mask::RR) {
        context = context.with_rr(new.rr());
    }
    if has(mkey_mask::RW) {
        context = context.with_rw(new.rw());
    }
    if has(mkey_mask::A) {
        context = context.with_a(new.a());
    }
    context
}

/// What CREATE_MKEY would refuse.
fn check_context(key: &Mkey, context: &Mkc, sets_page_size: bool) -> Result<(), WqeFault> {
    let log = context.log_page_size();
    let has_pages = matches!(key.translation, Translation::Mtt { .. } | Translation::Ksm { .. });
    if sets_page_size && has_pages && !(12..=31).contains(&log) {
        return Err(bind("mkey.log_page_size", log, "not from 12 to 31"));
    }
    let end = context.start_addr().checked_add(context.len().saturating_sub(1));
    if !context.length64() && end.is_none() {
        return Err(bind("mkey.len", context.len(), "the region wraps around the address space"));
    }
    Ok(())
}

/// A peer invalidates a key with its SEND. Source: reference 6.4; IBTA vol. 1, 10.6.5.2.
pub(super) fn invalidate_remotely(
    qp: &Qp,
    env: &mut Env<'_>,
    rkey: u32,
) -> Result<(), &'static str> {
    let key = env.keys.get_mut(rkey >> 8).ok_or("no mkey has this index")?;
    if u32::from(key.variant) != rkey & 0xff {
        return Err("the mkey has another variant byte now");
    }
    if key.is_free {
        return Err("the mkey is free already");
    }
    if !key.context.en_rinval() {
        return Err("the mkey does not permit invalidation by the peer");
    }
    if key.pd != qp.context.pd() {
        return Err("the mkey belongs to another protection domain");
    }
    if key.qpn != ANY_QPN && key.qpn != env.qpn {
        return Err("the mkey is tied to another queue pair");
    }
    key.is_free = true;
    key.context = key.context.with_free(true);
    env.key_counts.remote_invalidates += 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn repeated_entries_stand_each_at_its_stride() {
        let entries = [0x0100_0008, 0x4242, 1, 0x10, 0x0040_0004, 0x4343, 0, 0x9000];
        let block = |repeats: u32, count: u32| {
            let mut list = words(&[0, REPEAT_BLOCK, repeats, count]);
            list.extend(words(&entries));
            list
        };
        let unrolled = unroll(block(2, 2)).expect("good");
        let (first, second) = ([8, 0x4242, 1, 0x10], [4, 0x4343, 0, 0x9000]);
        let (third, fourth) = ([8, 0x4242, 1, 0x110], [4, 0x4343, 0, 0x9040]);
        assert_eq!(unrolled, words(&[first, second, third, fourth].concat()));
        assert_eq!(unroll(block(1, 3)).expect_err("too many").field, "repeat_block.num_ent");
        let endless = unroll(block(1 << 31, 2)).expect_err("too many");
        assert_eq!(endless.field, "repeat_block.repeat_count");
        let never = unroll(block(0, 2)).expect_err("no entry that is paid for");
        assert_eq!(never.field, "repeat_block.repeat_count");
        let plain = words(&entries);
        assert_eq!(unroll(plain.clone()).expect("no block"), plain);
    }
}
