//! One connection: its state, its timers, and the messages that it sends.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ferrocx_prm::Layout;
use ferrocx_prm::mad::{
    CmDrep, CmDreq, CmMra, CmRej, CmRep, CmReq, CmRtu, CmaHeader, DEFAULT_PKEY,
};

use super::config::{CmConfig, ConnParams};
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
/// Code of the time that our acknowledgements take: 134 ms. Source: Linux' `local_ca_ack_delay`.
const ACK_DELAY: u32 = 15;

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
/// | REQ sent | ended | REJ, silence, taken back; REP with a queue pair that is in use here |
/// | REP received | established | the queue pair is ready; RTU goes out |
/// | REP received | ended | refused here; it was not ready in time |
/// | REP received | time wait | REJ; DREQ, and DREP goes out |
/// | REQ received | REP sent | accepted |
/// | REQ received | ended | refused; REJ of a peer that waited too long; nobody decided in time |
/// | REP sent | established | RTU |
/// | REP sent | DREQ sent | ended here; its peer uses the queue pair anew |
/// | REP sent | time wait | silence, REJ; DREQ, and DREP goes out |
/// | established | DREQ sent | ended here; its peer uses the queue pair anew |
/// | established | time wait | REJ; DREQ, and DREP goes out |
/// | DREQ sent | time wait | DREP, DREQ, REJ, silence |
/// | REQ sent, REQ received, REP received | ended | its messages cannot be sent |
/// | REP sent, DREQ sent | time wait | its messages cannot be sent |
/// | time wait | ended | the last packet of the connection cannot be under way any more |
/// | REQ received, REP sent, DREQ sent, time wait | ended | a younger one takes its room |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table says when each is entered")]
pub enum State {
    ReqSent,
    ReqRcvd,
    RepRcvd,
    RepSent,
    Established,
    DreqSent,
    /// Late messages about it are still answered.
    TimeWait,
    /// Forgotten once nobody holds it.
    Ended,
}

/// Request of an active end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
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
    /// Hop limit of the path.
    pub hop_limit: u8,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// What the caller wishes.
    pub params: ConnParams<'a>,
}

/// Acceptance of a passive end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The queue pair, 24 bits.
    pub qpn: u32,
    /// First packet number that the peer shall send, 24 bits.
    pub psn: u32,
    /// What this end wishes; the caller's smaller wishes count.
    pub params: ConnParams<'a>,
}

/// How a peer names a connection.
#[derive(Clone, Copy, Default)]
pub(super) struct Remote {
    /// Of its device.
    pub(super) guid: u64,
    pub(super) comm_id: u32,
    pub(super) qpn: u32,
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
    /// It was asked for here.
    pub(super) is_active: bool,
    /// Somebody wants to know what becomes of it. A request that nobody holds waits for
    /// [`super::Engine::take_request`].
    pub(super) is_held: bool,
    /// Its peer asked for it, and has not shown yet that it hears our answers.
    pub(super) is_stranger: bool,
    /// The way to its peer is known, or was when it asked. A request of one that is not reached is
    /// not taken.
    pub(super) is_reached: bool,
    pub(super) ends: Ends,
    pub(super) local_id: u32,
    pub(super) transaction_id: u64,
    pub(super) request: Box<CmReq>,
    pub(super) reply: Option<Box<CmRep>>,
    pub(super) pending: Option<Pending>,
    /// When the next repetition, the end of waiting, or of the state is due.
    pub(super) deadline: Option<Duration>,
    /// Its place in the crowd that its state belongs to.
    pub(super) turn: Option<u64>,
    pub(super) end: Option<End>,
    /// It has ended: for those who look without the manager's lock.
    pub(super) has_ended: Arc<AtomicBool>,
}

/// Copies as many bytes as fit into a field of zeros.
pub(super) fn filled<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut field = [0; N];
    let len = bytes.len().min(N);
    field[..len].copy_from_slice(&bytes[..len]);
    field
}

