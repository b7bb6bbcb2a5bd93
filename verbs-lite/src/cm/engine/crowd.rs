//! [`Crowd`]: connections that strangers can cause, the oldest first, with how many each peer has.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// Connections of one kind.
#[derive(Debug)]
pub(super) struct Crowd {
    in_all: usize,
    per_peer: usize,
    /// In the order of their turns.
    ids: BTreeMap<u64, u32>,
    of_peer: HashMap<IpAddr, BTreeMap<u64, u32>>,
    next_turn: u64,
}

impl Crowd {
    pub(super) fn new(in_all: usize, per_peer: usize) -> Self {
        let (in_all, per_peer) = (in_all.max(1), per_peer.max(1));
        Self { in_all, per_peer, ids: BTreeMap::new(), of_peer: HashMap::new(), next_turn: 0 }
    }

    /// Whether a peer has as many as it may.
    pub(super) fn is_full_for(&self, peer: IpAddr) -> bool {
        self.of_peer.get(&peer).is_some_and(|ids| ids.len() >= self.per_peer)
    }

    /// Adds a connection: its turn, and the one that must go instead.
    pub(super) fn add(&mut self, peer: IpAddr, id: u32) -> (u64, Option<u32>) {
        let turn = self.next_turn;
        self.next_turn += 1;
        let own = self.of_peer.entry(peer).or_default();
        own.insert(turn, id);
        self.ids.insert(turn, id);
        let crowded = if own.len() > self.per_peer {
            own.values().next()
        } else if self.ids.len() > self.in_all {
            self.ids.values().next()
        } else {
            None
        };
        (turn, crowded.copied())
    }

    pub(super) fn remove(&mut self, peer: IpAddr, turn: u64) {
        self.ids.remove(&turn);
        if let Some(own) = self.of_peer.get_mut(&peer) {
            own.remove(&turn);
            if own.is_empty() {
                self.of_peer.remove(&peer);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.of_peer.values().map(BTreeMap::len).sum::<usize>(), self.ids.len());
        self.ids.len()
    }
}
