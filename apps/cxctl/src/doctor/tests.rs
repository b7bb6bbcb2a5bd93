//! Each misconfiguration, made in a recording of a good machine: exactly its check complains, at
//! its severity, and says what mends it.

use std::fs;
use std::path::Path;

use super::*;
use crate::host::nics;
use crate::recorded::{GPU, NIC, Recorded, SWITCH};

fn need() -> Need {
    Need { bytes: 128 << 20, uid: 1000, gids: vec![1000], is_caller: true }
}

fn examined(machine: &Recorded, need: &Need) -> Vec<Finding> {
    let tree = machine.tree();
    examine(&tree, &nics(&tree, false), Some(GPU), need)
}

fn complaints(machine: &Recorded, need: &Need) -> Vec<Finding> {
    let mut found = examined(machine, need);
    found.retain(|finding| finding.severity != Severity::Ok);
    found
}

/// Makes a fault; `check` must name it, with these words in the text and in what mends it, and no
/// check but those of `also` may complain beside it.
#[track_caller]
fn fault(
    check: &str,
    severity: Severity,
    text: &str,
    mend: &str,
    also: &[&str],
    make: impl FnOnce(&Recorded),
) {
    let machine = Recorded::good();
    make(&machine);
    let found = complaints(&machine, &need());
    let named: Vec<_> = found.iter().filter(|finding| finding.check == check).collect();
    let [finding] = named[..] else { panic!("{check} said nothing: {found:?}") };
    assert_eq!(finding.severity, severity, "{finding:?}");
    assert!(finding.text.contains(text), "{text:?} is not in {finding:?}");
    let way_out = finding.mend.as_deref().unwrap_or_default();
    assert!(way_out.contains(mend), "{mend:?} is not in {finding:?}");
    let others = found.iter().filter(|finding| finding.check != check);
    let others: Vec<_> = others.filter(|finding| !also.contains(&finding.check)).collect();
    assert!(others.is_empty(), "beside {check}: {others:?}");
}

use Severity::{Problem, Warning};

#[test]
fn a_good_machine_is_good() {
    let found = examined(&Recorded::good(), &need());
    assert_eq!(worst(&found), Severity::Ok, "{found:#?}");
    assert_eq!(found.len(), 36);
    assert!(found.iter().all(|finding| finding.mend.is_none()));
    let line = found.iter().find(|finding| finding.check == "driver").unwrap().line();
    assert_eq!(line, format!("ok       driver       {NIC}: vfio-pci"));
}

#[test]
fn no_adapter() {
    let machine = Recorded::good();
    machine.remove(&format!("sys/bus/pci/devices/{NIC}"));
    let found = complaints(&machine, &need());
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].check, found[0].severity), ("adapters", Problem));
}

#[test]
fn iommu_missing_unused_or_switched_off() {
    let without = |machine: &Recorded| {
        machine.remove("sys/kernel/iommu_groups");
        for device in [NIC, GPU] {
            machine.remove(&format!("sys/bus/pci/devices/{device}/iommu_group"));
        }
    };
    let also = ["group"];
    fault("iommu", Problem, "the kernel does not use it", "intel_iommu=on", &also, without);
    fault("iommu", Problem, "AMD-Vi is there", "dmesg", &also, |machine| {
        without(machine);
        machine.remove("sys/firmware/acpi/tables/DMAR");
        machine.file("sys/firmware/acpi/tables/IVRS", "IVRS");
    });
    fault("iommu", Problem, "there is none", "firmware's setup", &also, |machine| {
        without(machine);
        machine.remove("sys/firmware/acpi/tables/DMAR");
    });
    fault("iommu", Problem, "by intel_iommu=off", "take intel_iommu=off off", &also, |machine| {
        without(machine);
        machine.file("proc/cmdline", "root=/dev/sda intel_iommu=off");
    });
}

