//! Wrong uses of borrows and lifetimes that the compiler refuses, each behind the right one that
//! differs from it by one thing. Only doc tests see this file; nightly checks the error codes too.
//! What goes to other threads is in `tests/auto_traits.rs`; the pool's own part is
//! `mempool/src/must_not_compile.rs`.
//!
//! # Queues
//!
//! One core polls a queue; another needs one of its own:
//!
//! ```
//! # use ferrocx::{Burst, RxQueue};
//! fn right(first: &mut RxQueue, second: &mut RxQueue) {
//!     std::thread::scope(|scope| {
//!         scope.spawn(|| first.rx_burst(&mut Burst::<32>::new()));
//!         scope.spawn(|| second.rx_burst(&mut Burst::<32>::new()));
//!     });
//! }
//! ```
//!
//! ```compile_fail,E0499
//! # use ferrocx::{Burst, RxQueue};
//! fn wrong(first: &mut RxQueue) {
//!     std::thread::scope(|scope| {
//!         scope.spawn(|| first.rx_burst(&mut Burst::<32>::new()));
//!         scope.spawn(|| first.rx_burst(&mut Burst::<32>::new()));
//!     });
//! }
//! ```
//!
//! A lane's queues are borrowed from it, and go nowhere without it:
//!
//! ```
//! # use ferrocx::{Burst, Lane};
//! fn right(mut lane: Lane) -> bool {
//!     let queue = lane.rx();
//!     let stopped = queue.fault().is_some();
//!     drop(lane);
//!     stopped
//! }
//! ```
//!
//! ```compile_fail,E0505
//! # use ferrocx::{Burst, Lane};
//! fn wrong(mut lane: Lane) -> bool {
//!     let queue = lane.rx();
//!     drop(lane);
//!     let stopped = queue.fault().is_some();
//!     stopped
//! }
//! ```
//!
//! # What is posted
//!
//! A queue pair keeps what it was given, for as long as it likes: borrowed memory is no buffer.
//!
//! ```
//! # use ferrocx::verbs::{Buffers, Sge};
//! #[derive(Debug)]
//! struct Owned(Vec<u8>);
//!
//! // SAFETY: no entries.
//! unsafe impl Buffers for Owned {
//!     fn sges(&self) -> impl Iterator<Item = Sge> { std::iter::empty() }
//!     fn copy_head(&self, out: &mut [u8]) -> bool { out.is_empty() }
//! }
//! ```
//!
//! ```compile_fail,E0478
//! # use ferrocx::verbs::{Buffers, Sge};
//! #[derive(Debug)]
//! struct Borrowed<'a>(&'a [u8]);
//!
//! // SAFETY: no entries.
//! unsafe impl Buffers for Borrowed<'_> {
//!     fn sges(&self) -> impl Iterator<Item = Sge> { std::iter::empty() }
//!     fn copy_head(&self, out: &mut [u8]) -> bool { out.is_empty() }
//! }
//! ```
//!
//! Nor is what cannot go to another thread, where the queue pair may end:
//!
//! ```compile_fail,E0277
//! # use ferrocx::verbs::{Buffers, Sge};
//! #[derive(Debug)]
//! struct Owned(std::rc::Rc<u8>);
//!
//! // SAFETY: no entries.
//! unsafe impl Buffers for Owned {
//!     fn sges(&self) -> impl Iterator<Item = Sge> { std::iter::empty() }
//!     fn copy_head(&self, out: &mut [u8]) -> bool { out.is_empty() }
//! }
//! ```
//!
//! and a buffer is a promise about memory, which safe code cannot make:
//!
//! ```compile_fail,E0200
//! # use ferrocx::verbs::{Buffers, Sge};
//! #[derive(Debug)]
//! struct Owned(Vec<u8>);
//!
//! impl Buffers for Owned {
//!     fn sges(&self) -> impl Iterator<Item = Sge> { std::iter::empty() }
//!     fn copy_head(&self, out: &mut [u8]) -> bool { out.is_empty() }
//! }
//! ```
//!
//! A buffer that was posted is the queue pair's until its completion brings it back:
//!
//! ```
//! # use ferrocx::verbs::{Buf, Qp};
//! fn right(qp: &mut Qp, mut buf: Buf) {
//!     buf.copy_in(0, b"a").unwrap();
//!     qp.post_recv(1, buf).unwrap();
//! }
//! ```
//!
//! ```compile_fail,E0382
//! # use ferrocx::verbs::{Buf, Qp};
//! fn wrong(qp: &mut Qp, mut buf: Buf) {
//!     qp.post_recv(1, buf).unwrap();
//!     buf.copy_in(0, b"a").unwrap();
//! }
//! ```
//!
//! A queue pair takes the buffers that it was made for, and no others:
//!
//! ```
//! # use ferrocx::{Mbuf, verbs::{Buf, Qp}};
//! fn right(qp: &mut Qp<Mbuf>, mbuf: Mbuf) {
//!     let _ = qp.post_recv(1, mbuf);
//! }
//! ```
//!
//! ```compile_fail,E0308
//! # use ferrocx::{Mbuf, verbs::{Buf, Qp}};
//! fn wrong(qp: &mut Qp<Buf>, mbuf: Mbuf) {
//!     let _ = qp.post_recv(1, mbuf);
//! }
//! ```
//!
//! # Completions
//!
//! One is given to one queue pair once:
//!
//! ```
//! # use ferrocx::verbs::{Completion, Qp};
//! fn right(one: &mut Qp, other: &mut Qp, first: Completion, second: Completion) {
//!     let _ = one.complete(first, |_| ());
//!     let _ = other.complete(second, |_| ());
//! }
//! ```
//!
//! ```compile_fail,E0382
//! # use ferrocx::verbs::{Completion, Qp};
//! fn wrong(one: &mut Qp, other: &mut Qp, first: Completion) {
//!     let _ = one.complete(first, |_| ());
//!     let _ = other.complete(first, |_| ());
//! }
//! ```
//!
//! What a table found is used before it finds the next, because both are the table's:
//!
//! ```
//! # use ferrocx::verbs::{Cq, QpTable};
//! fn right(table: &mut QpTable<u64>, cq: &mut Cq) {
//!     let first = table.poll(cq).unwrap().unwrap();
//!     *first.data += 1;
//!     let _second = table.poll(cq).unwrap();
//! }
//! ```
//!
//! ```compile_fail,E0499
//! # use ferrocx::verbs::{Cq, QpTable};
//! fn wrong(table: &mut QpTable<u64>, cq: &mut Cq) {
//!     let first = table.poll(cq).unwrap().unwrap();
//!     let _second = table.poll(cq).unwrap();
//!     *first.data += 1;
//! }
//! ```
//!
//! # Variance
//!
//! A walk over a packet or a request may be taken for a shorter one:
//!
//! ```
//! # use ferrocx::bus::{RingView, Slot, Span, local::DmaView};
//! # use ferrocx::verbs::{CqEntry, Ended, QpQueues, SendOp, SendWr, Taking, cm};
//! # use ferrocx_core::{CqAttr, wq::{Ready, RqAttr, RunOfBlocks, RunOfRequests, SqAttr, Wqe}};
//! # use ferrocx_mempool::{Copier, HandOver, Packet, Part, Parts, Pieces, Segment, Segments};
//! fn packet<'short>(long: Packet<'static>, _: &'short ()) -> Packet<'short> { long }
//! fn hand<'short>(long: HandOver<'static, 4>, _: &'short ()) -> HandOver<'short, 4> { long }
//! fn memory<'short>(long: DmaView<'static>, _: &'short ()) -> DmaView<'short> { long }
//! fn wqe<'short>(long: Wqe<'static>, _: &'short ()) -> Wqe<'short> { long }
//! fn run<'short>(long: RunOfBlocks<'static>, _: &'short ()) -> RunOfBlocks<'short> { long }
//! fn segments<'short>(long: Segments<'static>, _: &'short ()) -> Segments<'short> { long }
//! fn segment<'short>(long: Segment<'static>, _: &'short ()) -> Segment<'short> { long }
//! fn pieces<'short>(long: Pieces<'static>, _: &'short ()) -> Pieces<'short> { long }
//! fn view<'short>(long: RingView<'static, 64>, _: &'short ()) -> RingView<'short, 64> { long }
//! fn slot<'short>(long: Slot<'static, 64>, _: &'short ()) -> Slot<'short, 64> { long }
//! fn request<'short>(long: SendWr<'static>, _: &'short ()) -> SendWr<'short> { long }
//! fn part<'short>(long: Part<'static>, _: &'short ()) -> Part<'short> { long }
//! fn parts<'short>(long: Parts<'static>, _: &'short ()) -> Parts<'short> { long }
//! fn copier<'short>(long: Copier<'static>, _: &'short ()) -> Copier<'short> { long }
//! fn span<'short>(long: Span<'static, 64>, _: &'short ()) -> Span<'short, 64> { long }
//! fn runs<'short>(long: RunOfRequests<'static>, _: &'short ()) -> RunOfRequests<'short> { long }
//! fn ready<'short>(long: Ready<'static>, _: &'short ()) -> Ready<'short> { long }
//! fn sq<'short>(long: SqAttr<'static>, _: &'short ()) -> SqAttr<'short> { long }
//! fn rq<'short>(long: RqAttr<'static>, _: &'short ()) -> RqAttr<'short> { long }
//! fn cq<'short>(long: CqAttr<'static>, _: &'short ()) -> CqAttr<'short> { long }
//! fn taking<'short>(long: Taking<'static>, _: &'short ()) -> Taking<'short> { long }
//! fn entry<'short>(long: CqEntry<'static>, _: &'short ()) -> CqEntry<'short> { long }
//! fn op<'short>(long: SendOp<'static>, _: &'short ()) -> SendOp<'short> { long }
//! fn queues<'short>(long: QpQueues<'static>, _: &'short ()) -> QpQueues<'short> { long }
//! fn params<'short>(it: cm::ConnParams<'static>, _: &'short ()) -> cm::ConnParams<'short> { it }
//! fn question<'short>(long: cm::Request<'static>, _: &'short ()) -> cm::Request<'short> { long }
//! fn answer<'short>(long: cm::Answer<'static>, _: &'short ()) -> cm::Answer<'short> { long }
//! fn ended<'short>(long: Ended<'static, u8>, _: &'short ()) -> Ended<'short, u8> { long }
//! ```
//!
//! and never for a longer one, which would outlive what it walks over:
//!
//! ```compile_fail
//! # use ferrocx_mempool::Segments;
//! fn longer<'short>(short: Segments<'short>) -> Segments<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx_mempool::Segment;
//! fn longer<'short>(short: Segment<'short>) -> Segment<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx_mempool::Pieces;
//! fn longer<'short>(short: Pieces<'short>) -> Pieces<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx::bus::RingView;
//! fn longer<'short>(short: RingView<'short, 64>) -> RingView<'static, 64> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx::bus::Slot;
//! fn longer<'short>(short: Slot<'short, 64>) -> Slot<'static, 64> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx::verbs::SendWr;
//! fn longer<'short>(short: SendWr<'short>) -> SendWr<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx::verbs::Ended;
//! fn longer<'short>(short: Ended<'short, u8>) -> Ended<'static, u8> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx_mempool::Packet;
//! fn longer<'short>(short: Packet<'short>) -> Packet<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx_mempool::HandOver;
//! fn longer<'short>(short: HandOver<'short, 4>) -> HandOver<'static, 4> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx::bus::local::DmaView;
//! fn longer<'short>(short: DmaView<'short>) -> DmaView<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx_core::wq::Wqe;
//! fn longer<'short>(short: Wqe<'short>) -> Wqe<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx_core::wq::RunOfBlocks;
//! fn longer<'short>(short: RunOfBlocks<'short>) -> RunOfBlocks<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx_mempool::Part;
//! fn longer<'short>(short: Part<'short>) -> Part<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx_mempool::Parts;
//! fn longer<'short>(short: Parts<'short>) -> Parts<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx_mempool::Copier;
//! fn longer<'short>(short: Copier<'short>) -> Copier<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx::bus::Span;
//! fn longer<'short>(short: Span<'short, 64>) -> Span<'static, 64> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx_core::wq::RunOfRequests;
//! fn longer<'short>(short: RunOfRequests<'short>) -> RunOfRequests<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx_core::wq::Ready;
//! fn longer<'short>(short: Ready<'short>) -> Ready<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx_core::wq::SqAttr;
//! fn longer<'short>(short: SqAttr<'short>) -> SqAttr<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx_core::wq::RqAttr;
//! fn longer<'short>(short: RqAttr<'short>) -> RqAttr<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx_core::CqAttr;
//! fn longer<'short>(short: CqAttr<'short>) -> CqAttr<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx::verbs::Taking;
//! fn longer<'short>(short: Taking<'short>) -> Taking<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx::verbs::CqEntry;
//! fn longer<'short>(short: CqEntry<'short>) -> CqEntry<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx::verbs::SendOp;
//! fn longer<'short>(short: SendOp<'short>) -> SendOp<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx::verbs::QpQueues;
//! fn longer<'short>(short: QpQueues<'short>) -> QpQueues<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx::verbs::cm;
//! fn longer<'short>(short: cm::ConnParams<'short>) -> cm::ConnParams<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx::verbs::cm;
//! fn longer<'short>(short: cm::Request<'short>) -> cm::Request<'static> { short }
//! ```
//!
//! ```compile_fail
//! # use ferrocx::verbs::cm;
//! fn longer<'short>(short: cm::Answer<'short>) -> cm::Answer<'static> { short }
//! ```
//!
//! What stands beside a queue pair can be written to, so it is neither taken for less nor for more:
//! a name that ends soon would be left behind in a table of names that last.
//!
//! ```
//! # use ferrocx::verbs::Ended;
//! fn right<'a, 'short>(ended: Ended<'a, &'short str>, name: &'short str) {
//!     *ended.data = name;
//! }
//! ```
//!
//! ```compile_fail
//! # use ferrocx::verbs::Ended;
//! fn wrong<'a, 'short>(ended: Ended<'a, &'static str>, name: &'short str) {
//!     let less: Ended<'a, &'short str> = ended;
//!     *less.data = name;
//! }
//! ```
//!
//! # Registers
//!
//! Whoever writes registers can lead a device to any memory that is mapped for it: only the driver
//! gets at them, by a claim that safe code cannot make, and one claim is for one call.
//!
//! ```
//! # use std::sync::Arc;
//! # use ferrocx::bus::{Bar, BarClaim, Transport};
//! fn around(inner: &dyn Transport, claim: BarClaim) -> Arc<dyn Bar> { inner.bar(claim) }
//! ```
//!
//! ```compile_fail,E0133
//! # use std::sync::Arc;
//! # use ferrocx::bus::{Bar, BarClaim, Transport};
//! fn wrong(device: &dyn Transport) -> Arc<dyn Bar> { device.bar(BarClaim::new()) }
//! ```
//!
//! ```compile_fail,E0382
//! # use std::sync::Arc;
//! # use ferrocx::bus::{Bar, BarClaim, Transport};
//! fn wrong(device: &dyn Transport, claim: BarClaim) -> [Arc<dyn Bar>; 2] {
//!     [device.bar(claim), device.bar(claim)]
//! }
//! ```
//!
//! # Keys
//!
//! A key changes hands at each step; one that was given away cannot be used:
//!
//! ```
//! # use ferrocx::verbs::{Qp, RegisteredMr, SendFlags};
//! fn right(qp: &mut Qp, mr: RegisteredMr) {
//!     println!("{:?}", mr.rkey());
//!     qp.post_local_inv(1, SendFlags::SIGNALED, mr).unwrap();
//! }
//! ```
//!
//! ```compile_fail,E0382
//! # use ferrocx::verbs::{Qp, RegisteredMr, SendFlags};
//! fn wrong(qp: &mut Qp, mr: RegisteredMr) {
//!     qp.post_local_inv(1, SendFlags::SIGNALED, mr).unwrap();
//!     println!("{:?}", mr.rkey());
//! }
//! ```
//!
//! A slot stays where it is; the proof that a peer ended its key is used once:
//!
//! ```
//! # use ferrocx::verbs::{InvalidatedRkey, KeySlot};
//! fn right(one: &mut KeySlot, other: &mut KeySlot, proof: InvalidatedRkey) {
//!     if let Err(proof) = one.invalidated_by(proof) {
//!         let _ = other.invalidated_by(proof);
//!     }
//! }
//! ```
//!
//! ```compile_fail,E0382
//! # use ferrocx::verbs::{InvalidatedRkey, KeySlot};
//! fn wrong(one: &mut KeySlot, other: &mut KeySlot, proof: InvalidatedRkey) {
//!     let _ = one.invalidated_by(proof);
//!     let _ = other.invalidated_by(proof);
//! }
//! ```
//!
//! Nobody makes one up:
//!
//! ```compile_fail,E0423
//! # use ferrocx::verbs::{InvalidatedRkey, KeySlot, Rkey};
//! fn wrong(slot: &mut KeySlot) {
//!     let _ = slot.invalidated_by(InvalidatedRkey(Rkey(7)));
//! }
//! ```
//!
//! Peer memory is lent by its registration, and a region cannot outlive the borrow of it; a copy of
//! the region can, and the device refuses its key from then on:
//!
//! ```
//! # use ferrocx::verbs::{Mr, peer::PeerMr};
//! fn right(peer: PeerMr) -> Mr {
//!     let region = peer.mr().clone();
//!     drop(peer);
//!     region
//! }
//! ```
//!
//! ```compile_fail,E0505
//! # use ferrocx::verbs::{Mr, peer::PeerMr};
//! fn wrong(peer: PeerMr) -> Mr {
//!     let region = peer.mr();
//!     drop(peer);
//!     region.clone()
//! }
//! ```
//!
//! # Cores
//!
//! Only what may go to another thread is handed over, or started there:
//!
//! ```
//! # use ferrocx::lcore::handover;
//! let (mut to, mut from) = handover::<Box<u8>>(4);
//! to.push(Box::new(1)).unwrap();
//! assert_eq!(*from.pop().unwrap(), 1);
//! ```
//!
//! ```compile_fail,E0277
//! # use ferrocx::lcore::handover;
//! let (mut to, mut from) = handover::<std::rc::Rc<u8>>(4);
//! to.push(std::rc::Rc::new(1)).unwrap();
//! assert_eq!(*from.pop().unwrap(), 1);
//! ```
//!
//! ```
//! # use ferrocx::{Burst, Lane, lcore::{Lcores, StopFlag}};
//! fn right(cores: &Lcores, mut lane: Lane) {
//!     let worker = move |_: &StopFlag| lane.rx_burst(&mut Burst::<32>::new());
//!     let _ = cores.launch(1, StopFlag::new(), worker);
//! }
//! ```
//!
//! ```compile_fail,E0521
//! # use ferrocx::{Burst, Lane, lcore::{Lcores, StopFlag}};
//! fn wrong(cores: &Lcores, lane: &mut Lane) {
//!     let worker = move |_: &StopFlag| lane.rx_burst(&mut Burst::<32>::new());
//!     let _ = cores.launch(1, StopFlag::new(), worker);
//! }
//! ```
