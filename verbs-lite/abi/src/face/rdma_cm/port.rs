//! [`Port`]: what peers ask for at a port, which is one listener's, or two's that are for one
//! family of addresses each.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use ferrocx_verbs_lite::cm::{CmListener, ConnId, ConnRequest, DatagramListener, DatagramRequest};

use super::kernel::{filled, rdma_ucm_conn_param, rdma_ucm_event_resp};
use super::places::Place;

/// Requests that wait for a listener. Source: Linux `ucma.c`, `max_backlog`.
pub(super) const MAX_BACKLOG: u32 = 1024;

/// What a peer asks for.
#[derive(Debug)]
pub(super) enum Asked {
    Connection(ConnId),
    QueuePair(DatagramRequest),
}

/// What a peer asks a device for, and what the listener is told.
#[derive(Debug)]
pub(super) struct Request<A = Asked> {
    pub(super) asked: A,
    pub(super) rail: usize,
    pub(super) peer: SocketAddr,
    pub(super) response: rdma_ucm_event_resp,
}

/// The peers that a listener is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
    Both,
}

impl Family {
    /// Of a listener's address. One of IPv6 is for both families until the program says otherwise.
    /// Source: Linux `cma.c`, `rdma_bind_addr`.
    pub(super) fn of(ip: IpAddr, is_one_family: bool) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) if is_one_family => Self::V6,
            IpAddr::V6(_) => Self::Both,
        }
    }

    /// Whether listeners for these may have one port. Source: Linux `cma.c`, `cma_check_port`.
    pub(super) fn is_apart_from(self, other: Self) -> bool {
        self != other && self != Self::Both && other != Self::Both
    }

    fn has(self, ip: IpAddr) -> bool {
        match self {
            Self::V4 => ip.to_canonical().is_ipv4(),
            Self::V6 => ip.to_canonical().is_ipv6(),
            Self::Both => true,
        }
    }
}

/// Where requests come from.
#[derive(Debug)]
pub(super) enum Source {
    Connections(CmListener),
    Datagrams(DatagramListener),
}

impl Source {
    /// The next request, at the device of a number.
    fn poll(&mut self, rail: usize) -> Option<Request> {
        match self {
            Self::Connections(listener) => listener.poll().map(|request| connection(rail, request)),
            Self::Datagrams(listener) => listener.poll().map(|request| question(rail, request)),
        }
    }
}

/// A port that somebody listens on.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) number: u16,
    pub(super) space: u16,
    /// By the numbers of their devices.
    sources: Vec<(usize, Source)>,
    /// Requests for the other one of two listeners.
    waiting: VecDeque<Request>,
    _places: Vec<Place>,
}

impl Port {
    pub(super) const fn new(
        number: u16,
        space: u16,
        sources: Vec<(usize, Source)>,
        places: Vec<Place>,
    ) -> Self {
        Self { number, space, sources, waiting: VecDeque::new(), _places: places }
    }

    /// The devices that it is a port of.
    pub(super) fn rails(&self) -> impl Iterator<Item = usize> {
        self.sources.iter().map(|(rail, _)| *rail)
    }

    /// The next request for a listener; whatever comes if nobody else has the port.
    pub(super) fn take(&mut self, family: Family, is_alone: bool) -> Option<Request> {
        let sources = &mut self.sources;
        take(
            &mut self.waiting,
            |ip| is_alone || family.has(ip),
            || sources.iter_mut().find_map(|(rail, source)| source.poll(*rail)),
        )
    }
}

/// The first request of a peer that is wanted, among those that wait and those that come. Others
/// wait, as many as a backlog has, and then the oldest is refused: they are all for one listener,
/// which does not take them, and the other one's come behind them.
fn take<A>(
    waiting: &mut VecDeque<Request<A>>,
    is_wanted: impl Fn(IpAddr) -> bool,
    mut poll: impl FnMut() -> Option<Request<A>>,
) -> Option<Request<A>> {
    if let Some(place) = waiting.iter().position(|request| is_wanted(request.peer.ip())) {
        return waiting.remove(place);
    }
    for _ in 0..MAX_BACKLOG {
        let request = poll()?;
        if is_wanted(request.peer.ip()) {
            return Some(request);
        }
        if waiting.len() >= MAX_BACKLOG as usize {
            waiting.pop_front();
        }
        waiting.push_back(request);
    }
    None
}

/// A peer asks for a connection.
fn connection(rail: usize, request: ConnRequest) -> Request {
    let mut response = rdma_ucm_event_resp::default();
    let (private_data, private_data_len) = filled(&request.private_data());
    response.set_conn(&rdma_ucm_conn_param {
        qp_num: request.remote_qpn().0,
        private_data,
        private_data_len,
        // What the peer starts is served here, and the other way round.
        responder_resources: request.initiator_depth(),
        initiator_depth: request.responder_resources(),
        flow_control: 1,
        retry_count: request.retry_count(),
        rnr_retry_count: request.rnr_retry_count(),
        ..Default::default()
    });
    let peer = request.peer();
    Request { asked: Asked::Connection(request.into_id()), rail, peer, response }
}

/// A peer asks for a queue pair, likewise.
fn question(rail: usize, request: DatagramRequest) -> Request {
    let mut response = rdma_ucm_event_resp::default();
    (response.param.private_data, response.param.private_data_len) =
        filled(&request.private_data());
    let peer = request.peer();
    Request { asked: Asked::QueuePair(request), rail, peer, response }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn request(peer: SocketAddr) -> Request<()> {
        Request { asked: (), rail: 0, peer, response: rdma_ucm_event_resp::default() }
    }

    #[test]
    fn requests_of_the_other_family_wait_for_their_listener() {
        let request = |ip: IpAddr| request(SocketAddr::new(ip, 1));
        let (v4, v6) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from(Ipv6Addr::LOCALHOST));
        let mapped = IpAddr::from(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        let mut coming = VecDeque::from([v6, v4, v6, mapped].map(request));
        let mut waiting = VecDeque::new();
        let mut next = |family: Family| {
            let taken = take(&mut waiting, |ip| family.has(ip), || coming.pop_front());
            taken.map(|request| request.peer.ip())
        };
        assert_eq!(next(Family::V4), Some(v4));
        assert_eq!(next(Family::V6), Some(v6));
        assert_eq!(next(Family::V4), Some(mapped));
        assert_eq!(next(Family::V4), None);
        assert_eq!(next(Family::Both), Some(v6), "it waited");
        assert_eq!(next(Family::Both), None);
    }

    #[test]
    fn no_more_requests_wait_than_a_backlog_has_and_they_stop_no_other_listener() {
        let (v4, v6) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from(Ipv6Addr::LOCALHOST));
        let mut waiting = VecDeque::new();
        let mut polls = 0;
        let mut poll = || {
            polls += 1;
            let ip = if polls < 3000 { v6 } else { v4 };
            Some(request(SocketAddr::new(ip, polls)))
        };
        let mut next = || take(&mut waiting, |ip| Family::V4.has(ip), &mut poll);
        assert!(next().is_none() && next().is_none(), "so many for each call");
        assert_eq!(next().map(|request| request.peer.port()), Some(3000));
        assert_eq!(waiting.len(), 1024);
        assert_eq!(waiting.front().map(|request| request.peer.port()), Some(2999 - 1023));
    }
}
