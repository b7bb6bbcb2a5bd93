//! Messages to and fro on many queue pairs that share one receive queue, as `ibv_srq_pingpong`
//! exchanges them: with that tool, or with ourselves.
//!
//! The stock tool receives all messages of all queue pairs into one buffer and sends from it, and
//! counts messages over all of them. So all messages of ours are the same, and each that comes must
//! be ours, or what the tool's buffer held at first.

use std::io::{Read, Write};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use ferrocx_app_common::wait::Wait;
use ferrocx_verbs_lite::{
    Access, Buf, Cq, Gid, InitAttr, Psn, Qp, QpConfig, QpQueues, Qpn, SendOp, SendWr, Srq,
    SrqConfig, Wc, WcOpcode,
};
use hdrhistogram::Histogram;

use super::stock;
use crate::config::{Config, Net, PingPong};
use crate::end::End;
use crate::exchange::Role;
use crate::handshake::{Address, SRQ_ADDRESSES};
use crate::pattern;
use crate::report::histogram;

/// The first number that a queue pair sends.
const PSN: Psn = Psn(0xff_fffe);
/// Of the queue pairs that are not used.
const NOBODY: Address = Address { lid: 0, qpn: Qpn(0), psn: Psn(0), gid: Gid([0; 16]) };

/// A queue pair that takes its receives from the shared queue.
struct SrqQp {
    qp: Qp<Buf>,
    /// The message, when the queue pair does not have it.
    out: Option<Buf>,
    /// It is the peer's turn.
    awaits: bool,
    /// When the message was sent that it answers. `None`: the peer sends first.
    since: Option<Instant>,
}

/// The queue pairs, and the receive queue that they share.
struct SrqQps<'a> {
    pairs: Vec<SrqQp>,
    srq: Srq,
    cq: Cq,
    job: &'a PingPong,
    wait: Wait,
    /// The message, and the one received last.
    message: Vec<u8>,
    received: Vec<u8>,
    /// Messages posted, over all queue pairs.
    posted: u64,
}

/// Exchanges the messages; seconds that it took, and the times from a message to its answer.
pub(super) fn play(
    end: &End,
    config: &Config,
    job: &PingPong,
    role: Role,
    mut stream: impl Read + Write,
) -> Result<(f64, Histogram<u64>)> {
    let mut qps = SrqQps::new(end, config, job)?;
    let address = |pair: &SrqQp| Address { lid: 0, qpn: pair.qp.qpn(), psn: PSN, gid: end.gid };
    let mut own: Vec<Address> = qps.pairs.iter().map(address).collect();
    own.resize(SRQ_ADDRESSES, NOBODY);
    stock::meet(role, &mut stream, &own, |peers| qps.connect(end, &config.net, peers))?;
    let start = Instant::now();
    let times = qps.exchange(role)?;
    Ok((start.elapsed().as_secs_f64(), times))
}

impl<'a> SrqQps<'a> {
    fn new(end: &End, config: &Config, job: &'a PingPong) -> Result<Self> {
        let (size, slot) = (job.size, job.size.next_multiple_of(64));
        // A queue pair has a message under way in each direction at most.
        let receives = 2 * job.qps;
        let (_, mr) = end.memory(slot * (receives + job.qps), Access::empty())?;
        let place = |at: usize| mr.buf(at * slot..at * slot + size);
        let settings = QpConfig { max_send_wr: 4, max_inline_bytes: 0, ..QpConfig::default() };
        let wants = SrqConfig { max_wr: receives as u32, max_sge: 1 };
        let cq = end.context.create_cq(settings.max_send_wr * job.qps as u32 + wants.max_wr)?;
        let mut srq = end.pd.create_srq(&wants)?;
        for at in 0..receives {
            srq.post_recv(at as u64, place(at)?)?;
        }
        let mut message = vec![0; size];
        pattern::fill_for_stock(&mut message, 0);
        let mut pairs = Vec::with_capacity(job.qps);
        for at in 0..job.qps {
            let mut qp =
                end.pd.create_qp(QpQueues { srq: Some(&srq), ..QpQueues::from(&cq) }, &settings)?;
            qp.init(&InitAttr::default())?;
            let mut out = place(receives + at)?;
            out.copy_in(0, &message)?;
            pairs.push(SrqQp { qp, out: Some(out), awaits: true, since: None });
        }
        let received = vec![0; size];
        Ok(Self { pairs, srq, cq, job, wait: config.wait, message, received, posted: 0 })
    }

