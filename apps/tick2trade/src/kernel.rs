//! The same engine on the kernel's sockets, to compare with: two multicast sockets, one for lost
//! messages, one TCP connection. It trades a day from its start: it takes up no earlier session.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use zerocopy::IntoBytes;

use crate::engine::Engine;
use crate::feed::{Request, Source};
use crate::latency::now_ns;
use crate::proto::ouch::{AccountQuery, answers::AccountQueryAnswered};
use crate::proto::soup::{Client, ClientConfig, ClientEvent, Splitter};
use crate::strategy::{Outbox, Strategy};
use crate::timed::{FirstOrder, Stages, Timed};
use crate::trader::TraderConfig;

/// Bytes of the longest datagram or read.
const BYTES: usize = 65_536;
/// How long a wait is, at most: the session's heartbeats are due.
const WAIT: Duration = Duration::from_millis(1);
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

/// How the core waits for the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// It asks each socket in turn, and never sleeps.
    Busy,
    /// It sleeps until the kernel says which socket has something.
    Epoll,
}

/// Orders leave by a socket.
#[derive(Debug)]
struct SocketLine {
    stream: TcpStream,
    is_open: bool,
    first: FirstOrder,
    /// The end of a packet of which the socket took the beginning alone: it goes before all others.
    rest: Vec<u8>,
}

impl SocketLine {
    /// Writes what a packet lacks, if one does; `false` if the socket does not take all of it now.
    fn flush(&mut self) -> io::Result<bool> {
        while !self.rest.is_empty() {
            let Some(len) = there(self.stream.write(&self.rest))? else { return Ok(false) };
            self.rest.drain(..len);
        }
        Ok(true)
    }

    /// Writes packets; `false` if the socket takes nothing now. What it takes a part of has left.
    fn write(&mut self, packets: &[u8]) -> io::Result<bool> {
        if !self.flush()? {
            return Ok(false);
        }
        let Some(len) = there(self.stream.write(packets))? else { return Ok(false) };
        self.rest.extend_from_slice(&packets[len..]);
        Ok(true)
    }
}

impl Outbox for SocketLine {
    fn send(&mut self, packet: &[u8]) -> bool {
        let asked_ns = now_ns();
        let is_sent = self.is_open && self.write(packet).unwrap_or(false);
        if is_sent {
            self.first.sent(asked_ns, now_ns(), None);
        }
        is_sent
    }

    fn told(&mut self, at_ns: u64) {
        self.first.told(at_ns);
    }
}

/// A trader on the kernel's sockets.
#[derive(Debug)]
pub struct KernelTrader<S> {
    engine: Engine<Timed<S>>,
    lines: [UdpSocket; 2],
    answers: UdpSocket,
    requests: SocketAddrV4,
    line: SocketLine,
    soup: Client,
    splitter: Splitter,
    epoll: Option<rustix::fd::OwnedFd>,
    buffer: Box<[u8]>,
    outbox: Vec<u8>,
    stages: Stages,
}

