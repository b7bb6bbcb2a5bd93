//! Congestion control of RoCEv2: what is set, what was counted.
//!
//! A packet that arrives with "congestion experienced" makes its receiver, the *notification
//! point*, send a congestion notification packet (CNP) back, at most one a flow in the configured
//! time. The sender, the *reaction point*, is to slow the flow down.
//!
//! # What it does not do
//!
//! The model's queue pairs have no rate. The parameters of the reaction point are kept and change
//! nothing, and a notification is counted as handled without effect.
//!
//! # Source
//!
//! IBTA annex A17; reference 7.11; Linux 6.12 `hw/mlx5/cong.c` for the parameters and their bits.
//! Values after power-on: those that the vendor documents as defaults of its `ecn` settings. A CNP
//! of a ConnectX-4 Lx, as captured by others (scapy, `test/contrib/roce.uts`), has the code point,
//! the flags and the length that are used here.

use ferrocx_prm::cmd::cong::{CongNp, CongProtocol};

/// Bytes of a set of parameters.
pub const PARAMS_BYTES: usize = 0x100;

/// A set of parameters, in the layout of its part.
pub type Params = [u8; PARAMS_BYTES];

/// A parameter: bit of `field_select`, offset of its double word, bits in it.
type Selected = (u32, usize, u32);

/// Parameters of the reaction point. Source: Linux 6.12 `MLX5_IB_RP_*_ATTR` and
/// `cong_control_r_roce_ecn_rp`.
const RP: &[Selected] = &[
    (1, 0x0c, 1 << 27),
    (2, 0x0c, 1 << 23),
    (3, 0x14, !0),
    (4, 0x18, !0),
    (5, 0x1c, !0),
    (6, 0x20, !0),
    (7, 0x24, !0),
    (8, 0x28, !0),
    (9, 0x30, !0),
    (10, 0x34, !0),
    (11, 0x54, !0),
    (12, 0x58, !0),
    (13, 0x5c, !0),
    (14, 0x60, !0),
    (15, 0x68, !0),
    (16, 0x2c, !0),
];

/// Parameters of the notification point. Source: Linux 6.12 `MLX5_IB_NP_*_ATTR` and
/// `cong_control_r_roce_ecn_np`; the priority goes with its mode.
const NP: &[Selected] = &[(2, 0x14, !0), (3, 0x18, 0x3f << 8), (4, 0x18, 0xf)];

/// Parameters of the reaction point at first: offset, value.
const RP_DEFAULTS: &[(usize, u32)] = &[
    (0x0c, 1 << 23),
    (0x14, 300),
    (0x18, 32767),
    (0x1c, 1),
    (0x24, 5),
    (0x28, 50),
    (0x2c, 11),
    (0x30, 50),
    (0x34, 1),
    (0x58, 1019),
    (0x5c, 1),
    (0x60, 4),
    (0x68, 1023),
];

/// Counters of congestion control.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CongestionCounts {
    /// Notifications for a queue pair that is no connection, or that came while reacting was off.
    pub rp_cnp_ignored: u64,
    /// Notifications for a flow.
    pub rp_cnp_handled: u64,
    /// RoCEv2 packets that arrived with "congestion experienced".
    pub np_ecn_marked_roce_packets: u64,
    /// Notifications sent.
    pub np_cnp_sent: u64,
}

/// One half of congestion control.
#[derive(Debug, Clone)]
struct Part {
    /// A bit for each priority.
    enabled: u8,
    params: Box<Params>,
}

/// Congestion control of a port.
#[derive(Debug, Clone)]
pub struct Congestion {
    reaction: Part,
    notification: Part,
    /// Counters of both points.
    pub counts: CongestionCounts,
}

