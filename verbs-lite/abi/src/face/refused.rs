//! The answer of functions that nobody who is alive calls: providers' and those of 2006.

use std::ffi::c_int;

/// Refuses, whatever it was called for: 0 and null would be believed, an error number is not.
pub(crate) extern "C" fn refuse() -> c_int {
    libc::EOPNOTSUPP
}
