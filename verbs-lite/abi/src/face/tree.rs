//! Files of the kernel's drivers that programs look for besides the library: UCX leaves out a
//! device without a character device, and asks sysfs for the version of RoCE.
//!
//! There is no such file, and an ordinary user can make none. So UCX's own look at these paths is
//! led to files that say what the kernel's would.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, memfd_create};

use super::hooks::{Replacement, redirect};

/// The character device, and one that everybody may open.
const DEVICE: &CStr = c"/dev/infiniband/uverbs0";
const NOTHING: &CStr = c"/dev/null";
/// Where types of GIDs stand, a file an index, and what each says.
const TYPES: &[u8] = b"/sys/class/infiniband/ferrocx0/ports/1/gid_attrs/types/";
const ROCE_V2: &[u8] = b"RoCE v2\n";

/// Leads UCX's calls here, if it is loaded.
pub(super) fn show_to_ucx() {
    let calls = [
        Replacement { name: c"open", function: open as *const c_void },
        Replacement { name: c"stat", function: stat as *const c_void },
        Replacement { name: c"__xstat", function: xstat as *const c_void },
        Replacement { name: c"access", function: access as *const c_void },
    ];
    redirect("libuct_ib", &calls);
    redirect("libucs", &calls);
}

/// A file of its own without a name, and the path that leads to it as long as the process lives.
fn gid_type() -> Option<&'static CStr> {
    static PATH: OnceLock<Option<CString>> = OnceLock::new();
    let make = || {
        let file = memfd_create("ferrocx-gid-type", MemfdFlags::CLOEXEC).ok()?;
        rustix::io::write(&file, ROCE_V2).ok()?;
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
        // It is open until the process ends.
        std::mem::forget(file);
        path
    };
    PATH.get_or_init(make).as_deref()
}

/// What stands in the place of a path, if it is one of these.
fn instead(path: &CStr) -> Option<&'static CStr> {
    if path == DEVICE {
        return Some(NOTHING);
    }
    let index = path.to_bytes().strip_prefix(TYPES)?;
    index.iter().all(u8::is_ascii_digit).then(gid_type)?
}

/// The path to use.
fn placed(path: *const c_char) -> *const c_char {
    if path.is_null() {
        return path;
    }
    instead(promised!(CStr::from_ptr(path))).map_or(path, CStr::as_ptr)
}

unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    promised!(libc::open(placed(path), flags, mode))
}

unsafe extern "C" fn stat(path: *const c_char, out: *mut libc::stat) -> c_int {
    promised!(libc::stat(placed(path), out))
}

/// How `stat` was called before version 2.33 of the C library.
unsafe extern "C" fn xstat(_version: c_int, path: *const c_char, out: *mut libc::stat) -> c_int {
    promised!(stat(path, out))
}

unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    promised!(libc::access(placed(path), mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_paths_of_the_device_are_led_elsewhere() {
        assert_eq!(instead(DEVICE), Some(NOTHING));
        assert_eq!(instead(c"/dev/infiniband/uverbs1"), None);
        assert_eq!(instead(c"/sys/class/infiniband/ferrocx0/ports/1/gid_attrs/types/x"), None);
        let path = instead(c"/sys/class/infiniband/ferrocx0/ports/1/gid_attrs/types/0").unwrap();
        assert_eq!(std::fs::read(path.to_str().unwrap()).unwrap(), ROCE_V2);
    }
}
