//! The connection manager at work: speaks the protocols of rdma-core's `rping` and `ucmatose`, so
//! either can be the other end. And datagrams to a group, as its `mckey` sends and receives them.
//!
//! `cargo run -p ferrocx-verbs-lite --example rping` lets two models on a cable talk; `-- cmatose`
//! and `-- mckey` do the same with the other protocols. With a device:
//!
//! ```text
//! rping --device 0000:02:00.0 --address 10.0.0.2/24 rping-server
//! rping --device 0000:02:00.0 --address fd00::2/64 rping-client fd00::1 --count 10 --size 1000
//! rping --device 0000:02:00.0 --address 10.0.0.2/24 cmatose-client 10.0.0.1 --connections 4
//! rping --device 0000:02:00.0 --address 10.0.0.2/24 mckey-server 239.1.2.3
//! ```

use std::collections::VecDeque;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrocx_bus::local::{LocalConfig, pair};
use ferrocx_bus::vfio::{VfioConfig, VfioTransport};
use ferrocx_bus::{PciIdentity, Transport};
use ferrocx_core::DeviceConfig;
use ferrocx_mempool::RegionConfig;
use ferrocx_model::wire::link;
use ferrocx_model::{Nic, NicConfig};
use ferrocx_verbs_lite::cm::*;
use ferrocx_verbs_lite::*;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of an advertisement: address, key, length, all big-endian.
const ADVERT_BYTES: usize = 16;
/// Bytes in front of a datagram.
const GRH_BYTES: usize = 40;
/// Q_Key of rdma_cm's datagrams. Source: rdma-core, librdmacm/rdma_cma.h, `RDMA_UDP_QKEY`.
const UDP_QKEY: u32 = 0x0123_4567;
/// How long an end waits for the other.
const LIMIT: Duration = Duration::from_secs(60);

/// What to do.
#[derive(Debug, Clone)]
struct Settings {
    device: Option<String>,
    address: (IpAddr, u8),
    gateway: Option<IpAddr>,
    mode: String,
    peer: Option<IpAddr>,
    port: u16,
    count: usize,
    size: usize,
    connections: usize,
}

impl Settings {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut settings = Self {
            device: None,
            address: (IpAddr::from([10, 0, 0, 2]), 24),
            gateway: None,
            mode: String::new(),
            peer: None,
            port: 0,
            count: 5,
            size: 64,
            connections: 1,
        };
        while let Some(word) = words.next() {
            let Some(key) = word.strip_prefix("--") else {
                if settings.mode.is_empty() {
                    settings.mode = word;
                } else {
                    settings.peer = Some(word.parse()?);
                }
                continue;
            };
            let value = words.next().ok_or_else(|| format!("--{key} needs a value"))?;
            match key {
                "device" => settings.device = Some(value),
                "address" => {
                    let (ip, len) = value.split_once('/').ok_or("write an address as IP/BITS")?;
                    settings.address = (ip.parse()?, len.parse()?);
                }
                "gateway" => settings.gateway = Some(value.parse()?),
                "port" => settings.port = value.parse()?,
                "count" => settings.count = value.parse()?,
                "size" => settings.size = value.parse()?,
                "connections" => settings.connections = value.parse()?,
                _ => return Err(format!("no option --{key}").into()),
            }
        }
        if settings.size < 32 {
            return Err(format!("--size is {}; give at least 32", settings.size).into());
        }
        if settings.port == 0 {
            // What the stock tools take.
            settings.port = if settings.mode.starts_with("cmatose") { 7471 } else { 7174 };
        }
        Ok(settings)
    }

    fn peer(&self) -> Result<SocketAddr> {
        Ok(SocketAddr::new(self.peer.ok_or("a client needs the address of its server")?, self.port))
    }
}

/// A port with all that connections of it share.
struct End {
    // Dropped in this order: the thread before what it serves.
    _thread: Background,
    manager: ConnectionManager,
    cq: Cq,
    mr: Mr,
    memory: Arc<Memory>,
    pd: Pd,
    context: RdmaContext,
    arrived: VecDeque<Arrival>,
}

/// A receive or a READ or WRITE that ended.
struct Arrival {
    opcode: WcOpcode,
    buf: Option<Buf>,
    len: usize,
}

