//! Two model ports on a cable, each with its driver, in one thread: what all examples start with.
#![allow(dead_code, unreachable_pub, reason = "each example uses its part")]

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use ferrocx_bus::PciIdentity;
use ferrocx_bus::local::{LocalConfig, LocalTransport, pair};
use ferrocx_core::DeviceConfig;
use ferrocx_mempool::RegionConfig;
use ferrocx_model::wire::{Wire, link};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_verbs_lite::*;

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A port: on hardware, what `vfio` opens; here, a model.
pub struct Port {
    pub device: RdmaContext,
    pub pd: Pd,
    pub cq: Cq,
    pub mr: Mr,
    pub memory: Arc<Memory>,
    ip: Ipv4Addr,
}

fn model(number: u8, wire: impl Wire + 'static) -> Result<(Arc<LocalTransport>, Nic)> {
    let config = NicConfig { roce: true, mac: [2, 0, 0, 0, 0, number], ..NicConfig::default() };
    let identity = PciIdentity {
        vendor: PciIdentity::VENDOR_MELLANOX,
        device: config.identity.device_id(),
        name: format!("model{number}"),
        numa_node: None,
    };
    let (transport, side) = pair(LocalConfig { identity, ..LocalConfig::default() })?;
    let mut nic = Nic::new(side, config);
    nic.datapath_mut().plug(wire);
    Ok((transport, nic))
}

fn open(transport: Arc<LocalTransport>, number: u8) -> Result<Port> {
    let port = ferrocx_core::Device::open(transport, &DeviceConfig::default())?;
    let device = RdmaContext::open(&port)?;
    let ip = Ipv4Addr::new(192, 168, 0, number);
    device.add_gid(GidConfig {
        address: IpAddr::V4(ip),
        prefix_len: 24,
        gateway: None,
        vlan: None,
    })?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(4096)?);
    let region = RegionConfig { len_bytes: 64 << 10, ..RegionConfig::default() };
    let memory = Memory::alloc(&device, &region)?;
    let mr =
        pd.reg_mr(&memory, 0..64 << 10, Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND)?;
    Ok(Port { device, pd, cq, mr, memory, ip })
}

impl Port {
    pub fn queue_pair(&self) -> Result<Qp> {
        Ok(self.pd.create_qp(&self.cq, &QpConfig { fast_reg: true, ..QpConfig::default() })?)
    }

    /// Connects a queue pair in reset to one of a peer, whose number it is told by another way:
    /// here the peer stands next to us.
    pub fn connect(&self, qp: &mut Qp, peer: &Port, qpn: Qpn) -> Result<()> {
        let route = self.device.route(peer.ip.into())?;
        let path = Path::new(route, peer.device.device().mac());
        let mtu = self.device.port_attr()?.active_mtu;
        qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 })?;
        qp.connect(&RtrAttr::new(path, qpn, Psn(0), mtu))?;
        Ok(qp.activate(&RtsAttr::new(Psn(0)))?)
    }
}

/// Waits for `count` requests of a queue pair to end.
pub fn wait(cq: &mut Cq, qp: &mut Qp, count: usize, step: &Step) -> Result<Vec<Wc<Buf>>> {
    let mut done = Vec::new();
    while done.len() < count {
        while let Some(completion) = cq.poll() {
            qp.complete(completion, |wc| done.push(wc))?;
        }
        step();
    }
    for wc in &done {
        wc.result?;
    }
    Ok(done)
}

/// Lets both models work for a microsecond.
pub type Step = Arc<dyn Fn() + Send + Sync>;

/// Two ports on a cable.
pub fn two_ports() -> Result<(Port, Port, Step)> {
    let (one_end, other_end) = link(1 << 20);
    let ((first, nic_a), (second, nic_b)) = (model(1, one_end)?, model(2, other_end)?);
    let world = Mutex::new((nic_a, nic_b, 0));
    let step: Step = Arc::new(move || {
        let mut world = world.lock().expect("no step panics");
        let (a, b, now) = &mut *world;
        *now += 1000;
        a.step(*now);
        b.step(*now);
    });
    // The models step whenever a driver waits for a command.
    first.set_idle_hook(Some(Arc::clone(&step)));
    second.set_idle_hook(Some(Arc::clone(&step)));
    Ok((open(first, 1)?, open(second, 2)?, step))
}

/// A port on another wire.
pub fn one_port(wire: impl Wire + 'static) -> Result<(Port, Step)> {
    let (transport, nic) = model(1, wire)?;
    let world = Mutex::new((nic, 0));
    let step: Step = Arc::new(move || {
        let mut world = world.lock().expect("no step panics");
        let (nic, now) = &mut *world;
        *now += 1000;
        nic.step(*now);
    });
    transport.set_idle_hook(Some(Arc::clone(&step)));
    Ok((open(transport, 1)?, step))
}

/// Two queue pairs that are each other's peer.
pub fn connected(a: &Port, b: &Port) -> Result<(Qp, Qp)> {
    let (mut qa, mut qb) = (a.queue_pair()?, b.queue_pair()?);
    a.connect(&mut qa, b, qb.qpn())?;
    b.connect(&mut qb, a, qa.qpn())?;
    Ok((qa, qb))
}
