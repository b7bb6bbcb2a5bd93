//! [`Live`]: whether a node of this process has not quite ended.

use std::process;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::lock;

/// Longest that a new node waits for the end of an old one: what that sends to its device is
/// answered before.
const LIMIT: Duration = Duration::from_secs(10);

/// A process, and its nodes: a child after a fork has none of its parent's.
static NODES: Mutex<(u32, usize)> = Mutex::new((0, 0));
static ENDED: Condvar = Condvar::new();

/// A node, from its making until nothing is left of it.
#[derive(Debug)]
pub(super) struct Live(u32);

impl Live {
    pub(super) fn new() -> Self {
        let (this, mut nodes) = (process::id(), lock(&NODES));
        if nodes.0 != this {
            *nodes = (this, 0);
        }
        nodes.1 += 1;
        Self(this)
    }

    /// Waits until there is none.
    pub(super) fn wait_for_none() {
        let this = process::id();
        let is_there = |nodes: &mut (u32, usize)| nodes.0 == this && nodes.1 > 0;
        let nodes = lock(&NODES);
        drop(ENDED.wait_timeout_while(nodes, LIMIT, is_there).map_err(PoisonError::into_inner));
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let mut nodes = lock(&NODES);
        if nodes.0 == self.0 {
            nodes.1 -= 1;
            ENDED.notify_all();
        }
    }
}
