//! [`Srq`]: one receive queue for many queue pairs.
//!
//! Any connected or datagram queue pair may take its receives from it: a server then posts as many
//! receives as messages arrive at a time, not as many as it has peers. Queue pairs are made with
//! [`QpQueues::srq`](crate::QpQueues::srq); their receive completions end requests of the shared
//! queue: [`Qp::complete_shared`](crate::Qp::complete_shared), or [`Srq::complete`] when the queue
//! pair is gone.
//!
//! The shared queue and its queue pairs belong to one core at a time.
//!
//! # The limit
//!
//! After [`Srq::arm_limit`] the device reports once, when fewer receives are left:
//! [`Event::SharedReceive`](ferrocx_core::Event::SharedReceive) with `SRQ_LIMIT`, from
//! [`RdmaContext::poll_async_event`](crate::RdmaContext::poll_async_event).
//!
//! # Failures
//!
//! A queue pair that fails takes no receive with it: those that it had not filled stay for the
//! others. A message that does not fit its receive fails that queue pair and ends the receive with
//! an error.
//!
//! Source: reference 5.9 (`rmpc`), 6.5 ("SRQ ring discipline"), 6.6.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use ferrocx_bus::{DmaWord, Ring};
use ferrocx_core::{Handle, Kind, page_list};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::wq::{CreateRmp, MODIFY_RMP_LWM, ModifyRmp};
use ferrocx_prm::cqe::CqeOpcode;
use ferrocx_prm::wqc::{Rmpc, Wq, state};
use ferrocx_prm::wqe::INVALID_LKEY;

use crate::context::ContextCore;
use crate::cq::{Completion, Cq, Share};
use crate::error::{Failure, PostError, Refused, VerbsError};
use crate::mr::{Buf, Buffers, Reach};
use crate::pd::{Pd, PdCore};
use crate::qp::pair;
use crate::wr::{RecvInfo, Returned, Wc, WcOpcode};

/// log2 of the bytes of a unit of the ring.
const LOG_UNIT_BYTES: u32 = 4;

/// How large a shared receive queue is. The sizes are what it takes at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqConfig {
    /// Receives in flight: 1 to [`DeviceAttr::max_srq_wr`](crate::DeviceAttr::max_srq_wr).
    pub max_wr: u32,
    /// Scatter entries of a receive: 1 to
    /// [`DeviceAttr::max_recv_sge`](crate::DeviceAttr::max_recv_sge) less 1.
    pub max_sge: u32,
}

impl Default for SrqConfig {
    fn default() -> Self {
        Self { max_wr: 128, max_sge: 1 }
    }
}

/// The part of a shared receive queue that queue pairs hold: it outlives them.
#[derive(Debug)]
pub(crate) struct SrqCore {
    handle: Handle,
    pd: Arc<PdCore>,
    /// Receives that may be in flight.
    max_wr: u32,
    /// Room in the completion queues of its queue pairs, one share for each.
    shares: Mutex<Vec<Share>>,
    /// Receives that were posted when the owner let go of it, and their number.
    left: Mutex<Option<(Box<dyn Any + Send>, u32)>>,
}

impl SrqCore {
    pub(crate) fn number(&self) -> u32 {
        self.handle.number()
    }

    /// Makes sure of room in a completion queue: the shared receives, however many queue pairs
    /// complete them there.
    pub(crate) fn reserve(&self, core: &Arc<ContextCore>, cq: &Cq) -> Result<(), VerbsError> {
        if !Arc::ptr_eq(core, &self.pd.core) {
            return Err(VerbsError::OtherDevice { what: "the shared receive queue" });
        }
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if shares.iter().all(|share| share.cq.number() != cq.number()) {
            shares.push(cq.reserve(core, self.max_wr)?);
        }
        Ok(())
    }
}

impl Drop for SrqCore {
    fn drop(&mut self) {
        let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // Completions that nobody has taken may still stand in the queues.
        let posted = left.as_ref().map_or(0, |(_, posted)| *posted);
        let shares = self.shares.get_mut().unwrap_or_else(PoisonError::into_inner);
        shares.iter_mut().for_each(|share| share.keep(posted));
        if let Err(error) = self.handle.destroy() {
            let rmpn = self.number();
            tracing::error!(rmpn, %error, "shared queue not destroyed, its buffers leaked");
            std::mem::forget(left);
        }
    }
}

/// A receive in flight.
#[derive(Debug)]
struct Slot<B> {
    wr_id: u64,
    held: Option<B>,
    /// The entry behind it in the list.
    next: u16,
}

