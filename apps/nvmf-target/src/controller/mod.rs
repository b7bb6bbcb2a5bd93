//! The target without a wire: subsystems, controllers and queues, and what each command does.
//!
//! [`Target`] takes commands and the bytes that came with them, and says what the transport is to
//! do ([`Action`]); it sends nothing itself, and asks for no time. So a test hands it any bytes.
//!
//! | module | is |
//! |---|---|
//! | [`subsystem`] | what is offered |
//! | [`ana`] | which port is which way to it |
//! | [`queue`] | a queue of a host |
//! | `auth` | how hosts authenticate themselves |
//! | `connect` | who may connect to what |
//! | `leaving` | what a controller leaves behind that has ended |
//! | `state` | a controller: registers, features, events, errors |
//! | `account` | what queues have done since their cores looked last |
//! | `failures` | I/O commands that failed, until their controller hears of them |
//! | [`abort`] | commands that are taken back |
//! | `admin` | commands of the admin queue |
//! | [`reservation`] | reservations, and their commands |
//! | `logs` | log pages |
//! | `discovery` | the log of the discovery service |
//! | `settings` | sizes |
//! | `share` | what one address may have, and newcomers |
//! | `silence` | what time it is, and whose host has said nothing for too long |
//! | [`shutdown`] | what is flushed before a controller is shut down |
//! | [`io`] | commands of I/O queues |

pub mod abort;
mod account;
mod admin;
pub mod ana;
mod auth;
mod connect;
mod discovery;
mod failures;
pub mod io;
mod leaving;
mod logs;
pub mod queue;
pub mod reservation;
mod settings;
pub(crate) mod share;
pub mod shutdown;
mod silence;
mod state;
pub mod subsystem;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use abort::Aborting;
pub use ana::AnaState;
use ana::{Ana, AnaPort};
pub use auth::Proof;
use io::IoCommand;
use leaving::Leaving;
pub use queue::{Queue, Role};
use reservation::{Fence, Pending, Save};
pub(crate) use settings::ADMIN_PAGE_BYTES;
pub use settings::Settings;
use share::Shares;
use shutdown::{Closing, Unflushed};
use state::Controller;
pub use state::ControllerInfo;
pub use subsystem::{Namespace, Offer, Subsystem};
use thiserror::Error;

use crate::auth::Power;
use crate::proto::connect::{DISCOVERY_NQN, is_nqn};
use crate::proto::identify::events;
use crate::proto::sgl::Keyed;
use crate::proto::sqe::{Cqe, Sqe};
use crate::proto::status::Status;

/// Why a subsystem or a namespace is not taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OfferError {
    /// Not the name of a subsystem.
    #[error("`{0}` is no name of a subsystem; give one like nqn.2014-08.org.example:disk")]
    Name(String),
    /// A name that is used.
    #[error("there is a subsystem `{0}` already; give another name")]
    Taken(String),
    /// A number that is used, or out of range.
    #[error("namespace {nsid} of {nqn} {why}")]
    Nsid {
        /// The number.
        nsid: u32,
        /// The subsystem.
        nqn: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A name of no subsystem.
    #[error("there is no subsystem `{0}`; `subsystem.list` names those that there are")]
    Unknown(String),
    /// Too many of something.
    #[error("there are {limit} {what} already, the most that can be; remove one first")]
    Full {
        /// What there is too much of.
        what: &'static str,
        /// How many there can be.
        limit: usize,
    },
    /// The name of no host.
    #[error("host `{0}` is no name; give one like nqn.2014-08.org.nvmexpress:uuid:...")]
    HostName(String),
    /// A port that nothing is said of to hosts.
    #[error(
        "port {0} is none that hosts are told of; `[ana]` in the file and `port.add` with a \
         state name those that are"
    )]
    Port(u16),
    /// A state of a port where ports do not differ.
    #[error(
        "port {0} has no state: `[ana]` is not in the file; put it there, or leave `state` out"
    )]
    Alone(u16),
    /// The only port that hosts are told of.
    #[error("port {0} is the only one that discovery names to hosts; leave it there")]
    LastPort(u16),
    /// A number of no group.
    #[error("group is {0}; give 1 to {max}", max = ana::MAX_GROUPS)]
    Group(u32),
    /// A host that has no key.
    #[error("host `{0}` has no key; `subsystem.list` shows those that have one")]
    NoKey(String),
    /// A host that is not listed.
    #[error("host `{0}` is not on the list; `subsystem.list` shows it")]
    NotListed(String),
}

