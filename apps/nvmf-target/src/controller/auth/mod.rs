//! [`Auth`]: the authentication of a queue's host, and the two commands that carry its messages.
//!
//! | it waits for | the host | then it waits for |
//! |---|---|---|
//! | a negotiation | sends one | its challenge to be fetched |
//! | its challenge to be fetched | fetches it, when the public value is computed | a reply |
//! | a reply | sends one | its verdict to be fetched |
//! | its verdict to be fetched | fetches it, when the shared value is computed | the host's verdict |
//! | the host's verdict, if the host has asked for ours | sends it | a negotiation |
//! | anything | sends what is wrong or does not fit | a failure to be fetched |
//! | a failure to be fetched | fetches it | its end |
//!
//! A queue that is authenticated stays so while it negotiates again, and ends if that fails. Powers
//! are computed elsewhere, and an Auth Receive that needs one is held:
//! [`Target::next_power`](super::Target::next_power).

mod commands;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

pub(super) use commands::is_command;
use zeroize::Zeroizing;

use crate::auth::hash::MAX_HASH_BYTES;
use crate::auth::{Exchange, Exponent, Group, Hash, HostKey, Power};
use crate::proto::auth::{Explanation, Ids, Message};
use crate::proto::status::Status;

/// How long an authentication may take, from Connect or its negotiation on.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a host has to fetch why it failed.
const FAREWELL: Duration = Duration::from_secs(1);
/// Time between negotiations of a queue that is authenticated.
const PAUSE: Duration = Duration::from_secs(1);

/// Random bytes for an authentication.
#[derive(Debug, Clone)]
struct Random {
    challenge: [u8; MAX_HASH_BYTES],
    exponent: Exponent,
}

impl Random {
    fn new() -> Result<Self, Status> {
        let (mut challenge, mut exponent) = ([0; MAX_HASH_BYTES], Zeroizing::new([0; 64]));
        let filled = getrandom::fill(&mut challenge).and_then(|()| getrandom::fill(&mut *exponent));
        filled.map_err(|_| Status::INTERNAL)?;
        Ok(Self { challenge, exponent: Exponent::new(*exponent) })
    }
}

/// A sequence number: at random at first, then the next one, and never 0.
fn sequence() -> Result<u32, Status> {
    static LAST: AtomicU32 = AtomicU32::new(0);
    if LAST.load(Ordering::Relaxed) == 0 {
        let first = getrandom::u32().map_err(|_| Status::INTERNAL)?;
        let _ = LAST.compare_exchange(0, first | 1, Ordering::Relaxed, Ordering::Relaxed);
    }
    loop {
        match LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1) {
            0 => {}
            next => return Ok(next),
        }
    }
}

/// What was agreed on.
#[derive(Debug)]
struct Talk {
    hash: Hash,
    group: Group,
    transaction: u16,
    challenge: Vec<u8>,
    sequence: u32,
    exponent: Exponent,
    /// What is computed for it; none in the null group.
    power: Option<Arc<Power>>,
}

/// How a host has shown who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// The hash.
    pub hash: Hash,
    /// The group.
    pub group: Group,
    /// Whether the controller has done so, too.
    pub is_mutual: bool,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.hash.name(), self.group.name())?;
        if self.is_mutual { f.write_str(", both ways") } else { Ok(()) }
    }
}

/// What a host has replied.
#[derive(Debug)]
struct Reply {
    answer: Vec<u8>,
    challenge: Option<(Vec<u8>, u32)>,
}

/// What it waits for.
#[derive(Debug)]
enum Step {
    Negotiation,
    Challenge(Talk),
    Reply(Talk),
    Verdict(Talk, Reply),
    HostVerdict { transaction: u16 },
    Failure { transaction: u16, why: Explanation },
    End,
}

/// Whom a queue belongs to.
#[derive(Debug, Clone, Copy)]
struct Names<'a> {
    hostnqn: &'a str,
    subnqn: &'a str,
}

/// What an Auth Receive brings.
#[derive(Debug, PartialEq, Eq)]
enum Received {
    /// This.
    Message(Vec<u8>),
    /// Nothing yet: a power is missing.
    Later,
}

/// The authentication of a queue's host.
#[derive(Debug)]
pub(super) struct Auth {
    key: Arc<HostKey>,
    step: Step,
    is_authenticated: bool,
    /// When the host was told to authenticate itself, or began to.
    since: Duration,
    /// When it failed: for good.
    failed: Option<Duration>,
    /// What the last one that ended well agreed on.
    proof: Option<Proof>,
    /// The slot of an Auth Receive that is held.
    held: Option<u16>,
    /// Whether the controller of an I/O queue takes commands, for a queue that may.
    ready: Option<Arc<AtomicBool>>,
    is_doomed: bool,
}

