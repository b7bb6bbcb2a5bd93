//! A member's session: answers are counted, kept for the day, and sent again to who logs in anew.

use super::kept::Kept;
use crate::proto::Text;
use crate::proto::ouch::Request;
use crate::proto::soup::{
    Packet, Reject, Server, ServerConfig, ServerEvent, Session, Splitter, TooLong,
};

/// The longest packet that a member may send: no request is near it.
const MAX_PACKET: usize = 1024;

/// One member's account, and its connection if it has one.
#[derive(Debug)]
pub struct Account {
    user: Text<6>,
    password: Text<10>,
    session: Session,
    answers: Kept,
    /// Logins that are refused before another is taken.
    refusals: u32,
    connection: Option<Connection>,
}

#[derive(Debug)]
struct Connection {
    server: Server,
    splitter: Splitter,
    /// Index of the answer that goes next; `None` before the login.
    next: Option<usize>,
}

impl Account {
    /// An account without answers, with room for so many: until then no growth of a table delays
    /// one.
    pub fn new(user: Text<6>, password: Text<10>, session: Session, answers: usize) -> Self {
        let answers = Kept::with_room(answers);
        Self { user, password, session, answers, refusals: 0, connection: None }
    }

    /// A connection opened; one that was open before is forgotten.
    pub fn connected(&mut self, now_ns: u64) {
        let config = ServerConfig { session: self.session, ..ServerConfig::default() };
        self.connection = Some(Connection {
            server: Server::new(config, now_ns),
            splitter: Splitter::new(MAX_PACKET),
            next: None,
        });
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        self.connection = None;
    }

    /// Refuses so many logins, as if the last session were not over yet.
    pub const fn refuse_logins(&mut self, count: u32) {
        self.refusals = count;
    }

    /// Keeps an answer; it goes out with the next [`Account::poll`].
    pub fn push(&mut self, answer: &[u8]) {
        self.answers.push(answer);
    }

    /// Forgets the last answers.
    pub fn forget(&mut self, count: usize) {
        self.answers.truncate(self.answers.len().saturating_sub(count));
        let end = self.answers.len();
        if let Some(Connection { next: Some(next), .. }) = &mut self.connection {
            *next = end.min(*next);
        }
    }

    /// Takes bytes of the connection; requests go to `request`. `false` if the connection is to be
    /// closed, behind what is in `out`.
    #[must_use]
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        now_ns: u64,
        out: &mut Vec<u8>,
        mut request: impl FnMut(&Request<'_>),
    ) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        let Connection { server, splitter, next } = connection;
        loop {
            let packet: Packet<'_> = match splitter.next(&mut bytes) {
                Ok(Some(packet)) => packet,
                Ok(None) => return true,
                Err(TooLong { .. }) => return false,
            };
            match server.receive(packet, now_ns) {
                ServerEvent::Login(login) => {
                    if let Some(left) = self.refusals.checked_sub(1) {
                        self.refusals = left;
                        server.reject(Reject::NotAuthorised, out);
                        return false;
                    }
                    if !same(&login.user.0, &self.user.0)
                        || !same(&login.password.0, &self.password.0)
                    {
                        server.reject(Reject::NotAuthorised, out);
                        return false;
                    }
                    if !login.session.is_blank()
                        && login.session.trimmed() != self.session.trimmed()
                    {
                        server.reject(Reject::SessionNotAvailable, out);
                        return false;
                    }
                    let end = self.answers.len();
                    let wanted = login.next.to_number().unwrap_or(1);
                    let first = match wanted {
                        0 => end,
                        wanted => usize::try_from(wanted - 1).unwrap_or(end).min(end),
                    };
                    server.accept(first as u64 + 1, now_ns, out);
                    *next = Some(first);
                }
                ServerEvent::Unsequenced(message) => {
                    if let Ok((message, _)) = Request::parse(message) {
                        request(&message);
                    }
                }
                ServerEvent::Alive => {}
                ServerEvent::LoggedOut | ServerEvent::Broken(_) => return false,
            }
        }
    }

    /// Adds what is due to `out`: answers that were not sent on this connection, heartbeats.
    /// `false` if the connection is to be closed.
    #[must_use]
    pub fn poll(&mut self, now_ns: u64, out: &mut Vec<u8>) -> bool {
        let Some(Connection { server, next, .. }) = &mut self.connection else { return true };
        if let Some(next) = next {
            for answer in self.answers.from(*next) {
                server.send(answer, now_ns, out);
            }
            *next = self.answers.len();
        }
        server.poll(now_ns, out)
    }

    /// Adds the end of the session to `out`, if somebody is connected.
    pub fn end_session(&mut self, out: &mut Vec<u8>) {
        if let Some(connection) = &mut self.connection {
            connection.server.end_session(out);
        }
    }

    /// Whether who is connected, and logged in, was sent every answer.
    pub fn has_sent_all(&self) -> bool {
        let next = self.connection.as_ref().and_then(|connection| connection.next);
        next == Some(self.answers.len())
    }

    /// Every answer of the day.
    pub fn answers(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.answers.from(0)
    }

    /// How many there are.
    pub const fn answered(&self) -> usize {
        self.answers.len()
    }
}

/// Names and passwords are compared without regard to case.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.eq_ignore_ascii_case(b)
}
