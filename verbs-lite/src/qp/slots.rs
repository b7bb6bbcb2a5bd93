//! [`Slots`]: what the requests in a ring hold.

use crate::cq::Completion;
use crate::error::Failure;
use crate::wc::{Returned, Wc};
use crate::wr::{RecvInfo, WcOpcode};

/// What the requests in the entries of a ring hold, by position: a power of two of them.
pub(crate) struct Slots<T> {
    entries: Box<[T]>,
    mask: usize,
}

impl<T> std::fmt::Debug for Slots<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slots({})", self.entries.len())
    }
}

impl<T> Slots<T> {
    pub(crate) fn new(count: u32, empty: impl Fn() -> T) -> Self {
        assert!(count.is_power_of_two());
        Self { entries: (0..count).map(|_| empty()).collect(), mask: count as usize - 1 }
    }

    pub(crate) fn count(&self) -> u32 {
        self.entries.len() as u32
    }

    /// The slot of a position.
    #[inline(always)]
    pub(crate) fn at(&mut self, position: u64) -> &mut T {
        match self.entries.get_mut(position as usize & self.mask) {
            Some(slot) => slot,
            None => no_slot(),
        }
    }

    /// The slots from a position on: at most `most`, and as many as lie side by side.
    #[inline(always)]
    pub(crate) fn run(&mut self, position: u64, most: u64) -> &mut [T] {
        let first = position as usize & self.mask;
        match self.entries.get_mut(first..) {
            Some(slots) if slots.len() as u64 > most => &mut slots[..most as usize],
            Some(slots) => slots,
            None => no_slot(),
        }
    }

    /// Takes what is held out, with the slots. Nothing is posted from here on.
    pub(crate) fn take(&mut self) -> Box<[T]> {
        std::mem::take(&mut self.entries)
    }
}

/// Without arguments, so that nobody need have them ready.
#[cold]
#[inline(never)]
fn no_slot() -> ! {
    panic!("a queue whose slots were leaked is not used")
}

/// A receive in flight. Without buffers, nothing is in flight here.
#[derive(Debug)]
pub(crate) struct Receive<B> {
    wr_id: u64,
    held: Option<B>,
}

impl<B: crate::mr::Buffers> Receive<B> {
    pub(crate) fn empty() -> Self {
        Self { wr_id: 0, held: None }
    }

    /// Holds the buffers of a new receive. What was there has ended.
    #[inline(always)]
    pub(crate) fn hold(&mut self, wr_id: u64, buffers: B) {
        self.wr_id = wr_id;
        std::mem::forget(self.held.replace(buffers));
    }

    /// Drops what the receive holds: it will not be filled any more.
    pub(crate) fn drop_held(&mut self) {
        self.held = None;
    }

    /// Ends the receive as its completion says; `None` if its buffers cannot have ended so, or
    /// nothing is in flight.
    #[inline(always)]
    pub(crate) fn end(
        &mut self,
        completion: &Completion,
        failure: Option<Failure>,
    ) -> Option<Wc<B>> {
        let is_write = completion.head.is_write();
        let byte_len = if failure.is_none() { completion.byte_cnt() } else { 0 };
        let held = self.held.take_if(|held| is_write || held.received(byte_len))?;
        let (recv, result) = match failure {
            None => (completion.recv_info(), Ok(())),
            Some(failure) => (RecvInfo::default(), Err(failure)),
        };
        Some(Wc {
            wr_id: self.wr_id,
            opcode: if is_write { WcOpcode::RecvWriteImm } else { WcOpcode::Recv },
            result,
            is_signaled: true,
            byte_len,
            recv,
            returned: Returned::Buffers(held),
        })
    }
}
