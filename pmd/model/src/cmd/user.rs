//! User contexts (DevX): what belongs to whom, and what goes when one goes.
//!
//! A command names the context that it is carried out for in its `uid`; 0 is the driver. A context
//! changes, queries and removes only its own objects, and names no others but those that the driver
//! made for all: event queues, XRC domains and their receive queues, Q counters.
//!
//! Source: reference 2.2 (`uid`), 4.11.

use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::user::{CreateUctx, CreateUctxOut, DestroyUctx, DestroyUctxOut};

use super::handler::{Exec, Handler, add, is_enough, plain};
use super::{flow, umem};
use crate::device::caps::UCTX_CAP;
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::{Objects, SHARED_UID, UserContext};

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::CREATE_UCTX => create,
        Opcode::DESTROY_UCTX => destroy,
        Opcode::CREATE_UMEM => umem::create,
        Opcode::DESTROY_UMEM => umem::destroy,
        _ => return None,
    })
}

/// Places of a table that are searched in the time of an access to memory.
const PLACES_PER_STEP: u64 = 4;

fn create(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<CreateUctx>(exec, input, |exec, input| {
        let cap = input.uctx().cap();
        ensure(cap & !UCTX_CAP == 0, || Refused::param("cap", cap, "not in uctx_cap"))?;
        let contexts = &mut exec.ctx.state.objects.user_contexts;
        let uid = add(contexts, "uid", UserContext { cap })?;
        Ok(CreateUctxOut::zeroed().with_uid(uid))
    })
}

fn destroy(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroyUctx>(exec, input, |exec, input| {
        let uid = input.uid();
        let contexts = &exec.ctx.state.objects.user_contexts;
        ensure(contexts.contains(uid), || Refused::resource("uid", uid))?;
        let all = wipe(exec, uid);
        // The driver or another context still names what is left, or it was too much for one step:
        // later it may try again.
        ensure(all, || Refused::busy("uid", uid))?;
        exec.ctx.state.objects.user_contexts.remove(uid);
        Ok(DestroyUctxOut::zeroed())
    })
}

/// Removes the objects of a user context, those that name others first, until this step has done
/// enough; whether all of them went.
///
/// At least one goes, if one can: the search alone may be enough for a step, and begins anew when
/// the driver tries again.
fn wipe(exec: &mut Exec<'_, '_>, uid: u32) -> bool {
    let uid = u16::try_from(uid).unwrap_or(SHARED_UID);
    let objects = &exec.ctx.state.objects;
    objects.mkeys.work(objects.flow_tables.numbers() as u64 / PLACES_PER_STEP);
    if !flow::wipe(exec.ctx, uid) {
        return false;
    }
    let mut left = !exec.ctx.state.objects.flow_tables.of_user(uid).is_empty();
    let mut has_ended_one = false;
    macro_rules! remove {
        ($($table:ident $opcode:ident)*) => { $(
            let objects = &exec.ctx.state.objects;
            objects.mkeys.work(objects.$table.numbers() as u64 / PLACES_PER_STEP);
            for number in objects.$table.of_user(uid) {
                if exec.ctx.state.objects.$table.holders(number) != 0 {
                    continue;
                }
                let mut input = [0; 16];
                input[..2].copy_from_slice(&Opcode::$opcode.0.to_be_bytes());
                input[8..12].copy_from_slice(&number.to_be_bytes());
                has_ended_one |= (exec.run)(exec, Opcode::$opcode, &input).is_ok();
                if is_enough(exec.ctx) && has_ended_one {
                    return false;
                }
            }
            left |= !exec.ctx.state.objects.$table.of_user(uid).is_empty();
        )* };
    }
    remove! {
        tirs DESTROY_TIR rqts DESTROY_RQT qps DESTROY_QP sqs DESTROY_SQ rqs DESTROY_RQ
        tiss DESTROY_TIS rmps DESTROY_RMP xrc_srqs DESTROY_XRC_SRQ mkeys DESTROY_MKEY
        cqs DESTROY_CQ flow_counters DEALLOC_FLOW_COUNTER q_counters DEALLOC_Q_COUNTER
        umems DESTROY_UMEM tds DEALLOC_TRANSPORT_DOMAIN pds DEALLOC_PD xrcds DEALLOC_XRCD
        uars DEALLOC_UAR
    }
    !left
}

/// Checks that there is such a user context, and that the command's object is its own.
pub(super) fn check(objects: &Objects, opcode: Opcode, uid: u32, input: &[u8]) -> Answer<()> {
    if uid == u32::from(SHARED_UID) {
        return Ok(());
    }
    ensure(objects.user_contexts.contains(uid), || {
        Refused::param("uid", uid, "no such user context")
    })?;
    let number = |at: usize| {
        let word =
            input.get(at..at + 4).map_or([0; 4], |word| [word[0], word[1], word[2], word[3]]);
        u32::from_be_bytes(word)
    };
    let is_own = is_own(objects, opcode, number(8) & 0xff_ffff, number);
    let is_own = is_own.ok_or_else(|| {
        Refused::param("uid", uid, "a command of the driver, not of user contexts")
    })?;
    ensure(is_own, || {
        let why = "the object belongs to the driver or to another user context";
        Refused { why, ..Refused::resource("uid", uid) }
    })
}

