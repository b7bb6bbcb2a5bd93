//! Memory of user contexts: the objects, and the keys that are made of it.
//!
//! A queue that lies in such memory copies the pages that it needs and keeps a pin, which goes with
//! it; so no path that removes a queue can forget to let go.
//!
//! Source: reference 4.2, 4.11; `mlx5_ifc_umem_bits`.

use ferrocx_prm::cmd::user::{
    CreateUmem, CreateUmemOut, DestroyUmem, DestroyUmemOut, Umem as UmemContext,
};
use ferrocx_prm::syndrome::CommandStatus;

use super::handler::{Exec, add, parse, plain, remove};
use crate::bits::be64;
use crate::device::caps::log_max;
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::{Objects, Pin, Umem};

/// Smallest page of a device, as `log_page_size` counts from it.
const LOG_PAGE_BASE: u32 = 12;
/// Pages of a list in one cache line: as much work as a look at an entry of a key.
const PAGES_PER_LINE: u64 = 8;
/// Bits of a page address that grant access. Source: reference 5.1, `pg_access`.
const PAGE_READ: u64 = 1;
const PAGE_WRITE: u64 = 2;
const PAGE_FLAGS: u64 = 7;

pub(super) fn create(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<CreateUmem>(bytes, |op_mod| op_mod == 0)?;
    let umem = decode(&input.fixed.umem(), input.tail)?;
    let umem_id = add(&mut exec.ctx.state.objects.umems, "umem_id", umem)?;
    Ok(CreateUmemOut::zeroed().with_umem_id(umem_id).0.to_vec())
}

fn decode(context: &UmemContext, tail: &[u8]) -> Answer<Umem> {
    ensure(!context.ats(), || Refused::param("ats", 1_u32, "not advertised"))?;
    let log_page_size = LOG_PAGE_BASE + context.log_page_size();
    let page_bytes = 1_u64 << log_page_size;
    let page_offset = u64::from(context.page_offset());
    ensure(page_offset < page_bytes, || {
        Refused::param("page_offset", page_offset, "not in the first page")
    })?;
    let count = context.num_of_mtt();
    ensure(count != 0, || Refused::param("num_of_mtt", count, "memory without a page"))?;
    let given = (tail.len() / 8) as u64;
    ensure(count <= given, || {
        Refused::new(CommandStatus::BAD_INPUT_LEN, "mtt", given, "fewer pages than num_of_mtt")
    })?;
    let entries = tail.chunks_exact(8).take(usize::try_from(count).unwrap_or(0)).map(be64);
    let is_writable = entries.clone().all(|entry| entry & PAGE_WRITE != 0);
    let pages: Vec<u64> = entries.map(|entry| entry & !PAGE_FLAGS).collect();
    for page in &pages {
        ensure(page.is_multiple_of(page_bytes) && page.checked_add(page_bytes).is_some(), || {
            Refused::param("mtt", *page, "not aligned to the page size, or past the address space")
        })?;
    }
    Ok(Umem { pages, log_page_size, page_offset, is_writable, pin: Pin::default() })
}

pub(super) fn destroy(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroyUmem>(exec, input, |exec, input| {
        let umem_id = input.umem_id();
        let umems = &mut exec.ctx.state.objects.umems;
        let is_used = umems.get(umem_id).is_some_and(Umem::is_used);
        ensure(!is_used, || Refused::busy("umem_id", umem_id))?;
        remove(umems, "umem_id", umem_id)?;
        Ok(DestroyUmemOut::zeroed())
    })
}

/// Pages of 2^`log_page_size` bytes for a key of `len` bytes, whose first lies at an offset in user
/// memory; each as a key has it, with what it permits; and whether that is to write.
pub(super) fn key_pages(
    objects: &Objects,
    (id, offset): (u32, u64),
    log_page_size: u32,
    (start, len): (u64, u64),
) -> Answer<(Vec<u64>, Pin, bool)> {
    let umem = find(objects, "mkey_umem_id", id)?;
    ensure((LOG_PAGE_BASE..=umem.log_page_size).contains(&log_page_size), || {
        Refused::param("log_page_size", log_page_size, "above that of the user memory, or below 12")
    })?;
    let end = offset.checked_add(len);
    ensure(end.is_some_and(|end| end <= umem.len_bytes()), || {
        Refused::param("mkey_umem_offset", offset, "the region ends behind its user memory")
    })?;
    let page_bytes = 1_u64 << log_page_size;
    let first = umem.page_offset + offset;
    ensure(first % page_bytes == start % page_bytes, || {
        let why = "the region starts elsewhere in its page than start_addr";
        Refused::param("mkey_umem_offset", offset, why)
    })?;
    let count = (first % page_bytes).saturating_add(len).div_ceil(page_bytes);
    // Two pages stand in an octword of the list.
    ensure(count <= 2 << log_max::MTT, || {
        let why = "more pages than a key of this device has";
        Refused::new(CommandStatus::EXCEED_LIM, "mkc.len", count, why)
    })?;
    // A page of user memory can be as long as its address says: asked before it is written out.
    let bytes = count * size_of::<u64>() as u64;
    let _paid =
        objects.budget.charge(bytes).map_err(|full| Refused::full("mkc.len", full.into()))?;
    objects.mkeys.work(count / PAGES_PER_LINE);
    let rights = if umem.is_writable { PAGE_READ | PAGE_WRITE } else { PAGE_READ };
    let pages = (first - first % page_bytes..first + len).step_by(1 << log_page_size);
    let address = |at: u64| {
        let page = usize::try_from(at >> umem.log_page_size).unwrap_or(usize::MAX);
        (umem.pages[page] + (at & ((1 << umem.log_page_size) - 1))) | rights
    };
    Ok((pages.map(address).collect(), umem.pin.clone(), umem.is_writable))
}

/// The user memory of this number, if the caller may name it.
pub(super) fn find<'a>(objects: &'a Objects, field: &'static str, id: u32) -> Answer<&'a Umem> {
    let umem = objects.umems.get(id).filter(|_| objects.umems.contains(id));
    umem.ok_or_else(|| Refused::resource(field, id))
}
