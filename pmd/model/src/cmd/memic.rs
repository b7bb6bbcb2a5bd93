//! Commands about memory of the device, and the keys that are made of it.
//!
//! Source: reference 4.12.

use std::ops::Range;

use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::memic::{AllocMemic, AllocMemicOut, DeallocMemic, DeallocMemicOut};
use ferrocx_prm::init_seg::uar::PAGE_BYTES;
use ferrocx_prm::mkey::Mkc;
use ferrocx_prm::syndrome::CommandStatus;

use super::handler::{Exec, Handler, plain};
use crate::device::caps::memic;
use crate::device::refused::{Answer, Refused, ensure};
use crate::device::state::State;
use crate::objects::Pin;
use crate::objects::device_memory::{NoPiece, NotFreed};
use crate::objects::mkey::Translation;

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::ALLOC_MEMIC => alloc,
        Opcode::DEALLOC_MEMIC => dealloc,
        _ => return None,
    })
}

/// I/O address of the first byte of the BAR, as far as it is memory.
fn base(state: &State) -> Answer<u64> {
    let lacks = || {
        let why = "the device has no memory";
        Refused::new(CommandStatus::BAD_OP, "opcode", Opcode::ALLOC_MEMIC.0, why)
    };
    let base = state.memory_iova.filter(|_| state.caps.general().device_memory());
    base.map(|iova| iova - memic::BAR.start).ok_or_else(lacks)
}

fn alloc(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<AllocMemic>(exec, input, |exec, input| {
        base(exec.ctx.state)?;
        let len = input.memic_size();
        ensure(
            len.is_multiple_of(memic::UNIT) && (memic::UNIT..=memic::BYTES).contains(&len),
            || {
                let why = "not a multiple of 64 bytes, none, or above max_memic_size";
                Refused::param("memic_size", len, why)
            },
        )?;
        let log_align = input.log_memic_addr_alignment();
        ensure(log_align <= memic::LOG_MAX_ALIGNMENT, || {
            let why = "above log_max_memic_addr_alignment";
            Refused::param("log_memic_addr_alignment", log_align, why)
        })?;
        let start = input.range_start_addr();
        let end = start.checked_add(input.range_size().into());
        let range = end.map(|end| start..end).filter(|range| {
            let is_inside = memic::BAR.start <= range.start && range.end <= memic::BAR.end;
            is_inside && (range.start | range.end).is_multiple_of(PAGE_BYTES)
        });
        let range = range.ok_or_else(|| {
            Refused::param("range_start_addr", start, "not whole pages of the memory in the BAR")
        })?;
        let align = u64::from(memic::UNIT) << log_align;
        let objects = &mut exec.ctx.state.objects;
        let most = memic::BYTES.into();
        let piece = objects.device_memory.alloc(&range, len.into(), align, most);
        let (start, pages) = piece.map_err(|no| refused(no, start, len))?;
        exec.ctx.side.open_memory(pages, true);
        Ok(AllocMemicOut::zeroed().with_memic_start_addr(start))
    })
}

/// A driver tries the next pages where these are not to be had, and gives up where there is no
/// memory. Source: reference 4.12.
fn refused(no: NoPiece, start: u64, len: u32) -> Refused {
    let status = CommandStatus::NO_RESOURCES;
    match no {
        NoPiece::Shown => {
            let why = "the pages show another piece";
            Refused::new(status, "range_start_addr", start, why)
        }
        NoPiece::Fit => {
            let why = "the aligned piece does not fit the range";
            Refused::new(status, "range_size", len, why)
        }
        NoPiece::Memory => {
            let why = "the memory of the device, or the function's budget, is used up";
            Refused::new(CommandStatus::EXCEED_LIM, "memic_size", len, why)
        }
    }
}

fn dealloc(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DeallocMemic>(exec, input, |exec, input| {
        base(exec.ctx.state)?;
        let start = input.memic_start_addr();
        let end = start.saturating_add(input.memic_size().into());
        let freed = exec.ctx.state.objects.device_memory.free(&(start..end));
        let pages = freed.map_err(|not| match not {
            NotFreed::Unknown => Refused::resource("memic_start_addr", start),
            NotFreed::Used => Refused::busy("memic_start_addr", start),
        })?;
        exec.ctx.side.open_memory(pages, false);
        Ok(DeallocMemicOut::zeroed())
    })
}

/// The translation of a key over memory of the device. Its own addresses begin at 0.
pub(super) fn key_memory(
    state: &State,
    context: &Mkc,
    octwords: u32,
) -> Answer<(Translation, Pin)> {
    let base = base(state)?;
    ensure(octwords == 0 && context.translations_octword_size() == 0, || {
        let field = "translations_octword_actual_size";
        Refused::param(field, octwords, "a key over device memory has no translations")
    })?;
    ensure(!context.length64() && !context.free(), || {
        let why = "a key over device memory has a length, and is in use";
        Refused::param("length64, free", 1_u32, why)
    })?;
    let start = context.start_addr();
    let range: Option<Range<u64>> = start.checked_add(context.len()).map(|end| start..end);
    let pin = range.and_then(|range| state.objects.device_memory.pin(&range));
    let pin = pin.ok_or_else(|| {
        Refused::param("start_addr", start, "the region is not inside memory that was allocated")
    })?;
    Ok((Translation::Memic { iova: base + start }, pin))
}
