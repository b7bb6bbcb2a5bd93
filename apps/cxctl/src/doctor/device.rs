//! Checks of one function.

use super::machine::{isolated_cores, may_use, node_count, opens_by_file};
use super::{Finding, Need};
use crate::bind::{self, VFIO};
use crate::host::{Nic, Tree};

/// Below this BAR 0 has no room for the init segment and a few UAR pages of 4 KiB behind it.
const MIN_BAR_BYTES: u64 = 64 << 10;

/// All of them.
pub fn checks(tree: &Tree, nic: &Nic, need: &Need) -> Vec<Finding> {
    vec![
        known(nic),
        group(tree, nic),
        viable(nic),
        port_type(nic),
        driver(nic),
        node_file(tree, nic, need),
        busy(tree, nic),
        bar(tree, nic),
        reset(tree, nic),
        link(nic),
        node(tree, nic),
        near_cores(tree, nic),
    ]
}

fn known(nic: &Nic) -> Finding {
    let check = "model";
    match nic.model {
        Some(model) => Finding::ok(check, model),
        None if nic.is_mellanox() => {
            let text = format!("{} is older than ConnectX-4, or not a network adapter", nic.ids);
            Finding::problem(check, text, "use a ConnectX-4 or later")
        }
        None => {
            let text = format!("{} is not a ConnectX", nic.ids);
            Finding::problem(check, text, "use a ConnectX-4 or later")
        }
    }
}

fn group(tree: &Tree, nic: &Nic) -> Finding {
    let check = "group";
    match &nic.group {
        Some(group) if group.is_noiommu => Finding::problem(
            check,
            format!("group {} has no IOMMU behind it", group.number),
            "switch the IOMMU on, and VFIO's mode without one off",
        ),
        Some(group) => Finding::ok(check, format!("{}", group.number)),
        None if tree.list("sys/kernel/iommu_groups").is_empty() => {
            Finding::problem(check, "in no IOMMU group", "see check iommu")
        }
        None => Finding::problem(
            check,
            "in no IOMMU group, although others are",
            "move the card to a slot behind an IOMMU, or update the firmware's DMAR table",
        ),
    }
}

/// Nobody else's driver is in the group.
fn viable(nic: &Nic) -> Finding {
    let check = "viable";
    let members = nic.group.iter().flat_map(|group| &group.members);
    // The drivers that VFIO allows beside its own do no DMA.
    let harmless =
        |driver: &str| driver.starts_with("vfio") || ["pci-stub", "pcieport"].contains(&driver);
    let others: Vec<String> = members
        .filter(|(name, _)| *name != nic.address)
        .filter_map(|(name, driver)| {
            let driver = driver.as_deref().filter(|driver| !harmless(driver))?;
            Some(format!("{name} ({driver})"))
        })
        .collect();
    if others.is_empty() {
        return Finding::ok(check, "no other driver in the group");
    }
    let text = format!("the group is shared with {}", others.join(", "));
    Finding::problem(check, text, "`cxctl bind` them too, or move the card to a slot with ACS")
}

fn port_type(nic: &Nic) -> Finding {
    let check = "port-type";
    if nic.is_infiniband() {
        let mend = format!(
            "mlxconfig -d {} set LINK_TYPE_P1=2 (and LINK_TYPE_P2=2), then a cold boot",
            nic.address
        );
        return Finding::problem(check, "the port speaks InfiniBand, ferrocx Ethernet", mend);
    }
    let by = nic.link_layer.as_deref().map_or("not said to be InfiniBand", |_| "Ethernet");
    Finding::ok(check, by)
}

fn driver(nic: &Nic) -> Finding {
    let check = "driver";
    match nic.driver.as_deref() {
        Some(VFIO) => Finding::ok(check, VFIO),
        driver => {
            let text = format!("bound to {}", driver.unwrap_or("no driver"));
            Finding::problem(check, text, format!("cxctl bind {} --apply", nic.address))
        }
    }
}

