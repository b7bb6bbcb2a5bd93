//! Commands about queue pairs: creation, transitions, queries.
//!
//! Source: reference 4.2 "Queue pairs", 4.3, 4.4, 5.2, 5.3.

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::qp::{
    CreateQp, CreateQpIn, CreateQpOut, DestroyQp, DestroyQpOut, Init2initQp, Init2rtrQp,
    ModifyQpToErr, ModifyQpToErrOut, ModifyQpToRst, ModifyQpToRstOut, QueryQp, QueryQpOut,
    Rst2initQp, Rst2initQpIn, Rst2initQpOut, Rtr2rtsQp, Rts2rtsQp, Sqerr2rtsQp,
};
use ferrocx_prm::cmd::{Command, Opcode};
use ferrocx_prm::qpc::Qpc;
use ferrocx_prm::syndrome::CommandStatus;
use ferrocx_prm::wqc::Wq;

use super::checks::{check_scatter, check_service};
use crate::cmd::handler::{Exec, Handler, add, drivers_only, no_tail, parse, plain, remove};
use crate::cmd::queues::check_uar;
use crate::cmd::ring::{RingPlace, RingSource};
use crate::device::caps::log_max;
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::{
    Line, Objects, Qp, QpReceive, QpState, QpType, QueueMemory, QueueStats, ReceiveRing,
    ScatterList, WorkQueue, WqType,
};
use crate::roce::transport::psn::Psn;
use crate::roce::transport::requester::{Limits, Requester};
use crate::roce::transport::responder::Responder;
use crate::roce::transport::timer::ack_timeout_ns;

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::CREATE_QP => create_qp,
        Opcode::DESTROY_QP => destroy_qp,
        Opcode::QUERY_QP => query_qp,
        Opcode::RST2INIT_QP => rst2init,
        Opcode::INIT2INIT_QP => init2init,
        Opcode::INIT2RTR_QP => init2rtr,
        Opcode::RTR2RTS_QP => rtr2rts,
        Opcode::RTS2RTS_QP => rts2rts,
        Opcode::SQERR2RTS_QP => sqerr2rts,
        Opcode::MODIFY_QP_2ERR => to_error,
        Opcode::MODIFY_QP_2RST => to_reset,
        _ => return None,
    })
}

/// `rq_type`. Source: reference 5.2.
mod rq_type {
    pub(super) const OWN: u32 = 0;
    pub(super) const SHARED: u32 = 1;
    pub(super) const EMPTY: u32 = 3;
}

/// Memberships in groups that are compared in the time of an access to memory.
const MEMBERS_PER_STEP: u64 = 64;
/// Path migration state "migrated": the only one without APM. Source: reference 5.2, `pm_state`.
const PM_MIGRATED: u32 = 3;
/// Path migration state of who says nothing about it. Source: rdma-core's `mlx5_base.py`.
const PM_LEFT_OUT: u32 = 0;
/// The domain that is left out.
const NO_PD: u32 = 0;
/// Log2 of the READs and atomics in flight, either way: `log_max_ra_req_qp` and `_res_qp`.
const LOG_MAX_READS: u32 = 4;
/// Log2 of the longest message. Source: reference 5.10, `log_max_msg`.
const LOG_MAX_MSG: u32 = 0x1e;

fn refuse_set(field: &'static str, value: u32, why: &'static str) -> Answer<()> {
    ensure(value == 0, || Refused::param(field, value, why))
}

