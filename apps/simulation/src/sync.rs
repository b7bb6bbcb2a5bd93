//! Locks, in a simulation that has one thread.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whoever panicked under the lock: a panic is a finding, and ends the run.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