impl End {
    fn open(transport: Arc<dyn Transport>, settings: &Settings) -> Result<Self> {
        let device = ferrocx_core::Device::open(transport, &DeviceConfig::default())?;
        let context = RdmaContext::open(&device)?;
        let (address, prefix_len) = settings.address;
        context.add_gid(GidConfig {
            address,
            prefix_len,
            gateway: settings.gateway,
            vlan: None,
        })?;
        let manager = ConnectionManager::open(&context, &CmConfig::default())?;
        let thread = manager.background(Duration::from_millis(1))?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(8192)?);
        // For each connection: what is sent, what comes back, and receives.
        let len_bytes = settings.connections * Self::share(settings);
        let memory = Memory::alloc(&context, &RegionConfig { len_bytes, ..Default::default() })?;
        let mr = pd.reg_mr(&memory, 0..len_bytes, Access::LOCAL_WRITE | Access::REMOTE)?;
        let arrived = VecDeque::new();
        Ok(Self { _thread: thread, manager, cq, mr, memory, pd, context, arrived })
    }

    /// Bytes of a connection.
    fn share(settings: &Settings) -> usize {
        (2 + settings.count.max(1)) * (GRH_BYTES + settings.size)
    }

    /// A queue pair with `count` receives of `bytes` posted.
    fn queue_pair(
        &self,
        settings: &Settings,
        number: usize,
        count: usize,
        bytes: usize,
    ) -> Result<Qp> {
        let config = QpConfig {
            max_recv_wr: count as u32,
            max_send_wr: 64.max(count as u32),
            user_index: number as u32,
            ..QpConfig::default()
        };
        let mut qp = self.pd.create_qp(&self.cq, &config)?;
        qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 })?;
        let base = number * Self::share(settings) + 2 * settings.size;
        for at in 0..count {
            let start = base + at * bytes;
            qp.post_recv(at as u64, self.mr.buf(start..start + bytes)?)
                .map_err(|refused| refused.cause)?;
        }
        Ok(qp)
    }

    /// Takes what has ended; sends are of no interest.
    fn poll(&mut self, qps: &mut [Qp]) -> Result<()> {
        let mut failed = None;
        while let Some(mut completion) = self.cq.poll() {
            let number = completion.user_index() as usize;
            let qp = qps.get_mut(number).ok_or("a completion of nobody's")?;
            while let Some(wc) = qp.next_wc(&mut completion)? {
                let (opcode, len) = (wc.opcode, wc.byte_len as usize);
                match wc.result {
                    Ok(()) if opcode == WcOpcode::Send => {}
                    Ok(()) => {
                        let buf = wc.into_buffers();
                        self.arrived.push_back(Arrival { opcode, buf, len });
                    }
                    Err(failure) if !failure.is_flush() => failed = failed.or(Some(failure)),
                    Err(_) => {}
                }
            }
        }
        failed.map_or(Ok(()), |failure| Err(failure.into()))
    }

    /// The next of a kind that ends on a connection; `None` once the connection has ended.
    fn wait(
        &mut self,
        qp: &mut Qp,
        connection: &mut Connection,
        opcode: WcOpcode,
    ) -> Result<Option<Arrival>> {
        let start = Instant::now();
        loop {
            self.poll(std::slice::from_mut(qp))?;
            if let Some(at) = self.arrived.iter().position(|arrival| arrival.opcode == opcode) {
                return Ok(self.arrived.remove(at));
            }
            if connection.poll().is_some() {
                return Ok(None);
            }
            if start.elapsed() > LIMIT {
                return Err("the other end is silent".into());
            }
            std::thread::yield_now();
        }
    }

    /// Tells the peer where a piece of memory is.
    fn advertise(&self, qp: &mut Qp, at: usize, size: usize) -> Result<()> {
        let remote = self.mr.buf(at..at + size)?.remote().ok_or("the memory is not for peers")?;
        let mut advert = [0; ADVERT_BYTES];
        advert[..8].copy_from_slice(&remote.addr.to_be_bytes());
        advert[8..12].copy_from_slice(&remote.rkey.0.to_be_bytes());
        advert[12..].copy_from_slice(&(size as u32).to_be_bytes());
        Ok(qp.post_send_inline(&SendWr::signaled(0, SendOp::Send), &advert)?)
    }

    /// What the peer says of its memory; `None` once the connection has ended.
    fn advert(
        &mut self,
        qp: &mut Qp,
        connection: &mut Connection,
    ) -> Result<Option<(RemoteAddr, usize)>> {
        let Some(arrival) = self.wait(qp, connection, WcOpcode::Recv)? else { return Ok(None) };
        let (buf, len) = (arrival.buf.ok_or("a receive without buffer")?, arrival.len);
        if len != ADVERT_BYTES {
            return Err(format!("{len} bytes are no advertisement, which has 16").into());
        }
        let bytes = buf.to_vec();
        qp.post_recv(0, buf).map_err(|refused| refused.cause)?;
        let addr = u64::from_be_bytes(bytes[..8].try_into()?);
        let rkey = Rkey(u32::from_be_bytes(bytes[8..12].try_into()?));
        let size = u32::from_be_bytes(bytes[12..].try_into()?) as usize;
        Ok(Some((RemoteAddr { addr, rkey }, size)))
    }

    fn text(&self, at: usize, size: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; size];
        self.memory.region().copy_out(at, &mut bytes)?;
        Ok(bytes)
    }
}