/// What the transport is to do with a command.
#[derive(Debug)]
pub enum Action {
    /// Answer.
    Answer(Cqe),
    /// Write the first `len` bytes of the page to the host, then answer.
    Bring {
        /// The answer.
        cqe: Cqe,
        /// Bytes of the page.
        len: u32,
        /// Where they go.
        to: Keyed,
    },
    /// Read `len` bytes from the host, then call [`Target::fetched`].
    Fetch {
        /// Where they are.
        from: Keyed,
        /// Bytes.
        len: u32,
    },
    /// Nothing: the answer comes with an event.
    Hold,
    /// End what had begun on the queue, answer, and end the queue.
    Leave,
}

/// An answer to a command that was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The transport's name of the queue.
    pub queue: u32,
    /// The transport's name of the command.
    pub slot: u16,
    /// The host's name of the command.
    pub cid: u16,
    /// How it ended.
    pub status: Status,
    /// What it brings.
    pub result: u64,
}

/// Subsystems and the controllers that hosts have of them.
#[derive(Debug)]
pub struct Target {
    settings: Settings,
    offer: Arc<Offer>,
    /// The version of the offer, for cores that have a copy of it.
    version: Arc<AtomicU64>,
    controllers: Vec<Option<Controller>>,
    /// Places of controllers that have ended before their I/O queues have.
    leaving: Vec<Leaving>,
    next_cntlid: u16,
    shares: Shares,
    /// Changes of what discovery tells.
    generation: u64,
    /// Answers that are due.
    outbox: Vec<Held>,
    /// Powers that are to be computed.
    powers: Vec<Arc<Power>>,
    /// Queues and slots of commands that were held and are to be carried out again.
    again: Vec<(u32, u16)>,
    /// Queues that are to end, and why.
    doomed: Vec<(u32, &'static str)>,
    /// Answers that wait for what preempted hosts had begun, and the cores that it may be on.
    fences: Vec<Fence>,
    /// Reservations may outlive the target; changes of those that wait to be on disk, what is to be
    /// brought there, and how many there were.
    keeps_reservations: bool,
    pending: Vec<Pending>,
    to_save: Vec<Save>,
    saves: u64,
    /// Controllers that shut down, and those of them that wait for a flush.
    closing: Vec<Closing>,
    to_flush: VecDeque<Unflushed>,
    /// Shutdowns so far.
    shutdowns: u64,
    /// Commands that are to be taken back.
    aborts: Vec<Aborting>,
    cores: usize,
    /// When each core looked at the clock last, and the end of the last time in which one did not.
    looks: Vec<Duration>,
    unheard_until: Duration,
    now: Duration,
}

impl Target {
    /// A target that offers nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            next_cntlid: settings.first_cntlid.clamp(1, Self::LAST_CNTLID),
            shares: Shares::new(&settings),
            settings,
            offer: Arc::new(Offer {
                version: 0,
                max_transfer: settings.max_transfer(),
                ana: Ana::default(),
                subsystems: Vec::new(),
            }),
            version: Arc::default(),
            controllers: Vec::new(),
            leaving: Vec::new(),
            generation: 1,
            outbox: Vec::new(),
            powers: Vec::new(),
            again: Vec::new(),
            doomed: Vec::new(),
            fences: Vec::new(),
            keeps_reservations: false,
            pending: Vec::new(),
            to_save: Vec::new(),
            saves: 0,
            closing: Vec::new(),
            to_flush: VecDeque::new(),
            shutdowns: 0,
            aborts: Vec::new(),
            cores: 0,
            looks: Vec::new(),
            unheard_until: Duration::ZERO,
            now: Duration::ZERO,
        }
    }

    /// The highest number of a controller. Source: reference 10.1.9.
    const LAST_CNTLID: u16 = 0xffef;

    /// Sizes that hosts are told.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What is offered.
    pub fn subsystems(&self) -> impl Iterator<Item = &Subsystem> {
        self.offer.subsystems.iter().flatten().map(|it| &**it)
    }

    /// What is offered, to be kept by a core until [`Target::version`] says that it is old.
    #[must_use]
    pub fn offer(&self) -> Arc<Offer> {
        self.offer.clone()
    }

    /// The version of what is offered now.
    #[must_use]
    pub fn version(&self) -> Arc<AtomicU64> {
        self.version.clone()
    }

    /// Changes the subsystem at a place, if there is one. All others stay as they are.
    fn change<T>(&mut self, at: usize, change: impl FnOnce(&mut Subsystem) -> T) -> Option<T> {
        self.change_offer(|offer| offer.subsystem_mut(at).map(change))
    }

    /// Changes what is offered. Cores see it from their next round on.
    fn change_offer<T>(&mut self, change: impl FnOnce(&mut Offer) -> T) -> T {
        let offer = Arc::make_mut(&mut self.offer);
        let done = change(offer);
        offer.version += 1;
        self.version.store(offer.version, Ordering::Release);
        done
    }

    /// Lets every core look, from its next round on, at what it knows of what is offered.
    pub fn tell_cores(&mut self) {
        self.change_offer(|_| ());
    }

    /// Checks a command of an I/O queue by what is offered now: see [`Offer::io`].
    ///
    /// # Errors
    ///
    /// The status to answer with.
    pub fn io(&self, queue: &Queue, sqe: &Sqe, received: usize) -> Result<IoCommand, Status> {
        self.offer.io(queue, sqe, received)
    }

    /// Offers a subsystem. Hosts that stay connected to the discovery service are told.
    ///
    /// # Errors
    ///
    /// [`OfferError::Name`], [`OfferError::Taken`].
    pub fn add_subsystem(&mut self, subsystem: Subsystem) -> Result<(), OfferError> {
        if !is_nqn(&subsystem.nqn) || subsystem.nqn == DISCOVERY_NQN {
            return Err(OfferError::Name(subsystem.nqn));
        }
        if self.position(&subsystem.nqn).is_some() {
            return Err(OfferError::Taken(subsystem.nqn));
        }
        let limit = subsystem::MAX_SUBSYSTEMS;
        if self.subsystems().count() >= limit {
            return Err(OfferError::Full { what: "subsystems", limit });
        }
        // A place that a controller names is still its own.
        let is_named = |at| {
            self.is_left_by_someone(at)
                || self.controllers.iter().flatten().any(|it| it.subsystem == Some(at))
        };
        let places = self.offer.subsystems.iter().enumerate();
        let mut free = places.filter(|(at, slot)| slot.is_none() && !is_named(*at));
        let free = free.next().map(|(at, _)| at);
        let subsystem = Some(Arc::new(subsystem));
        self.change_offer(|Offer { subsystems, .. }| match free {
            Some(at) => subsystems[at] = subsystem,
            None => subsystems.push(subsystem),
        });
        self.discovery_changed();
        Ok(())
    }

    /// Takes a subsystem away, and ends the controllers that hosts have of it; its namespaces.
    ///
    /// # Errors
    ///
    /// [`OfferError::Unknown`].
    pub fn remove_subsystem(&mut self, nqn: &str) -> Result<Vec<Namespace>, OfferError> {
        let at = self.place_of(nqn)?;
        let removed = self.change_offer(|offer| offer.subsystems[at].take());
        self.doom_where(|it| it.subsystem == Some(at), "its subsystem was removed");
        self.discovery_changed();
        Ok(removed.map_or(Vec::new(), |removed| removed.namespaces().copied().collect()))
    }

    /// Says which hosts may connect to a subsystem, `None` for any, and ends the controllers of
    /// others.
    ///
    /// # Errors
    ///
    /// [`OfferError::Unknown`], [`OfferError::HostName`], [`OfferError::Full`].
    pub fn set_hosts(&mut self, nqn: &str, hosts: Option<Vec<String>>) -> Result<(), OfferError> {
        let at = self.place_of(nqn)?;
        if let Some(wrong) = hosts.iter().flatten().find(|host| !is_nqn(host)) {
            return Err(OfferError::HostName(wrong.clone()));
        }
        let limit = subsystem::MAX_HOSTS;
        if hosts.as_ref().is_some_and(|hosts| hosts.len() > limit) {
            return Err(OfferError::Full { what: "hosts on the list", limit });
        }
        let allowed = hosts.clone();
        self.change(at, |subsystem| subsystem.hosts = hosts);
        let is_out = |host: &String| allowed.as_ref().is_some_and(|all| !all.contains(host));
        self.doom_where(
            |it| it.subsystem == Some(at) && is_out(&it.hostnqn),
            "its host is not on the list any more",
        );
        self.discovery_changed();
        Ok(())
    }

    /// Ends a controller; whether it was there.
    pub fn end_controller(&mut self, cntlid: u16, why: &'static str) -> bool {
        self.doom_where(|it| it.cntlid == cntlid, why)
    }

    /// Ends controllers; whether there were any.
    fn doom_where(&mut self, is_it: impl Fn(&Controller) -> bool, why: &'static str) -> bool {
        let is_doomed = |at: &usize| self.controller(*at).is_some_and(&is_it);
        let doomed: Vec<usize> = (0..self.controllers.len()).filter(is_doomed).collect();
        for at in &doomed {
            if let Some(controller) = self.controller_mut(*at) {
                controller.fail();
            }
            self.doom(*at, why);
        }
        !doomed.is_empty()
    }

    fn position(&self, nqn: &str) -> Option<usize> {
        let is_it = |slot: &Option<Arc<Subsystem>>| slot.as_ref().is_some_and(|it| it.nqn == nqn);
        self.offer.subsystems.iter().position(is_it)
    }

    fn place_of(&self, nqn: &str) -> Result<usize, OfferError> {
        self.position(nqn).ok_or_else(|| OfferError::Unknown(nqn.into()))
    }

    /// A subsystem by its name.
    ///
    /// # Errors
    ///
    /// [`OfferError::Unknown`].
    pub fn subsystem(&self, nqn: &str) -> Result<&Subsystem, OfferError> {
        let at = self.place_of(nqn)?;
        self.offer.subsystem(at).ok_or_else(|| OfferError::Unknown(nqn.into()))
    }

    /// Offers a namespace, or changes one of the same number. Hosts are told.
    ///
    /// # Errors
    ///
    /// [`OfferError::Unknown`], [`OfferError::Nsid`].
    pub fn put_namespace(&mut self, nqn: &str, namespace: Namespace) -> Result<(), OfferError> {
        let nsid = namespace.nsid;
        if !(1..=subsystem::MAX_NSID).contains(&nsid) {
            let why = "is out of range; give a number from 1 to 1024";
            return Err(OfferError::Nsid { nsid, nqn: nqn.into(), why });
        }
        let at = self.place_of(nqn)?;
        self.change(at, |subsystem| subsystem.put(namespace));
        self.namespace_changed(at, nsid);
        Ok(())
    }

    /// Takes a namespace away: commands that come from now on find none. Hosts are told.
    ///
    /// # Errors
    ///
    /// [`OfferError::Unknown`], [`OfferError::Nsid`].
    pub fn remove_namespace(&mut self, nqn: &str, nsid: u32) -> Result<Namespace, OfferError> {
        let at = self.place_of(nqn)?;
        let taken = self.change(at, |subsystem| subsystem.take(nsid)).flatten();
        let Some(namespace) = taken else {
            return Err(OfferError::Nsid { nsid, nqn: nqn.into(), why: "does not exist" });
        };
        self.namespace_changed(at, nsid);
        Ok(namespace)
    }

    fn namespace_changed(&mut self, subsystem: usize, nsid: u32) {
        for controller in self.controllers.iter_mut().flatten() {
            if controller.subsystem == Some(subsystem) {
                controller.note_namespace(nsid);
                controller.note(events::NAMESPACE_ATTRIBUTES, &mut self.outbox);
            }
        }
    }

    /// Tells hosts of ports that differ, and of what each is for every group of namespaces. Hosts
    /// see it when they connect, so it is said before the first comes.
    pub fn report_ana(&mut self, ports: &[(u16, AnaState)]) {
        self.change_offer(|offer| offer.ana = Ana::new(ports));
    }

    /// Ports that differ.
    #[must_use]
    pub fn ana_ports(&self) -> &[AnaPort] {
        self.offer.ana.ports()
    }

    /// Says what a port is for a group of namespaces, or for all. Its hosts are told.
    ///
    /// # Errors
    ///
    /// [`OfferError::Port`], [`OfferError::Group`].
    pub fn set_ana(
        &mut self,
        service: u16,
        group: Option<u32>,
        state: AnaState,
    ) -> Result<(), OfferError> {
        if let Some(wrong) = group.filter(|group| !(1..=ana::MAX_GROUPS).contains(group)) {
            return Err(OfferError::Group(wrong));
        }
        if !self.ana_ports().iter().any(|port| port.service == service) {
            return Err(OfferError::Port(service));
        }
        self.change_offer(|offer| offer.ana.set(service, group, state));
        self.tell_ana(service);
        Ok(())
    }

    /// Tells the hosts of a port that it changed.
    fn tell_ana(&mut self, service: u16) {
        for controller in self.controllers.iter_mut().flatten() {
            if controller.subsystem.is_some() && controller.service == service {
                controller.note(events::ANA, &mut self.outbox);
            }
        }
    }

    fn discovery_changed(&mut self) {
        self.generation += 1;
        for controller in self.controllers.iter_mut().flatten() {
            if controller.subsystem.is_none() {
                controller.note(events::DISCOVERY, &mut self.outbox);
            }
        }
    }

    fn controller(&self, at: usize) -> Option<&Controller> {
        self.controllers.get(at)?.as_ref()
    }

    fn controller_mut(&mut self, at: usize) -> Option<&mut Controller> {
        self.controllers.get_mut(at)?.as_mut()
    }

    /// The controller of a queue, for people.
    #[must_use]
    pub fn info(&self, queue: &Queue) -> Option<ControllerInfo<'_>> {
        let (Role::Admin(at) | Role::Io(at)) = queue.role else { return None };
        let controller = self.controller(at)?;
        Some(self.info_of(controller))
    }

    /// Whether the host of a queue was let in to a subsystem, by its key if it has one: discovery
    /// lets everybody in.
    #[must_use]
    pub fn is_known(&self, queue: &Queue) -> bool {
        let is_in = match queue.role {
            Role::Admin(at) => self.controller(at).is_some_and(|it| it.subsystem.is_some()),
            Role::Io(_) => true,
            // Only an I/O queue is disconnected by a command.
            Role::Unconnected => queue.has_left(),
        };
        is_in && queue.is_authenticated()
    }

    fn info_of<'a>(&'a self, controller: &'a Controller) -> ControllerInfo<'a> {
        let subsystem = controller.subsystem.and_then(|at| self.offer.subsystem(at));
        ControllerInfo {
            cntlid: controller.cntlid,
            hostnqn: &controller.hostnqn,
            subnqn: subsystem.map_or(crate::proto::connect::DISCOVERY_NQN, |s| &s.nqn),
            keep_alive: controller.keep_alive,
            io_queues: controller.io_queues.len(),
            proof: controller.proof,
        }
    }

    /// Controllers that hosts have, for people.
    pub fn infos(&self) -> impl Iterator<Item = ControllerInfo<'_>> {
        self.controllers.iter().flatten().map(|it| self.info_of(it))
    }

    /// Controllers that hosts have.
    #[must_use]
    pub fn controllers(&self) -> usize {
        self.controllers.iter().flatten().count()
    }

    /// An answer to a held command that is due, of a queue that the caller knows by its name.
    pub fn next_held(&mut self, is_mine: impl Fn(u32) -> bool) -> Option<Held> {
        let at = self.outbox.iter().position(|held| is_mine(held.queue))?;
        Some(self.outbox.remove(at))
    }

    /// A queue that is to end, and why, of those that the caller knows by their names.
    pub fn next_doomed(&mut self, is_mine: impl Fn(u32) -> bool) -> Option<(u32, &'static str)> {
        let at = self.doomed.iter().position(|(queue, _)| is_mine(*queue))?;
        Some(self.doomed.swap_remove(at))
    }

    /// Dooms every queue of a controller.
    fn doom(&mut self, at: usize, why: &'static str) {
        let Some(controller) = self.controllers.get(at).and_then(Option::as_ref) else { return };
        self.doomed.push((controller.admin_queue, why));
        self.doomed.extend(controller.all_io_queues().map(|queue| (queue, why)));
    }
}
