//! [`Home`]: the pool of a header, and in the same word whether the header may be other than
//! simple.
#![expect(unsafe_code, reason = "a pointer with marks in its low bits")]

use std::{
    ptr::NonNull,
    sync::atomic::{AtomicPtr, Ordering::Relaxed},
};

/// Set as long as the header may have holders besides its `Mbuf`, or its data may lie elsewhere:
/// the reference count says whether it is so.
const SHARED: usize = 1;
/// Set just when a segment follows.
const CHAINED: usize = 2;
const MARKS: usize = SHARED | CHAINED;

/// The pool that a header belongs to, wherever its data lies, and marks in the low bits of its
/// address, so that one comparison says that a buffer is of a pool and simple.
///
/// Without a mark, the reference count is [plain](crate::refcount::RefCount::PLAIN) and nothing
/// follows. A mark of sharing may stay when others are gone: it asks for a look at the count, and
/// costs no more. Marks are written by whoever owns the header's `Mbuf`, or by the last holder, so
/// relaxed accesses are enough: two threads that clone one borrowed packet write the same word.
pub(crate) struct Home<P>(AtomicPtr<P>);

impl<P> Home<P> {
    pub(crate) fn new(pool: NonNull<P>) -> Self {
        const { assert!(align_of::<P>() > MARKS, "the marks are not part of an address") };
        Self(AtomicPtr::new(pool.as_ptr()))
    }

    /// The word, which is the address of the pool just when there is no mark.
    #[inline(always)]
    pub(crate) fn raw(&self) -> usize {
        self.0.load(Relaxed).addr()
    }

    /// The pool.
    #[inline(always)]
    pub(crate) fn pool(&self) -> NonNull<P> {
        let pool = self.0.load(Relaxed).map_addr(|word| word & !MARKS);
        // SAFETY: made of a pointer that is not null, whose low bits are not part of it.
        unsafe { NonNull::new_unchecked(pool) }
    }

    /// Whether there is no mark.
    #[inline(always)]
    pub(crate) fn has_no_mark(&self) -> bool {
        self.raw() & MARKS == 0
    }

    /// Whether the pool is this one, and there is no mark.
    #[inline(always)]
    pub(crate) fn is_unmarked(&self, pool: NonNull<P>) -> bool {
        self.raw() == pool.addr().get()
    }

    /// Whether the pool is this one, a segment follows, and there is no other mark.
    #[inline(always)]
    pub(crate) fn is_only_chained(&self, pool: NonNull<P>) -> bool {
        self.raw() == pool.addr().get() | CHAINED
    }

    /// Whether the pool is this one, and nothing but the mark of sharing is there.
    #[inline(always)]
    pub(crate) fn is_only_shared(&self, pool: NonNull<P>) -> bool {
        self.raw() == pool.addr().get() | SHARED
    }

    /// Notes that the header may have other holders or data that lie elsewhere: for the only
    /// holder.
    #[inline(always)]
    pub(crate) fn mark_shared(&self) {
        self.set(SHARED, MARKS);
    }

    /// The same, for whom has borrowed a packet that counts on this header. Once there is a mark,
    /// the word is another's to write.
    #[inline]
    pub(crate) fn mark_shared_once(&self) {
        if self.raw() & SHARED == 0 {
            self.mark_shared();
        }
    }

    /// Notes whether a segment follows.
    #[inline(always)]
    pub(crate) fn set_chained(&self, chained: bool) {
        self.set(if chained { CHAINED } else { 0 }, SHARED);
    }

    /// Takes all marks away: the count is plain, and nothing follows.
    #[inline(always)]
    pub(crate) fn unmark(&self) {
        self.set(0, 0);
    }

    /// The pool, if there is no mark.
    #[inline(always)]
    pub(crate) fn unmarked(&self) -> Option<NonNull<P>> {
        let pool = NonNull::new(self.0.load(Relaxed))?;
        (pool.addr().get() & MARKS == 0).then_some(pool)
    }

    /// Takes all marks away, like [`Home::unmark`], for whom knows the pool.
    #[inline(always)]
    pub(crate) fn unmark_of(&self, pool: NonNull<P>) {
        debug_assert_eq!(self.pool(), pool);
        self.0.store(pool.as_ptr(), Relaxed);
    }

    /// Sets marks, and keeps those of others that are `kept`.
    #[inline(always)]
    fn set(&self, marks: usize, kept: usize) {
        let word = self.0.load(Relaxed).map_addr(|word| word & (!MARKS | kept) | marks);
        self.0.store(word, Relaxed);
    }
}
