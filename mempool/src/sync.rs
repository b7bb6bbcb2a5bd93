//! The atomics of the lock-free code: the standard ones, or loom's when a model is being checked.

#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering, fence},
    thread::yield_now as spin_loop,
};
