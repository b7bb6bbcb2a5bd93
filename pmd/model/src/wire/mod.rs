//! What a port is plugged into: frames out, frames in.
//!
//! A [`Wire`] is one end of something that carries Ethernet frames, without preamble and frame
//! check sequence. Ends compose: [`link()`] joins two ports in memory, [`switch()`] any number,
//! [`Impair`] loses, delays, repeats and damages what passes, [`Capture`] writes it to a pcapng
//! file, [`TapWire`] and [`PacketWire`] lead into the Linux network stack, [`Generator`] makes load
//! and checks what comes back.
//!
//! Frames are built in place: the sender reserves room, fills it, commits. Nothing is allocated per
//! frame once the buffers have grown to their size.
//!
//! # What nobody can see
//!
//! A frame is as real as somebody can tell. On a *private* wire ([`Wire::is_private`]) both ends
//! are devices of this machine and nothing stands between them that looks, loses or damages: there
//! a frame is [`Fcs::Inside`], its ICRC is not computed, and consecutive packets of an RDMA message
//! go as one. Everywhere else, the other end of a [`Link`] that a program holds itself included,
//! every byte is what a device sends.

mod capture;
mod generator;
mod impair;
mod link;
mod linux;
mod switch;

pub use capture::{Capture, CaptureError, CaptureFile};
pub use generator::{Generator, GeneratorConfig, GeneratorHandle, GeneratorStats, Pace};
pub use impair::{Impair, ImpairConfig, ImpairError, ImpairStats};
pub use link::{Link, link};
pub use linux::{LinuxWireStats, PacketWire, TapWire};
pub use switch::{Switch, SwitchPort, SwitchStats, switch};

use std::fmt;

/// Longest frame that any wire carries, without FCS.
///
/// A large send is cut before it reaches the wire, so this bounds the MTU, not the payload.
pub const MAX_FRAME_BYTES: usize = 16 << 10;

/// Whether the frame check sequence of a frame is right.
///
/// Wires carry no FCS; they say what checking it would have shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fcs {
    /// The frame arrived as it was sent.
    #[default]
    Good,
    /// A bit changed on the way: a port drops the frame and counts it.
    Bad,
    /// The frame has not left the machine, and no bit of it can have changed. Only on a wire that
    /// is private: see [`Wire::is_private`].
    Inside(Train),
}

impl Fcs {
    /// Frames of a cable that the frame stands for.
    #[inline]
    #[must_use]
    pub fn frames(self) -> u32 {
        match self {
            Self::Good | Self::Bad => 1,
            Self::Inside(train) => train.frames.max(1),
        }
    }
}

/// What a frame that stays inside the machine stands for.
///
/// Its payload is that of all of them, one behind the other; its headers are those of the first,
/// except that the operation also says whether the last one ends the message. It has no ICRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Train {
    /// Frames that would have gone over a cable.
    pub frames: u32,
    /// Bytes of all of them.
    pub bytes: u32,
    /// Bytes of the longest.
    pub longest: u32,
}

/// A frame that a port takes from its wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received<'a> {
    /// The frame, from destination address to the end of padding.
    pub bytes: &'a [u8],
    /// Verdict of its frame check sequence.
    pub fcs: Fcs,
}

/// One end of something that carries frames.
///
/// All times are the model's, in nanoseconds, and never go back.
pub trait Wire: Send + fmt::Debug {
    /// Room for a frame of `len` bytes, to be filled completely before [`Wire::commit`].
    ///
    /// `None` when the wire cannot take it now: the port keeps the frame and tries again later.
    /// Reserving again without a commit starts over.
    ///
    /// # Shape
    /// `len` is 1 to [`MAX_FRAME_BYTES`], or [`Wire::longest_inside`] for what is
    /// [`Fcs::Inside`]. The room holds bytes of earlier frames.
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Sends the frame that was reserved last.
    fn commit(&mut self, now_ns: u64, fcs: Fcs);

