//! Binding and giving back, on recorded machines with a kernel that plays along.

use std::fs;

use super::*;
use crate::recorded::{FakeKernel, NIC, Recorded};

fn shell(writes: &[Write]) -> Vec<String> {
    writes.iter().map(Write::shell).collect()
}

fn driver(machine: &Recorded) -> Option<String> {
    machine.tree().link(Tree::device(NIC).join("driver"))
}

#[test]
fn a_plan_names_every_write_and_changes_nothing() {
    let machine = Recorded::with_kernel_driver();
    let writes = plan_bind(&machine.tree(), "3d:00.0").unwrap();
    assert_eq!(
        shell(&writes),
        [
            "echo vfio-pci >/sys/bus/pci/devices/0000:3d:00.0/driver_override",
            "echo 0000:3d:00.0 >/sys/bus/pci/drivers/mlx5_core/unbind",
            "echo 0000:3d:00.0 >/sys/bus/pci/drivers_probe",
        ]
    );
    assert_eq!(driver(&machine).as_deref(), Some("mlx5_core"));
    assert!(!machine.path("run").exists());
}

#[test]
fn a_function_goes_to_vfio_and_back_twenty_times() {
    let machine = Recorded::with_kernel_driver();
    let (tree, kernel) = (machine.tree(), FakeKernel::new(&machine));
    for _ in 0..20 {
        bind(&tree, &kernel, NIC).unwrap();
        assert_eq!(driver(&machine).as_deref(), Some(VFIO));
        assert_eq!(plan_bind(&tree, NIC).unwrap(), [], "it has it already");
        bind(&tree, &kernel, NIC).unwrap();
        assert_eq!(
            shell(&plan_unbind(&tree, NIC).unwrap()),
            [
                "echo >/sys/bus/pci/devices/0000:3d:00.0/driver_override",
                "echo 0000:3d:00.0 >/sys/bus/pci/drivers/vfio-pci/unbind",
                "echo 0000:3d:00.0 >/sys/bus/pci/drivers_probe",
            ]
        );
        unbind(&tree, &kernel, NIC).unwrap();
        assert_eq!(driver(&machine).as_deref(), Some("mlx5_core"));
        assert_eq!(driver_override(&tree, NIC), "");
        assert_eq!(plan_unbind(&tree, NIC).unwrap(), []);
    }
    assert_eq!(kernel.writes.borrow().len(), 20 * 6);
    assert!(!machine.path(&format!("run/ferrocx/bind/{NIC}")).exists());
}

#[test]
fn what_was_before_comes_back() {
    // A driver that is not the kernel's first choice.
    let machine = Recorded::with_kernel_driver();
    machine.dir("sys/bus/pci/drivers/other");
    machine.set_driver(NIC, Some("other"));
    machine.nic_file("driver_override", "other");
    let (tree, kernel) = (machine.tree(), FakeKernel::new(&machine));
    bind(&tree, &kernel, NIC).unwrap();
    unbind(&tree, &kernel, NIC).unwrap();
    assert_eq!(driver(&machine).as_deref(), Some("other"));
    assert_eq!(driver_override(&tree, NIC), "other");
    // No driver at all.
    let machine = Recorded::with_kernel_driver();
    machine.set_driver(NIC, None);
    let (tree, kernel) = (machine.tree(), FakeKernel::new(&machine));
    bind(&tree, &kernel, NIC).unwrap();
    assert_eq!(driver(&machine).as_deref(), Some(VFIO));
    unbind(&tree, &kernel, NIC).unwrap();
    assert_eq!(driver(&machine), None);
}

#[test]
fn a_function_that_somebody_else_bound_goes_to_its_usual_driver() {
    let machine = Recorded::good();
    machine.nic_file("driver_override", "vfio-pci");
    unbind(&machine.tree(), &FakeKernel::new(&machine), NIC).unwrap();
    assert_eq!(driver(&machine).as_deref(), Some("mlx5_core"));
}

#[test]
fn a_virtual_function_is_bound_like_any_other() {
    let machine = Recorded::with_kernel_driver();
    machine.nic_file("device", "0x1018");
    machine.remove(&format!("sys/bus/pci/devices/{NIC}/sriov_numvfs"));
    machine.link(&format!("sys/bus/pci/devices/{NIC}/physfn"), machine.path("sys"));
    let (tree, kernel) = (machine.tree(), FakeKernel::new(&machine));
    assert!(Nic::read(&tree, NIC).unwrap().is_vf);
    bind(&tree, &kernel, NIC).unwrap();
    unbind(&tree, &kernel, NIC).unwrap();
    assert_eq!(driver(&machine).as_deref(), Some("mlx5_core"));
}

#[track_caller]
fn refused(make: impl FnOnce(&Recorded), words: &[&str]) {
    let machine = Recorded::with_kernel_driver();
    make(&machine);
    let (tree, kernel) = (machine.tree(), FakeKernel::new(&machine));
    let sentence = format!("{:#}", bind(&tree, &kernel, NIC).unwrap_err());
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in {sentence:?}");
    }
    assert!(kernel.writes.borrow().is_empty(), "nothing is written");
    assert_eq!(driver(&machine).as_deref(), Some("mlx5_core"));
}

/// A line of `/proc/net/route`.
fn route(destination: &str, mask: &str) -> String {
    format!("Iface\nenp61s0np0\t{destination}\t0100A8C0\t0003\t0\t0\t100\t{mask}\t0\t0\t0")
}

