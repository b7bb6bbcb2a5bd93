//! A small polled initiator, for tests, for load, and for programs that embed one.
//!
//! [`Host::connect`] makes a controller as the Linux host does: admin queue, Connect, properties,
//! Identify, number of queues. [`Host::open_queue`] adds an I/O queue, which belongs to whoever
//! polls it. Both wait; [`Joining`] is a queue that is polled from its first message on.
//!
//! # What it does not do
//!
//! No reconnecting, no multipath, no namespaces found by itself; keep-alives are the caller's to
//! send ([`Host::keep_alive`]).

mod auth;
mod queue;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use auth::{AuthError, HostKeys, Prover, auth_command};
use ferrocx::verbs::cm::CmError;
use ferrocx::verbs::{Access, Memory, Mr, PostError, VerbsError, WrongCompletion};
pub use queue::{Base, HostQueue, IN_CAPSULE_BYTES, Joining, QueueConfig, keyed};
use thiserror::Error;
use zerocopy::IntoBytes;

use crate::backend;
use crate::proto::connect::{ADMIN_ENTRIES, ANY_CONTROLLER, CONNECT_BYTES, ConnectData};
use crate::proto::property;
use crate::proto::sgl::Sgl;
use crate::proto::sqe::{Cqe, Sqe, admin, fabrics};
use crate::proto::status::Status;

/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes that an admin command can bring.
const PAGE_BYTES: usize = 16 << 10;

/// Why an initiator cannot go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The device refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// There is no connection.
    #[error(transparent)]
    Cm(CmError),
    /// A request could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The device gave an answer that cannot be.
    #[error(transparent)]
    Device(#[from] WrongCompletion),
    /// The queue has ended.
    #[error("the queue has ended: {0}")]
    Ended(String),
    /// Nothing came.
    #[error("the target was silent for {0:?}")]
    Silent(Duration),
    /// A command failed.
    #[error("{what}: {status}")]
    Refused {
        /// The command.
        what: &'static str,
        /// How it ended.
        status: Status,
        /// Its result.
        result: u64,
    },
    /// A capsule that the queue has no room for.
    #[error(
        "a capsule of {bytes} bytes, and the queue has room for {most}; give more \
             in_capsule_bytes"
    )]
    TooLong {
        /// Its bytes.
        bytes: usize,
        /// What there is room for.
        most: usize,
    },
    /// The host and the target do not know each other.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// A queue without keys, or memory that does not fit a key.
    #[error("the queue has no key for this; see QueueConfig::lent_pages")]
    NoKeys,
}

/// Who an initiator is, and what it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostConfig {
    /// Name of the subsystem.
    pub subnqn: String,
    /// Own name.
    pub hostnqn: String,
    /// Own identifier.
    pub hostid: [u8; 16],
    /// How long it may be silent, in ms; 0 for ever.
    pub keep_alive_ms: u32,
    /// I/O queues to ask for.
    pub io_queues: u16,
    /// Bytes behind a command of an I/O queue in its capsule at most.
    pub in_capsule_bytes: usize,
    /// Its keys, for a target that asks for them, or has to show one.
    pub keys: Option<HostKeys>,
}

impl HostConfig {
    /// A host that wants a subsystem.
    #[must_use]
    pub fn new(subnqn: &str) -> Self {
        Self {
            subnqn: subnqn.into(),
            hostnqn: "nqn.2014-08.org.nvmexpress:uuid:f0e0d0c0-0000-4000-8000-000000000001".into(),
            hostid: [0x11; 16],
            keep_alive_ms: 0,
            io_queues: 4,
            in_capsule_bytes: IN_CAPSULE_BYTES,
            keys: None,
        }
    }
}

/// A controller that an initiator has.
#[derive(Debug)]
pub struct Host {
    base: Base,
    config: HostConfig,
    /// Its admin queue.
    pub admin: HostQueue,
    page: Mr,
    /// Its number.
    pub cntlid: u16,
    /// I/O queues that were granted.
    pub granted: u16,
}

/// The Connect of a queue.
#[must_use]
pub fn connect_command(qid: u16, entries: u16, keep_alive_ms: u32, sgl: Sgl) -> Sqe {
    Sqe {
        cdw10: (u32::from(qid) << 16).into(),
        cdw11: u32::from(entries - 1).into(),
        cdw12: keep_alive_ms.into(),
        ..Sqe::fabrics(fabrics::CONNECT, 0, sgl)
    }
}

impl Host {
    /// Makes a controller and gets it ready.
    ///
    /// # Errors
    ///
    /// [`HostError`]: the first step that failed.
    pub fn connect(base: &Base, config: &HostConfig) -> Result<Self, HostError> {
        let mut host = Self::open(base, config)?;
        host.enable()?;
        let less_one = u32::from(config.io_queues.max(1) - 1);
        let cqe = host.set_feature(0x07, less_one << 16 | less_one)?;
        host.granted = (cqe.result.get() as u16).saturating_add(1);
        Ok(host)
    }

