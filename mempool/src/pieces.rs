//! [`Piece`]: where the bytes of a packet lie, as a DMA engine needs to know it; and [`Pages`], the
//! list of pages that an NVMe device takes.

use thiserror::Error;

use crate::{
    chain::{Segment, Segments},
    mbuf::Mbuf,
};

/// One contiguous run of bytes of a packet: what a gather or scatter entry says.
///
/// It borrows nothing: whoever hands it to a device keeps the packet ([`Mbuf::into_raw`]) until
/// the device is done.
///
/// # Whose address
/// `iova` is an address in the I/O address space of one device: the one whose registration stamped
/// the pool ([`PoolKeys`](crate::PoolKeys)), or that an external buffer was made for. It is right
/// for another device too if both share that space (one IOMMU domain). For one that does not, map
/// the region there and put its address in place: [`Piece::at`], from `address` and the region's
/// base. `lkey_be` is for those that `domain` stands for and for nobody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Virtual address of the first byte in this process.
    pub address: usize,
    /// Bytes: at least 1; of a packet, at most 65535.
    pub len_bytes: usize,
    /// I/O address of the first byte.
    pub iova: u64,
    /// Local key as it stands in a WQE: its four bytes in memory are big-endian.
    pub lkey_be: u32,
    /// Who may use the key, as in [`PoolKeys::domain`](crate::PoolKeys::domain); 0 if nobody may
    /// take it from here.
    pub domain: u32,
    /// Whether it lies in [foreign](crate::Backing::Foreign) memory, see [`Mbuf::is_foreign`].
    pub is_foreign: bool,
}

impl Piece {
    /// This piece with the address that another device has for its bytes. Key and domain stay.
    #[must_use]
    pub fn at(self, iova: u64) -> Self {
        Self { iova, ..self }
    }
}

impl Segment<'_> {
    /// Where its data lies; `None` if it has none.
    #[inline]
    #[must_use]
    pub fn piece(&self) -> Option<Piece> {
        let len_bytes = self.data_len();
        (len_bytes != 0).then(|| Piece {
            address: self.data_address(),
            len_bytes,
            iova: self.data_iova(),
            lkey_be: self.lkey_be(),
            domain: self.domain(),
            is_foreign: self.is_foreign(),
        })
    }

    /// Where the free bytes behind its data lie; `None` if there are none.
    #[inline]
    fn tail_piece(&self) -> Option<Piece> {
        let (data_len, len_bytes) = (self.data_len(), self.tailroom());
        (len_bytes != 0).then(|| Piece {
            address: self.data_address() + data_len,
            len_bytes,
            iova: self.data_iova().wrapping_add(data_len as u64),
            lkey_be: self.lkey_be(),
            domain: self.domain(),
            is_foreign: self.is_foreign(),
        })
    }
}

impl Mbuf {
    /// Where the data of the packet lies: a piece for each segment that has some, first to last.
    #[inline]
    #[must_use]
    pub fn pieces(&self) -> Pieces<'_> {
        Pieces(self.segments())
    }

    /// The free bytes behind the data, for a device to write: those of the last segment that has
    /// data, and of the empty ones behind it. [`Mbuf::grow`] makes what it wrote part of the
    /// packet.
    ///
    /// A device may be told to write there only if the packet [is exclusive](Mbuf::is_exclusive).
    #[inline]
    pub fn tail_pieces(&self) -> impl Iterator<Item = Piece> + Clone {
        self.tail().filter_map(|segment| segment.tail_piece())
    }

    /// Whether no clone shares the data of any segment, so that a device may be told to write
    /// there.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.segments().all(|segment| segment.is_exclusive())
    }

    /// The pages in which the data of the packet lies, see [`Pages::new`].
    ///
    /// # Errors
    /// [`PagesError`].
    ///
    /// # Panics
    /// Unless `page_bytes` is a power of two.
    pub fn pages(&self, page_bytes: usize) -> Result<Pages<Pieces<'_>>, PagesError> {
        Pages::new(self.pieces(), page_bytes)
    }
}

/// Iterator over the pieces of a packet: see [`Mbuf::pieces`].
#[derive(Debug, Clone)]
pub struct Pieces<'a>(Segments<'a>);