impl Conn {
    /// A connection that has not begun.
    pub(super) fn new(ends: Ends, local_id: u32, transaction_id: u64, request: CmReq) -> Self {
        Self {
            state: State::Ended,
            is_active: false,
            is_held: false,
            is_stranger: false,
            is_reached: true,
            ends,
            local_id,
            transaction_id,
            request: Box::new(request),
            reply: None,
            pending: None,
            deadline: None,
            turn: None,
            end: None,
            has_ended: Arc::default(),
        }
    }

    /// How the peer names the connection; zeros until it said so.
    pub(super) fn remote(&self) -> Remote {
        match (&self.reply, self.is_active) {
            (Some(rep), true) => Remote {
                guid: rep.local_ca_guid(),
                comm_id: rep.local_comm_id(),
                qpn: rep.local_qpn(),
            },
            (None, true) => Remote::default(),
            (_, false) => {
                let req = &self.request;
                Remote {
                    guid: req.local_ca_guid(),
                    comm_id: req.local_comm_id(),
                    qpn: req.local_qpn(),
                }
            }
        }
    }

    pub(super) fn local_qpn(&self) -> u32 {
        if self.is_active {
            return self.request.local_qpn();
        }
        self.reply.as_ref().map_or(0, |rep| rep.local_qpn())
    }

    /// How long the last packets may be under way after the end.
    pub(super) fn time_wait(&self) -> Duration {
        time_of(self.request.primary_local_ack_timeout())
    }

    pub(super) fn mad(&self, message: Message) -> Mad {
        Mad { transaction_id: self.transaction_id, message }
    }

    pub(super) fn rtu(&self) -> Mad {
        let rtu = CmRtu::zeroed().with_local_comm_id(self.local_id);
        self.mad(Message::Rtu(rtu.with_remote_comm_id(self.remote().comm_id)))
    }

    pub(super) fn mra(&self, service_timeout: u32) -> Mad {
        self.mad(Message::Mra(
            CmMra::zeroed()
                .with_local_comm_id(self.local_id)
                .with_remote_comm_id(self.remote().comm_id)
                .with_message_mraed(ABOUT_REQ)
                .with_service_timeout(service_timeout),
        ))
    }

    /// A refusal; `ari` says what would do.
    pub(super) fn rej(&self, about: u32, reason: RejectReason, ari: &[u8], private: &[u8]) -> Mad {
        self.mad(rej((self.local_id, self.remote().comm_id), about, reason, ari, private))
    }

    pub(super) fn dreq(&self, private: &[u8]) -> Mad {
        let remote = self.remote();
        self.mad(Message::Dreq(
            CmDreq::zeroed()
                .with_local_comm_id(self.local_id)
                .with_remote_comm_id(remote.comm_id)
                .with_remote_qpn_eecn(remote.qpn)
                .with_private_data(filled(private)),
        ))
    }

    /// The address and port of the peer, for people.
    pub(super) fn peer(&self) -> SocketAddr {
        let port = match self.is_active {
            true => (self.request.service_id() & 0xffff) as u16,
            false => cma_header(&self.request).map_or(0, |header| header.port() as u16),
        };
        SocketAddr::new(self.ends.remote, port)
    }
}

