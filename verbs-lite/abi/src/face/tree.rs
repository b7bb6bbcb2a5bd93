//! Files of the kernel's drivers that programs look for besides the library: UCX leaves out a
//! device without a character device and asks sysfs for the version of RoCE, scripts and
//! rdma-core's tests read properties of a port.
//!
//! There is no such file, and an ordinary user can make none. So looks at these paths are led to
//! files that say what the kernel's would: UCX's own looks, and, where [`SWITCH`] says so, those of
//! the program itself. `cxctl run` does, for what a program starts as well: the library is in that,
//! too. What is read so holds of every device of this library, whoever has it open.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, memfd_create};

use super::hooks::{Of, Replacement, redirect};
use crate::node::Node;

/// The variable of the environment that has a program find the files.
const SWITCH: &str = "FERROCX_SYSFS";
/// The character device, before its number, and one that everybody may open.
const DEVICE: &[u8] = b"/dev/infiniband/uverbs";
const NOTHING: &CStr = c"/dev/null";
/// Where properties of a device stand, before its number and a slash.
const FOLDER: &[u8] = b"/sys/class/infiniband/ferrocx";
/// The type of each GID, a file an index.
const GID_TYPES: &[u8] = b"ports/1/gid_attrs/types/";

/// The name of the board, as its file says it.
pub(super) const BOARD: &[u8] = b"ferrocx\n";

/// Files below the folder, and what each says. Source: Linux 6.12, drivers/infiniband/core/sysfs.c;
/// of `board_id`, drivers/infiniband/hw/mlx5/main.c.
static FILES: [File; 5] = [
    File::new(GID_TYPES, b"RoCE v2\n"),
    File::new(b"ports/1/pkeys/0", b"0xffff\n"),
    File::new(b"ports/1/link_layer", b"Ethernet\n"),
    File::new(b"node_type", b"1: CA\n"),
    File::new(b"board_id", BOARD),
];

/// A file, whose content lies in one without a name that is open as long as the process lives.
struct File {
    name: &'static [u8],
    content: &'static [u8],
    /// The path that leads to it.
    path: OnceLock<Option<CString>>,
}

impl File {
    const fn new(name: &'static [u8], content: &'static [u8]) -> Self {
        Self { name, content, path: OnceLock::new() }
    }

    /// Whether it is the file of a path below the folder.
    fn is_at(&self, path: &[u8]) -> bool {
        let Some(rest) = path.strip_prefix(self.name) else { return false };
        let is_index = !rest.is_empty() && rest.iter().all(u8::is_ascii_digit);
        if self.name == GID_TYPES { is_index } else { rest.is_empty() }
    }

    fn path(&self) -> Option<&CStr> {
        let make = || {
            let file = memfd_create("ferrocx-sysfs", MemfdFlags::CLOEXEC).ok()?;
            rustix::io::write(&file, self.content).ok()?;
            let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
            std::mem::forget(file);
            path
        };
        self.path.get_or_init(make).as_deref()
    }
}

/// Leads calls with paths here.
fn show_to(of: Of<'_>) {
    let calls = [
        Replacement { name: c"open", function: open as *const c_void },
        Replacement { name: c"open64", function: open as *const c_void },
        Replacement { name: c"openat", function: openat as *const c_void },
        Replacement { name: c"openat64", function: openat as *const c_void },
        Replacement { name: c"fopen", function: fopen as *const c_void },
        Replacement { name: c"fopen64", function: fopen as *const c_void },
        Replacement { name: c"stat", function: stat as *const c_void },
        Replacement { name: c"stat64", function: stat as *const c_void },
        Replacement { name: c"__xstat", function: xstat as *const c_void },
        Replacement { name: c"__xstat64", function: xstat as *const c_void },
        Replacement { name: c"access", function: access as *const c_void },
    ];
    redirect(of, &calls);
}

/// Leads UCX's calls here, if it is loaded.
pub(super) fn show_to_ucx() {
    show_to(Of::Library("libuct_ib"));
    show_to(Of::Library("libucs"));
}

/// Leads the calls of the program here, if the environment says so. Of a program in Python, those
/// that the interpreter makes for it.
extern "C" fn show_to_program() {
    if std::env::var_os(SWITCH).is_some_and(|value| value == "1") {
        show_to(Of::Program);
        show_to(Of::Library("libpython"));
    }
}

/// The loader calls it when it has loaded the library, and before the program begins.
#[cfg(not(any(test, fuzzing)))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = show_to_program;

/// What stands behind the number of a device of this process.
fn behind_number(text: &[u8]) -> Option<&[u8]> {
    let (number, rest) = text.split_at(text.iter().take_while(|c| c.is_ascii_digit()).count());
    let index: usize = std::str::from_utf8(number).ok()?.parse().ok()?;
    let is_plain = number.len() == 1 || !number.starts_with(b"0");
    (is_plain && index < Node::count()).then_some(rest)
}

/// What stands in the place of a path, if it is one of these.
fn instead(path: &CStr) -> Option<&'static CStr> {
    let path = path.to_bytes();
    if let Some(b"") = path.strip_prefix(DEVICE).and_then(behind_number) {
        return Some(NOTHING);
    }
    let below = path.strip_prefix(FOLDER).and_then(behind_number)?.strip_prefix(b"/")?;
    FILES.iter().find(|file| file.is_at(below))?.path()
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

unsafe extern "C" fn openat(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    promised!(libc::openat(at, placed(path), flags, mode))
}

unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    promised!(libc::fopen(placed(path), mode))
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

    fn content(path: &CStr) -> Vec<u8> {
        std::fs::read(instead(path).unwrap().to_str().unwrap()).unwrap()
    }

    #[test]
    fn only_the_paths_of_the_device_are_led_elsewhere() {
        assert_eq!(instead(c"/dev/infiniband/uverbs0"), Some(NOTHING));
        for other in [
            c"/dev/infiniband/uverbs1",
            c"/dev/infiniband/uverbs00",
            c"/dev/infiniband/uverbs",
            c"/sys/class/infiniband/ferrocx0/ports/1/gid_attrs/types/",
            c"/sys/class/infiniband/ferrocx0/ports/1/gid_attrs/types/x",
            c"/sys/class/infiniband/ferrocx0/ports/1/pkeys/1",
            c"/sys/class/infiniband/ferrocx0/ports/1/pkeys/00",
            c"/sys/class/infiniband/ferrocx1/ports/1/pkeys/0",
        ] {
            assert_eq!(instead(other), None, "{other:?}");
        }
        let types = c"/sys/class/infiniband/ferrocx0/ports/1/gid_attrs/types/12";
        assert_eq!(content(types), b"RoCE v2\n");
        let key = c"/sys/class/infiniband/ferrocx0/ports/1/pkeys/0";
        assert_eq!([content(key), content(key)], [b"0xffff\n", b"0xffff\n"]);
    }
}