#[test]
fn vfio_modules_missing_or_unsafe() {
    fault("no-iommu", Warning, "without an IOMMU", "echo N", &[], |machine| {
        machine.file("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y");
    });
    // A driver that is not loaded has no device either.
    fault("vfio-pci", Problem, "not loaded", "modprobe vfio-pci", &["driver"], |machine| {
        machine.set_driver(NIC, None);
        machine.remove("sys/bus/pci/drivers/vfio-pci");
    });
    fault("vfio-type1", Problem, "not loaded", "modprobe vfio_iommu_type1", &[], |machine| {
        machine.remove("sys/module/vfio_iommu_type1");
    });
    fault("dma-entries", Warning, "map 1000 ranges", "echo 65535", &[], |machine| {
        machine.file("sys/module/vfio_iommu_type1/parameters/dma_entry_limit", "1000");
    });
}

#[test]
fn files_of_vfio_that_may_not_be_opened() {
    fault("vfio-node", Problem, "there is no /dev/vfio/vfio", "modprobe", &[], |machine| {
        machine.remove("dev/vfio/vfio");
    });
    fault("vfio-node", Problem, "user 1000 may not", "chmod", &[], |machine| {
        machine.mode("dev/vfio/vfio", 0o600);
    });
    fault("group-node", Problem, "may not open /dev/vfio/12", "chown 1000", &[], |machine| {
        machine.mode("dev/vfio/12", 0o600);
    });
    fault("group-node", Problem, "there is no /dev/vfio/12", "udevadm", &[], |machine| {
        machine.remove("dev/vfio/12");
    });
    let machine = Recorded::good();
    machine.mode("dev/vfio/12", 0o600);
    let root = Need { uid: 0, ..need() };
    assert_eq!(complaints(&machine, &root), [], "root opens anything");
    // Its own file and /dev/iommu are enough.
    let machine = Recorded::good();
    machine.dir(&format!("sys/bus/pci/devices/{NIC}/vfio-dev/vfio3"));
    machine.mode("dev/vfio/devices/vfio3", 0o666);
    machine.mode("dev/vfio/12", 0o600);
    machine.mode("dev/vfio/vfio", 0o600);
    machine.remove("sys/module/vfio_iommu_type1");
    let checks: Vec<_> = complaints(&machine, &need()).iter().map(|found| found.check).collect();
    assert_eq!(checks, ["vfio-type1", "vfio-node", "group-node"], "no /dev/iommu");
    machine.mode("dev/iommu", 0o666);
    assert_eq!(complaints(&machine, &need()), []);
    machine.process(812, "testpmd", "/dev/vfio/devices/vfio3");
    let found = complaints(&machine, &need());
    assert_eq!(found.len(), 1);
    assert!(found[0].text.ends_with("held open by testpmd (812)"), "{found:?}");
}

#[test]
fn the_groups_of_another_user() {
    let machine = Recorded::good();
    machine.file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nmarket:x:1000:1000::/home/market:");
    machine
        .file("etc/group", "root:x:0:\nvfio:x:44:other,market\nothers:x:45:other\nmarket:x:1000:");
    assert_eq!(groups_of(&machine.tree(), 1000), [1000, 44]);
    assert_eq!(groups_of(&machine.tree(), 1001), [0; 0]);
}

