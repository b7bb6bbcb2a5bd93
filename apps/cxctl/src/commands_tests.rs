//! What is printed, and hugepages, on recorded machines.

use super::*;
use crate::recorded::{FakeKernel, NIC, Recorded};

#[test]
fn status_names_driver_group_node_link_and_firmware() {
    let machine = Recorded::with_kernel_driver();
    let text = status_text(&nics(&machine.tree(), false));
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split("  ").collect()).collect();
    let row: Vec<&str> =
        lines[1].iter().map(|cell| cell.trim()).filter(|c| !c.is_empty()).collect();
    assert_eq!(
        row,
        [
            NIC,
            "ConnectX-5",
            "mlx5_core",
            "12",
            "0",
            "x16 8.0 GT/s PCIe",
            "16.35.4030",
            "enp61s0np0 up 25000 Mb/s"
        ]
    );
}

#[test]
fn status_names_the_others_of_a_group() {
    let machine = Recorded::good();
    machine.device(
        "sys/devices/pci0000:3a/0000:3f:00.0",
        ("0x8086", "0x1572", "0x020000"),
        "i40e",
        12,
    );
    let text = status_text(&nics(&machine.tree(), false));
    assert!(text.ends_with("0000:3d:00.0: in group 12 with 0000:3f:00.0 (i40e)\n"), "{text}");
    let all = nics(&machine.tree(), true);
    let names: Vec<_> = all.iter().map(|nic| (nic.address.as_str(), nic.model)).collect();
    assert_eq!(names, [(NIC, Some("ConnectX-5")), ("0000:3f:00.0", None)]);
    assert!(status_text(&[]).contains("no ConnectX-4 or later"));
}

#[test]
fn status_as_json_has_the_same() {
    let machine = Recorded::with_kernel_driver();
    let json = serde_json::to_value(nics(&machine.tree(), false)).unwrap();
    assert_eq!(json[0]["address"], NIC);
    assert_eq!(json[0]["ids"], "15b3:1017");
    assert_eq!(json[0]["group"]["members"][0][1], "mlx5_core");
    assert_eq!(json[0]["netdevs"][0]["speed_mbps"], 25000);
    assert_eq!(json[0]["pcie"]["max_width"], 16);
}

#[test]
fn links_without_carrier_or_down() {
    let machine = Recorded::with_kernel_driver();
    let link = || Nic::read(&machine.tree(), NIC).unwrap().link_text();
    machine.nic_file("net/enp61s0np0/speed", "-1");
    assert_eq!(link(), "enp61s0np0 up");
    machine.nic_file("net/enp61s0np0/carrier", "0");
    assert_eq!(link(), "enp61s0np0 no carrier");
    // The kernel answers EINVAL while an interface is down.
    machine.remove(&format!("sys/bus/pci/devices/{NIC}/net/enp61s0np0/carrier"));
    assert_eq!(link(), "enp61s0np0 down");
}

#[test]
fn hugepages_are_listed_with_who_uses_them() {
    let machine = Recorded::good();
    machine.process(812, "testpmd", "/dev/null");
    machine.file(
        "proc/mounts",
        "sys /sys sysfs rw 0 0\nnone /dev/hugepages hugetlbfs rw,pagesize=2M 0 0",
    );
    assert_eq!(
        hugepages_text(&hugepages::report(&machine.tree())),
        "node  size  pages  free  surplus\n\
         0       2M    256   200        0\n\
         1       2M    256   200        0\n\
         10 of 2M are promised to mappings\n\
         hugetlbfs at /dev/hugepages (rw,pagesize=2M)\n\
         testpmd (812) uses 4096 KiB\n"
    );
}

#[test]
fn hugepages_of_a_process_are_told_by_node_size_and_file() {
    let machine = Recorded::good();
    machine.process(812, "testpmd", "/dev/null");
    machine.file(
        "proc/812/numa_maps",
        "55d0 default file=/usr/bin/testpmd mapped=9 N0=9 kernelpagesize_kB=4\n\
         7f00 default file=/anon_hugepage\\040(deleted) huge dirty=2 N0=1 N1=1 \
         kernelpagesize_kB=2048\n\
         7f40 default file=/anon_hugepage\\040(deleted) huge dirty=3 N1=3 kernelpagesize_kB=2048\n\
         7f80 default huge\n\
         7fc0 bind:0 file=/memfd:pool huge dirty=1 N0=1 kernelpagesize_kB=1048576",
    );
    let text = hugepages_text(&hugepages::report(&machine.tree()));
    let told = text.split_once("testpmd (812) uses 4096 KiB\n").expect("the process").1;
    assert_eq!(
        told,
        "    1 of 2M on node 0: /anon_hugepage\\040(deleted)\n    \
         1 of 1G on node 0: /memfd:pool\n    \
         4 of 2M on node 1: /anon_hugepage\\040(deleted)\n"
    );
}

#[test]
fn hugepages_are_reserved_and_released_per_node() {
    let machine = Recorded::good();
    let (tree, kernel) = (machine.tree(), FakeKernel::new(&machine));
    let write = hugepages::plan_reserve(&tree, 64, 2048, Some(1)).unwrap();
    let file = "sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(write.shell(), format!("echo 320 >/{file}"));
    hugepages::carry_out(&tree, &kernel, &write).unwrap();
    assert_eq!(tree.text(file).unwrap(), "320");
    // All that are free on the node; of the machine, not those that are promised.
    assert_eq!(hugepages::plan_release(&tree, None, 2048, Some(1)).unwrap().value, "120");
    let write = hugepages::plan_release(&tree, None, 2048, None).unwrap();
    assert_eq!(write.shell(), "echo 122 >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    let refusal = |count, size, node| {
        hugepages::plan_release(&tree, count, size, node).unwrap_err().to_string()
    };
    assert!(refusal(Some(391), 2048, None).contains("390 of 512 are free"));
    assert!(refusal(None, 1 << 20, None).contains("there are 2048 KiB"));
    assert!(refusal(None, 2048, Some(9)).contains("no hugepages on node 9"));
}

#[test]
fn a_kernel_that_finds_fewer_pages_is_noticed() {
    struct Fragmented<'a>(&'a Recorded);
    impl crate::bind::Kernel for Fragmented<'_> {
        fn write(&self, path: &std::path::Path, _: &str) -> io::Result<()> {
            let path = path.strip_prefix(self.0.path("")).unwrap();
            self.0.file(path.to_str().unwrap(), "515");
            Ok(())
        }
    }
    let machine = Recorded::good();
    let tree = machine.tree();
    let write = hugepages::plan_reserve(&tree, 64, 2048, None).unwrap();
    let sentence = hugepages::carry_out(&tree, &Fragmented(&machine), &write).unwrap_err();
    assert!(sentence.to_string().contains("515 pages now, 576 were asked for"), "{sentence}");
}

#[test]
fn sizes_of_pages_are_read() {
    for (text, kib) in
        [("2M", 2048), ("1G", 1 << 20), ("2048K", 2048), ("2MiB", 2048), ("1gb", 1 << 20)]
    {
        assert_eq!(hugepages::parse_size(text), Ok(kib), "{text}");
    }
    for text in ["", "M", "0M", "2", "2X", "-2M", "99999999999999999999G", "18446744073709551615G"]
    {
        assert!(hugepages::parse_size(text).unwrap_err().contains("write it as 2M"), "{text}");
    }
}
