//! [`HostQueue`]: a queue of an initiator, and the commands that are under way on it.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrocx::PageSize;
use ferrocx::verbs::cm::{ConnParams, Connected, Connecting, Connection, ConnectionManager};
use ferrocx::verbs::{
    Access, Buf, Cq, FastReg, InitAttr, KeySlot, ListLayout, Memory, Mr, Pd, Qp, QpConfig,
    RdmaContext, SendFlags, SendOp, SendWr, WcOpcode,
};
use zerocopy::IntoBytes;

use super::HostError;
use crate::backend;
use crate::proto::cm;
use crate::proto::connect::ADMIN_ENTRIES;
use crate::proto::sgl::{Keyed, List, Sgl};
use crate::proto::sqe::{CQE_BYTES, Cqe, SQE_BYTES, Sqe};

/// Bytes of in-capsule data that every target of ours takes.
pub const IN_CAPSULE_BYTES: usize = 4096;
/// log2 of a page of a lent key.
const LOG_PAGE: u8 = 12;
/// Kinds of requests: the low bits are the command.
const RECV: u64 = 0;
const SEND: u64 = 1 << 16;
const KEY: u64 = 2 << 16;

/// What a queue is made on.
#[derive(Debug, Clone)]
pub struct Base {
    /// The port.
    pub context: RdmaContext,
    /// Where queues and keys are made.
    pub pd: Pd,
    /// Who connects.
    pub cm: ConnectionManager,
    /// The target.
    pub target: SocketAddr,
    /// Pages of memory for queues and data.
    pub page: PageSize,
}

/// Sizes and purpose of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueConfig {
    /// Its number, 0 for the admin queue.
    pub qid: u16,
    /// The controller of an I/O queue.
    pub cntlid: u16,
    /// Commands that may be under way, and one.
    pub entries: u16,
    /// Pages that a command's own key can lend: 0 for none.
    pub lent_pages: u32,
    /// Bytes behind a command in its capsule at most: no more than the target takes (IOCCSZ).
    pub in_capsule_bytes: usize,
}

impl Default for QueueConfig {
    fn default() -> Self {
        let in_capsule_bytes = IN_CAPSULE_BYTES;
        Self { qid: 0, cntlid: 0, entries: ADMIN_ENTRIES, lent_pages: 0, in_capsule_bytes }
    }
}

/// A queue of an initiator. Polled; belongs to one core.
#[derive(Debug)]
pub struct HostQueue {
    qp: Qp,
    cq: Cq,
    /// Its life.
    pub connection: Connection,
    manager: ConnectionManager,
    capsules: Mr,
    /// Bytes of each.
    stride: usize,
    /// Names of commands that are not under way.
    free: Vec<u16>,
    /// Of each command, what is to come before its name and its memory are free again: its answer,
    /// and that the target has it, in any order.
    to_come: Vec<u8>,
    /// Keys of the commands, one each.
    keys: Vec<KeySlot>,
    /// Completions that have come.
    done: Vec<Cqe>,
    /// What the target said when it accepted.
    pub private_data: Vec<u8>,
    /// A key was ended by the target that is not the command's, or none where one should be.
    pub wrong_keys: u64,
}

/// A queue whose target has not answered yet.
#[derive(Debug)]
pub struct Joining {
    connecting: Connecting,
    parts: Parts,
}

/// What a queue has before it is connected.
#[derive(Debug)]
struct Parts {
    cq: Cq,
    manager: ConnectionManager,
    capsules: Mr,
    stride: usize,
    entries: u16,
    keys: Vec<KeySlot>,
}

impl Parts {
    fn joined(self, connected: Connected) -> HostQueue {
        let Self { cq, manager, capsules, stride, entries, keys } = self;
        HostQueue {
            qp: connected.qp,
            cq,
            connection: connected.connection,
            manager,
            capsules,
            stride,
            // One entry stays empty, so that a full ring is no empty one.
            free: (0..entries - 1).rev().collect(),
            to_come: vec![0; entries.into()],
            keys,
            done: Vec::with_capacity(entries.into()),
            private_data: connected.private_data,
            wrong_keys: 0,
        }
    }
}

