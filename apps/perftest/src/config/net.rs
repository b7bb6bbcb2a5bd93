//! Where an end is and how it reaches the other: device, addresses, cable.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use ferrocx_app_common::device::DeviceName;
use ferrocx_app_common::option::ConfigError;
use ferrocx_app_common::peer::PeerSpec;
use ferrocx_model::wire::ImpairConfig;
use ferrocx_net::ether::MacAddr;
use ferrocx_verbs_lite::Mtu;

use crate::cli::Args;

/// An own address and its subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    /// The address.
    pub address: IpAddr,
    /// Bits that name the subnet.
    pub prefix_len: u8,
}

impl FromStr for Subnet {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = "an address and its prefix length such as 192.168.0.1/24 or fd00::1/64";
        let bad = || ConfigError::unknown("address", text, known);
        let (address, bits) = text.split_once('/').ok_or_else(bad)?;
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let prefix_len = bits.parse().map_err(|_| bad())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if prefix_len > most { Err(bad()) } else { Ok(Self { address, prefix_len }) }
    }
}

/// Where this end is, and how it reaches the other.
#[derive(Debug, Clone)]
pub struct Net {
    /// The device.
    pub device: DeviceName,
    /// Own address; `None` for the link-local one.
    pub ip: Option<Subnet>,
    /// MAC address that leads to the peer; `None` for what its address or the exchange says.
    pub peer_mac: Option<MacAddr>,
    /// Whose memory holds the messages; `None` for the host's.
    pub peer: Option<PeerSpec>,
    /// Host of the other end; `None` for the end that waits.
    pub server: Option<String>,
    /// Whether the ends meet through the connection manager.
    pub cm: bool,
    /// TCP port of the exchange, or port of the connection manager.
    pub port: u16,
    /// Path MTU.
    pub mtu: Mtu,
    /// Code of the time until a packet is sent again.
    pub ack_timeout: u8,
    /// Where the frames of the model's cable go.
    pub pcap: Option<PathBuf>,
    /// How bad the model's cable is.
    pub cable: ImpairConfig,
}

impl Net {
    /// Whether both ends run in this process, on the model.
    #[must_use]
    pub fn is_model(&self) -> bool {
        matches!(self.device, DeviceName::Model(_))
    }
}

/// Whether anything happens to frames on this cable.
#[must_use]
pub fn is_bad(cable: &ImpairConfig) -> bool {
    let ImpairConfig { loss_ppm, duplicate_ppm, silent_corrupt_ppm, reorder_ppm, .. } = cable;
    loss_ppm + duplicate_ppm + silent_corrupt_ppm + reorder_ppm > 0
}

/// A share of the frames, as parts per million.
fn share(option: &'static str, percent: f64) -> Result<u32, ConfigError> {
    if !(0.0..=50.0).contains(&percent) {
        return Err(ConfigError::range(option, percent, "0 to 50 percent"));
    }
    // At most half a million.
    Ok((percent * 1e4).round() as u32)
}

fn cable(args: &Args) -> Result<ImpairConfig, ConfigError> {
    Ok(ImpairConfig {
        loss_ppm: share("loss", args.loss)?,
        duplicate_ppm: share("duplicate", args.duplicate)?,
        silent_corrupt_ppm: share("corrupt", args.corrupt)?,
        reorder_ppm: share("reorder", args.reorder)?,
        reorder_frames: 3,
        ..ImpairConfig::default()
    })
}

/// Checks the options that say where an end is.
pub(super) fn net(args: &Args) -> Result<Net, ConfigError> {
    let device: DeviceName = args.device.parse()?;
    let is_model = matches!(device, DeviceName::Model(_));
    let together = |what, way_out| Err(ConfigError::together(what, way_out));
    if is_model && args.server.is_some() {
        let way_out = "leave SERVER out, or name a device with --device";
        return together("both ends run on the model of this process", way_out);
    }
    if matches!(&device, DeviceName::Model(options) if options.has_wire()) {
        return together("a cable joins both ends of the model", "leave net and tap out");
    }
    let cable = cable(args)?;
    if !is_model && (args.pcap.is_some() || is_bad(&cable)) {
        let way_out = "leave --pcap, --loss and their like out, or leave --device out";
        return together("only the model's cable can be captured or bad", way_out);
    }
    ConfigError::check("port", args.port.into(), 1, 65535)?;
    ConfigError::check("ack-timeout", args.ack_timeout.into(), 1, 31)?;
    let peer_mac = args.peer_mac.as_deref().map(mac).transpose()?;
    if peer_mac.is_some_and(MacAddr::is_multicast) {
        let value = args.peer_mac.as_deref().unwrap_or_default();
        return Err(ConfigError::range("peer-mac", value, "the address of one station"));
    }
    Ok(Net {
        device,
        ip: args.ip.as_deref().map(str::parse).transpose()?,
        peer_mac,
        peer: args.peer.as_deref().map(str::parse).transpose()?,
        server: args.server.clone(),
        cm: args.cm,
        port: args.port,
        mtu: mtu(args.mtu)?,
        ack_timeout: args.ack_timeout,
        pcap: args.pcap.clone(),
        cable,
    })
}

fn mac(text: &str) -> Result<MacAddr, ConfigError> {
    Ok(text.parse()?)
}

fn mtu(bytes: u32) -> Result<Mtu, ConfigError> {
    let all = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    let found = all.into_iter().find(|mtu| mtu.bytes() == bytes);
    found.ok_or_else(|| ConfigError::range("mtu", bytes, "256, 512, 1024, 2048 or 4096"))
}
