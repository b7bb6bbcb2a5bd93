//! An adapter behind VFIO as the device of this process: what the environment says of it, and the
//! way to its peers by ARP and neighbour discovery.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrocx_bus::Transport;
use ferrocx_bus::vfio::{VfioConfig, VfioTransport};
use ferrocx_core::{Device, DeviceConfig};
use ferrocx_mempool::PageSize;
use ferrocx_verbs_lite::net::{NetConfig, NetError, Network};
use ferrocx_verbs_lite::{GidConfig, Path, RdmaContext};

use super::{ETHERNET_MTU, GLANCE, Node, invalid, lock, mtu_of, refused, setting, setting_of};
use crate::face::wait::nap;

/// How long the port may take until it has a link; it is opened without one after that.
const LINK_PATIENCE: Duration = Duration::from_secs(10);
/// Time between looks whether it has.
const LOOK: Duration = Duration::from_millis(20);

/// Settings that say something of the model alone.
const OF_THE_MODEL: [&str; 3] = ["FERROCX_IMPAIR", "FERROCX_SEED", "FERROCX_CAPTURE"];

/// The address of the port with its subnet, and who leads out of it.
fn address(text: &str, gateway: Option<&str>) -> io::Result<GidConfig> {
    let bad = || {
        invalid(format!(
            "FERROCX_IP is \"{text}\"; for an adapter it must be the address of its port and the \
             length of the subnet's prefix, such as 192.168.0.1/24 or fd00::1/64"
        ))
    };
    let (address, bits) = text.split_once('/').ok_or_else(bad)?;
    let address: IpAddr = address.parse().map_err(|_| bad())?;
    let prefix_len: u8 = bits.parse().map_err(|_| bad())?;
    let gateway = gateway.map(|text| {
        text.parse().map_err(|_| {
            invalid(format!("FERROCX_GATEWAY is {text}; it must be an address of the subnet"))
        })
    });
    let gateway = gateway.transpose()?;
    Ok(GidConfig { address, prefix_len, gateway, vlan: None })
}

/// Waits until the port has a link.
fn wait_for_link(context: &RdmaContext) -> io::Result<()> {
    let start = Instant::now();
    while !context.port_attr().map_err(refused)?.is_up {
        if start.elapsed() > LINK_PATIENCE {
            tracing::warn!("the port has no link; is its peer up?");
            return Ok(());
        }
        nap(LOOK);
    }
    Ok(())
}

/// Opens the adapter at a PCI address, as the device of a number.
pub(super) fn open(pci: String, index: usize) -> io::Result<Arc<Node>> {
    if let Some(name) = OF_THE_MODEL.iter().find(|name| setting(name).is_some()) {
        return Err(invalid(format!(
            "{name} is set, and FERROCX_DEVICE names the adapter {pci}: that is for the model's \
             wire; unset one of them"
        )));
    }
    let [ip, gateway] = ["FERROCX_IP", "FERROCX_GATEWAY"].map(|name| setting_of(name, index));
    let gid = address(&ip.unwrap_or_default(), gateway.as_deref())?;
    let mtu = mtu_of(ETHERNET_MTU)?;
    let settings = VfioConfig { address: pci.clone(), ..VfioConfig::default() };
    let transport: Arc<dyn Transport> = VfioTransport::open(&settings).map_err(refused)?;
    let settings = DeviceConfig { mtu, page: PageSize::Base4K, ..DeviceConfig::default() };
    let device = Device::open(transport, &settings).map_err(refused)?;
    let context = RdmaContext::open(&device).map_err(refused)?;
    let address = context.add_gid(gid).map_err(refused)?;
    wait_for_link(&context)?;
    let net = NetConfig { page: PageSize::Base4K, ..NetConfig::default() };
    let network = Network::open(&context, &net).map_err(refused)?;
    tracing::info!(pci, address = %gid.address, mtu, "the adapter is up");
    Node::of(index, context, address, None, Some(Mutex::new(network)))
}

/// Finds the way from an address of the port to a peer, and waits for the answer.
pub(super) fn resolve(
    network: &Mutex<Network>,
    local: IpAddr,
    remote: IpAddr,
) -> Result<Path, NetError> {
    loop {
        let mut net = lock(network);
        if let Some(path) = net.resolve_from(local, remote)? {
            return Ok(path);
        }
        let has_moved = net.poll();
        drop(net);
        if !has_moved {
            nap(GLANCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_its_subnet_and_a_bad_one_is_named() {
        let gid = address("10.1.0.2/24", Some("10.1.0.1")).unwrap();
        assert_eq!((gid.address, gid.prefix_len), (IpAddr::from([10, 1, 0, 2]), 24));
        assert_eq!(gid.gateway, Some([10, 1, 0, 1].into()));
        let gid = address("fd00::2/64", None).unwrap();
        assert_eq!((gid.prefix_len, gid.gateway), (64, None));
        for text in ["", "10.1.0.2", "10.1.0.2/", "10.1.0/24", "10.1.0.2/x", "/24"] {
            let error = address(text, None).unwrap_err().to_string();
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
            assert!(error.contains("192.168.0.1/24"), "{error}");
        }
        let error = address("10.1.0.2/24", Some("10.1")).unwrap_err().to_string();
        assert!(error.contains("FERROCX_GATEWAY is 10.1;"), "{error}");
    }

    #[test]
    fn an_adapter_that_is_not_there_is_named() {
        // Nothing is opened: there is no such device here.
        let transport = VfioTransport::open(&VfioConfig {
            address: "ffff:ff:1f.7".into(),
            ..VfioConfig::default()
        });
        assert!(transport.unwrap_err().to_string().contains("ffff:ff:1f.7"));
    }
}
