//! `cxctl bind` and `unbind`: hands a function from its driver to vfio-pci and back.
//!
//! # What is written
//!
//! | step | bind | unbind |
//! |---|---|---|
//! | which driver may take it | `vfio-pci` into `driver_override` | what stood there before |
//! | the present driver lets go | its address into `unbind` | the same |
//! | the kernel looks for a driver | its address into `drivers_probe` | the same, or into `bind` |
//!
//! What was before is kept in `/run/ferrocx/bind/ADDRESS`, so that `unbind` restores it.
//!
//! # Limits
//!
//! Routes are those that [`crate::host::routes`] sees: the main table of this network namespace.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::host::{Nic, Tree, routes};

/// The driver that gives functions to user space.
pub const VFIO: &str = "vfio-pci";
/// Where the state before is kept.
const KEPT: &str = "run/ferrocx/bind";
/// How long the kernel may take to find a driver.
const PROBE_TIME: Duration = Duration::from_secs(2);

/// One value written to a file of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The file, relative: `sys/bus/pci/drivers_probe`.
    pub path: PathBuf,
    /// What is written, and a newline behind it.
    pub value: String,
}

impl Write {
    fn new(path: impl Into<PathBuf>, value: &str) -> Self {
        Self { path: path.into(), value: value.to_owned() }
    }

    /// As a shell would do it.
    #[must_use]
    pub fn shell(&self) -> String {
        let value = if self.value.is_empty() { String::new() } else { format!("{} ", self.value) };
        format!("echo {value}>/{}", self.path.display())
    }
}

/// Who carries out writes: the kernel, or a test that plays it.
pub trait Kernel {
    /// Writes `value` and a newline to a file that exists.
    ///
    /// # Errors
    ///
    /// What the kernel answers.
    fn write(&self, path: &Path, value: &str) -> io::Result<()>;
}

/// The kernel of this machine.
#[derive(Debug, Clone, Copy)]
pub struct Live;

impl Kernel for Live {
    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        use std::io::Write as _;
        // One call to write: sysfs takes each as a value of its own.
        fs::OpenOptions::new().write(true).open(path)?.write_all(format!("{value}\n").as_bytes())
    }
}

/// What stood before a function was bound.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Before {
    driver: Option<String>,
    driver_override: String,
}

impl Before {
    fn path(address: &str) -> PathBuf {
        Path::new(KEPT).join(address)
    }

    fn load(tree: &Tree, address: &str) -> Option<Self> {
        let text = tree.text(Self::path(address))?;
        let (driver, driver_override) = text.split_once('\n').unwrap_or((&text, ""));
        let driver = (driver != "-").then(|| driver.to_owned());
        Some(Self { driver, driver_override: driver_override.trim().to_owned() })
    }

    fn save(&self, tree: &Tree, address: &str) -> Result<()> {
        let path = tree.path(Self::path(address));
        let driver = self.driver.as_deref().unwrap_or("-");
        let text = format!("{driver}\n{}\n", self.driver_override);
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&path, text))
            .with_context(|| {
                format!("keeping the present driver in {}; run as root", path.display())
            })
    }
}

/// What a function's `driver_override` says; empty if it says nothing.
fn driver_override(tree: &Tree, address: &str) -> String {
    let text = tree.text(Tree::device(address).join("driver_override"));
    text.filter(|text| text != "(null)").unwrap_or_default()
}

/// Refuses a function that the machine needs.
fn check_unused(tree: &Tree, nic: &Nic) -> Result<()> {
    let address = &nic.address;
    // The kernel makes the folder with the first interface, and shows those of this namespace.
    let folder = Tree::device(address).join("net");
    ensure!(
        !nic.netdevs.is_empty() || !tree.exists(&folder) || !tree.list(&folder).is_empty(),
        "{address} is not unbound: its interface is in another network namespace, as a \
         container's; end that first, or bring it back: ip link set NAME netns 1"
    );
    for netdev in &nic.netdevs {
        let name = &netdev.name;
        if let Some(user) = netdev.used_by.first() {
            bail!(
                "{address} is not unbound: its interface {name} is used by {user}; take it out \
                 first, for example with `ip link set {name} nomaster` or `ip link del {user}`"
            );
        }
        let routes = routes::routes(tree);
        let mut through = routes.iter().filter(|route| route.netdev == *name);
        if let Some(route) = through.next() {
            let more = match through.count() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            bail!(
                "{address} is not unbound: its interface {name} carries the route to {}{more}; \
                 move it to another interface first, for example with `ip addr flush dev {name}`",
                route.destination
            );
        }
    }
    ensure!(
        nic.vfs == 0,
        "{address} is not unbound: it has {} virtual functions, which would vanish; end them \
         first: echo 0 >/{}",
        nic.vfs,
        Tree::device(address).join("sriov_numvfs").display()
    );
    Ok(())
}

/// Processes that hold a function's own file of VFIO or its group's open, as `name (pid)`.
#[must_use]
pub fn holders(tree: &Tree, nic: &Nic) -> Vec<String> {
    let group = nic.group_file().map(|file| Path::new("/").join(file));
    let wanted: Vec<_> = nic.vfio_file.clone().into_iter().chain(group).collect();
    let holds = |pid: &String| {
        let folder = Path::new("proc").join(pid).join("fd");
        let mut links = tree.list(&folder).into_iter();
        links.any(|fd| {
            fs::read_link(tree.path(folder.join(fd))).is_ok_and(|at| wanted.contains(&at))
        })
    };
    let pids = tree.list("proc");
    let pids = pids.iter().filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()));
    pids.filter(|pid| holds(pid))
        .map(|pid| {
            let name = tree.text(Path::new("proc").join(pid).join("comm")).unwrap_or_default();
            format!("{name} ({pid})")
        })
        .collect()
}