/// What `rping` asks for.
fn one_read() -> ConnParams<'static> {
    ConnParams { responder_resources: 1, initiator_depth: 1, ..ConnParams::default() }
}

/// `rping -s`: reads what the client shows, and writes it back to where it says.
fn rping_server(end: &mut End, settings: &Settings) -> Result<()> {
    let mut listener = end.manager.listen(settings.port)?;
    println!("listening on port {}", settings.port);
    let request = listener.wait();
    println!("{} asks for a connection", request.peer());
    let qp = end.queue_pair(settings, 0, 2, ADVERT_BYTES)?;
    let connected = request.accept(qp, &one_read())?.wait()?;
    let (mut qp, mut connection) = (connected.qp, connected.connection);
    let mut rounds = 0;
    while let Some((source, size)) = end.advert(&mut qp, &mut connection)? {
        if size > settings.size {
            return Err(format!("the client's size is {size}; give --size {size}").into());
        }
        let sink = end.mr.buf(0..size)?;
        qp.post_send(&SendWr::signaled(1, SendOp::Read(source)), Some(sink))
            .map_err(|refused| refused.cause)?;
        if end.wait(&mut qp, &mut connection, WcOpcode::Read)?.is_none() {
            break;
        }
        let text = end.text(0, size)?;
        println!("server ping data: {}", String::from_utf8_lossy(&text[..size.min(40)]));
        end.advertise(&mut qp, 0, size)?;
        let Some((sink, _)) = end.advert(&mut qp, &mut connection)? else { break };
        qp.post_send(&SendWr::signaled(2, SendOp::Write(sink)), Some(end.mr.buf(0..size)?))
            .map_err(|refused| refused.cause)?;
        if end.wait(&mut qp, &mut connection, WcOpcode::Write)?.is_none() {
            break;
        }
        end.advertise(&mut qp, 0, size)?;
        rounds += 1;
    }
    println!("{rounds} rounds; {}", connection.wait_for_end(LIMIT).ok_or("no end")?);
    Ok(())
}

/// `rping -c`: shows text, and compares what comes back.
fn rping_client(end: &mut End, settings: &Settings) -> Result<()> {
    let (size, peer) = (settings.size, settings.peer()?);
    let qp = end.queue_pair(settings, 0, 2, ADVERT_BYTES)?;
    let connected = end.manager.connect(qp, peer, &one_read())?.wait()?;
    let (mut qp, mut connection) = (connected.qp, connected.connection);
    println!("connected to {} from {}", connection.peer(), connection.local());
    for round in 0..settings.count {
        let mut text = format!("rdma-ping-{round}: ").into_bytes();
        text.extend((0..size).map(|at| b'A' + ((at + round) % 58) as u8));
        text.truncate(size);
        text[size - 1] = 0;
        end.memory.region().copy_in(0, &text)?;
        for at in [0, size] {
            end.advertise(&mut qp, at, size)?;
            if end.advert(&mut qp, &mut connection)?.is_none() {
                let end = connection.poll().map(ToString::to_string).unwrap_or_default();
                return Err(format!("round {round}: {end}").into());
            }
        }
        if end.text(size, size)? != text {
            return Err(format!("round {round}: other data came back").into());
        }
        println!("ping data: {}", String::from_utf8_lossy(&text[..size.min(40)]));
    }
    connection.disconnect(&[])?;
    println!("{}", connection.wait_for_end(LIMIT).ok_or("no end")?);
    Ok(())
}