/// A shared receive queue. Belongs to one core at a time, with all its queue pairs.
#[derive(Debug)]
pub struct Srq<B: Buffers = Buf> {
    /// The ring in 16-byte units; each entry takes `1 << log_units`, the first of them its link.
    units: Ring<16>,
    log_units: u8,
    record: DmaWord,
    /// First free entry, and the last, which is kept: the device follows its link.
    head: u16,
    tail: u16,
    /// Receives posted since it was made, modulo 2^16.
    posted: u16,
    outstanding: u32,
    slots: Box<[Slot<B>]>,
    reach: Reach,
    inner: Arc<SrqCore>,
}

impl Pd {
    /// Makes a shared receive queue.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`], or what the device refused.
    pub fn create_srq<B: Buffers>(&self, config: &SrqConfig) -> Result<Srq<B>, VerbsError> {
        Srq::new(self, config)
    }
}

impl<B: Buffers> Srq<B> {
    fn new(pd: &Pd, config: &SrqConfig) -> Result<Self, VerbsError> {
        let pd = Arc::clone(&pd.inner);
        let (core, attr) = (&pd.core, &pd.core.attr);
        VerbsError::range("max_wr", config.max_wr.into(), 1, attr.max_srq_wr.into())?;
        let most = attr.max_recv_sge.saturating_sub(1);
        VerbsError::range("max_sge", config.max_sge.into(), 1, most.into())?;
        // One entry is never posted: it is the link to what comes.
        let log_entries = (config.max_wr + 1).next_power_of_two().ilog2();
        let log_units = (config.max_sge + 1).next_power_of_two().ilog2();
        let device = core.device();
        let len_bytes = 1usize << (log_entries + log_units + LOG_UNIT_BYTES);
        let ring = Arc::new(device.alloc_dma(len_bytes, 4096)?);
        let record = Arc::new(device.alloc_dma(8, 64)?);
        let wq = Wq::zeroed()
            .with_pd(pd.number())
            .with_dbr_addr(record.iova())
            .with_log_wq_stride(log_units + LOG_UNIT_BYTES)
            .with_log_wq_sz(log_entries);
        let input = CreateRmp::input().with_ctx(Rmpc::zeroed().with_state(state::RDY).with_wq(wq));
        let units = Ring::new(Arc::clone(&ring), 0, (log_entries + log_units) as u8)?;
        let number = device.execute::<CreateRmp>(&input, &page_list(&ring), &mut [])?.rmpn();
        let handle = Handle::new(device, Kind::Rmp, number, vec![ring, Arc::clone(&record)]);
        let entries = 1 << log_entries;
        let mask = entries - 1;
        let slot = |at: u32| Slot { wr_id: 0, held: None, next: ((at + 1) & mask) as u16 };
        let (shares, max_wr) = (Mutex::new(Vec::new()), config.max_wr);
        let srq = Self {
            units,
            log_units: log_units as u8,
            record: DmaWord::new(record, 0)?,
            head: 0,
            tail: mask as u16,
            posted: 0,
            outstanding: 0,
            slots: (0..entries).map(slot).collect(),
            reach: Reach::new(core, pd.id()),
            inner: Arc::new(SrqCore { handle, pd, max_wr, shares, left: Mutex::new(None) }),
        };
        (0..entries).for_each(|at| srq.link(at as u16, ((at + 1) & mask) as u16));
        Ok(srq)
    }

    pub(crate) fn core(&self) -> &Arc<SrqCore> {
        &self.inner
    }

