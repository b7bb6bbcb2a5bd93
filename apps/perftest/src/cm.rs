//! `--cm`: two ends of ours meet through the RDMA connection manager, by address and port, and so
//! does every queue pair that is measured; MAC addresses are asked for. Stock perftest's `-R`.
//!
//! The first connection is a stream of bytes over SEND and RECV, [`CmStream`], for the lines of
//! [`crate::exchange`]. Those of a round are made on the same port, one after the other, each with
//! its number as private data.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use ferrocx_app_common::wait::Wait;
use ferrocx_verbs_lite::cm::{
    Background, CmConfig, CmListener, ConnParams, ConnRequest, Connected, Connection,
    ConnectionManager, NotConnected,
};
use ferrocx_verbs_lite::{
    Access, Buf, Cq, Gid, InitAttr, Mr, Path, Qp, QpConfig, SendOp, SendWr, WcOpcode,
};

use crate::end::End;

/// How often the thread of the connection manager looks.
const INTERVAL: Duration = Duration::from_millis(1);
/// How long to wait for a queue pair of a round.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a message of the stream, and receives posted for them.
const MESSAGE_BYTES: usize = 4096;
const RECEIVES: usize = 16;
/// Bytes that may come before they are read; lines are shorter.
const MAX_INBOX: usize = 16 << 20;
/// An end that hears nothing for so long asks by an empty message whether there is another.
const SILENCE: Duration = Duration::from_secs(5);
/// How long the other end is told that this one goes.
const FAREWELL: Duration = Duration::from_secs(1);

/// The connection manager of an end, and the thread that serves it.
#[derive(Debug)]
pub struct Cm {
    _thread: Background,
    manager: ConnectionManager,
    wait: Wait,
}

/// The other end, as the connection manager knows it.
#[derive(Debug)]
pub struct CmPeer {
    manager: ConnectionManager,
    address: SocketAddr,
    /// Of the end that waits.
    listener: Option<CmListener>,
    wait: Wait,
    /// Queue pairs that are connected to it.
    joined: u32,
}

impl Cm {
    /// Takes the connection manager's part of a port.
    ///
    /// # Errors
    ///
    /// What the system or the device refused.
    pub fn open(end: &End, wait: Wait) -> Result<Self> {
        let manager = ConnectionManager::open(&end.device, &CmConfig::default())?;
        Ok(Self { _thread: manager.background(INTERVAL)?, manager, wait })
    }

    /// Lets the other end call from now on.
    ///
    /// # Errors
    ///
    /// Never on a port above 0: this process has no other listener.
    pub fn listen(&self, port: u16) -> Result<CmListener> {
        Ok(self.manager.listen(port)?)
    }

    /// Waits for the other end: up to `limit`, or however long that takes.
    ///
    /// # Errors
    ///
    /// Nobody called, or a connection that was not made.
    pub fn accept(
        &self,
        end: &End,
        mut listener: CmListener,
        limit: Option<Duration>,
    ) -> Result<(CmStream, CmPeer)> {
        let half = UnconnectedStream::new(end)?;
        let start = Instant::now();
        let request = loop {
            if let Some(request) = listener.poll() {
                break request;
            }
            if limit.is_some_and(|limit| start.elapsed() > limit) {
                bail!("nobody called");
            }
            self.wait.idle();
        };
        let connecting = made(request.accept(half.qp, &ConnParams::default()))?;
        let connected = made(connecting.wait())?;
        Ok(self.meet(half.cq, half.mr, connected, Some(listener)))
    }

    /// Calls the end that waits at `host`, an address of its port or a name of one.
    ///
    /// # Errors
    ///
    /// No such name, no way there, or what the other end says.
    pub fn call(&self, end: &End, host: &str, port: u16) -> Result<(CmStream, CmPeer)> {
        let place = || format!("cannot connect to {host}, port {port}; does the other end wait?");
        let found: Vec<SocketAddr> = (host, port).to_socket_addrs().with_context(place)?.collect();
        let is_near = |to: &&SocketAddr| end.device.route(Gid::from(to.ip())).is_ok();
        let to = *found.iter().find(is_near).ok_or_else(|| {
            anyhow!("no address of this port reaches {host}; give one of its subnet with --ip")
        })?;
        let half = UnconnectedStream::new(end)?;
        let connecting = made(self.manager.connect(half.qp, to, &ConnParams::default()));
        let connected = connecting.and_then(|it| made(it.wait())).with_context(place)?;
        Ok(self.meet(half.cq, half.mr, connected, None))
    }

