//! A key that work requests bind and end: of fast registration, or a window.

use std::sync::Arc;

use ferrocx_prm::mkey::Mkc;

use super::posted::Origin;
use super::{HeldMbuf, ListLayout, PageList};
use crate::error::{PostError, VerbsError};
use crate::mr::{Memory, Mkey, WindowHold};
use crate::pd::PdCore;
use crate::types::{Access, RemoteAddr, Rkey};
use crate::wr::{InvalidatedRkey, new_lap};

/// The 32 bits of a key, and when they were new.
#[derive(Debug, Clone, Copy)]
struct Number {
    /// Lowest byte first: that one is of the next registration, then of the one in use.
    value: [u8; 4],
    /// When the low byte last began anew: since then it had no value twice.
    lap: u64,
}

impl Number {
    fn new(value: u32) -> Self {
        Self { value: value.to_le_bytes(), lap: new_lap() }
    }

    #[inline(always)]
    fn value(self) -> u32 {
        u32::from_le_bytes(self.value)
    }

    /// Takes the next low byte.
    #[inline(always)]
    fn advance(&mut self) {
        self.value[0] = self.value[0].wrapping_add(1);
        if self.value[0] == 0 {
            self.lap = new_lap();
        }
    }

    /// Takes any low byte.
    fn set_variant(&mut self, variant: u8) {
        if variant < self.value[0] {
            self.lap = new_lap();
        }
        self.value[0] = variant;
    }

    /// Whether a proof is of the use that the low byte has now.
    fn is_ended_by(self, proof: &InvalidatedRkey, device: u32) -> bool {
        proof.is_of(Rkey(self.value()), device, self.lap)
    }
}

/// A key that can be bound, as driver and device know it.
#[derive(Debug)]
pub(crate) struct Key {
    number: Number,
    pub(crate) mkey: Arc<Mkey>,
    pub(crate) pd: Arc<PdCore>,
    pub(crate) layout: ListLayout,
    pub(crate) max_len: u32,
    /// Address of the first byte that it is bound to.
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    /// Kept mapped while the key may be valid.
    pub(crate) memory: Option<Arc<Memory>>,
    /// What it is bound to instead: nobody else reaches it while the key may be valid.
    pub(crate) mbuf: Option<HeldMbuf>,
    /// A window's region, while it may be bound.
    pub(crate) region: Option<WindowHold>,
    /// Queue pair and position of the registration.
    pub(crate) origin: Origin,
    /// Peer memory that it may be bound to, see [`Memory::peer`].
    pub(crate) peer: u64,
    /// The context that it is made with.
    mkc: Mkc,
}

/// What a key needs as long as it may be bound. Dropping it ends the key.
#[derive(Debug)]
struct Hold {
    mkey: Arc<Mkey>,
    memory: Option<Arc<Memory>>,
    mbuf: Option<HeldMbuf>,
    region: Option<WindowHold>,
    _pd: Arc<PdCore>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Err(error) = self.mkey.destroy() else { return };
        tracing::error!(%error, "key not destroyed, its memory leaked");
        if let Some(memory) = &self.memory {
            memory.leak();
        }
        // The device may still reach the packet, or the region through the window.
        std::mem::forget((self.mbuf.take(), self.region.take()));
    }
}

impl Key {
    pub(crate) fn new(
        pd: &Arc<PdCore>,
        layout: ListLayout,
        max_len: u32,
        mkc: Mkc,
    ) -> Result<Box<Self>, VerbsError> {
        let (mkey, value) = Mkey::create(pd, mkc, Vec::new())?;
        Ok(Box::new(Self {
            number: Number::new(value),
            mkey,
            pd: Arc::clone(pd),
            layout,
            max_len,
            start: 0,
            len: 0,
            access: Access::empty(),
            memory: None,
            mbuf: None,
            region: None,
            origin: Origin::default(),
            peer: 0,
            mkc,
        }))
    }

    /// The key as it stands on the wire and in work requests.
    #[inline(always)]
    pub(crate) fn value(&self) -> u32 {
        self.number.value()
    }

    /// The low byte of it.
    #[inline(always)]
    pub(crate) fn variant(&self) -> u8 {
        self.number.value[0]
    }

    /// Takes the next low byte.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.number.advance();
    }

    /// Takes any low byte.
    pub(super) fn set_variant(&mut self, variant: u8) {
        self.number.set_variant(variant);
    }

    /// Whether the request that binds it has not ended.
    pub(crate) fn is_posted(&self) -> bool {
        self.pd.core.posted.is_posted(self.origin)
    }

    /// Puts another mkey in the place of its own, which ends.
    fn renew(&mut self) -> Result<(), VerbsError> {
        // The next key might get its number, and be bound by the request.
        VerbsError::none_posted(self.is_posted().into())?;
        let (mkey, value) = Mkey::create(&self.pd, self.mkc, Vec::new())?;
        self.mkey.destroy()?;
        (self.mkey, self.number) = (mkey, Number::new(value));
        (self.peer, self.region) = (0, None);
        Ok(())
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        let hold = Hold {
            mkey: Arc::clone(&self.mkey),
            memory: self.memory.take(),
            mbuf: self.mbuf.take(),
            region: self.region.take(),
            _pd: Arc::clone(&self.pd),
        };
        self.pd.core.posted.keep(self.origin, hold);
    }
}

