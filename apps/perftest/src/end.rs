//! An end of a connection: a port brought up for RDMA, and the model behind it if it is one.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use ferrocx_app_common::device::DeviceName;
use ferrocx_app_common::wait::Wait;
use ferrocx_bus::local::{self, LocalConfig};
use ferrocx_bus::vfio::{VfioConfig, VfioTransport};
use ferrocx_bus::{PciIdentity, Transport};
use ferrocx_core::{Device, DeviceConfig, MacAddr};
use ferrocx_mempool::RegionConfig;
use ferrocx_model::runner::{self, Helper, Runner, RunnerConfig};
use ferrocx_model::wire::{Capture, CaptureFile, Impair, Link, SplitMix64, Wire, link};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_verbs_lite::{Access, Gid, GidConfig, Memory, Mr, Path, Pd, RdmaContext};

use crate::config::{Net, Subnet, is_bad};
use crate::peer::PeerSource;

/// Bytes that may be on the way in each direction of the model's cable.
const CABLE_BYTES: usize = 4 << 20;
/// How long to wait for the link at the start.
const LINK_PATIENCE: Duration = Duration::from_secs(20);
/// Bytes that headers add to a packet's payload: see [`ferrocx_verbs_lite::Mtu::fitting`].
const HEADER_BYTES: u32 = 96;
/// Largest layer-3 packet of Ethernet without jumbo frames.
const ETHERNET_MTU: u32 = 1500;
/// Refusals of a model that are logged at the end, newest first.
const LAST_REFUSALS: usize = 4;

/// A port, ready for RDMA.
#[derive(Debug)]
pub struct End {
    /// The device's RDMA side.
    pub context: RdmaContext,
    /// Where its objects are made.
    pub pd: Pd,
    /// Own address.
    pub gid: Gid,
    /// Whose memory holds the messages, if not the host's.
    pub peer: Option<PeerSource>,
}

impl End {
    /// `share` as in [`PeerSource::new`].
    fn open(
        transport: Arc<dyn Transport>,
        net: &Net,
        ip: Option<Subnet>,
        share: (u64, u64),
    ) -> Result<Self> {
        // Room for the headers of full packets.
        let mtu = ETHERNET_MTU.max(net.mtu.bytes() + HEADER_BYTES);
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        let settings = DeviceConfig { mtu, ..DeviceConfig::default() };
        let context = RdmaContext::open(&Device::open(transport, &settings)?)?;
        if let Some(Subnet { address, prefix_len }) = ip {
            context.add_gid(GidConfig { address, prefix_len, gateway: None, vlan: None })?;
        }
        let own = context.gids().into_iter().map(|entry| entry.gid).find(|gid| match ip {
            Some(subnet) => gid.ip() == subnet.address,
            None => true,
        });
        let gid = own.ok_or_else(|| anyhow!("the port has no address; give one with --ip"))?;
        wait_for_link(&context)?;
        let pd = context.alloc_pd()?;
        let peer = net.peer.map(|peer| PeerSource::new(&peer, share)).transpose()?;
        Ok(Self { context, pd, gid, peer })
    }

    /// The way to a peer.
    ///
    /// # Errors
    ///
    /// No own address on its subnet, or no MAC address known.
    pub fn path(&self, peer: Gid, mac: Option<MacAddr>) -> Result<Path> {
        let route = self.context.route(peer)?;
        let dmac = mac.or_else(|| Gid::from(route.next_hop).link_local_mac()).ok_or_else(|| {
            anyhow!("the MAC address of {} is not known; give it with --peer-mac", route.next_hop)
        })?;
        Ok(Path::new(route, dmac))
    }

    /// Takes memory and registers it, for peers too as `access` says. It is the peer's with
    /// `--peer`.
    ///
    /// # Errors
    ///
    /// The system's or the device's reason.
    pub fn memory(&self, len_bytes: usize, access: Access) -> Result<(Arc<Memory>, Mr)> {
        if let Some(peer) = &self.peer {
            return peer.memory(&self.pd, len_bytes, Access::LOCAL_WRITE | access);
        }
        let region = RegionConfig { len_bytes, ..RegionConfig::default() };
        let memory = Memory::alloc(&self.context, &region)
            .with_context(|| format!("{len_bytes} bytes for messages"))?;
        let len = memory.len_bytes();
        let mr = self.pd.reg_mr(&memory, 0..len, Access::LOCAL_WRITE | access)?;
        Ok((memory, mr))
    }

    /// Tears the port down and says how that went. Nothing else of it may live.
    ///
    /// # Errors
    ///
    /// The first step that failed.
    pub fn close(self) -> Result<()> {
        let Self { context, pd, peer, .. } = self;
        let device = context.device().clone();
        drop((peer, pd, context));
        Ok(device.close()?)
    }
}