impl<S: Strategy> KernelTrader<S> {
    /// Joins both groups, connects, and logs in.
    ///
    /// # Errors
    /// The system's, with what was tried.
    pub fn new(config: &TraderConfig, strategy: S, waiting: Waiting) -> io::Result<Self> {
        let why = |what: String| {
            move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"))
        };
        let engine = Engine::new(config.engine.clone(), Timed::new(strategy, true));
        let engine = engine.map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
        let socket = |at: SocketAddrV4| -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind(at).map_err(why(format!("bind to {at}")))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let line = |at: SocketAddrV4| -> io::Result<UdpSocket> {
            let socket = socket(at)?;
            let joined = socket.join_multicast_v4(at.ip(), &config.address);
            joined.map_err(why(format!("join {} on {}", at.ip(), config.address)))?;
            Ok(socket)
        };
        let lines = [line(config.lines[0])?, line(config.lines[1])?];
        let answers = socket(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, config.answers_port))?;
        let stream = TcpStream::connect_timeout(&config.orders.into(), CONNECT);
        let stream = stream.map_err(why(format!("connect to {}", config.orders)))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut outbox = Vec::with_capacity(1024);
        let login = ClientConfig {
            user: config.user,
            password: config.password,
            ..ClientConfig::default()
        };
        let soup = Client::new(login, now_ns(), &mut outbox);
        let (first, rest) = (FirstOrder::default(), Vec::with_capacity(1024));
        let mut line = SocketLine { stream, is_open: false, first, rest };
        line.write(&outbox)?;
        let epoll = match waiting {
            Waiting::Busy => None,
            Waiting::Epoll => {
                let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                let data = epoll::EventData::new_u64(0);
                for socket in lines.iter().chain([&answers]) {
                    epoll::add(&set, socket, data, epoll::EventFlags::IN)?;
                }
                epoll::add(&set, &line.stream, data, epoll::EventFlags::IN)?;
                Some(set)
            }
        };
        Ok(Self {
            engine,
            lines,
            answers,
            requests: config.requests,
            line,
            soup,
            splitter: Splitter::new(1024),
            epoll,
            buffer: vec![0; BYTES].into(),
            outbox,
            stages: Stages::default(),
        })
    }

    /// Waits as it was told to, and takes what came or is due; returns whether anything was.
    ///
    /// # Errors
    /// The system's; a session that ended.
    pub fn poll(&mut self) -> io::Result<bool> {
        if let Some(set) = &self.epoll {
            let mut events: [std::mem::MaybeUninit<epoll::Event>; 4] =
                [const { std::mem::MaybeUninit::uninit() }; 4];
            let wait = Timespec { tv_sec: 0, tv_nsec: WAIT.as_nanos() as _ };
            match epoll::wait(set, &mut events[..], Some(&wait)) {
                // A signal's handler ran: there is no more to it than that.
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut is_busy = false;
        for source in [Source::A, Source::B, Source::Retransmission] {
            is_busy |= self.datagrams(source)?;
        }
        is_busy |= self.bytes()?;
        self.line.flush()?;
        let now = now_ns();
        if let Some(Request { packet, .. }) = self.engine.poll(now, &mut self.line) {
            is_busy = true;
            self.answers.send_to(packet.as_bytes(), self.requests)?;
        }
        self.outbox.clear();
        if let Some(ended) = self.soup.poll(now, &mut self.outbox) {
            return Err(io::Error::other(ended));
        }
        if !self.outbox.is_empty() {
            is_busy = true;
            self.line.write(&self.outbox)?;
        }
        Ok(is_busy)
    }

    /// Takes what a line has; returns whether it had anything.
    fn datagrams(&mut self, source: Source) -> io::Result<bool> {
        // As on the queues, nothing is looked at before the day's answers are known.
        if !self.line.is_open {
            return Ok(false);
        }
        let mut is_busy = false;
        let socket = match source {
            Source::Retransmission => &self.answers,
            line => &self.lines[line as usize],
        };
        while let Some(len) = there(socket.recv(&mut self.buffer))? {
            is_busy = true;
            let now = now_ns();
            self.line.first.begin();
            self.engine.feed(source, &self.buffer[..len], now, &mut self.line);
            if let Some(times) = self.line.first.take() {
                self.stages.record(now, times);
            }
        }
        Ok(is_busy)
    }

    /// Takes what the connection has; returns whether it had anything.
    fn bytes(&mut self) -> io::Result<bool> {
        let mut is_busy = false;
        while let Some(len) = there(self.line.stream.read(&mut self.buffer))? {
            is_busy = true;
            if len == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the exchange closed"));
            }
            let now = now_ns();
            let mut input = &self.buffer[..len];
            while let Some(packet) = self.splitter.next(&mut input).map_err(io::Error::other)? {
                match self.soup.receive(packet, now) {
                    ClientEvent::LoggedIn { .. } => {
                        self.outbox.clear();
                        let query = AccountQuery { kind: AccountQuery::KIND };
                        if self.soup.send(query.as_bytes(), now, &mut self.outbox) {
                            self.line.write(&self.outbox)?;
                        }
                    }
                    ClientEvent::Sequenced { payload, .. } => {
                        self.line.is_open |= payload.first() == Some(&AccountQueryAnswered::KIND);
                        self.engine.answer(payload, now, &mut self.line);
                    }
                    ClientEvent::Ended(ended) => return Err(io::Error::other(ended)),
                    ClientEvent::Unsequenced(_) | ClientEvent::Alive => {}
                }
            }
        }
        Ok(is_busy)
    }

    /// Whether orders pass.
    pub const fn is_open(&self) -> bool {
        self.line.is_open
    }

    /// Forgets the times so far.
    pub fn forget_times(&mut self) {
        self.stages.forget();
    }

    /// Where the time went.
    pub const fn stages(&self) -> &Stages {
        &self.stages
    }
}

/// What a socket that never blocks gave, if it had anything.
fn there(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(len) => Ok(Some(len)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// The peer reads nothing for a while, then everything: whole packets, each that was sent.
    #[test]
    fn a_packet_that_leaves_in_parts_is_one_packet() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let (first, rest) = (FirstOrder::default(), Vec::new());
        let mut line = SocketLine { stream, is_open: true, first, rest };
        let (mut sent, mut packet) = (0_u32, vec![0; 9_973]);
        // Until nothing goes, as one is on its way in part, unless the socket's room ended with a
        // packet.
        while {
            packet[..4].copy_from_slice(&sent.to_be_bytes());
            line.first.begin();
            line.first.told(1);
            line.send(&packet)
        } {
            sent += 1;
        }
        assert!(line.first.take().is_none(), "what was not sent has no times");
        let mut heard = Vec::new();
        let mut bytes = vec![0; BYTES];
        while heard.len() < sent as usize * packet.len() {
            let len = peer.read(&mut bytes).unwrap();
            heard.extend_from_slice(&bytes[..len]);
            line.flush().unwrap();
        }
        for (number, packet) in (0..sent).zip(heard.chunks(packet.len())) {
            assert_eq!(packet[..4], number.to_be_bytes());
        }
        assert!(line.rest.is_empty() && sent > 1);
    }
}
