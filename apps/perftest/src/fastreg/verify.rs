//! Whether keys work: this end names a key of its own, the other end writes through it and says so.
//!
//! A request is 32 bytes: number of the piece, number of the message, address, key, length. The
//! answer is the number of the piece, sent behind the WRITE on the same queue pair, so the bytes
//! are there when it comes.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use ferrocx_verbs_lite::cm::Connection;
use ferrocx_verbs_lite::{
    Access, Buf, Cq, InitAttr, Psn, Qp, QpConfig, RemoteAddr, Rkey, SendFlags, SendOp, SendWr, Wc,
    WcOpcode,
};

use crate::cm::CmPeer;
use crate::connector::{Connector, greet};
use crate::end::End;
use crate::exchange::{Done, Endpoint, Lines, Offer, Ready, Role, Verdict};
use crate::measure::Measure;
use crate::pattern;
use crate::placement::Placement;
use crate::plan::Plan;
use crate::responder::Expected;

const REQUEST_BYTES: usize = 32;
const ANSWER_BYTES: usize = 8;
const PSN: Psn = Psn(0xff_fffe);

/// The queue pair that carries requests and answers.
#[derive(Debug)]
pub(super) struct VerifyQp {
    qp: Qp<Buf>,
    cq: Cq,
    memory: RemoteAddr,
    /// Dropping it ends the connection.
    _connection: Option<Connection>,
}

/// What came, in the place of a receive.
struct Came {
    place: u64,
    bytes: [u8; REQUEST_BYTES],
    buf: Buf,
}

impl VerifyQp {
    /// Makes it, with a receive for every piece.
    pub(super) fn new(end: &End, plan: &Plan) -> Result<Self> {
        let count = plan.slots * plan.measure.workers;
        let (_, mr) = end.memory(count * REQUEST_BYTES, Access::REMOTE_READ)?;
        let config = QpConfig {
            // Of the other end: a WRITE and an answer for each of twice as many.
            max_send_wr: 4 * count as u32,
            max_recv_wr: count as u32,
            max_inline_bytes: REQUEST_BYTES as u32,
            ..QpConfig::default()
        };
        let cq = end.context.create_cq(config.max_send_wr + config.max_recv_wr)?;
        let mut qp = end.pd.create_qp(&cq, &config)?;
        qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 })?;
        for place in 0..count {
            let start = place * REQUEST_BYTES;
            qp.post_recv(place as u64, mr.buf(start..start + REQUEST_BYTES)?)?;
        }
        let memory = mr.whole()?.remote().context("the memory is not for peers")?;
        Ok(Self { qp, cq, memory, _connection: None })
    }

    pub(super) fn endpoint(&self) -> Result<Endpoint> {
        Ok(Endpoint::new(self.qp.qpn(), PSN, self.memory))
    }

    pub(super) fn connect(
        self,
        plan: &Plan,
        connector: &mut Connector,
        peer: &Endpoint,
    ) -> Result<Self> {
        let (qp, connection) = connector.join(self.qp, PSN, peer, plan.measure.ack_timeout)?;
        Ok(Self { qp, _connection: connection, ..self })
    }

    /// Asks the other end to write a message through a key.
    pub(super) fn request(&mut self, at: usize, seq: u64, to: RemoteAddr, len: u64) -> Result<()> {
        let mut request = [0; REQUEST_BYTES];
        request[..8].copy_from_slice(&(at as u64).to_be_bytes());
        request[8..16].copy_from_slice(&seq.to_be_bytes());
        request[16..24].copy_from_slice(&to.addr.to_be_bytes());
        request[24..28].copy_from_slice(&to.rkey.0.to_be_bytes());
        request[28..].copy_from_slice(&u32::try_from(len)?.to_be_bytes());
        Ok(self.qp.post_send_inline(&SendWr::signaled(0, SendOp::Send), &request)?)
    }

    /// The number of a piece that the other end has written.
    pub(super) fn poll(&mut self) -> Result<Option<usize>> {
        let Some(came) = self.take(|_| Ok(()))? else { return Ok(None) };
        let at = number(&came.bytes, 0);
        self.qp.post_recv(came.place, came.buf)?;
        Ok(Some(usize::try_from(at)?))
    }

    /// Carries out a request: writes the message that it names, and says so.
    fn run(&mut self, request: &[u8; REQUEST_BYTES], mut buf: Buf, bytes: &mut [u8]) -> Result<()> {
        let [_, seq, addr, last] = [0, 1, 2, 3].map(|word| number(request, word));
        let remote = RemoteAddr { addr, rkey: Rkey((last >> 32) as u32) };
        if last as u32 as usize != bytes.len() {
            bail!("a request for {} bytes, not {}", last as u32, bytes.len());
        }
        pattern::fill(bytes, seq);
        buf.copy_in(0, bytes)?;
        let write = SendWr::unsignaled(0, SendOp::Write(remote)).with(SendFlags::MORE);
        self.qp.post_send(&write, Some(buf))?;
        let answer = SendWr::signaled(0, SendOp::Send);
        Ok(self.qp.post_send_inline(&answer, &request[..ANSWER_BYTES])?)
    }

    /// Takes completions up to the next message that came; `sent` gets what was sent.
    fn take(&mut self, mut sent: impl FnMut(Wc<Buf>) -> Result<()>) -> Result<Option<Came>> {
        while let Some(completion) = self.cq.poll() {
            let (mut received, mut result) = (None, Ok(()));
            self.qp.complete(completion, |wc| {
                if wc.opcode == WcOpcode::Recv {
                    received = Some(wc);
                } else if result.is_ok() {
                    result =
                        wc.result.context("a request or its answer failed").and_then(|()| sent(wc));
                }
            })?;
            result?;
            let Some(wc) = received else { continue };
            wc.result.context("a receive failed")?;
            let (place, len) = (wc.wr_id, wc.byte_len as usize);
            let buf = wc.into_buffers().context("a receive brought no buffer")?;
            if len != REQUEST_BYTES && len != ANSWER_BYTES {
                bail!("a message of {len} bytes came");
            }
            let mut bytes = [0; REQUEST_BYTES];
            buf.copy_out(0, &mut bytes[..len])?;
            return Ok(Some(Came { place, bytes, buf }));
        }
        Ok(None)
    }
}