/// Both ends of `ucmatose`: the server sends first on every connection, the client answers.
fn cmatose(end: &mut End, settings: &Settings, is_server: bool) -> Result<()> {
    let mut connected = Vec::new();
    let mut listener = if is_server { Some(end.manager.listen(settings.port)?) } else { None };
    println!("{} connections", settings.connections);
    for number in 0..settings.connections {
        let qp = end.queue_pair(settings, number, settings.count, settings.size)?;
        let connecting = match &mut listener {
            Some(listener) => listener.wait().accept(qp, &one_read())?,
            None => end.manager.connect(qp, settings.peer()?, &one_read())?,
        };
        connected.push(connecting.wait()?);
    }
    let (mut qps, mut connections) = (Vec::new(), Vec::new());
    for one in connected {
        qps.push(one.qp);
        connections.push(one.connection);
    }
    let all = settings.count * settings.connections;
    if !is_server {
        receive_all(end, &mut qps, all)?;
    }
    for (number, qp) in qps.iter_mut().enumerate() {
        let at = number * End::share(settings);
        for _ in 0..settings.count {
            let buf = end.mr.buf(at..at + settings.size)?;
            qp.post_send(&SendWr::signaled(0, SendOp::Send), Some(buf))
                .map_err(|refused| refused.cause)?;
        }
    }
    if is_server {
        receive_all(end, &mut qps, all)?;
        connections.iter_mut().try_for_each(|connection| connection.disconnect(b"done"))?;
    }
    for connection in &mut connections {
        println!("{}: {}", connection.peer(), connection.wait_for_end(LIMIT).ok_or("no end")?);
    }
    println!("{all} messages each way");
    Ok(())
}

