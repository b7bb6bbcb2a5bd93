//! Changes of a running target: [`Control`] checks them, gets ready what they need, and gives them
//! to the polling cores, one ring to each. It runs on a thread that polls nothing.
//!
//! Files are opened and memory is allocated here; a core only notes the result. A change is made on
//! all cores or on none: what fails half-way is taken back.

mod ask;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use ferrocx::PageSize;
use ferrocx::verbs::{Pd, RdmaContext};
use rtrb::Producer;
use serde::Serialize;
use uuid::Uuid;

use crate::auth::HostKey;
use crate::backend::{self, Backend, OpenFile};
use crate::config::{NamespaceConfig, Store, StoreKind, SubsystemConfig, length, taken_uuid};
use crate::controller::ana::AnaPort;
use crate::controller::{AnaState, Namespace, Subsystem};
use crate::drive::Drives;
use crate::keeper::Keeper;
use crate::peer::Peer;
use crate::proto::identify;
use crate::stats::Registry;
use crate::store::{Kept, NewFile, Prepared, atomic, drive_length, grow, open_file};
pub use crate::told::{AnaLine, ControllerLine, KeyInfo, NamespaceInfo, SubsystemInfo};
use crate::transport::{Command, Ready, Server, ServerError};

/// How long a core may take for a request: it looks every millisecond.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running target, to be asked and changed.
#[derive(Debug)]
pub struct Control {
    pollers: Vec<Producer<Command>>,
    patience: Duration,
    /// Cores that may still have a back end, and its place.
    left: Vec<(usize, usize)>,
    context: RdmaContext,
    pd: Pd,
    max_transfer: usize,
    page: PageSize,
    registry: Arc<Registry>,
    about: About,
    /// What is behind each namespace, by subsystem and number.
    stores: BTreeMap<(String, u32), Kept>,
    drives: Drives,
    /// Where reservations are kept that outlive the target.
    keeper: Option<Arc<Keeper>>,
}

/// What a target is, for people.
#[derive(Debug, Clone, Serialize)]
pub struct About {
    /// Version of this program.
    pub version: &'static str,
    /// The device.
    pub device: String,
    /// Address of the port.
    pub address: IpAddr,
    /// Cores that poll; none for a thread that is not pinned.
    pub cores: Vec<usize>,
}

impl Control {
    /// Control of servers that are about to run, the first of them first.
    #[must_use]
    pub fn new(servers: &mut [Server], context: &RdmaContext, about: About) -> Self {
        let pd = servers[0].pd().clone();
        let max_transfer = servers[0].target().settings().max_transfer() as usize;
        let registry = servers[0].registry();
        Self {
            pollers: servers.iter_mut().map(Server::commands).collect(),
            patience: PATIENCE,
            left: Vec::new(),
            context: context.clone(),
            pd,
            max_transfer,
            page: servers[0].config().page,
            registry,
            about,
            stores: BTreeMap::new(),
            drives: Drives::new(servers[0].config().drive_timeout),
            keeper: servers[0].keeper(),
        }
    }

    /// Says how long a core may take for a request: ten seconds if nothing is said.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// The NVMe drives behind namespaces. Whoever holds them keeps them open until commands that
    /// have begun have ended.
    #[must_use]
    pub fn drives(&self) -> Drives {
        self.drives.clone()
    }

    /// What the target is.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Counters of all cores.
    #[must_use]
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Lists what is offered.
    ///
    /// # Errors
    ///
    /// A core that has ended.
    pub fn subsystems(&mut self) -> Result<Vec<SubsystemInfo>> {
        let all = self
            .ask(0, |server| server.target().subsystems().cloned().collect::<Vec<Subsystem>>())?;
        Ok(all.into_iter().map(|it| self.describe(&it)).collect())
    }

    fn describe(&self, subsystem: &Subsystem) -> SubsystemInfo {
        let one = |it: &Namespace| {
            let kept = self.stores.get(&(subsystem.nqn.clone(), it.nsid));
            let (backend, path) = match kept.map(|kept| &kept.store) {
                Some(Store::Null) => (StoreKind::Null, None),
                Some(Store::File { path, .. }) => (StoreKind::File, Some(path.clone())),
                Some(Store::Peer(spec)) => (StoreKind::Peer, Some(spec.to_string().into())),
                Some(Store::Nvme { address, .. }) => (StoreKind::Nvme, Some(address.into())),
                Some(Store::Ram) | None => (StoreKind::Ram, None),
            };
            NamespaceInfo {
                nsid: it.nsid,
                size: it.shape.blocks << it.shape.block_shift,
                block_bytes: 1 << it.shape.block_shift,
                uuid: Uuid::from_bytes(it.shape.uuid).to_string(),
                read_only: it.shape.is_read_only,
                atomic: kept.is_some_and(|kept| kept.is_atomic),
                ana_group: it.ana_group,
                backend,
                path,
            }
        };
        SubsystemInfo {
            nqn: subsystem.nqn.clone(),
            serial: subsystem.serial.clone(),
            hosts: subsystem.hosts.clone(),
            keys: subsystem
                .keys()
                .map(|(host, is_mutual)| KeyInfo { host: host.into(), is_mutual })
                .collect(),
            namespaces: subsystem.namespaces().map(one).collect(),
        }
    }

