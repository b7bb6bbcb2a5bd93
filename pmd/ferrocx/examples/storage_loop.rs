//! A block store over RDMA. Clients connect by address and port; each transfer goes straight
//! between the store's memory and the client's, under a key that the client binds for it and that
//! the store's answer ends. Run as it is, two ports of the model play store and client.
//!
//! ```text
//! cargo run --release -p ferrocx --example storage_loop
//! ```

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferrocx::verbs::cm::{
    CmConfig, CmListener, ConnParams, Connecting, Connection, ConnectionManager,
};
use ferrocx::verbs::{
    Access, Buf, Cq, Ended, FastReg, GidConfig, InitAttr, KeySlot, ListLayout, Memory, Mr, Pd, Qp,
    QpConfig, QpTable, RdmaContext, RemoteAddr, Rkey, SendFlags, SendOp, SendWr, WcOpcode,
};
use ferrocx::{Port, RegionConfig};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Bytes of a request: whether to write, number of the block, where the client's memory is.
const REQUEST: usize = 17;
/// Requests of a client that may be under way.
const DEPTH: u32 = 16;
const LOG_PAGE: u8 = 12;

/// What a client asks for: a block to be read into its memory, or written from there.
fn encode(is_write: bool, block: u32, client: RemoteAddr) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    bytes[0] = is_write.into();
    bytes[1..5].copy_from_slice(&block.to_be_bytes());
    bytes[5..13].copy_from_slice(&client.addr.to_be_bytes());
    bytes[13..].copy_from_slice(&client.rkey.0.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<(bool, usize, RemoteAddr)> {
    let (head, rkey) = bytes.split_at_checked(13)?;
    let block = u32::from_be_bytes(*head[1..5].first_chunk()?) as usize;
    let addr = u64::from_be_bytes(*head[5..].first_chunk()?);
    let rkey = Rkey(u32::from_be_bytes(*rkey.first_chunk()?));
    Some((head[0] != 0, block, RemoteAddr { addr, rkey }))
}

/// The port's RDMA, at an address.
fn rdma(port: &Port, address: IpAddr) -> Result<RdmaContext> {
    let context = port.rdma()?;
    context.add_gid(GidConfig { address, prefix_len: 24, gateway: None, vlan: None })?;
    Ok(context)
}

fn memory(context: &RdmaContext, len_bytes: usize) -> Result<Arc<Memory>> {
    Ok(Memory::alloc(context, &RegionConfig { len_bytes, ..RegionConfig::default() })?)
}

/// A store, and the clients that it serves.
pub struct Store {
    blocks: Mr,
    requests: Mr,
    clients: QpTable<Connection>,
    max_clients: u32,
    /// Clients that are being accepted, and their places.
    coming: Vec<(u32, Connecting)>,
    listener: CmListener,
    cm: ConnectionManager,
    cq: Cq,
    pd: Pd,
}

impl Store {
    /// A store of so many blocks that listens at an address of the port.
    pub fn new(port: &Port, at: SocketAddr, blocks: usize, max_clients: u32) -> Result<Self> {
        let context = rdma(port, at.ip())?;
        let pd = context.alloc_pd()?;
        let (disk, inbox) = (blocks * BLOCK, (max_clients * DEPTH) as usize * REQUEST);
        let cm = ConnectionManager::open(&context, &CmConfig::default())?;
        Ok(Self {
            blocks: pd.reg_mr(&memory(&context, disk)?, 0..disk, Access::LOCAL_WRITE)?,
            requests: pd.reg_mr(&memory(&context, inbox)?, 0..inbox, Access::LOCAL_WRITE)?,
            clients: QpTable::new(),
            max_clients,
            coming: Vec::new(),
            listener: cm.listen(at.port())?,
            cm,
            cq: context.create_cq(max_clients * 3 * DEPTH)?,
            pd,
        })
    }

    /// Does what is due; returns how many requests were served.
    pub fn poll(&mut self) -> Result<usize> {
        self.cm.poll();
        // A client that takes its leave says so to the connection; its queue pair does not hear it.
        let left = |(qp, connection): (&mut Qp, &mut Connection)| {
            connection.poll().is_some().then(|| qp.user_index())
        };
        let left = self.clients.iter_mut().filter_map(left).collect();
        self.part_with(left);
        self.accept()?;
        let clients = &mut self.clients;
        self.coming.retain_mut(|(place, coming)| {
            match coming.poll() {
                None => return true,
                Some(Ok(client)) => drop(clients.insert(client.qp, client.connection)),
                // It went away before it was there.
                Some(Err(_)) => drop(clients.remove(*place)),
            }
            false
        });
        let (mut served, mut gone) = (0, Vec::new());
        while let Some(Ended { qp, wc, .. }) = self.clients.poll(&mut self.cq)? {
            let is_request = wc.opcode == WcOpcode::Recv;
            // A queue pair that failed, or a client that asks for what there is not: it alone goes.
            let is_right = wc.result.is_ok()
                && match wc.into_buffers().filter(|_| is_request) {
                    Some(request) => serve(qp, &self.blocks, request).is_ok(),
                    None => true,
                };
            served += usize::from(is_right && is_request);
            if !is_right {
                gone.push(qp.user_index());
            }
        }
        self.part_with(gone);
        Ok(served)
    }

    /// Gives up the places of clients. What they had posted ends with their queue pairs.
    fn part_with(&mut self, clients: Vec<u32>) {
        clients.into_iter().for_each(|index| drop(self.clients.remove(index)));
    }

    /// Takes the next client that asks, if there is room for it.
    fn accept(&mut self) -> Result<()> {
        let Some(request) = self.listener.poll() else { return Ok(()) };
        let user_index = self.clients.reserve();
        if user_index >= self.max_clients {
            self.clients.remove(user_index);
            return Ok(request.reject(b"full")?);
        }
        let (max_send_wr, max_recv_wr) = (2 * DEPTH, DEPTH);
        let config = QpConfig { max_send_wr, max_recv_wr, user_index, ..QpConfig::default() };
        let mut qp: Qp = self.pd.create_qp(&self.cq, &config)?;
        qp.init(&InitAttr::default())?;
        for at in 0..DEPTH {
            let start = (user_index * DEPTH + at) as usize * REQUEST;
            qp.post_recv(0, self.requests.buf(start..start + REQUEST)?)?;
        }
        self.coming.push((user_index, request.accept(qp, &ConnParams::default())?));
        Ok(())
    }
}

/// Moves a block, and answers in the same breath: the answer ends the client's key.
fn serve(qp: &mut Qp, blocks: &Mr, request: Buf) -> Result<()> {
    let (is_write, block, client) = decode(&request.to_vec()).ok_or("a request is too short")?;
    let piece = blocks.buf(block * BLOCK..(block + 1) * BLOCK)?;
    let answer = SendWr::signaled(0, SendOp::SendInv(client.rkey));
    if is_write {
        let read = SendWr::unsignaled(0, SendOp::Read(client));
        qp.post_send(&read.with(SendFlags::MORE), Some(piece))?;
        // Not before the block has come.
        qp.post_send_inline(&answer.with(SendFlags::FENCE), &[0])?;
    } else {
        let write = SendWr::unsignaled(0, SendOp::Write(client));
        qp.post_send(&write.with(SendFlags::MORE), Some(piece))?;
        qp.post_send_inline(&answer, &[0])?;
    }
    Ok(qp.post_recv(0, request)?)
}

/// A client: memory for one block, and a key that lends it to the store for one transfer.
pub struct Client {
    key: KeySlot,
    block: Arc<Memory>,
    answers: Mr,
    qp: Qp,
    cq: Cq,
    connection: Connection,
}

impl Client {
    const KEY: u64 = 1;
    const REQUEST: u64 = 2;
    const ANSWER: u64 = 3;

    /// Connects to a store.
    pub fn connect(port: &Port, own: IpAddr, store: SocketAddr) -> Result<Self> {
        let context = rdma(port, own)?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
        let (block, inbox) = (memory(&context, BLOCK)?, memory(&context, BLOCK)?);
        let config =
            QpConfig { max_send_wr: 16, max_recv_wr: 4, fast_reg: true, ..QpConfig::default() };
        let mut qp = pd.create_qp(&cq, &config)?;
        qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 })?;
        let cm = ConnectionManager::open(&context, &CmConfig::default())?;
        let connected = cm.connect(qp, store, &ConnParams::default())?.wait()?;
        Ok(Self {
            key: KeySlot::new(&context, &pd, ListLayout::Pages { log_page: LOG_PAGE }, 1)?,
            answers: pd.reg_mr(&inbox, 0..BLOCK, Access::LOCAL_WRITE)?,
            block,
            qp: connected.qp,
            cq,
            connection: connected.connection,
        })
    }

    /// Writes a block of the store.
    pub fn write(&mut self, block: u32, bytes: &[u8; BLOCK]) -> Result<()> {
        self.block.region().copy_in(0, bytes)?;
        self.transfer(true, block)
    }

    /// Reads a block of the store.
    pub fn read(&mut self, block: u32) -> Result<[u8; BLOCK]> {
        self.transfer(false, block)?;
        let mut bytes = [0; BLOCK];
        self.block.region().copy_out(0, &mut bytes)?;
        Ok(bytes)
    }

    fn transfer(&mut self, is_write: bool, block: u32) -> Result<()> {
        let (wr_id, flags) = (Self::KEY, SendFlags::MORE);
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        self.key.map(&self.block, std::slice::from_ref(&(0..BLOCK)))?;
        let lend = FastReg { wr_id, flags, start: 0, access, remote_invalidate: true };
        let remote = self.key.register(&mut self.qp, &lend)?;
        self.qp.post_recv(Self::ANSWER, self.answers.buf(0..1)?)?;
        let request = SendWr::signaled(Self::REQUEST, SendOp::Send);
        self.qp.post_send_inline(&request, &encode(is_write, block, remote))?;

        // The answer may overtake the acknowledgement of the request.
        let (mut is_sent, mut ended) = (false, None);
        while !is_sent || ended.is_none() {
            let Some(mut completion) = self.cq.poll() else {
                match self.connection.poll() {
                    Some(_) => return Err("the store has ended the connection".into()),
                    None => continue,
                }
            };
            while let Some(mut wc) = self.qp.next_wc(&mut completion)? {
                wc.result?;
                match wc.wr_id {
                    Self::KEY => drop(self.key.complete(wc)?),
                    Self::REQUEST => is_sent = true,
                    _ => ended = wc.recv.invalidated.take(),
                }
            }
        }
        let proof = ended.ok_or("the store did not end the key")?;
        Ok(self.key.invalidated_by(proof).map_err(|_| "the store ended another key")?)
    }
}

fn main() -> Result<()> {
    let [near, far] = Port::open_all(["model", "model"])?;
    let at: SocketAddr = "192.0.2.1:4420".parse()?;
    let mut store = Store::new(&far, at, 256, 4)?;
    let client = std::thread::spawn(move || {
        let mut client =
            Client::connect(&near, [192, 0, 2, 2].into(), at).map_err(|e| e.to_string())?;
        let mut run = || -> Result<()> {
            client.write(7, &[0x5a; BLOCK])?;
            assert_eq!(client.read(7)?, [0x5a; BLOCK]);
            assert_eq!(client.read(8)?, [0; BLOCK]);
            Ok(())
        };
        run().map_err(|error| error.to_string())
    });
    let mut served = 0;
    while !client.is_finished() {
        served += store.poll()?;
    }
    client.join().map_err(|_| "the client panicked")??;
    println!("{served} blocks moved, each under a key of its own");
    Ok(())
}
