//! [`Shown`]: what an object of the library shows to the program.

use std::cell::UnsafeCell;

/// The beginning of an object, whose place is all that the program knows of it. It reads there, and
/// writes, while other threads are in calls about the object, which borrow the rest: nobody borrows
/// this. It is used where it stands, and what several threads may write at a time by atomics.
#[repr(transparent)]
pub(super) struct Shown<T>(UnsafeCell<T>);

impl<T> Shown<T> {
    pub(super) const fn new(shown: T) -> Self {
        Self(UnsafeCell::new(shown))
    }

    /// Where it stands.
    #[inline(always)]
    pub(super) const fn get(&self) -> *mut T {
        self.0.get()
    }
}