#[test]
fn memory_that_is_missing() {
    let limits = |soft: &str| {
        format!("Max locked memory         {soft}              {soft}              bytes")
    };
    fault(
        "memlock",
        Problem,
        "8388608 bytes may be locked, 134217728 are",
        "ulimit -l 131072",
        &[],
        |machine| machine.file("proc/self/limits", &limits("8388608")),
    );
    fault("memlock", Problem, "134217727 bytes", "limits.conf", &[], |machine| {
        machine.file("proc/self/limits", &limits("134217727"));
    });
    let machine = Recorded::good();
    machine.file("proc/self/limits", &limits("134217728"));
    assert_eq!(complaints(&machine, &need()), [], "just enough");
    // Root without CAP_IPC_LOCK, as in a container.
    let root = Need { uid: 0, ..need() };
    machine.file("proc/self/limits", &limits("8388608"));
    for (rights, count) in [("000001ffffffffff", 0), ("00000000a80425fb", 1)] {
        machine.file("proc/self/status", &format!("Name:\tcxctl\nCapEff:\t{rights}"));
        assert_eq!(complaints(&machine, &root).len(), count, "{rights}");
        let other = Need { is_caller: false, ..root.clone() };
        assert_eq!(complaints(&machine, &other), [], "another root's rights are not known");
    }

    let node = |node: u32| format!("sys/devices/system/node/node{node}/hugepages");
    fault(
        "hugepages",
        Warning,
        "none of 2 MiB are reserved",
        "reserve 64 --apply",
        &[],
        |machine| {
            machine.hugepages(&node(0), 0, 0);
            machine.hugepages(&node(1), 0, 0);
        },
    );
    // One of 1 GiB serves no pool.
    fault("hugepages", Warning, "none of 2 MiB are reserved", "reserve 64", &[], |machine| {
        machine.hugepages(&node(0), 0, 0);
        machine.hugepages(&node(1), 0, 0);
        for file in ["nr_hugepages", "free_hugepages", "surplus_hugepages"] {
            let count = if file == "surplus_hugepages" { "0" } else { "4" };
            machine.file(&format!("{}/hugepages-1048576kB/{file}", node(0)), count);
        }
    });
    fault("hugepages", Warning, "129024 KiB are free, 131072", "reserve 64", &[], |machine| {
        machine.hugepages(&node(0), 256, 40);
        machine.hugepages(&node(1), 256, 23);
    });
    fault("hugepages", Warning, "too few are free on node 0", "--node 0", &[], |machine| {
        machine.hugepages(&node(0), 256, 63);
    });
}

#[test]
fn cores_that_are_disturbed() {
    fault("isolated", Warning, "no core is isolated", "isolcpus=", &[], |machine| {
        machine.file("sys/devices/system/cpu/isolated", "");
    });
    fault("nohz", Warning, "core 3: cores without", "nohz_full=", &["rcu"], |machine| {
        machine.file("sys/devices/system/cpu/nohz_full", "2");
    });
    fault("governor", Warning, "core 1: powersave", "cpupower", &[], |machine| {
        machine.file("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave");
    });
    // What one setting costs is the applications' common test.
    fault("interrupts", Warning, "core 2: 2 may come", "smp_affinity_list", &[], |machine| {
        for (irq, cores) in [(7, "0-1"), (8, "0-2"), (9, "2")] {
            machine.file(&format!("proc/irq/{irq}/smp_affinity_list"), cores);
        }
    });
    let machine = Recorded::good();
    machine.file("proc/irq/7/smp_affinity_list", "0-1");
    assert_eq!(complaints(&machine, &need()), [], "nobody polls there");
    fault("numa-balance", Warning, "moves pages", "numa_balancing=0", &[], |machine| {
        machine.file("proc/sys/kernel/numa_balancing", "1");
    });
    fault("near-cores", Warning, "no isolated core is on node 1", "node 1", &[], |machine| {
        machine.nic_file("numa_node", "1");
    });
}

#[test]
fn groups_that_cannot_be_given_away() {
    let place = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3f:00.0";
    let nvme = ("0x144d", "0xa808", "0x010802");
    fault("viable", Problem, "0000:3f:00.0 (nvme)", "slot with ACS", &[], |machine| {
        machine.dir("sys/bus/pci/drivers/nvme");
        machine.device(place, nvme, "nvme", 12);
    });
    fault("group", Problem, "although others are", "DMAR", &[], |machine| {
        machine.remove(&format!("sys/bus/pci/devices/{NIC}/iommu_group"));
    });
    fault("group", Problem, "group 12 has no IOMMU", "switch the IOMMU on", &[], |machine| {
        machine.file("sys/kernel/iommu_groups/12/name", "vfio-noiommu");
    });
    fault("in-use", Problem, "by testpmd (812)", "end that program", &[], |machine| {
        machine.process(812, "testpmd", "/dev/vfio/12");
    });
    let machine = Recorded::good();
    machine.process(812, "testpmd", "/dev/vfio/13");
    machine.device(place, nvme, "pcieport", 12);
    assert_eq!(complaints(&machine, &need()), [], "another group, a harmless driver");
}

