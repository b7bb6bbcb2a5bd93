//! Commands about basic objects: UAR pages, domains, memory keys.
//!
//! Source: reference 4.2 "Basic objects", 5.1.

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::objects::{
    AllocPd, AllocPdOut, AllocTransportDomain, AllocTransportDomainOut, AllocUar, AllocUarOut,
    AllocXrcd, AllocXrcdOut, CreateMkey, CreateMkeyIn, CreateMkeyOut, DeallocPd, DeallocPdOut,
    DeallocTransportDomain, DeallocTransportDomainOut, DeallocUar, DeallocUarOut, DeallocXrcd,
    DeallocXrcdOut, DestroyMkey, DestroyMkeyOut, QueryMkey, QueryMkeyOut,
};
use ferrocx_prm::mkey::{AccessMode, Klm, Ksm, Mkc};
use ferrocx_prm::syndrome::CommandStatus;

use super::handler::{Exec, Handler, add, drivers_only, no_tail, parse, plain, remove};
use super::{memic, umem};
use crate::bits::be64;
use crate::device::caps::log_max;
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::mkey::{KlmList, Mkey, Place, RESERVED_LKEY, Rights, Translation};
use crate::objects::{Objects, Pin, Uar};

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::ALLOC_UAR => alloc_uar,
        Opcode::DEALLOC_UAR => dealloc_uar,
        Opcode::ALLOC_PD => alloc_pd,
        Opcode::DEALLOC_PD => dealloc_pd,
        Opcode::ALLOC_TRANSPORT_DOMAIN => alloc_td,
        Opcode::DEALLOC_TRANSPORT_DOMAIN => dealloc_td,
        Opcode::ALLOC_XRCD => alloc_xrcd,
        Opcode::DEALLOC_XRCD => dealloc_xrcd,
        Opcode::CREATE_MKEY => create_mkey,
        Opcode::QUERY_MKEY => query_mkey,
        Opcode::DESTROY_MKEY => destroy_mkey,
        _ => return None,
    })
}

fn alloc_uar(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<AllocUar>(exec, input, |exec, _| {
        let state = &mut *exec.ctx.state;
        let uar = add(&mut state.objects.uars, "uar", Uar::default())?;
        state.objects.live_uars.push(uar);
        // What a former owner rang must not ring for the new one.
        exec.ctx.clear_uar(uar);
        Ok(AllocUarOut::zeroed().with_uar(uar))
    })
}

fn dealloc_uar(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DeallocUar>(exec, input, |exec, input| {
        let state = &mut *exec.ctx.state;
        remove(&mut state.objects.uars, "uar", input.uar())?;
        state.objects.live_uars.retain(|uar| *uar != input.uar());
        Ok(DeallocUarOut::zeroed())
    })
}

fn alloc_pd(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<AllocPd>(exec, input, |exec, _| {
        let pd = add(&mut exec.ctx.state.objects.pds, "pd", ())?;
        Ok(AllocPdOut::zeroed().with_pd(pd))
    })
}

fn dealloc_pd(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DeallocPd>(exec, input, |exec, input| {
        remove(&mut exec.ctx.state.objects.pds, "pd", input.pd())?;
        Ok(DeallocPdOut::zeroed())
    })
}

fn alloc_td(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<AllocTransportDomain>(exec, input, |exec, _| {
        let td = add(&mut exec.ctx.state.objects.tds, "transport_domain", ())?;
        Ok(AllocTransportDomainOut::zeroed().with_transport_domain(td))
    })
}

fn dealloc_td(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DeallocTransportDomain>(exec, input, |exec, input| {
        let td = input.transport_domain();
        remove(&mut exec.ctx.state.objects.tds, "transport_domain", td)?;
        Ok(DeallocTransportDomainOut::zeroed())
    })
}

fn alloc_xrcd(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<AllocXrcd>(exec, input, |exec, _| {
        let xrcd = add(&mut exec.ctx.state.objects.xrcds, "xrcd", ())?;
        Ok(AllocXrcdOut::zeroed().with_xrcd(xrcd))
    })
}

fn dealloc_xrcd(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DeallocXrcd>(exec, input, |exec, input| {
        remove(&mut exec.ctx.state.objects.xrcds, "xrcd", input.xrcd())?;
        Ok(DeallocXrcdOut::zeroed())
    })
}

