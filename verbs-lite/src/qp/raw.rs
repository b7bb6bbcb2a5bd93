//! Raw packet queue pairs: whole Ethernet frames, sent from buffers and received into them. Their
//! states are in the table of [`super`].
//!
//! On the device there is no such queue pair: it is a send queue with a TIS, a receive queue with a
//! TIR, and flow rules that lead there. Source: reference 5.6 to 5.9, 6.3.

use std::sync::Arc;

use ferrocx_core::wq::{Control, EthHeader, RecvRing, RqAttr, SendRing, SqAttr, Wqe, blocks_of};
use ferrocx_core::{
    FlowAction, FlowCounts, FlowMatch, FlowRule, FlowRuleHandle, Handle, QueueState, RxQueueRef,
};
use ferrocx_prm::wqe::{DS_BYTES, ETH_INLINE_BYTES, Eth, Opcode};

use super::attr::Sizes;
use super::post::FastRegSetup;
use super::rq::Rq;
use super::sq::{Entry, Frames, Other, Parts, Sq};
use super::{Qp, QpConfig, QpQueues, QpState, QpType};
use crate::error::{PostError, Refused, VerbsError};
use crate::mr::{Buffers, Reach};
use crate::pd::Pd;
use crate::wr::{SendFlags, SendWr, WcOpcode};

/// Bytes of an Ethernet header.
const HEADER_BYTES: u64 = 14;
/// Bytes of a VLAN tag, and where its type stands. Source: IEEE 802.1Q.
const TAG_BYTES: u64 = 4;
const TAG_AT: usize = 12;
const TAG_TYPES: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
/// Most bytes of headers that a device wants inline; more than any of
/// [`Limits::min_inline_bytes`](ferrocx_core::Limits::min_inline_bytes).
const MAX_HEADERS: usize = 128;
/// Units of 16 bytes of control and Ethernet segment.
const CTRL_AND_ETH_DS: u32 = 2;
/// Both checksums, in their word of the Ethernet segment.
const CHECKSUMS: u32 = Eth::L4_CSUM.mask() | Eth::L3_CSUM.mask();

/// A rule of a raw packet queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowId(u64);

/// What the device knows of a queue pair, of any service.
#[derive(Debug)]
pub(super) enum Objects {
    Qp(Handle),
    Raw(Box<RawObjects>),
}

impl Objects {
    /// Whether a failed receive that names queue `number` is of these.
    pub(super) fn receives_as(&self, number: u32) -> bool {
        matches!(self, Self::Raw(raw) if raw.rq.number() == number)
    }

    /// Destroys them; on an error the device may still own what is posted.
    pub(super) fn destroy(&mut self) -> Result<(), VerbsError> {
        match self {
            Self::Qp(handle) => Ok(handle.destroy()?),
            Self::Raw(raw) => raw.destroy(),
        }
    }
}

/// The device's objects of a raw packet queue pair.
#[derive(Debug)]
pub(super) struct RawObjects {
    // Dropped in this order.
    flows: Vec<(FlowId, FlowRuleHandle)>,
    rq: Arc<Handle>,
    sq: Handle,
    next_flow: u64,
}

impl RawObjects {
    /// Reset to INIT.
    pub(super) fn init(&self) -> Result<(), VerbsError> {
        Ok(self.rq.move_queue(QueueState::RST, QueueState::RDY)?)
    }

    /// RTR to RTS.
    fn start_sending(&self) -> Result<(), VerbsError> {
        Ok(self.sq.move_queue(QueueState::RST, QueueState::RDY)?)
    }

    /// Has everything posted flushed. A queue in reset has nothing posted.
    pub(super) fn fail(&self) -> Result<(), VerbsError> {
        for queue in [&self.sq, &self.rq] {
            if queue.queue_state()? == QueueState::RDY {
                queue.move_queue(QueueState::RDY, QueueState::ERR)?;
            }
        }
        Ok(())
    }

    /// Both queues to reset, without rules.
    pub(super) fn reset(&mut self) -> Result<(), VerbsError> {
        self.flows.clear();
        self.rq.stop_queue()?;
        Ok(self.sq.stop_queue()?)
    }

