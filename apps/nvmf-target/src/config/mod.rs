//! The file that a target is started with: [`File`], and [`Config`], which is it, checked.
//!
//! ```
//! let text = r#"
//!     address = "192.0.2.1/24"
//!     [[subsystem]]
//!     nqn = "nqn.2026-11.org.example:disk"
//!     allow_any_host = true
//!     [[subsystem.namespace]]
//!     size = "64MiB"
//! "#;
//! let config = ferrocx_nvmf_target::config::Config::parse(text)?;
//! assert_eq!(config.subsystems[0].namespaces[0].len_bytes, Some(64 << 20));
//! # Ok::<(), anyhow::Error>(())
//! ```

mod checks;
mod keys;
mod limits;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail, ensure};
pub(crate) use checks::taken_uuid;
use checks::{check_services, check_uuids};
use ferrocx_app_common::input;
use ferrocx_app_common::list::MAX_CORE;
use ferrocx_app_common::peer::PeerSpec;
pub use keys::{KeyFile, SecretText, check_readers};
pub use limits::Limits;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::auth::HostKey;
use crate::auth::key::without_key;
use crate::controller::ana::{MAX_GROUPS, MAX_PORTS};
use crate::controller::subsystem::{MAX_HOSTS, MAX_NSID};
use crate::controller::{AnaState, Settings};
use crate::peer::spec_of;
use crate::proto::connect::{DISCOVERY_NQN, is_nqn};
use crate::transport::{MAX_POLLERS, ServerConfig};

/// The file, as it is written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// `model`, `model:tap=NAME`, or a PCI address such as `0000:3b:00.0`.
    #[serde(default = "model")]
    pub device: String,
    /// Address of the port and its prefix length, such as `192.0.2.1/24`.
    pub address: String,
    /// Largest layer-3 packet: 1280 to 9978. Hosts whose interface has a larger one are refused.
    #[serde(default = "mtu")]
    pub mtu: u16,
    /// Ports of the connection manager: the first is the one that discovery names.
    #[serde(default = "services")]
    pub services: Vec<u16>,
    /// The processor's cores that poll, one thread on each; without any, one thread goes where the
    /// system puts it. With `--wait busy`, which is the default, a core has nothing else to do.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// Unix socket for `nvmf-target rpc` and `nvmf-target stats`: see [`crate::rpc`]. Without it
    /// the target listens to nobody.
    pub socket: Option<PathBuf>,
    /// Folder for reservations that outlive the target, which must be there: hosts may ask for that
    /// then. Without it none does.
    pub reservations: Option<PathBuf>,
    /// Ports of `services` that differ as ways to namespaces, and how: discovery names them all.
    /// Without it, hosts are told of no difference.
    #[serde(default)]
    pub ana: BTreeMap<String, AnaState>,
    /// Sizes.
    #[serde(default)]
    pub limits: Limits,
    /// What is offered.
    #[serde(default, rename = "subsystem")]
    pub subsystems: Vec<SubsystemFile>,
}

impl File {
    /// Reads a file's text.
    ///
    /// # Errors
    ///
    /// What is wrong and where; never a key.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(input::toml(text).map_err(without_key)?)
    }

    /// Whether the text of a key is in it.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.subsystems.iter().flat_map(|it| &it.keys).any(KeyFile::has_text)
    }
}

fn model() -> String {
    "model".into()
}

fn mtu() -> u16 {
    1500
}

fn services() -> Vec<u16> {
    vec![4420, 8009]
}

/// A subsystem, as the file has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubsystemFile {
    /// Its name.
    pub nqn: String,
    /// Serial number, up to 20 characters [default: made from the name].
    pub serial: Option<String>,
    /// Any host may connect.
    #[serde(default)]
    pub allow_any_host: bool,
    /// The hosts that may connect.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Hosts that have to authenticate themselves: some of those listed, or any.
    #[serde(default, rename = "key")]
    pub keys: Vec<KeyFile>,
    /// Its namespaces.
    #[serde(default, rename = "namespace")]
    pub namespaces: Vec<NamespaceFile>,
}

