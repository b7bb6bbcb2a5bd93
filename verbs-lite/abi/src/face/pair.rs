//! [`Pair`]: a queue pair of verbs-lite behind a lock, and its completions in the program's form.
//!
//! Locks are taken in this order: completion queue, table of queue pairs, queue pair, shared
//! receive queue.

use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex};

use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_verbs_lite::mr::{Buffers, Sge};
use ferrocx_verbs_lite::{
    Completion, CqEntry, Failure, Gid, Qp, Received, RecvInfo, SendFlags, Sent, Spread, Srq, Wc,
    WcOpcode, WrongCompletion,
};

use super::lock::Lock;
use super::rules::Rules;
use crate::abi::{ibv_qp_attr, ibv_sge, ibv_wc, send, wc};
use crate::node::{Membership, lock};

/// A scatter or gather list of the program's, as a request takes it along.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    first: *const ibv_sge,
    count: usize,
    /// Whose keys it is to be looked up among: the queue's own domain. The device refuses others.
    domain: u32,
}

// SAFETY: it is read while a request is posted, in the thread that posts; what a queue holds of it
// until the request ends is never read.
unsafe impl Send for List {}

impl List {
    /// # Safety
    /// Until the value is posted or dropped, `first` leads to `count` entries.
    pub(super) unsafe fn new(first: *const ibv_sge, count: usize, domain: u32) -> Self {
        Self { first, count, domain }
    }

    fn entry(&self, at: usize) -> Sge {
        // SAFETY: of `new`; `at` is below the count.
        let ibv_sge { addr, length, lkey } = unsafe { self.first.add(at).read() };
        Sge { addr, address: 0, len: length, lkey_be: lkey.to_be(), domain: self.domain }
    }
}

// SAFETY: address and key are the program's. The device looks the key up, and refuses what is not
// registered in the domain of the queue pair; that the memory behind a key stays is the promise of
// whoever registered it. Nobody in this process borrows it as a slice but the program, which knows
// what it posts.
unsafe impl Buffers for List {
    #[inline(always)]
    fn sges(&self) -> impl Iterator<Item = Sge> {
        (0..self.count).map(|at| self.entry(at))
    }

    #[inline(always)]
    fn only_sge(&self) -> Option<Sge> {
        (self.count == 1).then(|| self.entry(0))
    }

    #[inline(always)]
    fn only_recv_sge(&self) -> Option<Sge> {
        self.only_sge()
    }

    fn copy_head(&self, mut out: &mut [u8]) -> bool {
        // Headers of a frame, where the device wants them in the request, and the place of a tag in
        // one that is longer than others.
        for Sge { addr, len, .. } in self.sges() {
            let (here, rest) = out.split_at_mut(out.len().min(len as usize));
            if !here.is_empty() && !copy_from(addr, here) {
                return false;
            }
            out = rest;
        }
        out.is_empty()
    }
}

/// Copies bytes of the program's, if they are there: a request may say anything. A system call; a
/// system that forbids it, as some containers' do, has the bytes read as libmlx5 reads them.
#[cold]
fn copy_from(addr: u64, out: &mut [u8]) -> bool {
    let from = std::ptr::with_exposed_provenance_mut::<u8>(addr as usize);
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: from.cast(), iov_len: out.len() };
    // SAFETY: `local` is `out`; the system looks whether `remote` can be read.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if usize::try_from(copied) == Ok(out.len()) {
        return true;
    }
    let error = std::io::Error::last_os_error().raw_os_error();
    if copied >= 0 || !matches!(error, Some(libc::EPERM | libc::ENOSYS)) {
        return false;
    }
    promised!(out.copy_from_slice(std::slice::from_raw_parts(from, out.len())));
    true
}

/// A queue pair that posts and completes.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) qp: Qp<List>,
    pub(super) srq: Option<Arc<Mutex<Srq<List>>>>,
    pub(super) signals_all: bool,
    /// The domain that its lists name.
    pub(super) domain: u32,
    /// What the program has set, for those who ask.
    pub(super) attr: ibv_qp_attr,
    /// Which frames are led to it.
    pub(super) rules: Rules,
    /// The groups that it is attached to, whose packets come from other machines, too.
    pub(super) memberships: Vec<(Gid, Membership)>,
    /// Of a queue pair over a table of work queues: where its rules lead.
    pub(super) spread: Option<Spread>,
}

/// A queue pair in the table of its device.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) pair: Lock<Pair>,
    /// The number that its completions carry; a target of XRC has none.
    pub(super) index: Option<u32>,
}

