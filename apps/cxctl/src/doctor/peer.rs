//! The way between an adapter and a peer such as a GPU: short, or through the root complex.

use super::Finding;
use crate::host::{AcsControl, Tree, acs, path_to_root};

/// Whether requests between the two go straight through the switch above both.
pub fn check(tree: &Tree, address: &str, peer: &str) -> Finding {
    let check = "acs";
    let peer = match tree.sysfs().device(peer) {
        Ok(device) => device.identity.name,
        Err(error) => return Finding::problem(check, error.to_string(), "name a PCI address"),
    };
    let (own, other) = (path_to_root(tree, address), path_to_root(tree, &peer));
    let Some(common) = own.iter().find(|bridge| other.contains(bridge)) else {
        let text =
            format!("{peer} is below another root complex: the way is long and may not exist");
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
    Finding::ok(check, format!("straight to {peer} through {common}"))
}