fn create_mkey(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<CreateMkey>(bytes, |op_mod| op_mod == 0)?;
    let (fixed, tail) = (input.fixed, input.tail);
    let context = fixed.memory_key_mkey_entry();
    check_mkc(&context)?;
    let objects = &exec.ctx.state.objects;
    let pd = context.pd();
    ensure(objects.pds.contains(pd), || Refused::resource("pd", pd))?;
    // Nor may they reach memory of the device that the driver gave to others.
    let (mode, octwords) = (context.access_mode(), fixed.translations_octword_actual_size());
    drivers_only(objects, "access_mode", matches!(mode, AccessMode::PA | AccessMode::MEMIC))?;
    let (translation, pin) = if fixed.mkey_umem_valid() {
        let (translation, pin) = user_pages(objects, &fixed)?;
        (translation, Some(pin))
    } else if mode == AccessMode::MEMIC {
        let (translation, pin) = memic::key_memory(exec.ctx.state, &context, octwords)?;
        (translation, Some(pin))
    } else {
        drivers_only(objects, "klm_pas_mtt", mode == AccessMode::MTT && octwords != 0)?;
        (translation(&context, octwords, tail, fixed.pg_access())?, None)
    };
    drivers_only(objects, "klm_pas_mtt", translation.names(RESERVED_LKEY))?;
    let start = if mode == AccessMode::MEMIC { 0 } else { context.start_addr() };
    let key = Mkey {
        variant: u8::try_from(context.mkey_7_0()).unwrap_or(0),
        is_free: context.free(),
        pd,
        qpn: context.qpn(),
        rights: Rights::of(&context),
        start,
        len: (!context.length64()).then(|| context.len()),
        translation,
        pin,
        context,
    };
    let objects = &mut exec.ctx.state.objects;
    let index = objects.mkeys.insert(key).map_err(|full| Refused::full("mkey_index", full))?;
    objects.pds.hold(pd);
    Ok(CreateMkeyOut::zeroed().with_mkey_index(index).0.to_vec())
}

/// The translation of a key whose region lies in memory of a user context.
fn user_pages(objects: &Objects, input: &CreateMkeyIn) -> Answer<(Translation, Pin)> {
    let context = input.memory_key_mkey_entry();
    let (mode, log_page_size) = (context.access_mode(), context.log_page_size());
    ensure(mode == AccessMode::MTT && !context.free() && !context.length64(), || {
        Refused::param("access_mode", mode.0, "user memory is for keys of pages with a length")
    })?;
    let region = (context.start_addr(), context.len());
    let place = (input.mkey_umem_id(), input.mkey_umem_offset());
    let (pages, pin, is_writable) = umem::key_pages(objects, place, log_page_size, region)?;
    // What the kernel lent for reading only is not written, whatever the program says.
    let pg_access = input.pg_access() || !is_writable;
    Ok((Translation::Mtt { pages, log_page_size, pg_access }, pin))
}

/// Refuses what no capability advertises.
fn check_mkc(context: &Mkc) -> Answer<()> {
    let mode = context.access_mode();
    ensure(mode.0 <= AccessMode::KSM.0 || mode == AccessMode::MEMIC, || {
        Refused::param("access_mode", mode.0, "only PA, MTT, KLM, KSM and MEMIC are supported")
    })?;
    ensure(context.ma_translation_mode() == 0, || {
        let value = context.ma_translation_mode();
        Refused::param("ma_translation_mode", value, "ATS is not supported")
    })?;
    ensure(!context.bsf_en() && context.bsf_octword_size() == 0, || {
        Refused::param("bsf_en", 1_u32, "signatures are not supported")
    })?;
    ensure(!context.relaxed_ordering_write() && !context.relaxed_ordering_read(), || {
        Refused::param("relaxed_ordering", 1_u32, "relaxed ordering is not advertised")
    })?;
    ensure(!context.free() || context.umr_en(), || {
        Refused::param("free", 1_u32, "a free key without umr_en could never be bound")
    })?;
    let end = context.start_addr().checked_add(context.len().saturating_sub(1));
    ensure(context.length64() || end.is_some(), || {
        Refused::param("len", context.len(), "the region wraps around the address space")
    })
}