impl Auth {
    /// Of a queue whose host has to authenticate itself.
    pub(super) fn new(
        key: Arc<HostKey>,
        now: Duration,
        ready: Option<Arc<AtomicBool>>,
    ) -> Box<Self> {
        Box::new(Self {
            key,
            step: Step::Negotiation,
            is_authenticated: false,
            since: now,
            failed: None,
            proof: None,
            held: None,
            ready,
            is_doomed: false,
        })
    }

    /// Whether the queue takes commands.
    pub(super) fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// What shows who the host is, and what an I/O queue waits for then.
    pub(super) fn admitted(&mut self) -> Option<(Proof, Option<Arc<AtomicBool>>)> {
        if self.is_authenticated { Some((self.proof?, self.ready.take())) } else { None }
    }

    fn fail(&mut self, transaction: u16, why: Explanation, now: Duration) {
        self.step = Step::Failure { transaction, why };
        self.failed.get_or_insert(now);
    }

    /// A message of the host has come. The power that somebody is to compute now.
    fn send(
        &mut self,
        bytes: &[u8],
        key: Option<Arc<HostKey>>,
        random: Random,
        now: Duration,
    ) -> Result<Option<Arc<Power>>, Status> {
        let (transaction, message) = match Message::parse(bytes) {
            Ok(read) => read,
            Err(why) => {
                let transaction =
                    bytes.get(4..6).map_or(0, |it| u16::from_le_bytes([it[0], it[1]]));
                self.fail(transaction, why, now);
                return Ok(None);
            }
        };
        if let Message::Negotiate { secure_channel, ids } = message {
            let is_first = matches!(self.step, Step::Negotiation) || self.is_authenticated;
            let may_begin = is_first && self.failed.is_none();
            if self.is_authenticated && now.saturating_sub(self.since) < PAUSE {
                // The host may try again.
                return Err(Status::INTERRUPTED);
            }
            if let Some(key) = key {
                self.key = key;
            }
            if self.is_authenticated {
                self.since = now;
            }
            let talk = match ids {
                _ if !may_begin => Err(Explanation::MESSAGE),
                _ if secure_channel != 0 => Err(Explanation::SECURE_CHANNEL),
                None => Err(Explanation::PROTOCOL),
                Some(ids) => self.agree(transaction, &ids, random),
            };
            return match talk {
                Ok(mut talk) => {
                    talk.sequence = sequence()?;
                    let power = talk.power.clone();
                    self.step = Step::Challenge(talk);
                    Ok(power)
                }
                Err(why) => {
                    self.fail(transaction, why, now);
                    Ok(None)
                }
            };
        }
        match self.take(transaction, message) {
            Ok(power) => Ok(power),
            Err(why) => {
                self.fail(transaction, why, now);
                Ok(None)
            }
        }
    }

    /// The best hash and group that both have.
    fn agree(&self, transaction: u16, ids: &Ids, random: Random) -> Result<Talk, Explanation> {
        let mut hashes = self.key.hashes.iter().filter(|hash| ids.hashes.contains(&hash.id()));
        let mut groups = self.key.groups.iter().filter(|group| ids.groups.contains(&group.id()));
        let hash = *hashes.next().ok_or(Explanation::HASH)?;
        let group = *groups.next().ok_or(Explanation::GROUP)?;
        let Random { challenge, exponent } = random;
        let power = (group != Group::Null).then(|| Power::public(group, &exponent));
        let challenge = challenge[..hash.bytes()].to_vec();
        Ok(Talk { hash, group, transaction, challenge, sequence: 0, exponent, power })
    }

    /// Takes what is no negotiation.
    fn take(
        &mut self,
        transaction: u16,
        message: Message<'_>,
    ) -> Result<Option<Arc<Power>>, Explanation> {
        match (std::mem::replace(&mut self.step, Step::End), message) {
            (Step::Reply(talk), Message::Reply { answer, challenge, public }) => {
                if transaction != talk.transaction {
                    return Err(Explanation::PAYLOAD);
                }
                self.reply(talk, answer, challenge, public)
            }
            (Step::HostVerdict { transaction: mine }, Message::Success2) => {
                if transaction != mine {
                    return Err(Explanation::PAYLOAD);
                }
                self.succeed();
                Ok(None)
            }
            (Step::Reply(Talk { transaction: mine, .. }), Message::Failure2(_))
            | (Step::HostVerdict { transaction: mine }, Message::Failure2(_))
                if transaction == mine =>
            {
                // The host knows, and wants nothing more.
                self.failed = Some(Duration::ZERO);
                Ok(None)
            }
            _ => Err(Explanation::MESSAGE),
        }
    }