#[test]
fn the_function_itself() {
    fault(
        "driver",
        Problem,
        "bound to mlx5_core",
        "cxctl bind 0000:3d:00.0 --apply",
        &[],
        |machine| machine.set_driver(NIC, Some("mlx5_core")),
    );
    fault("port-type", Problem, "speaks InfiniBand", "LINK_TYPE_P1=2", &[], |machine| {
        machine.nic_file("infiniband/mlx5_0/ports/1/link_layer", "InfiniBand");
    });
    fault("port-type", Problem, "speaks InfiniBand", "mlxconfig -d 0000:3d:00.0", &[], |machine| {
        machine.netdev("ib0");
        machine.nic_file("net/ib0/type", "32");
    });
    fault("bar", Problem, "no address", "Above 4G", &[], |machine| {
        machine.nic_file("resource", "0x0000000000000000 0x0000000000000000 0x0000000000000000");
    });
    fault("bar", Problem, "BAR 0 has 4096 bytes", "firmware", &[], |machine| {
        machine.nic_file("resource", "0x00000000c2000000 0x00000000c2000fff 0x000000000014220c");
    });
    fault("reset", Warning, "no way to reset", "firmware", &[], |machine| {
        machine.remove(&format!("sys/bus/pci/devices/{NIC}/reset"));
    });
    fault(
        "pcie",
        Warning,
        "x8 at 8.0 GT/s PCIe, the card can x16",
        "as many lanes",
        &[],
        |machine| machine.nic_file("current_link_width", "8"),
    );
    fault("pcie", Warning, "x16 at 2.5 GT/s PCIe", "risers", &[], |machine| {
        machine.nic_file("current_link_speed", "2.5 GT/s PCIe");
    });
    fault("numa-node", Warning, "does not say", "measuring", &[], |machine| {
        machine.nic_file("numa_node", "-1");
    });
}

#[test]
fn devices_that_are_not_for_ferrocx() {
    let machine = Recorded::good();
    let tree = machine.tree();
    let gpu = Nic::read(&tree, GPU).unwrap();
    let found = examine(&tree, &[gpu], None, &need());
    let model = found.iter().find(|finding| finding.check == "model").unwrap();
    assert_eq!((model.severity, &model.text[..]), (Problem, "10de:2330 is not a ConnectX"));
    machine.nic_file("device", "0x1003");
    let old = Nic::read(&tree, NIC).unwrap();
    let found = examine(&tree, &[old], None, &need());
    let model = found.iter().find(|finding| finding.check == "model").unwrap();
    assert!(model.text.contains("15b3:1003 is older than ConnectX-4"), "{model:?}");
}

#[test]
fn the_way_to_a_peer() {
    // Request redirect, at the port above the adapter, then at the one above the GPU.
    let text = "0000:3c:00.0 sends what is for 0000:3e:00.0 up";
    fault("acs", Warning, text, "setpci -s 0000:3c:00.0 ECAP_ACS+6.w=0", &[], |machine| {
        machine.acs(SWITCH[1], 0x001d);
    });
    fault("acs", Warning, "0000:3c:01.0", "disable_acs_redir=0000:3c:01.0", &[], |machine| {
        machine.acs(SWITCH[2], 0x0008);
    });
    // Source validation and upstream forwarding redirect nothing.
    let machine = Recorded::good();
    machine.acs(SWITCH[1], 0x0011);
    assert_eq!(complaints(&machine, &need()), []);
    fault("acs", Warning, "0000:3c:00.0 cannot be read", "as root", &[], |machine| {
        machine.bytes(&format!("sys/bus/pci/devices/{}/config", SWITCH[1]), &[0; 64]);
    });
    fault("acs", Warning, "another root complex", "same switch", &[], |machine| {
        move_gpu(machine, "sys/devices/pci0000:80/0000:80:01.0/0000:3e:00.0");
    });
    fault("acs", Warning, "on node 1 instead of 0", "same switch", &[], |machine| {
        move_gpu(machine, "sys/devices/pci0000:80/0000:80:01.0/0000:3e:00.0");
        machine.gpu_file("numa_node", "1");
    });
    fault("acs", Warning, "goes through pci0000:3a", "same switch", &[], |machine| {
        move_gpu(machine, "sys/devices/pci0000:3a/0000:3a:01.0/0000:3e:00.0");
    });
    let machine = Recorded::good();
    machine.remove(&format!("sys/bus/pci/devices/{GPU}"));
    let found = complaints(&machine, &need());
    assert!(found[0].text.starts_with("no PCI device 0000:3e:00.0"), "{found:?}");
}

