//! Messages to and fro on one queue pair, as the stock tools for RC, UC and UD exchange them.

use std::io::{Read, Write};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use ferrocx_app_common::wait::Wait;
use ferrocx_verbs_lite::{
    Access, AddressHandle, Buf, Cq, InitAttr, Pd, Psn, Qp, QpConfig, QpQueues, QpType, SendOp,
    SendWr, Srq, SrqConfig, VerbsError, Wc, WcOpcode,
};
use hdrhistogram::Histogram;

use super::stock;
use crate::config::{Config, Net, PingPong};
use crate::end::End;
use crate::exchange::Role;
use crate::handshake::Address;
use crate::pattern;
use crate::report::histogram;

/// Key of the stock datagrams. Source: rdma-core, libibverbs/examples/ud_pingpong.c.
const QKEY: u32 = 0x1111_1111;
/// Bytes in front of a datagram.
const GRH_BYTES: usize = 40;
/// Receives posted ahead: one for the message that comes, one for the next.
const RECEIVES: usize = 2;

/// A queue pair and what it needs.
struct Player<'a> {
    qp: Qp<Buf>,
    /// Where its receives are, if not in the queue pair.
    srq: Option<Srq>,
    cq: Cq,
    job: &'a PingPong,
    wait: Wait,
    /// Where datagrams go.
    to: Option<AddressHandle>,
    /// The buffer to send from, when the queue pair does not have it.
    out: Option<Buf>,
    /// The message to send, and the one received last.
    message: Vec<u8>,
    received: Vec<u8>,
}

/// One queue pair: the seconds that it took, and the times between messages that arrived.
pub(super) fn play(
    end: &End,
    config: &Config,
    job: &PingPong,
    role: Role,
    mut stream: impl Read + Write,
) -> Result<(f64, Histogram<u64>)> {
    let mut player = Player::new(end, config, job)?;
    let psn = Psn(0x12_3456 ^ u32::from(role == Role::Client));
    let own = [Address { lid: 0, qpn: player.qp.qpn(), psn, gid: end.gid }];
    stock::meet(role, &mut stream, &own, |peers| {
        let peer = peers.first().context("the other end has no queue pair")?;
        player.connect(end, &config.net, peer, psn)
    })?;
    let start = Instant::now();
    let times = player.exchange(role)?;
    Ok((start.elapsed().as_secs_f64(), times))
}

impl<'a> Player<'a> {
    /// Makes the queue pair, with its receives posted.
    fn new(end: &End, config: &Config, job: &'a PingPong) -> Result<Self> {
        let slot = slot_bytes(job);
        let (_, mr) = end.memory(slot * (RECEIVES + 1), Access::empty())?;
        let cq = end.context.create_cq(64)?;
        let settings = QpConfig {
            max_send_wr: 4,
            max_recv_wr: RECEIVES as u32,
            max_inline_bytes: 0,
            ..QpConfig::default()
        };
        let wants = SrqConfig { max_wr: RECEIVES as u32, max_sge: 1 };
        let srq = job.srq.then(|| end.pd.create_srq(&wants)).transpose()?;
        let mut qp = queue_pair(&end.pd, job.service, &cq, srq.as_ref(), &settings)?;
        qp.init(&InitAttr { qkey: QKEY, ..InitAttr::default() })?;
        let out = Some(mr.buf(RECEIVES * slot..RECEIVES * slot + job.size)?);
        let message = vec![0; job.size];
        let (received, wait) = (message.clone(), config.wait);
        let mut player = Self { qp, srq, cq, job, wait, to: None, out, message, received };
        let head = head_bytes(job);
        for index in 0..RECEIVES {
            let start = index * slot;
            player.post_recv(index as u64, mr.buf(start..start + head + job.size)?)?;
        }
        Ok(player)
    }

    fn post_recv(&mut self, id: u64, buf: Buf) -> Result<()> {
        let posted = match &mut self.srq {
            Some(srq) => srq.post_recv(id, buf),
            None => self.qp.post_recv(id, buf),
        };
        Ok(posted?)
    }

    fn connect(&mut self, end: &End, net: &Net, peer: &Address, psn: Psn) -> Result<()> {
        let path = end.path(peer.gid, net.peer_mac)?;
        if self.job.service == QpType::Ud {
            self.to = Some(AddressHandle::new(&path, peer.qpn, QKEY));
            self.qp.receive()?;
        } else {
            stock::connect(&mut self.qp, net, path, peer)?;
        }
        stock::activate(&mut self.qp, net, psn)
    }

