//! Recordings for tests: a machine as its kernel shows it, file by file, and a kernel that does
//! what Linux does with the files that `bind` writes.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::bind::Kernel;
use crate::host::Tree;

/// The adapter, on node 0, below a switch.
pub(crate) const NIC: &str = "0000:3d:00.0";
/// A GPU below the same switch.
pub(crate) const GPU: &str = "0000:3e:00.0";
/// The switch: its upstream port, and the ports above adapter and GPU.
pub(crate) const SWITCH: [&str; 3] = ["0000:3b:00.0", "0000:3c:00.0", "0000:3c:01.0"];
const ROOT: &str = "sys/devices/pci0000:3a/0000:3a:00.0";

/// A recorded machine in a temporary folder.
pub(crate) struct Recorded {
    folder: tempfile::TempDir,
}

impl Recorded {
    /// A machine with nothing wrong: two nodes, IOMMU, a ConnectX-5 on vfio-pci, a GPU.
    pub(crate) fn good() -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap() };
        machine.file("proc/cmdline", "root=/dev/sda intel_iommu=on isolcpus=2-3 nohz_full=2-3");
        machine.file("proc/self/limits", LIMITS);
        machine.file("proc/sys/kernel/numa_balancing", "0");
        machine.file("proc/net/route", ROUTES);
        machine.file("proc/net/ipv6_route", "");
        machine.file("sys/firmware/acpi/tables/DMAR", "DMAR");
        machine.file("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "N");
        machine.file("sys/module/vfio_iommu_type1/parameters/dma_entry_limit", "65535");
        machine.file("sys/devices/system/cpu/isolated", "2-3");
        machine.file("sys/devices/system/cpu/nohz_full", "2-3");
        let clock = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        machine.file(clock, "tsc");
        for cpu in 0..4 {
            let governor = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
            machine.file(&governor, "performance");
            let node = 1 - cpu / 2;
            machine.dir(&format!("sys/devices/system/node/node{node}/cpu{cpu}"));
        }
        for node in 0..2 {
            machine.hugepages(&format!("sys/devices/system/node/node{node}/hugepages"), 256, 200);
        }
        machine.hugepages("sys/kernel/mm/hugepages", 512, 400);
        machine.file("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "10");
        machine.mode("dev/vfio/vfio", 0o666);
        machine.mode("dev/vfio/12", 0o666);
        for driver in ["vfio-pci", "mlx5_core", "pcieport", "nvidia"] {
            machine.dir(&format!("sys/bus/pci/drivers/{driver}"));
        }
        let [up, to_nic, to_gpu] = SWITCH.map(|port| format!("{ROOT}/{}/{port}", SWITCH[0]));
        machine.device(&up.replacen(&format!("{}/", SWITCH[0]), "", 1), BRIDGE, "pcieport", 9);
        machine.device(&to_nic, BRIDGE, "pcieport", 10);
        machine.device(&to_gpu, BRIDGE, "pcieport", 11);
        machine.acs(SWITCH[1], 0);
        machine.acs(SWITCH[2], 0);
        machine.device(
            &format!("{to_nic}/{NIC}"),
            ("0x15b3", "0x1017", "0x020000"),
            "vfio-pci",
            12,
        );
        machine.device(&format!("{to_gpu}/{GPU}"), ("0x10de", "0x2330", "0x030200"), "nvidia", 13);
        machine.gpu_file("resource", GPU_BARS);
        machine.gpu_file("resource1_resize", "000000000000fc00");
        machine.gpu_file("enable", "1");
        machine.gpu_file("numa_node", "0");
        for (file, text) in [
            ("numa_node", "0"),
            ("resource", "0x00000000c2000000 0x00000000c3ffffff 0x000000000014220c"),
            ("reset", ""),
            ("driver_override", "(null)"),
            ("sriov_numvfs", "0"),
            ("current_link_width", "16"),
            ("max_link_width", "16"),
            ("current_link_speed", "8.0 GT/s PCIe"),
            ("max_link_speed", "8.0 GT/s PCIe"),
        ] {
            machine.nic_file(file, text);
        }
        machine
    }

    /// The same, with the adapter still at its own driver: interface `enp61s0np0`, up.
    pub(crate) fn with_kernel_driver() -> Self {
        let machine = Self::good();
        machine.set_driver(NIC, Some("mlx5_core"));
        machine.netdev("enp61s0np0");
        machine.nic_file("infiniband/mlx5_0/fw_ver", "16.35.4030");
        machine.nic_file("infiniband/mlx5_0/ports/1/link_layer", "Ethernet");
        machine
    }

    pub(crate) fn tree(&self) -> Tree {
        Tree::new(self.folder.path())
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn file(&self, path: &str, text: &str) {
        self.bytes(path, format!("{text}\n").as_bytes());
    }

    pub(crate) fn bytes(&self, path: &str, bytes: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    pub(crate) fn dir(&self, path: &str) {
        fs::create_dir_all(self.path(path)).unwrap();
    }

    /// A file with these rights.
    pub(crate) fn mode(&self, path: &str, mode: u32) {
        self.file(path, "");
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    pub(crate) fn nic_file(&self, file: &str, text: &str) {
        self.file(&format!("sys/bus/pci/devices/{NIC}/{file}"), text);
    }

    pub(crate) fn gpu_file(&self, file: &str, text: &str) {
        self.file(&format!("sys/bus/pci/devices/{GPU}/{file}"), text);
    }

    pub(crate) fn hugepages(&self, folder: &str, total: u32, free: u32) {
        let folder = format!("{folder}/hugepages-2048kB");
        self.file(&format!("{folder}/nr_hugepages"), &total.to_string());
        self.file(&format!("{folder}/free_hugepages"), &free.to_string());
        self.file(&format!("{folder}/surplus_hugepages"), "0");
    }

    /// A PCI device at its place below `sys/devices`, with ids and class, driver and group.
    pub(crate) fn device(&self, place: &str, ids: (&str, &str, &str), driver: &str, group: u32) {
        let name = Path::new(place).file_name().unwrap().to_str().unwrap();
        self.file(&format!("{place}/vendor"), ids.0);
        self.file(&format!("{place}/device"), ids.1);
        self.file(&format!("{place}/class"), ids.2);
        self.link(&format!("sys/bus/pci/devices/{name}"), self.path(place));
        self.set_driver(name, Some(driver));
        let members = format!("sys/kernel/iommu_groups/{group}/devices");
        self.link(&format!("{members}/{name}"), self.path(place));
        self.link(&format!("{place}/iommu_group"), self.path(members.trim_end_matches("/devices")));
    }

    pub(crate) fn set_driver(&self, name: &str, driver: Option<&str>) {
        let link = format!("sys/bus/pci/devices/{name}/driver");
        let _ = fs::remove_file(self.path(&link));
        if let Some(driver) = driver {
            self.link(&link, self.path(&format!("sys/bus/pci/drivers/{driver}")));
        }
    }

    /// An interface of the adapter, up, 25 Gb/s.
    pub(crate) fn netdev(&self, name: &str) {
        let place = format!("sys/bus/pci/devices/{NIC}/net/{name}");
        self.file(&format!("{place}/carrier"), "1");
        self.file(&format!("{place}/speed"), "25000");
        self.file(&format!("{place}/type"), "1");
        self.link(&format!("sys/class/net/{name}"), self.path(&place));
    }

    /// Configuration space of a bridge whose second extended capability is ACS.
    pub(crate) fn acs(&self, bridge: &str, control: u16) {
        let mut config = vec![0; 4096];
        // Advanced error reporting, version 1, the next at 0x148; ACS, version 1, the last.
        config[0x100..0x104].copy_from_slice(&0x1481_0001_u32.to_le_bytes());
        config[0x148..0x14c].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
        config[0x14c..0x14e].copy_from_slice(&0x005f_u16.to_le_bytes());
        config[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
        self.bytes(&format!("sys/bus/pci/devices/{bridge}/config"), &config);
    }

    /// A process with an open file.
    pub(crate) fn process(&self, pid: u32, name: &str, open: &str) {
        self.file(&format!("proc/{pid}/comm"), name);
        self.file(
            &format!("proc/{pid}/status"),
            &format!("Name:\t{name}\nHugetlbPages:\t 4096 kB"),
        );
        self.link(&format!("proc/{pid}/fd/7"), open);
    }
}

/// Registers of 16 MiB, memory of 32 GiB, registers of 32 MiB behind it, and an I/O BAR.
const GPU_BARS: &str = "\
0x00000000c4000000 0x00000000c4ffffff 0x0000000000040200\n\
0x0000004000000000 0x00000047ffffffff 0x000000000014220c\n\
0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
0x0000004800000000 0x0000004801ffffff 0x000000000014220c\n\
0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
0x0000000000003000 0x000000000000307f 0x0000000000040101";
const BRIDGE: (&str, &str, &str) = ("0x10b5", "0x8764", "0x060400");

/// Two lines of what the kernel prints.
const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     \n\
Max locked memory         unlimited            unlimited            bytes     ";

/// The default route and the management network, through eth0.
const ROUTES: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
eth0\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0";

/// A kernel for [`Recorded`]: what it does is what Linux does in `drivers/pci/pci-driver.c` and
/// `drivers/base/bus.c` with these files.
pub(crate) struct FakeKernel<'a> {
    pub(crate) machine: &'a Recorded,
    /// The driver that takes the adapter if nothing is said.
    pub(crate) default: &'static str,
    /// A driver whose probe fails.
    pub(crate) broken: Option<&'static str>,
    /// All that was written.
    pub(crate) writes: RefCell<Vec<String>>,
}

impl<'a> FakeKernel<'a> {
    pub(crate) fn new(machine: &'a Recorded) -> Self {
        Self { machine, default: "mlx5_core", broken: None, writes: RefCell::default() }
    }
}

impl Kernel for FakeKernel<'_> {
    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        let path = path.strip_prefix(self.machine.path("")).unwrap();
        self.writes.borrow_mut().push(format!("{} {value}", path.display()));
        let tree = self.machine.tree();
        let link = |name: &str| tree.link(Tree::device(name).join("driver"));
        match path.file_name().unwrap().to_str().unwrap() {
            "driver_override" => {
                let text = if value.is_empty() { "(null)" } else { value };
                self.machine.file(path.to_str().unwrap(), text);
            }
            "unbind" => {
                let driver = path.parent().unwrap().file_name().unwrap().to_str();
                if link(value).as_deref() != driver {
                    return Err(io::ErrorKind::NotFound.into());
                }
                self.machine.set_driver(value, None);
            }
            "drivers_probe" if link(value).is_none() => {
                let wanted = tree.text(Tree::device(value).join("driver_override"));
                let wanted = wanted.filter(|text| text != "(null)");
                let driver = wanted.unwrap_or_else(|| self.default.to_owned());
                let exists = tree.exists(Path::new("sys/bus/pci/drivers").join(&driver));
                if exists && self.broken != Some(&driver) {
                    self.machine.set_driver(value, Some(&driver));
                }
            }
            "nr_hugepages" => self.machine.file(path.to_str().unwrap(), value),
            _ => {}
        }
        Ok(())
    }
}