    /// Ends a burst: what was committed becomes visible at the other end. Returns whether there was
    /// something that was not visible before: whoever has the other end may have to be woken.
    fn flush(&mut self, now_ns: u64) -> bool {
        let _ = now_ns;
        false
    }

    /// The next frame that arrived, if there is one.
    fn receive(&mut self, now_ns: u64) -> Option<Received<'_>>;

    /// Whether there is a carrier. A port without one is down.
    fn carrier(&self) -> bool {
        true
    }

    /// The port's transmitter goes on or off: off, the other end of a cable has no carrier.
    ///
    /// A wire whose far end cannot see that ignores it. Transmitters are on to begin with.
    fn set_transmitter(&mut self, is_on: bool) {
        let _ = is_on;
    }

    /// A device has this end now: what arrives here, nobody else looks at.
    ///
    /// A wire that looks at frames, or changes what becomes of them, keeps it from the wire behind.
    fn adopt(&mut self) {}

    /// Whether a frame to this MAC address reaches nobody but a device of this program, or of one
    /// that it trusts on this machine, and nothing on the way looks at it: then it may be
    /// [`Fcs::Inside`].
    fn is_private(&self, to: &[u8; 6]) -> bool {
        let _ = to;
        false
    }

    /// Longest frame that may be [`Fcs::Inside`].
    fn longest_inside(&self) -> usize {
        MAX_FRAME_BYTES
    }

    /// The wire in a box, and not in a second one if it has one.
    fn boxed(self) -> Box<dyn Wire>
    where
        Self: Sized + 'static,
    {
        Box::new(self)
    }
}

impl Wire for Box<dyn Wire> {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        (**self).reserve(len)
    }

    fn commit(&mut self, now_ns: u64, fcs: Fcs) {
        (**self).commit(now_ns, fcs);
    }

    fn flush(&mut self, now_ns: u64) -> bool {
        (**self).flush(now_ns)
    }

    fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        (**self).receive(now_ns)
    }

    fn carrier(&self) -> bool {
        (**self).carrier()
    }

    fn set_transmitter(&mut self, is_on: bool) {
        (**self).set_transmitter(is_on);
    }

    fn adopt(&mut self) {
        (**self).adopt();
    }

    fn is_private(&self, to: &[u8; 6]) -> bool {
        (**self).is_private(to)
    }

    fn longest_inside(&self) -> usize {
        (**self).longest_inside()
    }

    fn boxed(self) -> Box<dyn Wire> {
        self
    }
}

/// A wire that leads nowhere: takes everything, delivers nothing, has no carrier.
#[derive(Debug, Default)]
pub struct Unplugged {
    scratch: Vec<u8>,
}

impl Wire for Unplugged {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        Some(room(&mut self.scratch, len))
    }

    fn commit(&mut self, _now_ns: u64, _fcs: Fcs) {}

    fn receive(&mut self, _now_ns: u64) -> Option<Received<'_>> {
        None
    }

    fn carrier(&self) -> bool {
        false
    }
}

/// The first `len` bytes of a buffer that grows to the longest frame it has seen.
#[inline]
fn room(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

/// A small random number generator with a seed: same seed, same numbers.
///
/// # Source
/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Starts the sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 for a bound of 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a 128-bit product is uniform up to a bias of bound / 2^64.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True in `ppm` of a million cases.
    #[inline]
    pub fn chance(&mut self, ppm: u32) -> bool {
        ppm != 0 && self.below(1_000_000) < u64::from(ppm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_gives_the_published_sequence() {
        // First outputs for seed 1234567, as printed by the reference implementation.
        let mut rng = SplitMix64::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn chances_are_what_they_say() {
        let mut rng = SplitMix64::new(1);
        assert!((0..1000).all(|_| !rng.chance(0) && rng.chance(1_000_000)));
        let hits = (0..100_000).filter(|_| rng.chance(100_000)).count();
        assert!((9_000..11_000).contains(&hits), "{hits} of 100,000 at 10 %");
        assert_eq!(rng.below(0), 0);
        assert!((0..1000).all(|_| rng.below(3) < 3));
    }
}
