//! [`Buffers`]: what a work request may take along.
#![expect(unsafe_code, reason = "the device reads and writes where these entries say")]

use std::fmt;

use arrayvec::ArrayVec;
use ferrocx_mempool::Mbuf;

use super::{Buf, Sge};

/// What a work request can take along: the memory behind its scatter or gather list.
///
/// | for | entries |
/// |---|---|
/// | [`Buf`] | one piece of a memory region |
/// | [`Mbuf`] | the data of a packet; a receive fills the free bytes behind them |
/// | [`Payload`] | either, request by request |
/// | arrays of `Buf` | one for each |
/// | `()` | none |
///
/// An `Mbuf` is sent, written and read into as long as it is: a READ or an atomic replaces its
/// data. A receive has the room of [`Mbuf::tail_pieces`] and brings the `Mbuf` back grown by what
/// arrived, as an Ethernet receive does. Its pool must be registered with the device
/// ([`Device::register_pool`](ferrocx_core::Device::register_pool)), and not only with another one
/// after the queue pair was made. Without a reserved L_Key, and if its memory is foreign, its key
/// is of the device's own protection domain
/// ([`RdmaContext::device_pd`](crate::RdmaContext::device_pd)), and queue pairs of others refuse it
/// with [`PostError::Pd`](crate::PostError::Pd).
///
/// # Safety
/// From the call of [`Buffers::sges`] or [`Buffers::recv_sges`] until the value is dropped or
/// handed out again, and for ever if it is forgotten:
///
/// - `addr` leads under `lkey_be` to memory that stays mapped for every device and protection
///   domain that `domain` stands for, and is this value's to lend;
/// - nobody writes to the bytes of `sges`, but by atomic accesses;
/// - where [`Buffers::is_exclusive`], and to the bytes of `recv_sges` always then, a device may
///   write: nobody borrows them.
///
/// Where [`Buffers::only_sge`] and [`Buffers::only_recv_sge`] give an entry, it is the one that
/// `sges` and `recv_sges` give, and there is no other. Moving the value does not change its
/// entries. These methods go on giving the same ones until the request is posted or refused, and
/// are not called after it was posted: a value may name a list that lives no longer than the call.
pub unsafe trait Buffers: Send + fmt::Debug + 'static {
    /// The entries that are sent from, and that READs and atomics fill, in order.
    fn sges(&self) -> impl Iterator<Item = Sge>;

    /// The entry of [`Buffers::sges`], if there is exactly one and that is cheap to know: such
    /// requests are written on a shorter path.
    #[inline(always)]
    fn only_sge(&self) -> Option<Sge> {
        None
    }

    /// The entry of [`Buffers::recv_sges`], if there is exactly one, [`Buffers::is_exclusive`]
    /// holds, and both are cheap to know: such receives are written on a shorter path.
    #[inline(always)]
    fn only_recv_sge(&self) -> Option<Sge> {
        None
    }

    /// The entries that a receive fills, in order.
    #[inline(always)]
    fn recv_sges(&self) -> impl Iterator<Item = Sge> {
        self.sges()
    }

    /// Whether a device may write to its memory. Receives, READs and atomics are refused otherwise,
    /// with [`PostError::NotExclusive`](crate::PostError::NotExclusive).
    #[inline(always)]
    fn is_exclusive(&self) -> bool {
        true
    }

    /// Notes that a receive has filled the first `len` bytes of its entries. `false` if they are
    /// fewer, so that the completion cannot be right.
    #[inline(always)]
    fn received(&mut self, len: u32) -> bool {
        let _ = len;
        true
    }

    /// Copies the first bytes of [`Buffers::sges`] out. `false` if there are fewer, or the
    /// processor cannot read them.
    fn copy_head(&self, out: &mut [u8]) -> bool;
}

/// Copies the first bytes of several pieces.
fn copy_head(pieces: &[Buf], mut out: &mut [u8]) -> bool {
    for piece in pieces {
        let (head, rest) = out.split_at_mut(out.len().min(piece.len()));
        if piece.copy_out(0, head).is_err() {
            return false;
        }
        out = rest;
    }
    out.is_empty()
}

// SAFETY: a `Buf` holds its registration, which holds key, protection domain and mapping, and none
// of them ends by itself: one that is ended or taken back leads nowhere any more. Its memory is
// only ever copied by atomic accesses, so devices may write there at any time.
unsafe impl Buffers for Buf {
    #[inline(always)]
    fn sges(&self) -> impl Iterator<Item = Sge> {
        std::iter::once(self.sge())
    }

    #[inline(always)]
    fn only_sge(&self) -> Option<Sge> {
        Some(self.sge())
    }

    #[inline(always)]
    fn only_recv_sge(&self) -> Option<Sge> {
        Some(self.sge())
    }

    fn copy_head(&self, out: &mut [u8]) -> bool {
        copy_head(std::slice::from_ref(self), out)
    }
}

