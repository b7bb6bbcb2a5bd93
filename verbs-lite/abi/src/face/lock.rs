//! [`Lock`]: the lock of the data path.
//!
//! The standard one notes whether somebody panicked under it, with each call; here a panic ends the
//! process, for none may leave a function that a C program has called. The rest is the same: who
//! has to wait sleeps in the kernel.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody sleeps until it is free.
const AWAITED: u32 = 2;
/// Looks before somebody sleeps: whoever holds it needs a fraction of a microsecond.
const LOOKS: u32 = 100;

/// A value that one thread at a time uses.
pub(super) struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by `Held` alone, of which there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The right to use the value of a [`Lock`], until it is dropped.
// A pointer is neither `Send` nor `Sync`: one that could be shared would show the value to several
// threads, of which it may be one's alone.
pub(super) struct Held<'a, T>(&'a Lock<T>, PhantomData<*const ()>);

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> Held<'_, T> {
        self.try_lock().unwrap_or_else(|| {
            self.wait();
            Held(self, PhantomData)
        })
    }

    /// Locks it if nobody has it.
    #[inline(always)]
    pub(super) fn try_lock(&self) -> Option<Held<'_, T>> {
        let taken = self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_ok() { Some(Held(self, PhantomData)) } else { None }
    }

    /// Takes over what the caller has [kept](Held::keep).
    ///
    /// # Safety
    /// The calling thread has kept it, and uses the value by nothing else meanwhile.
    #[inline(always)]
    pub(super) unsafe fn kept(&self) -> Held<'_, T> {
        Held(self, PhantomData)
    }

    /// Takes it when it is free.
    #[cold]
    #[inline(never)]
    fn wait(&self) {
        for _ in 0..LOOKS {
            std::hint::spin_loop();
            let is_free = self.state.load(Ordering::Relaxed) == FREE;
            let take =
                || self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
            if is_free && take().is_ok() {
                return;
            }
        }
        // Others may sleep, too: who takes it from here on wakes one when it lets go.
        while self.state.swap(AWAITED, Ordering::Acquire) != FREE {
            let (word, operation) =
                (self.state.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG);
            // SAFETY: the word lives as long as the lock; the kernel only compares it.
            unsafe {
                libc::syscall(libc::SYS_futex, word, operation, AWAITED, null::<libc::timespec>());
            }
        }
    }

    /// Wakes one of those who sleep.
    #[cold]
    #[inline(never)]
    fn wake(word: *const u32) {
        // SAFETY: the kernel takes the address as a name, and reads nothing there.
        unsafe {
            libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
        }
    }
}

impl<T> Held<'_, T> {
    /// Leaves it locked, for [`Lock::kept`].
    #[inline(always)]
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl<T: fmt::Debug> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lock").field(&*self.lock()).finish()
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held, by this alone.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; whoever has the reference has borrowed `self` for it.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        let word = self.0.state.as_ptr();
        if self.0.state.swap(FREE, Ordering::Release) == AWAITED {
            Lock::<T>::wake(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn nothing_is_lost_when_many_threads_take_it() {
        const EACH: u64 = 20_000;
        let count = Arc::new(Lock::new(0_u64));
        let run = |count: Arc<Lock<u64>>| move || (0..EACH).for_each(|_| *count.lock() += 1);
        let threads: Vec<_> = (0..6).map(|_| thread::spawn(run(Arc::clone(&count)))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*count.lock(), 6 * EACH);
    }

    #[test]
    fn who_sleeps_is_woken() {
        let lock = Arc::new(Lock::new(()));
        for _ in 0..20 {
            let held = lock.lock();
            let waiters: Vec<_> = (0..3)
                .map(|_| Arc::clone(&lock))
                .map(|lock| thread::spawn(move || drop(lock.lock())))
                .collect();
            while lock.state.load(Ordering::Relaxed) != AWAITED {
                thread::sleep(Duration::from_millis(1));
            }
            drop(held);
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
            assert_eq!(lock.state.load(Ordering::Relaxed), FREE);
        }
    }
}