    fn connect(&mut self, end: &End, net: &Net, peers: &[Address]) -> Result<()> {
        for (pair, peer) in self.pairs.iter_mut().zip(peers) {
            if *peer == NOBODY {
                bail!("the other end has fewer queue pairs; see --qps, and -q of ibv_srq_pingpong");
            }
            let path = end.path(peer.gid, net.peer_mac)?;
            stock::connect(&mut pair.qp, net, path, peer)?;
            stock::activate(&mut pair.qp, net, PSN)?;
        }
        Ok(())
    }

    /// All messages, so many each way.
    fn exchange(&mut self, role: Role) -> Result<Histogram<u64>> {
        let mut times = histogram()?;
        let goal = self.job.exchanges;
        if role == Role::Client {
            (0..self.pairs.len()).try_for_each(|at| self.send(at))?;
        }
        let (mut sent, mut received, mut since) = (0, 0, Instant::now());
        while sent < goal || received < goal {
            let Some((at, wc)) = self.poll()? else {
                stock::idle(self.wait, since)?;
                continue;
            };
            since = Instant::now();
            wc.result.with_context(|| format!("queue pair {at}"))?;
            if wc.opcode == WcOpcode::Recv {
                if let Some(since) = self.pairs[at].since {
                    times.saturating_record(u64::try_from(since.elapsed().as_nanos())?);
                }
                self.take(at, wc, role).with_context(|| format!("message {received}"))?;
                received += 1;
            } else {
                self.pairs[at].out = wc.into_buffers();
                sent += 1;
            }
            let pair = &self.pairs[at];
            if pair.out.is_some() && !pair.awaits && self.posted < goal {
                self.send(at)?;
            }
        }
        Ok(times)
    }

    fn send(&mut self, at: usize) -> Result<()> {
        let pair = &mut self.pairs[at];
        let buf = pair.out.take().context("the message is lost")?;
        pair.qp.post_send(&SendWr::signaled(0, SendOp::Send), Some(buf))?;
        (pair.awaits, pair.since) = (true, Some(Instant::now()));
        self.posted += 1;
        Ok(())
    }

    /// The next completion, and the queue pair that it is of.
    fn poll(&mut self) -> Result<Option<(usize, Wc<Buf>)>> {
        let Some(completion) = self.cq.poll() else { return Ok(None) };
        let qpn = completion.qpn();
        let at = self.pairs.iter().position(|pair| pair.qp.qpn() == qpn);
        let at = at.context("a completion of no queue pair")?;
        let mut ended = None;
        self.pairs[at].qp.complete_shared(completion, &mut self.srq, |wc| ended = Some(wc))?;
        Ok(ended.map(|wc| (at, wc)))
    }

    /// Looks at a message and posts its receive again.
    fn take(&mut self, at: usize, wc: Wc<Buf>, role: Role) -> Result<()> {
        let (place, len) = (wc.wr_id, wc.byte_len as usize);
        let buf = wc.into_buffers().context("a receive brought no buffer")?;
        if len != self.job.size {
            bail!("it has {len} bytes, not {}", self.job.size);
        }
        if !std::mem::take(&mut self.pairs[at].awaits) {
            bail!("it came out of turn");
        }
        buf.copy_out(0, &mut self.received)?;
        self.srq.post_recv(place, buf)?;
        if self.job.verify {
            if role == Role::Server {
                // A stock client has nothing else to send before the first answer.
                let own = self.received.iter_mut().zip(&self.message);
                own.filter(|(byte, _)| pattern::STOCK_FILLS.contains(byte))
                    .for_each(|(byte, own)| *byte = *own);
            }
            pattern::check_equal(&self.received, &self.message, 0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use clap::Parser;

    use super::*;
    use crate::cli::Args;
    use crate::config::Job;
    use crate::end::Models;

    #[test]
    fn only_answers_are_timed() {
        let line = "perftest pingpong srq -n 20 --qps 3 -s 64";
        let config = Config::new(&Args::parse_from(line.split(' '))).unwrap();
        let Job::PingPong(job) = &config.job else { panic!("{:?}", config.job) };
        let (models, [here, there]) = Models::start(&config.net, Wait::Yield).unwrap();
        let (client, server) = UnixStream::pair().unwrap();
        let played = |end: &End, other: &End, role, stream| {
            let net = Net { peer_mac: Some(other.context.device().mac()), ..config.net.clone() };
            let config = Config { net, ..config.clone() };
            play(end, &config, job, role, stream).unwrap().1.len()
        };
        let times = std::thread::scope(|scope| {
            let server = scope.spawn(|| played(&there, &here, Role::Server, server));
            [played(&here, &there, Role::Client, client), server.join().unwrap()]
        });
        // What comes first to each queue pair of the server answers nothing.
        assert_eq!(times, [20, 17]);
        here.close().unwrap();
        there.close().unwrap();
        models.stop().unwrap();
    }
}