    /// Offers a subsystem with its namespaces, all of it or nothing.
    ///
    /// # Errors
    ///
    /// A name or a number that is taken, and what the system refused.
    pub fn add_subsystem(&mut self, config: &SubsystemConfig) -> Result<()> {
        self.offer(config)?.into_iter().for_each(NewFile::keep);
        Ok(())
    }

    /// Offers a subsystem with its namespaces, all of it or nothing. Returns the files that were
    /// made for it: they go unless they are kept.
    pub(crate) fn offer(&mut self, config: &SubsystemConfig) -> Result<Vec<NewFile>> {
        let offered = Subsystem::new(&config.nqn, &config.serial)
            .for_hosts(config.hosts.clone())
            .with_keys(config.keys.clone());
        self.first(move |server| server.target_mut().add_subsystem(offered))?;
        let mut new_files = Vec::new();
        for namespace in &config.namespaces {
            match self.try_add(&config.nqn, namespace) {
                Ok(new_file) => new_files.extend(new_file),
                Err(error) => {
                    self.remove_subsystem(&config.nqn)?;
                    return Err(error);
                }
            }
        }
        Ok(new_files)
    }

    /// Takes a subsystem away. Hosts that are connected to it are disconnected.
    ///
    /// # Errors
    ///
    /// A name of no subsystem.
    pub fn remove_subsystem(&mut self, nqn: &str) -> Result<()> {
        let name = nqn.to_owned();
        let removed = self.first(move |server| server.target_mut().remove_subsystem(&name))?;
        for namespace in removed {
            self.drop_backend(namespace.backend);
            self.forget(nqn, namespace.nsid);
        }
        Ok(())
    }

    /// Offers a namespace. Hosts are told.
    ///
    /// # Errors
    ///
    /// A number that is taken, and what the system refused.
    pub fn add_namespace(&mut self, nqn: &str, config: &NamespaceConfig) -> Result<()> {
        if let Some(new_file) = self.try_add(nqn, config)? {
            new_file.keep();
        }
        Ok(())
    }

    /// Offers a namespace. Returns its file if that was made for it: it goes unless it is kept.
    fn try_add(&mut self, nqn: &str, config: &NamespaceConfig) -> Result<Option<NewFile>> {
        let place = || format!("namespace {} of {nqn}", config.nsid);
        self.put_namespace(nqn, config).with_context(place)
    }

    fn put_namespace(&mut self, nqn: &str, config: &NamespaceConfig) -> Result<Option<NewFile>> {
        // Their places may be given out once more.
        self.drop_left()?;
        let (name, nsid, uuid) = (nqn.to_owned(), config.nsid, config.uuid);
        let (place, twin) = self.first(move |server| {
            let target = server.target();
            let is_taken = target.subsystem(&name)?.namespace(nsid).is_some();
            let named = |it: &Subsystem| {
                let twin = it.namespaces().find(|it| it.shape.uuid == uuid)?;
                Some((it.nqn.clone(), twin.nsid))
            };
            let twin = target.subsystems().find_map(named);
            drop(target);
            let place = (!is_taken).then(|| server.next_place());
            Ok::<_, crate::controller::OfferError>((place, twin))
        })?;
        let place = place.ok_or_else(|| anyhow!("it is there already; give another number"))?;
        if let Some((nqn, nsid)) = twin {
            return Err(taken_uuid(uuid, (&nqn, nsid)));
        }
        let reservation = match &self.keeper {
            Some(keeper) => keeper.load(uuid)?,
            None => None,
        };
        let Prepared { kept, len_bytes, block_shift, ready, new_file } = self.prepare(config)?;
        for (poller, ready) in ready.into_iter().enumerate() {
            let name = nqn.to_owned();
            let put = move |server: &mut Server| server.put_backend(place, ready, (&name, nsid));
            if let Err(error) = self.ask(poller, put).and_then(|done| Ok(done?)) {
                self.drop_backend(place);
                self.let_go(&kept);
                return Err(error);
            }
        }
        let namespace = Namespace {
            nsid,
            shape: identify::Namespace {
                blocks: len_bytes >> block_shift,
                block_shift,
                uuid: config.uuid,
                is_read_only: config.read_only,
                deallocates: false,
            },
            backend: place,
            ana_group: config.ana_group,
        };
        let name = nqn.to_owned();
        let put = move |server: &mut Server| {
            // No core sees the one without the other.
            let mut target = server.target_mut();
            target.put_namespace(&name, namespace)?;
            if let Some(reservation) = reservation {
                target.restore_reservation(&name, nsid, reservation);
            }
            Ok::<_, crate::controller::OfferError>(())
        };
        if let Err(error) = self.change(put) {
            self.drop_backend(place);
            self.let_go(&kept);
            return Err(error);
        }
        self.stores.insert((nqn.into(), nsid), kept);
        Ok(new_file)
    }

