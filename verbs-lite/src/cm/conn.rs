//! One connection: its state, its timers, and the messages that it sends.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ferrocx_prm::Layout;
use ferrocx_prm::mad::{
    CmDrep, CmDreq, CmMra, CmRej, CmRep, CmReq, CmRtu, CmaHeader, DEFAULT_PKEY,
};

use super::message::{Mad, Message};
use super::reason::{End, RejectReason};
use crate::types::Gid;

/// Service ids of TCP ports: `RDMA_PS_TCP`. Source: reference 7.10.
const TCP_SERVICES: u64 = 0x0106_0000;
/// LIDs of addresses that are reached through IP. Source: Linux `cm.c`, `cm_format_req`.
const PERMISSIVE_LID: u32 = 0xffff;
/// `message_mraed` and `message_rejected`.
pub(super) const ABOUT_REQ: u32 = 0;
pub(super) const ABOUT_REP: u32 = 1;
/// 4.096 us times 2 to the power 31 is two and a half hours.
const UNIT_NS: u64 = 4096;

/// The service id of a TCP port.
#[must_use]
pub fn service_id(port: u16) -> u64 {
    TCP_SERVICES | u64::from(port)
}

/// The time that a five-bit code means: 4.096 us times 2 to its power.
#[must_use]
pub fn time_of(code: u32) -> Duration {
    Duration::from_nanos(UNIT_NS << (code & 31))
}

/// The two addresses of a connection, and of the messages about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ends {
    /// Ours.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
}

/// State of a connection. Source: IBTA vol. 1, 12.9.7.
///
/// | from | to | when |
/// |---|---|---|
/// | REQ sent | REP received | REP |
/// | REQ sent | ended | REJ, silence, taken back |
/// | REP received | established | the queue pair is ready; RTU goes out |
/// | REQ received | REP sent | accepted |
/// | REQ received | ended | refused; REJ of a peer that waited too long |
/// | REP sent | established | RTU |
/// | REP sent | time wait | silence, REJ |
/// | established | DREQ sent | ended here |
/// | established, REP sent | time wait | DREQ; DREP goes out |
/// | DREQ sent | time wait | DREP, DREQ, silence |
/// | time wait | gone | the last packet of the connection cannot be under way any more |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// REQ was sent.
    ReqSent,
    /// REQ arrived, and somebody must say yes or no.
    ReqRcvd,
    /// REP arrived, and the queue pair is being readied.
    RepRcvd,
    /// REP was sent.
    RepSent,
    /// Both ends may send.
    Established,
    /// DREQ was sent.
    DreqSent,
    /// Ended; late messages about it are still answered.
    TimeWait,
    /// Ended, and forgotten once nobody holds it.
    Ended,
}

/// Request of an active end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Addresses.
    pub ends: Ends,
    /// The port that is called.
    pub port: u16,
    /// The caller's port: only told to the peer.
    pub source_port: u16,
    /// The caller's queue pair, 24 bits.
    pub qpn: u32,
    /// First packet number that the peer shall send, 24 bits.
    pub psn: u32,
    /// Path MTU: 1 is 256 bytes, 5 is 4096.
    pub mtu: u32,
    /// READs and atomics that the caller serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that the caller wants in flight.
    pub initiator_depth: u8,
    /// Repetitions that the peer's queue pair shall make, 0 to 7.
    pub retry_count: u8,
    /// Repetitions when the caller has no receive posted; 7 for ever.
    pub rnr_retry_count: u8,
    /// Time that the peer's queue pair waits for acknowledgements, a code.
    pub ack_timeout: u8,
    /// Hop limit of the path.
    pub hop_limit: u8,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// At most 56 bytes for the peer's program.
    pub private_data: Vec<u8>,
}

/// Acceptance of a passive end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The queue pair, 24 bits.
    pub qpn: u32,
    /// First packet number that the peer shall send, 24 bits.
    pub psn: u32,
    /// READs and atomics that it serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that it will have in flight.
    pub initiator_depth: u8,
    /// Repetitions of the peer's queue pair when this end is not ready; 7 for ever.
    pub rnr_retry_count: u8,
    /// At most 196 bytes for the peer's program.
    pub private_data: Vec<u8>,
}

