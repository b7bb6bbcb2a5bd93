//! [`KeySlot`]: a fast-register key with its page list, in whatever state they are.

use std::ops::Range;
use std::sync::Arc;

use ferrocx_mempool::Mbuf;

use super::{FastReg, FastRegMr, ListLayout, PageList, PageListError, RegisteredMr, RevokeError};
use crate::context::RdmaContext;
use crate::error::{Failure, PostError, Refused, VerbsError};
use crate::mr::{Buffers, Memory};
use crate::pd::Pd;
use crate::qp::Qp;
use crate::types::RemoteAddr;
use crate::wc::{Returned, Wc};
use crate::wr::{InvalidatedRkey, SendFlags};

/// State of the key of a [`KeySlot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    /// Nobody can use the key; it can be registered.
    Free,
    /// Its registration was posted. Requests behind it may use the key.
    Posted,
    /// It is registered: peers may use it as far as it grants.
    Valid,
    /// A queue pair holds it, to end it.
    Invalidating,
    /// A request for it failed: it may be valid, and only [`KeySlot::revoke`] ends it.
    Stale,
}

/// The key, as the types of its states.
#[derive(Debug)]
enum Key {
    Free(FastRegMr),
    /// Posted, valid or stale.
    Bound(RegisteredMr, KeyState),
    Invalidating,
}

/// A fast-register key and its page list, for programs that keep keys in tables.
///
/// [`FastRegMr`] and [`RegisteredMr`] change hands at each step, so that a wrong step does not
/// compile; a slot stays where it is, and refuses a wrong step with [`PostError::KeyState`].
///
/// | state | step | next state |
/// |---|---|---|
/// | free | [`KeySlot::register`] | posted |
/// | posted | [`KeySlot::complete`] with the end of the registration | valid; stale after a failure |
/// | posted, valid | [`KeySlot::invalidate`], [`KeySlot::read_with_inv`] | invalidating |
/// | posted, valid | [`KeySlot::invalidated_by`] | free; from posted without its list |
/// | invalidating | [`KeySlot::complete`] with the end of the invalidation | free; stale after a failure |
/// | valid, stale | [`KeySlot::revoke`] | free |
///
/// A peer may end a key before the end of its registration was told: an answer overtakes the
/// acknowledgement. The list comes back with that end ([`KeySlot::complete`]), and until then
/// [`KeySlot::map`] and [`KeySlot::register`] refuse.
///
/// ```
/// use ferrocx_verbs_lite::*;
///
/// /// Lets the peer write to a page, once: tells it where, and ends the key behind the message.
/// fn lend(qp: &mut Qp, key: &mut KeySlot, wr_id: u64) -> Result<(), PostError> {
///     let (flags, access) = (SendFlags::MORE, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
///     let wr = FastReg { wr_id, flags, start: 0, access, remote_invalidate: false };
///     let remote = key.register(qp, &wr)?;
///     qp.post_send_inline(&SendWr::unsignaled(wr_id, SendOp::Send), &remote.rkey.0.to_be_bytes())
/// }
/// ```
#[derive(Debug)]
pub struct KeySlot {
    key: Key,
    /// `None` while a queue pair holds it.
    list: Option<PageList>,
}

impl KeySlot {
    /// Makes a free key and a list of up to `max_page_list_len` entries for it.
    ///
    /// # Errors
    ///
    /// Those of [`Pd::alloc_mr`] and [`RdmaContext::alloc_page_list`].
    pub fn new(
        context: &RdmaContext,
        pd: &Pd,
        layout: ListLayout,
        max_page_list_len: u32,
    ) -> Result<Self, VerbsError> {
        let list = context.alloc_page_list(layout, max_page_list_len)?;
        Ok(Self::of(pd.alloc_mr(layout, max_page_list_len)?, list))
    }

    /// A slot of a key and a list that exist.
    #[must_use]
    pub fn of(mr: FastRegMr, list: PageList) -> Self {
        Self { key: Key::Free(mr), list: Some(list) }
    }

    /// State of the key.
    #[inline]
    #[must_use]
    pub fn state(&self) -> KeyState {
        match &self.key {
            Key::Free(_) => KeyState::Free,
            Key::Bound(_, state) => *state,
            Key::Invalidating => KeyState::Invalidating,
        }
    }