    /// Gets ready what is behind a namespace: once for each core.
    fn prepare(&mut self, config: &NamespaceConfig) -> Result<Prepared> {
        if let Store::Nvme { address, nsid } = &config.store {
            return self.prepare_drive(config, address, *nsid);
        }
        let cores = 0..self.pollers.len();
        let store = config.store.clone();
        let len_bytes = config.len_bytes.unwrap_or(0);
        let memory = |len: u64| -> Result<_> {
            let len = usize::try_from(len)?;
            let page = self.page;
            Ok(backend::memory(&self.context, len, page).map_err(ServerError::from)?)
        };
        let (mut peer, mut new_file) = (None, None);
        let (len_bytes, file, ready) = match &config.store {
            Store::Ram => {
                let memory = memory(len_bytes)?;
                let one = |_| Ok(Ready::Direct(Backend::ram(&self.pd, &memory)?));
                (len_bytes, None, cores.map(one).collect::<Result<_, ServerError>>()?)
            }
            Store::Null => {
                let memory = memory(self.max_transfer as u64)?;
                let one = |_| Ok(Ready::Direct(Backend::null(&self.pd, &memory)?));
                (len_bytes, None, cores.map(one).collect::<Result<_, ServerError>>()?)
            }
            Store::File { path, is_direct } => {
                let place = || format!("file {}", path.display());
                let opened = open_file(path, *is_direct, config).with_context(place)?;
                let file = opened.file;
                new_file = opened.new_file;
                let first = OpenFile::new(file.try_clone().with_context(place)?);
                let one = |_| Ok(Ready::File(first.beside(file.try_clone()?)));
                let ready = cores.map(one).collect::<std::io::Result<_>>().with_context(place)?;
                (opened.len_bytes, Some(file), ready)
            }
            Store::Peer(spec) => {
                let place = || format!("peer memory {spec}");
                let opened = Peer::open(spec, &self.pd, config.len_bytes).with_context(place)?;
                let len = opened.len_bytes() >> config.block_shift << config.block_shift;
                let len = length(len, 1 << config.block_shift, &store).with_context(place)?;
                let opened = Arc::new(opened);
                let ready = cores.map(|_| Ready::Direct(Backend::peer(&opened))).collect();
                peer = Some(opened);
                (len, None, ready)
            }
            Store::Nvme { .. } => bail!("a drive is prepared by itself"),
        };
        let block_shift = config.block_shift;
        let ready = if config.atomic { atomic(ready, block_shift) } else { ready };
        let is_atomic = config.atomic;
        let kept = Kept { store, capacity: len_bytes, is_atomic, file, _peer: peer };
        Ok(Prepared { kept, len_bytes, block_shift, ready, new_file })
    }

    /// Opens a drive, with a queue pair for each core and its buffers.
    fn prepare_drive(
        &mut self,
        config: &NamespaceConfig,
        address: &str,
        nsid: u32,
    ) -> Result<Prepared> {
        let cores = 0..self.pollers.len();
        let buffers = cores.map(|poller| self.ask(poller, |server| server.buffers()));
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        let queues = self.drives.open(address, nsid, &buffers)?;
        let store = config.store.clone();
        let kept = Kept { store, capacity: 0, is_atomic: false, file: None, _peer: None };
        let namespace = queues.first().map(|queue| *queue.namespace());
        let sized = namespace
            .ok_or_else(|| anyhow!("no core polls"))
            .and_then(|namespace| Ok((namespace, drive_length(config, &namespace)?)));
        let (namespace, len_bytes) = match sized {
            Ok(sized) => sized,
            Err(error) => {
                drop(queues);
                self.let_go(&kept);
                return Err(error.context(format!("drive {address}")));
            }
        };
        let kept = Kept { capacity: namespace.len_bytes(), ..kept };
        let ready = queues.into_iter().map(|queue| Ready::Drive(Box::new(queue))).collect();
        let block_shift = namespace.block_shift;
        Ok(Prepared { kept, len_bytes, block_shift, ready, new_file: None })
    }

