//! The queue pairs of one thread: messages are posted to them, and their completions are taken.

use anyhow::{Context, Result, bail};
use ferrocx_verbs_lite::cm::Connection;
use ferrocx_verbs_lite::{
    Access, Buf, Cq, InitAttr, Psn, Qp, QpConfig, SendFlags, SendOp, SendWr, Wc, WcOpcode,
};

use crate::connector::Connector;
use crate::end::End;
use crate::exchange::Endpoint;
use crate::measure::Test;
use crate::messages::Messages;
use crate::pattern;
use crate::plan::Plan;

/// First PSNs: close to the wrap, and different.
const PSNS: [u32; 2] = [0xff_fffd, 0x12_3456];

/// The queue pairs of one thread, their completion queue, and their memory.
#[derive(Debug)]
pub struct QpGroup {
    cq: Cq,
    /// The queue pairs.
    pub pairs: Vec<QueuePair>,
    /// What they do.
    pub plan: Plan,
    /// Of those that the connection manager connected: dropping them ends the connections.
    connections: Vec<Connection>,
}

/// A queue pair that is measured, and its messages.
#[derive(Debug)]
pub struct QueuePair {
    /// The queue pair.
    pub qp: Qp<Buf>,
    /// Its messages.
    pub messages: Messages,
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

impl QpGroup {
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
        let entries = config.max_send_wr + config.max_recv_wr;
        let cq = end.context.create_cq(entries * count as u32)?;
        let mut pairs = Vec::with_capacity(count);
        for index in 0..count {
            let config = QpConfig { user_index: index as u32, ..config };
            let mut qp = end.pd.create_qp(&cq, &config)?;
            qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 })?;
            let psn = Psn(PSNS[index % PSNS.len()]);
            pairs.push(QueuePair {
                qp,
                messages: Messages::new(end, plan, &mr, index * bytes, psn)?,
            });
        }
        Ok(Self { cq, pairs, plan: plan.clone(), connections: Vec::new() })
    }

    /// What the other end must know.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let endpoint = |pair: &QueuePair| {
            let memory = pair.messages.memory.remote()?;
            Some(Endpoint::new(pair.qp.qpn(), pair.messages.psn, memory))
        };
        // All of them: the memory is registered for peers.
        self.pairs.iter().filter_map(endpoint).collect()
    }

    /// Leads the queue pairs to RTS, towards `peers`.
    ///
    /// # Errors
    ///
    /// What [`Connector::join`] says, or another number of queue pairs.
    pub fn connect(&mut self, connector: &mut Connector, peers: &[Endpoint]) -> Result<()> {
        if peers.len() != self.pairs.len() {
            bail!("the other end has {} queue pairs, not {}", peers.len(), self.pairs.len());
        }
        let timeout = self.plan.measure.ack_timeout;
        let pairs = std::mem::replace(&mut self.pairs, Vec::with_capacity(peers.len()));
        for (QueuePair { qp, mut messages }, peer) in pairs.into_iter().zip(peers) {
            messages.remote = peer.memory();
            let (qp, connection) = connector.join(qp, messages.psn, peer, timeout)?;
            self.pairs.push(QueuePair { qp, messages });
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
        let pair = self.pairs.get_mut(index).context("a completion of no queue pair")?;
        let (mut received, mut result) = (None, Ok(()));
        let (messages, plan) = (&mut pair.messages, &self.plan);
        pair.qp.complete(completion, |wc| {
            if wc.opcode == WcOpcode::Recv {
                received = Some(wc);
            } else if result.is_ok() {
                result = messages.ended(wc, plan);
            }
        })?;
        result.with_context(|| format!("queue pair {index}"))?;
        let Some(wc) = received else { return Ok(Polled::Sent) };
        wc.result.with_context(|| format!("queue pair {index}: a receive failed"))?;
        Ok(Polled::Received(index, wc))
    }
}

impl QueuePair {
    /// Posts messages while there is room, and rings for each batch. Whether there was one.
    ///
    /// # Errors
    ///
    /// The queue pair failed.
    pub fn fill(&mut self, plan: &Plan, is_late: bool) -> Result<bool> {
        let (slots, batch) = (plan.slots as u64, plan.measure.batch);
        let mut queued = 0;
        while self.messages.posted - self.messages.done < slots
            && !plan.is_over(self.messages.posted, is_late)
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
        let Self { qp, messages } = self;
        let seq = messages.posted;
        let slot = (seq % plan.slots as u64) as usize;
        // Peers read from the first half and write to the second.
        let place = if plan.measure.test == Test::Write { plan.slots + slot } else { slot };
        let remote = messages.remote.at((place * plan.slot_bytes()) as u64);
        let op = match plan.measure.test {
            Test::Send | Test::FastReg => SendOp::Send,
            Test::Write => SendOp::Write(remote),
            Test::Read => SendOp::Read(remote),
            Test::Atomic if seq.is_multiple_of(2) => {
                SendOp::FetchAdd { remote: messages.remote, add: 1 }
            }
            Test::Atomic => {
                SendOp::CompareSwap { remote: messages.remote, compare: seq, swap: seq + 1 }
            }
        };
        let (is_signaled, reads_back) = (plan.is_signaled(seq), plan.reads_back());
        let last = SendFlags::MORE;
        let last = if is_signaled { last | SendFlags::SIGNALED } else { last };
        let flags = if reads_back { SendFlags::MORE } else { last };
        let wr = SendWr { wr_id: seq, flags, op };
        messages.prepare(plan, slot, seq)?;
        if plan.is_inline {
            qp.post_send_inline(&wr, &messages.scratch)?;
        } else {
            let buf = messages.take(slot)?;
            qp.post_send(&wr, Some(buf))?;
        }
        if reads_back {
            let wr = SendWr { wr_id: seq, flags: last, op: SendOp::Read(remote) };
            let buf = messages.take(plan.slots + slot)?;
            qp.post_send(&wr, Some(buf))?;
        }
        messages.posted += 1;
        Ok(())
    }

    /// Posts a receive into a place.
    ///
    /// # Errors
    ///
    /// The queue is full.
    pub fn receive_into(&mut self, place: usize) -> Result<()> {
        let buf = self.messages.take(place)?;
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
        let messages = &mut self.messages;
        let seq = messages.received;
        if bytes != plan.size {
            bail!("message {seq} has {bytes} bytes, not {}", plan.size);
        }
        if plan.measure.verify {
            buf.copy_out(0, &mut messages.scratch)?;
            pattern::check(&messages.scratch, seq)?;
            messages.checked += 1;
        }
        messages.received += 1;
        Ok(self.qp.post_recv(place, buf)?)
    }
}
