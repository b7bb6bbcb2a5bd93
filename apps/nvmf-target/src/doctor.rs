//! `nvmf-target doctor`: what of this machine is not as a target of a file needs it, and how to
//! mend it. It opens no device and changes nothing.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ferrocx::lcore::Lcores;
use ferrocx_app_common::exit::sentence;
use ferrocx_app_common::host::Host;
use ferrocx_app_common::peer::PeerSpec;
use ferrocx_nvme::{Sysfs, check_ready};
use ferrocx_uring::Ring;
use rustix::fs::{FlockOperation, flock};

use crate::config::{Config, Store};
use crate::keeper;
use crate::peer::resource;
use crate::store::{check_direct, wrong_kind};

/// How a thing is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// As it should be.
    Right(String),
    /// The target works, and could work better.
    Could(String),
    /// The target does not work.
    Wrong(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Right(text) => write!(f, "ok    {text}"),
            Self::Could(text) => write!(f, "note  {text}"),
            Self::Wrong(text) => write!(f, "WRONG {text}"),
        }
    }
}

/// Looks at the machine for a target of a file, and says what it finds.
///
/// # Errors
///
/// Something is wrong.
pub fn run(path: &Path) -> Result<()> {
    let place = || format!("{}", path.display());
    let text = fs::read_to_string(path).with_context(place)?;
    let config = Config::parse(&text).with_context(place)?;
    let found = examine(&config, &Host::read());
    for finding in &found {
        println!("{finding}");
    }
    let wrong = found.iter().filter(|it| matches!(it, Finding::Wrong(_))).count();
    ensure!(wrong == 0, "{wrong} of {} things are wrong; mend what is named above", found.len());
    Ok(())
}

/// Looks at the machine for a target of a file.
#[must_use]
pub fn examine(config: &Config, host: &Host) -> Vec<Finding> {
    let mut found = vec![device(&config.device)];
    found.extend(memory(config, host));
    found.extend(cores(&config.cores));
    found.extend(config.socket.iter().map(|path| socket(path)));
    found.extend(config.server.reservations.iter().map(|path| reservations(path, config)));
    let mut has_file = false;
    for subsystem in &config.subsystems {
        for namespace in &subsystem.namespaces {
            match &namespace.store {
                Store::File { path, is_direct } => {
                    has_file = true;
                    let direct = is_direct.then(|| 1 << namespace.block_shift);
                    found.push(file(path, direct, namespace.len_bytes));
                }
                Store::Nvme { address, nsid } => found.push(drive(address, *nsid)),
                Store::Peer(spec) => found.extend(peer(spec)),
                Store::Ram | Store::Null => {}
            }
        }
    }
    if has_file {
        found.push(match Ring::new(1) {
            Ok(_) => Finding::Right("io_uring is there, for files".into()),
            Err(error) => Finding::Wrong(format!(
                "io_uring: {error}; files need it: set kernel.io_uring_disabled to 0"
            )),
        });
    }
    if config.subsystems.is_empty() {
        found.push(Finding::Could("no subsystem is offered; add [[subsystem]]".into()));
    }
    for it in config.subsystems.iter().filter(|it| it.hosts.as_deref() == Some(&[])) {
        found.push(Finding::Could(format!(
            "nobody may connect to {}; set allow_any_host, or list hosts",
            it.nqn
        )));
    }
    found
}

fn reservations(path: &Path, config: &Config) -> Finding {
    let namespaces = config.subsystems.iter().flat_map(|it| &it.namespaces);
    match keeper::check(path, namespaces.map(|it| it.uuid)) {
        Ok(count) => {
            Finding::Right(format!("reservations of {count} namespaces are in {}", path.display()))
        }
        Err(error) => Finding::Wrong(sentence(&error)),
    }
}

fn device(device: &str) -> Finding {
    if device.starts_with("model") {
        return Finding::Right("the device is the software model".into());
    }
    let place = Path::new("/sys/bus/pci/devices").join(device);
    if !place.exists() {
        return Finding::Wrong(format!("there is no device {device}; see `cxctl status`"));
    }
    let driver = fs::read_link(place.join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name).map(|it| it.to_string_lossy());
    match driver.as_deref() {
        Some("vfio-pci") => Finding::Right(format!("{device} is bound to vfio-pci")),
        other => Finding::Wrong(format!(
            "{device} is bound to {}; run `cxctl bind {device} --apply`",
            other.unwrap_or("no driver")
        )),
    }
}

/// Bytes of a hugepage.
const HUGEPAGE: u64 = 2 << 20;
/// Bytes of a page of others.
const PAGE: u64 = 4096;

