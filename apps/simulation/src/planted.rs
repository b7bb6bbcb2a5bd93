//! Bugs that are planted on purpose, to see how soon the simulation finds them.
//!
//! They stand between the parts that the simulation joins: on the wire, between driver and
//! registers, between a queue and its program, in what a host lets go of. So the product has no
//! line of them. They exist only with the feature `planted`, which only the test of them asks for.

use std::fmt;

/// A bug of the library or the card, as the parts around it would see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A card accepts packets whose ICRC is wrong.
    UncheckedIcrc,
    /// A card takes the repetition of a SEND for the next one.
    RepeatedSend,
    /// A card carries out the repetition of an atomic again.
    RepeatedAtomic,
    /// A queue loses a completion.
    LostCompletion,
    /// A sender writes a byte of a long message beside its place.
    WrongByte,
    /// A receiver forgets to post a receive again.
    LostReceive,
    /// Ending a key leaves it valid.
    ImmortalKey,
    /// A card writes to memory whose key has ended.
    LateWrite,
    /// A driver does not look whether its device was reset.
    DeafDriver,
    /// A doorbell of a command is not rung.
    LostDoorbell,
    /// The clock by which a driver repeats stands still.
    StoppedClock,
    /// A link that was down never comes up again.
    DeadLink,
    /// A program's memory is kept when everything was let go.
    LeakedMemory,
    /// An object of a device that was closed is kept.
    HeldHandle,
    /// A storage target forgets a block that it has answered for.
    ForgottenWrite,
    /// A card sends a frame with a bit that its program never wrote.
    WrongFrame,
    /// A receive queue loses a buffer.
    KeptFrame,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::UncheckedIcrc,
        Self::RepeatedSend,
        Self::RepeatedAtomic,
        Self::LostCompletion,
        Self::WrongByte,
        Self::LostReceive,
        Self::ImmortalKey,
        Self::LateWrite,
        Self::DeafDriver,
        Self::LostDoorbell,
        Self::StoppedClock,
        Self::DeadLink,
        Self::LeakedMemory,
        Self::HeldHandle,
        Self::ForgottenWrite,
        Self::WrongFrame,
        Self::KeptFrame,
    ];
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The bug of a run, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Planted(Option<Bug>);

impl Planted {
    pub(crate) fn new(bug: Option<Bug>) -> Self {
        Self(bug)
    }

    /// Whether it is this one. Never, in a build without the feature.
    #[inline(always)]
    pub(crate) fn is(self, bug: Bug) -> bool {
        cfg!(feature = "planted") && self.0 == Some(bug)
    }
}
