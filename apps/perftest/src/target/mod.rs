//! Memory and keys for a program at the other end: it says over TCP what to bind and to end, tries
//! what it may not, and asks what the memory holds.
//!
//! Each line is a [`Command`] in JSON; each answer is `{"ok": …}` or `{"error": "…"}`. Keys are
//! fast-register keys and FMRs of this library, bound and ended by work requests on queue pairs of
//! their own, so that the connection may fail as often as it likes: `connect` makes a new one.
//! Memory windows are bound by the connection's queue pair, for whose peer they are.

mod keys;
mod lent;

use std::io::{Read, Write};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use ferrocx_app_common::wait::Wait;
use ferrocx_verbs_lite::{
    Access, Buf, Cq, Gid, InitAttr, Memory, Mr, Psn, Qp, QpConfig, Qpn, RemoteAddr, Returned, Rkey,
    RtrAttr, RtsAttr, SendOp, SendWr, Wc, WcOpcode,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::{Config, Net};
use crate::end::{End, open_device};
use crate::exchange::Lines;
use crate::{pattern, tcp};
use keys::{Keys, PATIENCE};
use lent::{Fmrs, Windows};

/// Bytes of the memory that keys are bound to, and of that for messages.
const MEMORY_BYTES: usize = 256 << 10;
const MESSAGE_BYTES: usize = 4096;
/// Receives of a connection.
const RECEIVES: usize = 4;
/// The first number that this end sends.
const PSN: Psn = Psn(0xff_fff0);

/// A right of the peer.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// To read.
    Read,
    /// To write.
    Write,
    /// To do atomics.
    Atomic,
}

/// An operation of this end on the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND that ends the key.
    SendInv,
}

/// What the program says.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Makes a connection in place of the one there was. Answers with queue pair, PSN, address.
    Connect {
        /// The peer's queue pair.
        qpn: u32,
        /// The first number that it sends.
        psn: u32,
        /// Its address.
        ip: IpAddr,
    },
    /// Fills the memory with message `seq` of [`pattern`].
    Fill {
        /// Number of the message.
        seq: u64,
    },
    /// Compares the memory with that message: answers with the range of bytes that differ.
    Compare {
        /// Number of the message.
        seq: u64,
    },
    /// Binds a key to a range of the memory. Answers with key and address.
    Bind {
        /// First byte.
        offset: usize,
        /// Bytes.
        len: usize,
        /// What the peer may do.
        rights: Vec<Right>,
        /// Whether the peer may end it.
        remote_invalidate: bool,
        /// Whether it belongs to another protection domain than the connection.
        other_domain: bool,
    },
    /// Maps an FMR of a pool in strict mode to pages of the memory, for reading and writing.
    /// Answers with key and address.
    MapFmr {
        /// First bytes of the pages, in the order of their addresses.
        pages: Vec<usize>,
    },
    /// Binds a memory window to a range of the memory, on the connection. Answers with key and
    /// address.
    BindWindow {
        /// First byte.
        offset: usize,
        /// Bytes.
        len: usize,
        /// What the peer may do.
        rights: Vec<Right>,
    },
    /// Ends a key or a window by a local invalidate, a window of an earlier connection by a command;
    /// unmaps an FMR.
    End {
        /// The key.
        rkey: u32,
    },
    /// Waits for a message. Answers with its length, and the key that it ended, if any.
    Receive {},
    /// Does something to the peer's memory, with message `seq` of [`pattern`]. Answers with the
    /// syndrome, 0 for success.
    Post {
        /// What.
        operation: Operation,
        /// Where.
        addr: u64,
        /// By which key.
        rkey: u32,
        /// How many bytes.
        len: usize,
        /// Number of the message.
        seq: u64,
    },
}

/// What `target` says to a command.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Ok(Value),
    Error(String),
}

/// A connection to the peer.
struct Connection {
    qp: Qp<Buf>,
    cq: Cq,
    /// Where messages are sent from; `None` while the queue pair has it.
    out: Option<Buf>,
    /// Messages that came before they were asked for.
    came: Vec<Wc<Buf>>,
    /// The end of what was posted last.
    ended: Option<Wc<Buf>>,
}

/// Memory, keys and the connection.
struct Target<'a> {
    end: &'a End,
    net: &'a Net,
    wait: Wait,
    memory: Arc<Memory>,
    messages: Mr,
    keys: Keys,
    windows: Windows,
    /// Made when the first is asked for.
    fmrs: Option<Fmrs>,
    connection: Option<Connection>,
    scratch: Vec<u8>,
}

/// Waits for the program and does what it says until it hangs up.
///
/// # Errors
///
/// What the system or the device says; what the program asks for and cannot have is answered.
pub fn run(config: &Config) -> Result<()> {
    let listener = tcp::listen(config.net.port)?;
    let end = open_device(&config.net)?;
    let stream = tcp::accept(&listener)?;
    let commands = serve(&end, &config.net, config.wait, stream)?;
    end.close()?;
    println!("{commands} commands");
    Ok(())
}

