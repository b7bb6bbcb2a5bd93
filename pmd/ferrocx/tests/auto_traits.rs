//! Which public types go to another thread, are shared with one, and are copied: a change here is
//! a change of the API.

use std::cell::Cell;
use std::marker::PhantomData;
use std::path::Path;
use std::rc::Rc;

use ferrocx::verbs::cm::{
    self, CmListener, ConnRequest, Connected, Connecting, Connection, ConnectionManager,
    NotConnected,
};
use ferrocx::verbs::peer::{MappedProvider, PeerBlock, PeerClient, PeerMr, PeerRegistry};
use ferrocx::verbs::*;
use ferrocx::*;
use ferrocx_core::wq::{Ready, RqAttr, RunOfBlocks, RunOfRequests, SqAttr, Wqe};
use ferrocx_core::{CqAttr, Destroy, RawMapping};
use ferrocx_mempool::{
    Copier, HandOver, MbufFifo, Packet, Pages, Part, Parts, Piece, Pieces, RawMbuf, Segment,
    Segments,
};

/// Asks the compiler what a type is: an inherent constant is there if its bound holds, and hides
/// the trait's.
struct Probe<T>(PhantomData<T>);

trait Otherwise {
    const SEND: bool = false;
    const SYNC: bool = false;
    const CLONE: bool = false;
}

impl<T> Otherwise for Probe<T> {}
impl<T: Send> Probe<T> {
    const SEND: bool = true;
}
impl<T: Sync> Probe<T> {
    const SYNC: bool = true;
}
impl<T: Clone> Probe<T> {
    const CLONE: bool = true;
}

/// Checks each type of a list against what it should be.
macro_rules! each {
    ([$send:literal, $sync:literal, $clone:literal]: $($type:ty),+ $(,)?) => {
        $(assert_eq!(
            [<Probe<$type>>::SEND, <Probe<$type>>::SYNC, <Probe<$type>>::CLONE],
            [$send, $sync, $clone],
            "Send, Sync and Clone of {}",
            stringify!($type),
        );)+
    };
}

