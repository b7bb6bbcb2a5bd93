//! [`MrChanger`]: a queue pair of the driver's own, whose requests give regions other rights under
//! the keys that they have. Source: reference 5.2, 6.4; Linux 6.12 `umr.c`.

use std::sync::Arc;
use std::time::Duration;

use ferrocx_prm::cqe::CqeOpcode;
use ferrocx_prm::mkey::Mkc;
use ferrocx_prm::qpc::service;
use ferrocx_prm::wqe::{UmrCtrl, mkey_mask};

use super::sq::{Entry, Other};
use super::{InitAttr, Qp, QpConfig, QpQueues, QpType, RtsAttr};
use crate::context::{DeviceCaps, RdmaContext};
use crate::cq::{Completion, Cq};
use crate::error::VerbsError;
use crate::mr::Mr;
use crate::pd::Pd;
use crate::types::{Access, Psn};
use crate::wr::{SendFlags, WcOpcode};

/// Requests of its queue: one is posted at a time, and one more marks the end of a failed one.
const MAX_WR: u32 = 4;
/// Completions that its queue has room for.
const MAX_COMPLETIONS: u32 = 2 * MAX_WR;
/// How long a change may take.
const LIMIT: Duration = Duration::from_secs(1);
/// Rights that a request changes; the one to atomics where the device can.
const RIGHTS: u64 = mkey_mask::LR | mkey_mask::LW | mkey_mask::RR | mkey_mask::RW;

/// Gives regions other rights, and moves them to other domains, under the keys that they have.
///
/// Has a queue pair of the device, so one is enough for a program. Its calls wait for the device:
/// not for the data path.
#[derive(Debug)]
pub struct MrChanger {
    qp: Qp,
    cq: Cq,
}

impl RdmaContext {
    /// Makes what changes regions.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Unsupported`] without [`DeviceCaps::MEM_MGT_EXTENSIONS`], or what the device
    /// refused.
    pub fn mr_changer(&self) -> Result<MrChanger, VerbsError> {
        if !self.attr().caps.contains(DeviceCaps::MEM_MGT_EXTENSIONS) {
            return Err(refused("changes of keys"));
        }
        let (pd, cq) = (self.alloc_pd()?, self.create_cq(MAX_COMPLETIONS)?);
        let config = QpConfig {
            // Without a connection. The device is told another service.
            qp_type: QpType::Ud,
            max_send_wr: MAX_WR,
            max_recv_wr: 1,
            fast_reg: true,
            ..QpConfig::default()
        };
        let qp = Qp::with_service(&pd, service::REG_UMR, &QpQueues::from(&cq), &config)?;
        let mut changer = MrChanger { qp, cq };
        changer.start()?;
        Ok(changer)
    }
}

fn refused(what: &'static str) -> VerbsError {
    VerbsError::Unsupported { what, way_out: "register the memory anew" }
}

impl MrChanger {
    /// From reset to a state in which requests are carried out.
    fn start(&mut self) -> Result<(), VerbsError> {
        self.qp.init(&InitAttr::default())?;
        self.qp.receive()?;
        self.qp.activate(&RtsAttr::new(Psn(0)))
    }

    /// Gives a region other rights, and moves it to a domain, which may be the one that it is in:
    /// when this returns `Ok`, its key grants these rights, there.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Unsupported`] for a region that [buffers](Mr::buf), other handles or windows
    /// hold, whose key is shared or whose pieces lie apart, for another [`Access::ZERO_BASED`] or
    /// [`Access::RELAXED_ORDERING`], and for rights to atomics that the device cannot change;
    /// [`VerbsError::RemoteWithoutLocalWrite`], [`VerbsError::OtherDevice`]: the region is as it
    /// was. After [`VerbsError::NotChanged`] it may have its former rights or those asked for.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn change(&mut self, mr: &mut Mr, pd: &Pd, access: Access) -> Result<(), VerbsError> {
        if !access.is_consistent() {
            return Err(VerbsError::RemoteWithoutLocalWrite);
        }
        let core = &self.qp.pd.core;
        if !Arc::ptr_eq(core, &pd.inner.core) {
            return Err(VerbsError::OtherDevice { what: "the protection domain" });
        }
        let differs = |right: Access| (mr.access() ^ access).contains(right);
        let can_grant_atomics = core.attr.caps.contains(DeviceCaps::FAST_REG_ATOMIC);
        if differs(Access::REMOTE_ATOMIC) && !can_grant_atomics {
            return Err(refused("changes of rights to atomics"));
        }
        if differs(Access::RELAXED_ORDERING) {
            return Err(refused("changes of the order of writes"));
        }
        if differs(Access::ZERO_BASED) {
            return Err(refused("changes of the addresses of a region"));
        }
        let key = mr.lkey().0;
        let Some(region) = mr.for_change(core) else {
            return Err(refused("changes of a region that is held, shared, or in pieces"));
        };
        let atomic = if can_grant_atomics { mkey_mask::A } else { 0 };
        let mask = RIGHTS | atomic | mkey_mask::PD;
        let mkc = access.apply(Mkc::zeroed()).with_pd(pd.number());
        self.carry_out(key, mask, &mkc)?;
        region.adopt(pd, access);
        Ok(())
    }

    /// Changes the fields of a key that is in use, and waits until that is done.
    fn carry_out(&mut self, key: u32, mask: u64, mkc: &Mkc) -> Result<(), VerbsError> {
        let umr =
            UmrCtrl::zeroed().with_inline(true).with_check_not_free(true).with_mkey_mask(mask);
        let (opcode, flags) = (WcOpcode::LocalInv, SendFlags::SIGNALED);
        let entry = Entry { wr_id: 0, opcode, flags };
        self.qp.sq.push_end((&umr, mkc), (key, 0), entry, Other::Nothing);
        let device = self.qp.pd.core.device().clone();
        let deadline = device.now() + LIMIT;
        let completion = loop {
            match self.cq.poll() {
                None if device.now() <= deadline => device.relax(),
                found => break found,
            }
        };
        let failed = |completion: &Completion| completion.head.opcode() != CqeOpcode::REQUESTER;
        let cause = completion.as_ref().filter(|it| failed(it)).map(|it| it.head.failure());
        let has_come = completion.is_some() && cause.is_none();
        if has_come && completion.is_some_and(|it| self.qp.complete(it, |_| {}).is_ok()) {
            return Ok(());
        }
        self.start_anew()?;
        Err(VerbsError::NotChanged { key, cause })
    }

    /// After a failure, lets go of what is posted.
    fn start_anew(&mut self) -> Result<(), VerbsError> {
        self.qp.abandon(&[&self.cq])?;
        // No more than there can be: a device that lies may send them without end.
        for _ in 0..MAX_COMPLETIONS {
            if self.cq.poll().is_none() {
                break;
            }
        }
        // Now that nothing stands there, it has its room again.
        self.qp.abandon(&[&self.cq])?;
        self.start()
    }
}
