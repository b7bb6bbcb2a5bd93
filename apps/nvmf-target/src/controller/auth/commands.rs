//! The two commands that carry messages of an authentication, and keys of hosts.

use std::sync::Arc;

use super::{Auth, Names, PAUSE, Random, Received};
use crate::auth::{HostKey, Power};
use crate::controller::admin::{destination, start};
use crate::controller::{Action, OfferError, Queue, Role, Target, subsystem};
use crate::proto::auth::{MAX_BYTES, PROTOCOL, SPECIFIC};
use crate::proto::connect::is_nqn;
use crate::proto::sgl::{Sgl, in_capsule};
use crate::proto::sqe::{Sqe, fabrics};
use crate::proto::status::Status;

/// Checks what both commands have in common; the length that the host says.
fn check(sqe: &Sqe) -> Result<usize, Status> {
    sqe.check_flags()?;
    let (cdw10, len) = (sqe.cdw10.get(), sqe.cdw11.get() as usize);
    let is_known = (cdw10 >> 24) as u8 == PROTOCOL && (cdw10 >> 8) as u16 == SPECIFIC;
    if is_known && (1..=MAX_BYTES).contains(&len) {
        Ok(len)
    } else {
        Err(Status::INVALID_FIELD.dnr())
    }
}

/// Whether a fabrics command is one of authentication.
pub(in crate::controller) fn is_command(sqe: &Sqe) -> bool {
    matches!(sqe.fctype(), fabrics::AUTH_SEND | fabrics::AUTH_RECEIVE)
}