#[test]
fn a_port_that_is_needed_is_refused() {
    let file =
        |path: &'static str, text: String| move |machine: &Recorded| machine.file(path, &text);
    let v4 = "proc/net/route";
    refused(file(v4, route("00000000", "00000000")), &["the route to default;", "ip addr flush"]);
    refused(file(v4, route("0001A8C0", "00FFFFFF")), &["the route to 192.168.1.0/24;"]);
    let v6 = |destination: &str, prefix: &str| {
        let zero = "0".repeat(32);
        format!(
            "{destination} {prefix} {zero} 00 {zero} 00000400 00000001 00000000 00000003 enp61s0np0"
        )
    };
    let path = "proc/net/ipv6_route";
    refused(file(path, v6(&"0".repeat(32), "00")), &["the route to default (IPv6);"]);
    let global = format!("20010db8{}", "0".repeat(24));
    refused(file(path, v6(&global, "40")), &["2001:db8::/64;"]);
    // An interface further below, as virtio's are.
    refused(
        |machine| {
            machine.file(v4, &route("00000000", "00000000").replace("enp61s0np0", "eth7"));
            let place = format!("sys/bus/pci/devices/{NIC}/virtio0/net/eth7");
            machine.file(&format!("{place}/type"), "1");
            machine.link("sys/class/net/eth7", machine.path(&place));
        },
        &["its interface eth7 carries the route to default;"],
    );
    refused(
        |machine| machine.link("sys/class/net/enp61s0np0/master", machine.path("sys/bond0")),
        &["enp61s0np0 is used by bond0", "nomaster"],
    );
    refused(
        |machine| machine.dir("sys/class/net/enp61s0np0/upper_vlan7"),
        &["enp61s0np0 is used by vlan7"],
    );
    refused(|machine| machine.nic_file("sriov_numvfs", "4"), &["4 virtual functions"]);
    // Moved into another namespace: its folder is there, and empty.
    refused(
        |machine| {
            machine.remove("sys/class/net/enp61s0np0");
            machine.remove(&format!("sys/bus/pci/devices/{NIC}/net/enp61s0np0"));
        },
        &["in another network namespace"],
    );
    // Link-local and multicast routes are those of every interface that is up.
    let machine = Recorded::with_kernel_driver();
    let local = format!("fe80{}", "0".repeat(28));
    let multicast = format!("ff00{}", "0".repeat(28));
    machine.file(path, &[v6(&local, "40"), v6(&multicast, "08")].join("\n"));
    assert_eq!(plan_bind(&machine.tree(), NIC).unwrap().len(), 3);
}

#[test]
fn what_the_machine_lacks_is_named() {
    refused(|machine| machine.remove("sys/bus/pci/drivers/vfio-pci"), &["modprobe vfio-pci"]);
    refused(
        |machine| machine.remove(&format!("sys/bus/pci/devices/{NIC}/iommu_group")),
        &["has no IOMMU group", "cxctl doctor 0000:3d:00.0"],
    );
    let machine = Recorded::good();
    let error = plan_bind(&machine.tree(), "af:00.0").unwrap_err().to_string();
    assert!(error.starts_with("no PCI device 0000:af:00.0"), "{error}");
}

#[test]
fn a_function_in_use_is_not_taken_away() {
    for file in ["/dev/vfio/12", "/dev/vfio/devices/vfio3"] {
        let machine = Recorded::good();
        machine.dir(&format!("sys/bus/pci/devices/{NIC}/vfio-dev/vfio3"));
        machine.process(812, "testpmd", file);
        let (tree, kernel) = (machine.tree(), FakeKernel::new(&machine));
        let sentence = unbind(&tree, &kernel, NIC).unwrap_err().to_string();
        assert!(sentence.contains("in use by testpmd (812)"), "{sentence}");
        assert!(kernel.writes.borrow().is_empty());
    }
}

#[test]
fn a_driver_that_fails_gives_way_to_the_one_before() {
    let machine = Recorded::with_kernel_driver();
    let tree = machine.tree();
    let kernel = FakeKernel { broken: Some(VFIO), ..FakeKernel::new(&machine) };
    let sentence = format!("{:#}", bind(&tree, &kernel, NIC).unwrap_err());
    assert!(sentence.contains("all is as before"), "{sentence}");
    assert!(sentence.contains("is bound to no driver, not to vfio-pci"), "{sentence}");
    assert_eq!(driver(&machine).as_deref(), Some("mlx5_core"));
    assert_eq!(driver_override(&tree, NIC), "");
}

#[test]
fn a_refused_write_is_named_as_the_shell_would_do_it() {
    struct Refusing;
    impl Kernel for Refusing {
        fn write(&self, _: &Path, _: &str) -> io::Result<()> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
    let machine = Recorded::with_kernel_driver();
    let sentence = format!("{:#}", bind(&machine.tree(), &Refusing, NIC).unwrap_err());
    let write = "`echo vfio-pci >/sys/bus/pci/devices/0000:3d:00.0/driver_override` was refused";
    assert!(sentence.contains(write) && sentence.contains("run as root"), "{sentence}");
    // The live kernel writes one line to a file that exists, and makes none.
    let file = machine.path("value");
    assert!(Live.write(&file, "7").is_err());
    fs::write(&file, "").unwrap();
    Live.write(&file, "7").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "7\n");
}
