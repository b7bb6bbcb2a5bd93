//! The straight paths of a send queue: requests that need no closer look, written where they are
//! posted. [`Sq::push_any`] posts all others, and says what is wrong with a request.
//!
//! On the path of one block, words have constant places: the compiler needs one mask for all of
//! them. Where the operation is a constant, so is what each path asks of it.

use std::mem::ManuallyDrop;

use ferrocx_bus::Slot as Part;
use ferrocx_core::wq::{Control, START, ShortInline, put_atomic, put_data, put_raddr};
use ferrocx_prm::Layout;
use ferrocx_prm::wqe::{AddressVector, DS_BYTES};

use super::sq::{Slot, Sq};
use super::wqe::Kind;
use crate::mr::{Buffers, Sge};
use crate::wr::{AddressHandle, SendOp, SendWr};

/// Data of a request at a constant place. A trait, because closures that are called in several
/// places are functions of their own there.
trait Put<const BYTES: usize> {
    /// Units that it takes.
    fn units(&self) -> u32;
    fn put(&self, part: Part<'_, BYTES>);
}

impl Put<DS_BYTES> for Sge {
    #[inline(always)]
    fn units(&self) -> u32 {
        1
    }

    #[inline(always)]
    fn put(&self, unit: Part<'_, DS_BYTES>) {
        put_data(unit, self.len, self.lkey_be, self.addr);
    }
}

impl Put<{ 2 * DS_BYTES }> for ShortInline {
    #[inline(always)]
    fn units(&self) -> u32 {
        ShortInline::units(self)
    }

    #[inline(always)]
    fn put(&self, units: Part<'_, { 2 * DS_BYTES }>) {
        ShortInline::put(self, units);
    }
}

impl<B: Buffers> Sq<B> {
    /// Posts a request with a list, or a datagram or an atomic of one entry, that needs no closer
    /// look. Gives back what it holds if it needs one: [`Sq::push_any`] posts any request.
    #[inline(always)]
    pub(super) fn push_straight(
        &mut self,
        wr: &SendWr<'_>,
        held: Option<B>,
    ) -> Result<(), Option<B>> {
        if !self.allows(wr.op.number()) || !self.is_clear() {
            return Err(held);
        }
        self.push_fitting(wr, held)
    }

    /// Does what [`Sq::push_straight`] does with a request that may be posted and fits.
    #[inline(always)]
    pub(super) fn push_fitting(
        &mut self,
        wr: &SendWr<'_>,
        held: Option<B>,
    ) -> Result<(), Option<B>> {
        let Some(list) = &held else { return Err(held) };
        let Some(sge) = list.only_sge() else { return self.push_list(wr, held) };
        // A data segment without bytes would mean 2 GiB. Source: reference 6.3.
        if sge.len == 0 || !self.reach.takes(&sge) {
            return Err(held);
        }
        // Nothing unwinds here: saying so leaves what is held in registers.
        let held = ManuallyDrop::new(held);
        let may_write = || held.as_ref().is_some_and(B::is_exclusive);
        let slot = match wr.op {
            SendOp::CompareSwap { compare, swap, .. } if sge.len == 8 && may_write() => {
                Some(self.put_atomic(wr, (swap, compare), &sge))
            }
            SendOp::FetchAdd { add, .. } if sge.len == 8 && may_write() => {
                Some(self.put_atomic(wr, (add, 0), &sge))
            }
            SendOp::Datagram { to, .. } => Some(self.put_datagram(wr, to, &sge)),
            _ => self.put(wr, may_write, &sge),
        };
        let held = ManuallyDrop::into_inner(held);
        match slot {
            Some(slot) => slot.hold(held),
            None => return Err(held),
        }
        Ok(())
    }

    /// Does what [`Sq::push_fitting`] does with a list that is not known to have one entry, or with
    /// none.
    #[inline(always)]
    pub(super) fn push_list(&mut self, wr: &SendWr<'_>, held: Option<B>) -> Result<(), Option<B>> {
        let kind = Kind::of(&wr.op);
        let Some(ds) = self.put_list(&wr.op, held.as_ref()) else { return Err(held) };
        let control = kind.control(self.fence(wr.flags));
        self.close(control, ds, kind.entry(wr)).hold(held);
        Ok(())
    }

    /// Writes what stands behind the control segment of a request with a list; gives its length in
    /// units, or `None` where it needs a closer look.
    #[inline(always)]
    fn put_list(&self, op: &SendOp<'_>, list: Option<&B>) -> Option<u32> {
        let mut wqe = self.ring.begin();
        match op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => {}
            SendOp::Write(to) | SendOp::WriteImm(to, _) => wqe.raddr(to.addr, to.rkey.0),
            SendOp::Read(from) if list.is_none_or(B::is_exclusive) => {
                wqe.raddr(from.addr, from.rkey.0)
            }
            SendOp::Datagram { to, .. } => wqe.bytes(&to.av.0),
            _ => return None,
        }
        let Some(list) = list else { return Some(wqe.ds()) };
        let mut list = list.sges();
        for _ in 0..self.max_sge {
            let Some(sge) = list.next() else { return Some(wqe.ds()) };
            if sge.len == 0 || !self.reach.takes(&sge) {
                return None;
            }
            wqe.data(sge.len, sge.lkey_be, sge.addr);
        }
        list.next().is_none().then(|| wqe.ds())
    }

    /// Posts a request whose data stand in it, if it needs no closer look. [`Sq::push_any`] posts
    /// any request. Whether it was posted.
    #[inline(always)]
    pub(super) fn push_inline_straight(&mut self, wr: &SendWr<'_>, data: &[u8]) -> bool {
        self.allows(wr.op.number()) && self.is_clear() && self.push_inline_fitting(wr, data)
    }