/// Does what the program at the other end of `stream` says; how many commands.
///
/// # Errors
///
/// As [`run`].
pub fn serve(end: &End, net: &Net, wait: Wait, stream: impl Read + Write) -> Result<u64> {
    let mut lines = Lines::new(stream);
    let mut target = Target::new(end, net, wait)?;
    let mut commands = 0;
    while let Some(command) = lines.hear_or_end::<Command>()? {
        commands += 1;
        // The firmware asks for memory this way.
        while end.device.poll_async_event().is_some() {}
        let reply = match target.obey(&command) {
            Ok(value) => Reply::Ok(value),
            Err(error) => Reply::Error(ferrocx_app_common::exit::sentence(&error)),
        };
        lines.say(&reply)?;
    }
    Ok(commands)
}

fn access_of(rights: &[Right]) -> Access {
    let access = |right: &Right| match right {
        Right::Read => Access::REMOTE_READ,
        Right::Write => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        Right::Atomic => Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
    };
    rights.iter().map(access).collect()
}

/// How the program names a key.
fn named(remote: RemoteAddr) -> Value {
    json!({ "rkey": remote.rkey.0, "addr": remote.addr })
}

impl<'a> Target<'a> {
    fn new(end: &'a End, net: &'a Net, wait: Wait) -> Result<Self> {
        // No window outlives the consent of another device's memory, so there are none over it.
        let bindable = if end.peer.is_some() { Access::empty() } else { Access::MW_BIND };
        let (memory, region) = end.memory(MEMORY_BYTES, bindable)?;
        let (_, messages) = end.memory((RECEIVES + 1) * MESSAGE_BYTES, Access::empty())?;
        let (keys, windows) = (Keys::new(end)?, Windows::new(end, region));
        Ok(Self {
            end,
            net,
            wait,
            memory,
            messages,
            keys,
            windows,
            fmrs: None,
            connection: None,
            scratch: vec![0; MEMORY_BYTES],
        })
    }

    fn obey(&mut self, command: &Command) -> Result<Value> {
        match *command {
            Command::Connect { qpn, psn, ip } => self.connect(Qpn(qpn), Psn(psn), ip.into()),
            Command::Fill { seq } => {
                pattern::fill(&mut self.scratch, seq);
                self.memory.region().copy_in(0, &self.scratch)?;
                Ok(json!({}))
            }
            Command::Compare { seq } => self.compare(seq),
            Command::Bind { offset, len, ref rights, remote_invalidate, other_domain } => {
                let access = access_of(rights);
                let range = offset..offset.saturating_add(len);
                let wait = || self.wait.idle();
                let remote = self.keys.bind(
                    &self.memory,
                    range,
                    access,
                    remote_invalidate,
                    usize::from(other_domain),
                    wait,
                )?;
                Ok(named(remote))
            }
            Command::MapFmr { ref pages } => {
                let fmrs = match &mut self.fmrs {
                    Some(fmrs) => fmrs,
                    None => self.fmrs.insert(Fmrs::new(self.end)?),
                };
                Ok(named(fmrs.map(&self.memory, pages)?))
            }
            Command::BindWindow { offset, len, ref rights } => {
                self.bind_window(offset..offset.saturating_add(len), access_of(rights))
            }
            Command::End { rkey } => self.end(Rkey(rkey)),
            Command::Receive {} => self.receive(),
            Command::Post { operation, addr, rkey, len, seq } => {
                self.post(operation, RemoteAddr { addr, rkey: Rkey(rkey) }, len, seq)
            }
        }
    }