/// A namespace, as the file has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceFile {
    /// Its number [default: the one after that before it].
    pub nsid: Option<u32>,
    /// Size: bytes, or with KiB, MiB, GiB, TiB [default: that of the file].
    pub size: Option<String>,
    /// Bytes of a block: 512 or 4096 [default: 512; of a drive, its own].
    pub block_bytes: Option<u32>,
    /// `ram`; `null`, which keeps nothing; `file`; `nvme`; or `peer`.
    #[serde(default)]
    pub backend: StoreKind,
    /// The file or block device. A file that is not there, or too short, is made as long as `size`.
    /// Of `nvme`, the PCI address of a drive that is bound to vfio-pci, such as `0000:05:00.0`.
    /// Of `peer`, whose memory: `pci:0000:41:00.0/2`, `vfio:0000:41:00.0/2`, or `host`.
    pub path: Option<PathBuf>,
    /// Whether a file is read and written past the kernel's cache [default: true].
    pub direct: Option<bool>,
    /// The namespace of the drive [default: 1].
    pub drive_nsid: Option<u32>,
    /// Whether a block of `ram` or `peer` is read and written as one: data are copied then.
    #[serde(default)]
    pub atomic: bool,
    /// Its identifier [default: made from the subsystem's name and its number].
    pub uuid: Option<String>,
    /// Hosts can only read it.
    #[serde(default)]
    pub read_only: bool,
    /// Its group, for which the ports of `ana` can differ: 1 to 8.
    #[serde(default = "ana_group")]
    pub ana_group: u32,
}

fn ana_group() -> u32 {
    1
}

/// What is behind a namespace, as the file has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// Memory, zeros at the start.
    #[default]
    Ram,
    /// Nothing.
    Null,
    /// A file or a block device.
    File,
    /// A namespace of an NVMe drive, by a driver of our own.
    Nvme,
    /// Memory of another device.
    Peer,
}

/// What is behind a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    /// Memory, zeros at the start.
    Ram,
    /// Nothing.
    Null,
    /// A file or a block device.
    File {
        /// Where it is.
        path: PathBuf,
        /// Whether it is read and written past the kernel's cache.
        is_direct: bool,
    },
    /// A namespace of an NVMe drive.
    Nvme {
        /// PCI address of the drive, with its domain.
        address: String,
        /// Its namespace.
        nsid: u32,
    },
    /// Memory of another device.
    Peer(PeerSpec),
}

/// The file, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The device.
    pub device: String,
    /// Address of the port.
    pub address: IpAddr,
    /// Its prefix length.
    pub prefix_len: u8,
    /// Largest layer-3 packet.
    pub mtu: u16,
    /// The cores that poll; none for a thread that is not pinned.
    pub cores: Vec<usize>,
    /// Where requests of people and programs come in.
    pub socket: Option<PathBuf>,
    /// Ports that differ.
    pub ana: Vec<(u16, AnaState)>,
    /// Sizes that hosts are told.
    pub settings: Settings,
    /// What the server may use.
    pub server: ServerConfig,
    /// What is offered.
    pub subsystems: Vec<SubsystemConfig>,
}

/// A subsystem, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubsystemConfig {
    /// Its name.
    pub nqn: String,
    /// Serial number.
    pub serial: String,
    /// Hosts that may connect; `None` for any.
    pub hosts: Option<Vec<String>>,
    /// Keys of hosts that have to authenticate themselves, by their names.
    pub keys: BTreeMap<String, HostKey>,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceConfig>,
}

/// A namespace, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// Its number.
    pub nsid: u32,
    /// Bytes, a multiple of the block; `None` for those of a file, a drive or a peer.
    pub len_bytes: Option<u64>,
    /// log2 of the bytes of a block; of a drive 9, where its own say it.
    pub block_shift: u8,
    /// What is behind it.
    pub store: Store,
    /// Its identifier.
    pub uuid: [u8; 16],
    /// Whether a block of memory is read and written as one.
    pub atomic: bool,
    /// Hosts can only read it.
    pub read_only: bool,
    /// Its group, for which ports can differ.
    pub ana_group: u32,
}

