//! [`Prover`]: the host's half of an authentication, and the commands that carry it.

use std::sync::Arc;

use ferrocx::verbs::{Mr, VerbsError};
use thiserror::Error;
use zeroize::Zeroizing;

use super::{Host, HostError, HostQueue, PATIENCE, keyed, refused};
use crate::auth::{Exchange, Exponent, Group, Hash, Power, Secret};
use crate::proto::auth::{Explanation, Ids, MAX_BYTES, Message, PROTOCOL, SPECIFIC};
use crate::proto::connect::AUTH_REQUIRED;
use crate::proto::sgl::Sgl;
use crate::proto::sqe::{Sqe, fabrics};

/// Why a host and a controller do not know each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The controller asks for a key, and the host has none.
    #[error("the target wants a key; give one in HostConfig::keys")]
    NoKey,
    /// The controller refused.
    #[error("the target refused the authentication: {}", .0.name())]
    Refused(Explanation),
    /// The controller has said what it should not.
    #[error("the target's authentication is wrong: {}", .0.name())]
    Wrong(Explanation),
    /// The controller was to show its key, and takes no authentication.
    #[error(
        "the target was to show its key, and takes no authentication; give it the host's key and \
         its own, or leave HostKeys::controller out"
    )]
    NoProof,
    /// The system has no random numbers.
    #[error("the system has no random numbers; see getrandom(2)")]
    Random,
}

/// Keys that a host uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostKeys {
    /// Its own.
    pub secret: Secret,
    /// The controller's, which it has to show then on every queue, whether it asks the host for a
    /// key or not.
    pub controller: Option<Secret>,
    /// Hashes that it names.
    pub hashes: Vec<Hash>,
    /// Groups that it names.
    pub groups: Vec<Group>,
}

impl HostKeys {
    /// A host's own key, with every hash, and every group but the null one.
    #[must_use]
    pub fn new(secret: Secret) -> Self {
        let (hashes, groups) = (Hash::ALL.to_vec(), Group::FFDHE.to_vec());
        Self { secret, controller: None, hashes, groups }
    }

    /// The same with the null group, too, for targets that have no other: whoever hears the
    /// messages can try keys at home.
    #[must_use]
    pub fn with_null_group(mut self) -> Self {
        self.groups.push(Group::Null);
        self
    }
}

/// What was agreed on, and what the controller is to answer.
#[derive(Debug)]
struct Agreed {
    hash: Hash,
    shared: Option<Arc<Power>>,
    challenge: Vec<u8>,
}

/// The host's half of an authentication, without a queue: messages in, messages out.
#[derive(Debug)]
pub struct Prover<'a> {
    keys: &'a HostKeys,
    hostnqn: &'a str,
    subnqn: &'a str,
    transaction: u16,
    agreed: Option<Agreed>,
}

/// Sequence number of the host's challenge: of the only one in its transaction.
const SEQUENCE: u32 = 1;

fn random<const N: usize>() -> Result<Zeroizing<[u8; N]>, AuthError> {
    let mut bytes = Zeroizing::new([0; N]);
    getrandom::fill(&mut *bytes).map_err(|_| AuthError::Random)?;
    Ok(bytes)
}

impl<'a> Prover<'a> {
    /// The half of a host of that name at that subsystem.
    #[must_use]
    pub fn new(
        keys: &'a HostKeys,
        (hostnqn, subnqn): (&'a str, &'a str),
        transaction: u16,
    ) -> Self {
        Self { keys, hostnqn, subnqn, transaction, agreed: None }
    }

    /// What it sends first.
    #[must_use]
    pub fn negotiate(&self) -> Vec<u8> {
        let ids = Ids {
            hashes: self.keys.hashes.iter().map(|hash| hash.id()).take(30).collect(),
            groups: self.keys.groups.iter().map(|group| group.id()).take(30).collect(),
        };
        Message::Negotiate { secure_channel: 0, ids: Some(ids) }.encode(self.transaction)
    }

