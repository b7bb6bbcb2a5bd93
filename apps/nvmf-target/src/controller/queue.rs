//! [`Queue`]: a queue of a host, from its connection to its end.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::auth::{Auth, Proof};
use super::failures::Failures;
use super::reservation::HostId;
use crate::proto::cm::Request;
use crate::proto::log::Traffic;
use crate::proto::sqe::{Cqe, Sqe};
use crate::proto::status::Status;

/// Head of a submission queue without flow control.
const NO_HEAD: u16 = 0xffff;

/// What a queue is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// No Connect has come yet.
    Unconnected,
    /// The admin queue of the controller at a place.
    Admin(usize),
    /// An I/O queue of the controller at a place.
    Io(usize),
}

/// A queue of a host.
#[derive(Debug)]
pub struct Queue {
    /// The transport's name of it.
    pub id: u32,
    /// Its number in the connection manager's request.
    pub qid: u16,
    /// Our address and port, which the host called.
    pub local: SocketAddr,
    /// The address of its host.
    pub peer: IpAddr,
    /// What it is for.
    pub role: Role,
    /// What it has moved.
    pub traffic: Traffic,
    /// I/O commands of it that failed.
    pub(super) failures: Failures,
    /// A command came since the last look.
    pub(super) is_alive: bool,
    /// Place of the subsystem of an I/O queue.
    pub(super) subsystem: usize,
    /// The host of an I/O queue, for reservations.
    pub(super) hostid: HostId,
    /// Whether the controller of an I/O queue takes commands: it may be another core's.
    ready: Arc<AtomicBool>,
    entries: u16,
    head: u16,
    /// What is added to the head where it is told: all bits where there is no flow control.
    no_head: u16,
    /// Its host has disconnected it, or another has its number.
    has_left: bool,
    /// Of a host that has to authenticate itself.
    pub(super) auth: Option<Box<Auth>>,
}

impl Queue {
    /// A queue that was asked for.
    #[must_use]
    pub fn new(id: u32, request: &Request, local: SocketAddr, peer: IpAddr) -> Self {
        Self {
            id,
            qid: request.qid.get(),
            local,
            peer,
            role: Role::Unconnected,
            traffic: Traffic::default(),
            failures: Failures::new(),
            is_alive: false,
            subsystem: usize::MAX,
            hostid: HostId::default(),
            ready: Arc::default(),
            entries: request.entries(),
            head: 0,
            no_head: 0,
            has_left: false,
            auth: None,
        }
    }

    /// Entries of the submission queue: what the host may have in flight.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Notes that a command has come.
    #[inline]
    pub fn fetched(&mut self) {
        self.traffic.commands += 1;
        self.is_alive = true;
        self.head += 1;
        if self.head >= self.entries {
            self.head = 0;
        }
    }

    /// Its core has stood still for a time, and did not hear its host.
    pub fn was_unheard(&mut self, time: Duration, now: Duration) {
        if let Some(auth) = &mut self.auth {
            auth.was_unheard(time, now);
        }
    }

    /// The size that the Connect said, which the connection's covers.
    pub(super) fn connected(&mut self, role: Role, entries: u16, has_flow_control: bool) {
        self.role = role;
        self.entries = entries.clamp(1, self.entries);
        self.head = if self.entries > 1 { 1 } else { 0 };
        self.no_head = if has_flow_control { 0 } else { NO_HEAD };
    }

    /// The I/O queue is one of a controller of this subsystem, which says whether it is ready.
    pub(super) fn joined(&mut self, subsystem: usize, hostid: HostId, ready: Arc<AtomicBool>) {
        (self.subsystem, self.hostid, self.ready) = (subsystem, hostid, ready);
    }

    /// Its host disconnects it, or another has its number: it takes nothing more.
    pub(super) fn shut(&mut self) {
        (self.has_left, self.ready) = (true, Arc::default());
    }

    /// Whether it takes nothing more.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.has_left
    }

    /// Whether the controller of an I/O queue takes commands.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Whether the host has authenticated itself, if it has to.
    pub(super) fn is_authenticated(&self) -> bool {
        self.auth.as_ref().is_none_or(|auth| auth.is_authenticated())
    }

    /// Lets a host in that has authenticated itself; how it did.
    pub(super) fn admit(&mut self) -> Option<Proof> {
        let (proof, ready) = self.auth.as_mut()?.admitted()?;
        if let Some(ready) = ready {
            self.ready = ready;
        }
        Some(proof)
    }

    /// Why a queue takes no commands that is not ready.
    #[cold]
    pub(super) fn refusal(&self) -> Status {
        if self.is_authenticated() { Status::SEQUENCE.dnr() } else { Status::AUTH_REQUIRED.dnr() }
    }

    /// Notes an I/O command that failed; its controller hears of it by [`Target::account`].
    ///
    /// [`Target::account`]: super::Target::account
    pub fn note_failure(&mut self, sqe: &Sqe, status: Status) {
        // Who has not shown its key may have named somebody else's controller.
        if matches!(self.role, Role::Io(_)) && self.is_authenticated() {
            self.failures.note(self.qid, sqe, status);
        }
    }

    /// The completion of a command.
    #[inline]
    pub fn answer(&mut self, cid: u16, status: Status, result: u64) -> Cqe {
        if !status.is_success() {
            self.traffic.errors += 1;
        }
        Cqe {
            result: result.into(),
            sqhd: (self.head | self.no_head).into(),
            sqid: 0.into(),
            cid: cid.into(),
            status: status.on_wire().into(),
        }
    }
}