fn unbind_write(address: &str, driver: &str) -> Write {
    Write::new(Path::new("sys/bus/pci/drivers").join(driver).join("unbind"), address)
}

fn override_write(address: &str, driver: &str) -> Write {
    Write::new(Tree::device(address).join("driver_override"), driver)
}

fn probe_write(address: &str) -> Write {
    Write::new("sys/bus/pci/drivers_probe", address)
}

/// What is written to hand a function to vfio-pci; nothing if it has it already.
///
/// # Errors
///
/// One sentence about why it must not or cannot be done, and the way out.
pub fn plan_bind(tree: &Tree, address: &str) -> Result<Vec<Write>> {
    let nic = Nic::read(tree, address)?;
    let address = &nic.address;
    if nic.driver.as_deref() == Some(VFIO) {
        return Ok(Vec::new());
    }
    check_unused(tree, &nic)?;
    ensure!(
        tree.exists(Path::new("sys/bus/pci/drivers").join(VFIO)),
        "the kernel has no driver vfio-pci yet; load it with `modprobe vfio-pci`"
    );
    ensure!(
        nic.group.is_some() || noiommu_is_on(tree),
        "{address} has no IOMMU group, so that vfio-pci would not take it; \
         `cxctl doctor {address}` says why"
    );
    let mut writes = vec![override_write(address, VFIO)];
    writes.extend(nic.driver.as_ref().map(|driver| unbind_write(address, driver)));
    writes.push(probe_write(address));
    Ok(writes)
}

/// Whether VFIO's mode without an IOMMU is on, which protects nothing.
#[must_use]
pub fn noiommu_is_on(tree: &Tree) -> bool {
    let text = tree.text("sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
    matches!(text.as_deref(), Some("Y" | "1"))
}

/// What is written to give a function back to the driver it had; nothing if vfio-pci does not have
/// it.
///
/// # Errors
///
/// One sentence about why it must not or cannot be done, and the way out.
pub fn plan_unbind(tree: &Tree, address: &str) -> Result<Vec<Write>> {
    let nic = Nic::read(tree, address)?;
    let address = &nic.address;
    let before = Before::load(tree, address);
    let overridden = driver_override(tree, address);
    if nic.driver.as_deref() != Some(VFIO) && overridden != VFIO && before.is_none() {
        return Ok(Vec::new());
    }
    if nic.driver.as_deref() == Some(VFIO) {
        let holders = holders(tree, &nic);
        ensure!(
            holders.is_empty(),
            "{address} is in use by {}; end it first, or the kernel would wait for it",
            holders.join(", ")
        );
    }
    let had_none = before.as_ref().is_some_and(|before| before.driver.is_none());
    let restore = before.unwrap_or_default();
    let mut writes = vec![override_write(address, &restore.driver_override)];
    if nic.driver.as_deref() == Some(VFIO) {
        writes.push(unbind_write(address, VFIO));
    }
    if !had_none {
        writes.push(probe_write(address));
    }
    Ok(writes)
}

/// Carries a plan of [`plan_bind`] out. If vfio-pci does not take the function, the driver before
/// gets it back.
///
/// # Errors
///
/// Which write was refused and why.
pub fn bind(tree: &Tree, kernel: &dyn Kernel, address: &str) -> Result<()> {
    let writes = plan_bind(tree, address)?;
    let nic = Nic::read(tree, address)?;
    let address = &nic.address;
    if writes.is_empty() {
        return Ok(());
    }
    let driver_override = driver_override(tree, address);
    Before { driver: nic.driver, driver_override }.save(tree, address)?;
    let done = carry_out(tree, kernel, &writes).and_then(|()| has_driver(tree, address, VFIO));
    let Err(error) = done else { return Ok(()) };
    match unbind(tree, kernel, address) {
        Ok(()) => Err(error.context("vfio-pci was not bound; all is as before")),
        Err(worse) => Err(error.context(format!("and the way back failed: {worse:#}"))),
    }
}

/// Carries a plan of [`plan_unbind`] out.
///
/// # Errors
///
/// Which write was refused and why, or that the driver before did not take the function again.
pub fn unbind(tree: &Tree, kernel: &dyn Kernel, address: &str) -> Result<()> {
    let writes = plan_unbind(tree, address)?;
    let address = &Nic::read(tree, address)?.address;
    let before = Before::load(tree, address);
    carry_out(tree, kernel, &writes)?;
    if let Some(Before { driver: Some(driver), .. }) = &before {
        has_driver(tree, address, driver)?;
    }
    let kept = tree.path(Before::path(address));
    match fs::remove_file(&kept) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("deleting {}", kept.display()))
        }
        _ => Ok(()),
    }
}

fn carry_out(tree: &Tree, kernel: &dyn Kernel, writes: &[Write]) -> Result<()> {
    for write in writes {
        kernel.write(&tree.path(&write.path), &write.value).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::PermissionDenied => "; run as root",
                _ => "; dmesg may say more",
            };
            anyhow::anyhow!("`{}` was refused: {error}{hint}", write.shell())
        })?;
    }
    Ok(())
}

/// Waits until a function is bound to `driver`.
fn has_driver(tree: &Tree, address: &str, driver: &str) -> Result<()> {
    let deadline = Instant::now() + PROBE_TIME;
    loop {
        let now = tree.link(Tree::device(address).join("driver"));
        if now.as_deref() == Some(driver) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let now = now.unwrap_or_else(|| "no driver".to_owned());
            bail!(
                "{address} is bound to {now}, not to {driver}; load its module if it is not \
                 loaded (modprobe), else dmesg may say why"
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
#[path = "bind_tests.rs"]
mod tests;