    /// What it replies to a challenge. It computes powers, which takes its time.
    ///
    /// # Errors
    ///
    /// [`AuthError`].
    pub fn reply(&mut self, message: &[u8]) -> Result<Vec<u8>, AuthError> {
        let Message::Challenge { hash, group, sequence, value, public } = self.read(message)?
        else {
            return Err(AuthError::Wrong(Explanation::MESSAGE));
        };
        let hash = Hash::of(hash).filter(|hash| self.keys.hashes.contains(hash));
        let hash = hash.ok_or(AuthError::Wrong(Explanation::HASH))?;
        let group = Group::of(group).filter(|group| self.keys.groups.contains(group));
        let group = group.ok_or(AuthError::Wrong(Explanation::GROUP))?;
        let wrong = AuthError::Wrong(Explanation::PAYLOAD);
        if value.len() != hash.bytes() || public.len() != group.bytes() {
            return Err(wrong);
        }
        let (mut mine, mut shared) = (None, None);
        if group != Group::Null {
            let exponent = Exponent::new(*random()?);
            let power = Power::public(group, &exponent);
            power.compute();
            mine = Some(power);
            let power = Power::shared(group, &exponent, public).ok_or(wrong)?;
            power.compute();
            shared = Some(power);
        }
        let challenge = random::<64>()?[..hash.bytes()].to_vec();
        let agreed = Agreed { hash, shared, challenge };
        let answer = self.exchange(&agreed).host(&self.keys.secret, (value, sequence));
        let asked = self.keys.controller.is_some().then_some((&*agreed.challenge, SEQUENCE));
        let public = mine.as_ref().and_then(|it| it.value()).unwrap_or_default();
        let reply = Message::Reply { answer: &answer, challenge: asked, public };
        let bytes = reply.encode(self.transaction);
        self.agreed = Some(agreed);
        Ok(bytes)
    }

    /// Whether the controller has let it in, and what it says to that, if anything.
    ///
    /// # Errors
    ///
    /// [`AuthError`].
    pub fn conclude(&self, message: &[u8]) -> Result<Option<Vec<u8>>, AuthError> {
        let Message::Success1 { answer, .. } = self.read(message)? else {
            return Err(AuthError::Wrong(Explanation::MESSAGE));
        };
        let Some(secret) = &self.keys.controller else { return Ok(None) };
        let wrong = AuthError::Wrong(Explanation::FAILED);
        let (answer, agreed) = (answer.ok_or(wrong)?, self.agreed.as_ref().ok_or(wrong)?);
        let challenge = (&*agreed.challenge, SEQUENCE);
        if !self.exchange(agreed).is_controller(secret, challenge, answer) {
            return Err(wrong);
        }
        Ok(Some(Message::Success2.encode(self.transaction)))
    }

    /// What it sends when the controller is wrong.
    #[must_use]
    pub fn give_up(&self, why: Explanation) -> Vec<u8> {
        Message::Failure2(why).encode(self.transaction)
    }

    fn exchange<'b>(&'b self, agreed: &'b Agreed) -> Exchange<'b> {
        Exchange {
            hash: agreed.hash,
            transaction: self.transaction,
            hostnqn: self.hostnqn,
            subnqn: self.subnqn,
            shared: agreed.shared.as_ref().and_then(|it| it.value()),
        }
    }

    fn read<'b>(&self, message: &'b [u8]) -> Result<Message<'b>, AuthError> {
        match Message::parse(message).map_err(AuthError::Wrong)? {
            (_, Message::Failure1(why)) => Err(AuthError::Refused(why)),
            (transaction, _) if transaction != self.transaction => {
                Err(AuthError::Wrong(Explanation::PAYLOAD))
            }
            (_, message) => Ok(message),
        }
    }
}