    /// Makes a controller, and leaves it disabled.
    ///
    /// # Errors
    ///
    /// [`HostError`]: the first step that failed.
    pub fn open(base: &Base, config: &HostConfig) -> Result<Self, HostError> {
        let entries = ADMIN_ENTRIES;
        let admin = HostQueue::new(base, &QueueConfig::default())?;
        let memory = backend::memory(&base.context, PAGE_BYTES, base.page)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let page = base.pd.reg_mr(&memory, 0..PAGE_BYTES, access)?;
        let (base, config) = (base.clone(), config.clone());
        let mut host = Self { base, config, admin, page, cntlid: 0, granted: 0 };
        let Self { config, .. } = &host;
        let data = ConnectData::new(config.hostid, ANY_CONTROLLER, &config.subnqn, &config.hostnqn);
        let mut buf = host.page.buf(0..CONNECT_BYTES)?;
        buf.copy_in(0, data.as_bytes()).map_err(VerbsError::from)?;
        let sqe = connect_command(0, entries, host.config.keep_alive_ms, keyed(&buf));
        let result = host.done("Connect", sqe)?.result.get() as u32;
        host.cntlid = result as u16;
        let keys = host.config.keys.clone();
        auth::after_connect(result, keys.as_ref(), || host.authenticate())?;
        Ok(host)
    }

