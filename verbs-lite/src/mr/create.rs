//! Making memory keys: CREATE_MKEY with the pages of a contiguous range.

use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use ferrocx_core::{Handle, Kind};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::objects::CreateMkey;
use ferrocx_prm::mkey::{ANY_QPN, AccessMode, Mkc};

use super::{Memory, Mr, Registration};
use crate::command::Execute;
use crate::error::VerbsError;
use crate::pd::{Pd, PdCore};
use crate::types::Access;

/// Page sizes of an MTT key. Source: reference 5.1.
pub(crate) const MIN_LOG_PAGE: u32 = 12;
const MAX_LOG_PAGE: u32 = 31;

/// Creates an mkey; `tail` holds the translation entries, big-endian.
pub(crate) fn create_mkey(pd: &PdCore, mkc: Mkc, mut tail: Vec<u8>) -> Result<Handle, VerbsError> {
    tail.resize(tail.len().next_multiple_of(16), 0);
    let octowords = (tail.len() / 16) as u32;
    let input = CreateMkey::input()
        .with_memory_key_mkey_entry(mkc)
        .with_translations_octword_actual_size(octowords);
    let device = pd.core.device();
    let index = device.execute::<CreateMkey>(&input, &tail, &mut [])?.mkey_index();
    Ok(Handle::new(device, Kind::Mkey, index, Vec::new()))
}

/// The context of a key of this domain, usable by all its queue pairs.
pub(crate) fn context(pd: &PdCore, mode: AccessMode, access: Access) -> Mkc {
    let mkc = Mkc::zeroed().with_access_mode(mode).with_qpn(ANY_QPN).with_pd(pd.number());
    access.apply(mkc)
}

/// The largest page for which addresses of the key and of the bus agree inside a page.
fn log_page(start: u64, iova: u64, len: u64) -> u32 {
    let fits = len.max(1).next_power_of_two().trailing_zeros();
    let agree = (start ^ iova).trailing_zeros();
    agree.min(fits).clamp(MIN_LOG_PAGE, MAX_LOG_PAGE)
}

pub(super) fn contiguous(
    pd: &Pd,
    memory: &Arc<Memory>,
    range: Range<usize>,
    access: Access,
) -> Result<Mr, VerbsError> {
    check(pd, memory, access)?;
    memory.check(&range)?;
    let iova = memory.iova() + range.start as u64;
    let len = (range.end - range.start) as u64;
    let start = if access.contains(Access::ZERO_BASED) {
        if !range.start.is_multiple_of(1 << MIN_LOG_PAGE) {
            return Err(VerbsError::Access(ferrocx_mempool::AccessError::Misaligned));
        }
        0
    } else {
        memory.virtual_address() + range.start as u64
    };
    let log_page = log_page(start, iova, len);
    let page = 1u64 << log_page;
    let first = iova & !(page - 1);
    let tail = (first..iova + len).step_by(1 << log_page).flat_map(u64::to_be_bytes).collect();
    let pages = (iova + len - first).div_ceil(page);
    let variant = pd.inner.core.next_variant().into();
    let mkc = context(&pd.inner, AccessMode::MTT, access)
        .with_mkey_7_0(variant)
        .with_start_addr(start)
        .with_len(len)
        .with_log_page_size(log_page)
        .with_translations_octword_size(pages.div_ceil(2) as u32);
    let handle = create_mkey(&pd.inner, mkc, tail)?;
    let lkey = handle.number() << 8 | variant;
    let registration = Registration {
        key: Mutex::new(Some(handle)),
        lkey,
        access,
        start,
        len,
        offset: Some(range.start),
        memory: Arc::clone(memory),
        _others: Vec::new(),
        domain: pd.domain(),
        _pd: Arc::clone(&pd.inner),
        _dma: None,
        windows: AtomicU32::new(0),
    };
    registration.into_mr()
}

/// Checks that every registration needs.
pub(super) fn check(pd: &Pd, memory: &Memory, access: Access) -> Result<(), VerbsError> {
    if !access.is_consistent() {
        return Err(VerbsError::RemoteWithoutLocalWrite);
    }
    if memory.peer() != 0 && access.contains(Access::MW_BIND) {
        let (what, way_out) = ("memory windows over peer memory", "grant the region's own key");
        return Err(VerbsError::Unsupported { what, way_out });
    }
    if !Arc::ptr_eq(memory.core(), &pd.inner.core) {
        return Err(VerbsError::OtherDevice { what: "the memory" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_as_large_as_both_addresses_allow() {
        assert_eq!(log_page(0x7f00_0000_0000, 0x1_0000_0000, 4 << 20), 22);
        assert_eq!(log_page(0x7f00_0000_0000, 0x1_0020_0000, 4 << 20), 21);
        assert_eq!(log_page(0x7f00_0000_1000, 0x1_0000_0000, 4 << 20), 12);
        assert_eq!(log_page(0x7f00_0000_0123, 0x1_0000_0123, 6000), 13);
        assert_eq!(log_page(0, 0, u64::MAX >> 8), 31);
    }
}