    /// What the device says of the state; of INIT and RTR it knows no difference.
    pub(super) fn state(&self, known: QpState) -> Result<QpState, VerbsError> {
        Ok(match (self.rq.queue_state()?, self.sq.queue_state()?) {
            (QueueState::RST, QueueState::RST) => QpState::Reset,
            (QueueState::RDY, QueueState::RST) if known == QpState::Rtr => QpState::Rtr,
            (QueueState::RDY, QueueState::RST) => QpState::Init,
            (QueueState::RDY, QueueState::RDY) => QpState::Rts,
            (QueueState::RDY, QueueState::ERR) => QpState::SqError,
            _ => QpState::Error,
        })
    }

    fn destroy(&mut self) -> Result<(), VerbsError> {
        self.reset()?;
        // Its rules are gone, so nobody else holds it.
        if let Some(rq) = Arc::get_mut(&mut self.rq) {
            rq.destroy()?;
        }
        Ok(self.sq.destroy()?)
    }
}

impl<B: Buffers> Qp<B> {
    /// Makes a raw packet queue pair in reset.
    pub(super) fn new_raw(
        pd: &Pd,
        &QpQueues { send_cq, recv_cq, srq }: &QpQueues<'_, B>,
        config: &QpConfig,
    ) -> Result<Self, VerbsError> {
        if srq.is_some() {
            let what = "shared receives for raw packets";
            return Err(VerbsError::Unsupported {
                what,
                way_out: "post receives to the queue pair",
            });
        }
        let pd = Arc::clone(&pd.inner);
        let core = &pd.core;
        let port = core.device();
        let limits = port.limits();
        let inline = usize::from(limits.min_inline_bytes).min(MAX_HEADERS);
        let header_ds =
            CTRL_AND_ETH_DS + inline.saturating_sub(ETH_INLINE_BYTES).div_ceil(DS_BYTES) as u32;
        let sizes = Sizes::of(config, &core.attr, header_ds)?;
        let send_share = send_cq.reserve(core, config.max_send_wr)?;
        let recv_share = Some(recv_cq.reserve(core, config.max_recv_wr)?);
        let cqns = [send_cq.number(), recv_cq.number()];
        let uar = core.uar()?;
        let (sq_attr, rq_attr) = (
            SqAttr {
                uar: &uar,
                pd: pd.number(),
                rlky: core.lkey.is_some(),
                cqn: cqns[0],
                user_index: config.user_index,
                log_blocks: sizes.log_sq_blocks,
            },
            // Frames arrive whole: VLAN tags stay.
            RqAttr {
                pd: pd.number(),
                rlky: core.lkey.is_some(),
                keeps_vlan: true,
                cqn: cqns[1],
                user_index: config.user_index,
                log_entries: sizes.log_rq_entries,
                log_segments: sizes.log_rq_units,
            },
        );
        let (send_ring, sq_handle) = SendRing::create(port, &sq_attr)?;
        let (recv_ring, rq_handle) = RecvRing::create(port, &rq_attr)?;
        let sqn = send_ring.number();
        let reach = Reach::new(core, pd.id());
        let rq = Rq::new(recv_ring, reach.clone(), config.max_recv_wr);
        let sq = Sq::new(Parts {
            ring: send_ring,
            reach,
            max_wr: config.max_send_wr,
            max_sge: config.max_send_sge,
            max_inline: config.max_inline_bytes,
            frames: Frames { max_bytes: 0, inline, checksums: limits.checksum_offload },
        });
        let objects =
            RawObjects { flows: Vec::new(), rq: Arc::new(rq_handle), sq: sq_handle, next_flow: 0 };
        Ok(Self {
            sq,
            rq: Some(rq),
            state: QpState::Reset,
            qp_type: QpType::Raw,
            st: QpType::Raw as u32,
            qpn: sqn,
            qpn_be: sqn.to_be(),
            user_index: config.user_index,
            fast_reg: FastRegSetup::of(core, QpType::Raw, false),
            objects: Objects::Raw(Box::new(objects)),
            _uar: uar,
            send_share,
            recv_share,
            srq: None,
            cqns,
            groups: Vec::new(),
            pd,
        })
    }