/// Bytes that a target of a file keeps for the port to read and write, by pages of so many: no two
/// regions share one. A queue has two, for what it receives and for what commands bring.
fn needed_bytes(config: &Config, page: u64) -> u64 {
    let namespaces = config.subsystems.iter().flat_map(|it| &it.namespaces);
    let ram = namespaces.filter(|it| it.store == Store::Ram).filter_map(|it| it.len_bytes);
    let pollers = config.cores.len().max(1) as u64;
    let buffers = config.server.pool_bytes(config.settings.max_transfer()) as u64;
    let entries = u64::from(config.settings.entries);
    let receives = entries * (4096 + u64::from(config.settings.in_capsule_bytes));
    let whole = |bytes: u64| bytes.next_multiple_of(page);
    let queues = u64::from(config.server.queues) * (whole(receives) + whole(entries * 4096));
    ram.map(whole).sum::<u64>() + whole(buffers) * pollers + queues
}

fn memory(config: &Config, host: &Host) -> Vec<Finding> {
    let need = needed_bytes(config, HUGEPAGE);
    let mib = need.div_ceil(1 << 20);
    let hint = host.hugepage_hint(need);
    let locked = if hint.is_some() { needed_bytes(config, PAGE) } else { need };
    let mut found = vec![match hint {
        None => Finding::Right(format!("{mib} MiB fit into the free hugepages")),
        Some(hint) => Finding::Could(hint),
    }];
    let namespaces = config.subsystems.iter().flat_map(|it| &it.namespaces);
    let has_drive = namespaces.into_iter().any(|it| matches!(it.store, Store::Nvme { .. }));
    if config.device.starts_with("model") && !has_drive {
        return found;
    }
    if !host.iommu {
        let what = "the kernel has no IOMMU groups; add intel_iommu=on or amd_iommu=on to its \
                    command line";
        found.push(Finding::Wrong(what.into()));
    }
    if let Some(limit) = host.memlock_bytes.filter(|limit| *limit < locked && !host.root) {
        found.push(Finding::Wrong(format!(
            "{limit} bytes may be locked, and {locked} are wanted; raise `ulimit -l` or \
             LimitMEMLOCK="
        )));
    }
    found
}

fn cores(cores: &[usize]) -> Option<Finding> {
    if cores.is_empty() {
        let what = "no cores are listed: one thread polls, wherever the system puts it";
        return Some(Finding::Could(what.into()));
    }
    let known: Vec<usize> = match Lcores::detect() {
        Ok(lcores) => lcores.ids().collect(),
        Err(error) => return Some(Finding::Wrong(error.to_string())),
    };
    let missing = cores.iter().find(|core| !known.contains(core));
    Some(match missing {
        None => Finding::Right(format!("{} cores are there", cores.len())),
        Some(core) => Finding::Wrong(format!(
            "core {core} is not among those that this process may use, {known:?}; list others"
        )),
    })
}

fn socket(path: &Path) -> Finding {
    let name = path.display();
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            Finding::Wrong(format!("{name} is there and is no socket; give another path"))
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            Finding::Wrong(format!("another target answers at {name}; give another path"))
        }
        Ok(_) => Finding::Right(format!("{name} was left by an earlier target")),
        Err(_) if path.parent().is_some_and(|it| it.as_os_str().is_empty() || it.is_dir()) => {
            Finding::Right(format!("{name} can be made"))
        }
        Err(_) => Finding::Wrong(format!("the folder of {name} is not there; make it")),
    }
}

fn peer(spec: &PeerSpec) -> Option<Finding> {
    if let PeerSpec::Vfio(address, _) = spec {
        return Some(device(&address.to_string()));
    }
    let path = resource(spec)?;
    let name = path.display();
    Some(match OpenOptions::new().read(true).write(true).open(&path) {
        Ok(_) => Finding::Right(format!("{spec} is there: {name}")),
        Err(error) => Finding::Wrong(format!("{name}: {error}; see `lspci -v` for BARs there are")),
    })
}

fn drive(address: &str, nsid: u32) -> Finding {
    match check_ready(&Sysfs::default(), address) {
        Ok(()) => Finding::Right(format!(
            "drive {address} is bound to vfio-pci; its namespace {nsid} is seen when it is opened"
        )),
        Err(error) => Finding::Wrong(error.to_string()),
    }
}

