//! A queue pair with its memory, posted to by one thread: what a round is made of.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ferrocx_app_common::wait::Wait;
use ferrocx_verbs_lite::cm::Connection;
use ferrocx_verbs_lite::{
    Access, Buf, Cq, DeviceCaps, InitAttr, Mr, Psn, Qp, QpConfig, RemoteAddr, SendFlags, SendOp,
    SendWr, Wc, WcOpcode,
};

use crate::end::End;
use crate::exchange::Endpoint;
use crate::landing;
use crate::measure::{Kind, Limit, Measure, Test};
use crate::pattern;
use crate::round::Link;

/// Nothing for this long: the other end is gone.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes that atomics work on.
pub const ATOMIC_BYTES: usize = 8;
/// First PSNs: close to the wrap, and different.
const PSNS: [u32; 2] = [0xff_fffd, 0x12_3456];

/// What all queue pairs of a round have in common.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What is measured.
    pub measure: Measure,
    /// Bytes of a message.
    pub size: usize,
    /// Messages on the way on a queue pair at most.
    pub slots: usize,
    /// How the thread waits.
    pub wait: Wait,
    /// Every so many messages one asks for a completion.
    signal_every: u64,
    /// Messages of each queue pair.
    messages: u64,
    /// Whether messages stand in the request.
    is_inline: bool,
}

impl Plan {
    /// For messages of `size` bytes.
    #[must_use]
    pub fn new(measure: &Measure, size: usize, wait: Wait) -> Self {
        let slots = measure.slots(size);
        let takes_data = matches!(measure.test, Test::Send | Test::Write);
        Self {
            size,
            slots,
            wait,
            signal_every: measure.signal_every.min(slots) as u64,
            messages: match measure.limit {
                Limit::Messages(count) => count,
                Limit::Milliseconds(_) => u64::MAX,
            },
            is_inline: takes_data && size <= measure.inline_bytes,
            measure: measure.clone(),
        }
    }

    /// Bytes between two messages in memory.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        Measure::slot_bytes(self.size)
    }

    /// Places for messages that a queue pair has: to send from, and to receive or check in.
    #[must_use]
    pub fn places(&self) -> usize {
        2 * self.slots
    }

    /// When the round is over, if time says so.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.measure.limit {
            Limit::Messages(_) => None,
            Limit::Milliseconds(ms) => Some(Instant::now() + Duration::from_millis(ms)),
        }
    }

    /// Whether message `seq` is the last: `is_late` says that the time is over.
    #[must_use]
    pub fn is_over(&self, seq: u64, is_late: bool) -> bool {
        // Those behind the last one that asks for a completion would never be known to end.
        seq >= self.messages || is_late && seq.is_multiple_of(self.signal_every)
    }

    /// As [`Plan::is_over`], for messages that all threads together count.
    #[must_use]
    pub fn is_over_in_all(&self, seq: u64, is_late: bool) -> bool {
        is_late || seq >= self.messages.saturating_mul(self.measure.workers as u64)
    }

    /// Waits after a poll that found nothing; `since` is when there was something last.
    ///
    /// # Errors
    ///
    /// Nothing has come for too long.
    pub fn idle(&self, since: Instant) -> Result<()> {
        if since.elapsed() > PATIENCE {
            bail!("nothing came for {} s", PATIENCE.as_secs());
        }
        self.wait.idle();
        Ok(())
    }

    fn is_signaled(&self, seq: u64) -> bool {
        (seq + 1).is_multiple_of(self.signal_every) || seq + 1 == self.messages
    }

    /// Whether each WRITE is followed by a READ of what it wrote.
    fn reads_back(&self) -> bool {
        self.measure.verify && self.measure.test == Test::Write && self.measure.kind == Kind::Bw
    }
}

/// The queue pairs of one thread, their completion queue, and their memory.
#[derive(Debug)]
pub struct Crew {
    cq: Cq,
    /// The queue pairs.
    pub flows: Vec<Flow>,
    /// What they do.
    pub plan: Plan,
    /// Of those that the connection manager connected: dropping them ends the connections.
    connections: Vec<Connection>,
}

/// A queue pair and its share of the memory.
#[derive(Debug)]
pub struct Flow {
    /// The queue pair.
    pub qp: Qp<Buf>,
    /// The rest.
    pub side: Side,
}

