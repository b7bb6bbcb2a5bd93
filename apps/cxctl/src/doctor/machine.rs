//! Checks of the whole machine.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ferrocx_app_common::cores::{self, Costs, Setting};

use super::{Finding, Need, Severity};
use crate::bind::{self, VFIO};
use crate::host::{Nic, Tree};
use crate::hugepages;

/// All of them, in the order in which they should be mended.
pub fn checks(tree: &Tree, nics: &[Nic], need: &Need) -> Vec<Finding> {
    let mut bound = nics.iter().filter(|nic| nic.driver.as_deref() == Some(VFIO)).peekable();
    let by_file = bound.peek().is_some() && bound.all(|nic| opens_by_file(tree, nic, need));
    let mut found = vec![
        adapters(nics),
        iommu(tree),
        noiommu(tree),
        vfio_pci(tree),
        vfio_type1(tree, by_file),
        dma_entries(tree),
        vfio_node(tree, need, by_file),
        memlock(tree, need),
        hugepages(tree, nics, need),
        isolated(tree),
        numa_balancing(tree),
    ];
    found.extend(polling_cores(tree));
    found
}

fn adapters(nics: &[Nic]) -> Finding {
    let check = "adapters";
    if nics.is_empty() {
        let mend = "seat the card, look for it with `lspci -d 15b3:`, or name another device";
        return Finding::problem(check, "no ConnectX-4 or later in this machine", mend);
    }
    Finding::ok(check, format!("{} found", nics.len()))
}

/// Words of the kernel's command line.
fn cmdline(tree: &Tree) -> Vec<String> {
    let text = tree.text("proc/cmdline").unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// The IOMMU exists, and the kernel uses it.
fn iommu(tree: &Tree) -> Finding {
    let check = "iommu";
    let groups = tree.list("sys/kernel/iommu_groups").len();
    if groups != 0 {
        return Finding::ok(check, format!("on, {groups} groups"));
    }
    let off = ["iommu=off", "intel_iommu=off", "amd_iommu=off"];
    if let Some(word) = cmdline(tree).iter().find(|word| off.contains(&word.as_str())) {
        let mend = format!("take {word} off the kernel command line and boot again");
        return Finding::problem(check, format!("switched off by {word}"), mend);
    }
    let tables = "sys/firmware/acpi/tables";
    if tree.exists(format!("{tables}/DMAR")) {
        let mend = "add intel_iommu=on to the kernel command line and boot again";
        return Finding::problem(check, "VT-d is there, the kernel does not use it", mend);
    }
    if tree.exists(format!("{tables}/IVRS")) {
        // It is on unless the firmware or the kernel's configuration says otherwise: there is no
        // amd_iommu=on. Source: Linux `iommu/amd/init.c`, `parse_amd_iommu_options`.
        let mend = "`dmesg | grep AMD-Vi` says why";
        return Finding::problem(check, "AMD-Vi is there, the kernel does not use it", mend);
    }
    let mend = "switch VT-d or AMD-Vi on in the firmware's setup (in a virtual machine: give it a \
                virtual IOMMU)";
    Finding::problem(check, "there is none", mend)
}

fn noiommu(tree: &Tree) -> Finding {
    let check = "no-iommu";
    if bind::noiommu_is_on(tree) {
        let mend = "echo N >/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
        return Finding::warning(check, "VFIO may give devices away without an IOMMU", mend);
    }
    Finding::ok(check, "VFIO's unsafe mode is off")
}

fn vfio_pci(tree: &Tree) -> Finding {
    let check = "vfio-pci";
    if tree.exists("sys/bus/pci/drivers/vfio-pci") {
        return Finding::ok(check, "loaded");
    }
    let mend = "modprobe vfio-pci (for good: a line vfio-pci in /etc/modules-load.d/vfio.conf)";
    Finding::problem(check, "the driver is not loaded", mend)
}

/// What is not needed by whoever may open every device by its own file.
fn not_needed(check: &'static str) -> Finding {
    Finding::ok(check, "not needed: devices are opened by their own files")
}

fn vfio_type1(tree: &Tree, by_file: bool) -> Finding {
    let check = "vfio-type1";
    if tree.exists("sys/module/vfio_iommu_type1") {
        return Finding::ok(check, "loaded");
    }
    if by_file {
        return not_needed(check);
    }
    Finding::problem(check, "vfio_iommu_type1 is not loaded", "modprobe vfio_iommu_type1")
}

/// Mappings that a process may have; the kernel's default is 65,535.
fn dma_entries(tree: &Tree) -> Finding {
    const DEFAULT: u64 = 65_535;
    let check = "dma-entries";
    let path = "sys/module/vfio_iommu_type1/parameters/dma_entry_limit";
    match tree.number::<u64>(path) {
        Some(limit) if limit < DEFAULT => Finding::warning(
            check,
            format!("a process may map {limit} ranges, {DEFAULT} is the kernel's default"),
            format!("echo {DEFAULT} >/{path}"),
        ),
        Some(limit) => Finding::ok(check, format!("a process may map {limit} ranges")),
        None => Finding::ok(check, "the kernel names no limit"),
    }
}

/// Whether the user may read and write a file, by its mode.
pub(super) fn may_use(tree: &Tree, path: impl AsRef<Path>, need: &Need) -> Option<bool> {
    let data = fs::metadata(tree.path(path)).ok()?;
    let shift = match (data.uid() == need.uid, need.gids.contains(&data.gid())) {
        (true, _) => 6,
        (false, true) => 3,
        (false, false) => 0,
    };
    Some(need.uid == 0 || data.mode() >> shift & 0o6 == 0o6)
}

/// Whether the user may open the function by its own file, which needs no file of its group.
pub(super) fn opens_by_file(tree: &Tree, nic: &Nic, need: &Need) -> bool {
    let may = |path: &Path| may_use(tree, path, need) == Some(true);
    nic.device_file().is_some_and(may) && may(Path::new("dev/iommu"))
}

fn vfio_node(tree: &Tree, need: &Need, by_file: bool) -> Finding {
    let check = "vfio-node";
    let path = "dev/vfio/vfio";
    match may_use(tree, path, need) {
        Some(true) => Finding::ok(check, format!("/{path} may be opened")),
        _ if by_file => not_needed(check),
        Some(false) => {
            let text = format!("user {} may not open /{path}", need.uid);
            Finding::problem(check, text, format!("chmod 0666 /{path} (it gives no device away)"))
        }
        None => Finding::problem(check, format!("there is no /{path}"), "modprobe vfio"),
    }
}

/// Bytes that may be locked, by `proc/self/limits`; `None` is no limit.
fn locked_limit(tree: &Tree) -> Option<Option<u64>> {
    let text = tree.text("proc/self/limits")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(None),
        soft => Some(Some(soft.parse().ok()?)),
    }
}