impl Target {
    /// Carries a command of authentication out; `data` came behind it.
    pub(in crate::controller) fn authenticate(
        &mut self,
        queue: &mut Queue,
        slot: u16,
        sqe: &Sqe,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Action {
        let done = match sqe.fctype() {
            fabrics::AUTH_SEND => self.place_auth(queue, sqe, data),
            _ => self.auth_receive(queue, slot, sqe, out),
        };
        done.unwrap_or_else(|status| Action::Answer(queue.answer(sqe.cid.get(), status, 0)))
    }

    fn place_auth(&mut self, queue: &mut Queue, sqe: &Sqe, data: &[u8]) -> Result<Action, Status> {
        if queue.auth.is_none() && self.names(queue)?.1.is_none() {
            return Err(Status::INVALID_OPCODE.dnr());
        }
        let len = check(sqe)?;
        let sgl = Sgl::parse(&sqe.sgl)?;
        if sgl.len() as usize != len {
            return Err(Status::DATA_LENGTH.dnr());
        }
        match sgl {
            Sgl::Keyed(from) => Ok(Action::Fetch { from, len: from.len }),
            Sgl::InCapsule { offset, len } => {
                let range = in_capsule(offset, len, data.len())?;
                Ok(self.auth_sent(queue, sqe, &data[range]))
            }
        }
    }

    /// The message of an Auth Send is there.
    pub(in crate::controller) fn auth_sent(
        &mut self,
        queue: &mut Queue,
        sqe: &Sqe,
        data: &[u8],
    ) -> Action {
        let status = self.auth_send(queue, data).err().unwrap_or(Status::SUCCESS);
        Action::Answer(queue.answer(sqe.cid.get(), status, 0))
    }

    /// The names of a queue's host and subsystem, and the key that the host has now.
    fn names(&self, queue: &Queue) -> Result<(Names<'_>, Option<Arc<HostKey>>), Status> {
        let (Role::Admin(at) | Role::Io(at)) = queue.role else {
            return Err(Status::SEQUENCE.dnr());
        };
        let controller = self.controller(at).ok_or(Status::INTERNAL)?;
        let subsystem = controller.subsystem.and_then(|at| self.offer.subsystem(at));
        // The discovery service asks nobody.
        let subsystem = subsystem.ok_or(Status::INVALID_OPCODE.dnr())?;
        let names = Names { hostnqn: &controller.hostnqn, subnqn: &subsystem.nqn };
        Ok((names, subsystem.key(&controller.hostnqn)))
    }

    fn auth_send(&mut self, queue: &mut Queue, data: &[u8]) -> Result<(), Status> {
        let now = self.now;
        let (_, key) = self.names(queue)?;
        if queue.auth.is_none() {
            // One that was given a key since it connected.
            let key = key.clone().ok_or(Status::INVALID_OPCODE.dnr())?;
            let mut auth = Auth::new(key, now.saturating_sub(PAUSE), None);
            auth.is_authenticated = true;
            queue.auth = Some(auth);
        }
        let Some(auth) = &mut queue.auth else { return Err(Status::INTERNAL) };
        let power = auth.send(data, key, Random::new()?, now)?;
        self.powers.extend(power);
        self.admit(queue);
        Ok(())
    }

    fn auth_receive(
        &mut self,
        queue: &mut Queue,
        slot: u16,
        sqe: &Sqe,
        out: &mut Vec<u8>,
    ) -> Result<Action, Status> {
        let now = self.now;
        let (names, _) = self.names(queue)?;
        let auth = queue.auth.as_mut().ok_or(Status::INVALID_OPCODE.dnr())?;
        let len = check(sqe)?;
        let to = destination(sqe, len as u64, MAX_BYTES as u32)?;
        if auth.held.is_some_and(|held| held != slot) {
            return Err(Status::SEQUENCE.dnr());
        }
        let Received::Message(message) = auth.receive(names, now) else {
            auth.held = Some(slot);
            return Ok(Action::Hold);
        };
        auth.held = None;
        self.admit(queue);
        if message.len() > len {
            return Err(Status::INVALID_FIELD.dnr());
        }
        start(out, &message, len);
        let cqe = queue.answer(sqe.cid.get(), Status::SUCCESS, 0);
        Ok(Action::Bring { cqe, len: len as u32, to })
    }

    /// Lets a host in that has shown who it is.
    fn admit(&mut self, queue: &mut Queue) {
        let Some(proof) = queue.admit() else { return };
        match queue.role {
            Role::Admin(at) => {
                if let Some(controller) = self.controller_mut(at) {
                    (controller.proof, controller.is_strange) = (Some(proof), false);
                }
            }
            Role::Io(at) => {
                if !self.controller_mut(at).is_some_and(|controller| controller.admit(queue)) {
                    queue.shut();
                    self.doomed.push((queue.id, "another queue has its number"));
                }
            }
            Role::Unconnected => {}
        }
    }

    /// Gives a host a key, so that it has to authenticate itself when it connects, or takes it
    /// away. Who is there stays; it uses another key when it authenticates itself again.
    ///
    /// # Errors
    ///
    /// [`OfferError::Unknown`], [`OfferError::HostName`], [`OfferError::NoKey`],
    /// [`OfferError::Full`].
    pub fn set_key(
        &mut self,
        nqn: &str,
        host: &str,
        key: Option<HostKey>,
    ) -> Result<(), OfferError> {
        let at = self.place_of(nqn)?;
        if !is_nqn(host) {
            return Err(OfferError::HostName(host.into()));
        }
        let keys = &self.subsystem(nqn)?.keys;
        let (count, limit) = (keys.len(), subsystem::MAX_HOSTS);
        match (&key, keys.contains_key(host)) {
            (None, false) => return Err(OfferError::NoKey(host.into())),
            (Some(_), false) if count >= limit => {
                return Err(OfferError::Full { what: "keys", limit });
            }
            _ => {}
        }
        self.change(at, |subsystem| match key {
            Some(key) => subsystem.keys.insert(host.into(), Arc::new(key)),
            None => subsystem.keys.remove(host),
        });
        Ok(())
    }

    /// A power that is to be computed, by a thread that polls nothing.
    pub fn next_power(&mut self) -> Option<Arc<Power>> {
        self.powers.pop()
    }

    /// A command that was held and is to be carried out again: its slot, and its queue, of those
    /// that the caller knows by their names.
    pub fn next_again(&mut self, is_mine: impl Fn(u32) -> bool) -> Option<(u32, u16)> {
        let at = self.again.iter().position(|(queue, _)| is_mine(*queue))?;
        Some(self.again.swap_remove(at))
    }

    /// Looks after the authentication of a queue: held commands, and time.
    pub(in crate::controller) fn look_after_auth(&mut self, queue: &mut Queue, at: usize) {
        let Some(auth) = &mut queue.auth else { return };
        self.again.extend(auth.take_slot().map(|slot| (queue.id, slot)));
        let Some(why) = auth.take_end(self.now) else { return };
        match queue.role {
            // A stranger's queue ends alone: it may have named somebody else's controller.
            Role::Io(_) => self.doomed.push((queue.id, why)),
            _ => {
                if let Some(controller) = self.controller_mut(at) {
                    controller.fail();
                }
                self.doom(at, why);
            }
        }
    }
}
