//! Listeners: a port is one id's, or two's that are for one family of addresses each.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use ferrocx_verbs_lite::cm::{CmListener, ConnRequest, DatagramListener, DatagramRequest};

use super::id::{Id, Life};
use super::kernel::{filled, rdma_ucm_conn_param, rdma_ucm_event_resp, rdma_ucm_listen};
use super::places::Place;
use super::{Service, places};
use crate::face::Errno;
use crate::node::lock;

/// Requests that wait for a listener. Source: Linux `ucma.c`, `max_backlog`.
const MAX_BACKLOG: u32 = 1024;

/// What a peer asks for: what its id is here, the peer, and what the listener is told.
pub(super) type Request = (Life, SocketAddr, rdma_ucm_event_resp);

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
    fn of(ip: IpAddr, is_one_family: bool) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) if is_one_family => Self::V6,
            IpAddr::V6(_) => Self::Both,
        }
    }

    /// Whether listeners for these may have one port. Source: Linux `cma.c`, `cma_check_port`.
    fn is_apart_from(self, other: Self) -> bool {
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
enum Source {
    Connections(CmListener),
    Datagrams(DatagramListener),
}

/// A port that somebody listens on.
#[derive(Debug)]
pub(super) struct Port {
    number: u16,
    space: u16,
    source: Source,
    /// Requests for the other one of two listeners.
    waiting: VecDeque<Request>,
    _place: Option<Place>,
}

impl Port {
    /// The next request for a listener; whatever comes if nobody else has the port.
    pub(super) fn take(&mut self, family: Family, is_alone: bool) -> Option<Request> {
        let source = &mut self.source;
        take(
            &mut self.waiting,
            |ip| is_alone || family.has(ip),
            || match source {
                Source::Connections(listener) => listener.poll().map(connection),
                Source::Datagrams(listener) => listener.poll().map(question),
            },
        )
    }
}

/// The first request of a peer that is wanted, among those that wait and those that come; others
/// wait, as many as a backlog has.
fn take(
    waiting: &mut VecDeque<Request>,
    is_wanted: impl Fn(IpAddr) -> bool,
    mut poll: impl FnMut() -> Option<Request>,
) -> Option<Request> {
    if let Some(place) = waiting.iter().position(|(_, peer, _)| is_wanted(peer.ip())) {
        return waiting.remove(place);
    }
    while waiting.len() < MAX_BACKLOG as usize {
        let request = poll()?;
        if is_wanted(request.1.ip()) {
            return Some(request);
        }
        waiting.push_back(request);
    }
    None
}

/// A peer asks for a connection.
fn connection(request: ConnRequest) -> Request {
    let mut response = rdma_ucm_event_resp::default();
    let (private_data, private_data_len) = filled(&request.private_data());
    let (retry_count, rnr_retry_count) = request.retry_counts();
    response.set_conn(&rdma_ucm_conn_param {
        qp_num: request.remote_qpn().0,
        private_data,
        private_data_len,
        // What the peer starts is served here, and the other way round.
        responder_resources: request.initiator_depth(),
        initiator_depth: request.responder_resources(),
        flow_control: 1,
        retry_count,
        rnr_retry_count,
        ..Default::default()
    });
    let peer = request.peer();
    (Life::Conn(request.into_id()), peer, response)
}

/// A peer asks for a queue pair, likewise.
fn question(request: DatagramRequest) -> Request {
    let mut response = rdma_ucm_event_resp::default();
    (response.param.private_data, response.param.private_data_len) =
        filled(&request.private_data());
    let peer = request.peer();
    (Life::Asked(request), peer, response)
}

impl Id {
    /// The port that it listens on, and for whom.
    fn listens_on(&self) -> Option<(&Arc<Mutex<Port>>, Family)> {
        match &self.life {
            Life::Listening { port, family } => Some((port, *family)),
            _ => None,
        }
    }
}

impl Service {
    pub(super) fn listen(&self, command: &rdma_ucm_listen) -> Result<(), Errno> {
        let source = self.with(command.id, |id| Ok(id.source))?;
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let source = source.unwrap_or(any);
        let number = self.take_port(source.port());
        let backlog = match command.backlog {
            0 => MAX_BACKLOG,
            backlog => backlog.min(MAX_BACKLOG),
        };
        let mut table = lock(&self.table);
        let id = table.ids.get(&command.id).ok_or(Errno(libc::ENOENT))?;
        let Life::New = id.life else { return Err(Errno::INVALID) };
        let family = Family::of(source.ip(), id.is_one_family);
        let mut shared = None;
        for (port, others) in table.ids.values().filter_map(Id::listens_on) {
            let has_port = lock(port);
            if (has_port.number, has_port.space) == (number, id.space) {
                if !family.is_apart_from(others) {
                    return Err(Errno(libc::EADDRINUSE));
                }
                shared = Some(Arc::clone(port));
            }
        }
        let port = match shared {
            Some(port) => port,
            None => Arc::new(Mutex::new(self.open_port(number, id, backlog as usize)?)),
        };
        let id = table.ids.get_mut(&command.id).ok_or(Errno(libc::ENOENT))?;
        id.life = Life::Listening { port, family };
        id.source = Some(SocketAddr::new(source.ip(), number));
        tracing::info!(port = number, "listening");
        Ok(())
    }

    fn open_port(&self, number: u16, id: &Id, backlog: usize) -> Result<Port, Errno> {
        let source = match id.is_datagram {
            true => Source::Datagrams(self.manager.listen_datagrams(number)?),
            false => Source::Connections(self.manager.listen_with(number, backlog)?),
        };
        let is_found = self.node.is_model();
        let place = is_found.then(|| places::announce(id.space, number, self.local())).flatten();
        Ok(Port { number, space: id.space, source, waiting: VecDeque::new(), _place: place })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::abi::qpt;
    use crate::face::rdma_cm::kernel::{Address, cmd, rdma_ucm_bind_ip, rdma_ucm_set_option};
    use zerocopy::IntoBytes as _;

    #[test]
    fn requests_of_the_other_family_wait_for_their_listener() {
        let request =
            |ip: IpAddr| (Life::Found, SocketAddr::new(ip, 1), rdma_ucm_event_resp::default());
        let (v4, v6) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from(Ipv6Addr::LOCALHOST));
        let mapped = IpAddr::from(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        let mut coming = VecDeque::from([v6, v4, v6, mapped].map(request));
        let mut waiting = VecDeque::new();
        let mut next = |family: Family| {
            let taken = take(&mut waiting, |ip| family.has(ip), || coming.pop_front());
            taken.map(|(_, peer, _)| peer.ip())
        };
        assert_eq!(next(Family::V4), Some(v4));
        assert_eq!(next(Family::V6), Some(v6));
        assert_eq!(next(Family::V4), Some(mapped));
        assert_eq!(next(Family::V4), None);
        assert_eq!(next(Family::Both), Some(v6), "it waited");
        assert_eq!(next(Family::Both), None);
    }

    #[test]
    fn no_more_requests_wait_than_a_backlog_has() {
        let peer = SocketAddr::from(([192, 0, 2, 1], 1));
        let mut waiting = VecDeque::new();
        let mut polls = 0;
        let mut poll = || {
            polls += 1;
            Some((Life::Found, peer, rdma_ucm_event_resp::default()))
        };
        assert!(take(&mut waiting, |_| false, &mut poll).is_none());
        assert!(take(&mut waiting, |_| false, &mut poll).is_none());
        assert_eq!((polls, waiting.len()), (1024, 1024));
    }

    /// A new id that listens at an address of any kind, by the commands that librdmacm writes.
    fn listener(
        service: &Service,
        number: u32,
        ip: IpAddr,
        one_family: Option<u32>,
    ) -> Result<(), Errno> {
        const TCP: u16 = 0x106;
        let id = Id::new(0, 0, TCP, i32::from(qpt::RC as u8) == qpt::UD);
        lock(&service.table).ids.insert(number, id);
        let command = |number: u32, command: &[u8]| {
            let header = super::super::kernel::rdma_ucm_cmd_hdr {
                cmd: number,
                input: command.len() as u16,
                output: 0,
            };
            service.command(0, &[header.as_bytes(), command].concat())
        };
        if let Some(value) = &one_family {
            let option = rdma_ucm_set_option {
                optval: (&raw const *value).expose_provenance() as u64,
                id: number,
                level: 0,
                optname: 2,
                optlen: 4,
            };
            command(cmd::SET_OPTION, option.as_bytes())?;
        }
        let addr = Address::of(Some(SocketAddr::new(ip, 17_219)));
        let bind = rdma_ucm_bind_ip { response: 0, addr, id: number };
        command(cmd::BIND_IP, bind.as_bytes())?;
        command(cmd::LISTEN, rdma_ucm_listen { id: number, backlog: 0 }.as_bytes())
    }

    #[test]
    fn a_port_has_a_listener_for_each_family() {
        let service = Service::open().unwrap();
        let (v4, v6) = (IpAddr::from([0; 4]), IpAddr::from([0_u16; 8]));
        let in_use = |result: Result<(), Errno>| result.unwrap_err().0 == libc::EADDRINUSE;
        listener(&service, 1, v4, None).unwrap();
        assert!(in_use(listener(&service, 2, v4, None)), "the same once more");
        assert!(in_use(listener(&service, 2, v6, None)), "it would be for both");
        assert!(in_use(listener(&service, 2, v6, Some(0))), "it says so");
        listener(&service, 3, v6, Some(1)).unwrap();
        assert!(in_use(listener(&service, 4, v6, Some(1))), "there is one");
        // The port stays as long as one of the two does.
        lock(&service.table).ids.remove(&1);
        assert!(in_use(listener(&service, 5, v6, Some(1))));
        listener(&service, 6, v4, Some(1)).unwrap();
        lock(&service.table).ids.clear();
        listener(&service, 7, v6, None).unwrap();
        assert!(in_use(listener(&service, 8, v4, None)), "one for both is there");
    }
}
