//! Two model ports on a cable, each with its driver, in one thread: a message there and back, then
//! a key that is registered by a work request, written through, and ended.
//!
//! `cargo run -p ferrocx-verbs-lite --example pingpong_on_model`

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use ferrocx_bus::PciIdentity;
use ferrocx_bus::local::{LocalConfig, LocalTransport, pair};
use ferrocx_mempool::RegionConfig;
use ferrocx_model::wire::{Link, link};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_pmd::DeviceConfig;
use ferrocx_verbs_lite::*;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A port: on hardware, what `vfio` opens; here, a model.
struct Port {
    device: Device,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    memory: Arc<Memory>,
    ip: Ipv4Addr,
}

fn model(number: u8, cable: Link) -> Result<(Arc<LocalTransport>, Nic)> {
    let config = NicConfig { roce: true, mac: [2, 0, 0, 0, 0, number], ..NicConfig::default() };
    let identity = PciIdentity {
        vendor: PciIdentity::VENDOR_MELLANOX,
        device: config.identity.device_id(),
        name: format!("model{number}"),
        numa_node: None,
    };
    let (transport, side) = pair(LocalConfig { identity, ..LocalConfig::default() })?;
    let mut nic = Nic::new(side, config);
    nic.datapath_mut().plug(cable);
    Ok((transport, nic))
}

fn open(transport: Arc<LocalTransport>, number: u8) -> Result<Port> {
    let port = ferrocx_pmd::Device::open(transport, &DeviceConfig::default())?;
    let device = Device::open(port)?;
    let ip = Ipv4Addr::new(192, 168, 0, number);
    device.add_gid(GidConfig {
        address: IpAddr::V4(ip),
        prefix_len: 24,
        gateway: None,
        vlan: None,
    })?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(1024)?);
    let region = RegionConfig { len_bytes: 64 << 10, ..RegionConfig::default() };
    let memory = Memory::alloc(&device, &region)?;
    let mr = pd.reg_mr(&memory, 0..64 << 10, Access::LOCAL_WRITE | Access::REMOTE)?;
    Ok(Port { device, pd, cq, mr, memory, ip })
}

impl Port {
    fn queue_pair(&self) -> Result<RcQp<Init>> {
        let config = QpConfig { fast_reg: true, ..QpConfig::default() };
        let qp = self.pd.create_rc_qp(&self.cq, &self.cq, &config)?;
        Ok(qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 })?)
    }

    /// What a peer is told by another way: here it stands next to us.
    fn connect(&self, qp: RcQp<Init>, peer: &Port, qpn: Qpn) -> Result<RcQp<Rts>> {
        let route = self.device.route(peer.ip.into())?;
        let path = Path::new(route, peer.device.port().mac());
        let mtu = self.device.port_attr()?.active_mtu;
        let qp = qp.connect(&RtrAttr::new(path, qpn, Psn(0), mtu))?;
        Ok(qp.activate(&RtsAttr::new(Psn(0)))?)
    }
}

/// Waits for `count` requests of a queue pair to end.
fn wait(cq: &mut Cq, qp: &mut Qp, count: usize, step: &dyn Fn()) -> Result<Vec<Wc<Buf>>> {
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

fn main() -> Result<()> {
    let (one_end, other_end) = link(1 << 20);
    let ((first, nic_a), (second, nic_b)) = (model(1, one_end)?, model(2, other_end)?);
    let world = Arc::new(Mutex::new((nic_a, nic_b, 0)));
    let step = {
        let world = Arc::clone(&world);
        move || {
            let mut world = world.lock().expect("no step panics");
            let (a, b, now) = &mut *world;
            *now += 1000;
            a.step(*now);
            b.step(*now);
        }
    };
    // The models step whenever a driver waits for a command.
    first.set_idle_hook(Some(Arc::new(step.clone())));
    second.set_idle_hook(Some(Arc::new(step.clone())));
    let (mut a, mut b) = (open(first, 1)?, open(second, 2)?);

    let (qa, qb) = (a.queue_pair()?, b.queue_pair()?);
    let (na, nb) = (qa.qpn(), qb.qpn());
    let mut qa = a.connect(qa, &b, nb)?.erase();
    let mut qb = b.connect(qb, &a, na)?.erase();

    // A message there. The buffer goes with the request and comes back with its completion.
    qb.post_recv(1, b.mr.buf(0..64)?)?;
    let mut ping = a.mr.buf(0..4)?;
    ping.copy_in(0, b"ping")?;
    qa.post_send(&SendWr::signaled(2, SendOp::Send), Some(ping))?;
    wait(&mut a.cq, &mut qa, 1, &step)?;
    let received = wait(&mut b.cq, &mut qb, 1, &step)?.remove(0);
    let len = received.byte_len as usize;
    let bytes = received.into_buffers().ok_or("no buffer")?.to_vec();
    println!("b received {:?}", String::from_utf8_lossy(&bytes[..len]));

    // A key over two pages that lie apart, bound by a work request, for writing only.
    let layout = ListLayout::Pages { log_page: 12 };
    let mut list = b.device.alloc_page_list(layout, 8)?;
    list.map(&b.memory, &[8192..12288, 4096..4200])?;
    let key = b.pd.alloc_mr(layout, 8)?;
    let wr = FastReg {
        wr_id: 3,
        flags: SendFlags::SIGNALED,
        start: 0,
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        remote_invalidate: false,
    };
    let key = qb.post_fast_reg(&wr, key, list)?;
    wait(&mut b.cq, &mut qb, 1, &step)?;
    println!("b registered {} bytes as {:?}", key.len_bytes(), key.rkey());

    let wr = SendWr::signaled(4, SendOp::Write(key.remote().at(4092)));
    qa.post_send_inline(&wr, b"across the pages")?;
    wait(&mut a.cq, &mut qa, 1, &step)?;
    let (front, back) = (b.mr.buf(12284..12288)?, b.mr.buf(4096..4108)?);
    let text = [front.to_vec(), back.to_vec()].concat();
    println!("a wrote {:?}", String::from_utf8_lossy(&text));

    // Ended: nobody can use it any more.
    let remote = key.remote();
    qb.post_local_inv(5, SendFlags::SIGNALED, key)?;
    wait(&mut b.cq, &mut qb, 1, &step)?;
    qa.post_send_inline(&SendWr::signaled(6, SendOp::Write(remote)), b"too late")?;
    let refused = wait(&mut a.cq, &mut qa, 1, &step).expect_err("the key has ended");
    println!("a tried again: {refused}");
    Ok(())
}