    /// Does what [`Sq::push_inline_straight`] does with a request that may be posted and fits.
    #[inline(always)]
    pub(super) fn push_inline_fitting(&mut self, wr: &SendWr<'_>, data: &[u8]) -> bool {
        if !self.takes_inline(data) {
            return false;
        }
        if data.len() <= ShortInline::MAX_BYTES {
            let slot = ShortInline::of(data).and_then(|short| self.put(wr, || false, &short));
            return slot.is_some();
        }
        self.push_inline_any(wr, data)
    }

    /// Posts a request with data of any length that fits; `false` for one that takes none.
    #[inline(always)]
    pub(super) fn push_inline_any(&mut self, wr: &SendWr<'_>, data: &[u8]) -> bool {
        let kind = Kind::of(&wr.op);
        let mut wqe = self.ring.begin();
        match wr.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => {}
            SendOp::Write(to) | SendOp::WriteImm(to, _) => wqe.raddr(to.addr, to.rkey.0),
            SendOp::Datagram { to, .. } => wqe.bytes(&to.av.0),
            _ => return false,
        }
        if data.is_empty() {
            return false;
        }
        wqe.inline_one(data);
        let ds = wqe.ds();
        let control = kind.control(self.fence(wr.flags));
        self.close(control, ds, kind.entry(wr));
        true
    }

    /// Posts a request of one block; `None` for operations that take more, and for a READ that may
    /// not be.
    #[inline(always)]
    fn put<const BYTES: usize>(
        &mut self,
        wr: &SendWr<'_>,
        may_read: impl FnOnce() -> bool,
        data: &impl Put<BYTES>,
    ) -> Option<&mut Slot<B>> {
        // Each arm is a copy of its own, in which places and opcodes are constants.
        Some(match wr.op {
            SendOp::Send => self.put_as(Kind::of(&SendOp::Send), wr, data),
            SendOp::SendImm(imm) => self.put_as(Kind::of(&SendOp::SendImm(imm)), wr, data),
            SendOp::SendInv(rkey) => self.put_as(Kind::of(&SendOp::SendInv(rkey)), wr, data),
            SendOp::Write(to) => self.put_as(Kind::of(&SendOp::Write(to)), wr, data),
            SendOp::WriteImm(to, imm) => {
                self.put_as(Kind::of(&SendOp::WriteImm(to, imm)), wr, data)
            }
            SendOp::Read(from) if may_read() => {
                self.put_as(Kind::of(&SendOp::Read(from)), wr, data)
            }
            _ => return None,
        })
    }

    #[inline(always)]
    fn put_as<const BYTES: usize>(
        &mut self,
        kind: Kind,
        wr: &SendWr<'_>,
        data: &impl Put<BYTES>,
    ) -> &mut Slot<B> {
        let control = self.begin(kind, wr, 1);
        let (at, block) = (self.ring.pi, self.ring.block(0));
        let ds = match kind.remote {
            None => {
                data.put(block.part::<DS_BYTES, BYTES>());
                1 + data.units()
            }
            Some(remote) => {
                put_raddr(block.part::<DS_BYTES, DS_BYTES>(), remote.addr, remote.rkey.0);
                data.put(block.part::<{ 2 * DS_BYTES }, BYTES>());
                2 + data.units()
            }
        };
        let written = self.ring.written(block, at, control, ds, 1);
        self.post(at, written, kind.entry(wr), 1)
    }

    /// Posts an atomic, whose operands stand in front of what it fills.
    #[inline(always)]
    fn put_atomic(
        &mut self,
        wr: &SendWr<'_>,
        (swap_add, compare): (u64, u64),
        sink: &Sge,
    ) -> &mut Slot<B> {
        let kind = Kind::of(&wr.op);
        let control = self.begin(kind, wr, 1);
        let (at, block) = (self.ring.pi, self.ring.block(0));
        if let Some(remote) = kind.remote {
            put_raddr(block.part::<DS_BYTES, DS_BYTES>(), remote.addr, remote.rkey.0);
        }
        put_atomic(block.part::<{ 2 * DS_BYTES }, DS_BYTES>(), swap_add, compare);
        sink.put(block.part::<{ 3 * DS_BYTES }, DS_BYTES>());
        let written = self.ring.written(block, at, control, 4, 1);
        self.post(at, written, kind.entry(wr), 1)
    }

    /// Posts a datagram, whose address takes what the control segment leaves of the first block.
    #[inline(always)]
    fn put_datagram(&mut self, wr: &SendWr<'_>, to: &AddressHandle, data: &Sge) -> &mut Slot<B> {
        let kind = Kind::of(&wr.op);
        let control = self.begin(kind, wr, 2);
        let (at, [first, second]) = (self.ring.pi, [0, 1].map(|ahead| self.ring.block(ahead)));
        first.store_at::<DS_BYTES, { AddressVector::SIZE_BYTES }>(&to.av.0);
        data.put(second.part::<START, DS_BYTES>());
        let written = self.ring.written(first, at, control, 5, 2);
        self.post(at, written, kind.entry(wr), 2)
    }

    /// Counts a request of so many blocks that is about to be posted; gives its control segment.
    #[inline(always)]
    fn begin(&mut self, kind: Kind, wr: &SendWr<'_>, blocks: u32) -> Control {
        let ending = self.mark(wr.flags, blocks);
        kind.control(ending | self.fence(wr.flags))
    }
}