impl Default for Congestion {
    fn default() -> Self {
        let mut reaction = Box::new([0; PARAMS_BYTES]);
        for (at, value) in RP_DEFAULTS {
            reaction[*at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        let notification =
            CongNp::zeroed().with_min_time_between_cnps(4).with_cnp_dscp(48).with_cnp_802p_prio(6);
        Self {
            reaction: Part { enabled: 0xff, params: reaction },
            notification: Part { enabled: 0xff, params: Box::new(notification.0) },
            counts: CongestionCounts::default(),
        }
    }
}

impl Congestion {
    fn part(&self, protocol: CongProtocol) -> Option<&Part> {
        match protocol {
            CongProtocol::ROCE_RP => Some(&self.reaction),
            CongProtocol::ROCE_NP => Some(&self.notification),
            _ => None,
        }
    }

    fn part_mut(&mut self, protocol: CongProtocol) -> Option<(&mut Part, &'static [Selected])> {
        match protocol {
            CongProtocol::ROCE_RP => Some((&mut self.reaction, RP)),
            CongProtocol::ROCE_NP => Some((&mut self.notification, NP)),
            _ => None,
        }
    }

    /// The parameters of a part; `None` for one that there is not.
    #[must_use]
    pub fn params(&self, protocol: CongProtocol) -> Option<&Params> {
        self.part(protocol).map(|part| &*part.params)
    }

    /// Takes the parameters that `select` names. `None`: no such part, or a bit that names none.
    pub(crate) fn set_params(
        &mut self,
        protocol: CongProtocol,
        select: u32,
        new: &Params,
    ) -> Option<()> {
        let (part, fields) = self.part_mut(protocol)?;
        let known = fields.iter().fold(0, |known, (bit, ..)| known | 1 << bit);
        if select & !known != 0 {
            return None;
        }
        for (_, at, mask) in fields.iter().filter(|(bit, ..)| select >> bit & 1 != 0) {
            for (index, bits) in (*at..).zip(mask.to_be_bytes()) {
                part.params[index] = part.params[index] & !bits | new[index] & bits;
            }
        }
        Some(())
    }

    /// Whether a part is on for a priority; `None`: no such part or priority.
    #[must_use]
    pub fn is_enabled(&self, protocol: CongProtocol, priority: u32) -> Option<bool> {
        let part = self.part(protocol).filter(|_| priority < 8)?;
        Some(part.enabled >> priority & 1 != 0)
    }

    pub(crate) fn enable(&mut self, protocol: CongProtocol, priority: u32, on: bool) -> Option<()> {
        let (part, _) = self.part_mut(protocol).filter(|_| priority < 8)?;
        part.enabled = part.enabled & !(1 << priority) | u8::from(on) << priority;
        Some(())
    }

    /// Parameters of the notification point.
    #[must_use]
    pub fn notification(&self) -> CongNp {
        CongNp(*self.notification.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_selected_parameters_change() {
        let mut port = Congestion::default();
        let (rp, np) = (CongProtocol::ROCE_RP, CongProtocol::ROCE_NP);
        let before = *port.params(np).expect("a part");
        assert_eq!(before[0x14..0x1c], [0, 0, 0, 4, 0, 0, 0x30, 6]);
        let new = [0xff; PARAMS_BYTES];
        assert_eq!(port.set_params(np, 1 << 3, &new), Some(()));
        assert_eq!(port.params(np).expect("a part")[0x14..0x1c], [0, 0, 0, 4, 0, 0, 0x3f, 6]);
        assert_eq!(port.set_params(np, 1 << 2 | 1 << 4, &new), Some(()));
        assert_eq!(
            port.params(np).expect("a part")[0x14..0x1c],
            [255, 255, 255, 255, 0, 0, 0x3f, 15]
        );
        assert_eq!(port.set_params(np, 1 << 5, &new), None, "no such parameter");
        assert_eq!(port.set_params(CongProtocol(3), 0, &new), None, "no such part");
        assert_eq!(port.set_params(rp, 0x1_fffe, &new), Some(()));
        let all = port.params(rp).expect("a part");
        assert_eq!(all[0x0c..0x18], [0x08, 0x80, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(all.iter().filter(|byte| **byte == 255).count(), 14 * 4);
        assert_eq!(port.set_params(rp, 1, &new), None, "bit 0 is none");
    }

    #[test]
    fn priorities_are_switched_one_by_one() {
        let mut port = Congestion::default();
        let np = CongProtocol::ROCE_NP;
        assert_eq!(port.enable(np, 3, false), Some(()));
        assert_eq!(port.is_enabled(np, 3), Some(false));
        assert_eq!(port.is_enabled(np, 2), Some(true));
        assert_eq!(port.is_enabled(CongProtocol::ROCE_RP, 3), Some(true));
        assert_eq!(port.is_enabled(np, 8), None);
        assert_eq!(port.enable(np, 8, true), None);
    }
}