    /// Switches the controller on.
    ///
    /// # Errors
    ///
    /// [`HostError`]; also when it does not get ready.
    pub fn enable(&mut self) -> Result<(), HostError> {
        self.set_property(property::CC, 0x0046_0000)?;
        let begun = Instant::now();
        while self.property(property::CSTS)? & 1 == 1 {
            if begun.elapsed() > PATIENCE {
                return Err(HostError::Silent(PATIENCE));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.set_property(property::CC, 0x0046_0001)?;
        match self.property(property::CSTS)? & 3 {
            1 => Ok(()),
            _ => Err(HostError::Ended("the controller does not get ready".into())),
        }
    }

    /// Carries an admin command out; its completion, whatever that says.
    ///
    /// # Errors
    ///
    /// The queue has ended, or is silent.
    pub fn command(&mut self, sqe: Sqe) -> Result<Cqe, HostError> {
        self.admin.submit(sqe)?;
        self.admin.wait(PATIENCE)
    }

    /// Carries an admin command out that must succeed.
    ///
    /// # Errors
    ///
    /// [`HostError::Refused`], and those of [`Host::command`].
    pub fn done(&mut self, what: &'static str, sqe: Sqe) -> Result<Cqe, HostError> {
        let cqe = self.command(sqe)?;
        match cqe.status() {
            Status::SUCCESS => Ok(cqe),
            status => Err(HostError::Refused { what, status, result: cqe.result.get() }),
        }
    }

    /// Carries an admin command out that brings `len` bytes; its completion and they.
    ///
    /// # Errors
    ///
    /// Those of [`Host::command`].
    pub fn bring(&mut self, sqe: Sqe, len: usize) -> Result<(Cqe, Vec<u8>), HostError> {
        let mut buf = self.page.buf(0..len)?;
        // What is not written shows.
        buf.copy_in(0, &vec![0xa5; len]).map_err(VerbsError::from)?;
        let cqe = self.command(Sqe { sgl: keyed(&buf).encode(), ..sqe })?;
        Ok((cqe, buf.to_vec()))
    }

    /// A page of Identify.
    ///
    /// # Errors
    ///
    /// Those of [`Host::done`].
    pub fn identify(&mut self, cns: u8, nsid: u32) -> Result<Vec<u8>, HostError> {
        let cdw10 = u32::from(cns).into();
        let sqe = Sqe { nsid: nsid.into(), cdw10, ..Sqe::new(admin::IDENTIFY, 0, Sgl::NONE) };
        let (cqe, page) = self.bring(sqe, 4096)?;
        refused("Identify", &cqe)?;
        Ok(page)
    }

    /// Bytes `offset` to `offset + len` of a log page.
    ///
    /// # Errors
    ///
    /// Those of [`Host::done`].
    pub fn log(&mut self, lid: u8, offset: u64, len: usize) -> Result<Vec<u8>, HostError> {
        let dwords = (len / 4).saturating_sub(1) as u32;
        let sqe = Sqe {
            nsid: u32::MAX.into(),
            cdw10: (u32::from(lid) | dwords << 16).into(),
            cdw11: (dwords >> 16).into(),
            cdw12: (offset as u32).into(),
            cdw13: ((offset >> 32) as u32).into(),
            ..Sqe::new(admin::GET_LOG, 0, Sgl::NONE)
        };
        let (cqe, page) = self.bring(sqe, len)?;
        refused("Get Log Page", &cqe)?;
        Ok(page)
    }

    /// Sets a feature.
    ///
    /// # Errors
    ///
    /// Those of [`Host::done`].
    pub fn set_feature(&mut self, fid: u8, value: u32) -> Result<Cqe, HostError> {
        let sqe = Sqe {
            cdw10: u32::from(fid).into(),
            cdw11: value.into(),
            ..Sqe::new(admin::SET_FEATURES, 0, Sgl::NONE)
        };
        self.done("Set Features", sqe)
    }

    /// Reads a property.
    ///
    /// # Errors
    ///
    /// Those of [`Host::done`].
    pub fn property(&mut self, offset: u32) -> Result<u64, HostError> {
        let size = u32::from(offset == property::CAP);
        let sqe = Sqe {
            cdw10: size.into(),
            cdw11: offset.into(),
            ..Sqe::fabrics(fabrics::PROPERTY_GET, 0, Sgl::NONE)
        };
        Ok(self.done("Property Get", sqe)?.result.get())
    }

    /// Writes a property.
    ///
    /// # Errors
    ///
    /// Those of [`Host::done`].
    pub fn set_property(&mut self, offset: u32, value: u32) -> Result<(), HostError> {
        let sqe = Sqe {
            cdw11: offset.into(),
            cdw12: value.into(),
            ..Sqe::fabrics(fabrics::PROPERTY_SET, 0, Sgl::NONE)
        };
        self.done("Property Set", sqe).map(drop)
    }

    /// Tells the target that this host lives.
    ///
    /// # Errors
    ///
    /// Those of [`Host::done`].
    pub fn keep_alive(&mut self) -> Result<(), HostError> {
        self.done("Keep Alive", Sqe::new(admin::KEEP_ALIVE, 0, Sgl::NONE)).map(drop)
    }

    /// Opens an I/O queue.
    ///
    /// # Errors
    ///
    /// [`HostError`]: the first step that failed.
    pub fn open_queue(
        &self,
        qid: u16,
        entries: u16,
        lent_pages: u32,
    ) -> Result<HostQueue, HostError> {
        let in_capsule_bytes = self.config.in_capsule_bytes.max(CONNECT_BYTES);
        let cntlid = self.cntlid;
        let config = QueueConfig { qid, cntlid, entries, lent_pages, in_capsule_bytes };
        let mut queue = HostQueue::new(&self.base, &config)?;
        let Self { config, cntlid, .. } = self;
        let data = ConnectData::new(config.hostid, *cntlid, &config.subnqn, &config.hostnqn);
        let sgl = Sgl::InCapsule { offset: 0, len: CONNECT_BYTES as u32 };
        queue.submit_with(connect_command(qid, entries, 0, sgl), data.as_bytes())?;
        let cqe = queue.wait(PATIENCE)?;
        refused("Connect", &cqe)?;
        let (result, keys) = (cqe.result.get() as u32, config.keys.as_ref());
        auth::after_connect(result, keys, || self.authenticate_queue(&mut queue))?;
        Ok(queue)
    }

    /// Memory that the target can be lent, and a key over all of it.
    ///
    /// # Errors
    ///
    /// What the system or the device refused.
    pub fn memory(&self, len_bytes: usize) -> Result<(Arc<Memory>, Mr), HostError> {
        let memory = backend::memory(&self.base.context, len_bytes, self.base.page)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = self.base.pd.reg_mr(&memory, 0..len_bytes, access)?;
        Ok((memory, mr))
    }

    /// The same controller, whose queues from now on call another port: no host does that.
    #[must_use]
    pub fn moved_to(self, base: &Base) -> Self {
        Self { base: base.clone(), ..self }
    }

    /// Ends the controller in good order: what was written is on its medium when that is done.
    ///
    /// # Errors
    ///
    /// Those of [`Host::done`]; also when the controller says that it has failed, or takes too
    /// long.
    pub fn shut_down(mut self) -> Result<(), HostError> {
        self.set_property(property::CC, 0x0046_4001)?;
        let begun = Instant::now();
        loop {
            let csts = self.property(property::CSTS)? as u32;
            if csts & property::CSTS_SHST == property::CSTS_SHST_COMPLETE {
                break;
            }
            if csts & property::CSTS_CFS != 0 {
                return Err(HostError::Ended("the controller fails to shut down".into()));
            }
            if begun.elapsed() > PATIENCE {
                return Err(HostError::Silent(PATIENCE));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.admin.connection.disconnect(&[])?;
        Ok(())
    }
}

/// Whether a command failed.
///
/// # Errors
///
/// [`HostError::Refused`].
pub fn refused(what: &'static str, cqe: &Cqe) -> Result<(), HostError> {
    match cqe.status() {
        Status::SUCCESS => Ok(()),
        status => Err(HostError::Refused { what, status, result: cqe.result.get() }),
    }
}

/// Carries an I/O command out on a queue that nobody else uses; its completion.
///
/// # Errors
///
/// The queue has ended, or is silent.
pub fn one(queue: &mut HostQueue, sqe: Sqe) -> Result<Cqe, HostError> {
    queue.submit(sqe)?;
    queue.wait(PATIENCE)
}