/// Largest namespace of memory that one key reaches by 31-bit pieces and offsets.
const MAX_MEMORY_BYTES: u64 = 1 << 40;
/// Largest namespace of what has offsets of its own: those of files have a sign.
const MAX_STORE_BYTES: u64 = i64::MAX as u64;

impl Store {
    /// Bytes that a namespace of it can have.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        match self {
            Self::Ram | Self::Peer(_) => MAX_MEMORY_BYTES,
            Self::Null | Self::File { .. } | Self::Nvme { .. } => MAX_STORE_BYTES,
        }
    }
}

pub(crate) fn in_range<T: PartialOrd + std::fmt::Display>(
    what: &str,
    value: T,
    min: T,
    max: T,
) -> Result<T> {
    ensure!(value >= min && value <= max, "{what} is {value}; give {min} to {max}");
    Ok(value)
}

/// Reads a number of bytes: plain, or with KiB, MiB, GiB or TiB.
///
/// # Errors
///
/// A sentence about the text.
pub fn bytes_of(text: &str) -> Result<u64> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let found = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = found.unwrap_or((text, 0));
    let number = number.trim().parse::<u64>().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| {
        anyhow!("`{text}` is no size; give bytes, or a number with KiB, MiB, GiB, TiB")
    })
}

impl Config {
    /// Reads and checks a file's text.
    ///
    /// # Errors
    ///
    /// One sentence that names the value, its limit and the way out.
    pub fn parse(text: &str) -> Result<Self> {
        Self::check(File::parse(text).context("the file is not as it should be")?)
    }

    /// Checks a file.
    ///
    /// # Errors
    ///
    /// Those of [`Config::parse`].
    pub fn check(file: File) -> Result<Self> {
        let place = || format!("address `{}`; give one like 192.0.2.1/24", file.address);
        let (address, bits) = file.address.split_once('/').with_context(place)?;
        let address = IpAddr::from_str(address).with_context(place)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix_len = in_range("the prefix length", bits.parse().with_context(place)?, 1, most)?;
        check_services(&file.services)?;
        let limits = &file.limits;
        let (settings, server) = limits.check(&file.services)?;
        let server = ServerConfig { reservations: file.reservations, ..server };
        let mut subsystems = Vec::new();
        for subsystem in file.subsystems {
            let nqn = subsystem.nqn.clone();
            let checked =
                self::subsystem(subsystem).with_context(|| format!("subsystem `{nqn}`"))?;
            let is_twice = subsystems.iter().any(|it: &SubsystemConfig| it.nqn == checked.nqn);
            ensure!(!is_twice, "subsystem `{nqn}` is there twice; give another name");
            subsystems.push(checked);
        }
        check_uuids(&subsystems)?;
        let (device, mtu) = (file.device, in_range("mtu", file.mtu, 1280, 9978)?);
        let (cores, socket) = (cores(file.cores)?, file.socket);
        let ana = ana(&file.ana, &server.services).context("ana")?;
        Ok(Self {
            device,
            address,
            prefix_len,
            mtu,
            cores,
            socket,
            ana,
            settings,
            server,
            subsystems,
        })
    }
}

fn cores(cores: Vec<usize>) -> Result<Vec<usize>> {
    let count = cores.len();
    ensure!(count <= MAX_POLLERS, "{count} cores are listed; give {MAX_POLLERS} at most");
    for (at, core) in cores.iter().enumerate() {
        ensure!(!cores[..at].contains(core), "core {core} is listed twice; leave one out");
        in_range("core", *core, 0, MAX_CORE)?;
    }
    Ok(cores)
}