impl Pair {
    /// Gives out what an entry of a completion queue ends; of sends without a flag only those that
    /// failed.
    #[inline(always)]
    pub(super) fn end(&mut self, entry: CqEntry<'_>, out: &mut impl Out) {
        let (ticks, number) = (out.ticks(&entry), self.qp.qpn().0);
        match self.qp.complete_one(entry) {
            Ok(sent) => out.put(report_sent(&sent, number), ticks),
            Err(entry) => match self.end_message(entry) {
                Ok(wc) => out.put(wc, ticks),
                Err(entry) => self.end_any(entry, out),
            },
        }
    }

    /// Ends the one request of an entry, if it went well: a send that asked for its completion, or
    /// a receive of the queue pair's own. Writes of a send into `place` what a send has, as libmlx5
    /// does. Gives anything else back, for [`Pair::end_any`].
    #[inline(always)]
    pub(super) fn end_one<'a>(
        &mut self,
        entry: CqEntry<'a>,
        place: &mut MaybeUninit<ibv_wc>,
    ) -> Result<(), CqEntry<'a>> {
        match self.qp.complete_one(entry) {
            Ok(sent) => {
                let number = self.qp.qpn().0;
                promised!(write_sent(place.as_mut_ptr(), &sent, number));
            }
            Err(entry) => {
                place.write(self.end_message(entry)?);
            }
        }
        Ok(())
    }

    /// Ends one receive of its own that a message filled; gives anything else back.
    #[inline(always)]
    fn end_message<'a>(&mut self, entry: CqEntry<'a>) -> Result<ibv_wc, CqEntry<'a>> {
        let received = self.qp.complete_received(entry)?;
        Ok(report_received(&received, self.qp.qpn().0))
    }

    /// Does what [`Pair::end`] does with anything but one request that went well.
    #[cold]
    #[inline(never)]
    pub(super) fn end_any(&mut self, entry: CqEntry<'_>, out: &mut impl Out) {
        let (ticks, number) = (out.ticks(&entry), self.qp.qpn().0);
        let rest = self.qp.complete_sent(entry, |sent| {
            out.put(report_sent(&sent, number), ticks);
        });
        if let Some(completion) = rest {
            self.end_rest(completion, |wc| out.put(wc, ticks));
        }
    }

    /// Does what [`Pair::end`] does with anything but sends that went well.
    pub(super) fn end_rest(&mut self, completion: Completion, mut out: impl FnMut(ibv_wc)) {
        let number = self.qp.qpn().0;
        let each = |ended: Wc<List>| out(report(&ended, number));
        told(match &self.srq {
            Some(srq) => self.qp.complete_signaled_shared(completion, &mut lock(srq), each),
            None => self.qp.complete_signaled(completion, each),
        });
    }
}

/// Where completions go in the program's form.
pub(super) trait Out {
    /// When the completion was made, in ticks of the device; 0 where nobody asks.
    fn ticks(&self, entry: &CqEntry<'_>) -> u64;

    /// Takes one.
    fn put(&mut self, wc: ibv_wc, ticks: u64);

    /// Whether it wants no more.
    fn is_enough(&self) -> bool;
}

/// A completion that was not right is dropped.
fn told(ended: Result<(), WrongCompletion>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a completion of an earlier life");
    }
}

/// The operation of a request, and whether it is a receive.
#[inline(always)]
fn operation(opcode: WcOpcode) -> (i32, bool) {
    match opcode {
        WcOpcode::Send => (wc::SEND, false),
        WcOpcode::Write => (wc::RDMA_WRITE, false),
        WcOpcode::Read => (wc::RDMA_READ, false),
        WcOpcode::CompareSwap => (wc::COMP_SWAP, false),
        WcOpcode::FetchAdd => (wc::FETCH_ADD, false),
        WcOpcode::BindMw | WcOpcode::FastRegMr => (wc::BIND_MW, false),
        WcOpcode::LocalInv | WcOpcode::ReadWithInv => (wc::LOCAL_INV, false),
        WcOpcode::Recv => (wc::RECV, true),
        WcOpcode::RecvWriteImm => (wc::RECV_RDMA_WITH_IMM, true),
    }
}

