//! An exchange to trade with: matching by price and time, a feed of what happens, answers to
//! orders.
//!
//! Sans I/O. [`Exchange`] takes orders of its members and of an invented crowd, and writes down two
//! things: messages of ITCH, which [`Publisher`] numbers, packs and sends again on request; and
//! answers of OUCH for each member, which the member's [`Account`] counts and keeps for replay.
//! From one seed the crowd does the same every day. [`Venue`] puts all of it at the end of a wire.
//!
//! It is here for tests, demonstrations and measurements: it has no auctions, no hidden orders, no
//! halts of its own, and a member's orders do not match with each other's owner in mind.

mod account;
pub(crate) mod card;
mod crowd;
mod kept;
mod matching;
mod publisher;
mod seat;
#[cfg(test)]
mod tests;
mod venue;

pub use account::Account;
pub use crowd::{Crowd, CrowdConfig};
pub use matching::{Exchange, ListedSecurity, MemberId, Output};
pub use publisher::Publisher;
pub use venue::{Venue, VenueConfig, VenueStats};
