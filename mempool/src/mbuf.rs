//! [`Mbuf`]: a packet in one or more buffers.
//!
//! Long file: the methods of one type, which a reader looks up by name.
#![expect(unsafe_code, reason = "headers are reached through pointers that the Mbuf owns")]

use std::{fmt, mem::ManuallyDrop, ptr::NonNull, slice};

use crate::{
    all_same::AllSame,
    flags::{Marks, OlFlags, PACKET_TYPE_SHIFT, PacketType, RxMeta, TxLengths},
    header::{Cold, Header, PoolInner, header, home, set_header},
    holders::{is_writable, put_home, release},
    pool::Pool,
};

/// Bits of a flow mark. Source: reference 6.7, `sop_drop_qpn`.
const FLOW_MARK_MASK: u32 = 0x00ff_ffff;

/// A packet that the CPU owns: a pointer to the header of its first segment.
///
/// Its data lies in the middle of a data room, with *headroom* before it and *tailroom* behind:
///
/// ```text
/// | headroom | data ............ | tailroom |
/// ^ room     ^ data_iova         ^ data_iova + data_len
/// ```
///
/// A long packet is a chain of segments; [`Mbuf::data`] is the first one's, [`Mbuf::segments`]
/// walks all. Clones ([`Mbuf::clone_ref`]) share their data, which is then read-only.
///
/// To post it to a device, take it apart with [`Mbuf::into_raw`]; a [`RawMbuf`] cannot be read.
/// Dropping an `Mbuf` gives each segment to the shared list of its pool, from any thread;
/// [`PoolCache::put`](crate::PoolCache::put) is the fast way.
#[repr(transparent)]
#[doc(alias = "rte_mbuf")]
pub struct Mbuf(pub(crate) NonNull<Header>);

// SAFETY: an Mbuf is the only user of its headers but for their reference counts, which are
// atomic, and of its data but for other readers.
unsafe impl Send for Mbuf {}
// SAFETY: through `&Mbuf` headers and data are only read, and reference counts are atomic.
unsafe impl Sync for Mbuf {}

/// A packet that a device owns, or that waits in a ring: one non-zero word.
///
/// Dropping it leaks the packet until [`Mbuf::from_raw`] or
/// [`PoolCache::put_simple_bulk`](crate::PoolCache::put_simple_bulk) takes it back.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawMbuf(pub(crate) NonNull<Header>);

// SAFETY: as for `Mbuf`; a RawMbuf gives no access at all.
unsafe impl Send for RawMbuf {}
// SAFETY: as above.
unsafe impl Sync for RawMbuf {}

impl RawMbuf {
    /// The header's address, for prefetching and for debug output.
    #[inline]
    #[must_use]
    pub fn as_ptr(self) -> *const u8 {
        self.0.as_ptr().cast()
    }
}

impl Mbuf {
    /// Makes the packet what it was when it came out of its pool: one segment without data, the
    /// pool's headroom before it (none in an external buffer), no flags and no metadata. Segments
    /// chained to it are given back.
    #[inline]
    pub fn reset(&mut self) {
        drop(self.take_next());
        let pool = home!(self).pool();
        // SAFETY: the pool lives as long as its buffers are out.
        let headroom = unsafe { pool.as_ref().headroom };
        // SAFETY: as in `header!`.
        let attached = unsafe { (*self.0.as_ptr()).refs.is_attached() };
        // SAFETY: ours, and single since `take_next`; the headroom is not above the room.
        unsafe { Header::clear(self.0, if attached { 0 } else { headroom }) };
    }

    /// Makes a buffer that was taken [raw](crate::PoolCache::get_raw_bulk), posted, and filled by a
    /// device into a packet of `len` bytes behind `headroom` bytes.
    ///
    /// `false`, and no change, if the data room is smaller than `headroom + len`: the completion
    /// cannot be right; and for a chain, whose length would no longer be the sum.
    #[inline]
    pub fn init_rx(&mut self, headroom: u16, len: u32, meta: RxMeta) -> bool {
        let fits = u64::from(headroom) + u64::from(len) <= u64::from(header!(self, buf_len));
        if !fits || !header!(self, next).is_null() {
            return false;
        }
        self.set_filled(headroom, len);
        self.set_meta(meta);
        true
    }