impl Joining {
    /// Asks the target for a queue, with the private data that [`HostQueue::new`] has.
    ///
    /// # Errors
    ///
    /// What the device refused.
    pub fn begin(base: &Base, config: &QueueConfig) -> Result<Self, HostError> {
        Self::new(base, config, request(config).as_bytes())
    }

    fn new(base: &Base, config: &QueueConfig, private_data: &[u8]) -> Result<Self, HostError> {
        let entries = config.entries.max(2);
        let stride = SQE_BYTES + config.in_capsule_bytes;
        let count = usize::from(entries);
        let memory = backend::memory(&base.context, count * (stride + CQE_BYTES), base.page)?;
        let capsules = base.pd.get_dma_mr()?.over(&memory)?;
        let cq = base.context.create_cq(u32::from(entries) * 5)?;
        let qp_config = QpConfig {
            max_send_wr: u32::from(entries) * 3,
            max_recv_wr: entries.into(),
            max_inline_bytes: SQE_BYTES as u32,
            fast_reg: config.lent_pages > 0,
            ..QpConfig::default()
        };
        let mut qp: Qp = base.pd.create_qp(&cq, &qp_config)?;
        qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 })?;
        for at in 0..count {
            let start = count * stride + at * CQE_BYTES;
            qp.post_recv(RECV | at as u64, capsules.buf(start..start + CQE_BYTES)?)
                .map_err(|refused| refused.cause)?;
        }
        let layout = ListLayout::Pages { log_page: LOG_PAGE };
        let key = |_| KeySlot::new(&base.context, &base.pd, layout, config.lent_pages);
        let keys = match config.lent_pages {
            0 => Vec::new(),
            _ => (0..count).map(key).collect::<Result<_, _>>()?,
        };
        let params = ConnParams { private_data, initiator_depth: 0, ..ConnParams::default() };
        let connecting = base
            .cm
            .connect(qp, base.target, &params)
            .map_err(|refused| HostError::Cm(*refused.cause))?;
        let parts = Parts { cq, manager: base.cm.clone(), capsules, stride, entries, keys };
        Ok(Self { connecting, parts })
    }

    /// The queue, or itself while the target has not answered. Somebody polls the connection
    /// manager meanwhile.
    ///
    /// # Errors
    ///
    /// What the target refused.
    pub fn poll(mut self) -> Result<Result<HostQueue, Self>, HostError> {
        match self.connecting.poll() {
            None => Ok(Err(self)),
            Some(Ok(connected)) => Ok(Ok(self.parts.joined(connected))),
            Some(Err(refused)) => Err(HostError::Cm(*refused.cause)),
        }
    }
}

/// What a queue says of itself when it connects.
fn request(config: &QueueConfig) -> cm::Request {
    cm::Request {
        qid: config.qid.into(),
        hrqsize: config.entries.into(),
        hsqsize: config.entries.saturating_sub(1).into(),
        cntlid: config.cntlid.into(),
        ..cm::Request::default()
    }
}

impl HostQueue {
    /// Connects a queue pair to the target. The Connect command is the caller's.
    ///
    /// # Errors
    ///
    /// What the device or the target refused.
    pub fn new(base: &Base, config: &QueueConfig) -> Result<Self, HostError> {
        Self::with_request(base, config, request(config).as_bytes())
    }

    /// Connects a queue pair to the target with any private data.
    ///
    /// # Errors
    ///
    /// What the device or the target refused.
    pub fn with_request(
        base: &Base,
        config: &QueueConfig,
        private_data: &[u8],
    ) -> Result<Self, HostError> {
        let Joining { connecting, parts } = Joining::new(base, config, private_data)?;
        let connected = connecting.wait().map_err(|refused| HostError::Cm(*refused.cause))?;
        Ok(parts.joined(connected))
    }

