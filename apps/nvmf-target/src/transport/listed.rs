//! Commands whose data are in several places of the host, each with a key of its own: their
//! capsules bring a list of descriptors ([`List`]).
//!
//! | command | posted |
//! |---|---|
//! | read | a WRITE for each block, SEND of the answer behind them |
//! | write, compare, ranges | READs, as many at a time as the host serves; the last of them asks for a completion; then as commands with one block |
//!
//! The answer ends the key of the last block, if that asks for it: a SEND can end one.

use ferrocx::verbs::{Buf, Qp, SendFlags};
use ferrocx_uring::Request;

use super::execute::Work;
use super::session::{Link, READ_COUNT_SHIFT, Slot, State, Why, post_read, wr};
use super::trouble::medium_error;
use super::{Backend, NO_DATA};
use crate::backend::Outside;
use crate::controller::io::{DSM_RANGE_BYTES, Kind};
use crate::proto::sgl::{DESCRIPTOR_BYTES, Keyed, List, Listed, MAX_DESCRIPTORS, Sgl};
use crate::proto::sqe::SQE_BYTES;
use crate::proto::status::Status;

impl Slot {
    /// The blocks of its list, which lies in its capsule until the answer.
    fn listed(&self, list: List) -> Result<Listed, Status> {
        let recv = self.recv.as_ref().ok_or(NO_DATA)?;
        let mut bytes = [0; MAX_DESCRIPTORS * DESCRIPTOR_BYTES];
        let bytes = bytes.get_mut(..list.len_bytes()).ok_or(NO_DATA)?;
        recv.copy_out(SQE_BYTES + list.start, bytes).map_err(|_| NO_DATA)?;
        match self.command.kind {
            Kind::Deallocate { ranges } => {
                Listed::at_least(bytes, u32::from(ranges) * DSM_RANGE_BYTES as u32)
            }
            _ => Listed::exactly(bytes, self.command.len),
        }
    }

    /// Names the last block of its list as its only one: the answer ends that one's key.
    pub(super) fn name_last_block(&mut self, list: List) {
        if let Some(last) = self.listed(list).ok().and_then(|it| it.last()) {
            self.sqe.sgl = Sgl::Keyed(last).encode();
        }
    }
}

impl Work {
    /// Begins a command with a list.
    #[inline(never)]
    pub(super) fn begin_listed(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        list: List,
    ) -> Result<(), Why> {
        let blocks = match it.listed(list) {
            Ok(blocks) => blocks,
            Err(status) => return self.refuse(qp, link, it, status),
        };
        let (kind, len, offset) = (it.command.kind, it.command.len as usize, it.command.offset);
        let outside = match self.backend(it.command.backend) {
            Some(Backend::Outside(outside)) => Some(*outside),
            Some(_) => None,
            None => return self.refuse(qp, link, it, Status::INTERNAL),
        };
        if let Some(Outside::Drive(drive)) = outside
            && self.drives.is_away(drive)
        {
            return self.put_off(qp, link, it, medium_error(kind));
        }
        match (kind, outside) {
            (Kind::Read, None) => {
                if !has_room_for(qp, link, &blocks) {
                    return self.wait(link, it);
                }
                self.bring_from_memory(qp, link, it, &blocks)
            }
            (Kind::Read, Some(outside)) => {
                let Some((index, to)) = self.take_buffer(link, len) else {
                    return self.wait_for_buffer(qp, link, it, len);
                };
                it.state = State::Storing(index, None);
                self.push(qp, link, it, (outside, Request::Read { to, offset }))
            }
            _ if !link.can_read() => self.wait(link, it),
            (Kind::Write, None) | (Kind::Deallocate { .. }, _) => {
                it.state = State::Reading(None);
                self.fetch_blocks(qp, link, it, (&blocks, 0))
            }
            _ => {
                let Some((index, _)) = self.take_buffer(link, len) else {
                    return self.wait_for_buffer(qp, link, it, len);
                };
                it.state = State::Reading(Some(index));
                self.fetch_blocks(qp, link, it, (&blocks, 0))
            }
        }
    }

