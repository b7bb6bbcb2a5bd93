//! Market data in, orders out: what a trading engine on ferrocx starts from.
//!
//! Everything here is sans I/O: packets and the time come in, packets and orders go out. So a day
//! that is played again gives the same orders, and every part is tested without a network.
//!
//! # Architecture
//! - [`proto`]: the wire formats: MoldUDP64, SoupBinTCP, ITCH 5.0, OUCH 5.0 and 4.2.
//! - [`feed`]: one stream of messages out of two lines that lose some.
//! - [`book`]: price levels and their orders; a book that may be wrong says so.
//! - [`strategy`]: what a trader writes, and two examples.
//! - [`orders`] and [`risk`]: what was sent, what became of it, and what may be sent.
//! - [`engine`]: all of these, put together.
//! - [`tcp`]: the client that orders travel by.
//! - [`exchange`]: something to trade with: matching, feed, accounts.
//!
//! # What it does not do yet
//! **It is a library: no program runs it on queues yet**, so there are no timestamps, no replay of
//! captures and no comparison with the kernel's sockets. Nothing here has met an exchange.
//!
//! # Limits
//!
//! | what | where |
//! |---|---|
//! | messages kept ahead of a gap | [`feed::ArbiterConfig::window`] |
//! | books, orders, levels | [`book::BooksConfig`] |
//! | own orders at a time, and what they may do | [`orders::OrdersConfig`], [`risk::Limits`] |
//! | bytes and segments on their way | [`tcp::Config`] |
#![forbid(unsafe_code)]

pub mod book;
pub mod engine;
pub mod exchange;
pub mod feed;
pub mod orders;
pub mod proto;
pub mod risk;
pub mod strategy;
pub mod tcp;