impl PageList {
    /// Checks that a key may be bound to such memory on a queue pair of `domain`, and the memory be
    /// written by it if `is_written`.
    pub(crate) fn check_lent(
        &self,
        key: &Key,
        domain: u32,
        is_written: bool,
    ) -> Result<(), PostError> {
        let list = &*self.0;
        if list.peer != 0 && (list.peer != key.peer || key.mkey.is_taken()) {
            return Err(PostError::Peer);
        }
        if list.domain != 0 && list.domain != domain {
            return Err(PostError::Pd);
        }
        if is_written && list.mbuf.as_ref().is_some_and(|held| !held.mbuf.is_exclusive()) {
            return Err(PostError::NotExclusive);
        }
        Ok(())
    }

    /// Hands the packet, if there is one, over to the key that is bound to it. Without it the list
    /// describes nothing.
    pub(crate) fn give_mbuf(&mut self, key: &mut Key) {
        if let Some(mbuf) = self.0.mbuf.take() {
            self.0.clear();
            key.mbuf = Some(mbuf);
        }
    }
}

/// A key that is free, [`FastRegMr`](crate::FastRegMr) or [`Mw`](crate::Mw): nobody can use it.
#[derive(Debug)]
pub struct FreeKey<const IS_WINDOW: bool>(pub(crate) Box<Key>);

/// A key that was bound, or will be when its request is carried out:
/// [`RegisteredMr`](crate::RegisteredMr) or [`BoundMw`](crate::BoundMw).
#[derive(Debug)]
pub struct BoundKey<const IS_WINDOW: bool>(pub(crate) Box<Key>);

/// A key that could not be revoked.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct RevokeError<const IS_WINDOW: bool> {
    /// The key: it may still be valid.
    pub key: BoundKey<IS_WINDOW>,
    /// Why it was not revoked.
    pub cause: VerbsError,
}

impl<const IS_WINDOW: bool> FreeKey<IS_WINDOW> {
    /// The key: the one that the next registration will have, or that a window had at its last.
    /// Each has the low byte of the one before plus one.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        Rkey(self.0.value())
    }

    /// Destroys it and says how that went.
    ///
    /// # Errors
    ///
    /// What the device refused; the key is then leaked.
    pub fn dealloc(self) -> Result<(), VerbsError> {
        self.0.mkey.destroy()
    }
}

impl<const IS_WINDOW: bool> BoundKey<IS_WINDOW> {
    /// The key for peers; it works as far as the request granted.
    #[inline]
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        Rkey(self.0.value())
    }

    /// Address of the first byte, as peers name it.
    #[inline]
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.0.start
    }

    /// Bytes that it reaches.
    #[inline]
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.0.len
    }

    /// Rights that the request granted.
    #[must_use]
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Address and key of the first byte, for peers.
    #[inline]
    #[must_use]
    pub fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.addr(), rkey: self.rkey() }
    }

    /// The key is free again because the peer ended it: `proof` stands in the completion that
    /// says so.
    ///
    /// # Errors
    ///
    /// The key and the proof, if it is of another one, or of this one at a former time.
    pub fn invalidated_by(
        self,
        proof: InvalidatedRkey,
    ) -> Result<FreeKey<IS_WINDOW>, (Self, InvalidatedRkey)> {
        let is_own = self.0.number.is_ended_by(&proof, self.0.pd.core.id);
        if is_own { Ok(self.into_free()) } else { Err((self, proof)) }
    }

    /// Ends the key now by destroying it and making another. When this returns, no access through
    /// it succeeds. A command: not for the data path.
    ///
    /// # Errors
    ///
    /// The key, with [`VerbsError::StillPosted`] until the request that binds it has ended
    /// ([`Qp::to_error`](crate::Qp::to_error) makes it end), or with what the device refused: try
    /// again.
    pub fn revoke(mut self) -> Result<FreeKey<IS_WINDOW>, RevokeError<IS_WINDOW>> {
        match self.0.renew() {
            Ok(()) => Ok(FreeKey(self.0)),
            Err(cause) => Err(RevokeError { key: self, cause }),
        }
    }

    /// The caller knows that the device does not hold it bound.
    pub(crate) fn into_free(mut self) -> FreeKey<IS_WINDOW> {
        if IS_WINDOW {
            // Its low byte changes when it is bound.
            self.0.region = None;
        } else {
            self.0.advance();
        }
        FreeKey(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_use_of_a_low_byte() {
        const DEVICE: u32 = 3;
        let proof_of = |number: Number| InvalidatedRkey::new(Rkey(number.value()), DEVICE);
        let mut number = Number::new(0x1234_56f0);
        let first = proof_of(number);
        assert!(number.is_ended_by(&first, DEVICE));
        assert!(!number.is_ended_by(&first, DEVICE + 1), "another device gave the same number");
        for round in 1..=600 {
            number.advance();
            assert_eq!(number.value() >> 8, 0x12_3456);
            assert!(!number.is_ended_by(&first, DEVICE), "{round}");
            assert!(number.is_ended_by(&proof_of(number), DEVICE), "{round}");
        }
        for variant in [number.value[0] - 1, 0xf0, 0x10, 0xf0] {
            let before = proof_of(number);
            number.set_variant(variant);
            assert!(
                !number.is_ended_by(&first, DEVICE) && !number.is_ended_by(&before, DEVICE),
                "{variant}"
            );
            assert!(number.is_ended_by(&proof_of(number), DEVICE), "{variant}");
        }
        // Another key that the device gave the same number.
        let before = proof_of(number);
        assert!(!Number::new(number.value()).is_ended_by(&before, DEVICE));
        assert_eq!(size_of::<Option<InvalidatedRkey>>(), 12, "no room in a completion");
    }
}
