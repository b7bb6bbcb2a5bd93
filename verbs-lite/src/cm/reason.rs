//! Why a connection was refused, and how one ended.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

/// Reason of a refusal. Source: IBTA vol. 1, 12.6.7.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

macro_rules! reasons {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl RejectReason {
            $(#[doc = concat!($text, ".")] pub const $name: Self = Self($code);)*

            /// What it means, and what to look at; `None` for an unknown one.
            #[must_use]
            pub fn meaning(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    NO_QP = 1, "the peer has no queue pair left";
    NO_RESOURCES = 3, "the peer has no resources left, or its queue of requests is full: try later";
    TIMEOUT = 4, "the peer waited in vain for our next message";
    UNSUPPORTED = 5, "the peer does not understand the request";
    INVALID_COMM_ID = 6, "the peer knows no such connection";
    INVALID_SERVICE_ID = 8, "nobody listens on that port";
    INVALID_TRANSPORT_TYPE = 9, "the peer does not take this transport service";
    STALE_CONNECTION = 10,
        "the peer still holds an old connection of a queue pair with this number: wait a few \
         seconds, or use another queue pair";
    INVALID_GID = 12, "the peer does not know the address that it was called by";
    INVALID_MTU = 26, "the path MTU is larger than the peer's: make the port's MTU smaller";
    INSUFFICIENT_RESPONDER_RESOURCES = 27,
        "the peer wants more READs in flight than we serve: raise ConnParams::responder_resources";
    CONSUMER_DEFINED = 28, "the program at the other end refused; its private data may say why";
    INVALID_RNR_RETRY = 29, "the peer does not take this RNR retry count";
    INVALID_CLASS_VERSION = 31, "the peer speaks another version of the protocol";
    VENDOR_OPTION_NOT_SUPPORTED = 35,
        "the program at the other end does not take the options of its vendor that we offer";
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning() {
            Some(text) => write!(f, "{text} (reason {})", self.0),
            None => write!(f, "reason {}", self.0),
        }
    }
}

/// How a connection ended, or why it never began.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum End {
    /// The peer refused.
    #[error("the peer refused the connection: {reason}")]
    Rejected {
        /// Why.
        reason: RejectReason,
        /// What the peer's program says, filled up with zeros.
        private_data: Box<[u8]>,
    },
    /// The peer ended it. What its program says, filled up with zeros.
    #[error("the peer ended the connection")]
    ByPeer(Box<[u8]>),
    /// We ended it, and the peer said so.
    #[error("the connection was ended here")]
    ByUs,
    /// The peer did not answer.
    #[error(
        "{message} was sent {sent} times in {after:?} and not answered; does the peer run, and \
         does UDP port 4791 pass in both directions?"
    )]
    NoAnswer {
        /// Which message.
        message: &'static str,
        /// How often.
        sent: u8,
        /// Since when.
        after: Duration,
    },
    /// The peer cannot be reached: no route, or no MAC address. Why, in a sentence.
    #[error("{0}")]
    Unreachable(String),
    /// A limit of [`CmLimits`](super::CmLimits) was reached. Which, in a clause.
    #[error("the connection was given up here: {0}")]
    GivenUp(&'static str),
    /// The peer uses the queue pair of this connection for another one: it has forgotten this one.
    #[error("the peer has forgotten the connection and uses its queue pair for another one")]
    Stale,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_explain_themselves_and_keep_their_number() {
        assert_eq!(
            RejectReason::INVALID_SERVICE_ID.to_string(),
            "nobody listens on that port (reason 8)"
        );
        assert_eq!(RejectReason(99).to_string(), "reason 99");
        assert_eq!(RejectReason(99).meaning(), None);
    }
}
