//! Binding a mapping to a NUMA node before its first touch.
//!
//! Source: `mbind(2)`, `get_mempolicy(2)`, Linux `include/uapi/linux/mempolicy.h`.
#![expect(unsafe_code, reason = "mbind and get_mempolicy have no safe wrapper")]

use std::{fs, io};

use crate::error::MempoolError;

/// `MPOL_BIND`: allocate from these nodes only.
const MPOL_BIND: libc::c_ulong = 2;
/// `MPOL_F_NODE | MPOL_F_ADDR`: ask for the node on which the page of an address lies.
#[cfg(all(test, not(miri)))]
const MPOL_F_NODE_ADDR: libc::c_ulong = 1 | 2;
/// Node numbers above this are refused; the kernel's largest configuration (`NODES_SHIFT` 10).
const MAX_NODES: usize = 1024;
const MASK_WORDS: usize = MAX_NODES / libc::c_ulong::BITS as usize;

/// Checks that the node exists and is online.
///
/// # Errors
/// [`MempoolError::NumaNode`] with the list of those that are.
pub(crate) fn require(node: u32) -> Result<(), MempoolError> {
    // A kernel built without NUMA has no such file; it has node 0.
    let online = fs::read_to_string("/sys/devices/system/node/online").unwrap_or("0".to_owned());
    let online = online.trim();
    if (node as usize) < MAX_NODES && in_list(online, node) {
        Ok(())
    } else {
        Err(MempoolError::NumaNode { node, online: online.to_owned() })
    }
}

/// Whether the kernel's list format (`0-1,4`) contains `node`.
fn in_list(list: &str, node: u32) -> bool {
    list.split(',').any(|item| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(first), Ok(last)) => (first..=last).contains(&node),
            _ => false,
        }
    })
}

/// Binds the pages of a mapping to `node`. To be called before any page of it is touched: pages
/// that exist already stay where they are.
///
/// # Safety
/// `base..base + len` is a mapping of this process that lives through the call, and `base` is
/// aligned to its page size.
///
/// # Errors
/// Whatever `mbind` says; `ENOSYS` on a kernel without NUMA.
pub(crate) unsafe fn bind(base: *mut u8, len: usize, node: u32) -> io::Result<()> {
    let mut mask = [0 as libc::c_ulong; MASK_WORDS];
    let bits = libc::c_ulong::BITS as usize;
    mask[node as usize / bits] = 1 << (node as usize % bits);
    // SAFETY: the mapping is live (caller); the mask has `MAX_NODES` bits. The kernel reads
    // `maxnode - 1` bits of it.
    let rc = unsafe {
        libc::syscall(libc::SYS_mbind, base, len, MPOL_BIND, mask.as_ptr(), MAX_NODES + 1, 0)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The node on which the page at `addr` lies.
#[cfg(all(test, not(miri)))]
pub(crate) fn node_of(addr: *const u8) -> io::Result<u32> {
    let mut node: libc::c_int = -1;
    // SAFETY: the kernel writes one int to `node`, and validates `addr` itself.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            0usize,
            0usize,
            addr,
            MPOL_F_NODE_ADDR,
        )
    };
    if rc == 0 { Ok(node.unsigned_abs()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel() {
        assert!(in_list("0", 0));
        assert!(!in_list("0", 1));
        assert!(in_list("0-1,4", 4));
        assert!(in_list("0-3", 2));
        assert!(!in_list("0-1,4", 3));
        assert!(!in_list("", 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads /sys")]
    fn a_node_that_is_not_there_is_refused() {
        for node in [1023, 1024, u32::MAX] {
            let text = require(node).unwrap_err().to_string();
            assert!(text.contains(&node.to_string()) && text.contains("online"), "{text}");
        }
    }
}