/// Refuses what no capability advertises.
fn check_qpc(context: &Qpc) -> Answer<QpType> {
    let raw = context.st();
    let qp_type = QpType::from_raw(raw);
    let qp_type = qp_type.ok_or_else(|| Refused::param("st", raw, "no such service here"))?;
    refuse_set("state", context.state(), "a queue pair is created in reset")?;
    refuse_set("wq_signature", context.wq_signature().into(), "not advertised")?;
    refuse_set("offload_type", context.offload_type(), "not advertised")?;
    refuse_set("cd_master", context.cd_master().into(), "cd is not advertised")?;
    refuse_set("cd_slave_send", context.cd_slave_send().into(), "cd is not advertised")?;
    refuse_set("cd_slave_receive", context.cd_slave_receive().into(), "cd is not advertised")?;
    let padding = context.end_padding_mode();
    ensure(padding <= 1, || Refused::param("end_padding_mode", padding, "no such mode"))?;
    let format = context.ts_format();
    ensure(format <= 1, || Refused::param("ts_format", format, "no real-time clock"))?;
    let size = context.log_sq_size();
    ensure(size <= log_max::WQ_SIZE, || {
        Refused::param("log_sq_size", size, "above log_max_qp_sz")
    })?;
    let size = context.log_rq_size();
    ensure(size <= log_max::WQ_SIZE, || {
        Refused::param("log_rq_size", size, "above log_max_qp_sz")
    })?;
    let stride = context.log_rq_stride() + 4;
    ensure(stride <= log_max::RQ_STRIDE, || {
        Refused::param("log_rq_stride", stride, "above max_wqe_sz_rq")
    })?;
    Ok(qp_type)
}

/// The shared receive queue that a context names.
fn shared(objects: &Objects, number: u32) -> Answer<QpReceive> {
    if objects.rmps.contains(number) {
        return Ok(QpReceive::Rmp(number));
    }
    // A user context names the driver's XRC queues in its own ones only: whose receives they are.
    let may_take = objects.xrc_srqs.contains(number) && objects.xrc_srqs.is_own(number);
    ensure(may_take, || Refused::resource("srqn_rmpn_xrqn", number))?;
    Ok(QpReceive::Srq(number))
}

fn own_ring(context: &Qpc, memory: &QueueMemory, dbr_addr: u64) -> WorkQueue {
    WorkQueue {
        wq_type: WqType::Cyclic,
        memory: memory.clone(),
        log_size: context.log_rq_size(),
        log_stride: context.log_rq_stride() + 4,
        pd: context.pd(),
        dbr_addr,
        next_segment: false,
        signature: false,
        two_byte_shift: false,
        end_padding: context.end_padding_mode() == 1,
        log_strides_per_wqe: 0,
        log_stride_bytes: 0,
        context: Wq::zeroed(),
    }
}

/// Where the rings and the doorbell record of a queue pair lie.
fn source(input: &CreateQpIn, place: RingPlace) -> RingSource {
    let context = input.qpc();
    RingSource {
        place,
        record: context.dbr_addr(),
        ring_umem: input.wq_umem_valid().then(|| (input.wq_umem_id(), input.wq_umem_offset())),
        record_umem: context.dbr_umem_valid().then(|| context.dbr_umem_id()),
        is_written: false,
    }
}