/// What a queue pair works on.
#[derive(Debug)]
pub struct Side {
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
    psn: Psn,
    /// The places: the first half to send from; `None` while the queue pair has them.
    places: Box<[Option<Buf>]>,
    /// One message.
    scratch: Box<[u8]>,
    host_order: bool,
}

/// What a poll brought.
#[derive(Debug)]
pub enum Polled {
    /// Nothing.
    Nothing,
    /// Requests ended.
    Sent,
    /// A message came to this queue pair.
    Received(usize, Wc<Buf>),
}

impl Crew {
    /// Makes the queue pairs of thread `worker`, in INIT.
    ///
    /// # Errors
    ///
    /// The system's or the device's reason.
    pub fn new(end: &End, plan: &Plan, worker: usize) -> Result<Self> {
        let count = plan.measure.qps_of(worker);
        let bytes = plan.places() * plan.slot_bytes();
        let (_, mr) = end.memory(count * bytes, Access::REMOTE)?;
        let config = QpConfig {
            // A message that is read back takes two.
            max_send_wr: 2 * plan.slots as u32,
            max_recv_wr: plan.places() as u32,
            max_inline_bytes: if plan.is_inline { plan.size as u32 } else { 0 },
            ..QpConfig::default()
        };
        let blocks = (4 + (4 + config.max_inline_bytes).div_ceil(16)).div_ceil(4);
        let sends = (config.max_send_wr * blocks).next_power_of_two();
        let entries = sends + config.max_recv_wr.next_power_of_two().max(4);
        let cq = end.device.create_cq(entries * count as u32)?;
        let mut flows = Vec::with_capacity(count);
        for index in 0..count {
            let config = QpConfig { user_index: index as u32, ..config };
            let mut qp = end.pd.create_rc_qp(&cq, &cq, &config)?.erase();
            qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 })?;
            let psn = Psn(PSNS[index % PSNS.len()]);
            flows.push(Flow { qp, side: Side::new(end, plan, &mr, index * bytes, psn)? });
        }
        Ok(Self { cq, flows, plan: plan.clone(), connections: Vec::new() })
    }

    /// What the other end must know.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let endpoint = |flow: &Flow| {
            let memory = flow.side.memory.remote()?;
            Some(Endpoint::new(flow.qp.qpn(), flow.side.psn, memory))
        };
        // All of them: the memory is registered for peers.
        self.flows.iter().filter_map(endpoint).collect()
    }

    /// Leads the queue pairs to RTS, towards `peers`.
    ///
    /// # Errors
    ///
    /// What [`Link::join`] says, or another number of queue pairs.
    pub fn connect(&mut self, link: &mut Link, peers: &[Endpoint]) -> Result<()> {
        if peers.len() != self.flows.len() {
            bail!("the other end has {} queue pairs, not {}", peers.len(), self.flows.len());
        }
        let timeout = self.plan.measure.ack_timeout;
        let flows = std::mem::replace(&mut self.flows, Vec::with_capacity(peers.len()));
        for (Flow { qp, mut side }, peer) in flows.into_iter().zip(peers) {
            side.remote = peer.memory();
            let (qp, connection) = link.join(qp, side.psn, peer, timeout)?;
            self.flows.push(Flow { qp, side });
            self.connections.extend(connection);
        }
        Ok(())
    }

    /// Takes one completion. What its queue pair had posted goes back to its places.
    ///
    /// # Errors
    ///
    /// A request that failed, or a byte that is wrong.
    pub fn poll(&mut self) -> Result<Polled> {
        let Some(completion) = self.cq.poll() else { return Ok(Polled::Nothing) };
        let index = completion.user_index() as usize;
        let flow = self.flows.get_mut(index).context("a completion of no queue pair")?;
        let (mut received, mut result) = (None, Ok(()));
        let (side, plan) = (&mut flow.side, &self.plan);
        flow.qp.complete(completion, |wc| {
            if wc.opcode == WcOpcode::Recv {
                received = Some(wc);
            } else if result.is_ok() {
                result = side.ended(wc, plan);
            }
        })?;
        result.with_context(|| format!("queue pair {index}"))?;
        let Some(wc) = received else { return Ok(Polled::Sent) };
        wc.result.with_context(|| format!("queue pair {index}: a receive failed"))?;
        Ok(Polled::Received(index, wc))
    }
}