    fn connect(&mut self, qpn: Qpn, psn: Psn, gid: Gid) -> Result<Value> {
        self.connection = None;
        let end = self.end;
        let receives = RECEIVES as u32;
        let config = QpConfig { max_recv_wr: receives, fast_reg: true, ..QpConfig::default() };
        let cq = end.device.create_cq(1024)?;
        let mut qp = end.pd.create_qp(&cq, &config)?;
        qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 })?;
        let place = |at: usize| self.messages.buf(at * MESSAGE_BYTES..(at + 1) * MESSAGE_BYTES);
        for at in 0..RECEIVES {
            qp.post_recv(at as u64, place(at)?)?;
        }
        let path = end.path(gid, self.net.peer_mac)?;
        qp.connect(&RtrAttr::new(path, qpn, psn, self.net.mtu))?;
        let timeout = self.net.ack_timeout;
        qp.activate(&RtsAttr { timeout, ..RtsAttr::new(PSN) })?;
        let answer = json!({ "qpn": qp.qpn().0, "psn": PSN.0, "ip": end.gid.ip() });
        let out = Some(place(RECEIVES)?);
        self.connection = Some(Connection { qp, cq, out, came: Vec::new(), ended: None });
        Ok(answer)
    }

    fn bind_window(&mut self, range: Range<usize>, access: Access) -> Result<Value> {
        let connection = self.connection.as_mut().context("there is no connection")?;
        let remote = self.windows.bind(&mut connection.qp, range, access)?;
        connection.end_of(self.wait)?.result.context("the binding failed")?;
        Ok(named(remote))
    }

    fn end(&mut self, rkey: Rkey) -> Result<Value> {
        if let Some(unmapped) = self.fmrs.as_mut().and_then(|fmrs| fmrs.unmap(rkey)) {
            return unmapped.map(|()| json!({}));
        }
        let qp = self.connection.as_mut().map(|connection| &mut connection.qp);
        match (self.windows.end(qp, rkey).transpose()?, &mut self.connection) {
            (Some(true), Some(connection)) => {
                let wc = connection.end_of(self.wait)?;
                match wc.returned {
                    Returned::Mw(mw) => self.windows.ended(mw),
                    // The peer's last attempt has ended the connection.
                    Returned::StaleMw(mw) => self.windows.revoke(mw)?,
                    other => bail!("an invalidation brought {other:?}"),
                }
            }
            (Some(_), _) => {}
            (None, _) => self.keys.end(rkey, || self.wait.idle())?,
        }
        Ok(json!({}))
    }

    fn compare(&mut self, seq: u64) -> Result<Value> {
        let mut bytes = vec![0; MEMORY_BYTES];
        self.memory.region().copy_out(0, &mut bytes)?;
        pattern::fill(&mut self.scratch, seq);
        let differs = |at: &usize| bytes[*at] != self.scratch[*at];
        let first = (0..MEMORY_BYTES).find(differs);
        let Some(first) = first else { return Ok(json!({ "same": true })) };
        let last = (0..MEMORY_BYTES).rfind(differs).unwrap_or(first);
        Ok(json!({ "same": false, "start": first, "end": last + 1 }))
    }

    fn receive(&mut self) -> Result<Value> {
        let connection = self.connection.as_mut().context("there is no connection")?;
        let start = Instant::now();
        while connection.came.is_empty() {
            connection.poll()?;
            if start.elapsed() > PATIENCE {
                bail!("no message came for {} s", PATIENCE.as_secs());
            }
            self.wait.idle();
        }
        let wc = connection.came.remove(0);
        wc.result.context("a receive failed")?;
        let (place, bytes) = (wc.wr_id, wc.byte_len);
        let mut answer = json!({ "bytes": bytes, "invalidated": null });
        let Wc { recv, returned, .. } = wc;
        if let Some(proof) = recv.invalidated {
            answer["invalidated"] = proof.rkey().0.into();
            if let Some(proof) = self.windows.ended_by_peer(proof) {
                self.keys.ended_by_peer(proof)?;
            }
        }
        if let Returned::Buffers(buf) = returned {
            connection.qp.post_recv(place, buf)?;
        }
        Ok(answer)
    }

    fn post(
        &mut self,
        operation: Operation,
        remote: RemoteAddr,
        len: usize,
        seq: u64,
    ) -> Result<Value> {
        let connection = self.connection.as_mut().context("there is no connection")?;
        let mut buf = connection.out.take().context("the buffer for messages is lost")?;
        if len > buf.len() {
            connection.out = Some(buf);
            bail!("{len} bytes are too many; at most {MESSAGE_BYTES}");
        }
        let rest = buf.split_off(len);
        drop(rest);
        let bytes = &mut self.scratch[..len];
        let op = match operation {
            Operation::Write => SendOp::Write(remote),
            Operation::Read => SendOp::Read(remote),
            Operation::SendInv => SendOp::SendInv(remote.rkey),
        };
        pattern::fill(bytes, seq);
        if operation != Operation::Read {
            buf.copy_in(0, bytes)?;
        }
        connection.qp.post_send(&SendWr::signaled(0, op), Some(buf))?;
        let wc = connection.end_of(self.wait)?;
        let syndrome = wc.result.err().map_or(0, |failure| failure.syndrome.0);
        let buf = wc.into_buffers().context("a request brought no buffer")?;
        let is_right = operation != Operation::Read || buf.to_vec() == *bytes;
        let at = RECEIVES * MESSAGE_BYTES;
        connection.out = Some(self.messages.buf(at..at + MESSAGE_BYTES)?);
        Ok(json!({ "syndrome": syndrome, "data": is_right }))
    }
}

impl Connection {
    /// The end of the request that was posted.
    fn end_of(&mut self, wait: Wait) -> Result<Wc<Buf>> {
        let start = Instant::now();
        loop {
            self.poll()?;
            if let Some(wc) = self.ended.take() {
                return Ok(wc);
            }
            if start.elapsed() > PATIENCE {
                bail!("the request did not end in {} s", PATIENCE.as_secs());
            }
            wait.idle();
        }
    }

    fn poll(&mut self) -> Result<()> {
        while let Some(completion) = self.cq.poll() {
            let (came, ended) = (&mut self.came, &mut self.ended);
            self.qp.complete(completion, |wc| match wc.opcode {
                // Flushed receives say nothing that the request in front of them does not.
                WcOpcode::Recv if wc.result.is_err_and(|failure| failure.is_flush()) => {}
                WcOpcode::Recv => came.push(wc),
                _ => *ended = Some(wc),
            })?;
        }
        Ok(())
    }
}