    /// Replaces what is known about a received packet besides its data.
    #[inline]
    pub fn set_meta(&mut self, meta: RxMeta) {
        set_header!(self, vlan_tci, meta.vlan_tci);
        set_header!(self, rss_hash_be, meta.rss_hash.to_be());
        set_header!(self, flow_mark_be, meta.flow_mark.to_be());
        let packet_type = u32::from(meta.packet_type.0) << PACKET_TYPE_SHIFT;
        set_header!(self, flags, meta.flags.bits() | packet_type);
    }

    /// What [`Mbuf::init_rx`] does with lengths, without its check.
    #[inline(always)]
    pub(crate) fn set_filled(&mut self, headroom: u16, len: u32) {
        debug_assert!(u64::from(headroom) + u64::from(len) <= u64::from(header!(self, buf_len)));
        set_header!(self, data_off, headroom);
        set_header!(self, data_len, len as u16);
        set_header!(self, pkt_len, len);
    }

    /// Sets flags and packet type of a received packet: like the setters below, a part of what
    /// [`Mbuf::init_rx`] does. In parts, a burst can store each field as soon as it has read it,
    /// and keeps its loop in registers.
    #[inline(always)]
    pub fn set_rx_flags(&mut self, flags: OlFlags, packet_type: PacketType) {
        let packet_type = u32::from(packet_type.0) << PACKET_TYPE_SHIFT;
        set_header!(self, flags, flags.bits() | packet_type);
    }

    /// Sets the hash that [`OlFlags::RX_RSS_HASH`] declares valid, as it stands in memory: its four
    /// bytes are big-endian.
    #[inline(always)]
    pub fn set_rss_hash_be(&mut self, raw: u32) {
        set_header!(self, rss_hash_be, raw);
    }

    /// Sets the mark, 24 bits, as it stands in memory: the last three of four bytes, big-endian. 0
    /// for none.
    #[inline(always)]
    pub fn set_flow_mark_be(&mut self, raw: u32) {
        set_header!(self, flow_mark_be, raw);
    }

    /// Sets mark, flags and packet type at once: those of packets that have them in common.
    #[inline(always)]
    pub fn set_marks(&mut self, marks: Marks) {
        // SAFETY: `&mut self`, and mark and flags are eight bytes of the header, side by side.
        unsafe {
            (&raw mut (*self.0.as_ptr()).flow_mark_be).cast::<Marks>().write_unaligned(marks)
        };
    }

    /// Notes when the packet came, in ticks of the device that received it, and that it is known:
    /// [`OlFlags::RX_TIMESTAMP`].
    #[inline(always)]
    pub fn set_rx_timestamp(&mut self, ticks: u64) {
        // SAFETY: the cold half belongs to the holder of the header, as the hot one does.
        unsafe { (*self.cold().as_ptr()).rx_ticks = ticks };
        set_header!(self, flags, header!(self, flags) | OlFlags::RX_TIMESTAMP.bits());
    }

    /// Makes a buffer that a device filled into a packet without metadata, see [`Mbuf::init_rx`].
    #[inline]
    pub fn reset_rx(&mut self, headroom: u16, len: u32) -> bool {
        self.init_rx(headroom, len, RxMeta::default())
    }

    // ---- The data of the first segment ----