    fn meet(
        &self,
        cq: Cq,
        mr: Mr,
        connected: Connected,
        listener: Option<CmListener>,
    ) -> (CmStream, CmPeer) {
        let Connected { qp, connection, .. } = connected;
        let (manager, wait) = (self.manager.clone(), self.wait);
        let address = connection.peer();
        let stream =
            CmStream { qp, cq, mr, connection, wait, inbox: VecDeque::new(), is_sending: false };
        (stream, CmPeer { manager, address, listener, wait, joined: 0 })
    }
}

impl CmPeer {
    /// The way to it, with its MAC address asked for.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub fn path(&self) -> Result<Path> {
        Ok(self.manager.resolve_and_wait(self.address.ip())?)
    }

    /// Connects a queue pair in INIT to the one that the other end connects at the same time.
    ///
    /// # Errors
    ///
    /// The other end does not come, or what it says.
    pub fn join(&mut self, qp: Qp<Buf>, ack_timeout: u8) -> Result<(Qp<Buf>, Connection)> {
        let number = self.joined.to_be_bytes();
        let params = ConnParams { ack_timeout, private_data: &number, ..ConnParams::default() };
        let connecting = match self.request()? {
            Some(request) => request.accept(qp, &params),
            None => self.manager.connect(qp, self.address, &params),
        };
        let connected = made(made(connecting)?.wait())?;
        self.joined += 1;
        Ok((connected.qp, connected.connection))
    }

    /// The request for the next queue pair, at the end that waits for it.
    fn request(&mut self) -> Result<Option<ConnRequest>> {
        let Some(listener) = &mut self.listener else { return Ok(None) };
        let (number, start) = (self.joined.to_be_bytes(), Instant::now());
        loop {
            // Anybody else is sent away: a request that is dropped is refused.
            if let Some(request) = listener.poll()
                && request.peer().ip() == self.address.ip()
                && request.private_data().starts_with(&number)
            {
                return Ok(Some(request));
            }
            if start.elapsed() > PATIENCE {
                bail!("queue pair {} was not called in {} s", self.joined, PATIENCE.as_secs());
            }
            self.wait.idle();
        }
    }
}

/// Why there is no connection, without the queue pair.
fn made<T>(result: Result<T, NotConnected>) -> Result<T> {
    Ok(result.map_err(|refused| *refused.cause)?)
}

/// A queue pair of a stream before it is connected.
struct UnconnectedStream {
    qp: Qp,
    cq: Cq,
    mr: Mr,
}

impl UnconnectedStream {
    fn new(end: &End) -> Result<Self> {
        // Places to receive into, and one to send from.
        let (_, mr) = end.memory((RECEIVES + 1) * MESSAGE_BYTES, Access::empty())?;
        let cq = end.device.create_cq(256)?;
        let max_recv_wr = RECEIVES as u32;
        let config = QpConfig { max_send_wr: 4, max_recv_wr, ..QpConfig::default() };
        let mut qp = end.pd.create_qp(&cq, &config)?;
        qp.init(&InitAttr::default())?;
        for at in 0..RECEIVES {
            qp.post_recv(at as u64, mr.buf(at * MESSAGE_BYTES..(at + 1) * MESSAGE_BYTES)?)?;
        }
        Ok(Self { qp, cq, mr })
    }
}

/// A stream of bytes over a connection.
#[derive(Debug)]
pub struct CmStream {
    qp: Qp<Buf>,
    cq: Cq,
    mr: Mr,
    connection: Connection,
    wait: Wait,
    /// Bytes that came and were not read.
    inbox: VecDeque<u8>,
    /// A message has not ended.
    is_sending: bool,
}

impl CmStream {
    /// Takes what has ended; whether there was anything.
    fn poll(&mut self) -> Result<bool> {
        let Some(completion) = self.cq.poll() else { return Ok(false) };
        let mut ended = None;
        self.qp.complete(completion, |wc| ended = Some(wc))?;
        let wc = ended.context("a completion of nothing")?;
        wc.result.context("the other end is gone")?;
        if wc.opcode != WcOpcode::Recv {
            self.is_sending = false;
            return Ok(true);
        }
        let (place, len) = (wc.wr_id, wc.byte_len as usize);
        let buf = wc.into_buffers().context("a receive brought no buffer")?;
        let mut bytes = [0; MESSAGE_BYTES];
        buf.copy_out(0, &mut bytes[..len])?;
        self.qp.post_recv(place, buf)?;
        if self.inbox.len() + len > MAX_INBOX {
            bail!("the other end talks and does not listen");
        }
        self.inbox.extend(&bytes[..len]);
        Ok(true)
    }