    /// Writes bytes of a namespace that is memory to the blocks of a host.
    fn bring_from_memory(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        blocks: &Listed,
    ) -> Result<(), Why> {
        let mut from = [const { None }; MAX_DESCRIPTORS];
        for ((at, block), from) in blocks.iter().zip(&mut from) {
            let offset = it.command.offset + u64::from(at);
            let found = self.backend(it.command.backend);
            *from = found.and_then(|it| it.direct(offset, block.len.into()).ok());
            if from.is_none() {
                return self.refuse(qp, link, it, medium_error(Kind::Read));
            }
        }
        for ((_, block), from) in blocks.iter().zip(from) {
            link.write(qp, &block, from.ok_or("a block was lost")?)?;
        }
        link.count_requests(blocks.len());
        if let Some(Some(store)) = self.backends.get_mut(it.command.backend) {
            store.moved(link, it, Kind::Read, it.command.len);
        }
        self.end(qp, link, it, Ok(()))
    }

    /// Writes a buffer to the blocks of a host; `None` where the send queue has no room for that.
    pub(super) fn bring_from_buffer(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        (list, index): (List, u16),
    ) -> Option<Result<(), Why>> {
        let Ok(blocks) = it.listed(list) else { return Some(Err("a list was lost")) };
        if !has_room_for(qp, link, &blocks) {
            return None;
        }
        let bring = |(at, block): (u32, Keyed)| {
            let from = self.buffers.part(index, at as usize, block.len as usize);
            link.write(qp, &block, from.ok_or("a block was lost")?)
        };
        Some(blocks.iter().try_for_each(bring))
    }

    /// Reads the next blocks of a host, from this one on: as many as it serves now, or one.
    fn fetch_blocks(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        (blocks, first): (&Listed, usize),
    ) -> Result<(), Why> {
        // Beside one request and an answer for each command there may be room for more.
        let room = qp.free_wr().saturating_sub(link.reserve) as usize;
        let served = usize::from(link.max_reads.saturating_sub(link.reads));
        let count = (blocks.len() - first).min(room.max(1)).min(served.max(1));
        let mut to = [const { None }; MAX_DESCRIPTORS];
        for ((at, block), to) in blocks.iter().skip(first).zip(&mut to).take(count) {
            *to = self.piece_of(link, it, at as usize, block.len as usize);
            if to.is_none() {
                self.buffers.give_back(it);
                return self.refuse(qp, link, it, medium_error(it.command.kind));
            }
        }
        it.next_block = (first + count) as u8;
        link.reads += count as u16;
        let name = wr::READ | (count as u64 - 1) << READ_COUNT_SHIFT | u64::from(it.index);
        for (at, ((_, block), to)) in blocks.iter().skip(first).zip(to).take(count).enumerate() {
            let is_last = at + 1 == count;
            let signaled = if is_last { SendFlags::SIGNALED } else { SendFlags::empty() };
            post_read(qp, (name, signaled), &block, to.ok_or("a block was lost")?)?;
        }
        Ok(())
    }

    /// Where bytes of a command's data go that come from its host.
    fn piece_of(&self, link: &Link, it: &Slot, at: usize, len: usize) -> Option<Buf> {
        match (it.command.kind, it.state) {
            (Kind::Deallocate { .. }, _) => link.part_of_page(it, at, len),
            (_, State::Reading(Some(index))) => self.buffers.part(index, at, len),
            _ => {
                let offset = it.command.offset + at as u64;
                self.backend(it.command.backend)?.direct(offset, len as u64).ok()
            }
        }
    }

    /// Blocks of a list have come. Whether others are still to come: they are asked for.
    pub(super) fn has_blocks(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        list: List,
    ) -> Option<Result<(), Why>> {
        let blocks = match it.listed(list) {
            Ok(blocks) => blocks,
            Err(status) => {
                self.buffers.give_back(it);
                return Some(self.refuse(qp, link, it, status));
            }
        };
        let next = usize::from(it.next_block);
        (next < blocks.len()).then(|| self.fetch_blocks(qp, link, it, (&blocks, next)))
    }
}

/// Whether there is room for a WRITE to each block, beside what other commands may still need.
fn has_room_for(qp: &Qp, link: &Link, blocks: &Listed) -> bool {
    qp.free_wr() as usize > link.reserve as usize + blocks.len()
}
