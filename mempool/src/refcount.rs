//! The reference count of a buffer, with one flag beside it in the same word.

use crate::sync::{AtomicU16, Ordering, fence};

/// Set while the header's data lies in another buffer: a clone, or an external one.
const ATTACHED: u16 = 1 << 15;
/// Largest count. Clones beyond it are refused.
pub(crate) const MAX_REFS: u16 = 0x3fff;

/// Count and flag. A header in the pool has count 1 and no flag, and the same word says of
/// a header in use that it can be freed with nothing else to do.
///
/// A decrement releases. The acquire fence of whoever takes the count to 0 pairs with it: without
/// that, the data could be reused before another holder's last read. So do the loads of `is_plain`
/// and `is_unique`: without that, a writer could overtake the last read of a holder that is gone.
pub(crate) struct RefCount(AtomicU16);

impl RefCount {
    /// The word of one holder and no attachment.
    pub(crate) const PLAIN: u16 = 1;

    pub(crate) fn new() -> Self {
        Self(AtomicU16::new(Self::PLAIN))
    }

    /// One holder and no attachment.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.raw() == Self::PLAIN
    }

    /// The word that is [`RefCount::PLAIN`] if [`RefCount::is_plain`].
    #[inline]
    pub(crate) fn raw(&self) -> u16 {
        self.0.load(Ordering::Acquire)
    }

    /// One holder.
    #[inline]
    pub(crate) fn is_unique(&self) -> bool {
        self.0.load(Ordering::Acquire) & !ATTACHED == 1
    }

    #[inline]
    pub(crate) fn is_attached(&self) -> bool {
        self.0.load(Ordering::Relaxed) & ATTACHED != 0
    }

    pub(crate) fn count(&self) -> u16 {
        self.0.load(Ordering::Relaxed) & !ATTACHED
    }

    /// Sets or clears the flag. The caller is the only holder.
    pub(crate) fn set_attached(&self, attached: bool) {
        self.0.store(if attached { 1 | ATTACHED } else { 1 }, Ordering::Relaxed);
    }

    /// Adds a holder. `false` at [`MAX_REFS`].
    pub(crate) fn retain(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & !ATTACHED < MAX_REFS {
            // Relaxed: the caller already holds a reference, so nothing new becomes visible.
            let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            match self.0.compare_exchange_weak(word, word + 1, order, failed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Adds `n` holders to the one that is there, the caller.
    pub(crate) fn share(&self, n: u16) {
        debug_assert!(self.is_unique() && n < MAX_REFS);
        self.0.store(self.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    /// Removes a holder. `true` if it was the last: the count is then 1 again, for the pool.
    pub(crate) fn release(&self) -> bool {
        self.is_unique() || self.release_many(1)
    }

    /// Removes `n` holders, as [`RefCount::release`] does one.
    pub(crate) fn release_many(&self, n: u16) -> bool {
        if self.0.fetch_sub(n, Ordering::Release) & !ATTACHED != n {
            return false;
        }
        fence(Ordering::Acquire);
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counts_up_and_down_beside_the_flag() {
        let refs = RefCount::new();
        assert!(refs.is_plain() && refs.is_unique() && !refs.is_attached());
        refs.set_attached(true);
        assert!(!refs.is_plain() && refs.is_unique() && refs.is_attached());
        assert!(refs.retain());
        assert!(!refs.is_unique() && refs.is_attached());
        assert_eq!(refs.count(), 2);
        assert!(!refs.release());
        assert!(refs.release());
        assert!(refs.is_unique() && refs.is_attached());
        refs.set_attached(false);
        assert!(refs.is_plain());
    }

    #[test]
    fn refuses_one_more_than_fits() {
        let refs = RefCount::new();
        refs.0.store(MAX_REFS - 2, Ordering::Relaxed);
        assert!(refs.retain() && refs.retain());
        assert_eq!(refs.count(), 0x3fff);
        assert!(!refs.retain());
        assert_eq!(refs.count(), 0x3fff);
        assert!(!refs.is_attached());
        assert!(!refs.release());
        assert!(refs.retain());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::{cell::UnsafeCell, sync::Arc, thread};

    use super::*;

    /// Each holder reads and lets go; whoever is last writes. Loom reports a race if a read may
    /// still be under way then, and the assertion fails unless exactly one was last.
    #[test]
    fn loom_the_last_holder_owns_the_data() {
        loom::model(|| {
            let shared = Arc::new((RefCount::new(), UnsafeCell::new(0)));
            assert!(shared.0.retain() && shared.0.retain());
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let shared = shared.clone();
                    thread::spawn(move || let_go(&shared.0, &shared.1))
                })
                .collect();
            let mut last = u32::from(let_go(&shared.0, &shared.1));
            for t in threads {
                last += u32::from(t.join().unwrap());
            }
            assert_eq!(last, 1);
            assert!(shared.0.is_plain());
        });
    }

    fn let_go(refs: &RefCount, data: &UnsafeCell<u32>) -> bool {
        data.with(|_| ());
        let last = refs.release();
        if last {
            data.with_mut(|_| ());
        }
        last
    }

    /// A holder that finds itself alone may write.
    #[test]
    fn loom_a_unique_holder_may_write() {
        loom::model(|| {
            let shared = Arc::new((RefCount::new(), UnsafeCell::new(0)));
            assert!(shared.0.retain());
            let other = shared.clone();
            let t = thread::spawn(move || {
                other.1.with(|_| ());
                assert!(!other.0.release() || other.0.is_unique());
            });
            if shared.0.is_unique() {
                shared.1.with_mut(|_| ());
            }
            t.join().unwrap();
        });
    }
}