fn wait_for_link(context: &RdmaContext) -> Result<()> {
    let start = Instant::now();
    while !context.port_attr()?.is_up {
        if start.elapsed() > LINK_PATIENCE {
            bail!("the port has no link after {} s; is its peer up?", LINK_PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Opens the device that the command line names.
///
/// # Errors
///
/// What VFIO or the driver says.
pub fn open_device(net: &Net) -> Result<End> {
    let DeviceName::Pci(address) = &net.device else { bail!("{} is no device", net.device) };
    let place = || format!("device {address}");
    let settings = VfioConfig { address: address.to_string(), ..VfioConfig::default() };
    let transport = VfioTransport::open(&settings).with_context(place)?;
    End::open(transport as Arc<dyn Transport>, net, net.ip, (0, 1)).with_context(place)
}

/// Two models on a cable, and the thread that steps them.
#[derive(Debug)]
pub struct Models {
    runner: Runner,
    capture: Option<CaptureFile>,
}

impl Models {
    /// Starts them and brings up a port of each. The second has the address after the first's.
    ///
    /// # Errors
    ///
    /// What the system or the driver says.
    pub fn start(net: &Net, wait: Wait) -> Result<(Self, [End; 2])> {
        let DeviceName::Model(options) = &net.device else { bail!("{} is no model", net.device) };
        let capture = net.pcap.as_deref().map(CaptureFile::create).transpose()?;
        let (here, there) = link(CABLE_BYTES);
        let mut nics = Vec::new();
        let mut transports = Vec::new();
        for (number, cable) in [(1, here), (2, there)] {
            let (transport, nic) = model(number, options.seed, cable, net, capture.as_ref())?;
            transports.push(transport);
            nics.push(nic);
        }
        let wait = match wait {
            Wait::Busy => runner::Wait::Busy,
            Wait::Spin => runner::Wait::SpinHint,
            Wait::Yield => runner::Wait::Yield,
            Wait::Sleep(pause) => runner::Wait::Sleep(pause),
            Wait::Interrupt(_) => runner::Wait::Sleep(Wait::SLEEP),
        };
        let runner = Runner::start(nics, RunnerConfig { wait, ..RunnerConfig::default() })?;
        let models = Self { runner, capture };
        let mut ends = Vec::new();
        let sides = [(net.ip, (0, 2)), (net.ip.map(next_address), (1, 2))];
        for (transport, (ip, share)) in transports.into_iter().zip(sides) {
            ends.push(End::open(transport as Arc<dyn Transport>, net, ip, share).context("model")?);
        }
        let ends = <[End; 2]>::try_from(ends).map_err(|_| anyhow!("there are two models"))?;
        Ok((models, ends))
    }

    /// Steps them in a thread that waits for what they do.
    #[must_use]
    pub fn helper(&self) -> Helper {
        self.runner.helper()
    }

    /// Stops them. They must have found nothing wrong with what the driver did.
    ///
    /// # Errors
    ///
    /// How often they did, or a capture that could not be finished.
    pub fn stop(self) -> Result<()> {
        let mut refusals = 0;
        for nic in self.runner.stop() {
            refusals += nic.log().total();
            for refusal in nic.log().iter().rev().take(LAST_REFUSALS) {
                tracing::warn!(?refusal, "the model refused");
            }
        }
        if let Some(capture) = self.capture {
            capture.finish()?;
        }
        if refusals > 0 {
            bail!("the model refused {refusals} time(s); -v says what");
        }
        Ok(())
    }
}

fn model(
    number: u8,
    seed: u64,
    cable: Link,
    net: &Net,
    capture: Option<&CaptureFile>,
) -> Result<(Arc<local::LocalTransport>, Nic)> {
    let config = NicConfig { mac: [2, 0xfe, 0x0c, 0, 0, number], ..NicConfig::default() };
    let identity = PciIdentity {
        vendor: PciIdentity::VENDOR_MELLANOX,
        device: config.identity.device_id(),
        name: format!("model{number}"),
        numa_node: None,
    };
    // Each device has an address space of its own, as behind an IOMMU.
    let seed = seed.wrapping_add(number.into());
    let (transport, side) = local::pair(LocalConfig { seed, identity, ..LocalConfig::default() })?;
    let mut nic = Nic::new(side, config);
    let wire: Box<dyn Wire> = match is_bad(&net.cable) {
        true => Box::new(Impair::new(cable, net.cable, SplitMix64::new(seed))),
        false => Box::new(cable),
    };
    let wire = match capture {
        Some(file) => Box::new(Capture::new(wire, file, &format!("port{number}"))?),
        None => wire,
    };
    nic.datapath_mut().plug(wire);
    Ok((transport, nic))
}

/// The address of the second end.
fn next_address(subnet: Subnet) -> Subnet {
    let address = match subnet.address {
        IpAddr::V4(ip) => IpAddr::V4(ip.to_bits().wrapping_add(1).into()),
        IpAddr::V6(ip) => IpAddr::V6(ip.to_bits().wrapping_add(1).into()),
    };
    Subnet { address, ..subnet }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_end_has_the_next_address() {
        let next = |text: &str| next_address(text.parse().unwrap()).address.to_string();
        assert_eq!(next("10.0.0.255/16"), "10.0.1.0");
        assert_eq!(next("fd00::1/64"), "fd00::2");
    }
}
