//! Recorded trees, made in a temporary directory in the shape the kernel gives them.

use std::os::unix::fs::symlink;

use super::*;

/// A tree with one device per call of [`Tree::add`].
struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::new(self.dir.path())
    }

    fn add(&self, name: &str, ids: (&str, &str), driver: Option<&str>, group: Option<u32>) {
        let root = self.dir.path();
        let device = root.join("devices/pci0000:3a").join(name);
        fs::create_dir_all(&device).expect("created");
        let write = |file: &str, text: &str| fs::write(device.join(file), text).expect("written");
        write("vendor", &format!("{}\n", ids.0));
        write("device", &format!("{}\n", ids.1));
        write("class", "0x020000\n");
        write("numa_node", "1\n");
        let bus = root.join("bus/pci/devices");
        fs::create_dir_all(&bus).expect("created");
        symlink(&device, bus.join(name)).expect("linked");
        if let Some(driver) = driver {
            let driver = root.join("bus/pci/drivers").join(driver);
            fs::create_dir_all(&driver).expect("created");
            symlink(&driver, device.join("driver")).expect("linked");
        }
        if let Some(group) = group {
            let group = root.join(format!("kernel/iommu_groups/{group}"));
            fs::create_dir_all(group.join("devices")).expect("created");
            symlink(&device, group.join("devices").join(name)).expect("linked");
            symlink(&group, device.join("iommu_group")).expect("linked");
        }
    }
}

const CX5: (&str, &str) = ("0x15b3", "0x1017");

#[test]
fn a_ready_device_is_described() {
    let tree = Tree::new();
    tree.add("0000:3b:00.0", CX5, Some("vfio-pci"), Some(12));
    tree.add("0000:3a:00.0", ("0x8086", "0x2030"), Some("pcieport"), Some(12));
    tree.add("0000:3b:00.1", CX5, None, Some(12));
    let device = tree.sysfs().device("3b:00.0").expect("found");
    assert_eq!(device.identity.name, "0000:3b:00.0");
    assert_eq!((device.identity.vendor, device.identity.device), (0x15b3, 0x1017));
    assert_eq!((device.identity.numa_node, device.class), (Some(1), 0x0002_0000));
    let group = device.check_ready(&[]).expect("ready");
    assert_eq!((group.number, group.is_noiommu), (12, false));
    let names: Vec<_> = group.siblings.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["0000:3a:00.0", "0000:3b:00.1"]);
}

#[test]
fn an_unknown_numa_node_is_none() {
    let tree = Tree::new();
    tree.add("0000:3b:00.0", CX5, None, None);
    let path = tree.sysfs().device_path("0000:3b:00.0").join("numa_node");
    fs::write(path, "-1\n").expect("written");
    assert_eq!(tree.sysfs().device("0000:3b:00.0").expect("found").identity.numa_node, None);
}

#[test]
fn a_missing_device_names_the_ones_that_would_do() {
    let tree = Tree::new();
    tree.add("0000:3b:00.0", CX5, None, None);
    tree.add("0000:3b:00.1", CX5, None, None);
    tree.add("0000:04:00.0", ("0x8086", "0x1572"), None, None);
    let error = tree.sysfs().device("0000:af:00.0").expect_err("not there");
    assert_eq!(
        error.to_string(),
        "no PCI device 0000:af:00.0; ConnectX devices here: 0000:3b:00.0, 0000:3b:00.1"
    );
    let error = Tree::new().sysfs().device("af:00.0").expect_err("not there");
    assert!(error.to_string().ends_with("ConnectX devices here: none"));
}

#[test]
fn bad_addresses_are_refused() {
    let tree = Tree::new();
    for address in
        ["", "eth0", "3b:00", "3b:00.8", "3b:0.0", "0000:3b:00.00", "../3b:00.0", "g0:00.0", ":::."]
    {
        let refused = tree.sysfs().device(address);
        assert!(matches!(refused, Err(BusError::BadPciAddress { .. })), "{address}");
    }
    assert_eq!(canonical_address("AB:0c.7").expect("good"), "0000:ab:0c.7");
    assert_eq!(canonical_address("10000:01:00.0").expect("VMD domain"), "10000:01:00.0");
}

