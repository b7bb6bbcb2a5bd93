//! [`Batch`]: the work requests that a program builds before it posts them.

use std::ops::Range;
use std::ptr::null_mut;

use super::Errno;
use crate::abi::{
    ibv_data_buf, ibv_mw_bind_info, ibv_qp_cap, ibv_send_wr, ibv_sge, wr_atomic, wr_bind_mw, wr_of,
};

/// Where the data of a request stand.
#[derive(Debug, Clone)]
pub(super) enum Data {
    Nothing,
    /// In the request.
    One(ibv_sge),
    /// In the batch.
    List(Range<usize>),
    Inline(Range<usize>),
}

/// A request with nothing in it.
pub(super) const EMPTY: ibv_send_wr = ibv_send_wr {
    wr_id: 0,
    next: null_mut(),
    sg_list: null_mut(),
    num_sge: 0,
    opcode: 0,
    send_flags: 0,
    imm_data: 0,
    wr: wr_of { atomic: wr_atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 } },
    xrc_srqn: 0,
    bind_mw: wr_bind_mw {
        mw: null_mut(),
        rkey: 0,
        bind_info: ibv_mw_bind_info { mr: null_mut(), addr: 0, length: 0, mw_access_flags: 0 },
    },
};

/// A request, and its data.
pub(super) struct Request {
    pub(super) wr: ibv_send_wr,
    pub(super) data: Data,
}

/// The requests between `wr_start` and `wr_complete`.
pub(super) struct Batch {
    /// Those of former batches stay, so that only what a request says is written.
    requests: Vec<Request>,
    /// Behind the last request of this batch, and behind all that there is room for: places in
    /// `requests`, so that none has to be counted.
    next: *mut Request,
    end: *mut Request,
    lists: Vec<ibv_sge>,
    inline: Vec<u8>,
    error: Option<Errno>,
    /// A request of it may be refused for what it says.
    pub(super) needs_check: bool,
    max_wr: usize,
    max_sge: usize,
    max_inline: usize,
}

impl Batch {
    pub(super) fn new(cap: &ibv_qp_cap) -> Self {
        let mut requests = Vec::new();
        let start: *mut Request = requests.as_mut_ptr();
        Self {
            requests,
            next: start,
            end: start,
            lists: Vec::new(),
            inline: Vec::new(),
            error: None,
            needs_check: false,
            max_wr: cap.max_send_wr.max(1) as usize,
            max_sge: cap.max_send_sge.max(1) as usize,
            max_inline: cap.max_inline_data as usize,
        }
    }

    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.next = self.requests.as_mut_ptr();
        self.lists.clear();
        self.inline.clear();
        self.error = None;
        self.needs_check = false;
    }

    #[cold]
    pub(super) fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }

    #[inline(always)]
    fn len(&self) -> usize {
        // SAFETY: `next` is a place in `requests`, or behind the last one.
        unsafe { self.next.offset_from_unsigned(self.requests.as_ptr()) }
    }

    /// What was wrong with a request, if anything.
    #[inline(always)]
    pub(super) fn error(&self) -> Result<(), Errno> {
        self.error.map_or(Ok(()), Err)
    }

    /// The requests in order.
    #[inline(always)]
    pub(super) fn requests(&self) -> &[Request] {
        // SAFETY: they are the first of `requests`.
        unsafe { std::slice::from_raw_parts(self.requests.as_ptr(), self.len()) }
    }

    /// A list of a request.
    pub(super) fn list(&self, range: &Range<usize>) -> &[ibv_sge] {
        &self.lists[range.clone()]
    }

    /// The requests, their lists and their bytes.
    pub(super) fn parts(&mut self) -> (&mut [Request], &mut [ibv_sge], &[u8]) {
        let count = self.len();
        (&mut self.requests[..count], &mut self.lists, &self.inline)
    }

    /// Appends a request without data, and gives it to be written: of what its operation does not
    /// use, anything stands in it. `None` until [`Batch::grow`] has made room for it.
    #[inline(always)]
    pub(super) fn add(&mut self) -> Option<&mut ibv_send_wr> {
        if self.next == self.end {
            return None;
        }
        // SAFETY: `next` is in front of `end`, so it is one of `requests`, which nobody else uses.
        let request = unsafe { &mut *self.next };
        self.next = self.next.wrapping_add(1);
        request.data = Data::Nothing;
        Some(&mut request.wr)
    }

    /// Makes room for another request than there ever was; fails the batch if there are too many.
    pub(super) fn grow(&mut self) {
        if self.requests.len() == self.max_wr {
            return self.fail(Errno::NO_MEMORY);
        }
        let count = self.len();
        self.requests.push(Request { wr: EMPTY, data: Data::Nothing });
        let places = self.requests.as_mut_ptr_range();
        (self.next, self.end) = (places.start.wrapping_add(count), places.end);
    }

    /// The request that is being built; a batch without one fails.
    #[inline(always)]
    fn latest_request(&mut self) -> Option<&mut Request> {
        if self.next == self.requests.as_mut_ptr() {
            self.fail(Errno::INVALID);
            return None;
        }
        // SAFETY: the one in front of `next`, which `add` gave out and whose borrow has ended.
        Some(unsafe { &mut *self.next.wrapping_sub(1) })
    }

    /// The same, without its data.
    #[inline(always)]
    pub(super) fn latest(&mut self) -> Option<&mut ibv_send_wr> {
        self.latest_request().map(|request| &mut request.wr)
    }

    #[inline(always)]
    fn set_data(&mut self, data: Data) {
        if let Some(request) = self.latest_request() {
            request.data = data;
        }
    }

    #[inline(always)]
    pub(super) fn set_sge(&mut self, sge: ibv_sge) {
        self.set_data(Data::One(sge));
    }

    pub(super) fn set_list(&mut self, list: impl IntoIterator<Item = ibv_sge>) {
        let start = self.lists.len();
        self.lists.extend(list);
        if self.lists.len() - start > self.max_sge {
            self.fail(Errno::INVALID);
        }
        self.set_data(Data::List(start..self.lists.len()));
    }

    /// # Safety
    /// The module's: each piece is that many bytes of the program's.
    pub(super) unsafe fn set_inline(&mut self, pieces: impl IntoIterator<Item = ibv_data_buf>) {
        let start = self.inline.len();
        for piece in pieces {
            if piece.length > self.max_inline - (self.inline.len() - start).min(self.max_inline) {
                return self.fail(Errno::INVALID);
            }
            if piece.length > 0 {
                let bytes = promised!(std::slice::from_raw_parts(piece.addr, piece.length));
                self.inline.extend_from_slice(bytes);
            }
        }
        // Not every operation takes such data.
        self.needs_check = true;
        self.set_data(Data::Inline(start..self.inline.len()));
    }
}
