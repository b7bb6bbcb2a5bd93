//! [`Live`]: whether a node of this process has not quite ended, by its number.

use std::process;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::lock;

/// Longest that a new node waits for the end of an old one: what that sends to its device is
/// answered before.
const LIMIT: Duration = Duration::from_secs(10);

/// A process, and its nodes: a child after a fork has none of its parent's.
static NODES: Mutex<(u32, Vec<usize>)> = Mutex::new((0, Vec::new()));
static ENDED: Condvar = Condvar::new();

/// A node, from its making until nothing is left of it.
#[derive(Debug)]
pub(super) struct Live {
    process: u32,
    index: usize,
}

impl Live {
    pub(super) fn new(index: usize) -> Self {
        let (process, mut nodes) = (process::id(), lock(&NODES));
        if nodes.0 != process {
            *nodes = (process, Vec::new());
        }
        nodes.1.push(index);
        Self { process, index }
    }

    /// A part of the same node, which may end later.
    pub(super) fn beside(&self) -> Self {
        Self::new(self.index)
    }

    /// Waits until there is none of this number.
    pub(super) fn wait_for_none(index: usize) {
        let this = process::id();
        let is_there = |nodes: &mut (u32, Vec<usize>)| nodes.0 == this && nodes.1.contains(&index);
        let nodes = lock(&NODES);
        drop(ENDED.wait_timeout_while(nodes, LIMIT, is_there).map_err(PoisonError::into_inner));
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let mut nodes = lock(&NODES);
        if nodes.0 == self.process
            && let Some(place) = nodes.1.iter().position(|index| *index == self.index)
        {
            nodes.1.swap_remove(place);
            ENDED.notify_all();
        }
    }
}