#[test]
fn a_foreign_device_names_its_id_and_ours() {
    let tree = Tree::new();
    tree.add("0000:04:00.0", ("0x8086", "0x1572"), Some("vfio-pci"), Some(3));
    let device = tree.sysfs().device("04:00.0").expect("found");
    let text = device.check_ready(&[]).expect_err("foreign").to_string();
    assert!(text.starts_with("device 0000:04:00.0 has PCI id 8086:1572,"), "{text}");
    assert!(text.contains("vendor 15b3, devices 1013 1014 "), "{text}");
    assert!(device.check_ready(&[(0x8086, 0x1572)]).is_ok());
    assert!(device.check_ready(&[(0x8086, 0x1573), (0x15b3, 0x1572)]).is_err());
    tree.add("0000:05:00.0", ("0x15b3", "0x1003"), Some("vfio-pci"), Some(4));
    let older = tree.sysfs().device("05:00.0").expect("found");
    assert!(matches!(older.check_ready(&[]), Err(BusError::WrongPciId { device: 0x1003, .. })));
}

#[test]
fn a_device_without_an_iommu_is_refused() {
    let tree = Tree::new();
    tree.add("0000:3b:00.0", CX5, Some("vfio-pci"), None);
    let device = tree.sysfs().device("3b:00.0").expect("found");
    assert!(matches!(device.check_ready(&[]), Err(BusError::NoIommuGroup { .. })));
    tree.add("0000:3c:00.0", CX5, Some("vfio-pci"), Some(0));
    let name = tree.dir.path().join("kernel/iommu_groups/0/name");
    fs::write(name, "vfio-noiommu\n").expect("written");
    let device = tree.sysfs().device("3c:00.0").expect("found");
    assert!(matches!(device.check_ready(&[]), Err(BusError::NoIommuGroup { .. })));
}

#[test]
fn a_device_with_its_kernel_driver_names_the_way_out() {
    let tree = Tree::new();
    tree.add("0000:3b:00.0", CX5, Some("mlx5_core"), Some(12));
    let text = tree.sysfs().device("3b:00.0").expect("found").check_ready(&[]).expect_err("bound");
    assert_eq!(
        text.to_string(),
        "device 0000:3b:00.0 is bound to mlx5_core, not to vfio-pci; run `cxctl bind \
         0000:3b:00.0 --apply` (or `driverctl set-override 0000:3b:00.0 vfio-pci`)"
    );
    tree.add("0000:3b:00.1", CX5, None, Some(13));
    let text =
        tree.sysfs().device("3b:00.1").expect("found").check_ready(&[]).expect_err("unbound");
    assert!(text.to_string().contains("bound to no driver"));
}

#[test]
fn siblings_with_drivers_are_named() {
    let tree = Tree::new();
    tree.add("0000:3b:00.0", CX5, Some("vfio-pci"), Some(12));
    tree.add("0000:3b:00.1", CX5, Some("mlx5_core"), Some(12));
    tree.add("0000:3c:00.0", ("0x144d", "0xa808"), Some("nvme"), Some(12));
    tree.add("0000:3c:00.1", CX5, Some("pci-stub"), Some(12));
    let text = tree.sysfs().device("3b:00.0").expect("found").check_ready(&[]).expect_err("shared");
    assert!(
        text.to_string().starts_with(
            "IOMMU group 12 of 0000:3b:00.0 is not viable: 0000:3b:00.1 (mlx5_core), \
             0000:3c:00.0 (nvme) must be bound"
        ),
        "{text}"
    );
}

#[test]
fn reserved_regions_are_read() {
    let tree = Tree::new();
    tree.add("0000:3b:00.0", CX5, Some("vfio-pci"), Some(12));
    assert_eq!(tree.sysfs().reserved_regions(12).expect("no file"), []);
    let path = tree.dir.path().join("kernel/iommu_groups/12/reserved_regions");
    let text = "0x0000000000000000 0x0000000000ffffff direct\n\
                0x00000000fee00000 0x00000000feefffff msi\n";
    fs::write(&path, text).expect("written");
    let regions = tree.sysfs().reserved_regions(12).expect("well-formed");
    assert_eq!(regions, [(0, 0xff_ffff), (0xfee0_0000, 0xfeef_ffff)]);
    for text in ["0x10\n", "0x20 0x10 msi\n", "none\n"] {
        fs::write(&path, text).expect("written");
        assert!(tree.sysfs().reserved_regions(12).is_err(), "{text}");
    }
}

#[test]
fn a_damaged_tree_is_an_error_that_names_the_file() {
    let tree = Tree::new();
    tree.add("0000:3b:00.0", ("fifteen", "0x1017"), None, None);
    let text = tree.sysfs().device("3b:00.0").expect_err("damaged").to_string();
    assert!(text.contains("vendor") && text.contains("hexadecimal"), "{text}");
}
