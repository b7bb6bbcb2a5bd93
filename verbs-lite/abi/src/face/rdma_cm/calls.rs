//! The calls themselves: `open`, `fstat`, `write`, `close` as librdmacm makes them. Whatever is not
//! about the file of `rdma_cm` goes on to the system.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::IntoRawFd;

use super::Service;
use crate::face::hooks::{Of, Replacement, redirect};
use crate::face::{Errno, set_errno};

/// The file that the kernel would have.
const FILE: &CStr = c"/dev/infiniband/rdma_cm";
/// Where a kernel that serves `rdma_cm` says which device that is: librdmacm compares the two.
const NUMBER: &str = "/sys/class/misc/rdma_cm/dev";

/// Leads the calls of librdmacm here, if it is loaded.
pub(crate) fn serve_librdmacm() {
    redirect(
        Of::Library("librdmacm"),
        &[
            Replacement { name: c"open", function: open as *const c_void },
            Replacement { name: c"open64", function: open as *const c_void },
            Replacement { name: c"fstat", function: fstat as *const c_void },
            Replacement { name: c"fstat64", function: fstat as *const c_void },
            Replacement { name: c"__fxstat", function: fxstat as *const c_void },
            Replacement { name: c"write", function: write as *const c_void },
            Replacement { name: c"close", function: close as *const c_void },
        ],
    );
}

/// The result of a call that sets the thread's error number.
fn returned(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    if promised!(CStr::from_ptr(path)) != FILE {
        return promised!(libc::open(path, flags, mode));
    }
    returned(Service::get().and_then(|service| service.open_channel()).map(IntoRawFd::into_raw_fd))
}

unsafe extern "C" fn fstat(fd: c_int, out: *mut libc::stat) -> c_int {
    let done = promised!(libc::fstat(fd, out));
    if done == 0 && Service::of(fd).is_some() {
        let out = promised!(&mut *out);
        out.st_mode = libc::S_IFCHR | 0o666;
        out.st_rdev = std::fs::read_to_string(NUMBER).map_or(0, |number| device_of(&number));
    }
    done
}

/// A device of the form `10:58`; 0 for what is none.
fn device_of(number: &str) -> libc::dev_t {
    let number = number.trim().split_once(':');
    let both = number.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    both.map_or(0, |(major, minor)| libc::makedev(major, minor))
}

/// How `fstat` was called before version 2.33 of the C library.
unsafe extern "C" fn fxstat(_version: c_int, fd: c_int, out: *mut libc::stat) -> c_int {
    promised!(fstat(fd, out))
}

unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, count: usize) -> isize {
    let Some(service) = Service::of(fd) else { return promised!(libc::write(fd, bytes, count)) };
    let command = promised!(std::slice::from_raw_parts(bytes.cast::<u8>(), count));
    match service.command(fd, command) {
        Ok(()) => count as isize,
        Err(errno) => {
            tracing::debug!(command = ?command.first(), errno = errno.0, "refused");
            set_errno(errno);
            -1
        }
    }
}

unsafe extern "C" fn close(fd: c_int) -> c_int {
    if let Some(service) = Service::of(fd) {
        service.close_channel(fd);
    }
    promised!(libc::close(fd))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_number_is_read_as_sysfs_writes_it() {
        assert_eq!(device_of("10:58\n"), libc::makedev(10, 58));
        for bad in ["", "10", "10:", ":58", "x:y"] {
            assert_eq!(device_of(bad), 0, "{bad}");
        }
    }
}