fn create_qp(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<CreateQp>(bytes, |op_mod| op_mod == 0)?;
    refuse_set("input_qpn", input.fixed.input_qpn(), "the device chooses the number")?;
    refuse_set("ece", input.fixed.ece(), "not advertised")?;
    let context = input.fixed.qpc();
    let qp_type = check_qpc(&context)?;
    let objects = &mut exec.ctx.state.objects;
    // What never sends rings no bell: Linux gives the target of XRC no UAR.
    if !context.no_sq() || context.uar_page() != 0 {
        check_uar(objects, context.uar_page())?;
    }
    drivers_only(objects, "rlky", context.rlky())?;
    drivers_only(objects, "fre", context.fre())?;
    check_service(objects, &context, qp_type)?;
    let pd = context.pd();
    // The UMR queue pair of a driver belongs to no domain: Linux leaves the field out.
    let has_no_pd = qp_type == QpType::RegUmr && pd == NO_PD;
    ensure(has_no_pd || objects.pds.contains(pd), || Refused::resource("pd", pd))?;
    let kind = context.rq_type();
    let (rq_bytes, shared_rq) = match kind {
        rq_type::OWN => (1_u64 << (context.log_rq_size() + context.log_rq_stride() + 4), None),
        // Every packet to an XRC queue pair names its own; what stands here is not looked at.
        rq_type::SHARED if qp_type == QpType::Xrc => (0, Some(QpReceive::None)),
        rq_type::SHARED => (0, Some(shared(objects, context.srqn_rmpn_xrqn())?)),
        rq_type::EMPTY => (0, Some(QpReceive::None)),
        _ => return Err(Refused::param("rq_type", kind, "no such type here")),
    };
    let log_sq_size = (!context.no_sq()).then(|| context.log_sq_size());
    let sq_bytes = log_sq_size.map_or(0, |log| 64_u64 << log);
    let place = RingPlace {
        log_page_size: context.log_page_size(),
        page_offset: context.page_offset(),
        len_bytes: rq_bytes + sq_bytes,
        log_entry: if rq_bytes == 0 { 0 } else { context.log_rq_stride() + 4 },
    };
    let (memory, dbr_addr) = match place.len_bytes {
        0 => (QueueMemory::default(), 0),
        _ => source(&input.fixed, place).take(objects, input.tail)?,
    };
    check_cqs(objects, &context, log_sq_size.is_some(), kind, qp_type)?;
    check_scatter(objects, &context, qp_type)?;
    let receive =
        shared_rq.unwrap_or_else(|| QpReceive::Own(own_ring(&context, &memory, dbr_addr)));
    let qp = Qp {
        qp_type,
        state: QpState::Reset,
        memory,
        dbr_addr,
        sq_at: rq_bytes,
        log_sq_size,
        receive,
        ring: ReceiveRing::default(),
        taken: None,
        buffers: ScatterList::new(),
        sq_posted: 0,
        sq_fetched: 0,
        listed_at: 0,
        line: Line::new(&objects.budget).map_err(|full| Refused::full("qpn", full))?,
        requester: Requester::default(),
        responder: Responder::default(),
        established: false,
        cnp_due: false,
        cnp_after_ns: 0,
        stats: QueueStats::default(),
        context,
    };
    let qpn = add(&mut objects.qps, "qpn", qp)?;
    hold(objects, qpn);
    if qp_type == QpType::Gsi {
        objects.gsi.push(qpn);
    }
    objects.list_qp(qpn);
    Ok(CreateQpOut::zeroed().with_qpn(qpn).0.to_vec())
}

fn check_cqs(
    objects: &Objects,
    context: &Qpc,
    sends: bool,
    rq_kind: u32,
    qp_type: QpType,
) -> Answer<()> {
    let (send, receive) = (context.cqn_snd(), context.cqn_rcv());
    let receives = rq_kind != rq_type::EMPTY && qp_type != QpType::Xrc;
    // A side that does not exist may name no queue.
    let is_good = |cqn: u32, is_needed: bool| (cqn == 0 && !is_needed) || objects.cqs.contains(cqn);
    ensure(is_good(send, sends), || Refused::resource("cqn_snd", send))?;
    ensure(is_good(receive, receives), || Refused::resource("cqn_rcv", receive))
}

/// The objects that a queue pair names are held while it exists.
fn hold(objects: &mut Objects, qpn: u32) {
    let Some(qp) = objects.qps.get(qpn) else { return };
    objects.pds.hold(qp.context.pd());
    objects.uars.hold(qp.context.uar_page());
    objects.cqs.hold(qp.context.cqn_snd());
    objects.cqs.hold(qp.context.cqn_rcv());
    if qp.qp_type == QpType::Xrc {
        objects.xrcds.hold(qp.context.xrcd());
    }
    match qp.receive {
        QpReceive::Rmp(rmpn) => objects.rmps.hold(rmpn),
        QpReceive::Srq(srqn) => objects.xrc_srqs.hold(srqn),
        QpReceive::Own(_) | QpReceive::None => {}
    }
}