    /// All messages; the times between the ones that arrived.
    fn exchange(&mut self, role: Role) -> Result<Histogram<u64>> {
        let mut times = histogram()?;
        let mut echoes = false;
        if role == Role::Client {
            pattern::fill_for_stock(&mut self.message, 0);
            self.send()?;
        }
        for round in 0..self.job.exchanges {
            let start = Instant::now();
            self.receive().with_context(|| format!("exchange {round}"))?;
            times.record(u64::try_from(start.elapsed().as_nanos())?)?;
            if role == Role::Server && round == 0 {
                echoes = !pattern::is_stock_fill(&self.received);
            }
            if self.job.verify && (role == Role::Client || round > 0 || echoes) {
                if echoes {
                    pattern::fill_for_stock(&mut self.message, round);
                }
                pattern::check_equal(&self.received, &self.message, round)?;
            }
            match role {
                Role::Client if round + 1 == self.job.exchanges => {}
                Role::Client => {
                    pattern::fill_for_stock(&mut self.message, round + 1);
                    self.send()?;
                }
                Role::Server => {
                    match echoes {
                        true => self.message.copy_from_slice(&self.received),
                        false => pattern::fill_for_stock(&mut self.message, round),
                    }
                    self.send()?;
                }
            }
        }
        self.wait_for_sent()?;
        Ok(times)
    }

    fn send(&mut self) -> Result<()> {
        self.wait_for_sent()?;
        let mut buf = self.out.take().ok_or_else(|| anyhow!("the buffer to send is lost"))?;
        buf.copy_in(0, &self.message)?;
        let op = match &self.to {
            Some(to) => SendOp::Datagram { to, imm: None },
            None => SendOp::Send,
        };
        Ok(self.qp.post_send(&SendWr::signaled(RECEIVES as u64, op), Some(buf))?)
    }

    /// Until the message sent last may be changed.
    fn wait_for_sent(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.out.is_none() {
            match self.poll()? {
                Some(wc) => {
                    // The peer sends when it has ours, never before.
                    if self.take(wc)? {
                        bail!("a message came out of turn");
                    }
                }
                None => stock::idle(self.wait, start)?,
            }
        }
        Ok(())
    }

    /// The next message; its receive is posted again.
    fn receive(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            match self.poll()? {
                Some(wc) => {
                    if self.take(wc)? {
                        return Ok(());
                    }
                }
                None => stock::idle(self.wait, start)?,
            }
        }
    }

    fn poll(&mut self) -> Result<Option<Wc<Buf>>> {
        let Some(completion) = self.cq.poll() else { return Ok(None) };
        let mut ended = None;
        match &mut self.srq {
            Some(srq) => self.qp.complete_shared(completion, srq, |wc| ended = Some(wc))?,
            None => self.qp.complete(completion, |wc| ended = Some(wc))?,
        }
        Ok(ended)
    }

    /// Takes back a buffer; whether it holds a message.
    fn take(&mut self, wc: Wc<Buf>) -> Result<bool> {
        let is_receive = wc.opcode == WcOpcode::Recv;
        let what = if is_receive { "a receive" } else { "a send" };
        wc.result.with_context(|| format!("{what} failed"))?;
        let (wr_id, bytes) = (wc.wr_id, wc.byte_len as usize);
        let buf = wc.into_buffers().ok_or_else(|| anyhow!("{what} brought no buffer"))?;
        if !is_receive {
            self.out = Some(buf);
            return Ok(false);
        }
        let head = head_bytes(self.job);
        if bytes != head + self.job.size {
            bail!("a message of {} bytes came, not {}", bytes - head.min(bytes), self.job.size);
        }
        buf.copy_out(head, &mut self.received)?;
        self.post_recv(wr_id, buf)?;
        Ok(true)
    }
}

fn queue_pair(
    pd: &Pd,
    service: QpType,
    cq: &Cq,
    srq: Option<&Srq>,
    settings: &QpConfig,
) -> Result<Qp<Buf>, VerbsError> {
    if service == QpType::Raw {
        let (what, way_out) = ("messages for raw packets", "use rc, uc or ud");
        return Err(VerbsError::Unsupported { what, way_out });
    }
    let settings = QpConfig { qp_type: service, ..*settings };
    pd.create_qp(QpQueues { srq, ..QpQueues::from(cq) }, &settings)
}

/// Bytes in front of a message.
fn head_bytes(job: &PingPong) -> usize {
    if job.service == QpType::Ud { GRH_BYTES } else { 0 }
}

/// Bytes of a buffer's place.
fn slot_bytes(job: &PingPong) -> usize {
    (head_bytes(job) + job.size).next_multiple_of(64)
}