/// Whether the object that a command changes, queries or removes is the caller's own; `None` for
/// commands that are not for user contexts. What else a command names, its handler checks.
fn is_own(
    objects: &Objects,
    opcode: Opcode,
    first: u32,
    number: impl Fn(usize) -> u32,
) -> Option<bool> {
    Some(match opcode {
        Opcode::NOP
        | Opcode::QUERY_HCA_CAP
        | Opcode::QUERY_ADAPTER
        | Opcode::QUERY_ISSI
        | Opcode::QUERY_SPECIAL_CONTEXTS
        | Opcode::QUERY_VPORT_STATE
        | Opcode::QUERY_VPORT_COUNTER
        | Opcode::QUERY_LAG
        | Opcode::QUERY_NIC_VPORT_CONTEXT
        | Opcode::QUERY_ROCE_ADDRESS
        | Opcode::QUERY_HCA_VPORT_PKEY
        | Opcode::QUERY_CONG_STATUS
        | Opcode::QUERY_CONG_PARAMS
        | Opcode::QUERY_CONG_STATISTICS
        | Opcode::ALLOC_UAR
        | Opcode::ALLOC_PD
        | Opcode::ALLOC_TRANSPORT_DOMAIN
        | Opcode::ALLOC_XRCD
        | Opcode::ALLOC_FLOW_COUNTER
        | Opcode::ALLOC_Q_COUNTER
        | Opcode::CREATE_MKEY
        | Opcode::CREATE_CQ
        | Opcode::CREATE_QP
        | Opcode::CREATE_SQ
        | Opcode::CREATE_RQ
        | Opcode::CREATE_RMP
        | Opcode::CREATE_XRC_SRQ
        | Opcode::CREATE_RQT
        | Opcode::CREATE_TIR
        | Opcode::CREATE_TIS
        | Opcode::CREATE_UMEM
        // These name a table, which their handlers look for among the caller's own.
        | Opcode::CREATE_FLOW_TABLE
        | Opcode::MODIFY_FLOW_TABLE
        | Opcode::DESTROY_FLOW_TABLE
        | Opcode::QUERY_FLOW_TABLE
        | Opcode::CREATE_FLOW_GROUP
        | Opcode::DESTROY_FLOW_GROUP
        | Opcode::SET_FTE
        | Opcode::DELETE_FTE
        | Opcode::QUERY_FTE => true,
        Opcode::DEALLOC_UAR => objects.uars.is_own(first),
        Opcode::DEALLOC_PD => objects.pds.is_own(first),
        Opcode::DEALLOC_TRANSPORT_DOMAIN => objects.tds.is_own(first),
        Opcode::DEALLOC_XRCD => objects.xrcds.is_own(first),
        Opcode::QUERY_MKEY | Opcode::DESTROY_MKEY => objects.mkeys.is_own(first),
        Opcode::MODIFY_CQ | Opcode::QUERY_CQ | Opcode::DESTROY_CQ => objects.cqs.is_own(first),
        Opcode::RST2INIT_QP
        | Opcode::INIT2INIT_QP
        | Opcode::INIT2RTR_QP
        | Opcode::RTR2RTS_QP
        | Opcode::RTS2RTS_QP
        | Opcode::SQERR2RTS_QP
        | Opcode::MODIFY_QP_2ERR
        | Opcode::MODIFY_QP_2RST
        | Opcode::QUERY_QP
        | Opcode::DESTROY_QP
        | Opcode::ATTACH_TO_MCG
        | Opcode::DETACH_FROM_MCG => objects.qps.is_own(first),
        Opcode::MODIFY_SQ | Opcode::QUERY_SQ | Opcode::DESTROY_SQ => objects.sqs.is_own(first),
        Opcode::MODIFY_RQ | Opcode::QUERY_RQ | Opcode::DESTROY_RQ => objects.rqs.is_own(first),
        Opcode::MODIFY_RMP | Opcode::QUERY_RMP | Opcode::DESTROY_RMP | Opcode::ARM_RQ => {
            objects.rmps.is_own(first)
        }
        Opcode::ARM_XRC_SRQ | Opcode::QUERY_XRC_SRQ | Opcode::DESTROY_XRC_SRQ => {
            objects.xrc_srqs.is_own(first)
        }
        Opcode::MODIFY_RQT | Opcode::QUERY_RQT | Opcode::DESTROY_RQT => objects.rqts.is_own(first),
        Opcode::MODIFY_TIR | Opcode::QUERY_TIR | Opcode::DESTROY_TIR => objects.tirs.is_own(first),
        Opcode::MODIFY_TIS | Opcode::QUERY_TIS | Opcode::DESTROY_TIS => objects.tiss.is_own(first),
        Opcode::DESTROY_UMEM => objects.umems.is_own(first),
        Opcode::DEALLOC_FLOW_COUNTER => objects.flow_counters.is_own(number(8)),
        Opcode::QUERY_FLOW_COUNTER => objects.flow_counters.is_own(number(0x1c)),
        Opcode::DEALLOC_Q_COUNTER => objects.q_counters.is_own(first & 0xff),
        Opcode::QUERY_Q_COUNTER => objects.q_counters.is_own(number(0x1c) & 0xff),
        _ => return None,
    })
}