    fn reply(
        &mut self,
        mut talk: Talk,
        answer: &[u8],
        challenge: Option<(&[u8], u32)>,
        public: &[u8],
    ) -> Result<Option<Arc<Power>>, Explanation> {
        let is_sized = answer.len() == talk.hash.bytes() && public.len() == talk.group.bytes();
        // The number 0 is for secure channels.
        let is_numbered = challenge.is_none_or(|(_, sequence)| sequence != 0);
        if !is_sized || !is_numbered {
            return Err(Explanation::PAYLOAD);
        }
        if talk.group != Group::Null {
            let power = Power::shared(talk.group, &talk.exponent, public);
            talk.power = Some(power.ok_or(Explanation::PAYLOAD)?);
        }
        let challenge = challenge.map(|(value, sequence)| (value.to_vec(), sequence));
        let reply = Reply { answer: answer.to_vec(), challenge };
        let power = talk.power.clone();
        self.step = Step::Verdict(talk, reply);
        Ok(power)
    }

    fn succeed(&mut self) {
        self.is_authenticated = true;
        self.step = Step::Negotiation;
    }

    /// The host asks for a message.
    fn receive(&mut self, names: Names<'_>, now: Duration) -> Received {
        if self.lacks_power() {
            return Received::Later;
        }
        match std::mem::replace(&mut self.step, Step::End) {
            Step::Challenge(talk) => {
                let message = Message::Challenge {
                    hash: talk.hash.id(),
                    group: talk.group.id(),
                    sequence: talk.sequence,
                    value: &talk.challenge,
                    public: talk.power.as_ref().and_then(|it| it.value()).unwrap_or_default(),
                };
                let bytes = message.encode(talk.transaction);
                self.step = Step::Reply(talk);
                Received::Message(bytes)
            }
            Step::Verdict(talk, reply) => match self.judge(&talk, &reply, names) {
                Ok(bytes) => Received::Message(bytes),
                Err(why) => self.tell_failure(talk.transaction, why, now),
            },
            Step::Failure { transaction, why } => self.tell_failure(transaction, why, now),
            step => {
                let transaction = match &step {
                    Step::Reply(talk) => talk.transaction,
                    Step::HostVerdict { transaction } => *transaction,
                    _ => 0,
                };
                self.tell_failure(transaction, Explanation::MESSAGE, now)
            }
        }
    }

    fn tell_failure(&mut self, transaction: u16, why: Explanation, now: Duration) -> Received {
        self.step = Step::End;
        self.failed.get_or_insert(now);
        Received::Message(Message::Failure1(why).encode(transaction))
    }

    /// Whether a reply is right, and what the host is told then.
    fn judge(
        &mut self,
        talk: &Talk,
        reply: &Reply,
        names: Names<'_>,
    ) -> Result<Vec<u8>, Explanation> {
        let key = self.key.clone();
        let exchange = Exchange {
            hash: talk.hash,
            transaction: talk.transaction,
            hostnqn: names.hostnqn,
            subnqn: names.subnqn,
            shared: talk.power.as_ref().and_then(|it| it.value()),
        };
        let challenge = (&*talk.challenge, talk.sequence);
        let is_mutual = reply.challenge.is_some();
        if !exchange.is_host(&key.secret, challenge, &reply.answer) {
            return Err(Explanation::FAILED);
        }
        self.proof = Some(Proof { hash: talk.hash, group: talk.group, is_mutual });
        let hash_bytes = talk.hash.bytes() as u8;
        let Some((value, sequence)) = &reply.challenge else {
            self.succeed();
            return Ok(Message::Success1 { hash_bytes, answer: None }.encode(talk.transaction));
        };
        let secret = key.controller.as_ref().ok_or(Explanation::FAILED)?;
        let answer = exchange.controller(secret, (value, *sequence));
        self.step = Step::HostVerdict { transaction: talk.transaction };
        let message = Message::Success1 { hash_bytes, answer: Some(&answer) };
        Ok(message.encode(talk.transaction))
    }

    /// Whether it cannot go on until a power is computed.
    fn lacks_power(&self) -> bool {
        let (Step::Challenge(talk) | Step::Verdict(talk, _)) = &self.step else { return false };
        talk.power.as_ref().is_some_and(|it| it.value().is_none())
    }

    /// The slot of a command that was held and can go on.
    fn take_slot(&mut self) -> Option<u16> {
        if self.lacks_power() { None } else { self.held.take() }
    }

    /// Gives the host the time once more in which nobody heard it.
    pub(super) fn was_unheard(&mut self, time: Duration, now: Duration) {
        self.since = now.min(self.since + time);
    }

    /// Why the queue is to end; said once.
    fn take_end(&mut self, now: Duration) -> Option<&'static str> {
        if self.lacks_power() {
            // This time is ours, and not the host's.
            self.since = now;
        }
        let is_over = |since: Duration, limit| now.saturating_sub(since) > limit;
        let why = match (self.failed, &self.step) {
            (Some(failed), _) if is_over(failed, FAREWELL) => "its host failed to authenticate",
            (Some(_), _) => return None,
            (None, Step::Negotiation) if self.is_authenticated => return None,
            _ if is_over(self.since, PATIENCE) => "its host took too long to authenticate",
            _ => return None,
        };
        (!std::mem::replace(&mut self.is_doomed, true)).then_some(why)
    }
}

#[cfg(test)]
mod tests;