/// A command of authentication for so many bytes.
#[must_use]
pub fn auth_command(kind: u8, len: usize, sgl: Sgl) -> Sqe {
    Sqe {
        cdw10: (u32::from(PROTOCOL) << 24 | u32::from(SPECIFIC) << 8).into(),
        cdw11: (len as u32).into(),
        ..Sqe::fabrics(kind, 0, sgl)
    }
}

impl HostQueue {
    /// Sends a message of an authentication in a capsule.
    ///
    /// # Errors
    ///
    /// [`HostError::Refused`], or the queue has ended.
    pub fn auth_send(&mut self, message: &[u8]) -> Result<(), HostError> {
        let sgl = Sgl::InCapsule { offset: 0, len: message.len() as u32 };
        self.submit_with(auth_command(fabrics::AUTH_SEND, message.len(), sgl), message)?;
        refused("Auth Send", &self.wait(PATIENCE)?)
    }

    /// Fetches a message of an authentication by way of a page that the target can write to.
    ///
    /// # Errors
    ///
    /// [`HostError::Refused`], or the queue has ended.
    pub fn auth_receive(&mut self, page: &Mr) -> Result<Vec<u8>, HostError> {
        let buf = page.buf(0..MAX_BYTES)?;
        self.submit(auth_command(fabrics::AUTH_RECEIVE, MAX_BYTES, keyed(&buf)))?;
        refused("Auth Receive", &self.wait(PATIENCE)?)?;
        let mut message = vec![0; MAX_BYTES];
        buf.copy_out(0, &mut message).map_err(VerbsError::from)?;
        Ok(message)
    }

    /// Authenticates the host on a queue without commands under way.
    ///
    /// # Errors
    ///
    /// [`HostError::Auth`], and those of its commands.
    pub fn authenticate(&mut self, mut prover: Prover<'_>, page: &Mr) -> Result<(), HostError> {
        self.auth_send(&prover.negotiate())?;
        let reply = prover.reply(&self.auth_receive(page)?)?;
        self.auth_send(&reply)?;
        match prover.conclude(&self.auth_receive(page)?) {
            Ok(Some(message)) => self.auth_send(&message),
            Ok(None) => Ok(()),
            Err(error) => {
                if let AuthError::Wrong(why) = error {
                    // The controller may end the queue rather than answer: this is the reason.
                    let _ = self.auth_send(&prover.give_up(why));
                }
                Err(error.into())
            }
        }
    }
}

/// What follows the Connect of a queue with this result: an authentication, if the target asks for
/// one or has to show its own key.
pub(super) fn after_connect(
    result: u32,
    keys: Option<&HostKeys>,
    authenticate: impl FnOnce() -> Result<(), HostError>,
) -> Result<(), HostError> {
    let is_asked = result & AUTH_REQUIRED != 0;
    if !is_asked && keys.is_none_or(|it| it.controller.is_none()) {
        return Ok(());
    }
    match authenticate() {
        Err(HostError::Refused { .. }) if !is_asked => Err(AuthError::NoProof.into()),
        done => done,
    }
}

impl Host {
    /// Authenticates the host on its admin queue, after Connect or once more.
    ///
    /// # Errors
    ///
    /// [`AuthError::NoKey`] without keys, and those of [`HostQueue::authenticate`].
    pub fn authenticate(&mut self) -> Result<(), HostError> {
        let Self { admin, config, page, .. } = self;
        let keys = config.keys.as_ref().ok_or(AuthError::NoKey)?;
        admin.authenticate(Prover::new(keys, (&config.hostnqn, &config.subnqn), 1), page)
    }

    /// Authenticates the host on one of its I/O queues, after Connect or once more.
    ///
    /// # Errors
    ///
    /// Those of [`Host::authenticate`].
    pub fn authenticate_queue(&self, queue: &mut HostQueue) -> Result<(), HostError> {
        let Self { config, page, .. } = self;
        let keys = config.keys.as_ref().ok_or(AuthError::NoKey)?;
        queue.authenticate(Prover::new(keys, (&config.hostnqn, &config.subnqn), 2), page)
    }
}