impl Iterator for Pieces<'_> {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        self.0.find_map(|segment| segment.piece())
    }
}

/// Pieces that no list of pages can describe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "after {after_bytes} bytes, data ends or goes on inside a page; only the first byte of a list \
     of pages may lie inside one"
)]
pub struct PagesError {
    /// Bytes of data in front of the place.
    pub after_bytes: usize,
}

/// The I/O addresses of the pages in which pieces lie, as NVMe's PRP entries are: the first may
/// point inside a page, all others point to the start of one.
///
/// Together with the number of bytes this says where every byte is. The first address must be a
/// multiple of 4 for NVMe, which is not checked here. Source: NVMe Base Specification 2.0, §4.1.1.
#[derive(Debug, Clone)]
pub struct Pages<I> {
    pieces: I,
    page_bytes: u64,
    /// The next address of the piece at hand, and the bytes of it that are left.
    at: u64,
    bytes: u64,
    is_first: bool,
    /// Pages to come.
    left: usize,
    len_bytes: usize,
}

impl<I: Iterator<Item = Piece> + Clone> Pages<I> {
    /// The pages of `pieces`, by their I/O addresses. For a device with addresses of its own, put
    /// those in place first:
    ///
    /// ```
    /// use ferrocx_mempool::{Mbuf, Pages, PagesError, Piece};
    ///
    /// /// `iova`: where the region of the packet starts for the NVMe device.
    /// fn prps(mbuf: &Mbuf, base: usize, iova: u64) -> Result<Vec<u64>, PagesError> {
    ///     let there = |piece: Piece| piece.at(iova + (piece.address - base) as u64);
    ///     Ok(Pages::new(mbuf.pieces().map(there), 4096)?.collect())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`PagesError`] unless each piece starts where the one before ends, or both places are page
    /// borders.
    ///
    /// # Panics
    /// Unless `page_bytes` is a power of two.
    pub fn new(
        pieces: impl IntoIterator<IntoIter = I>,
        page_bytes: usize,
    ) -> Result<Self, PagesError> {
        assert!(page_bytes.is_power_of_two(), "pages of {page_bytes} bytes");
        let (pieces, page_bytes) = (pieces.into_iter(), page_bytes as u64);
        let (mut end, mut left, mut len_bytes) = (None, 0, 0);
        for piece in pieces.clone().filter(|piece| piece.len_bytes != 0) {
            let (start, len) = (piece.iova, piece.len_bytes as u64);
            let meets = |end: u64| {
                end == start || end.is_multiple_of(page_bytes) && start.is_multiple_of(page_bytes)
            };
            if end.is_some_and(|end| !meets(end)) {
                return Err(PagesError { after_bytes: len_bytes });
            }
            // A piece that starts inside a page, but for the first, goes on in one that is listed.
            let inside = start % page_bytes;
            let listed = u64::from(end.is_some() && inside != 0);
            left += ((inside + len).div_ceil(page_bytes) - listed) as usize;
            end = Some(start.wrapping_add(len));
            len_bytes += piece.len_bytes;
        }
        Ok(Self { pieces, page_bytes, at: 0, bytes: 0, is_first: true, left, len_bytes })
    }

    /// Bytes of data in all pages.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl<I: Iterator<Item = Piece>> Pages<I> {
    /// Moves to the next page border.
    fn step(&mut self) {
        let step = self.page_bytes - self.at % self.page_bytes;
        self.at = self.at.wrapping_add(step);
        self.bytes = self.bytes.saturating_sub(step);
    }
}

impl<I: Iterator<Item = Piece>> Iterator for Pages<I> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        while self.bytes == 0 {
            let piece = self.pieces.next()?;
            (self.at, self.bytes) = (piece.iova, piece.len_bytes as u64);
            if self.bytes == 0 {
                continue;
            }
            if !self.is_first && !self.at.is_multiple_of(self.page_bytes) {
                self.step();
            }
            self.is_first = false;
        }
        let page = self.at;
        self.step();
        self.left -= 1;
        Some(page)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<I: Iterator<Item = Piece>> ExactSizeIterator for Pages<I> {}