    /// RTR to RTS of a raw packet queue pair.
    pub(super) fn start_raw(&mut self) -> Result<(), VerbsError> {
        let Objects::Raw(raw) = &self.objects else { return Err(only_raw("frames")) };
        raw.start_sending()?;
        self.sq.frames.max_bytes = u64::from(self.pd.core.device().mtu()) + HEADER_BYTES;
        Ok(())
    }

    /// SQ error to RTS of a raw packet queue pair.
    pub(super) fn resume_raw(&mut self) -> Result<(), VerbsError> {
        let Objects::Raw(raw) = &self.objects else { return Err(only_raw("frames")) };
        raw.sq.stop_queue()?;
        // The device counts from 0 again.
        self.sq.reset();
        self.start_raw()
    }

    /// Leads frames that arrive and match to this raw packet queue pair, until
    /// [`Qp::destroy_flow`] or [`Qp::reset`], or until the queue pair is dropped.
    ///
    /// [`FlowMatch::default`] takes every frame that the port lets in: its own address, broadcast,
    /// groups after [`Device::join_multicast`](ferrocx_core::Device::join_multicast), and all after
    /// [`Device::set_promiscuous`](ferrocx_core::Device::set_promiscuous). RoCE for the port's own
    /// addresses stays with its queue pairs. A frame goes to one receiver: among rules that match,
    /// of all queues of the port, the one decides whose combination of fields was used first.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Unsupported`] for another service, [`VerbsError::WrongState`] before RTR and
    /// in error, [`VerbsError::Device`] for fields that contradict each other and for a full table,
    /// or what the device refused.
    #[doc(alias = "ibv_create_flow")]
    pub fn create_flow(&mut self, matches: &FlowMatch) -> Result<FlowId, VerbsError> {
        let Objects::Raw(raw) = &mut self.objects else { return Err(only_raw("flows")) };
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::SqError) {
            return Err(VerbsError::WrongState { is: self.state, needs: QpState::Rtr });
        }
        let port = self.pd.core.device();
        let handle = port.add_flow_rule(&FlowRule {
            matches: *matches,
            action: FlowAction::Queue(RxQueueRef::new(&raw.rq)),
            // So that completions of receives name the queue.
            mark: Some(self.qpn),
            count: port.limits().flow_counters,
        })?;
        let id = FlowId(raw.next_flow);
        raw.next_flow += 1;
        raw.flows.push((id, handle));
        Ok(id)
    }

    /// Ends [`Qp::create_flow`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoSuchFlow`], or what the device refused.
    pub fn destroy_flow(&mut self, id: FlowId) -> Result<(), VerbsError> {
        let at = self.flow_at(id)?;
        let Objects::Raw(raw) = &mut self.objects else { return Err(only_raw("flows")) };
        Ok(raw.flows.remove(at).1.destroy()?)
    }

    /// Frames and bytes that matched a rule, received or dropped for want of a receive.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoSuchFlow`], [`VerbsError::Device`] for a device that does not count, or what
    /// it refused.
    pub fn flow_counts(&self, id: FlowId) -> Result<FlowCounts, VerbsError> {
        let at = self.flow_at(id)?;
        let Objects::Raw(raw) = &self.objects else { return Err(only_raw("flows")) };
        Ok(raw.flows[at].1.counts()?)
    }

    fn flow_at(&self, id: FlowId) -> Result<usize, VerbsError> {
        let Objects::Raw(raw) = &self.objects else { return Err(only_raw("flows")) };
        raw.flows.iter().position(|(known, _)| *known == id).ok_or(VerbsError::NoSuchFlow)
    }
}

/// Of what only raw packet queue pairs have.
fn only_raw(what: &'static str) -> VerbsError {
    VerbsError::Unsupported { what, way_out: "use a raw packet queue pair" }
}