    /// Takes a namespace away; commands under way on it fail. Hosts are told.
    ///
    /// # Errors
    ///
    /// A name or a number of none.
    pub fn remove_namespace(&mut self, nqn: &str, nsid: u32) -> Result<()> {
        let name = nqn.to_owned();
        let remove = move |server: &mut Server| server.target_mut().remove_namespace(&name, nsid);
        let removed = self.first(remove)?;
        self.drop_backend(removed.backend);
        self.forget(nqn, nsid);
        Ok(())
    }

    /// Lets go of what is behind a namespace that has gone.
    fn forget(&mut self, nqn: &str, nsid: u32) {
        if let Some(kept) = self.stores.remove(&(nqn.into(), nsid)) {
            self.let_go(&kept);
        }
    }

    fn let_go(&self, kept: &Kept) {
        if let Store::Nvme { address, nsid } = &kept.store {
            self.drives.close(address, *nsid);
        }
    }

    /// Gives a namespace another size. Hosts are told. A file grows with it, and keeps its length
    /// when the namespace shrinks; RAM grows up to what it had at first.
    ///
    /// # Errors
    ///
    /// A name or a number of none, a size that cannot be.
    pub fn resize_namespace(&mut self, nqn: &str, nsid: u32, bytes: u64) -> Result<()> {
        let name = nqn.to_owned();
        let found = self.first(move |server| {
            Ok::<_, crate::controller::OfferError>(
                server.target().subsystem(&name)?.namespace(nsid).copied(),
            )
        })?;
        let none = || anyhow!("namespace {nsid} of {nqn} does not exist");
        let mut namespace = found.ok_or_else(none)?;
        let kept = self.stores.get(&(nqn.into(), nsid)).ok_or_else(none)?;
        let bytes = length(bytes, 1 << namespace.shape.block_shift, &kept.store)?;
        match (&kept.store, &kept.file) {
            (Store::Ram, _) => ensure!(
                bytes <= kept.capacity,
                "size is {bytes}, and RAM of {} bytes cannot grow while hosts use it; remove the \
                 namespace and add a larger one",
                kept.capacity
            ),
            (Store::Peer(spec), _) => ensure!(
                bytes <= kept.capacity,
                "size is {bytes}, and {} bytes of {spec} are registered; make size smaller",
                kept.capacity
            ),
            (Store::Nvme { address, .. }, _) => ensure!(
                bytes <= kept.capacity,
                "size is {bytes}, and drive {address} has {} bytes; make size smaller",
                kept.capacity
            ),
            (Store::File { path, .. }, Some(file)) => {
                let place = || format!("file {}", path.display());
                grow(file, bytes, namespace.shape.is_read_only).with_context(place)?;
            }
            _ => {}
        }
        namespace.shape.blocks = bytes >> namespace.shape.block_shift;
        let name = nqn.to_owned();
        self.change(move |server| server.target_mut().put_namespace(&name, namespace))
    }

    /// Lets a host connect to a subsystem; one that any host could use is for this one only then.
    ///
    /// # Errors
    ///
    /// Names of none.
    pub fn allow(&mut self, nqn: &str, host: &str) -> Result<()> {
        let (name, host) = (nqn.to_owned(), host.to_owned());
        self.first(move |server| {
            let mut target = server.target_mut();
            let mut hosts = target.subsystem(&name)?.hosts.clone().unwrap_or_default();
            if !hosts.contains(&host) {
                hosts.push(host);
            }
            target.set_hosts(&name, Some(hosts))
        })
    }

    /// Lets a host connect no more, and disconnects it.
    ///
    /// # Errors
    ///
    /// Names of none.
    pub fn disallow(&mut self, nqn: &str, host: &str) -> Result<()> {
        let (name, host) = (nqn.to_owned(), host.to_owned());
        self.first(move |server| {
            let mut target = server.target_mut();
            let mut hosts = target.subsystem(&name)?.hosts.clone().unwrap_or_default();
            let before = hosts.len();
            hosts.retain(|it| *it != host);
            if hosts.len() == before {
                return Err(crate::controller::OfferError::NotListed(host));
            }
            target.set_hosts(&name, Some(hosts))
        })
    }