    /// Commands that can be submitted now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Submits a command without data in its capsule; its name. `None` while the queue is full.
    ///
    /// # Errors
    ///
    /// The queue pair refuses.
    pub fn submit(&mut self, mut sqe: Sqe) -> Result<Option<u16>, HostError> {
        let Some(cid) = self.take_name() else { return Ok(None) };
        sqe.cid = cid.into();
        let wr = SendWr::signaled(SEND | u64::from(cid), SendOp::Send);
        self.qp.post_send_inline(&wr, sqe.as_bytes())?;
        Ok(Some(cid))
    }

    /// Submits a command with what follows it in its capsule; its name. `None` while the queue is
    /// full.
    ///
    /// # Errors
    ///
    /// The queue pair refuses, or there are too many bytes.
    pub fn submit_with(&mut self, mut sqe: Sqe, data: &[u8]) -> Result<Option<u16>, HostError> {
        let Some(cid) = self.take_name() else { return Ok(None) };
        sqe.cid = cid.into();
        self.send(cid, &[sqe.as_bytes(), data].concat())?;
        Ok(Some(cid))
    }

    /// Submits a command whose data are in several places, which a list behind it in its capsule
    /// names; its name. The last block of it is lent by the command's own key, if `lent` says what.
    /// `None` while the queue is full.
    ///
    /// # Errors
    ///
    /// As [`HostQueue::submit_with`] and [`HostQueue::submit_lent`].
    pub fn submit_listed(
        &mut self,
        mut sqe: Sqe,
        blocks: &[Keyed],
        lent: Option<(&Arc<Memory>, Range<usize>)>,
    ) -> Result<Option<u16>, HostError> {
        let Some(cid) = self.free.last().copied() else { return Ok(None) };
        let mut blocks = blocks.to_vec();
        if let Some((memory, range)) = lent {
            blocks.push(self.lend(cid, memory, range)?);
        }
        sqe.sgl = List { start: 0, count: blocks.len() as u8 }.encode();
        let list: Vec<u8> = blocks.iter().flat_map(|it| Sgl::Keyed(*it).encode()).collect();
        self.submit_with(sqe, &list)
    }

    /// Sends any bytes as a capsule.
    ///
    /// # Errors
    ///
    /// The queue pair refuses, or there are too many bytes.
    pub fn send(&mut self, slot: u16, bytes: &[u8]) -> Result<(), HostError> {
        let start = usize::from(slot) * self.stride;
        if bytes.len() > self.stride {
            return Err(HostError::TooLong { bytes: bytes.len(), most: self.stride });
        }
        let mut buf = self.capsules.buf(start..start + bytes.len())?;
        buf.copy_in(0, bytes).map_err(ferrocx::verbs::VerbsError::from)?;
        let wr = SendWr::signaled(SEND | u64::from(slot), SendOp::Send);
        self.qp.post_send(&wr, Some(buf)).map_err(|refused| HostError::Post(refused.cause))
    }

    /// Submits a command whose data are lent by a key of its own, which the target ends. `None`
    /// while the queue is full.
    ///
    /// # Errors
    ///
    /// The queue pair refuses, the queue has no keys, or the memory does not fit one.
    pub fn submit_lent(
        &mut self,
        mut sqe: Sqe,
        memory: &Arc<Memory>,
        range: Range<usize>,
    ) -> Result<Option<u16>, HostError> {
        let Some(cid) = self.free.last().copied() else { return Ok(None) };
        sqe.sgl = Sgl::Keyed(self.lend(cid, memory, range)?).encode();
        self.submit(sqe)
    }

    /// Lends memory by the key of a command.
    fn lend(
        &mut self,
        cid: u16,
        memory: &Arc<Memory>,
        range: Range<usize>,
    ) -> Result<Keyed, HostError> {
        let len = range.len() as u32;
        let key = self.keys.get_mut(usize::from(cid)).ok_or(HostError::NoKeys)?;
        key.map(memory, std::slice::from_ref(&range)).map_err(|_| HostError::NoKeys)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let lend = FastReg {
            wr_id: KEY | u64::from(cid),
            flags: SendFlags::MORE,
            start: 0,
            access,
            remote_invalidate: true,
        };
        let remote = key.register(&mut self.qp, &lend)?;
        Ok(Keyed { addr: remote.addr, len, rkey: remote.rkey.0, inv: true })
    }

