//! Which spaces this thread holds views of, in debug builds.
//!
//! A second view of a space, or a change of its map, would wait for this very thread; the second
//! view only when another thread happens to unmap, so that tests would rarely find it.

use std::cell::RefCell;

thread_local! {
    static SPACES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A view of a space; it cannot leave its thread, since it holds a lock's guard.
pub(super) struct Held(usize);

/// Panics when this thread holds a view of `space`.
#[track_caller]
pub(super) fn assert_none<T>(space: &T) {
    let held = SPACES.with_borrow(|spaces| spaces.contains(&address(space)));
    assert!(!held, "deadlock: this thread holds a view of the same device's memory");
}

fn address<T>(space: &T) -> usize {
    std::ptr::from_ref(space).addr()
}

impl Held {
    #[track_caller]
    pub(super) fn new<T>(space: &T) -> Self {
        assert_none(space);
        SPACES.with_borrow_mut(|spaces| spaces.push(address(space)));
        Self(address(space))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        SPACES.with_borrow_mut(|spaces| spaces.retain(|space| *space != self.0));
    }
}
