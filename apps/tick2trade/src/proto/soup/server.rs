//! The end that is logged in to.

use zerocopy::FromBytes;

use super::{
    IntoBytes, LoginAccepted, LoginRequest, LoginRequest41, Packet, PacketType, ProtocolError,
    Reject, Session, Text, push,
};

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;

/// What a server offers, and when it calls a client dead.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The session that runs.
    pub session: Session,
    /// Own silence after which a heartbeat is sent, ms. Default 1,000.
    pub heartbeat_ms: u64,
    /// The client's silence after which it counts as dead, ms, if its login says nothing else.
    /// Default 15,000.
    pub timeout_ms: u64,
    /// Time for a login after the connection opened, ms. Default 30,000.
    pub login_ms: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self { session: Text::BLANK, heartbeat_ms: 1_000, timeout_ms: 15_000, login_ms: 30_000 }
    }
}

/// What a packet meant to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerEvent<'a> {
    /// A client wants to log in: [`Server::accept`] or [`Server::reject`] answers.
    Login(LoginRequest),
    /// A message of the client.
    Unsequenced(&'a [u8]),
    /// Nothing to do: a sign of life, or text for people.
    Alive,
    /// The client asked to close.
    LoggedOut,
    /// The client did what the protocol does not have: close.
    Broken(ProtocolError),
}

/// The server's end of one connection: packets and the time in, packets out. The counted messages
/// themselves are the caller's to keep.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    logged_in: bool,
    asked: bool,
    /// Number of the counted message that is sent next.
    next: u64,
    heard_ns: u64,
    sent_ns: u64,
}

impl Server {
    /// A server whose connection just opened.
    pub const fn new(config: ServerConfig, now_ns: u64) -> Self {
        Self { config, logged_in: false, asked: false, next: 0, heard_ns: now_ns, sent_ns: now_ns }
    }

    /// Takes a packet of the client.
    pub fn receive<'a>(&mut self, packet: Packet<'a>, now_ns: u64) -> ServerEvent<'a> {
        self.heard_ns = now_ns;
        match packet.kind {
            PacketType::LOGIN_REQUEST if !self.asked => self.login(packet),
            PacketType::LOGOUT => ServerEvent::LoggedOut,
            PacketType::DEBUG => ServerEvent::Alive,
            PacketType::CLIENT_HEARTBEAT if self.logged_in => ServerEvent::Alive,
            PacketType::UNSEQUENCED if self.logged_in => ServerEvent::Unsequenced(packet.payload),
            kind => ServerEvent::Broken(ProtocolError::Unexpected(kind)),
        }
    }

    fn login<'a>(&mut self, packet: Packet<'a>) -> ServerEvent<'a> {
        let malformed = ServerEvent::Broken(ProtocolError::Malformed(packet.kind));
        let login = match packet.payload.len() {
            LoginRequest::LEN => LoginRequest::read_from_bytes(packet.payload).ok(),
            LoginRequest41::LEN => {
                LoginRequest41::read_from_bytes(packet.payload).ok().map(|newer| {
                    if let Some(ms @ 1..) = newer.heartbeat_timeout_ms.to_number() {
                        self.config.timeout_ms = ms;
                    }
                    newer.login
                })
            }
            _ => None,
        };
        let Some(login) = login else { return malformed };
        // Blank is what some clients send for "the first".
        if login.next.to_number().is_none() && !login.next.is_blank() {
            return malformed;
        }
        self.asked = true;
        ServerEvent::Login(login)
    }

    /// Takes the login: counted messages follow from `next` on.
    pub fn accept(&mut self, next: u64, now_ns: u64, out: &mut Vec<u8>) {
        let session = self.config.session;
        // The specification pads both on the left.
        let session = match session.to_number() {
            Some(number) => Text::number(number).unwrap_or(session),
            None => session,
        };
        let answer = LoginAccepted { session, next: Text::number(next).unwrap_or_default() };
        push(out, PacketType::LOGIN_ACCEPTED, answer.as_bytes());
        (self.logged_in, self.next, self.sent_ns) = (true, next, now_ns);
    }

    /// Refuses the login: the connection is to be closed behind what is in `out`.
    pub fn reject(&mut self, why: Reject, out: &mut Vec<u8>) {
        push(out, PacketType::LOGIN_REJECTED, &[why.letter()]);
    }

    /// Adds the next counted message to `out`; returns its number, `None` before a login was
    /// accepted and for a message that is too long.
    pub fn send(&mut self, payload: &[u8], now_ns: u64, out: &mut Vec<u8>) -> Option<u64> {
        if !self.logged_in || payload.len() > super::MAX_PAYLOAD {
            return None;
        }
        push(out, PacketType::SEQUENCED, payload);
        let number = self.next;
        (self.next, self.sent_ns) = (number + 1, now_ns);
        Some(number)
    }

    /// Adds the end of the session to `out`: the connection is to be closed behind it.
    pub fn end_session(&mut self, out: &mut Vec<u8>) {
        push(out, PacketType::END_OF_SESSION, &[]);
    }

    /// Does what is due: a heartbeat into `out`. `false` if the client was silent for too long, or
    /// did not log in in time: close.
    #[must_use]
    pub fn poll(&mut self, now_ns: u64, out: &mut Vec<u8>) -> bool {
        let limit = if self.logged_in { self.config.timeout_ms } else { self.config.login_ms };
        if now_ns.saturating_sub(self.heard_ns) >= limit.saturating_mul(MS) {
            return false;
        }
        let silent = now_ns.saturating_sub(self.sent_ns) >= self.config.heartbeat_ms * MS;
        if silent && self.logged_in {
            push(out, PacketType::SERVER_HEARTBEAT, &[]);
            self.sent_ns = now_ns;
        }
        true
    }

    /// Number of the counted message that is sent next.
    pub const fn next(&self) -> u64 {
        self.next
    }
}
