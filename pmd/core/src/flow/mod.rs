//! Flow tables: which packets are received, and by whom.

mod matches;
mod routes;
mod rule;
mod spread;
pub(crate) mod tables;
mod traffic;

pub use matches::{FlowMatch, Ipv4Match, Ipv6Match, Masked};
pub use routes::Routes;
pub use rule::{FlowAction, FlowRule, FlowRuleHandle, RxQueueRef};
pub use spread::TrafficTirs;
pub use tables::MAX_MULTICAST;
pub use traffic::TrafficType;
