//! Frames that a port sends to itself.

use std::collections::VecDeque;

use crate::device::port::Vport;
use crate::wire::Wire;

/// Frames that can be on their way from a port to itself.
const MAX_LOOPED_BACK: usize = 256;

/// A frame that this port sent to itself.
#[derive(Debug)]
pub(crate) struct Looped {
    pub(crate) frame: Vec<u8>,
    /// Transport domain of its sender.
    pub(crate) domain: u32,
}

/// Whose frames may come back to a TIR of this port. Source: Linux 6.12, which loops back
/// between user contexts, each with a transport domain of its own, and within one when its TIR asks
/// for it; rdma-core's tests, which wait for their own multicast frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum LoopsBack {
    /// Nobody's.
    #[default]
    Never,
    /// Those of all transport domains but this one.
    Others(u32),
    /// Everybody's.
    All,
}

impl LoopsBack {
    #[inline]
    fn may_take(self, domain: u32) -> bool {
        match self {
            Self::Never => false,
            Self::Others(own) => own != domain,
            Self::All => true,
        }
    }
}

/// The way from a port's send queues back to its TIRs.
#[derive(Debug, Default)]
pub(crate) struct Loopback {
    frames: VecDeque<Looped>,
    /// Senders whose frames may be taken.
    from: LoopsBack,
}

impl Loopback {
    /// Forgets the frames on their way: the objects that sent them are gone.
    pub(crate) fn clear(&mut self) {
        self.frames.clear();
    }

    /// Chooses the senders whose frames come back from now on.
    pub(super) fn take_from(&mut self, from: LoopsBack) {
        self.from = from;
    }

    /// Takes the frame that is longest on its way.
    pub(crate) fn arrival(&mut self) -> Option<Looped> {
        self.frames.pop_front()
    }

    /// Takes a frame that is to come back to this port instead of going out; `false` sends it out.
    ///
    /// A frame comes back when the vport loops its kind back and a TIR takes it: one of another
    /// transport domain, or one that wants frames of its own domain. Unicast must be for an address
    /// of the vport, and does not go out then; of multicast a copy comes back.
    #[inline]
    pub(super) fn takes(&mut self, vport: &Vport, frame: &[u8], domain: u32) -> bool {
        self.from.may_take(domain) && self.take(vport, frame, domain)
    }

    #[inline(never)]
    fn take(&mut self, vport: &Vport, frame: &[u8], domain: u32) -> bool {
        let is_multicast = frame.first().is_some_and(|first| first & 1 != 0);
        let is_disabled =
            if is_multicast { vport.disable_mc_local_lb } else { vport.disable_uc_local_lb };
        let is_own = |mac: &[u8; 6]| frame.starts_with(mac);
        let is_wanted = is_multicast || is_own(&vport.mac) || vport.unicast.iter().any(is_own);
        if is_disabled || !is_wanted {
            return false;
        }
        // Behind the limit it is lost, as in a switch that has no buffer.
        if self.frames.len() < MAX_LOOPED_BACK {
            self.frames.push_back(Looped { frame: frame.to_vec(), domain });
        }
        !is_multicast
    }
}

/// Destinations of the frames of send queues: the wire, or the port itself.
pub(crate) struct Output<'a> {
    pub(crate) wire: &'a mut dyn Wire,
    pub(crate) loopback: &'a mut Loopback,
}