impl<B: Buffers> Sq<B> {
    /// Writes a frame that lies in buffers.
    #[inline(never)]
    pub(super) fn push_frame(
        &mut self,
        wr: &SendWr<'_>,
        held: Option<B>,
    ) -> Result<(), Refused<Option<B>>> {
        let written = match &held {
            Some(buffers) => self.write_frame(wr.flags, buffers),
            None => Err(PostError::FrameLength),
        };
        match written {
            Ok(ds) => {
                self.close_frame(wr, ds, held);
                Ok(())
            }
            Err(cause) => Err(Refused { held, cause }),
        }
    }

    /// Writes a frame that is copied into the request.
    #[inline(never)]
    pub(super) fn push_frame_inline(
        &mut self,
        wr: &SendWr<'_>,
        frame: &[u8],
    ) -> Result<(), PostError> {
        if frame.len() > self.max_inline as usize {
            return Err(PostError::InlineTooLong);
        }
        let is_tagged = || frame.get(TAG_AT..TAG_AT + 2).is_some_and(is_tag);
        let mut wqe = self.begin_frame(wr.flags, frame.len() as u64, is_tagged)?;
        let (headers, data) = frame.split_at(frame.len().min(self.frames.inline));
        wqe.eth(checksums(wr.flags), EthHeader::Inline(headers));
        if !data.is_empty() {
            wqe.inline(data.len(), [data]);
        }
        let ds = wqe.ds();
        self.close_frame(wr, ds, None);
        Ok(())
    }

    /// Checks what does not depend on where the bytes lie.
    fn begin_frame(
        &self,
        flags: SendFlags,
        len: u64,
        is_tagged: impl FnOnce() -> bool,
    ) -> Result<Wqe<'_>, PostError> {
        let max = self.frames.max_bytes;
        let fits = (HEADER_BYTES..=max).contains(&len)
            || (max..=max + TAG_BYTES).contains(&len) && is_tagged();
        if !fits {
            return Err(PostError::FrameLength);
        }
        if flags.contains(SendFlags::IP_CSUM) && !self.frames.checksums {
            return Err(PostError::Operation);
        }
        Ok(self.ring.begin())
    }

    /// Writes the segments of a frame; gives its length in units.
    fn write_frame(&self, flags: SendFlags, buffers: &B) -> Result<u32, PostError> {
        let len = buffers.sges().map(|sge| u64::from(sge.len)).sum();
        let is_tagged = || {
            let mut head = [0; TAG_AT + 2];
            buffers.copy_head(&mut head) && is_tag(&head[TAG_AT..])
        };
        let mut wqe = self.begin_frame(flags, len, is_tagged)?;
        let mut headers = [0; MAX_HEADERS];
        let headers = &mut headers[..self.frames.inline.min(len as usize)];
        if !buffers.copy_head(headers) {
            return Err(PostError::Headers);
        }
        wqe.eth(checksums(flags), EthHeader::Inline(headers));
        let (mut skip, mut count) = (headers.len() as u32, 0);
        for sge in buffers.sges() {
            let inline = skip.min(sge.len);
            skip -= inline;
            // A data segment without bytes would mean 2 GiB. Source: reference 6.3.
            if inline == sge.len {
                continue;
            }
            if count == self.max_sge {
                return Err(PostError::TooManySges);
            }
            count += 1;
            let Some(sge) = self.reach.entry(sge) else { return Err(PostError::Pd) };
            wqe.data(sge.len - inline, sge.lkey_be, sge.addr + u64::from(inline));
        }
        Ok(wqe.ds())
    }

    fn close_frame(&mut self, wr: &SendWr<'_>, ds: u32, held: Option<B>) {
        let entry = Entry { wr_id: wr.wr_id, opcode: WcOpcode::Send, flags: wr.flags };
        let control = Control::new(Opcode::SEND);
        self.close(control, ds, blocks_of(ds), entry, held, Other::Nothing);
    }
}

/// Whether these bytes of a frame are the type of a VLAN tag.
fn is_tag(bytes: &[u8]) -> bool {
    TAG_TYPES.iter().any(|tag| bytes == tag)
}

/// What the Ethernet segment asks for.
fn checksums(flags: SendFlags) -> u32 {
    if flags.contains(SendFlags::IP_CSUM) { CHECKSUMS } else { 0 }
}