    /// Lets any host connect to a subsystem, or nobody.
    ///
    /// # Errors
    ///
    /// A name of no subsystem.
    pub fn allow_any(&mut self, nqn: &str, any: bool) -> Result<()> {
        let (name, hosts) = (nqn.to_owned(), (!any).then(Vec::new));
        self.first(move |server| server.target_mut().set_hosts(&name, hosts))
    }

    /// Gives a host a key, so that it has to authenticate itself from its next Connect on, or takes
    /// it away.
    ///
    /// # Errors
    ///
    /// Names of none.
    pub fn set_key(&mut self, nqn: &str, host: &str, key: Option<HostKey>) -> Result<()> {
        let (name, host) = (nqn.to_owned(), host.to_owned());
        self.first(move |server| server.target_mut().set_key(&name, &host, key))
    }

    /// Lists the controllers that hosts have.
    ///
    /// # Errors
    ///
    /// A core that has ended.
    pub fn controllers(&mut self) -> Result<Vec<ControllerLine>> {
        self.ask(0, |server| {
            let one = |it: crate::controller::ControllerInfo<'_>| ControllerLine {
                cntlid: it.cntlid,
                host: it.hostnqn.into(),
                nqn: it.subnqn.into(),
                keep_alive_ms: it.keep_alive.and_then(|it| u64::try_from(it.as_millis()).ok()),
                io_queues: it.io_queues,
                authentication: it.proof.map(|proof| proof.to_string()),
            };
            server.target().infos().map(one).collect()
        })
    }

    /// Disconnects a host from a controller; it may come back.
    ///
    /// # Errors
    ///
    /// A number of none.
    pub fn end_controller(&mut self, cntlid: u16) -> Result<()> {
        let why = "its controller was ended by hand";
        let done = self.ask(0, move |server| server.target_mut().end_controller(cntlid, why))?;
        ensure!(done, "there is no controller {cntlid}; `controller.list` names those there are");
        Ok(())
    }

    /// Ports that differ, and what each is for the groups of namespaces.
    ///
    /// # Errors
    ///
    /// A core that has ended.
    pub fn ana(&mut self) -> Result<Vec<AnaLine>> {
        let all = self.ask(0, |server| server.target().ana_ports().to_vec())?;
        let line = |AnaPort { service: port, id, is_named, states }: AnaPort| AnaLine {
            port,
            id,
            is_named,
            states: states.to_vec(),
        };
        Ok(all.into_iter().map(line).collect())
    }

    /// Says what a port is for a group of namespaces, or for all. Its hosts are told.
    ///
    /// # Errors
    ///
    /// A port that `[ana]` does not name, a number of no group.
    pub fn set_ana(&mut self, port: u16, group: Option<u32>, state: AnaState) -> Result<()> {
        self.change(move |server| server.target_mut().set_ana(port, group, state))
    }

    /// The ports of the connection manager that the target listens on.
    ///
    /// # Errors
    ///
    /// A core that has ended.
    pub fn ports(&mut self) -> Result<Vec<u16>> {
        self.ask(0, |server| server.services())
    }

    /// Listens on another port. With a state hosts are told of it, as of those of `[ana]`.
    ///
    /// # Errors
    ///
    /// One that is taken; a state where ports do not differ, or one port too many.
    pub fn add_port(&mut self, service: u16, state: Option<AnaState>) -> Result<()> {
        ensure!(service > 0, "port is 0; give 1 to 65535");
        ensure!(!self.ports()?.contains(&service), "it listens on port {service} already");
        self.first(move |server| server.listen(service))?;
        let Some(state) = state else { return Ok(()) };
        let named = self.first(move |server| server.target_mut().name_port(service, state));
        if named.is_err() {
            self.ask(0, move |server| server.listen_no_more(service))?;
        }
        named
    }

    /// Listens on a port no more, and tells hosts no more of it. Hosts that came by it stay.
    ///
    /// # Errors
    ///
    /// One that it does not listen on, the last one, and the last one that discovery names.
    pub fn remove_port(&mut self, service: u16) -> Result<()> {
        let ports = self.ports()?;
        ensure!(ports.contains(&service), "it does not listen on port {service}");
        ensure!(ports.len() > 1, "port {service} is the last one; add another before");
        self.first(move |server| server.target_mut().name_port_no_more(service))?;
        self.ask(0, move |server| server.listen_no_more(service)).map(drop)
    }
}