/// Decodes the translation table behind CREATE_MKEY.
fn translation(context: &Mkc, octwords: u32, tail: &[u8], pg_access: bool) -> Answer<Translation> {
    let bytes = octwords as usize * 16;
    ensure(tail.len() >= bytes, || {
        let status = CommandStatus::BAD_INPUT_LEN;
        let field = "translations_octword_actual_size";
        Refused::new(status, field, octwords, "the translation list is shorter")
    })?;
    let room = context.translations_octword_size();
    ensure(octwords <= room, || {
        let field = "translations_octword_actual_size";
        Refused::param(field, octwords, "more than translations_octword_size")
    })?;
    let entries = &tail[..bytes];
    let log_size = context.log_page_size();
    match context.access_mode() {
        AccessMode::PA => {
            ensure(octwords == 0, || {
                let field = "translations_octword_actual_size";
                Refused::param(field, octwords, "a PA key has no translations")
            })?;
            Ok(Translation::Pa)
        }
        AccessMode::MTT => mtt(context, entries, pg_access),
        AccessMode::KLM => {
            check_room(room, log_max::KLM, "above log_max_klm_list_size")?;
            Ok(Translation::Klm(KlmList::new(entries.chunks_exact(16).map(klm))))
        }
        _ => {
            check_room(room, log_max::KLM, "above log_max_klm_list_size")?;
            ensure(log_size >= 12, || {
                Refused::param("log_page_size", log_size, "entities below 4096 bytes")
            })?;
            let pieces = entries.chunks_exact(16).map(ksm).collect();
            Ok(Translation::Ksm { pieces, log_entity_size: log_size })
        }
    }
}

fn check_room(room: u32, log_limit: u32, why: &'static str) -> Answer<()> {
    ensure(room <= 1 << log_limit, || {
        let field = "translations_octword_size";
        Refused::new(CommandStatus::EXCEED_LIM, field, room, why)
    })
}

fn mtt(context: &Mkc, entries: &[u8], pg_access: bool) -> Answer<Translation> {
    let room = context.translations_octword_size();
    check_room(room, log_max::MTT, "more pages than a key of this device has")?;
    let log_page_size = context.log_page_size();
    // Pages below 4 KiB do not exist. Source: reference 5.1 (12..31).
    ensure((12..=31).contains(&log_page_size) || room == 0, || {
        Refused::param("log_page_size", log_page_size, "not from 12 to 31")
    })?;
    let page_bytes = 1_u64 << log_page_size.max(12);
    let pages: Vec<u64> = entries.chunks_exact(8).map(be64).collect();
    let within = context.start_addr() & (page_bytes - 1);
    let needed = context.len().saturating_add(within).div_ceil(page_bytes);
    let given = pages.len() as u64;
    ensure(pages.is_empty() || context.free() || needed <= given, || {
        let status = CommandStatus::BAD_INPUT_LEN;
        Refused::new(status, "klm_pas_mtt", given, "fewer pages than the region needs")
    })?;
    // The pad entry that makes the count even may hold anything. Source: reference 4.3.
    let used = usize::try_from(needed).unwrap_or(usize::MAX).min(pages.len());
    for page in &pages[..used] {
        ensure(page & (page_bytes - 1) & !7 == 0, || {
            Refused::param("klm_pas_mtt", *page, "not aligned to the page size")
        })?;
    }
    Ok(Translation::Mtt { pages, log_page_size: log_page_size.max(12), pg_access })
}

fn klm(entry: &[u8]) -> (u64, Place) {
    let klm = Klm::read_from(entry).unwrap_or_default();
    // 0 stands for 2^31. Source: reference 5.1, marked as not verified.
    let len = match klm.byte_count() {
        0 => 1 << 31,
        count => u64::from(count),
    };
    (len, Place { key: klm.mkey(), va: klm.va() })
}

fn ksm(entry: &[u8]) -> Place {
    let ksm = Ksm::read_from(entry).unwrap_or_default();
    Place { key: ksm.mkey(), va: ksm.va() }
}

fn query_mkey(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    // op_mod 1 asks for the BSF, which no key has.
    let input = parse::<QueryMkey>(bytes, |op_mod| op_mod == 0)?;
    no_tail(input.tail)?;
    let index = input.fixed.mkey_index();
    let key = exec.ctx.state.objects.mkeys.get(index);
    let key = key.ok_or_else(|| Refused::resource("mkey_index", index))?;
    let context = key.context.with_free(key.is_free).with_mkey_7_0(key.variant.into());
    Ok(QueryMkeyOut::zeroed().with_memory_key_mkey_entry(context).0.to_vec())
}

fn destroy_mkey(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroyMkey>(exec, input, |exec, input| {
        let index = input.mkey_index();
        let objects = &mut exec.ctx.state.objects;
        let key = objects.mkeys.remove(index);
        let key = key.ok_or_else(|| Refused::resource("mkey_index", index))?;
        objects.pds.release(key.pd);
        Ok(DestroyMkeyOut::zeroed())
    })
}