/// Not shared between threads; a queue pair may carry it nevertheless.
#[derive(Debug)]
struct Unshared(#[expect(dead_code, reason = "it makes the type what it is")] Cell<u8>);

// SAFETY: no entries.
#[expect(unsafe_code, reason = "buffers of a user's own")]
unsafe impl Buffers for Unshared {
    fn sges(&self) -> impl Iterator<Item = Sge> {
        std::iter::empty()
    }

    fn copy_head(&self, out: &mut [u8]) -> bool {
        out.is_empty()
    }
}

#[test]
fn handles_are_copied_and_shared() {
    each!([true, true, true]: Device, Housekeeping, RxQueueRef, Pool, bus::Doorbell,
        lcore::StopFlag, RdmaContext, Pd, Mr, DmaMr, PhysBuf, Sge, AddressHandle,
        SendWr<'static>, ConnectionManager, PeerRegistry, MappedProvider, RawMbuf);
}

#[test]
fn what_owns_something_is_not_copied() {
    each!([true, true, false]: Port, EventReader, FlowRuleHandle, Rss, Mbuf, Region, MbufFifo,
        Segment<'static>, bus::Ring<64>, bus::DmaBuf, bus::DmaWord, Memory, Buf, Payload, Cq,
        CompletionChannel, Qp, Qp<Mbuf>, Qp<()>, Srq, QpTable<u8>, Ended<'static, u8>, Wc<Buf>,
        Refused<Buf>, Returned<Buf>, QpQueues<'static>, PageList, FastRegMr, RegisteredMr,
        KeySlot, Mw, BoundMw, Fmr, FmrQueue, PoolFmr, ferrocx::net::neighbour::Neighbours,
        verbs::net::Network, CmListener, ConnRequest, Connecting, Connected, Connection, PeerMr,
        PeerBlock, PeerClient, Background, lcore::Worker<u8>);
}

#[test]
fn descriptions_are_what_they_describe() {
    each!([true, true, true]: Packet<'static>, Masked<u8>, Pages<std::vec::IntoIter<Piece>>,
        cm::ConnParams<'static>, cm::Request<'static>, cm::Answer<'static>);
    each!([true, true, false]: HandOver<'static, 4>, Destroy<Buf>, NotConnected, RawMapping,
        bus::BarClaim);
    each!([false, false, true]: ferrocx::net::icmpecho::Tail<'static>);
    each!([false, false, false]: Destroy<Rc<u8>>, bus::local::DmaView<'static>, Wqe<'static>,
        RunOfBlocks<'static>);
}

#[test]
fn a_proof_or_a_completion_is_used_once() {
    each!([true, true, false]: Completion, InvalidatedRkey);
}

#[test]
fn what_a_core_polls_moves_to_another_and_is_not_shared() {
    each!([true, false, false]: Lane, RxQueue, TxQueue, PoolCache, FmrPool);
}

#[test]
fn a_walk_over_memory_stays_where_it_is() {
    each!([false, false, true]: ExternalBuffer, bus::RingView<'static, 64>,
        bus::Slot<'static, 64>, Segments<'static>, Pieces<'static>);
}

#[test]
fn generics_are_what_they_carry() {
    each!([true, false, false]: QpTable<Cell<u8>>, Ended<'static, Cell<u8>>, Wc<Cell<u8>>,
        Refused<Cell<u8>>, Returned<Cell<u8>>, Wc<Unshared>, Qp<Unshared>, QpTable<u8, Unshared>,
        Srq<Unshared>, Connected<Unshared>);
    each!([false, false, false]: QpTable<Rc<u8>>, Ended<'static, Rc<u8>>, Wc<Rc<u8>>,
        Refused<Rc<u8>>, Returned<Rc<u8>>);
}

#[test]
fn what_is_lent_for_a_moment_stays_where_it_is() {
    each!([true, true, true]: CqAttr<'static>, RqAttr<'static>, SqAttr<'static>, Ready<'static>,
        SendOp<'static>);
    each!([true, true, false]: Taking<'static>);
    each!([false, false, true]: bus::Span<'static, 64>, Part<'static>, Parts<'static>);
    each!([false, false, false]: RunOfRequests<'static>, Copier<'static>, CqEntry<'static>);
    each!([true, true, false]: bus::Line<64, 320>, RevokeError<false>);
    each!([true, false, false]: bus::EntryCell<64>);
    each!([true, true, true]: Field<2>, PrebuiltFrame<64>);
}

/// Public generics of the crates with unsafe code: name, and whether it has a lifetime.
fn generics() -> Vec<(String, bool)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders: Vec<_> = ["mempool", "pmd/bus", "pmd/core", "pmd", "verbs-lite"]
        .map(|of| root.join(of).join("src"))
        .into();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the tree") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source file");
            for line in text.lines() {
                let rest = line.strip_prefix("pub struct ").or(line.strip_prefix("pub enum "));
                if let Some((name, parameters)) = rest.and_then(|rest| rest.split_once('<'))
                    && name.chars().all(char::is_alphanumeric)
                {
                    found.push((name.to_owned(), parameters.starts_with('\'')));
                }
            }
        }
    }
    found
}

/// A generic that is new is judged here by its threads and copies, and what it borrows among the
/// examples that must not compile.
#[test]
fn every_public_generic_is_judged() {
    // By the names of what they are for.
    let aliases = [("FreeKey", "FastRegMr"), ("BoundKey", "RegisteredMr")];
    let tested = include_str!("auto_traits.rs");
    let examples = concat!(
        include_str!("../src/must_not_compile.rs"),
        include_str!("../../../mempool/src/must_not_compile.rs"),
    );
    let generics = generics();
    assert!(generics.len() > 40, "only {generics:?} were found");
    for (name, has_lifetime) in generics {
        let name = aliases.iter().find(|(of, _)| *of == name).map_or(&name[..], |(_, alias)| alias);
        assert!(
            tested.contains(&format!("{name}<")) || tested.contains(&format!(" {name},")),
            "{name} is in no list of this file"
        );
        let is_shown = examples.contains(&format!("-> {name}<'static"))
            || examples.contains(&format!("-> cm::{name}<'static"));
        assert!(!has_lifetime || is_shown, "no example shows that {name} outlives nothing");
    }
}