    /// Sends a message of up to [`MESSAGE_BYTES`]; none must be under way.
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let start = RECEIVES * MESSAGE_BYTES;
        let mut buf = None;
        if !bytes.is_empty() {
            let mut piece = self.mr.buf(start..start + bytes.len())?;
            piece.copy_in(0, bytes)?;
            buf = Some(piece);
        }
        self.qp.post_send(&SendWr::signaled(RECEIVES as u64, SendOp::Send), buf)?;
        self.is_sending = true;
        Ok(())
    }

    /// Bytes to read; `false` when the other end has hung up.
    fn fill(&mut self) -> Result<bool> {
        let mut since = Instant::now();
        while self.inbox.is_empty() {
            // What was sent before the end has come when the end is known.
            let is_over = self.connection.poll().is_some();
            match self.poll() {
                Ok(true) => continue,
                Ok(false) if !is_over => {}
                Err(error) if !is_over => return Err(error),
                _ => return Ok(false),
            }
            if !self.is_sending && since.elapsed() > SILENCE {
                self.send(&[])?;
                since = Instant::now();
            }
            self.wait.idle();
        }
        Ok(true)
    }

    fn send_and_wait(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(end) = self.connection.poll() {
            bail!("the other end has hung up: {end}");
        }
        self.wait_for_sent()?;
        self.send(bytes)?;
        self.wait_for_sent()
    }

    /// Until nothing is under way. What comes meanwhile is kept: the other end may be sending too.
    fn wait_for_sent(&mut self) -> Result<()> {
        // An end that hangs up may have got it, and only its acknowledgement was lost. If it has
        // not, it does not answer either.
        while self.is_sending && self.connection.poll().is_none() {
            if !self.poll()? {
                self.wait.idle();
            }
        }
        Ok(())
    }
}

fn broken(error: anyhow::Error) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, format!("{error:#}"))
}

impl Read for CmStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() || !self.fill().map_err(broken)? {
            return Ok(0);
        }
        self.inbox.read(out)
    }
}

impl Write for CmStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(MESSAGE_BYTES);
        if len > 0 {
            self.send_and_wait(&bytes[..len]).map_err(broken)?;
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for CmStream {
    fn drop(&mut self) {
        // The other end should not have to find out by itself; it may be gone.
        if self.connection.disconnect(&[]).is_ok() {
            self.connection.wait_for_end(FAREWELL);
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Args;
    use crate::config::Config;
    use crate::end::Models;

    /// More than the receives of a stream hold.
    const LONG: usize = 20 * RECEIVES * MESSAGE_BYTES + 1;

    fn speak(stream: &mut CmStream, own: u8, other: u8) {
        stream.write_all(&vec![own; LONG]).unwrap();
        let mut heard = vec![0; LONG];
        stream.read_exact(&mut heard).unwrap();
        assert!(heard.iter().all(|byte| *byte == other));
    }

    #[test]
    fn both_ends_say_much_before_they_listen_and_hear_the_other_hang_up() {
        let args = Args::parse_from(["perftest", "send", "bw", "--cm", "--ip", "10.0.0.1/24"]);
        let net = Config::new(&args).unwrap().net;
        let (models, [here, there]) = Models::start(&net, Wait::Yield).unwrap();
        let host = there.gid.ip().to_string();
        let answering = Cm::open(&there, Wait::Yield).unwrap();
        let listener = answering.listen(net.port).unwrap();
        std::thread::scope(|scope| {
            let there = &there;
            scope.spawn(move || {
                let (mut stream, peer) = answering.accept(there, listener, None).unwrap();
                speak(&mut stream, 2, 1);
                assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
                assert_eq!(peer.path().unwrap().dmac.0, [2, 0xfe, 0x0c, 0, 0, 1]);
                let broken = stream.write(b"nobody").unwrap_err().to_string();
                assert!(broken.starts_with("the other end has hung up"), "{broken}");
            });
            let calling = Cm::open(&here, Wait::Yield).unwrap();
            let far = calling.call(&here, "192.0.2.1", net.port).unwrap_err().to_string();
            assert!(far.starts_with("no address of this port reaches 192.0.2.1"), "{far}");
            let deaf = format!("{:#}", calling.call(&here, &host, 7).unwrap_err());
            assert!(deaf.contains("nobody listens on that port"), "{deaf}");
            let (mut stream, _) = calling.call(&here, &host, net.port).unwrap();
            speak(&mut stream, 1, 2);
            drop(stream);
        });
        here.close().unwrap();
        there.close().unwrap();
        models.stop().unwrap();
    }
}