/// A message that is repeated until it is answered.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) mad: Mad,
    pub(super) interval: Duration,
    pub(super) sent: u8,
    pub(super) left: u8,
    pub(super) since: Duration,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) state: State,
    pub(super) ends: Ends,
    pub(super) local_id: u32,
    pub(super) remote_id: u32,
    pub(super) transaction_id: u64,
    pub(super) service_id: u64,
    pub(super) local_qpn: u32,
    pub(super) remote_qpn: u32,
    pub(super) remote_guid: u64,
    /// The message that is repeated, and when the next repetition, the end of waiting, or of the
    /// state is due.
    pub(super) pending: Option<Pending>,
    pub(super) deadline: Option<Duration>,
    /// How long the last packets may be under way after the end.
    pub(super) time_wait: Duration,
    /// The peer's request, on the passive side.
    pub(super) request: Option<Box<CmReq>>,
    /// The peer's acceptance, on the active side.
    pub(super) reply: Option<Box<CmRep>>,
    /// RTU, for a peer that repeats its REP.
    pub(super) rtu: Option<Mad>,
    pub(super) end: Option<End>,
    /// Somebody wants to know what becomes of it.
    pub(super) is_held: bool,
    /// It waits for [`super::Engine::take_request`].
    pub(super) is_queued: bool,
}

/// Copies as many bytes as fit into a field of zeros.
fn filled<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut field = [0; N];
    let len = bytes.len().min(N);
    field[..len].copy_from_slice(&bytes[..len]);
    field
}

impl Conn {
    pub(super) fn mad(&self, message: Message) -> Mad {
        Mad { transaction_id: self.transaction_id, message }
    }

    pub(super) fn req(&self, request: &Request, guid: u64, timeout: u32, retries: u32) -> Mad {
        let head = ip_header(request);
        let mut private_data = [0; 92];
        private_data[..head.0.len()].copy_from_slice(&head.0);
        let own = &request.private_data;
        let len = own.len().min(private_data.len() - head.0.len());
        private_data[head.0.len()..][..len].copy_from_slice(&own[..len]);
        self.mad(Message::Req(
            CmReq::zeroed()
                .with_local_comm_id(self.local_id)
                .with_service_id(self.service_id)
                .with_local_ca_guid(guid)
                .with_local_qpn(request.qpn)
                .with_responder_resources(request.responder_resources.into())
                .with_initiator_depth(request.initiator_depth.into())
                .with_remote_cm_response_timeout(timeout)
                .with_starting_psn(request.psn)
                .with_local_cm_response_timeout(timeout)
                .with_retry_count(request.retry_count.into())
                .with_partition_key(DEFAULT_PKEY)
                .with_path_packet_payload_mtu(request.mtu)
                .with_rnr_retry_count(request.rnr_retry_count.into())
                .with_max_cm_retries(retries)
                .with_primary_local_port_lid(PERMISSIVE_LID)
                .with_primary_remote_port_lid(PERMISSIVE_LID)
                .with_primary_local_port_gid(Gid::from(request.ends.local).0)
                .with_primary_remote_port_gid(Gid::from(request.ends.remote).0)
                .with_primary_traffic_class(request.traffic_class.into())
                .with_primary_hop_limit(request.hop_limit.into())
                .with_primary_local_ack_timeout(request.ack_timeout.into())
                .with_private_data(private_data),
        ))
    }

    pub(super) fn rep(&self, answer: &Answer, guid: u64, ack_delay: u32) -> Mad {
        self.mad(Message::Rep(
            CmRep::zeroed()
                .with_local_comm_id(self.local_id)
                .with_remote_comm_id(self.remote_id)
                .with_local_qpn(answer.qpn)
                .with_starting_psn(answer.psn)
                .with_responder_resources(answer.responder_resources.into())
                .with_initiator_depth(answer.initiator_depth.into())
                .with_target_ack_delay(ack_delay)
                .with_rnr_retry_count(answer.rnr_retry_count.into())
                .with_local_ca_guid(guid)
                .with_private_data(filled(&answer.private_data)),
        ))
    }

