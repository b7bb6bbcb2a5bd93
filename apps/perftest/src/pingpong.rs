//! Messages to and fro, as `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong` exchange
//! them: with these tools, or with ourselves. `ibv_srq_pingpong` is [`crate::shared`]'s.
//!
//! The stock tools send from the buffer that they receive into, so they send back what they got,
//! and the client starts with a constant. Ours puts a new pattern into each message and, when
//! told to, checks that it comes back: every byte of every message crosses the wire twice. A
//! server of ours does so towards a stock client, and sends back what it gets from one of ours.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use ferrocx_app_common::wait::Wait;
use ferrocx_verbs_lite::{
    Access, AddressHandle, Buf, Cq, InitAttr, Pd, Psn, Qp, QpConfig, QpType, RtrAttr, RtsAttr,
    SendOp, SendWr, Srq, SrqConfig, VerbsError, Wc, WcOpcode,
};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::config::{Config, Net, PingPong};
use crate::end::{End, Models};
use crate::handshake::{self, Address};
use crate::{pattern, shared, tcp};

/// Key of the stock datagrams. Source: rdma-core, libibverbs/examples/ud_pingpong.c.
const QKEY: u32 = 0x1111_1111;
/// Bytes in front of a datagram.
const GRH_BYTES: usize = 40;
/// Receives posted ahead: one for the message that comes, one for the next.
const RECEIVES: usize = 2;
/// The stock tools do one READ at a time, that is none.
pub(crate) const READS: u8 = 1;
/// Nothing for this long: the other end is gone, or a datagram was lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Which end this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// It sends first.
    Client,
    /// It answers.
    Server,
}

/// What the report says.
#[derive(Debug, Serialize)]
struct Report {
    test: &'static str,
    /// `model` for the model's speed, otherwise the device.
    device: String,
    role: Role,
    service: String,
    size_bytes: usize,
    exchanges: u64,
    verified: bool,
    seconds: f64,
    usec_per_exchange: f64,
    usec_p50: f64,
    usec_p99: f64,
    usec_max: f64,
}

/// Runs the test: against the peer that the command line names, or both ends on the model.
///
/// # Errors
///
/// One sentence about the first thing that went wrong.
pub fn run(config: &Config, job: &PingPong) -> Result<()> {
    let report = if config.net.is_model() { on_model(config, job) } else { on_device(config, job) };
    let report = report?;
    println!(
        "{} {} bytes, {} exchanges in {:.3} s: {:.2} us each, half of them below {:.2}, 99 % below \
         {:.2}, all below {:.2}{}",
        report.service,
        report.size_bytes,
        report.exchanges,
        report.seconds,
        report.usec_per_exchange,
        report.usec_p50,
        report.usec_p99,
        report.usec_max,
        if report.verified { "; every byte was right" } else { "" },
    );
    config.json.iter().try_for_each(|target| target.write(&report))?;
    Ok(())
}

fn on_device(config: &Config, job: &PingPong) -> Result<Report> {
    let listener = match config.net.server {
        Some(_) => None,
        None => Some(tcp::listen(config.net.port)?),
    };
    let end = crate::end::open_device(&config.net)?;
    let (role, stream) = match (&config.net.server, &listener) {
        (Some(host), _) => (Role::Client, tcp::connect(host, config.net.port)?),
        (None, Some(listener)) => (Role::Server, tcp::accept(listener)?),
        (None, None) => bail!("there is no other end"),
    };
    let report = play(&end, config, job, role, stream)?;
    end.close()?;
    Ok(report)
}

fn on_model(config: &Config, job: &PingPong) -> Result<Report> {
    let (models, [here, there]) = Models::start(&config.net, config.wait)?;
    let (client, server) = UnixStream::pair()?;
    let macs = [&there, &here].map(|end| end.device.device().mac());
    let config_of = |mac| {
        let net = Net { peer_mac: Some(mac), ..config.net.clone() };
        Config { net, ..config.clone() }
    };
    let [for_client, for_server] = macs.map(config_of);
    let report = std::thread::scope(|scope| {
        let server = scope.spawn(|| play(&there, &for_server, job, Role::Server, server));
        let report = play(&here, &for_client, job, Role::Client, client);
        let served = server.join().map_err(|_| anyhow!("the server's thread panicked"))?;
        served.context("server").and(report)
    })?;
    here.close()?;
    there.close()?;
    models.stop()?;
    Ok(report)
}

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