#[test]
fn what_of_a_peer_cannot_be_reached() {
    let bars = |text: &'static str| move |machine: &Recorded| machine.gpu_file("resource", text);
    let small = "0x0 0x0 0x0\n0x00000000d0000000 0x00000000dfffffff 0x000000000014220c";
    fault(
        "peer-bar",
        Warning,
        "shows 256 MiB of its memory, and could show 32768 MiB",
        "echo 15 >/sys/bus/pci/devices/0000:3e:00.0/resource1_resize",
        &[],
        bars(small),
    );
    let homeless = "0x0 0x0 0x0\n0x0000000000000000 0x000000000fffffff 0x000000000014220c";
    fault(
        "peer-bar",
        Problem,
        "BAR 1 of 0000:3e:00.0 has no address",
        "Above 4G",
        &[],
        bars(homeless),
    );
    let ports = "0x0000000000003000 0x000000000000307f 0x0000000000040101";
    fault("peer-bar", Problem, "has no memory BAR", "lspci", &[], bars(ports));
    fault("peer-bar", Problem, "is switched off", "enable", &[], |machine| {
        machine.gpu_file("enable", "0");
    });
    // A BAR of a fixed size is as large as it can be.
    let machine = Recorded::good();
    machine.remove(&format!("sys/bus/pci/devices/{GPU}/resource1_resize"));
    machine.gpu_file("resource", small);
    assert_eq!(complaints(&machine, &need()), []);
}

#[test]
fn what_the_iommu_does_between_two_devices() {
    let words = |machine: &Recorded| {
        let found = examined(machine, &need());
        let finding = found.into_iter().find(|finding| finding.check == "peer-iommu").unwrap();
        (finding.severity, finding.text)
    };
    let machine = Recorded::good();
    let (severity, text) = words(&machine);
    assert!(severity == Severity::Ok && text.contains("passes the root complex"), "{text}");
    let join = |machine: &Recorded| {
        machine.remove(&format!("sys/bus/pci/devices/{GPU}/iommu_group"));
        let group = machine.path("sys/kernel/iommu_groups/12");
        machine.link(&format!("sys/bus/pci/devices/{GPU}/iommu_group"), &group);
    };
    fault("peer-iommu", Warning, "is in IOMMU group 12 too", "a slot with ACS", &[], join);
    // Whoever has the adapter has the group, and nobody opens it twice.
    machine.set_driver(GPU, Some("vfio-pci"));
    join(&machine);
    assert_eq!(words(&machine).0, Severity::Warning);
    let machine = Recorded::good();
    machine.remove(&format!("sys/bus/pci/devices/{NIC}/iommu_group"));
    assert!(words(&machine).1.contains("nothing translates"));
}

/// Puts the GPU elsewhere.
fn move_gpu(machine: &Recorded, place: &str) {
    let link = machine.path(&format!("sys/bus/pci/devices/{GPU}"));
    let old = fs::canonicalize(&link).unwrap();
    let new = machine.path(place);
    fs::create_dir_all(new.parent().unwrap()).unwrap();
    fs::rename(old, &new).unwrap();
    fs::remove_file(&link).unwrap();
    machine.link(&format!("sys/bus/pci/devices/{GPU}"), Path::new(&new));
}

#[test]
fn the_worst_finding_decides_the_exit_code() {
    let code = |findings: &[Finding]| worst(findings).exit_code();
    let machine = Recorded::good();
    assert_eq!(code(&examined(&machine, &need())), 0);
    machine.file("sys/devices/system/cpu/isolated", "");
    assert_eq!(code(&examined(&machine, &need())), 3);
    machine.set_driver(NIC, Some("mlx5_core"));
    assert_eq!(code(&examined(&machine, &need())), 4);
}

#[test]
fn a_peer_that_is_none_is_said_where_no_adapter_is() {
    let machine = Recorded::good();
    let found = examine(&machine.tree(), &[], Some("foo"), &need());
    let finding = found.into_iter().find(|finding| finding.check == "acs").unwrap();
    assert!(finding.severity == Problem && finding.text.contains("\"foo\""), "{finding:?}");
}