/// Writes what a send has that went well.
///
/// # Safety
/// There is a completion at `out`, of whatever content.
#[inline(always)]
unsafe fn write_sent(out: *mut ibv_wc, sent: &Sent, qp_num: u32) {
    let (opcode, _) = operation(sent.opcode);
    promised!({
        (*out).wr_id = sent.wr_id;
        (*out).status = 0;
        (*out).opcode = opcode;
        (*out).vendor_err = 0;
        (*out).byte_len = sent.byte_len;
        (*out).qp_num = qp_num;
        (*out).wc_flags = 0;
    });
}

/// A send that went well, as programs read it.
fn report_sent(sent: &Sent, qp_num: u32) -> ibv_wc {
    let mut out = ibv_wc::default();
    promised!(write_sent(&raw mut out, sent, qp_num));
    out
}

/// A completion as programs read it.
#[inline(always)]
pub(super) fn report<B>(ended: &Wc<B>, qp_num: u32) -> ibv_wc {
    let (opcode, is_receive) = operation(ended.opcode);
    let mut out = ibv_wc { wr_id: ended.wr_id, opcode, qp_num, ..ibv_wc::default() };
    match &ended.result {
        Ok(()) => out.byte_len = ended.byte_len,
        Err(failure) => {
            (out.status, out.vendor_err) = (status_of(failure), failure.vendor.into());
            return out;
        }
    }
    if is_receive {
        report_info(&mut out, &ended.recv);
    }
    out
}

/// A receive that a message filled, as programs read it.
#[inline(always)]
fn report_received(received: &Received, qp_num: u32) -> ibv_wc {
    let (opcode, _) = operation(received.opcode);
    let Received { wr_id, byte_len, .. } = *received;
    let mut out = ibv_wc { wr_id, opcode, byte_len, qp_num, ..ibv_wc::default() };
    report_info(&mut out, &received.info);
    out
}

/// What came beside a message.
#[inline(always)]
fn report_info(out: &mut ibv_wc, info: &RecvInfo) {
    (out.src_qp, out.sl) = (info.source_qpn, info.network_hdr_type);
    out.wc_flags |= if info.has_grh { wc::GRH } else { 0 };
    out.wc_flags |= if info.ip_csum_ok { wc::IP_CSUM_OK } else { 0 };
    if let Some(imm) = info.imm {
        out.imm_data = imm.to_be();
        out.wc_flags |= wc::WITH_IMM;
    }
    if let Some(invalidated) = &info.invalidated {
        out.imm_data = invalidated.rkey().0;
        out.wc_flags |= wc::WITH_INV;
    }
}

/// `enum ibv_wc_status` of a failure.
#[cold]
fn status_of(failure: &Failure) -> i32 {
    match failure.syndrome {
        CqeSyndrome::LOCAL_LENGTH_ERR => 1,
        CqeSyndrome::LOCAL_QP_OP_ERR => 2,
        CqeSyndrome::LOCAL_PROT_ERR => 4,
        CqeSyndrome::WR_FLUSH_ERR => 5,
        CqeSyndrome::MW_BIND_ERR => 6,
        CqeSyndrome::BAD_RESP_ERR => 7,
        CqeSyndrome::LOCAL_ACCESS_ERR => 8,
        CqeSyndrome::REMOTE_INVAL_REQ_ERR => 9,
        CqeSyndrome::REMOTE_ACCESS_ERR => 10,
        CqeSyndrome::REMOTE_OP_ERR => 11,
        CqeSyndrome::TRANSPORT_RETRY_EXC_ERR => 12,
        CqeSyndrome::RNR_RETRY_EXC_ERR => 13,
        CqeSyndrome::REMOTE_ABORTED_ERR => 16,
        _ => 21,
    }
}

/// Gather entries of a request that programs may use.
pub(super) const MAX_SGE: u32 = 16;

/// Flags in verbs-lite's words: two of them stand side by side there, too.
#[inline(always)]
pub(super) fn flags_of(flags: u32, signals_all: bool) -> SendFlags {
    const BOTH: SendFlags = SendFlags::SIGNALED.union(SendFlags::SOLICITED);
    const _: () = assert!(send::SIGNALED >> 1 == SendFlags::SIGNALED.bits() as u32);
    const _: () = assert!(send::SOLICITED >> 1 == SendFlags::SOLICITED.bits() as u32);
    let asked = if signals_all { SendFlags::SIGNALED } else { SendFlags::empty() };
    let both = SendFlags::from_bits_truncate((flags >> 1) as u8) & BOTH;
    let fence = if flags & send::FENCE != 0 { SendFlags::FENCE } else { SendFlags::empty() };
    asked | both | fence
}