/// `direct` are the bytes of a block that is read and written around the page cache.
fn file(path: &Path, direct: Option<u32>, len_bytes: Option<u64>) -> Finding {
    let name = path.display();
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(_) if len_bytes.is_some() => {
            return Finding::Right(format!("file {name} will be made"));
        }
        Err(error) => return Finding::Wrong(format!("file {name}: {error}; give its size")),
    };
    if let Some(what) = wrong_kind(&found.file_type()) {
        return Finding::Wrong(format!("{name} is {what}; give a file or a block device"));
    }
    let opened = OpenOptions::new().read(true).open(path);
    let checked = opened.map_err(anyhow::Error::from).and_then(|file| {
        flock(&file, FlockOperation::NonBlockingLockExclusive).context("somebody else has it")?;
        direct.map_or(Ok(()), |block_bytes| check_direct(&file, block_bytes))
    });
    if let Err(error) = checked {
        return Finding::Wrong(format!("file {name}: {}", sentence(&error)));
    }
    Finding::Right(format!("file {name} is there, and nobody else has it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Host = Host {
        hugepages_2m: 1024,
        hugepages_2m_free: 1024,
        memlock_bytes: None,
        iommu: true,
        root: false,
    };

    fn of(text: &str, host: &Host) -> Vec<String> {
        let config = Config::parse(&format!("address = \"192.0.2.1/24\"\n{text}")).unwrap();
        examine(&config, host).iter().map(ToString::to_string).collect()
    }

    fn has(found: &[String], kind: &str, what: &str) -> bool {
        found.iter().any(|it| it.starts_with(kind) && it.contains(what))
    }

    #[test]
    fn a_good_machine_has_nothing_wrong() {
        let config = Config::parse(include_str!("../examples/ram.toml")).unwrap();
        let found: Vec<String> = examine(&config, &HOST).iter().map(ToString::to_string).collect();
        assert!(!found.iter().any(|it| it.starts_with("WRONG")), "{found:?}");
    }

    /// 64 queues of two regions, of 1 MiB and of 512 KiB; buffers of 10 MiB; RAM of 1 KiB.
    #[test]
    fn regions_share_no_page() {
        let config = Config::parse(
            "address = \"192.0.2.1/24\"\n[[subsystem]]\nnqn = \"nqn.2014-08.a:b\"\n\
             [[subsystem.namespace]]\nsize = \"1KiB\"",
        );
        let config = config.unwrap();
        assert_eq!(needed_bytes(&config, HUGEPAGE), (64 * 4 + 10 + 2) << 20);
        assert_eq!(needed_bytes(&config, PAGE), ((64 * 3) << 19) + (10 << 20) + 4096);
        let few = Host { hugepages_2m_free: 133, ..HOST };
        assert!(matches!(memory(&config, &few)[..], [Finding::Could(_)]));
        let enough = Host { hugepages_2m_free: 134, ..HOST };
        assert!(matches!(memory(&config, &enough)[..], [Finding::Right(_)]));
    }

    /// Every file system that says so moves 512 bytes at a time at least.
    #[test]
    fn blocks_that_are_too_short_for_direct_i_o_are_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = |direct| super::file(file.path(), direct, None).to_string();
        if check_direct(file.as_file(), 1).is_ok() {
            println!("skipped: this file system does not say what it moves at a time");
            return;
        }
        let said = found(Some(256));
        assert!(said.starts_with("WRONG") && said.contains("direct = false"), "{said}");
        assert!(found(None).starts_with("ok"));
    }

    #[test]
    fn each_fault_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::write(path("plain"), "x").unwrap();
        let held = fs::File::create(path("held")).unwrap();
        held.set_len(4096).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let namespace = |rest: &str| {
            format!(
                "[[subsystem]]\nnqn = \"nqn.2014-08.a:b\"\nallow_any_host = true\n\
                 [[subsystem.namespace]]\n{rest}"
            )
        };
        let file = |path: &str| namespace(&format!("backend = \"file\"\npath = \"{path}\""));
        for (text, kind, what) in [
            ("device = \"ffff:ff:1f.7\"".to_owned(), "WRONG", "no device ffff:ff:1f.7"),
            ("cores = [1023]".to_owned(), "WRONG", "core 1023 is not among"),
            (format!("socket = \"{}\"", path("plain")), "WRONG", "is no socket"),
            (format!("socket = \"{}\"", path("none/s")), "WRONG", "the folder of"),
            (format!("socket = \"{}\"", path("s")), "ok", "can be made"),
            (format!("reservations = \"{}\"", path("none")), "WRONG", "make that folder"),
            (format!("reservations = \"{}\"", path("")), "ok", "reservations of 0 namespaces"),
            (file(&path("none")), "WRONG", "give its size"),
            (file(&path("held")), "WRONG", "somebody else has it"),
            (file(&path("")), "WRONG", "is a folder"),
            (file(&path("plain")), "ok", "nobody else has it"),
            (namespace("backend = \"nvme\"\npath = \"ffff:ff:1f.7\""), "WRONG", "no PCI device"),
            (namespace("backend = \"peer\"\npath = \"pci:ffff:ff:1f.7/2\""), "WRONG", "resource2"),
            (String::new(), "note", "no subsystem is offered"),
            ("[[subsystem]]\nnqn = \"nqn.2014-08.a:b\"".to_owned(), "note", "nobody may connect"),
            (namespace("size = \"100GiB\""), "note", "free hugepages"),
        ] {
            let found = of(&text, &HOST);
            assert!(has(&found, kind, what), "{text}: {found:?}");
        }
        let drive = namespace("backend = \"nvme\"\npath = \"ffff:ff:1f.7\"");
        assert!(has(&of(&drive, &Host { iommu: false, ..HOST }), "WRONG", "no IOMMU groups"));
        let poor = Host { memlock_bytes: Some(4096), iommu: false, ..HOST };
        let found = of("device = \"0000:3b:00.0\"", &poor);
        assert!(
            has(&found, "WRONG", "IOMMU") && has(&found, "WRONG", "may be locked"),
            "{found:?}"
        );
    }
}