fn destroy_qp(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroyQp>(exec, input, |exec, input| {
        let qpn = input.qpn();
        let objects = &mut exec.ctx.state.objects;
        let qp = remove(&mut objects.qps, "qpn", qpn)?;
        objects.pds.release(qp.context.pd());
        objects.uars.release(qp.context.uar_page());
        objects.cqs.release(qp.context.cqn_snd());
        objects.cqs.release(qp.context.cqn_rcv());
        if qp.qp_type == QpType::Xrc {
            objects.xrcds.release(qp.context.xrcd());
        }
        match qp.receive {
            QpReceive::Rmp(rmpn) => objects.rmps.release(rmpn),
            QpReceive::Srq(srqn) => objects.xrc_srqs.release(srqn),
            QpReceive::Own(_) | QpReceive::None => {}
        }
        objects.unlist_qp(&qp);
        match qp.qp_type {
            QpType::Gsi => objects.gsi.retain(|gsi| *gsi != qpn),
            QpType::Ud => {
                objects.mkeys.work(objects.multicast.len() as u64 / MEMBERS_PER_STEP);
                objects.multicast.retain(|(_, member)| *member != qpn);
            }
            _ => {}
        }
        Ok(DestroyQpOut::zeroed())
    })
}

fn query_qp(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<QueryQp>(bytes, |op_mod| op_mod == 0)?;
    no_tail(input.tail)?;
    let qpn = input.fixed.qpn();
    let qp = exec.ctx.state.objects.qps.get(qpn);
    let qp = qp.ok_or_else(|| Refused::resource("qpn", qpn))?;
    let context = qp
        .context
        .with_state(qp.state.raw())
        .with_next_send_psn(qp.requester.next_psn().raw())
        .with_last_acked_psn(qp.requester.last_acked().raw())
        .with_next_rcv_psn(qp.responder.expected().raw())
        .with_rmsn(qp.responder.msn())
        .with_hw_sq_wqebb_counter(qp.sq_fetched.into())
        .with_sw_sq_wqebb_counter(qp.sq_posted.into())
        .with_hw_rq_counter(qp.ring.consumed.into())
        .with_sw_rq_counter(qp.ring.posted.into());
    let mut output = QueryQpOut::zeroed().with_qpc(context).0.to_vec();
    output.extend(qp.memory.pages().iter().flat_map(|page| page.to_be_bytes()));
    Ok(output)
}

/// Bits of `opt_param_mask`. Source: reference 4.4.
mod opt {
    pub(super) const RRE: u32 = 1 << 1;
    pub(super) const RAE: u32 = 1 << 2;
    pub(super) const RWE: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const Q_KEY: u32 = 1 << 5;
    pub(super) const MIN_RNR: u32 = 1 << 6;
    pub(super) const PM_STATE: u32 = 1 << 10;
    pub(super) const LAG: u32 = 1 << 15;
    pub(super) const PORT: u32 = 1 << 16;
    pub(super) const COUNTER_SET: u32 = 1 << 25;
    const RIGHTS: u32 = RRE | RAE | RWE | LAG | COUNTER_SET;
    pub(super) const INIT2INIT: u32 = RIGHTS | PKEY_INDEX | PORT | Q_KEY;
    pub(super) const INIT2RTR: u32 = RIGHTS | PKEY_INDEX | Q_KEY;
    pub(super) const TO_RTS: u32 = RIGHTS | PM_STATE | MIN_RNR | Q_KEY;
}

/// A transition as it was asked for.
struct Wish {
    qpn: u32,
    optional: u32,
    new: Qpc,
}

