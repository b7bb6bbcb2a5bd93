//! The Ethernet segment of a send WQE. Source: reference 6.3.

use ferrocx_prm::layout::Part;
use ferrocx_prm::wqe::{DS_BYTES, ETH_VLAN_INSERT, Eth};

use crate::queue::wqe::{WqeFault, word};

/// Reserved bits of the Ethernet segment's `cs_flags` word. Source: reference 6.3.
const ETH_FLAGS_RESERVED: u32 = 0x0fcc_0000;

/// The Ethernet segment of a WQE, decoded.
#[derive(Debug, Clone, Copy)]
pub(super) struct EthSegment<'a> {
    pub(super) l3_csum: bool,
    pub(super) l4_csum: bool,
    pub(super) mss: usize,
    /// The tag to insert, and whether it is an S-tag.
    pub(super) vlan: Option<(bool, u16)>,
    /// Inline start of the packet.
    pub(super) inline: &'a [u8],
    /// Where the data segments start, in bytes from the start of the WQE.
    pub(super) end: usize,
}

impl<'a> EthSegment<'a> {
    /// Reads the segment behind the control segment of `wqe`.
    #[inline]
    pub(super) fn read(wqe: &'a [u8]) -> Result<Self, WqeFault> {
        let Some(bytes) = wqe.get(DS_BYTES..2 * DS_BYTES) else {
            let value = (wqe.len() / DS_BYTES) as u64;
            return Err(WqeFault::operation("ctrl.ds", value, "no room for an Ethernet segment"));
        };
        let eth = Eth::load(bytes);
        let flags = word(bytes, 4);
        if flags & ETH_FLAGS_RESERVED != 0 {
            let value = (flags & ETH_FLAGS_RESERVED).into();
            return Err(WqeFault::operation("eth.cs_flags", value, "a reserved bit is set"));
        }
        // Neither the software parser nor tunnels are among the capabilities.
        if word(bytes, 0) != 0 || flags & 0x0033_0000 != 0 {
            let value = word(bytes, 0).into();
            return Err(WqeFault::operation("eth.swp", value, "no software parser"));
        }
        if eth.l3_inner_csum() || eth.l4_inner_csum() {
            return Err(WqeFault::operation("eth.cs_flags", flags.into(), "no tunnel offloads"));
        }
        let size = eth.inline_hdr_sz();
        let mut segment = Self {
            l3_csum: eth.l3_csum(),
            l4_csum: eth.l4_csum(),
            mss: eth.mss() as usize,
            vlan: None,
            inline: &[],
            end: 2 * DS_BYTES,
        };
        if size & ETH_VLAN_INSERT != 0 {
            if size & !(ETH_VLAN_INSERT | 1) != 0 {
                let why = "VLAN insertion excludes an inline header";
                return Err(WqeFault::operation("eth.inline_hdr_sz", size.into(), why));
            }
            let tci = u16::from_be_bytes([bytes[14], bytes[15]]);
            segment.vlan = Some((size & 1 != 0, tci));
            return Ok(segment);
        }
        // The inline bytes start at 0x0e of the segment, which is padded to 16.
        let start = DS_BYTES + 14;
        let Some(inline) = wqe.get(start..start + size as usize) else {
            let why = "the inline header is longer than the WQE";
            return Err(WqeFault::operation("eth.inline_hdr_sz", size.into(), why));
        };
        segment.inline = inline;
        segment.end = (start + inline.len()).next_multiple_of(DS_BYTES).max(2 * DS_BYTES);
        Ok(segment)
    }
}
