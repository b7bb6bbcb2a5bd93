//! The end that logs in.

use thiserror::Error;
use zerocopy::FromBytes;

use super::{
    IntoBytes, LoginAccepted, LoginRequest, LoginRequest41, Packet, PacketType, Reject, Session,
    Text, TooLong, push,
};

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;

/// How a client logs in, and when it calls the server dead.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Who logs in.
    pub user: Text<6>,
    /// Its password.
    pub password: Text<10>,
    /// Session wanted; blank for the current one.
    pub session: Session,
    /// First message wanted; 0 for what is new only.
    pub next: u64,
    /// Say version 4.1's field, and this many milliseconds in it; servers of older versions break
    /// at it. Default: none.
    pub announce_timeout_ms: Option<u32>,
    /// Own silence after which a heartbeat is sent, ms. Default 1,000, as the specification has it.
    pub heartbeat_ms: u64,
    /// The server's silence after which it counts as dead, ms. Default 15,000.
    pub timeout_ms: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            user: Text::BLANK,
            password: Text::BLANK,
            session: Text::BLANK,
            next: 1,
            announce_timeout_ms: None,
            heartbeat_ms: 1_000,
            timeout_ms: 15_000,
        }
    }
}

/// Where a client stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientState {
    /// The login was sent.
    LoggingIn,
    /// Messages come and go.
    LoggedIn,
    /// It is over, and why.
    Ended(Ended),
}

/// Why a client's session is over: the connection is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Ended {
    /// The server refused the login.
    #[error("the server refused the login: {0:?}")]
    Rejected(Reject),
    /// The server says that no more will come, today.
    #[error("the session is over")]
    EndOfSession,
    /// Nothing came for so long that the server counts as dead.
    #[error("the server was silent for too long")]
    Silent,
    /// The server did what the protocol does not have.
    #[error("the server broke the protocol: {0}")]
    Protocol(#[from] ProtocolError),
}

/// What a peer did against the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A packet that does not belong where it came.
    #[error("a packet '{}' now", .0.0.escape_ascii())]
    Unexpected(PacketType),
    /// A packet of the wrong length, or with a number that is none.
    #[error("a packet '{}' that cannot be read", .0.0.escape_ascii())]
    Malformed(PacketType),
    /// The server starts elsewhere than at the message that was asked for: behind it, and those
    /// between are lost; or before it, and knows less than it has told.
    #[error("message {asked} was asked for, and the server starts at {got}")]
    WrongStart {
        /// First message wanted.
        asked: u64,
        /// First message that comes.
        got: u64,
    },
    /// The server has another session than the one that was asked for.
    #[error("session {asked} was asked for, and the server has {got}")]
    WrongSession {
        /// Session wanted.
        asked: Session,
        /// Session of the server.
        got: Session,
    },
    /// A length that no packet has: what follows cannot be read.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// What a packet meant to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientEvent<'a> {
    /// The login was taken: the session, and the number of the first message that comes.
    LoggedIn {
        /// Name of the session.
        session: Session,
        /// Number of the next counted message.
        next: u64,
    },
    /// A counted message.
    Sequenced {
        /// Its number.
        number: u64,
        /// What it carries.
        payload: &'a [u8],
    },
    /// A message that is not counted.
    Unsequenced(&'a [u8]),
    /// Nothing to do: a sign of life, or text for people.
    Alive,
    /// It is over; close the connection.
    Ended(Ended),
}

/// The client's end of a session: packets and the time in, packets out.
///
/// Times are nanoseconds of any clock that does not go back.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    state: ClientState,
    session: Session,
    next: u64,
    heard_ns: u64,
    sent_ns: u64,
}

impl Client {
    /// A client whose connection just opened; its login is added to `out`.
    pub fn new(config: ClientConfig, now_ns: u64, out: &mut Vec<u8>) -> Self {
        let login = LoginRequest {
            user: config.user,
            password: config.password,
            session: config.session,
            next: Text::number(config.next).unwrap_or_default(),
        };
        match config.announce_timeout_ms {
            Some(ms) => {
                let heartbeat_timeout_ms = Text::number(u64::from(ms.min(99_999)));
                let heartbeat_timeout_ms = heartbeat_timeout_ms.unwrap_or_default();
                let login = LoginRequest41 { login, heartbeat_timeout_ms };
                push(out, PacketType::LOGIN_REQUEST, login.as_bytes());
            }
            None => push(out, PacketType::LOGIN_REQUEST, login.as_bytes()),
        }
        Self {
            state: ClientState::LoggingIn,
            session: config.session,
            next: config.next,
            heard_ns: now_ns,
            sent_ns: now_ns,
            config,
        }
    }