/// Checks what all transitions share: the number, the state, the optional fields.
fn wish<C: Command>(
    exec: &Exec<'_, '_>,
    bytes: &[u8],
    from: QpState,
    allowed: u32,
) -> Answer<Wish> {
    let input = parse::<C>(bytes, |op_mod| op_mod == 0)?;
    no_tail(input.tail)?;
    // The inputs of all transitions have the same layout. Source: reference 4.2.
    let fields = Rst2initQpIn::read_from(input.fixed.as_bytes()).unwrap_or_default();
    refuse_set("ece", fields.ece(), "not advertised")?;
    let (qpn, optional) = (fields.qpn(), fields.opt_param_mask());
    let qp = exec.ctx.state.objects.qps.get(qpn);
    let qp = qp.ok_or_else(|| Refused::resource("qpn", qpn))?;
    ensure(qp.state == from, || {
        let status = CommandStatus::BAD_QP_STATE;
        Refused::new(status, "current state", qp.state.raw(), "no such transition from this state")
    })?;
    ensure(optional & !allowed == 0, || {
        let why = "a field that this transition does not take";
        Refused::param("opt_param_mask", optional, why)
    })?;
    Ok(Wish { qpn, optional, new: fields.qpc() })
}

impl Wish {
    /// Takes the optional fields that were selected.
    fn take_optional(&self, exec: &Exec<'_, '_>, mut context: Qpc) -> Answer<Qpc> {
        let (optional, new) = (self.optional, &self.new);
        let selected = |bit| optional & bit != 0;
        if selected(opt::RRE) {
            context = context.with_rre(new.rre());
        }
        if selected(opt::RAE) {
            context = context.with_rae(new.rae()).with_atomic_mode(new.atomic_mode());
        }
        if selected(opt::RWE) {
            context = context.with_rwe(new.rwe());
        }
        if selected(opt::Q_KEY) {
            context = context.with_q_key(new.q_key());
        }
        if selected(opt::MIN_RNR) {
            context = context.with_min_rnr_nak(new.min_rnr_nak());
        }
        if selected(opt::PKEY_INDEX) {
            check_pkey_index(new)?;
        }
        if selected(opt::PORT) {
            check_port(new)?;
        }
        if selected(opt::PM_STATE) {
            check_pm_state(new)?;
        }
        if selected(opt::COUNTER_SET) {
            check_counter(exec, new)?;
            context = context.with_counter_set_id(new.counter_set_id());
        }
        Ok(context)
    }

    fn current(&self, exec: &Exec<'_, '_>) -> Answer<(QpType, Qpc)> {
        let qp = exec.ctx.state.objects.qps.get(self.qpn);
        qp.map(|qp| (qp.qp_type, qp.context)).ok_or_else(|| Refused::resource("qpn", self.qpn))
    }

    /// Stores the new context and state; `set_up` starts what the state needs.
    fn finish(
        self,
        exec: &mut Exec<'_, '_>,
        state: QpState,
        context: Qpc,
        set_up: impl FnOnce(&mut Qp),
    ) -> Vec<u8> {
        if let Some(qp) = exec.ctx.state.objects.qps.get_mut(self.qpn) {
            qp.context = context;
            qp.state = state;
            set_up(qp);
        }
        exec.datapath.qp_changed(self.qpn);
        Rst2initQpOut::zeroed().0.to_vec()
    }
}

fn check_pkey_index(new: &Qpc) -> Answer<()> {
    let index = new.primary_address_path().pkey_index();
    ensure(index == 0, || Refused::param("pkey_index", index, "the table has one entry"))
}

fn check_port(new: &Qpc) -> Answer<()> {
    let port = new.primary_address_path().vhca_port_num();
    ensure(port <= 1, || Refused::param("vhca_port_num", port, "the device has one port"))
}

fn check_pm_state(new: &Qpc) -> Answer<()> {
    let pm_state = new.pm_state();
    ensure(pm_state == PM_MIGRATED, || {
        Refused::param("pm_state", pm_state, "apm is not advertised")
    })
}