/// The request for a connection with that number, from a device with that number.
pub(super) fn req(id: u32, request: &Request<'_>, config: &CmConfig, guid: u64) -> CmReq {
    let (ends, params) = (request.ends, &request.params);
    let timeout = config.response_timeout.into();
    CmReq::zeroed()
        .with_local_comm_id(id)
        .with_service_id(service_id(request.port))
        .with_local_ca_guid(guid)
        .with_local_qpn(request.qpn)
        .with_responder_resources(params.responder_resources.into())
        .with_initiator_depth(params.initiator_depth.into())
        .with_remote_cm_response_timeout(timeout)
        .with_starting_psn(request.psn)
        .with_local_cm_response_timeout(timeout)
        .with_retry_count(params.retry_count.into())
        .with_partition_key(DEFAULT_PKEY)
        .with_path_packet_payload_mtu(request.mtu)
        .with_rnr_retry_count(params.rnr_retry_count.into())
        .with_max_cm_retries(config.max_retries.into())
        .with_primary_local_port_lid(PERMISSIVE_LID)
        .with_primary_remote_port_lid(PERMISSIVE_LID)
        .with_primary_local_port_gid(Gid::from(ends.local).0)
        .with_primary_remote_port_gid(Gid::from(ends.remote).0)
        .with_primary_traffic_class(request.traffic_class.into())
        .with_primary_hop_limit(request.hop_limit.into())
        .with_primary_local_ack_timeout(params.ack_timeout.into())
        .with_private_data(filled(
            &[&header(ends, request.source_port).0, params.private_data].concat(),
        ))
}

/// The acceptance of a request, under a number of ours, from a device with that number.
pub(super) fn rep(id: u32, req: &CmReq, answer: &Answer<'_>, guid: u64) -> CmRep {
    let params = &answer.params;
    let smaller = |mine: u8, theirs: u32| u32::from(mine).min(theirs);
    CmRep::zeroed()
        .with_local_comm_id(id)
        .with_remote_comm_id(req.local_comm_id())
        .with_local_qpn(answer.qpn)
        .with_starting_psn(answer.psn)
        .with_responder_resources(smaller(params.responder_resources, req.initiator_depth()))
        .with_initiator_depth(smaller(params.initiator_depth, req.responder_resources()))
        .with_target_ack_delay(ACK_DELAY)
        .with_rnr_retry_count(params.rnr_retry_count.into())
        .with_local_ca_guid(guid)
        .with_private_data(filled(params.private_data))
}

/// A refusal between two numbers of connections.
pub(super) fn rej(
    (local, remote): (u32, u32),
    about: u32,
    reason: RejectReason,
    ari: &[u8],
    private: &[u8],
) -> Message {
    Message::Rej(
        CmRej::zeroed()
            .with_local_comm_id(local)
            .with_remote_comm_id(remote)
            .with_message_rejected(about)
            .with_rejected_info_length(ari.len().min(72) as u32)
            .with_reason(reason.0.into())
            .with_ari(filled(ari))
            .with_private_data(filled(private)),
    )
}

/// The answer to a DREQ about whatever.
pub(super) fn drep(dreq: &CmDreq) -> Message {
    let drep = CmDrep::zeroed().with_local_comm_id(dreq.remote_comm_id());
    Message::Drep(drep.with_remote_comm_id(dreq.local_comm_id()))
}

/// The header that `rdma_cm` wants to see in front of the private data.
pub(super) fn header(ends: Ends, source_port: u16) -> CmaHeader {
    let field = |ip| match ip {
        // Behind zeros, without the mark of a mapped address.
        IpAddr::V4(ip) => Ipv6Addr::from(u128::from(ip.to_bits())).octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    CmaHeader::zeroed()
        .with_ip_version(if ends.local.is_ipv4() { 4 } else { 6 })
        .with_port(source_port.into())
        .with_source(field(ends.local))
        .with_destination(field(ends.remote))
}

/// The header in front of private data; `None` if it is not one of `rdma_cm`'s.
pub(super) fn read_header(private_data: &[u8]) -> Option<CmaHeader> {
    let header = CmaHeader::read_from(private_data)?;
    (header.cma_version() == 0 && [4, 6].contains(&header.ip_version())).then_some(header)
}

/// The header of a request.
pub(super) fn cma_header(req: &CmReq) -> Option<CmaHeader> {
    read_header(&req.private_data())
}

/// What a caller's program says in its request: 56 bytes, filled up with zeros.
pub(super) fn caller_data(req: &CmReq) -> Vec<u8> {
    req.private_data()[CmaHeader::SIZE_BYTES..].to_vec()
}