// SAFETY: as of each `Buf`.
unsafe impl<const N: usize> Buffers for [Buf; N] {
    #[inline(always)]
    fn sges(&self) -> impl Iterator<Item = Sge> {
        self.iter().map(Buf::sge)
    }

    fn copy_head(&self, out: &mut [u8]) -> bool {
        copy_head(self, out)
    }
}

// SAFETY: as of each `Buf`.
unsafe impl<const N: usize> Buffers for ArrayVec<Buf, N> {
    #[inline(always)]
    fn sges(&self) -> impl Iterator<Item = Sge> {
        self.iter().map(Buf::sge)
    }

    fn copy_head(&self, out: &mut [u8]) -> bool {
        copy_head(self, out)
    }
}

// SAFETY: no entries.
unsafe impl Buffers for () {
    #[inline(always)]
    fn sges(&self) -> impl Iterator<Item = Sge> {
        std::iter::empty()
    }

    fn copy_head(&self, out: &mut [u8]) -> bool {
        out.is_empty()
    }
}

// SAFETY: (1) whoever stamped the pool, or attached an external buffer, promised that address and
// key are right for `domain` as long as a buffer that says so is out; this one is out. (2) Nobody
// writes to data that clones share, and clones come from borrowed Mbufs only. (3) When no clone
// shares any data, this Mbuf alone reaches it and the room behind it, and it is not borrowed while
// somebody holds it by value. The bytes of foreign memory are never borrowed.
unsafe impl Buffers for Mbuf {
    #[inline(always)]
    fn sges(&self) -> impl Iterator<Item = Sge> {
        self.pieces().map(Sge::from)
    }

    #[inline(always)]
    fn only_sge(&self) -> Option<Sge> {
        if self.nb_segs() == 1 { self.pieces().next().map(Sge::from) } else { None }
    }

    #[inline(always)]
    fn recv_sges(&self) -> impl Iterator<Item = Sge> {
        self.tail_pieces().map(Sge::from)
    }

    #[inline(always)]
    fn is_exclusive(&self) -> bool {
        Mbuf::is_exclusive(self)
    }

    #[inline(always)]
    fn received(&mut self, len: u32) -> bool {
        self.grow(len as usize)
    }

    fn copy_head(&self, out: &mut [u8]) -> bool {
        self.read(0, out)
    }
}

/// A piece of a memory region or a packet, for queue pairs that carry both: small messages from
/// one, blocks from the other.
#[derive(Debug)]
pub enum Payload {
    /// A piece of a memory region.
    Buf(Buf),
    /// A packet.
    Mbuf(Mbuf),
}

impl From<Buf> for Payload {
    fn from(buf: Buf) -> Self {
        Self::Buf(buf)
    }
}

impl From<Mbuf> for Payload {
    fn from(mbuf: Mbuf) -> Self {
        Self::Mbuf(mbuf)
    }
}

impl Payload {
    /// One of its parts, and none of the other.
    fn parts(&self) -> (Option<&Buf>, Option<&Mbuf>) {
        match self {
            Self::Buf(buf) => (Some(buf), None),
            Self::Mbuf(mbuf) => (None, Some(mbuf)),
        }
    }
}

// SAFETY: as of the one that it is.
unsafe impl Buffers for Payload {
    #[inline]
    fn sges(&self) -> impl Iterator<Item = Sge> {
        let (buf, mbuf) = self.parts();
        buf.into_iter().flat_map(Buffers::sges).chain(mbuf.into_iter().flat_map(Buffers::sges))
    }

    #[inline(always)]
    fn only_sge(&self) -> Option<Sge> {
        match self {
            Self::Buf(buf) => buf.only_sge(),
            Self::Mbuf(mbuf) => mbuf.only_sge(),
        }
    }

    #[inline(always)]
    fn only_recv_sge(&self) -> Option<Sge> {
        match self {
            Self::Buf(buf) => buf.only_recv_sge(),
            Self::Mbuf(mbuf) => mbuf.only_recv_sge(),
        }
    }

    #[inline]
    fn recv_sges(&self) -> impl Iterator<Item = Sge> {
        let (buf, mbuf) = self.parts();
        buf.into_iter()
            .flat_map(Buffers::recv_sges)
            .chain(mbuf.into_iter().flat_map(Buffers::recv_sges))
    }

    #[inline(always)]
    fn is_exclusive(&self) -> bool {
        match self {
            Self::Buf(_) => true,
            Self::Mbuf(mbuf) => mbuf.is_exclusive(),
        }
    }

    #[inline(always)]
    fn received(&mut self, len: u32) -> bool {
        match self {
            Self::Buf(_) => true,
            Self::Mbuf(mbuf) => mbuf.received(len),
        }
    }

    fn copy_head(&self, out: &mut [u8]) -> bool {
        match self {
            Self::Buf(buf) => buf.copy_head(out),
            Self::Mbuf(mbuf) => mbuf.copy_head(out),
        }
    }
}