fn check_counter(exec: &Exec<'_, '_>, new: &Qpc) -> Answer<()> {
    let id = new.counter_set_id();
    // Set 0 stands for "none" as well; drivers name it without having allocated it.
    let is_known = id == 0 || exec.ctx.state.objects.q_counters.contains(id);
    ensure(is_known, || Refused::resource("counter_set_id", id))
}

fn rst2init(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let wish = wish::<Rst2initQp>(exec, bytes, QpState::Reset, opt::COUNTER_SET)?;
    let (qp_type, old) = wish.current(exec)?;
    let new = wish.new;
    ensure(new.st() == old.st(), || Refused::param("st", new.st(), "not as created"))?;
    // Linux creates its UMR queue pair without a domain, and names one here; who drives a queue
    // pair through DevX need not repeat what it was created with.
    ensure(qp_type == QpType::RegUmr || new.pd() == NO_PD || new.pd() == old.pd(), || {
        Refused::param("pd", new.pd(), "not as created")
    })?;
    if new.pm_state() != PM_LEFT_OUT {
        check_pm_state(&new)?;
    }
    check_pkey_index(&new)?;
    check_port(&new)?;
    check_counter(exec, &new)?;
    let path =
        old.primary_address_path().with_vhca_port_num(new.primary_address_path().vhca_port_num());
    let context = old
        .with_pm_state(PM_MIGRATED)
        .with_q_key(new.q_key())
        .with_rre(new.rre())
        .with_rwe(new.rwe())
        .with_rae(new.rae())
        .with_atomic_mode(new.atomic_mode())
        .with_counter_set_id(new.counter_set_id())
        .with_deth_sqpn(new.deth_sqpn())
        .with_primary_address_path(path);
    Ok(wish.finish(exec, QpState::Init, context, |_| {}))
}

fn init2init(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let wish = wish::<Init2initQp>(exec, bytes, QpState::Init, opt::INIT2INIT)?;
    let (_, old) = wish.current(exec)?;
    let context = wish.take_optional(exec, old)?;
    Ok(wish.finish(exec, QpState::Init, context, |_| {}))
}

/// The fields that a connection needs to receive. Source: reference 4.4, "INIT2RTR".
fn check_connection(exec: &Exec<'_, '_>, new: &Qpc) -> Answer<()> {
    let path = new.primary_address_path();
    let remote = new.remote_qpn();
    ensure(remote != 0, || Refused::param("remote_qpn", remote, "0 is no queue pair of RoCE"))?;
    let index = path.src_addr_index();
    ensure(exec.ctx.state.objects.roce_gid(index).is_some(), || {
        Refused::param("src_addr_index", index, "the RoCE address table has no such entry")
    })?;
    let rmac = u64::from(path.rmac_47_32()) << 32 | u64::from(path.rmac_31_0());
    ensure(rmac != 0, || Refused::param("rmac", rmac, "no next hop"))?;
    let reads = new.log_rra_max();
    ensure(reads <= LOG_MAX_READS, || {
        Refused::param("log_rra_max", reads, "above log_max_ra_res_qp")
    })
}

fn init2rtr(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let wish = wish::<Init2rtrQp>(exec, bytes, QpState::Init, opt::INIT2RTR)?;
    let (qp_type, old) = wish.current(exec)?;
    let new = wish.new;
    let mtu = new.mtu();
    ensure((1..=5).contains(&mtu) || qp_type == QpType::RegUmr, || {
        Refused::param("mtu", mtu, "not from 1 (256 bytes) to 5 (4096 bytes)")
    })?;
    let msg = new.log_msg_max();
    ensure(msg <= LOG_MAX_MSG, || Refused::param("log_msg_max", msg, "above log_max_msg"))?;
    if qp_type.is_connected() {
        check_connection(exec, &new)?;
    }
    let port = old.primary_address_path().vhca_port_num();
    let path = new.primary_address_path().with_vhca_port_num(port);
    let context = wish
        .take_optional(exec, old)?
        .with_mtu(mtu)
        .with_log_msg_max(msg)
        .with_remote_qpn(new.remote_qpn())
        .with_primary_address_path(path)
        .with_next_rcv_psn(new.next_rcv_psn())
        .with_log_rra_max(new.log_rra_max())
        .with_min_rnr_nak(new.min_rnr_nak());
    Ok(wish.finish(exec, QpState::Rtr, context, |qp| {
        let depth = 1 << qp.context.log_rra_max();
        let first = Psn::new(qp.context.next_rcv_psn());
        qp.responder = Responder::new(first, depth, qp.mtu_bytes());
    }))
}

