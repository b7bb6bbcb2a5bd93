//! The way between an adapter and a peer such as a GPU, and what of the peer can be reached.

use super::Finding;
use crate::host::{AcsControl, Bar, Tree, acs, bars, path_to_root};

const ABOVE_4G: &str = "switch \"Above 4G decoding\" on in the firmware's setup, or add \
                        pci=realloc to the kernel command line";

/// What is checked of a peer: whether requests between the two go straight through the switch
/// above both, what translates them, and how much of the peer its BARs show.
pub fn checks(tree: &Tree, address: &str, peer: &str) -> Vec<Finding> {
    match named(tree, peer) {
        Ok(peer) => {
            vec![way(tree, address, &peer), translation(tree, address, &peer), bar(tree, &peer)]
        }
        Err(finding) => vec![finding],
    }
}

/// The full address of a peer that is there.
pub(super) fn named(tree: &Tree, peer: &str) -> Result<String, Finding> {
    match tree.sysfs().device(peer) {
        Ok(device) => Ok(device.identity.name),
        Err(error) => Err(Finding::problem("acs", error.to_string(), "name a PCI address")),
    }
}

/// Whether a switch is above both, and lets requests turn round in it.
fn way(tree: &Tree, address: &str, peer: &str) -> Finding {
    let check = "acs";
    let (own, other) = (path_to_root(tree, address), path_to_root(tree, peer));
    let Some(common) = own.iter().find(|bridge| other.contains(bridge)) else {
        let far = match (node(tree, address), node(tree, peer)) {
            (Some(own), Some(other)) if own != other => {
                format!(", on node {other} instead of {own}: between processors")
            }
            _ => String::new(),
        };
        let text =
            format!("{peer} is below another root complex{far}: the way is long and may not exist");
        return Finding::warning(check, text, "move one of the cards below the same switch");
    };
    if common.starts_with("pci") {
        let text = format!("no switch is above both it and {peer}: all goes through {common}");
        return Finding::warning(check, text, "move one of the cards below the same switch");
    }
    let below = |path: &[String]| -> Vec<String> {
        path.iter().take_while(|bridge| *bridge != common).cloned().collect()
    };
    // The ports of the switch between its upstream port and the two devices.
    for bridge in below(&own).into_iter().chain(below(&other)) {
        match acs(tree, &bridge) {
            control if control.redirects() => {
                let text =
                    format!("{bridge} sends what is for {peer} up to the root complex (ACS)");
                let mend = format!(
                    "setpci -s {bridge} ECAP_ACS+6.w=0, or pci=disable_acs_redir={bridge} on the \
                     kernel command line; both devices then share an IOMMU group"
                );
                return Finding::warning(check, text, mend);
            }
            AcsControl::Unreadable => {
                let text = format!("the configuration of {bridge} cannot be read");
                return Finding::warning(check, text, "run as root");
            }
            AcsControl::Value(_) | AcsControl::None => {}
        }
    }
    Finding::ok(check, format!("{common} is above both it and {peer}, and no port redirects"))
}

/// What an IOMMU between the two does. Behind one, the adapter's addresses are not the bus': a
/// switch sends them up to be translated, whether or not it could turn them round.
fn translation(tree: &Tree, address: &str, peer: &str) -> Finding {
    let check = "peer-iommu";
    let group = |name: &str| tree.link(Tree::device(name).join("iommu_group"));
    let Some(own) = group(address) else {
        let text = format!("nothing translates its addresses on the way to {peer}");
        return Finding::ok(check, text);
    };
    if group(peer) == Some(own.clone()) {
        let text = format!("{peer} is in IOMMU group {own} too: VFIO gives neither out alone");
        let mend = "move one of them to a slot with ACS of its own";
        return Finding::warning(check, text, mend);
    }
    let text = format!(
        "what it sends to {peer} is translated by the IOMMU, and so passes the root complex"
    );
    Finding::ok(check, text)
}

/// Whether the peer's largest BAR has an address, answers, and is as large as it can be.
fn bar(tree: &Tree, peer: &str) -> Finding {
    let check = "peer-bar";
    let Some(Bar { index, start, len, sizes }) =
        bars(tree, peer).into_iter().max_by_key(|bar| bar.len)
    else {
        let text = format!("{peer} has no memory BAR: nothing of it can be reached");
        return Finding::problem(check, text, "name a device that has one, see lspci -v");
    };
    if start == 0 {
        return Finding::problem(check, format!("BAR {index} of {peer} has no address"), ABOVE_4G);
    }
    if tree.number(Tree::device(peer).join("enable")) == Some(0) {
        let text = format!("{peer} is switched off: its BARs read as ones, writes are lost");
        let mend = format!("load its driver, or echo 1 >/sys/bus/pci/devices/{peer}/enable");
        return Finding::problem(check, text, mend);
    }
    let largest = sizes.checked_ilog2().unwrap_or(0);
    // Bit 0 is a MiB.
    if sizes != 0 && len < 1 << 20 << largest {
        let text = format!(
            "BAR {index} of {peer} shows {} of its memory, and could show {}: no other device \
             reaches the rest",
            mebibytes(len),
            mebibytes(1 << 20 << largest)
        );
        let mend = format!(
            "switch \"Resizable BAR\" on in the firmware's setup, or without a driver of {peer} \
             echo {largest} >/sys/bus/pci/devices/{peer}/resource{index}_resize"
        );
        return Finding::warning(check, text, mend);
    }
    Finding::ok(check, format!("BAR {index} of {peer} has {}", mebibytes(len)))
}

fn mebibytes(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

fn node(tree: &Tree, address: &str) -> Option<u32> {
    // -1 stands for "unknown".
    tree.number(Tree::device(address).join("numa_node"))
}