fn ana(file: &BTreeMap<String, AnaState>, services: &[u16]) -> Result<Vec<(u16, AnaState)>> {
    let count = file.len();
    ensure!(count <= MAX_PORTS, "{count} ports are listed; give {MAX_PORTS} at most");
    let mut ports = Vec::with_capacity(count);
    for (text, state) in file {
        let port = text.parse().ok().filter(|port| services.contains(port));
        let place = || format!("port `{text}` is none of services; put it there, or leave it out");
        ports.push((port.with_context(place)?, *state));
    }
    // In the order of `services`, which gives them their numbers.
    ports.sort_by_key(|(port, _)| services.iter().position(|service| service == port));
    Ok(ports)
}

/// The identifier that those of a subsystem's namespaces are made from.
fn uuid_of(nqn: &str) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_URL, nqn.as_bytes())
}

/// Checks a subsystem with its namespaces.
///
/// # Errors
///
/// One sentence that names the value, its limit and the way out.
pub fn subsystem(file: SubsystemFile) -> Result<SubsystemConfig> {
    ensure!(is_nqn(&file.nqn), "that is no name; give one like nqn.2014-08.org.example:disk");
    let is_free = file.nqn != DISCOVERY_NQN;
    ensure!(is_free, "that is the name of every discovery service; give one of your own");
    for (what, count) in [("hosts", file.hosts.len()), ("keys", file.keys.len())] {
        ensure!(count <= MAX_HOSTS, "{count} {what} are listed; give {MAX_HOSTS} at most");
    }
    let made = uuid_of(&file.nqn);
    let serial = file.serial.unwrap_or_else(|| made.simple().to_string()[..20].to_uppercase());
    let is_printable = serial.chars().all(|c| c.is_ascii_graphic());
    let is_serial = (1..=20).contains(&serial.len()) && is_printable;
    ensure!(is_serial, "serial `{serial}`; give 1 to 20 visible characters");
    if let Some(host) = file.hosts.iter().find(|host| !is_nqn(host)) {
        bail!("host `{host}` is no name; give one like nqn.2014-08.org.nvmexpress:uuid:...");
    }
    ensure!(
        !file.allow_any_host || file.hosts.is_empty(),
        "hosts are listed, and allow_any_host is true; leave one of them out"
    );
    let hosts = (!file.allow_any_host).then_some(file.hosts);
    let mut keys = BTreeMap::new();
    for key in file.keys {
        let (host, key) = key.check()?;
        let is_listed = hosts.as_ref().is_none_or(|hosts| hosts.contains(&host));
        ensure!(is_listed, "host `{host}` has a key and is none of hosts; list it there, too");
        let before = keys.insert(host.clone(), key);
        ensure!(before.is_none(), "host `{host}` has two keys; leave one out");
    }
    let mut namespaces: Vec<NamespaceConfig> = Vec::new();
    for namespace in file.namespaces {
        let next = namespaces.last().map_or(1, |before| before.nsid + 1);
        let nsid = namespace.nsid.unwrap_or(next);
        let taken = namespaces.iter().any(|before| before.nsid == nsid);
        ensure!(!taken, "namespace {nsid} is there twice; give another number");
        namespaces.push(self::namespace(&file.nqn, nsid, &namespace)?);
    }
    Ok(SubsystemConfig { nqn: file.nqn, serial, hosts, keys, namespaces })
}

/// Checks the size of a namespace.
///
/// # Errors
///
/// A sentence about it.
pub fn length(bytes: u64, block_bytes: u32, store: &Store) -> Result<u64> {
    let least = u64::from(block_bytes);
    let bytes = in_range("size", bytes, least, store.most_bytes())?;
    ensure!(
        bytes.is_multiple_of(least),
        "size is {bytes}, which is no multiple of a block's {least} bytes"
    );
    Ok(bytes)
}