fn rtr2rts(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let wish = wish::<Rtr2rtsQp>(exec, bytes, QpState::Rtr, opt::TO_RTS)?;
    let (qp_type, old) = wish.current(exec)?;
    let new = wish.new;
    let reads = new.log_sra_max();
    ensure(reads <= LOG_MAX_READS, || {
        Refused::param("log_sra_max", reads, "above log_max_ra_req_qp")
    })?;
    let timeout = new.primary_address_path().ack_timeout();
    let path = old.primary_address_path().with_ack_timeout(timeout);
    let context = wish
        .take_optional(exec, old)?
        .with_next_send_psn(new.next_send_psn())
        .with_log_sra_max(reads)
        .with_retry_count(new.retry_count())
        .with_rnr_retry(new.rnr_retry())
        .with_log_ack_req_freq(new.log_ack_req_freq())
        .with_primary_address_path(path);
    let least = exec.ctx.state.config.min_ack_timeout_ns;
    let limits = Limits {
        is_reliable: qp_type.is_reliable(),
        max_reads: 1 << reads,
        retry_count: u8::try_from(new.retry_count()).unwrap_or(0),
        rnr_retry: u8::try_from(new.rnr_retry()).unwrap_or(0),
        timeout_ns: ack_timeout_ns(timeout).map(|asked| asked.max(least)),
    };
    Ok(wish.finish(exec, QpState::Rts, context, |qp| {
        qp.requester = Requester::new(Psn::new(qp.context.next_send_psn()), limits);
        qp.line.empty();
    }))
}

fn rts2rts(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let wish = wish::<Rts2rtsQp>(exec, bytes, QpState::Rts, opt::TO_RTS)?;
    let (_, old) = wish.current(exec)?;
    let context = wish.take_optional(exec, old)?;
    Ok(wish.finish(exec, QpState::Rts, context, |_| {}))
}

fn sqerr2rts(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let wish = wish::<Sqerr2rtsQp>(exec, bytes, QpState::Sqer, opt::TO_RTS)?;
    let (_, old) = wish.current(exec)?;
    let context = wish.take_optional(exec, old)?;
    Ok(wish.finish(exec, QpState::Rts, context, |_| {}))
}

fn to_error(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<ModifyQpToErr>(exec, input, |exec, input| {
        let qpn = input.qpn();
        ensure(exec.ctx.state.objects.qps.contains(qpn), || Refused::resource("qpn", qpn))?;
        exec.datapath.qp_to_error(exec.ctx, qpn);
        Ok(ModifyQpToErrOut::zeroed())
    })
}

fn to_reset(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<ModifyQpToRst>(exec, input, |exec, input| {
        let qpn = input.qpn();
        let qp = exec.ctx.state.objects.qps.get_mut(qpn);
        let qp = qp.ok_or_else(|| Refused::resource("qpn", qpn))?;
        qp.state = QpState::Reset;
        qp.ring = ReceiveRing::default();
        qp.taken = None;
        (qp.sq_posted, qp.sq_fetched) = (0, 0);
        qp.requester = Requester::default();
        qp.line.empty();
        qp.responder = Responder::default();
        qp.established = false;
        qp.cnp_due = false;
        Ok(ModifyQpToRstOut::zeroed())
    })
}