    pub(super) fn rtu(&self) -> Mad {
        let rtu = CmRtu::zeroed().with_local_comm_id(self.local_id);
        self.mad(Message::Rtu(rtu.with_remote_comm_id(self.remote_id)))
    }

    pub(super) fn mra(&self, service_timeout: u32) -> Mad {
        self.mad(Message::Mra(
            CmMra::zeroed()
                .with_local_comm_id(self.local_id)
                .with_remote_comm_id(self.remote_id)
                .with_message_mraed(ABOUT_REQ)
                .with_service_timeout(service_timeout),
        ))
    }

    /// A refusal; `ari` says what would do.
    pub(super) fn rej(&self, about: u32, reason: RejectReason, ari: &[u8], private: &[u8]) -> Mad {
        self.mad(Message::Rej(rej((self.local_id, self.remote_id), about, reason, ari, private)))
    }

    pub(super) fn dreq(&self, private: &[u8]) -> Mad {
        self.mad(Message::Dreq(
            CmDreq::zeroed()
                .with_local_comm_id(self.local_id)
                .with_remote_comm_id(self.remote_id)
                .with_remote_qpn_eecn(self.remote_qpn)
                .with_private_data(filled(private)),
        ))
    }

    /// Repeats a message from now on.
    pub(super) fn repeat(&mut self, mad: Mad, interval: Duration, retries: u8, now: Duration) {
        self.pending = Some(Pending { mad, interval, sent: 1, left: retries, since: now });
        self.deadline = Some(now.saturating_add(interval));
    }

    /// The address and port of the peer, for people.
    pub(super) fn peer(&self) -> SocketAddr {
        let port = match &self.request {
            Some(req) => port_of(req),
            None => (self.service_id & 0xffff) as u16,
        };
        SocketAddr::new(self.ends.remote, port)
    }
}

/// A refusal between two numbers of connections.
pub(super) fn rej(
    (local, remote): (u32, u32),
    about: u32,
    reason: RejectReason,
    ari: &[u8],
    private: &[u8],
) -> CmRej {
    CmRej::zeroed()
        .with_local_comm_id(local)
        .with_remote_comm_id(remote)
        .with_message_rejected(about)
        .with_rejected_info_length(ari.len().min(72) as u32)
        .with_reason(reason.0.into())
        .with_ari(filled(ari))
        .with_private_data(filled(private))
}

/// The answer to a DREQ about whatever.
pub(super) fn drep(transaction_id: u64, dreq: &CmDreq) -> Mad {
    let drep = CmDrep::zeroed().with_local_comm_id(dreq.remote_comm_id());
    let drep = drep.with_remote_comm_id(dreq.local_comm_id());
    Mad { transaction_id, message: Message::Drep(drep) }
}

/// The header that `rdma_cm` wants to see in front of the private data.
fn ip_header(request: &Request) -> CmaHeader {
    let field = |ip| match ip {
        IpAddr::V4(ip) => {
            let mut octets = [0; 16];
            octets[12..].copy_from_slice(&std::net::Ipv4Addr::octets(&ip));
            octets
        }
        IpAddr::V6(ip) => ip.octets(),
    };
    CmaHeader::zeroed()
        .with_ip_version(if request.ends.local.is_ipv4() { 4 } else { 6 })
        .with_port(request.source_port.into())
        .with_source(field(request.ends.local))
        .with_destination(field(request.ends.remote))
}

/// The header in front of a request's private data; `None` if it is not one of `rdma_cm`'s.
pub(super) fn cma_header(req: &CmReq) -> Option<CmaHeader> {
    let header = CmaHeader::read_from(&req.private_data())?;
    (header.cma_version() == 0 && [4, 6].contains(&header.ip_version())).then_some(header)
}

/// The caller's port.
pub(super) fn port_of(req: &CmReq) -> u16 {
    cma_header(req).map_or(0, |header| header.port() as u16)
}
