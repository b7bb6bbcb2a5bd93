//! The network card that smoltcp sees: a frame to take, and those that it sent.

use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

/// Frames of a medium, in and out.
#[derive(Debug)]
pub(crate) struct Card {
    medium: Medium,
    /// The frame to take.
    pub(crate) arrived: Option<Vec<u8>>,
    /// Frames that were sent, oldest first.
    pub(crate) sent: Vec<Vec<u8>>,
}

impl Card {
    pub(crate) const fn new(medium: Medium) -> Self {
        Self { medium, arrived: None, sent: Vec::new() }
    }
}

pub(crate) struct Taken(Vec<u8>);
pub(crate) struct Given<'a>(&'a mut Vec<Vec<u8>>);

impl phy::RxToken for Taken {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl phy::TxToken for Given<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push(frame);
        result
    }
}

impl phy::Device for Card {
    type RxToken<'a> = Taken;
    type TxToken<'a> = Given<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Taken, Given<'_>)> {
        Some((Taken(self.arrived.take()?), Given(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Given<'_>> {
        Some(Given(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = self.medium;
        capabilities.max_transmission_unit =
            if self.medium == Medium::Ethernet { 1514 } else { 1500 };
        capabilities
    }
}
