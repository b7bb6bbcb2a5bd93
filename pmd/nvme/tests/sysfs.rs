//! Which devices are drives, and which of them can be opened, by a recorded sysfs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ferrocx_nvme::{Sysfs, check_ready, vfio_config};

fn device(root: &Path, name: &str, class: &str, driver: &str) {
    let path = root.join("bus/pci/devices").join(name);
    fs::create_dir_all(&path).unwrap();
    for (file, text) in [("vendor", "0x1b36"), ("device", "0x0010"), ("class", class)] {
        fs::write(path.join(file), text).unwrap();
    }
    let group = root.join("kernel/iommu_groups/7");
    fs::create_dir_all(group.join("devices").join(name)).unwrap();
    symlink(&group, path.join("iommu_group")).unwrap();
    symlink(root.join("bus/pci/drivers").join(driver), path.join("driver")).unwrap();
}

#[test]
fn drives_are_known_by_their_class() {
    let folder = tempfile::tempdir().unwrap();
    device(folder.path(), "0000:05:00.0", "0x010802", "vfio-pci");
    device(folder.path(), "0000:06:00.0", "0x020000", "vfio-pci");
    let sysfs = Sysfs::new(folder.path());
    let config = vfio_config(sysfs.clone(), "05:00.0").unwrap();
    assert_eq!(config.address, "0000:05:00.0");
    assert_eq!(config.also_accept, [(0x1b36, 0x0010)]);
    check_ready(&sysfs, "05:00.0").unwrap();
    for (address, says) in [
        ("06:00.0", "has PCI class 020000, an NVMe drive has 010802"),
        ("07:00.0", "no PCI device 0000:07:00.0"),
        ("here", "is not a PCI address"),
    ] {
        let error = vfio_config(sysfs.clone(), address).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_drive_of_the_kernel_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    device(folder.path(), "0000:05:00.0", "0x010802", "nvme");
    let sysfs = Sysfs::new(folder.path());
    let error = check_ready(&sysfs, "0000:05:00.0").unwrap_err().to_string();
    assert!(error.contains("is bound to nvme, not to vfio-pci"), "{error}");
}