impl Flow {
    /// Posts messages while there is room, and rings for each batch. Whether there was one.
    ///
    /// # Errors
    ///
    /// The queue pair failed.
    pub fn fill(&mut self, plan: &Plan, is_late: bool) -> Result<bool> {
        let (slots, batch) = (plan.slots as u64, plan.measure.batch);
        let mut queued = 0;
        while self.side.posted - self.side.done < slots && !plan.is_over(self.side.posted, is_late)
        {
            self.queue(plan)?;
            queued += 1;
            if queued % batch == 0 {
                self.qp.ring_doorbell();
            }
        }
        self.qp.ring_doorbell();
        Ok(queued > 0)
    }

    /// Posts the next message, without ringing.
    ///
    /// # Errors
    ///
    /// The queue pair failed.
    pub fn queue(&mut self, plan: &Plan) -> Result<()> {
        let Self { qp, side } = self;
        let seq = side.posted;
        let slot = (seq % plan.slots as u64) as usize;
        // Peers read from the first half and write to the second.
        let place = if plan.measure.test == Test::Write { plan.slots + slot } else { slot };
        let remote = side.remote.at((place * plan.slot_bytes()) as u64);
        let op = match plan.measure.test {
            Test::Send | Test::FastReg => SendOp::Send,
            Test::Write => SendOp::Write(remote),
            Test::Read => SendOp::Read(remote),
            Test::Atomic if seq.is_multiple_of(2) => {
                SendOp::FetchAdd { remote: side.remote, add: 1 }
            }
            Test::Atomic => {
                SendOp::CompareSwap { remote: side.remote, compare: seq, swap: seq + 1 }
            }
        };
        let (is_signaled, reads_back) = (plan.is_signaled(seq), plan.reads_back());
        let flags = SendFlags::SIGNALED;
        let wr = SendWr::unsignaled(seq, op);
        let wr = if is_signaled && !reads_back { wr.with(flags) } else { wr };
        side.prepare(plan, slot, seq)?;
        if plan.is_inline {
            qp.queue_send_inline(&wr, &side.scratch)?;
        } else {
            let buf = side.take(slot)?;
            qp.queue_send(&wr, Some(buf))?;
        }
        if reads_back {
            let wr = SendWr::unsignaled(seq, SendOp::Read(remote));
            let wr = if is_signaled { wr.with(flags) } else { wr };
            let buf = side.take(plan.slots + slot)?;
            qp.queue_send(&wr, Some(buf))?;
        }
        side.posted += 1;
        Ok(())
    }

    /// Posts a receive into a place.
    ///
    /// # Errors
    ///
    /// The queue is full.
    pub fn receive_into(&mut self, place: usize) -> Result<()> {
        let buf = self.side.take(place)?;
        Ok(self.qp.post_recv(place as u64, buf)?)
    }

    /// Checks a message that came, and posts its receive again.
    ///
    /// # Errors
    ///
    /// It is another one, or a byte of it is wrong.
    pub fn received(&mut self, wc: Wc<Buf>, plan: &Plan) -> Result<()> {
        let (place, bytes) = (wc.wr_id, wc.byte_len as usize);
        let buf = wc.into_buffers().context("a receive brought no buffer")?;
        let side = &mut self.side;
        let seq = side.received;
        if bytes != plan.size {
            bail!("message {seq} has {bytes} bytes, not {}", plan.size);
        }
        if plan.measure.verify {
            buf.copy_out(0, &mut side.scratch)?;
            pattern::check(&side.scratch, seq)?;
            side.checked += 1;
        }
        side.received += 1;
        Ok(self.qp.post_recv(place, buf)?)
    }
}

impl Side {
    fn new(end: &End, plan: &Plan, mr: &Mr, start: usize, psn: Psn) -> Result<Self> {
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

    fn take(&mut self, place: usize) -> Result<Buf> {
        let buf = self.places.get_mut(place).and_then(Option::take);
        buf.context("a place was posted twice")
    }

    /// Puts the bytes of message `seq` where they are sent from, or wipes what was read before.
    fn prepare(&mut self, plan: &Plan, slot: usize, seq: u64) -> Result<()> {
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
    fn ended(&mut self, wc: Wc<Buf>, plan: &Plan) -> Result<()> {
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