    /// The next command that has ended.
    ///
    /// # Errors
    ///
    /// [`HostError::Ended`] once the queue pair has failed or the target has ended it.
    pub fn poll(&mut self) -> Result<Option<Cqe>, HostError> {
        while self.done.is_empty() {
            let Some(mut completion) = self.cq.poll() else { return Ok(None) };
            while let Some(mut wc) = self.qp.next_wc(&mut completion)? {
                if let Err(failure) = wc.result {
                    return Err(HostError::Ended(failure.to_string()));
                }
                if wc.opcode == WcOpcode::FastRegMr {
                    let slot = (wc.wr_id & 0xffff) as usize;
                    if let Some(key) = self.keys.get_mut(slot) {
                        key.complete(wc)
                            .map_err(|failure| HostError::Ended(failure.to_string()))?;
                    }
                    continue;
                }
                if wc.opcode != WcOpcode::Recv {
                    self.came((wc.wr_id & 0xffff) as u16);
                    continue;
                }
                let (slot, proof) = (wc.wr_id, wc.recv.invalidated.take());
                let Some(buf) = wc.into_buffers() else { continue };
                let mut cqe = Cqe::default();
                let _ = buf.copy_out(0, cqe.as_mut_bytes());
                self.qp.post_recv(slot, buf).map_err(|refused| refused.cause)?;
                let cid = cqe.cid.get();
                if let Some(proof) = proof {
                    let key = self.keys.get_mut(usize::from(cid));
                    let is_it = key.is_some_and(|key| key.invalidated_by(proof).is_ok());
                    self.wrong_keys += u64::from(!is_it);
                }
                self.came(cid);
                self.done.insert(0, cqe);
            }
        }
        Ok(self.done.pop())
    }

    /// Serves the connection manager, and sees whether the target has ended the queue.
    ///
    /// # Errors
    ///
    /// [`HostError::Ended`].
    pub fn look_after(&mut self) -> Result<(), HostError> {
        self.manager.poll();
        self.connection.poll().map_or(Ok(()), |end| Err(HostError::Ended(end.to_string())))
    }

    /// The name of a command that begins.
    fn take_name(&mut self) -> Option<u16> {
        let cid = self.free.pop()?;
        self.to_come[usize::from(cid)] = 2;
        Some(cid)
    }

    /// A command was answered, or the target has it.
    fn came(&mut self, cid: u16) {
        let Some(left @ 1..) = self.to_come.get_mut(usize::from(cid)) else { return };
        *left -= 1;
        if *left == 0 {
            self.free.push(cid);
        }
    }

    /// Waits for the next command that ends.
    ///
    /// # Errors
    ///
    /// [`HostError::Ended`], or [`HostError::Silent`] after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<Cqe, HostError> {
        let start = Instant::now();
        loop {
            // First: what the target answered before it ended the queue has come by then.
            let is_there = self.look_after();
            match self.poll() {
                Ok(Some(cqe)) => return Ok(cqe),
                Ok(None) => is_there?,
                Err(error) => return Err(is_there.err().unwrap_or(error)),
            }
            if start.elapsed() > limit {
                return Err(HostError::Silent(limit));
            }
            std::thread::yield_now();
        }
    }

    /// Waits until the target has ended the queue.
    ///
    /// # Errors
    ///
    /// [`HostError::Silent`] after `limit`.
    pub fn wait_for_end(&mut self, limit: Duration) -> Result<String, HostError> {
        let end = self.connection.wait_for_end(limit).ok_or(HostError::Silent(limit))?;
        Ok(end.to_string())
    }
}

/// The memory of a piece, as a descriptor names it.
#[must_use]
pub fn keyed(buf: &Buf) -> Sgl {
    let remote = buf.remote();
    let (addr, rkey) = remote.map_or((0, 0), |remote| (remote.addr, remote.rkey.0));
    Sgl::Keyed(Keyed { addr, len: buf.len() as u32, rkey, inv: false })
}
