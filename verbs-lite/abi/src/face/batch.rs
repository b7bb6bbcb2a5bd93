//! [`Batch`]: the work requests that a program builds before it posts them.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use super::Errno;
use crate::abi::{ibv_data_buf, ibv_qp_cap, ibv_send_wr, ibv_sge};

/// Where the data of a request stand in its batch.
#[derive(Debug, Clone)]
pub(super) enum Data {
    List(Range<usize>),
    Inline(Range<usize>),
}

/// The requests between `wr_start` and `wr_complete`.
pub(super) struct Batch {
    /// Somebody builds one.
    pub(super) is_open: AtomicBool,
    pub(super) requests: Vec<(ibv_send_wr, Data)>,
    pub(super) lists: Vec<ibv_sge>,
    pub(super) inline: Vec<u8>,
    pub(super) error: Option<Errno>,
    max_wr: usize,
    max_sge: usize,
    max_inline: usize,
}

impl Batch {
    pub(super) fn new(cap: &ibv_qp_cap) -> Self {
        let max_wr = cap.max_send_wr.max(1) as usize;
        Self {
            is_open: AtomicBool::new(false),
            requests: Vec::with_capacity(max_wr),
            lists: Vec::with_capacity(max_wr),
            inline: Vec::new(),
            error: None,
            max_wr,
            max_sge: cap.max_send_sge.max(1) as usize,
            max_inline: cap.max_inline_data as usize,
        }
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.lists.clear();
        self.inline.clear();
        self.error = None;
    }

    pub(super) fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }

    pub(super) fn add(&mut self, request: ibv_send_wr) {
        if self.requests.len() == self.max_wr {
            return self.fail(Errno::NO_MEMORY);
        }
        let end = self.lists.len();
        self.requests.push((request, Data::List(end..end)));
    }

    fn set_data(&mut self, data: Data) {
        match self.requests.last_mut() {
            Some((_, place)) => *place = data,
            None => self.fail(Errno::INVALID),
        }
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
        self.set_data(Data::Inline(start..self.inline.len()));
    }
}