fn number(bytes: &[u8; REQUEST_BYTES], word: usize) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    u64::from_be_bytes(words[word])
}

/// The other end: carries out requests, round after round, until the client hangs up; how many.
///
/// # Errors
///
/// One sentence about the first thing that went wrong.
pub fn serve<S: Read + Write>(
    end: &End,
    placement: &Placement,
    measure: &Measure,
    stream: S,
    cm: Option<CmPeer>,
) -> Result<u64> {
    let mut lines = Lines::new(stream);
    let (mut connector, measure) = greet(end, placement, measure, &mut lines, cm, Role::Server)?;
    let mut total = 0;
    for &size in &measure.sizes {
        let plan = Plan::new(&measure, size, placement);
        let verify = VerifyQp::new(end, &plan)?;
        lines.say(&Offer { size, endpoints: vec![verify.endpoint()?] })?;
        let peer = lines.hear::<Offer>()?;
        let peer = peer.endpoints.first().context("the client has no queue pair")?;
        let mut verify = verify.connect(&plan, &mut connector, peer)?;
        lines.hear::<Ready>()?;
        let expected = Expected::default();
        let done = std::thread::scope(|scope| {
            let runner = scope.spawn(|| run(end, &plan, &mut verify, &expected));
            let said = lines.say(&Ready {}).and_then(|()| lines.hear::<Done>());
            let messages = said.as_ref().ok().and_then(|done| done.messages.first());
            expected.set(messages.copied().unwrap_or(0));
            let ran = runner
                .join()
                .unwrap_or_else(|_| Err(anyhow!("the thread of the requests panicked")));
            said.context("the client failed")?;
            Ok::<_, anyhow::Error>(ran)
        })?;
        let error = done.as_ref().err().map(ferrocx_app_common::exit::sentence);
        lines.say(&Verdict { checked: 0, error })?;
        total += done?;
    }
    Ok(total)
}

/// Writes a message through each key that comes, until `expected` were done.
fn run(end: &End, plan: &Plan, verify: &mut VerifyQp, expected: &Expected) -> Result<u64> {
    // An answer may be there before its acknowledgement: twice as many as keys.
    let count = 2 * plan.slots * plan.measure.workers;
    let (_, mr) = end.memory(count * plan.slot_bytes(), Access::empty())?;
    let buf = |at: usize| {
        let start = at * plan.slot_bytes();
        Ok(mr.buf(start..start + plan.size)?)
    };
    let mut free = (0..count).map(buf).collect::<Result<Vec<Buf>>>()?;
    let mut waiting = VecDeque::with_capacity(count);
    let mut scratch = vec![0; plan.size];
    let (mut done, mut since) = (0, Instant::now());
    while done < expected.get() || free.len() < count {
        let came = verify.take(|wc| {
            free.extend(wc.into_buffers());
            Ok(())
        })?;
        if came.is_some() || expected.get() == u64::MAX {
            since = Instant::now();
        }
        let is_idle = came.is_none();
        if let Some(Came { place, bytes, buf }) = came {
            verify.qp.post_recv(place, buf)?;
            waiting.push_back(bytes);
        }
        if let Some(buf) = free.pop_if(|_| !waiting.is_empty()) {
            let request = waiting.pop_front().context("nothing waits")?;
            verify.run(&request, buf, &mut scratch)?;
            done += 1;
        } else if is_idle {
            plan.idle(since)?;
        }
    }
    Ok(done)
}
