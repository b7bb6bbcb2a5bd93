//! Wrong uses that the compiler refuses, each beside the right one. Only doc tests see this file;
//! nightly checks the error codes too.
//!
//! A packet that was given back is gone:
//!
//! ```compile_fail,E0382
//! fn wrong(cache: &mut ferrocx_mempool::PoolCache, mbuf: ferrocx_mempool::Mbuf) -> usize {
//!     cache.put(mbuf);
//!     mbuf.pkt_len()
//! }
//! ```
//!
//! So is one that was handed to a device, and one that was chained to another:
//!
//! ```compile_fail,E0382
//! fn wrong(mbuf: ferrocx_mempool::Mbuf) -> usize {
//!     let _posted = mbuf.into_raw();
//!     mbuf.pkt_len()
//! }
//! ```
//!
//! ```compile_fail,E0382
//! fn wrong(mut head: ferrocx_mempool::Mbuf, tail: ferrocx_mempool::Mbuf) -> usize {
//!     let _ = head.chain(tail);
//!     tail.pkt_len()
//! }
//! ```
//!
//! Borrowed data keeps its packet from going anywhere, a segment's too:
//!
//! ```compile_fail,E0505
//! fn wrong(cache: &mut ferrocx_mempool::PoolCache, mbuf: ferrocx_mempool::Mbuf) -> u8 {
//!     let data = mbuf.data();
//!     cache.put(mbuf);
//!     data[0]
//! }
//! ```
//!
//! ```compile_fail,E0505
//! fn wrong(mbuf: ferrocx_mempool::Mbuf) -> usize {
//!     let data: Vec<&[u8]> = mbuf.segments().map(|segment| segment.data()).collect();
//!     drop(mbuf);
//!     data[0].len()
//! }
//! ```
//!
//! and a clone cannot be made while it may be written to:
//!
//! ```compile_fail,E0502
//! fn wrong(cache: &mut ferrocx_mempool::PoolCache, mbuf: &mut ferrocx_mempool::Mbuf) {
//!     let data = mbuf.data_mut().unwrap();
//!     let _clone = mbuf.clone_ref(cache);
//!     data[0] = 1;
//! }
//! ```
//!
//! Whoever copies out of a large buffer has borrowed it, and the pool that the copies are of:
//!
//! ```compile_fail,E0505
//! use ferrocx_mempool::{Mbuf, Pool, Sliced};
//! fn wrong(large: &mut Sliced, pool: Pool, mbuf: &mut Mbuf) {
//!     let mut copier = large.copier(&pool, 0..64).unwrap();
//!     let part = copier.next_part(64).unwrap();
//!     drop(pool);
//!     let _ = copier.copy(part, mbuf);
//! }
//! ```
//!
//! Nor is a packet copied behind its reference count:
//!
//! ```compile_fail,E0599
//! fn wrong(mbuf: ferrocx_mempool::Mbuf) -> ferrocx_mempool::Mbuf {
//!     mbuf.clone()
//! }
//! ```
//!
//! What says where a device writes is unsafe, and so is taking a packet back from it:
//!
//! ```compile_fail,E0133
//! fn wrong(pool: &ferrocx_mempool::Pool, keys: ferrocx_mempool::PoolKeys) {
//!     pool.stamp(keys).unwrap();
//! }
//! ```
//!
//! ```compile_fail,E0133
//! fn wrong(pool: &ferrocx_mempool::Pool) {
//!     pool.unstamp().unwrap();
//! }
//! ```
//!
//! ```compile_fail,E0133
//! fn wrong(raw: ferrocx_mempool::RawMbuf) -> ferrocx_mempool::Mbuf {
//!     ferrocx_mempool::Mbuf::from_raw(raw)
//! }
//! ```
//!
//! Handles and packets may be shared and sent; a cache is sent, and is used by one thread at a
//! time:
//!
//! ```
//! use ferrocx_mempool::{Mbuf, MbufFifo, Pool, PoolCache, RawMbuf, Region};
//!
//! fn sent<T: Send>() {}
//! fn shared<T: Sync>() {}
//! (sent::<Mbuf>(), sent::<RawMbuf>(), sent::<Pool>(), sent::<Region>());
//! (shared::<Mbuf>(), shared::<RawMbuf>(), shared::<Pool>(), shared::<Region>());
//! (sent::<PoolCache>(), sent::<MbufFifo>());
//! ```
//!
//! ```compile_fail,E0277
//! fn shared<T: Sync>() {}
//! shared::<ferrocx_mempool::PoolCache>();
//! ```
//!
//! A segment is its packet's, and stays on the thread that walks it:
//!
//! ```compile_fail,E0277
//! fn sent<T: Send>() {}
//! sent::<ferrocx_mempool::Segments<'static>>();
//! ```