    /// Its number, as its limit event names it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.number()
    }

    /// Receives that may be in flight: [`SrqConfig::max_wr`].
    #[must_use]
    pub fn max_wr(&self) -> u32 {
        self.inner.max_wr
    }

    /// Receives that have not ended.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Writes the link of an entry. Source: reference 6.5, "next segment".
    #[inline(always)]
    fn link(&self, at: u16, next: u16) {
        let unit = self.units.at(u32::from(at) << self.log_units);
        unit.store_raw64::<0>(pair(u32::from(next).to_be(), 0));
        unit.store_raw64::<8>(0);
    }

    /// Posts a receive for whichever queue pair needs one next. Datagrams put 40 bytes of IP
    /// header in front of the message.
    ///
    /// Allocates nothing, takes no lock, makes no system call.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the buffers. Nothing was posted then.
    #[inline]
    pub fn post_recv(&mut self, wr_id: u64, buffers: B) -> Result<(), Refused<B>> {
        // The entry that is kept as the link to what comes stays free.
        if self.outstanding == self.inner.max_wr {
            return Err(Refused { held: buffers, cause: PostError::Full });
        }
        if !buffers.is_exclusive() {
            return Err(Refused { held: buffers, cause: PostError::NotExclusive });
        }
        let max = (1 << self.log_units) - 1;
        let first = (u32::from(self.head) << self.log_units) + 1;
        let (mut count, mut refused) = (0, None);
        for sge in buffers.sinks() {
            if sge.len == 0 {
                continue;
            }
            let entry = self.reach.entry(sge);
            let Some(sge) = entry.filter(|_| count < max) else {
                refused = Some(PostError::of_sge(entry.is_some()));
                break;
            };
            let unit = self.units.at(first + count);
            unit.store_raw64::<0>(pair(sge.len.to_be(), sge.lkey_be));
            unit.store_be64::<8>(sge.addr);
            count += 1;
        }
        if let Some(cause) = refused {
            return Err(Refused { held: buffers, cause });
        }
        if count < max {
            // Ends the list. Source: reference 6.5.
            let unit = self.units.at(first + count);
            unit.store_raw64::<0>(pair(0, INVALID_LKEY.to_be()));
            unit.store_raw64::<8>(0);
        }
        let mask = self.slots.len() - 1;
        let slot = &mut self.slots[usize::from(self.head) & mask];
        (slot.wr_id, slot.held, self.head) = (wr_id, Some(buffers), slot.next);
        self.outstanding += 1;
        self.posted = self.posted.wrapping_add(1);
        self.record.store_release_be32(self.posted.into());
        Ok(())
    }

    /// Takes a receive completion of one of its queue pairs: gives the receive that ended, or
    /// `None` if the completion cannot be right; then nothing has ended.
    ///
    /// For queue pairs that are gone. While one lives, give its completions to
    /// [`Qp::complete_shared`](crate::Qp::complete_shared), which also notes its failures.
    #[inline]
    pub fn complete(&mut self, completion: &Completion) -> Option<Wc<B>> {
        let failure = match completion.head.opcode() {
            CqeOpcode::RESPONDER_SEND
            | CqeOpcode::RESPONDER_SEND_IMM
            | CqeOpcode::RESPONDER_SEND_INVAL
            | CqeOpcode::RESPONDER_WRITE_IMM => None,
            CqeOpcode::RESPONDER_ERROR => Some(completion.head.failure()),
            _ => return None,
        };
        self.end(completion, failure)
    }

    #[inline(always)]
    fn end(&mut self, completion: &Completion, failure: Option<Failure>) -> Option<Wc<B>> {
        let at = completion.head.wqe_counter();
        let is_write = completion.head.opcode() == CqeOpcode::RESPONDER_WRITE_IMM;
        let byte_len = if failure.is_none() { completion.byte_cnt() } else { 0 };
        let slot = self.slots.get_mut(usize::from(at))?;
        let can_be = |held: &mut B| is_write || held.received(byte_len);
        let held = slot.held.take_if(can_be)?;
        let wr_id = slot.wr_id;
        // The entry goes to the end of the list.
        self.link(self.tail, at);
        let mask = self.slots.len() - 1;
        self.slots[usize::from(self.tail) & mask].next = at;
        self.tail = at;
        self.outstanding -= 1;
        Some(Wc {
            wr_id,
            opcode: if is_write { WcOpcode::RecvWriteImm } else { WcOpcode::Recv },
            result: failure.map_or(Ok(()), Err),
            is_signaled: true,
            byte_len,
            recv: if failure.is_none() { completion.recv_info() } else { RecvInfo::default() },
            returned: Returned::Buffers(held),
        })
    }

    /// Asks for one event when fewer than `limit` receives are left. 0 asks for none.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] above [`Srq::max_wr`], or what the device refused.
    pub fn arm_limit(&mut self, limit: u32) -> Result<(), VerbsError> {
        VerbsError::range("limit", limit.into(), 0, self.max_wr().into())?;
        let wq = Wq::zeroed().with_lwm(limit);
        let input = ModifyRmp::input()
            .with_rmp_state(state::RDY)
            .with_rmpn(self.number())
            .with_bitmask(MODIFY_RMP_LWM)
            .with_ctx(Rmpc::zeroed().with_state(state::RDY).with_wq(wq));
        self.inner.pd.core.device().execute::<ModifyRmp>(&input, &[], &mut [])?;
        Ok(())
    }
}

impl<B: Buffers> Drop for Srq<B> {
    fn drop(&mut self) {
        // Queue pairs may still fill what is posted: it stays until the last of them is gone.
        let slots = std::mem::take(&mut self.slots);
        let mut left = self.inner.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = Some((Box::new((slots, self.reach.clone())), self.outstanding));
    }
}