fn store(file: &NamespaceFile) -> Result<Store> {
    let (is_file, is_nvme) = (file.backend == StoreKind::File, file.backend == StoreKind::Nvme);
    ensure!(is_file || file.direct.is_none(), "direct is for backend = \"file\"");
    ensure!(is_nvme || file.drive_nsid.is_none(), "drive_nsid is for backend = \"nvme\"");
    let is_peer = file.backend == StoreKind::Peer;
    ensure!(
        is_file || is_nvme || is_peer || file.path.is_none(),
        "path is for backend = \"file\", \"nvme\" or \"peer\""
    );
    ensure!(
        !file.atomic || is_peer || file.backend == StoreKind::Ram,
        "atomic is for backend = \"ram\" or \"peer\""
    );
    ensure!(
        !is_nvme || file.block_bytes.is_none(),
        "block_bytes is given, and blocks of a drive are its own; leave it out"
    );
    Ok(match (file.backend, &file.path) {
        (StoreKind::Peer, None) => bail!("there is no path; give {}", crate::peer::KNOWN),
        (StoreKind::Peer, Some(path)) => Store::Peer(spec_of(&path.to_string_lossy())?),
        (StoreKind::Nvme, None) => {
            bail!("there is no path; give the PCI address of a drive, such as 0000:05:00.0")
        }
        (StoreKind::Nvme, Some(path)) => {
            let text = path.to_string_lossy();
            // As sysfs has it, so that two ways to write an address are one drive.
            let address =
                if text.matches(':').count() == 1 { format!("0000:{text}") } else { text.into() };
            let nsid = in_range("drive_nsid", file.drive_nsid.unwrap_or(1), 1, u32::MAX - 1)?;
            Store::Nvme { address: address.to_ascii_lowercase(), nsid }
        }
        (StoreKind::Ram, _) => Store::Ram,
        (StoreKind::Null, _) => Store::Null,
        (StoreKind::File, None) => bail!("there is no path; give that of a file or block device"),
        (StoreKind::File, Some(path)) => {
            Store::File { path: path.clone(), is_direct: file.direct.unwrap_or(true) }
        }
    })
}

/// Checks a namespace that is to have this number in a subsystem.
///
/// # Errors
///
/// One sentence that names the value, its limit and the way out.
pub fn namespace(nqn: &str, nsid: u32, file: &NamespaceFile) -> Result<NamespaceConfig> {
    let nsid = in_range("nsid", nsid, 1, MAX_NSID)?;
    checked(nqn, nsid, file).with_context(|| format!("namespace {nsid}"))
}

fn checked(nqn: &str, nsid: u32, file: &NamespaceFile) -> Result<NamespaceConfig> {
    let block_bytes = file.block_bytes.unwrap_or(512);
    let block_shift = match block_bytes {
        512 => 9,
        4096 => 12,
        other => bail!("block_bytes is {other}; give 512 or 4096"),
    };
    let len_bytes = file.size.as_deref().map(bytes_of).transpose().context("size")?;
    let store = store(file)?;
    let len_bytes = len_bytes.map(|bytes| length(bytes, block_bytes, &store)).transpose()?;
    let has_own = match store {
        Store::Ram | Store::Null | Store::Peer(PeerSpec::Host) => false,
        Store::File { .. } | Store::Nvme { .. } | Store::Peer(_) => true,
    };
    ensure!(len_bytes.is_some() || has_own, "there is no size; give one, such as size = \"1GiB\"");
    let uuid = match &file.uuid {
        Some(text) => Uuid::parse_str(text).with_context(|| format!("uuid `{text}`"))?,
        None => Uuid::new_v5(&uuid_of(nqn), &nsid.to_le_bytes()),
    };
    ensure!(!uuid.is_nil(), "uuid is all zeros; leave it out, or give another");
    let (read_only, atomic, uuid) = (file.read_only, file.atomic, uuid.into_bytes());
    let ana_group = in_range("ana_group", file.ana_group, 1, MAX_GROUPS)?;
    Ok(NamespaceConfig { nsid, len_bytes, block_shift, store, uuid, atomic, read_only, ana_group })
}

#[cfg(test)]
mod tests;