fn play(
    end: &End,
    config: &Config,
    job: &PingPong,
    role: Role,
    stream: impl Read + Write,
) -> Result<Report> {
    let (seconds, times) = match job.kind {
        "srq" => shared::play(end, config, job, role, stream)?,
        _ => alone(end, config, job, role, stream)?,
    };
    let us = |ns: u64| ns as f64 / 1e3;
    Ok(Report {
        test: "pingpong",
        device: config.net.device.to_string(),
        role,
        service: job.kind.to_string(),
        size_bytes: job.size,
        exchanges: job.exchanges,
        verified: job.verify,
        seconds,
        usec_per_exchange: seconds * 1e6 / job.exchanges as f64,
        usec_p50: us(times.value_at_quantile(0.5)),
        usec_p99: us(times.value_at_quantile(0.99)),
        usec_max: us(times.max()),
    })
}

/// Exchanges addresses with the other end, and connects to those that it says.
pub(crate) fn meet(
    role: Role,
    stream: &mut (impl Read + Write),
    own: &[Address],
    connect: impl FnOnce(&[Address]) -> Result<()>,
) -> Result<()> {
    match role {
        Role::Client => {
            let peers = handshake::as_client(stream, own).context("exchange over TCP")?;
            connect(&peers)
        }
        Role::Server => {
            handshake::as_server(stream, own, connect).context("exchange over TCP")?;
            Ok(())
        }
    }
}

/// One queue pair: the seconds that it took, and the times between messages that arrived.
fn alone(
    end: &End,
    config: &Config,
    job: &PingPong,
    role: Role,
    mut stream: impl Read + Write,
) -> Result<(f64, Histogram<u64>)> {
    let mut player = Player::new(end, config, job)?;
    let psn = Psn(0x12_3456 ^ u32::from(role == Role::Client));
    let own = [Address { lid: 0, qpn: player.qp.qpn(), psn, gid: end.gid }];
    meet(role, &mut stream, &own, |peers| {
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
        let cq = end.device.create_cq(64)?;
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
            let attr = RtrAttr::new(path, peer.qpn, peer.psn, net.mtu);
            self.qp.connect(&RtrAttr { max_dest_rd_atomic: READS, ..attr })?;
        }
        let attr = RtsAttr::new(psn);
        let timeout = net.ack_timeout;
        self.qp.activate(&RtsAttr { max_rd_atomic: READS, timeout, ..attr })?;
        Ok(())
    }

    /// All messages; the times between the ones that arrived.
    fn exchange(&mut self, role: Role) -> Result<Histogram<u64>> {
        let mut times = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
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
                None => self.idle(start)?,
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
                None => self.idle(start)?,
            }
        }
    }

    fn idle(&self, start: Instant) -> Result<()> {
        if start.elapsed() > PATIENCE {
            bail!("nothing came for {} s", PATIENCE.as_secs());
        }
        self.wait.idle();
        Ok(())
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
    Ok(match (service, srq) {
        (QpType::Rc, None) => pd.create_rc_qp(cq, cq, settings)?.erase(),
        (QpType::Uc, None) => pd.create_uc_qp(cq, cq, settings)?.erase(),
        (QpType::Ud, None) => pd.create_ud_qp(cq, cq, settings)?.erase(),
        (QpType::Rc, Some(srq)) => pd.create_rc_qp_on_srq(cq, cq, srq, settings)?.erase(),
        (QpType::Uc, Some(srq)) => pd.create_uc_qp_on_srq(cq, cq, srq, settings)?.erase(),
        (QpType::Ud, Some(srq)) => pd.create_ud_qp_on_srq(cq, cq, srq, settings)?.erase(),
        (QpType::Raw, _) => {
            let (what, way_out) = ("messages for raw packets", "use rc, uc or ud");
            return Err(VerbsError::Unsupported { what, way_out });
        }
    })
}

/// Bytes in front of a message.
fn head_bytes(job: &PingPong) -> usize {
    if job.service == QpType::Ud { GRH_BYTES } else { 0 }
}

/// Bytes of a buffer's place.
fn slot_bytes(job: &PingPong) -> usize {
    (head_bytes(job) + job.size).next_multiple_of(64)
}
