//! Flow tables: which packets are received, and by whom.

mod matches;
mod routes;
mod rule;
pub(crate) mod tables;

pub use matches::{FlowMatch, Ipv4Match, Ipv6Match, Masked};
pub use routes::Routes;
pub use rule::{FlowAction, FlowRule, FlowRuleHandle, RxQueueRef};
pub use tables::{MAX_MULTICAST, TrafficType};