    /// The data of the first segment.
    ///
    /// # Panics
    /// If it [is foreign](Mbuf::is_foreign).
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        let len = usize::from(header!(self, data_len));
        if self.is_foreign() {
            borrowed_foreign();
        }
        // SAFETY: (1) `data_off + data_len <= buf_len`, so the range lies in the room, which was
        // zeroed when mapped; (2) the CPU owns it, so no device writes to it, and it is not
        // foreign, so nobody else does; (3) no `&mut` to it exists: that takes `&mut self` and no
        // clones.
        unsafe { slice::from_raw_parts(self.data_ptr(), len) }
    }

    /// The data of the first segment, to write to. `None` while clones share the data, and if it
    /// [is foreign](Mbuf::is_foreign).
    #[inline]
    #[must_use]
    pub fn data_mut(&mut self) -> Option<&mut [u8]> {
        let len = usize::from(header!(self, data_len));
        let ptr = self.data_ptr();
        // SAFETY: as in `data`, and nobody else can reach the data: `&mut self`, writable.
        self.is_writable().then(|| unsafe { slice::from_raw_parts_mut(ptr, len) })
    }

    /// Bytes of data in the first segment.
    #[inline]
    #[must_use]
    pub fn data_len(&self) -> usize {
        usize::from(header!(self, data_len))
    }

    /// Bytes of data in all segments.
    #[inline]
    #[must_use]
    pub fn pkt_len(&self) -> usize {
        header!(self, pkt_len) as usize
    }

    /// Free bytes before the data of the first segment.
    #[inline]
    #[must_use]
    pub fn headroom(&self) -> usize {
        usize::from(header!(self, data_off))
    }

    /// Free bytes behind the data of the last segment.
    #[inline]
    #[must_use]
    pub fn tailroom(&self) -> usize {
        let h = self.last();
        // SAFETY: a header of the chain that this Mbuf owns.
        let (len, off, used) = unsafe { ((*h).buf_len, (*h).data_off, (*h).data_len) };
        usize::from(len) - usize::from(off) - usize::from(used)
    }

    /// The address of the first byte of data in the I/O address space of the device that stamped
    /// the pool, or that an external buffer was made for. Meaningless until then.
    #[inline]
    #[must_use]
    pub fn data_iova(&self) -> u64 {
        header!(self, iova).wrapping_add(u64::from(header!(self, data_off)))
    }

    /// Bytes of the data room, headroom included.
    #[inline]
    #[must_use]
    pub fn room_bytes(&self) -> usize {
        usize::from(header!(self, buf_len))
    }

    /// The local key of the data, host order. 0x100, the invalid key, until the pool is stamped.
    #[inline]
    #[must_use]
    pub fn lkey(&self) -> u32 {
        u32::from_be(header!(self, lkey_be))
    }

    /// The local key as it stands in a WQE: its four bytes in memory are big-endian.
    #[inline]
    #[must_use]
    pub fn lkey_be(&self) -> u32 {
        header!(self, lkey_be)
    }

    /// Whether the first segment lies in [foreign](crate::Backing::Foreign) memory: a BAR, a
    /// dma-buf, a shared file.
    ///
    /// Its owner may write there at any time, so Rust may not borrow it: [`Mbuf::data`] panics,
    /// [`Mbuf::data_mut`], [`Mbuf::append`] and [`Mbuf::prepend`] answer `None`. Lengths, the
    /// addresses for device and owner, chaining, sending and freeing are as ever, and
    /// [`Mbuf::read`] copies bytes out. A packet whose bytes the owner has written gets its length
    /// from [`Mbuf::reset_rx`].
    #[inline]
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        header!(self, foreign)
    }

    /// Virtual address of the first byte of data; for foreign memory, less the address of its
    /// region, where its owner finds it.
    #[inline]
    #[must_use]
    pub fn data_address(&self) -> usize {
        self.data_ptr().addr()
    }

    /// Virtual address of the first byte of the data room: what a queue translates by the mapping
    /// that it holds itself, when it posts a buffer to be filled. What device the pool's stamp is
    /// of, and for how long, then does not matter.
    #[inline]
    #[must_use]
    pub fn room_address(&self) -> usize {
        header!(self, buf).addr()
    }

    #[inline]
    pub(crate) fn data_ptr(&self) -> *mut u8 {
        let (buf, off) = (header!(self, buf), usize::from(header!(self, data_off)));
        // SAFETY: `data_off <= buf_len`.
        unsafe { buf.add(off) }
    }

    // ---- Making data longer and shorter ----

    /// Adds `n` bytes behind the data of the last segment, and gives them out to be written; they
    /// hold what was there before. `None`, and no change, if the tailroom is smaller, clones share
    /// the data, or the segment [is foreign](Mbuf::is_foreign).
    #[inline]
    pub fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        let h = self.last();
        // SAFETY: a header of the chain that this Mbuf owns.
        if n > self.tailroom() || !unsafe { is_writable(h) } {
            return None;
        }
        // SAFETY: (1) the header is of this chain; (2) `n` bytes are free behind the data; (3)
        // nobody else can reach them.
        let bytes = unsafe {
            let old = usize::from((*h).data_off) + usize::from((*h).data_len);
            (*h).data_len += n as u16;
            slice::from_raw_parts_mut((*h).buf.add(old), n)
        };
        set_header!(self, pkt_len, header!(self, pkt_len).wrapping_add(n as u32));
        Some(bytes)
    }

    /// Adds these bytes behind the data of the last segment. `false`, and no change, where
    /// [`Mbuf::append`] answers `None`.
    #[inline]
    #[must_use]
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> bool {
        match self.append(bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    /// Adds `n` bytes to the data without giving them out: what a device, or the owner of foreign
    /// memory, has written to the places that [`Mbuf::tail_pieces`] names, in their order. The
    /// bytes hold what was there before if nobody has. `false`, and no change, if they are fewer.
    #[inline]
    #[must_use]
    pub fn grow(&mut self, n: usize) -> bool {
        if n > self.tail().map(|segment| segment.tailroom()).sum() {
            return false;
        }
        let left = self.fill_tail(n);
        debug_assert_eq!(left, 0, "the room was counted");
        set_header!(self, pkt_len, header!(self, pkt_len).wrapping_add(n as u32));
        true
    }

    /// Adds `n` bytes before the data of the first segment, and gives them out to be written.
    /// `None`, and no change, if the headroom is smaller, clones share the data, or it
    /// [is foreign](Mbuf::is_foreign).
    #[inline]
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        let off = self.headroom();
        if n > off || n > usize::from(u16::MAX) - self.data_len() || !self.is_writable() {
            return None;
        }
        set_header!(self, data_off, (off - n) as u16);
        set_header!(self, data_len, header!(self, data_len) + n as u16);
        set_header!(self, pkt_len, header!(self, pkt_len).wrapping_add(n as u32));
        let ptr = self.data_ptr();
        // SAFETY: these bytes were headroom; nobody else can reach them.
        Some(unsafe { slice::from_raw_parts_mut(ptr, n) })
    }

    /// Removes `n` bytes from the end of the last segment. `false`, and no change, if it has fewer.
    #[inline]
    #[must_use]
    pub fn trim(&mut self, n: usize) -> bool {
        let h = self.last();
        // SAFETY: the header is of this chain, and its lengths are ours to change.
        unsafe {
            if n > usize::from((*h).data_len) {
                return false;
            }
            (*h).data_len -= n as u16;
        }
        set_header!(self, pkt_len, header!(self, pkt_len).wrapping_sub(n as u32));
        true
    }

    /// Removes `n` bytes from the start of the first segment. `false`, and no change, if it has
    /// fewer.
    #[inline]
    #[must_use]
    pub fn adj(&mut self, n: usize) -> bool {
        if n > self.data_len() {
            return false;
        }
        set_header!(self, data_off, header!(self, data_off) + n as u16);
        set_header!(self, data_len, header!(self, data_len) - n as u16);
        set_header!(self, pkt_len, header!(self, pkt_len).wrapping_sub(n as u32));
        true
    }

    // ---- Metadata ----

    /// Results of receiving and requests for sending.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> OlFlags {
        OlFlags::from_bits_truncate(header!(self, flags))
    }

    /// Whether any of these flags is set.
    #[inline(always)]
    pub(crate) fn wants(&self, any_of: OlFlags) -> bool {
        let [a, b, of_sending, c] = any_of.bits().to_le_bytes();
        if cfg!(target_endian = "little") && [a, b, c] == [0; 3] {
            // SAFETY: a byte of the flags. A load of its own, so that the processor tests it where
            // it stands.
            let byte = unsafe { (&raw const (*self.0.as_ptr()).flags).cast::<u8>().add(2).read() };
            return byte & of_sending != 0;
        }
        header!(self, flags) & any_of.bits() != 0
    }

    /// Replaces the flags.
    #[inline]
    pub fn set_flags(&mut self, flags: OlFlags) {
        let packet_type = header!(self, flags) >> PACKET_TYPE_SHIFT << PACKET_TYPE_SHIFT;
        set_header!(self, flags, packet_type | flags.bits());
    }

    /// The layers that the device recognised in the packet.
    #[inline]
    #[must_use]
    pub fn packet_type(&self) -> PacketType {
        PacketType((header!(self, flags) >> PACKET_TYPE_SHIFT) as u8)
    }

    /// The RSS hash, if the device gave one.
    #[inline]
    #[must_use]
    pub fn rss_hash(&self) -> Option<u32> {
        let is_valid = self.flags().contains(OlFlags::RX_RSS_HASH);
        is_valid.then(|| u32::from_be(header!(self, rss_hash_be)))
    }

    /// The mark of the flow rule that matched, if it set one.
    #[inline]
    #[must_use]
    pub fn flow_mark(&self) -> Option<u32> {
        let mark = u32::from_be(header!(self, flow_mark_be)) & FLOW_MARK_MASK;
        Some(mark).filter(|mark| *mark != 0)
    }

    /// When the packet came, in ticks of the counter of the device that received it, if its queue
    /// was asked to note it. `ferrocx-core`'s `Clock` makes nanoseconds of ticks.
    #[inline]
    #[must_use]
    #[doc(alias = "rte_mbuf_dyn_rx_timestamp_register")]
    pub fn rx_timestamp(&self) -> Option<u64> {
        let is_valid = self.flags().contains(OlFlags::RX_TIMESTAMP);
        // SAFETY: as in `set_rx_timestamp`.
        is_valid.then(|| unsafe { (*self.cold().as_ptr()).rx_ticks })
    }

    /// The name by which the packet's send timestamp is known, as [`Mbuf::set_tx_timestamp`] set
    /// it; means something only with [`OlFlags::TX_TIMESTAMP`].
    #[inline]
    #[must_use]
    pub fn tx_id(&self) -> u64 {
        // SAFETY: as in `set_rx_timestamp`.
        unsafe { (*self.cold().as_ptr()).tx_id }
    }

    /// Asks for the moment at which the device has sent the packet, and gives the packet a name by
    /// which the send queue tells it: [`OlFlags::TX_TIMESTAMP`].
    #[inline]
    pub fn set_tx_timestamp(&mut self, id: u64) {
        // SAFETY: as in `set_rx_timestamp`.
        unsafe { (*self.cold().as_ptr()).tx_id = id };
        set_header!(self, flags, header!(self, flags) | OlFlags::TX_TIMESTAMP.bits());
    }

    /// VLAN tag control information: of the received tag, or of the one to insert. What it holds
    /// means something only with the flag of either.
    #[inline]
    #[must_use]
    pub fn vlan_tci(&self) -> u16 {
        header!(self, vlan_tci)
    }

    /// Sets the tag control information for [`OlFlags::TX_VLAN_INSERT`].
    #[inline]
    pub fn set_vlan_tci(&mut self, tci: u16) {
        set_header!(self, vlan_tci, tci);
    }

    /// The lengths set by [`Mbuf::set_tx_lengths`] since the buffer's first use; a packet without
    /// [`OlFlags::TX_TSO`] may carry those of an earlier one.
    #[inline]
    #[must_use]
    pub fn tx_lengths(&self) -> TxLengths {
        // SAFETY: the cold half belongs to the holder of the header, as the hot one does.
        unsafe { (*self.cold().as_ptr()).lengths }
    }

    /// Sets the lengths that segmentation needs.
    #[inline]
    pub fn set_tx_lengths(&mut self, lengths: TxLengths) {
        // SAFETY: as above, with `&mut self`.
        unsafe { (*self.cold().as_ptr()).lengths = lengths };
    }

    #[inline]
    pub(crate) fn cold(&self) -> NonNull<Cold> {
        let pool = home!(self).pool();
        // SAFETY: the pool lives as long as its buffers are out.
        unsafe { pool.as_ref() }.cold(self.0)
    }

    // ---- Ownership ----

    /// Whether nobody else can read or write the data of the first segment, so that
    /// [`Mbuf::data_mut`] gives it out.
    #[inline]
    #[must_use]
    pub fn is_writable(&self) -> bool {
        // SAFETY: our header.
        unsafe { is_writable(self.0.as_ptr()) }
    }

    /// Whether the packet is a single buffer of `pool` that nobody shares and that nothing is
    /// attached to: what [`PoolCache::put_simple_bulk`](crate::PoolCache::put_simple_bulk) takes.
    #[inline]
    #[must_use]
    pub fn is_simple_of(&self, pool: &Pool) -> bool {
        self.is_simple_in(pool.inner_ptr())
    }

    /// The same, for whom has looked up the pool.
    #[inline(always)]
    pub(crate) fn is_simple_in(&self, pool: NonNull<PoolInner>) -> bool {
        let home = home!(self);
        // A mark of sharing that nobody took away asks for a closer look.
        home.is_unmarked(pool) || home.is_only_shared(pool) && self.is_simple()
    }

    /// Whether all are [`Mbuf::is_simple_of`] `pool`, with no branch per packet. `false` also for
    /// those that were shared once, see [`Home`](crate::home::Home).
    #[inline(always)]
    pub(crate) fn all_simple(mbufs: &[Mbuf], pool: &Pool) -> bool {
        let mut homes = AllSame::new(pool.inner_ptr().addr().get());
        let mut look = |mbuf: &Mbuf| homes.add(home!(mbuf).raw());
        let (fours, rest) = mbufs.as_chunks::<4>();
        fours.iter().for_each(|four| four.iter().for_each(&mut look));
        rest.iter().for_each(look);
        homes.is_so()
    }

    /// Whether it is a single buffer that nobody shares and that nothing is attached to.
    #[inline]
    pub(crate) fn is_simple(&self) -> bool {
        // SAFETY: as in `header!`.
        let refs = unsafe { &(*self.0.as_ptr()).refs };
        home!(self).has_no_mark() || refs.is_plain() && header!(self, next).is_null()
    }

    /// The headers of a chain of `K` segments of `pool` that nobody shares and that nothing is
    /// attached to. `None` for anything else, and for segments that were shared once.
    #[inline(always)]
    pub(crate) fn simple_chain<const K: usize>(
        &self,
        pool: NonNull<PoolInner>,
    ) -> Option<[NonNull<Header>; K]> {
        let mut headers = [self.0; K];
        for at in 0..K {
            let h = headers[at].as_ptr();
            // SAFETY: a header of the chain that this Mbuf owns.
            let home = unsafe { &(*h).home };
            let Some(place) = headers.get_mut(at + 1) else {
                return home.is_unmarked(pool).then_some(headers);
            };
            if !home.is_only_chained(pool) {
                return None;
            }
            // SAFETY: as above. The mark says that a segment follows.
            *place = unsafe { NonNull::new_unchecked((*h).next) };
        }
        None
    }

    /// Hands the packet over to a device or a ring. Nothing is freed.
    #[inline]
    #[must_use = "the packet is leaked unless `from_raw` takes it back"]
    pub fn into_raw(self) -> RawMbuf {
        RawMbuf(ManuallyDrop::new(self).0)
    }

    /// Takes a packet back.
    ///
    /// # Safety
    /// `raw` comes from [`Mbuf::into_raw`] and is taken back once. The device is done with its
    /// data, and what it wrote is visible: the completion was read with acquire.
    #[inline]
    #[must_use]
    pub unsafe fn from_raw(raw: RawMbuf) -> Self {
        Self(raw.0)
    }

    /// Asks for the first cache line of the data, some packets ahead of its use. Reads the header.
    #[inline]
    pub fn prefetch_data(&self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a prefetch has no effect on memory and takes any address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.data_ptr().cast());
        }
    }

    pub(crate) fn header_ptr(&self) -> NonNull<Header> {
        self.0
    }

    /// Whether `self` is `pool`'s, wherever its data lies.
    #[must_use]
    pub fn is_of(&self, pool: &Pool) -> bool {
        home!(self).pool() == pool.inner_ptr()
    }
}

#[cold]
#[inline(never)]
fn borrowed_foreign() -> ! {
    panic!("the data of a foreign segment cannot be borrowed; use Mbuf::read")
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        let mut next = Some(ManuallyDrop::new(Self(self.0)));
        while let Some(mut segment) = next {
            next = segment.take_next().map(ManuallyDrop::new);
            // SAFETY: a single segment, which `ManuallyDrop` never drops; put home if it is free.
            unsafe {
                if release(segment.0) {
                    put_home(segment.0);
                }
            }
        }
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mbuf")
            .field("pkt_len", &self.pkt_len())
            .field("nb_segs", &self.nb_segs())
            .field("data_len", &self.data_len())
            .field("headroom", &self.headroom())
            .field("flags", &self.flags())
            .field("lkey", &format_args!("{:#x}", self.lkey()))
            .finish_non_exhaustive()
    }
}
