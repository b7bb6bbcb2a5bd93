//! The functions of libibverbs, over verbs-lite.
//!
//! Every function here is called by C programs. What they promise is the interface's own contract:
//! an object that they hand in was given out by this library and not taken back, a structure has
//! the shape of [`crate::abi`], a list is as long as its count says. This is the only proof that
//! the `unsafe` of these modules has, and [`promised`] is where it stands. Everything behind it
//! (keys, addresses, numbers, states) is checked by the device. Other threads use the same objects
//! meanwhile: what the program has of one is [`shown::Shown`], which nobody borrows.
#![expect(unsafe_code, reason = "the C interface: pointers come from the program")]

/// Uses pointers that the program handed in.
macro_rules! promised {
    ($($body:tt)*) => {{
        // SAFETY: the module's: the program keeps the contract of the C interface for the pointers
        // that it hands in, and this library's objects hold what their types say until they are
        // destroyed, which the program does last.
        #[allow(unused_unsafe, reason = "one promise may hold another")]
        unsafe { $($body)* }
    }};
}

mod address;
mod async_event;
mod batch;
mod buffer;
mod channel;
mod check;
mod clock;
mod context;
mod cq;
mod cq_ex;
mod device;
mod device_list;
mod dm;
mod flow;
mod forked;
mod handles;
mod hooks;
mod import;
mod left;
pub(crate) mod life;
mod lock;
mod memory;
mod modify;
mod pair;
mod parent;
mod piece;
mod poll;
mod post;
mod qp;
mod qp_ex;
mod queue_pair;
pub(crate) mod rdma_cm;
pub(crate) mod refused;
mod rights;
mod rules;
mod shown;
pub(crate) mod signals;
mod srq;
mod text;
mod tree;
mod unmapped;
mod unsupported;
mod vendor;
pub(crate) mod wait;
mod window;
mod work;
mod wr;
mod xrc;

pub(crate) use address::*;
pub(crate) use async_event::*;
pub(crate) use buffer::*;
pub(crate) use channel::*;
pub(crate) use cq::*;
pub(crate) use cq_ex::*;
pub(crate) use device::*;
pub(crate) use device_list::*;
pub(crate) use dm::*;
pub(crate) use import::*;
pub(crate) use memory::*;
pub(crate) use modify::*;
pub(crate) use qp::*;
pub(crate) use rdma_cm::*;
pub(crate) use srq::*;
pub(crate) use text::*;
pub(crate) use unsupported::*;
pub(crate) use vendor::*;

use std::ffi::c_int;
use std::ptr::null_mut;

use ferrocx_core::{CommandError, ConfigError, DeviceError};
use ferrocx_prm::syndrome::CommandStatus;
use ferrocx_verbs_lite::VerbsError;

/// A refusal, as a number of the C library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const NOT_SUPPORTED: Self = Self(libc::EOPNOTSUPP);
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
    /// The device is not there.
    pub(crate) const GONE: Self = Self(libc::ENODEV);
}

impl From<VerbsError> for Errno {
    fn from(error: VerbsError) -> Self {
        tracing::info!(%error, "refused");
        Self(match error {
            VerbsError::Unsupported { .. } => libc::EOPNOTSUPP,
            VerbsError::CqTooSmall { .. }
            | VerbsError::ChannelFull { .. }
            | VerbsError::Mempool(_) => libc::ENOMEM,
            VerbsError::WindowsBound { .. }
            | VerbsError::StillRegistered { .. }
            | VerbsError::StillPosted { .. } => libc::EBUSY,
            VerbsError::Device(DeviceError::NoDeviceMemory { .. }) => libc::ENOMEM,
            VerbsError::Device(DeviceError::Config(ConfigError::Range { .. })) => libc::EINVAL,
            VerbsError::Device(DeviceError::Config(ConfigError::Unsupported { .. })) => {
                libc::EOPNOTSUPP
            }
            VerbsError::NoRoute { .. } => libc::ENETUNREACH,
            VerbsError::Thread(_) => libc::EAGAIN,
            VerbsError::Command(CommandError::Status {
                status: CommandStatus::NO_RESOURCES | CommandStatus::EXCEED_LIM,
                ..
            }) => libc::ENOMEM,
            VerbsError::Command(CommandError::Status { .. }) => libc::EINVAL,
            VerbsError::Command(_) | VerbsError::Device(_) | VerbsError::Bus(_) => libc::EIO,
            _ => libc::EINVAL,
        })
    }
}

/// Leaves a function with an error number if there is one.
macro_rules! tried {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(errno) => return errno.0,
        }
    };
}
use tried;

/// The result of a function that returns an error number, or 0.
fn number(result: Result<(), Errno>) -> c_int {
    result.map_or_else(|errno| errno.0, |()| 0)
}

/// Sets the error number of the thread.
fn set_errno(errno: Errno) {
    // SAFETY: the C library's own place for it, which every thread has.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// The result of a function that returns an object, or null and the thread's error number.
fn object<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        null_mut()
    })
}

/// An object that goes out to the program, until [`take_back`].
fn give_out<T, B>(object: T) -> *mut B {
    Box::into_raw(Box::new(object)).cast()
}

/// An object that the program gives back.
///
/// # Safety
/// It came from [`give_out`] of the same type, and nobody uses it any more.
unsafe fn take_back<T, B>(object: *mut B) -> Box<T> {
    // SAFETY: the caller's promise.
    unsafe { Box::from_raw(object.cast()) }
}
