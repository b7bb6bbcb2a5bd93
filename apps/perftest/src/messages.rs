//! The messages of a queue pair: the memory that they lie in, what they hold, and how many of them
//! there were.

use anyhow::{Context, Result, bail};
use ferrocx_verbs_lite::{Buf, DeviceCaps, Mr, Psn, RemoteAddr, Wc, WcOpcode};

use crate::end::End;
use crate::landing;
use crate::measure::{ATOMIC_BYTES, Kind, Test};
use crate::pattern;
use crate::plan::Plan;

/// The messages of a queue pair, and their memory.
#[derive(Debug)]
pub struct Messages {
    /// Messages posted.
    pub posted: u64,
    /// Messages that have ended.
    pub done: u64,
    /// Messages received.
    pub received: u64,
    /// Messages whose bytes were checked.
    pub checked: u64,
    /// Its share of the memory.
    pub memory: Buf,
    /// The other end's share.
    pub remote: RemoteAddr,
    pub(crate) psn: Psn,
    /// The places: the first half to send from; `None` while the queue pair has them.
    places: Box<[Option<Buf>]>,
    /// One message.
    pub(crate) scratch: Box<[u8]>,
    host_order: bool,
}

impl Messages {
    pub(crate) fn new(end: &End, plan: &Plan, mr: &Mr, start: usize, psn: Psn) -> Result<Self> {
        let bytes = plan.slot_bytes();
        let place = |index: usize| {
            let start = start + index * bytes;
            Ok(Some(mr.buf(start..start + plan.size)?))
        };
        let memory = mr.buf(start..start + plan.places() * bytes)?;
        let caps = end.device.attr().caps;
        Ok(Self {
            posted: 0,
            done: 0,
            received: 0,
            checked: 0,
            remote: memory.remote().context("the memory is not for peers")?,
            memory,
            psn,
            places: (0..plan.places()).map(place).collect::<Result<_>>()?,
            scratch: vec![0; plan.size].into(),
            host_order: caps.contains(DeviceCaps::ATOMICS_HOST_ORDER),
        })
    }

    pub(crate) fn take(&mut self, place: usize) -> Result<Buf> {
        let buf = self.places.get_mut(place).and_then(Option::take);
        buf.context("a place was posted twice")
    }

    /// Puts the bytes of message `seq` where they are sent from, or wipes what was read before.
    pub(crate) fn prepare(&mut self, plan: &Plan, slot: usize, seq: u64) -> Result<()> {
        let lands = plan.measure.kind == Kind::Lat && plan.measure.test == Test::Write;
        if !plan.measure.verify && !lands {
            return Ok(());
        }
        match plan.measure.test {
            Test::Send | Test::Write if plan.measure.verify => {
                pattern::fill(&mut self.scratch, seq)
            }
            Test::Send | Test::Write => {}
            Test::Read | Test::Atomic | Test::FastReg => self.scratch.fill(0xee),
        }
        if lands {
            landing::mark(&mut self.scratch, seq);
        }
        let buf = self.places.get_mut(slot).and_then(Option::as_mut);
        Ok(buf.context("a place was posted twice")?.copy_in(0, &self.scratch)?)
    }

    /// A request has ended.
    pub(crate) fn ended(&mut self, wc: Wc<Buf>, plan: &Plan) -> Result<()> {
        let (seq, opcode) = (wc.wr_id, wc.opcode);
        wc.result.with_context(|| format!("message {seq} failed"))?;
        let reads_back = plan.reads_back();
        let slot = (seq % plan.slots as u64) as usize;
        let is_check = reads_back && opcode == WcOpcode::Read;
        if let Some(buf) = wc.into_buffers() {
            if plan.measure.verify && (is_check || opcode != WcOpcode::Write) {
                self.check(&buf, opcode, seq, plan)?;
            }
            let place = if is_check { plan.slots + slot } else { slot };
            self.places[place] = Some(buf);
        }
        if !reads_back || is_check {
            self.done += 1;
        }
        Ok(())
    }

    /// Checks what a READ or an atomic brought.
    fn check(&mut self, buf: &Buf, opcode: WcOpcode, seq: u64, plan: &Plan) -> Result<()> {
        match opcode {
            WcOpcode::Read => {
                buf.copy_out(0, &mut self.scratch)?;
                // A place that nobody writes to has its own number.
                let want = if plan.reads_back() { seq } else { seq % plan.slots as u64 };
                pattern::check(&self.scratch, want)?;
            }
            WcOpcode::FetchAdd | WcOpcode::CompareSwap => {
                let value = self.number_in(buf)?;
                if value != seq {
                    bail!("atomic {seq} found {value}: one was lost or done twice");
                }
            }
            _ => return Ok(()),
        }
        self.checked += 1;
        Ok(())
    }

    /// Whether the peer has written message `seq`.
    ///
    /// # Errors
    ///
    /// Never: the place is inside the memory.
    pub fn landed(&self, plan: &Plan, seq: u64) -> Result<bool> {
        let mut last = [0];
        self.memory.copy_out(plan.slots * plan.slot_bytes() + plan.size - 1, &mut last)?;
        Ok(last[0] == landing::mark_of(seq))
    }

    /// Counts the message that has landed, and checks it.
    ///
    /// # Errors
    ///
    /// A byte is wrong.
    pub fn take_landed(&mut self, plan: &Plan) -> Result<()> {
        if plan.measure.verify {
            self.memory.copy_out(plan.slots * plan.slot_bytes(), &mut self.scratch)?;
            landing::check(&self.scratch, self.received)?;
            self.checked += 1;
        }
        self.received += 1;
        Ok(())
    }

    /// Fills the places that peers read from; message numbers are those of the places.
    ///
    /// # Errors
    ///
    /// Never: the places are inside the memory.
    pub fn fill_places(&mut self, plan: &Plan) -> Result<()> {
        if plan.measure.test == Test::Atomic {
            return Ok(());
        }
        for place in 0..plan.slots {
            pattern::fill(&mut self.scratch, place as u64);
            self.memory.copy_in(place * plan.slot_bytes(), &self.scratch)?;
        }
        Ok(())
    }

    /// Checks what `messages` messages of the peer left in the memory.
    ///
    /// # Errors
    ///
    /// A byte, or the number that atomics count, is wrong.
    pub fn check_places(&mut self, plan: &Plan, messages: u64) -> Result<()> {
        match plan.measure.test {
            Test::Atomic => {
                let value = self.number_in(&self.memory)?;
                if value != messages {
                    bail!("{messages} atomics counted to {value}");
                }
            }
            Test::Write if plan.reads_back() => {
                let slots = plan.slots as u64;
                for seq in messages.saturating_sub(slots)..messages {
                    let place = plan.slots + (seq % slots) as usize;
                    self.memory.copy_out(place * plan.slot_bytes(), &mut self.scratch)?;
                    pattern::check(&self.scratch, seq)?;
                    self.checked += 1;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The number at the start of a buffer, as atomics count.
    ///
    /// # Errors
    ///
    /// The buffer is too short.
    pub fn number_in(&self, buf: &Buf) -> Result<u64> {
        let mut bytes = [0; ATOMIC_BYTES];
        buf.copy_out(0, &mut bytes)?;
        let order = if self.host_order { u64::from_ne_bytes } else { u64::from_be_bytes };
        Ok(order(bytes))
    }
}
