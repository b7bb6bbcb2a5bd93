//! What a connection is told, and what it says of itself.

use std::net::{IpAddr, SocketAddr};

use ferrocx_net::ether::MacAddr;
use ferrocx_net::packet::{Headers, Transport};
use thiserror::Error;

/// One connection's ends and its patience.
#[derive(Debug, Clone)]
pub struct Config {
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end, of the same family.
    pub remote: SocketAddr,
    /// Our station on the Ethernet.
    pub local_mac: MacAddr,
    /// The station that leads to the peer.
    pub remote_mac: MacAddr,
    /// Control information of a VLAN tag. Default: no tag.
    pub vlan_tci: Option<u16>,
    /// The largest payload of a segment that we take and send. Default 1,460.
    pub max_segment: u16,
    /// Bytes that the peer may send ahead. Default 65,535.
    pub window: u16,
    /// Bytes sent and not acknowledged, at most. Default 65,536.
    pub send_bytes: usize,
    /// Segments sent and not acknowledged, at most. Default 256.
    pub send_segments: usize,
    /// Timeout before a round trip was measured, ns. Default 200 ms.
    pub initial_timeout_ns: u64,
    /// The shortest timeout, ns. Default 4 ms; RFC 6298 says 1 s, which no order survives.
    pub min_timeout_ns: u64,
    /// The longest timeout, ns. Default 10 s.
    pub max_timeout_ns: u64,
    /// The shortest wait for a tail probe, ns; its usual one is two round trips. Default 1 ms.
    pub min_probe_ns: u64,
    /// How long an acknowledgment may wait for data to go with, ns. Default 0: it goes at once,
    /// before [`Client::receive`](super::Client::receive) returns. With 1 it goes with what the
    /// bytes lead to, or with the next [`Client::poll`](super::Client::poll).
    pub ack_delay_ns: u64,
    /// Time without any acknowledgment, or of a peer that does not close after we did without any
    /// bytes, after which it is given up, ns. Default 15 s.
    pub give_up_ns: u64,
    /// How long the end of a connection is remembered, ns. Default 1 s.
    pub time_wait_ns: u64,
}

impl Config {
    /// A connection from a station and an address of ours to those of the peer, with the defaults.
    pub const fn new(local: (MacAddr, SocketAddr), remote: (MacAddr, SocketAddr)) -> Self {
        Self {
            local: local.1,
            remote: remote.1,
            local_mac: local.0,
            remote_mac: remote.0,
            vlan_tci: None,
            max_segment: 1460,
            window: u16::MAX,
            send_bytes: 65_536,
            send_segments: 256,
            initial_timeout_ns: 200_000_000,
            min_timeout_ns: 4_000_000,
            max_timeout_ns: 10_000_000_000,
            min_probe_ns: 1_000_000,
            ack_delay_ns: 0,
            give_up_ns: 15_000_000_000,
            time_wait_ns: 1_000_000_000,
        }
    }

    /// The headers of what is sent, up to those of TCP.
    pub fn headers(&self) -> Headers {
        Headers {
            destination_mac: self.remote_mac,
            source_mac: self.local_mac,
            vlan_tci: self.vlan_tci,
            source: self.local,
            destination: self.remote,
            hop_limit: 64,
            traffic_class: 0,
            transport: Transport::Udp,
        }
    }
}

/// Why a configuration was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// One end is IPv4, the other IPv6.
    #[error("{0} and {1} are addresses of two families")]
    Family(IpAddr, IpAddr),
    /// Segments too small for any protocol, or too big for IP.
    #[error("segments of {0} bytes; 64 to 65495 are possible")]
    MaxSegment(u16),
    /// No room to send or to receive.
    #[error("{what} is 0; at least 1 is needed")]
    Zero {
        /// The field.
        what: &'static str,
    },
    /// The shortest timeout is above the longest one, or is none.
    #[error("timeouts from {min_ns} to {max_ns} ns; the first has to be the smaller, and not 0")]
    Timeouts {
        /// The shortest.
        min_ns: u64,
        /// The longest.
        max_ns: u64,
    },
}

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A SYN was sent.
    SynSent,
    /// Bytes go both ways.
    Established,
    /// We are done, the peer is not, or has not heard of it.
    FinWait,
    /// The peer is done, we are not.
    CloseWait,
    /// Both are done, the peer first; it has not heard of our end.
    LastAck,
    /// Both are done, at once; the peer has not heard of our end.
    Closing,
    /// Both are done; what is late is answered.
    TimeWait,
    /// It is over.
    Closed(Closed),
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Closed {
    /// Both ends were done, and both know.
    #[error("closed by both ends")]
    Done,
    /// The peer does not take the connection.
    #[error("the peer refused the connection")]
    Refused,
    /// The peer says that there is no such connection.
    #[error("the peer reset the connection")]
    Reset,
    /// Nothing was acknowledged for too long.
    #[error("the peer did not answer")]
    Silent,
    /// [`Client::abort`](super::Client::abort).
    #[error("aborted")]
    Aborted,
}

/// Why bytes were not sent. Nothing of them was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// The connection is not open for sending.
    #[error("the connection is not open for sending")]
    NotOpen,
    /// More than one segment takes: [`Client::max_segment`](super::Client::max_segment).
    #[error("{0} bytes do not fit one segment")]
    TooLong(usize),
    /// The peer has no room: try again when it acknowledged.
    #[error("the peer's window is full")]
    Window,
    /// The network is full, by the rules of congestion control.
    #[error("the congestion window is full")]
    Congestion,
    /// Our own room for what may have to be sent again is full.
    #[error("too much is not acknowledged")]
    Unacknowledged,
}

/// What came of a segment, besides bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Segments sent, all kinds.
    pub sent: u64,
    /// Segments taken.
    pub received: u64,
    /// Segments sent again after a timeout.
    pub timeouts: u64,
    /// Segments sent again after duplicate acknowledgments.
    pub fast: u64,
    /// Tail probes.
    pub probes: u64,
    /// Segments that came out of their order.
    pub out_of_order: u64,
    /// Segments that could not be of this connection, or lie about it.
    pub refused: u64,
}

/// What the header of a segment that is built beside this has to hold now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Template {
    /// Place of its first byte.
    pub sequence: u32,
    /// What it acknowledges.
    pub acknowledgment: u32,
    /// Bytes that the peer may send ahead.
    pub window: u16,
    /// The largest payload that may be sent now; 0 if none may.
    pub room: usize,
}

/// Whether every value is in its range.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let (local, remote) = (config.local.ip(), config.remote.ip());
    if local.is_ipv4() != remote.is_ipv4() {
        return Err(ConfigError::Family(local, remote));
    }
    if !(64..=65_495).contains(&config.max_segment) {
        return Err(ConfigError::MaxSegment(config.max_segment));
    }
    let sizes = [
        ("window", usize::from(config.window)),
        ("send_bytes", config.send_bytes),
        ("send_segments", config.send_segments),
    ];
    if let Some(&(what, _)) = sizes.iter().find(|(_, size)| *size == 0) {
        return Err(ConfigError::Zero { what });
    }
    let (min_ns, max_ns) = (config.min_timeout_ns, config.max_timeout_ns);
    if min_ns == 0 || min_ns > max_ns {
        return Err(ConfigError::Timeouts { min_ns, max_ns });
    }
    Ok(())
}