    /// Takes a packet of the server.
    pub fn receive<'a>(&mut self, packet: Packet<'a>, now_ns: u64) -> ClientEvent<'a> {
        if let ClientState::Ended(ended) = self.state {
            return ClientEvent::Ended(ended);
        }
        self.heard_ns = now_ns;
        let logged_in = self.state == ClientState::LoggedIn;
        match packet.kind {
            PacketType::DEBUG | PacketType::SERVER_HEARTBEAT => ClientEvent::Alive,
            PacketType::LOGIN_ACCEPTED if !logged_in => self.accepted(packet),
            PacketType::LOGIN_REJECTED if !logged_in => match *packet.payload {
                [letter] => self.end(Ended::Rejected(Reject::from_letter(letter))),
                _ => self.end(ProtocolError::Malformed(packet.kind).into()),
            },
            PacketType::SEQUENCED if logged_in => {
                let number = self.next;
                self.next = number.saturating_add(1);
                ClientEvent::Sequenced { number, payload: packet.payload }
            }
            PacketType::UNSEQUENCED if logged_in => ClientEvent::Unsequenced(packet.payload),
            PacketType::END_OF_SESSION => self.end(Ended::EndOfSession),
            kind => self.end(ProtocolError::Unexpected(kind).into()),
        }
    }

    fn accepted<'a>(&mut self, packet: Packet<'a>) -> ClientEvent<'a> {
        let answer = LoginAccepted::read_from_bytes(packet.payload).ok();
        let Some((answer, next)) = answer.and_then(|a| Some((a, a.next.to_number()?))) else {
            return self.end(ProtocolError::Malformed(packet.kind).into());
        };
        let (asked, wanted, got) = (self.config.next, self.config.session, answer.session);
        if !wanted.is_blank() && wanted.trimmed() != got.trimmed() {
            return self.end(ProtocolError::WrongSession { asked: wanted, got }.into());
        }
        if asked != 0 && next != asked {
            return self.end(ProtocolError::WrongStart { asked, got: next }.into());
        }
        (self.session, self.next, self.state) = (answer.session, next, ClientState::LoggedIn);
        ClientEvent::LoggedIn { session: answer.session, next }
    }

    fn end<'a>(&mut self, ended: Ended) -> ClientEvent<'a> {
        self.state = ClientState::Ended(ended);
        ClientEvent::Ended(ended)
    }

    /// Does what is due: a heartbeat into `out`, or the end of a server that is silent.
    pub fn poll(&mut self, now_ns: u64, out: &mut Vec<u8>) -> Option<Ended> {
        if let ClientState::Ended(ended) = self.state {
            return Some(ended);
        }
        if now_ns.saturating_sub(self.heard_ns) >= self.config.timeout_ms * MS {
            self.state = ClientState::Ended(Ended::Silent);
            return Some(Ended::Silent);
        }
        let silent = now_ns.saturating_sub(self.sent_ns) >= self.config.heartbeat_ms * MS;
        if silent && self.state == ClientState::LoggedIn {
            push(out, PacketType::CLIENT_HEARTBEAT, &[]);
            self.sent_ns = now_ns;
        }
        None
    }

    /// When [`Client::poll`] has something to do, if nothing happens before.
    pub const fn poll_at(&self) -> u64 {
        let silent = self.heard_ns.saturating_add(self.config.timeout_ms * MS);
        let heartbeat = self.sent_ns.saturating_add(self.config.heartbeat_ms * MS);
        if matches!(self.state, ClientState::LoggedIn) && heartbeat < silent {
            heartbeat
        } else {
            silent
        }
    }

    /// Adds a message to `out`; `false` if the client is not logged in or the message too long.
    #[must_use]
    pub fn send(&mut self, payload: &[u8], now_ns: u64, out: &mut Vec<u8>) -> bool {
        let fits = payload.len() <= super::MAX_PAYLOAD;
        if self.state != ClientState::LoggedIn || !fits {
            return false;
        }
        push(out, PacketType::UNSEQUENCED, payload);
        self.sent_ns = now_ns;
        true
    }

    /// Notes that something was sent beside this: a prebuilt order, whose header says
    /// [`PacketType::UNSEQUENCED`]. It counts as a sign of life.
    pub const fn sent(&mut self, now_ns: u64) {
        self.sent_ns = now_ns;
    }

    /// Asks the server to close.
    pub fn log_out(&mut self, now_ns: u64, out: &mut Vec<u8>) {
        push(out, PacketType::LOGOUT, &[]);
        self.sent_ns = now_ns;
    }

    /// Where it stands.
    pub const fn state(&self) -> ClientState {
        self.state
    }

    /// What to log in with next time, so that nothing is missed: session and next message.
    pub const fn resume(&self) -> (Session, u64) {
        (self.session, self.next)
    }
}
