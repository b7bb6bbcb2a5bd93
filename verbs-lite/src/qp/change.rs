//! What may change while a queue pair is in INIT or RTS.

use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::qp::{Init2initQp, Rts2rtsQp};
use ferrocx_prm::qpc::{ATOMIC_MODE_IB, Qpc, opt_param};

use super::{Qp, QpState, QpType};
use crate::error::VerbsError;
use crate::mr::Buffers;
use crate::types::Access;

/// Attributes that change while the queue pair lives; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// What the peer may do. Of a queue pair that serves no READs, see
    /// [`RtrAttr::max_dest_rd_atomic`](super::RtrAttr::max_dest_rd_atomic), WRITEs only.
    pub access: Option<Access>,
    /// The key that datagrams must carry.
    pub qkey: Option<u32>,
    /// How long a peer is asked to wait that finds no receive: a code of 5 bits. Only in RTS.
    pub min_rnr_timer: Option<u8>,
}

impl QpType {
    /// The optional fields of a transition that give its peers rights. A device takes no others.
    /// Source: Linux 6.12 `qp.c`, `opt_mask`.
    pub(super) fn rights(self) -> u32 {
        match self {
            Self::Rc | Self::XrcSend | Self::XrcRecv => {
                opt_param::RRE | opt_param::RWE | opt_param::RAE
            }
            Self::Uc => opt_param::RWE,
            Self::Ud | Self::Raw => 0,
        }
    }
}

/// Rights in a context. Linux's driver, too, says with that to atomics which kind they are.
pub(super) fn grant(qpc: Qpc, access: Access) -> Qpc {
    let has_atomics = access.contains(Access::REMOTE_ATOMIC);
    qpc.with_rre(access.contains(Access::REMOTE_READ))
        .with_rwe(access.contains(Access::REMOTE_WRITE))
        .with_rae(has_atomics)
        .with_atomic_mode(if has_atomics { ATOMIC_MODE_IB } else { 0 })
}

impl<B: Buffers> Qp<B> {
    /// Changes attributes of a queue pair in INIT or RTS; what is posted stays posted.
    ///
    /// # Errors
    ///
    /// [`VerbsError::WrongState`] in another state, [`VerbsError::OutOfRange`],
    /// [`VerbsError::Unsupported`] for what the service does not have, or what the device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn change(&mut self, changes: &Changes) -> Result<(), VerbsError> {
        let Changes { access, qkey, min_rnr_timer } = *changes;
        VerbsError::range("min_rnr_timer", min_rnr_timer.unwrap_or(0).into(), 0, 31)?;
        let rights = self.qp_type.rights();
        for (is_asked, has, what) in [
            (access.is_some(), rights != 0, "rights of peers of this service"),
            (qkey.is_some(), self.qp_type == QpType::Ud, "Q_Key of anything but datagrams"),
            (min_rnr_timer.is_some(), self.qp_type.is_reliable(), "RNR timer of this service"),
        ] {
            if is_asked && !has {
                return Err(VerbsError::Unsupported { what, way_out: "leave it out" });
            }
        }
        let is_before = self.state == QpState::Init && min_rnr_timer.is_none();
        if !is_before {
            self.expect(QpState::Rts)?;
        }
        let (mut optional, mut qpc) = (0, self.context());
        if let Some(access) = access {
            optional |= rights;
            qpc = grant(qpc, self.served(access));
        }
        if let Some(qkey) = qkey {
            optional |= opt_param::Q_KEY;
            qpc = qpc.with_q_key(qkey);
        }
        if let Some(timer) = min_rnr_timer {
            optional |= opt_param::MIN_RNR_NAK;
            qpc = qpc.with_min_rnr_nak(timer.into());
        }
        let (qpn, mask) = (self.qpn, optional);
        if is_before {
            let input = Init2initQp::input().with_qpn(qpn).with_opt_param_mask(mask);
            self.execute::<Init2initQp>(&input.with_qpc(qpc))?;
        } else {
            let input = Rts2rtsQp::input().with_qpn(qpn).with_opt_param_mask(mask);
            self.execute::<Rts2rtsQp>(&input.with_qpc(qpc))?;
        }
        self.access = access.unwrap_or(self.access);
        Ok(())
    }

    /// The rights of those asked for that the device is told of now: READs and atomics only where
    /// it serves some.
    pub(super) fn served(&self, access: Access) -> Access {
        if self.serves_reads { access } else { access & Access::REMOTE_WRITE }
    }
}
