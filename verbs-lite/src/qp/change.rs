//! What may change while a queue pair is in INIT or RTS.

use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::qp::{Init2initQp, Rts2rtsQp};
use ferrocx_prm::qpc::{Qpc, opt_param};

use super::{Qp, QpState, QpType};
use crate::error::VerbsError;
use crate::mr::Buffers;
use crate::types::Access;

/// Attributes that change while the queue pair lives; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// What the peer may do.
    pub access: Option<Access>,
    /// The key that datagrams must carry.
    pub qkey: Option<u32>,
    /// How long a peer is asked to wait that finds no receive: a code of 5 bits. Only in RTS.
    pub min_rnr_timer: Option<u8>,
}

impl Changes {
    /// The bits and the fields of the command.
    fn fields(&self, mut qpc: Qpc) -> (u32, Qpc) {
        let mut optional = 0;
        if let Some(access) = self.access {
            optional |= opt_param::RRE | opt_param::RWE | opt_param::RAE;
            qpc = qpc
                .with_rre(access.contains(Access::REMOTE_READ))
                .with_rwe(access.contains(Access::REMOTE_WRITE))
                .with_rae(access.contains(Access::REMOTE_ATOMIC));
        }
        if let Some(qkey) = self.qkey {
            optional |= opt_param::Q_KEY;
            qpc = qpc.with_q_key(qkey);
        }
        if let Some(timer) = self.min_rnr_timer {
            optional |= opt_param::MIN_RNR_NAK;
            qpc = qpc.with_min_rnr_nak(timer.into());
        }
        (optional, qpc)
    }
}

impl<B: Buffers> Qp<B> {
    /// Changes attributes of a queue pair in INIT or RTS; what is posted stays posted.
    ///
    /// # Errors
    ///
    /// [`VerbsError::WrongState`] in another state, [`VerbsError::OutOfRange`],
    /// [`VerbsError::Unsupported`] for raw packets, or what the device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn change(&mut self, changes: &Changes) -> Result<(), VerbsError> {
        if self.qp_type == QpType::Raw {
            let (what, way_out) = ("rights of raw packets", "leave them out");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        VerbsError::range("min_rnr_timer", changes.min_rnr_timer.unwrap_or(0).into(), 0, 31)?;
        if self.state == QpState::Init && changes.min_rnr_timer.is_none() {
            let (optional, qpc) = changes.fields(self.context());
            let input = Init2initQp::input().with_qpn(self.qpn);
            let input = input.with_opt_param_mask(optional).with_qpc(qpc);
            self.execute::<Init2initQp>(&input)?;
            return Ok(());
        }
        self.expect(QpState::Rts)?;
        let (optional, qpc) = changes.fields(self.context());
        let input = Rts2rtsQp::input().with_qpn(self.qpn);
        self.execute::<Rts2rtsQp>(&input.with_opt_param_mask(optional).with_qpc(qpc))?;
        Ok(())
    }
}
