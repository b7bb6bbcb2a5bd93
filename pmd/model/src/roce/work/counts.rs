//! What the RoCE side of a port counts.

/// RoCE packets that were not delivered, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoceDrops {
    /// Headers or lengths are wrong.
    pub malformed: u64,
    /// The ICRC is wrong.
    pub icrc: u64,
    /// No queue pair has this number, or it does not receive; or it is a member of a group whose
    /// other members were as much work as a step does.
    pub no_queue: u64,
    /// The IP addresses or GIDs are not those of the connection, or the destination of a datagram
    /// is none of this port's; or another version of RoCE.
    pub address: u64,
    /// Another transport service than the queue pair's.
    pub transport: u64,
    /// The P_Key does not match.
    pub pkey: u64,
    /// The Q_Key does not match.
    pub qkey: u64,
    /// Datagrams, and messages of unreliable connections, longer than the receive that waited for
    /// them.
    pub too_long: u64,
}

/// Changes of memory keys by work requests and by peers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyCounts {
    /// UMR requests that made a free key usable: fast registrations and binds of windows.
    pub umr_registrations: u64,
    /// UMR requests that freed a key: local invalidations.
    pub local_invalidates: u64,
    /// UMR requests that changed a key and left it as free or as usable as it was.
    pub umr_changes: u64,
    /// SEND WITH INVALIDATE of this port that a peer acknowledged.
    pub sends_with_invalidate: u64,
    /// Keys freed by a SEND WITH INVALIDATE of a peer.
    pub remote_invalidates: u64,
}

/// Completions that carried the data themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InlineCounts {
    /// Completions of receives.
    pub responder: u64,
    /// Completions of READs and atomics.
    pub requester: u64,
}
