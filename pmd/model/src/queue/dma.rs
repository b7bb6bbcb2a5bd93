//! Host memory through memory keys: what a data segment of a descriptor reaches.

use ferrocx_bus::local::{DmaFault, DmaView};
use ferrocx_prm::syndrome::CqeSyndrome;

use crate::objects::mkey::{MemAccess, MkeyFault, MkeyTable, RESERVED_LKEY, Rights};

/// Reason for which an access through a data segment failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The key does not permit it.
    Key(MkeyFault),
    /// The key does, but behind it is an I/O address that is not mapped for this.
    Bus(DmaFault),
}

impl Refused {
    /// The syndrome that the completion carries.
    ///
    /// # Source
    /// Reference 6.7: 0x04 is "local protection error"; a fault behind the IOMMU ends the same way.
    #[must_use]
    pub fn syndrome(self) -> CqeSyndrome {
        CqeSyndrome::LOCAL_PROT_ERR
    }

    /// Explanation for the model's log.
    #[must_use]
    pub fn why(self) -> &'static str {
        match self {
            Self::Key(MkeyFault::UnknownKey) => "no mkey has this index",
            Self::Key(MkeyFault::Variant) => "the mkey has another variant byte now",
            Self::Key(MkeyFault::Free) => "the mkey is free: invalidated or never bound",
            Self::Key(MkeyFault::Pd) => "the mkey belongs to another protection domain",
            Self::Key(MkeyFault::Qpn) => "the mkey is tied to another queue",
            Self::Key(MkeyFault::Rights) => "the mkey does not permit this access",
            Self::Key(MkeyFault::Bounds) => "the range is not inside the mkey's region",
            Self::Key(MkeyFault::Reserved) => "reserved L_Key on a queue without rlky",
            Self::Key(MkeyFault::Indirection) => "indirect mkeys are nested too deep or end early",
            Self::Key(MkeyFault::Steps) => "the access needs too many pieces of indirect mkeys",
            Self::Bus(_) => "DMA fault: the I/O address is not mapped for this access",
        }
    }
}

/// The reserved L_Key where it is permitted: nothing to look up, nothing to check.
#[inline]
fn is_reserved(access: &MemAccess) -> bool {
    const LOCAL: Rights = Rights::LOCAL_READ.union(Rights::LOCAL_WRITE);
    access.key == RESERVED_LKEY && access.rlky && LOCAL.contains(access.rights)
}

/// Reads data: `out.len()` bytes, which is also the length of the access.
#[inline]
pub(crate) fn read(
    mem: &DmaView<'_>,
    keys: &MkeyTable,
    access: &MemAccess,
    out: &mut [u8],
) -> Result<(), Refused> {
    fetch(mem, keys, access, out)?;
    mem.note_data(out.len(), false);
    Ok(())
}

/// Reads what is no data, such as a list of pages.
#[inline]
pub(crate) fn fetch(
    mem: &DmaView<'_>,
    keys: &MkeyTable,
    access: &MemAccess,
    out: &mut [u8],
) -> Result<(), Refused> {
    if is_reserved(access) {
        return mem.read(access.addr, out).map_err(Refused::Bus);
    }
    fetch_by_key(mem, keys, access, out)
}

#[inline(never)]
fn fetch_by_key(
    mem: &DmaView<'_>,
    keys: &MkeyTable,
    access: &MemAccess,
    out: &mut [u8],
) -> Result<(), Refused> {
    if access.key != RESERVED_LKEY
        && let Some(iova) = keys.direct(access).map_err(Refused::Key)?
    {
        return mem.read(iova, out).map_err(Refused::Bus);
    }
    let mut done = 0;
    for span in keys.translate(access).map_err(Refused::Key)? {
        let end = done + span.len as usize;
        mem.read(span.iova, &mut out[done..end]).map_err(Refused::Bus)?;
        done = end;
    }
    Ok(())
}

/// Writes data: `src`, whose length is also the length of the access.
#[inline]
pub(crate) fn write(
    mem: &DmaView<'_>,
    keys: &MkeyTable,
    access: &MemAccess,
    src: &[u8],
) -> Result<(), Refused> {
    if is_reserved(access) {
        mem.write(access.addr, src).map_err(Refused::Bus)?;
    } else {
        write_by_key(mem, keys, access, src)?;
    }
    mem.note_data(src.len(), true);
    Ok(())
}

#[inline(never)]
fn write_by_key(
    mem: &DmaView<'_>,
    keys: &MkeyTable,
    access: &MemAccess,
    src: &[u8],
) -> Result<(), Refused> {
    if access.key != RESERVED_LKEY
        && let Some(iova) = keys.direct(access).map_err(Refused::Key)?
    {
        return mem.write(iova, src).map_err(Refused::Bus);
    }
    let mut done = 0;
    for span in keys.translate(access).map_err(Refused::Key)? {
        let end = done + span.len as usize;
        mem.write(span.iova, &src[done..end]).map_err(Refused::Bus)?;
        done = end;
    }
    Ok(())
}