/// The function's file may be opened, or its group's.
fn node_file(tree: &Tree, nic: &Nic, need: &Need) -> Finding {
    let check = "group-node";
    let Some(path) = nic.group_file().filter(|_| nic.driver.as_deref() == Some(VFIO)) else {
        return Finding::ok(check, "comes with vfio-pci");
    };
    if let Some(file) = nic.device_file().filter(|_| opens_by_file(tree, nic, need)) {
        return Finding::ok(check, format!("/{} and /dev/iommu may be opened", file.display()));
    }
    let may = may_use(tree, &path, need);
    let path = path.display();
    match may {
        Some(true) => Finding::ok(check, format!("/{path} may be opened")),
        Some(false) => {
            let text = format!("user {} may not open /{path}", need.uid);
            Finding::problem(check, text, format!("chown {} /{path}, or a udev rule", need.uid))
        }
        None => Finding::problem(check, format!("there is no /{path}"), "udevadm trigger"),
    }
}

fn busy(tree: &Tree, nic: &Nic) -> Finding {
    let check = "in-use";
    let holders = bind::holders(tree, nic);
    if holders.is_empty() {
        return Finding::ok(check, "by no process that can be seen");
    }
    let text = format!("it or its group is held open by {}", holders.join(", "));
    Finding::problem(check, text, "end that program first")
}

/// The firmware gave BAR 0 an address, and its size is that of such a device.
fn bar(tree: &Tree, nic: &Nic) -> Finding {
    let check = "bar";
    let text = tree.text(Tree::device(&nic.address).join("resource")).unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let numbers: Vec<u64> = first
        .split_whitespace()
        .filter_map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok())
        .collect();
    let [start, end, _flags] = numbers[..] else {
        return Finding::warning(check, "the kernel says nothing about BAR 0", "rescan the bus");
    };
    if start == 0 || end < start {
        let mend = "switch \"Above 4G decoding\" on in the firmware's setup, or add pci=realloc to \
                    the kernel command line";
        return Finding::problem(check, "BAR 0 has no address", mend);
    }
    let len = end - start + 1;
    // A virtual function's is as large as the firmware was told to make it.
    if len < MIN_BAR_BYTES && !nic.is_vf {
        let text = format!("BAR 0 has {len} bytes, {MIN_BAR_BYTES} are the least");
        return Finding::problem(check, text, "update the adapter's firmware");
    }
    Finding::ok(check, format!("BAR 0 has {} KiB", len >> 10))
}

fn reset(tree: &Tree, nic: &Nic) -> Finding {
    let check = "reset";
    if tree.exists(Tree::device(&nic.address).join("reset")) {
        return Finding::ok(check, "the kernel can reset it");
    }
    let text = "the kernel knows no way to reset it; a program that dies may leave it unusable";
    Finding::warning(check, text, "update the adapter's firmware (function-level reset)")
}

fn link(nic: &Nic) -> Finding {
    let check = "pcie";
    let Some(link) = &nic.pcie else { return Finding::ok(check, "no link of its own") };
    let have = format!("x{} at {}", link.width, link.speed);
    // A virtual function shares its parent's link, and reports zeros.
    if nic.is_vf || (link.width >= link.max_width && link.speed == link.max_speed) {
        return Finding::ok(check, have);
    }
    let text = format!("{have}, the card can x{} at {}", link.max_width, link.max_speed);
    Finding::warning(check, text, "use a slot with as many lanes, and check bifurcation and risers")
}

fn node(tree: &Tree, nic: &Nic) -> Finding {
    let check = "numa-node";
    match nic.numa_node {
        Some(node) => Finding::ok(check, format!("{node}")),
        None if node_count(tree) > 1 => Finding::warning(
            check,
            "the firmware does not say which node the card is near",
            "update the firmware, or choose cores and --node by measuring",
        ),
        None => Finding::ok(check, "one node only"),
    }
}

/// Some isolated core is near the card.
fn near_cores(tree: &Tree, nic: &Nic) -> Finding {
    let check = "near-cores";
    let isolated = isolated_cores(tree);
    let Some(node) = nic.numa_node.filter(|_| !isolated.is_empty()) else {
        return Finding::ok(check, "nothing to compare");
    };
    let near = |core: &usize| tree.exists(format!("sys/devices/system/node/node{node}/cpu{core}"));
    if isolated.iter().any(near) {
        return Finding::ok(check, format!("isolated cores on node {node}"));
    }
    let text = format!("no isolated core is on node {node}, where the card is");
    Finding::warning(check, text, format!("isolate cores of node {node} (isolcpus=)"))
}