    /// The key, unless it is free or a queue pair holds it.
    #[inline]
    #[must_use]
    pub fn mr(&self) -> Option<&RegisteredMr> {
        match &self.key {
            Key::Bound(mr, _) => Some(mr),
            Key::Free(_) | Key::Invalidating => None,
        }
    }

    /// Where peers reach the first byte, while the key is posted or valid.
    #[inline]
    #[must_use]
    pub fn remote(&self) -> Option<RemoteAddr> {
        let mr = self.mr().filter(|_| self.state() != KeyState::Stale)?;
        Some(mr.remote())
    }

    /// The page list, unless a queue pair holds it. What is put into it counts at the next
    /// registration.
    #[inline]
    #[must_use]
    pub fn list_mut(&mut self) -> Option<&mut PageList> {
        self.list.as_mut()
    }

    /// Lets the key be registered over peer memory: see [`FastRegMr::attach`].
    ///
    /// # Errors
    ///
    /// Those of [`FastRegMr::attach`]; [`VerbsError::StillPosted`] for a key that is not free.
    pub fn attach(&mut self, memory: &Arc<Memory>) -> Result<(), VerbsError> {
        match &mut self.key {
            Key::Free(mr) => mr.attach(memory),
            _ => Err(VerbsError::StillPosted { posted: 1 }),
        }
    }

    /// Puts pieces of a memory into the page list: see [`PageList::map`].
    ///
    /// # Errors
    ///
    /// Those of [`PageList::map`]; [`PageListError::Posted`] while a queue pair holds the list.
    #[inline]
    pub fn map(
        &mut self,
        memory: &Arc<Memory>,
        pieces: &[Range<usize>],
    ) -> Result<(), PageListError> {
        self.list.as_mut().ok_or(PageListError::Posted)?.map(memory, pieces)
    }

    /// The packet that the key was registered over ([`PageList::map_mbuf`]), once it is free again:
    /// see [`FastRegMr::take_mbuf`].
    #[must_use]
    pub fn take_mbuf(&mut self) -> Option<Mbuf> {
        match &mut self.key {
            Key::Free(mr) => mr.take_mbuf(),
            _ => None,
        }
    }

    /// Posts the registration of what the page list describes. The key is known at once and may be
    /// used in requests behind this one.
    ///
    /// # Errors
    ///
    /// [`PostError::KeyState`] for a key that is not free, and those of
    /// [`Qp::post_fast_reg`]. Nothing was posted then.
    #[inline]
    pub fn register<B: Buffers>(
        &mut self,
        qp: &mut Qp<B>,
        wr: &FastReg,
    ) -> Result<RemoteAddr, PostError> {
        let Some(list) = self.list.take() else { return Err(PostError::KeyState) };
        let mr = match self.take() {
            Key::Free(mr) => mr,
            other => {
                (self.key, self.list) = (other, Some(list));
                return Err(PostError::KeyState);
            }
        };
        match qp.post_fast_reg(wr, mr, list) {
            Ok(mr) => {
                let remote = mr.remote();
                self.key = Key::Bound(mr, KeyState::Posted);
                Ok(remote)
            }
            Err(Refused { held: (mr, list), cause }) => {
                (self.key, self.list) = (Key::Free(mr), Some(list));
                Err(cause)
            }
        }
    }

    /// Posts the invalidation of the key.
    ///
    /// # Errors
    ///
    /// [`PostError::KeyState`] for a key that is neither posted nor valid, and those of
    /// [`Qp::post_local_inv`]. Nothing was posted then.
    #[inline]
    pub fn invalidate<B: Buffers>(
        &mut self,
        qp: &mut Qp<B>,
        wr_id: u64,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        self.end(|mr| qp.post_local_inv(wr_id, flags, mr))
    }

    /// Posts a READ of `len` bytes from the peer through the key, which ends the key: see
    /// [`Qp::post_read_with_inv`].
    ///
    /// # Errors
    ///
    /// [`PostError::KeyState`] for a key that is neither posted nor valid, and those of
    /// [`Qp::post_read_with_inv`]. Nothing was posted then.
    #[inline]
    pub fn read_with_inv<B: Buffers>(
        &mut self,
        qp: &mut Qp<B>,
        wr_id: u64,
        flags: SendFlags,
        from: RemoteAddr,
        len: u32,
    ) -> Result<(), PostError> {
        self.end(|mr| qp.post_read_with_inv(wr_id, flags, from, len, mr))
    }

