//! DH-HMAC-CHAP: how a host and a controller show each other that they have a key, without showing
//! the key. Both ends use this; it knows of no queue and no time.
//!
//! | module | has |
//! |---|---|
//! | [`key`] | keys as they are written, `DHHC-1:...` |
//! | [`hash`] | the three hashes and their HMAC |
//! | [`group`] | the Diffie-Hellman groups, and powers that another thread computes |
//! | [`response`] | what shows that somebody has a key |
//!
//! # Source
//!
//! NVM Express base 2.0, "In-band Authentication"; reference 10.8. Keys and what is made of them
//! are overwritten when they are dropped, as far as the crates used do so; they are compared, and
//! powers are computed, in a time that does not depend on them.

pub mod group;
pub mod hash;
pub mod key;
pub mod response;

pub use group::{Exponent, Group, Power};
pub use hash::Hash;
pub use key::{HostKey, Secret, SecretError};
pub use response::Exchange;