/// Whether this process may lock what it likes. Root may not in a container that took the right
/// away. Source: capability.h, CAP_IPC_LOCK.
fn may_lock_all(tree: &Tree) -> bool {
    const IPC_LOCK: u32 = 14;
    let status = tree.text("proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok());
    rights.is_none_or(|rights| rights >> IPC_LOCK & 1 == 1)
}

fn memlock(tree: &Tree, need: &Need) -> Finding {
    let check = "memlock";
    let whose = if need.is_caller { "" } else { " in this shell" };
    match locked_limit(tree) {
        _ if need.uid == 0 && (!need.is_caller || may_lock_all(tree)) => {
            Finding::ok(check, "no limit for root")
        }
        Some(Some(limit)) if limit < need.bytes => Finding::problem(
            check,
            format!("{limit} bytes may be locked{whose}, {} are needed", need.bytes),
            format!(
                "ulimit -l {} in the shell that starts the program, or `memlock` in \
                 /etc/security/limits.conf",
                need.bytes.div_ceil(1024)
            ),
        ),
        Some(Some(limit)) => Finding::ok(check, format!("{limit} bytes may be locked{whose}")),
        Some(None) => Finding::ok(check, format!("no limit{whose}")),
        None => Finding::warning(check, "the limit cannot be read", "mount /proc"),
    }
}

/// Enough free hugepages of 2 MiB, on the node of each adapter. Those of 1 GiB serve regions of
/// half a GiB and more alone, and how large each region is, is not known here.
fn hugepages(tree: &Tree, nics: &[Nic], need: &Need) -> Finding {
    const SIZE_KIB: u64 = 2048;
    let check = "hugepages";
    let mut rows = hugepages::table(tree);
    rows.retain(|row| row.size_kib == SIZE_KIB);
    let need_kib = need.bytes.div_ceil(1024);
    let fits = |node: Option<u32>| {
        let here =
            rows.iter().filter(|row| node.is_none() || row.node.is_none() || row.node == node);
        here.map(|row| row.free * row.size_kib).sum::<u64>() >= need_kib
    };
    let reserve = |node: Option<u32>| {
        let node = node.map(|node| format!(" --node {node}")).unwrap_or_default();
        format!("cxctl hugepages reserve {}{node} --apply", need_kib.div_ceil(SIZE_KIB))
    };
    if rows.iter().all(|row| row.total == 0) {
        let text = "none of 2 MiB are reserved; 4 KiB pages cost speed";
        return Finding::warning(check, text, reserve(None));
    }
    if !fits(None) {
        let free: u64 = rows.iter().map(|row| row.free * row.size_kib).sum();
        let text = format!("{free} KiB are free, {need_kib} KiB are needed");
        return Finding::warning(check, text, reserve(None));
    }
    let far = nics.iter().find(|nic| nic.numa_node.is_some() && !fits(nic.numa_node));
    if let Some(nic) = far {
        let node = nic.numa_node.unwrap_or(0);
        let text = format!("too few are free on node {node}, where {} is", nic.address);
        return Finding::warning(check, text, reserve(nic.numa_node));
    }
    Finding::ok(check, format!("{need_kib} KiB are needed and free"))
}

/// Cores that the scheduler leaves alone.
pub(super) fn isolated_cores(tree: &Tree) -> Vec<usize> {
    cores::isolated(&tree.path(""))
}

fn isolated(tree: &Tree) -> Finding {
    let check = "isolated";
    if isolated_cores(tree).is_empty() {
        let mend = "add isolcpus=managed_irq,domain,LIST to the kernel command line";
        return Finding::warning(check, "no core is isolated: others run on polling cores", mend);
    }
    let text = tree.text("sys/devices/system/cpu/isolated").unwrap_or_default();
    Finding::ok(check, format!("cores {text}"))
}

/// Every core.
fn all_cores(tree: &Tree) -> Vec<usize> {
    let names = tree.list("sys/devices/system/cpu");
    names.iter().filter_map(|name| name.strip_prefix("cpu")?.parse().ok()).collect()
}

/// What costs time on the isolated cores, which are there to poll, and on any core that is slow:
/// of each setting the first core that has it wrong.
fn polling_cores(tree: &Tree) -> Vec<Finding> {
    let isolated = isolated_cores(tree);
    let mut found: Vec<Finding> = Vec::new();
    for core in all_cores(tree) {
        let settings = cores::settings(&tree.path(""), core).into_iter();
        let is_asked = |setting: &Setting| match setting.check {
            "governor" => true,
            // Which cores are, and which node is near, is said apart.
            "isolated" | "nodes" => false,
            _ => isolated.contains(&core),
        };
        for Setting { check, is, costs } in settings.filter(is_asked) {
            let finding = match costs {
                Some(Costs { why, mend }) => {
                    Finding::warning(check, format!("core {core}: {is}; {why}"), mend)
                }
                None => Finding::ok(check, "nothing that costs time"),
            };
            match found.iter_mut().find(|known| known.check == check) {
                Some(known) if known.severity == Severity::Ok => *known = finding,
                Some(_) => {}
                None => found.push(finding),
            }
        }
    }
    found
}

fn numa_balancing(tree: &Tree) -> Finding {
    let check = "numa-balance";
    let nodes = node_count(tree);
    if nodes > 1 && tree.number::<u32>("proc/sys/kernel/numa_balancing").unwrap_or(0) != 0 {
        let mend = "sysctl -w kernel.numa_balancing=0";
        return Finding::warning(check, "the kernel moves pages between nodes", mend);
    }
    Finding::ok(check, "off, or one node only")
}

/// NUMA nodes of the machine.
pub(super) fn node_count(tree: &Tree) -> usize {
    let names = tree.list("sys/devices/system/node");
    let is_node =
        |name: &&String| name.strip_prefix("node").is_some_and(|rest| rest.parse::<u32>().is_ok());
    names.iter().filter(is_node).count()
}