    /// Gives the key to a request that ends it.
    #[inline(always)]
    fn end(
        &mut self,
        post: impl FnOnce(RegisteredMr) -> Result<(), Refused<RegisteredMr>>,
    ) -> Result<(), PostError> {
        let (mr, state) = match self.take() {
            Key::Bound(mr, state) if state != KeyState::Stale => (mr, state),
            other => {
                self.key = other;
                return Err(PostError::KeyState);
            }
        };
        post(mr).map_err(|refused| {
            self.key = Key::Bound(refused.held, state);
            refused.cause
        })
    }

    /// Takes the end of a registration, of an invalidation, or of a READ with invalidate that was
    /// posted through this slot, and gives the state that it leaves the key in. The caller finds
    /// the slot by [`Wc::wr_id`].
    ///
    /// # Errors
    ///
    /// Why the request failed. The key is then stale, or the invalidation behind the request says
    /// the same.
    #[inline]
    pub fn complete<B>(&mut self, wc: Wc<B>) -> Result<KeyState, Failure> {
        match wc.returned {
            Returned::PageList(list) => {
                self.list = Some(list);
                if let Key::Bound(_, state @ KeyState::Posted) = &mut self.key {
                    *state = if wc.result.is_ok() { KeyState::Valid } else { KeyState::Stale };
                }
            }
            Returned::Mr(mr) => self.key = Key::Free(mr),
            Returned::Stale(mr) => self.key = Key::Bound(mr, KeyState::Stale),
            _ => {}
        }
        wc.result.map(|()| self.state())
    }

    /// Frees the key because the peer has ended it: `proof` stands in the completion of the receive
    /// that says so ([`RecvInfo::invalidated`](crate::RecvInfo::invalidated)).
    ///
    /// # Errors
    ///
    /// The proof, if it is of another key or the key is neither posted nor valid.
    pub fn invalidated_by(&mut self, proof: InvalidatedRkey) -> Result<(), InvalidatedRkey> {
        let (key, result) = match self.take() {
            // What the device has ended it had registered before, told or not.
            Key::Bound(mr, state @ (KeyState::Posted | KeyState::Valid)) => {
                match mr.invalidated_by(proof) {
                    Ok(mr) => (Key::Free(mr), Ok(())),
                    Err((mr, proof)) => (Key::Bound(mr, state), Err(proof)),
                }
            }
            other => (other, Err(proof)),
        };
        self.key = key;
        result
    }

    /// Ends the key by a command, whatever is known of it: see [`RegisteredMr::revoke`]. A free key
    /// stays as it is.
    ///
    /// # Errors
    ///
    /// [`VerbsError::StillPosted`] while a queue pair holds the key, or its registration has not
    /// ended: nothing has changed then. What the device refused: the key is stale then.
    pub fn revoke(&mut self) -> Result<(), VerbsError> {
        let (key, result) = match self.take() {
            Key::Bound(mr, state) => match mr.revoke() {
                Ok(mr) => (Key::Free(mr), Ok(())),
                Err(RevokeError { key, cause: cause @ VerbsError::StillPosted { .. } }) => {
                    (Key::Bound(key, state), Err(cause))
                }
                Err(error) => (Key::Bound(error.key, KeyState::Stale), Err(error.cause)),
            },
            Key::Free(mr) => (Key::Free(mr), Ok(())),
            Key::Invalidating => (Key::Invalidating, Err(VerbsError::StillPosted { posted: 1 })),
        };
        self.key = key;
        result
    }

    /// Destroys the key in whatever state it is, and says how that went. A key that a queue pair
    /// holds is destroyed when it comes back, one whose registration is posted when that has ended.
    ///
    /// # Errors
    ///
    /// What the device refused; the key is then leaked, with its memory.
    pub fn dealloc(mut self) -> Result<(), VerbsError> {
        self.revoke().or_else(|error| match error {
            VerbsError::StillPosted { .. } => Ok(()),
            _ => Err(error),
        })?;
        match self.key {
            Key::Free(mr) => mr.dealloc(),
            _ => Ok(()),
        }
    }

    fn take(&mut self) -> Key {
        std::mem::replace(&mut self.key, Key::Invalidating)
    }
}