fn receive_all(end: &mut End, qps: &mut [Qp], all: usize) -> Result<()> {
    let start = Instant::now();
    while end.arrived.len() < all {
        end.poll(qps)?;
        if start.elapsed() > LIMIT {
            return Err(format!("{} of {all} messages came", end.arrived.len()).into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Both ends of `mckey`: the client sends datagrams to a group, the server is a member of it. Each
/// says its queue pair as immediate data.
fn mckey(end: &mut End, settings: &Settings, is_server: bool) -> Result<()> {
    let (count, size) = (settings.count, settings.size);
    let group = Gid::from(settings.peer.ok_or("mckey needs the address of a group")?);
    let (max_send_wr, max_recv_wr) = (64.max(count as u32), count.max(1) as u32);
    let qp_type = QpType::Ud;
    let config = QpConfig { qp_type, max_send_wr, max_recv_wr, ..QpConfig::default() };
    let mut qp: Qp = end.pd.create_qp(&end.cq, &config)?;
    qp.init(&InitAttr { access: Access::empty(), qkey: UDP_QKEY })?;
    qp.receive()?;
    qp.activate(&RtsAttr::new(Psn(0)))?;
    let slot = GRH_BYTES + size;
    if is_server {
        for at in 0..count {
            qp.post_recv(at as u64, end.mr.buf(at * slot..(at + 1) * slot)?)
                .map_err(|refused| refused.cause)?;
        }
        qp.attach_multicast(group)?;
        println!("joined {group}");
    } else {
        let to = AddressHandle::new(&end.context.multicast_path(group)?, Qpn::MULTICAST, UDP_QKEY);
        let op = SendOp::Datagram { to: &to, imm: Some(qp.qpn().0) };
        for at in 0..count {
            qp.post_send(&SendWr::signaled(at as u64, op), Some(end.mr.buf(0..size)?))
                .map_err(|refused| refused.cause)?;
        }
    }
    let start = Instant::now();
    for done in 0..count {
        let mut completion = loop {
            if let Some(completion) = end.cq.poll() {
                break completion;
            }
            if start.elapsed() > LIMIT {
                return Err(format!("{done} of {count} datagrams in {LIMIT:?}").into());
            }
            std::thread::yield_now();
        };
        let wc = qp.next_wc(&mut completion)?.ok_or("a completion of nothing")?;
        wc.result?;
        if is_server {
            check_datagram(wc, group, size)?;
        }
    }
    println!("{count} datagrams of {size} bytes");
    Ok(())
}

/// The datagram was sent to the group, is of the size that it should be, and names its sender.
fn check_datagram(wc: Wc<Buf>, group: Gid, size: usize) -> Result<()> {
    let (len, source, imm) = (wc.byte_len as usize, wc.recv.source_qpn, wc.recv.imm);
    let head = wc.into_buffers().ok_or("a receive without buffer")?.to_vec();
    // The last bytes of an IPv4 header and of an IPv6 one are where it goes.
    let to: &[u8] = if group.ip().is_ipv4() { &head[36..GRH_BYTES] } else { &head[24..GRH_BYTES] };
    if len != GRH_BYTES + size || imm != Some(source) || !group.0.ends_with(to) {
        let what = format!("{len} bytes from {source:#x}, immediate {imm:x?}, to {to:?}");
        return Err(format!("a datagram that is not ours came: {what}").into());
    }
    Ok(())
}

fn run(transport: Arc<dyn Transport>, settings: &Settings) -> Result<()> {
    let mut end = End::open(transport, settings)?;
    match settings.mode.as_str() {
        "rping-server" => rping_server(&mut end, settings),
        "rping-client" => rping_client(&mut end, settings),
        "cmatose-server" => cmatose(&mut end, settings, true),
        "cmatose-client" => cmatose(&mut end, settings, false),
        "mckey-server" => mckey(&mut end, settings, true),
        "mckey-client" => mckey(&mut end, settings, false),
        mode => {
            Err(format!("no mode `{mode}`; rping-, cmatose- or mckey-, server or client").into())
        }
    }
}

/// Two models on a cable, stepped by a thread; server and client are threads too.
fn on_models(settings: &Settings) -> Result<()> {
    let (one_end, other_end) = link(1 << 20);
    let mut nics = Vec::new();
    let mut transports = Vec::new();
    for (number, cable) in [(1, one_end), (2, other_end)] {
        let config = NicConfig { roce: true, mac: [2, 0, 0, 0, 0, number], ..Default::default() };
        let identity = PciIdentity {
            vendor: PciIdentity::VENDOR_MELLANOX,
            device: config.identity.device_id(),
            name: format!("model{number}"),
            numa_node: None,
        };
        let (transport, side) = pair(LocalConfig { identity, ..LocalConfig::default() })?;
        let mut nic = Nic::new(side, config);
        nic.datapath_mut().plug(cable);
        nics.push(nic);
        transports.push(transport);
    }
    let stop = AtomicBool::new(false);
    let family = match settings.mode.as_str() {
        "" => "rping",
        family => family,
    };
    let group = (family == "mckey").then(|| IpAddr::from([239, 1, 2, 3]));
    let side = |last, role: &str, peer| Settings {
        address: (IpAddr::from([10, 0, 0, last]), 24),
        mode: format!("{family}-{role}"),
        peer,
        ..settings.clone()
    };
    let server = side(1, "server", group);
    let client = side(2, "client", group.or(Some(server.address.0)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            while !stop.load(Ordering::Acquire) {
                let now = start.elapsed().as_nanos() as u64;
                let busy = nics.iter_mut().fold(false, |busy, nic| nic.step(now) | busy);
                if !busy {
                    std::thread::yield_now();
                }
            }
        });
        let served = scope.spawn({
            let transport = Arc::clone(&transports[0]);
            move || run(transport, &server)
        });
        // The first request may come before the server listens.
        std::thread::sleep(Duration::from_millis(300));
        let asked = run(Arc::clone(&transports[1]) as Arc<dyn Transport>, &client);
        let served = served.join().unwrap_or_else(|_| Err("the server panicked".into()));
        stop.store(true, Ordering::Release);
        asked.and(served)
    })
}

fn main() -> std::process::ExitCode {
    match start() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rping: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn start() -> Result<()> {
    let settings = Settings::parse(std::env::args().skip(1))?;
    match &settings.device {
        None => on_models(&settings),
        Some(address) => {
            let config = VfioConfig { address: address.clone(), ..VfioConfig::default() };
            run(VfioTransport::open(&config)?, &settings)
        }
    }
}
