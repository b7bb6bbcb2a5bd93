//! Flushes that no command of a host asks for: of what is behind a subsystem's namespaces, when a
//! host shuts its controller down. They hold no buffer, and what a store cannot take now it is
//! given 20 ms later. A drive that is there and says no more than that it cannot now is asked for
//! as long as commands are put off.

use std::time::Instant;

use ferrocx_uring::Request;

use super::execute::Store;
use super::outside::token;
use super::trouble::Trouble;
use super::{Backend, Server, place};
use crate::backend::Outside;
use crate::controller::shutdown::Flushing;

/// The place of no queue: requests to stores that have it are flushes.
const FLUSHES: u32 = 0xff_ffff;

/// The stores of a subsystem that are being flushed.
#[derive(Debug)]
pub(super) struct Flush {
    /// Which shutdowns it is for.
    numbers: Vec<u64>,
    /// Place of their subsystem.
    subsystem: usize,
    /// Places of back ends whose flush was not taken yet.
    left: Vec<usize>,
    /// Names of flushes that are under way, and their back ends' places.
    under_way: Vec<(u16, usize)>,
    has_failed: bool,
    since: Instant,
}

impl Flush {
    /// Whether it is one of this subsystem.
    pub(super) fn is_of(&self, subsystem: usize) -> bool {
        self.subsystem == subsystem
    }
}

impl Server {
    /// A request to a store has ended: a command's, or a flush of the target's own.
    #[inline(always)]
    pub(super) fn store_done(&mut self, token: u64, result: &Result<(), Trouble>) {
        let (index, slot) = (place((token >> 16) as u32), token as u16);
        match self.sessions.get_mut(index) {
            Some((qp, session)) => self.work.outside_done(qp, session, slot, result),
            None if index == FLUSHES => self.flush_done(slot, result),
            None => {}
        }
    }

    /// Begins to flush what is behind these places.
    pub(super) fn begin_flush(&mut self, flushing: Flushing) {
        let Flushing { numbers, subsystem, backends } = flushing;
        let under_way = Vec::with_capacity(backends.len());
        let (left, has_failed, since) = (backends, false, Instant::now());
        self.flushes.push(Flush { numbers, subsystem, left, under_way, has_failed, since });
    }

    /// Gives stores what they have not taken yet, and tells of what is done.
    pub(super) fn go_on_flushing(&mut self) {
        if self.flushes.is_empty() {
            return;
        }
        let mut flushes = std::mem::take(&mut self.flushes);
        for it in &mut flushes {
            for place in std::mem::take(&mut it.left) {
                self.flush_number = self.flush_number.wrapping_add(1);
                match self.push_flush(self.flush_number, place) {
                    Ok(true) => it.under_way.push((self.flush_number, place)),
                    Ok(false) => {}
                    Err(trouble) if trouble.is_full() || trouble.will_pass() => it.left.push(place),
                    Err(_) => it.has_failed = true,
                }
            }
        }
        let is_done = |it: &Flush| it.left.is_empty() && it.under_way.is_empty();
        for it in flushes.extract_if(.., |it| is_done(it)) {
            let mut target = self.shared.lock();
            it.numbers.iter().for_each(|number| target.flushed(*number, !it.has_failed));
        }
        self.flushes = flushes;
    }

    /// Asks a store for a flush; whether it is one that has something to flush.
    fn push_flush(&mut self, number: u16, place: usize) -> Result<bool, Trouble> {
        let Some(Backend::Outside(outside)) = self.work.backend(place).cloned() else {
            return Ok(false);
        };
        let token = token(FLUSHES, number);
        match (outside, self.work.ring.as_mut()) {
            (Outside::File(file), Some(ring)) => ring
                .push(token, file, Request::Flush)
                .map_err(|_| Trouble::Refused(ferrocx_nvme::Refused::Full))?,
            (Outside::File(_), None) | (Outside::Whole, _) => return Ok(false),
            (Outside::Drive(drive), _) => {
                self.work.drives.push(token, drive, &Request::Flush).map_err(Trouble::Refused)?
            }
        }
        Ok(true)
    }

    /// A flush has ended.
    pub(super) fn flush_done(&mut self, number: u16, result: &Result<(), Trouble>) {
        for it in &mut self.flushes {
            let Some(at) = it.under_way.iter().position(|(name, _)| *name == number) else {
                continue;
            };
            let (_, place) = it.under_way.swap_remove(at);
            let store = self.work.backends.get(place).and_then(Option::as_ref);
            let is_patient = || it.since.elapsed() < self.work.patience;
            match result {
                Ok(()) => it.has_failed |= store.is_some_and(Store::has_losses),
                Err(trouble) if trouble.will_pass() && (!trouble.is_not_now() || is_patient()) => {
                    it.left.push(place);
                }
                Err(_) => {
                    it.has_failed = true;
                    store.inspect(|store| store.note_loss());
                }
            }
        }
    }
}
