//! [`Id`]: an id of the program's, and the events that its connection makes.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ferrocx_verbs_lite::Path;
use ferrocx_verbs_lite::cm::{
    ConnId, DatagramAnswer, DatagramQuestion, DatagramRequest, End, RejectReason, State,
};

use super::kernel::{
    event, filled, ib_uverbs_ah_attr, ib_uverbs_global_route, rdma_ucm_conn_param,
    rdma_ucm_event_resp, rdma_ucm_ud_param,
};
use super::port::{Asked, Family, Port, Request};
use super::{Event, Rail, TIME_WAIT, Table};
use crate::node::{Membership, Node, lock};

/// Numbers of ids and groups: as many as librdmacm has places for in its table, in every release.
const NUMBERS: u32 = 1 << 16;

/// What an id is.
#[derive(Debug)]
pub(super) enum Life {
    /// Neither end of anything yet.
    New,
    /// For connections, or for questions about datagrams, which two ids may share a port for.
    Listening {
        port: Arc<Mutex<Port>>,
        family: Family,
    },
    Conn(ConnId),
    /// The same for datagrams: services are found, and nothing is kept.
    Asking(DatagramQuestion),
    Asked(DatagramRequest),
    /// A question that was answered.
    Found,
}

/// What the program was told of a peer whose process has ended without a word.
#[derive(Debug)]
pub(super) enum Parting {
    /// Nothing: it is there, or has said goodbye.
    None,
    /// That the connection ended then.
    Since(Instant),
    /// That its numbers are free, too.
    Over,
}

impl Parting {
    /// Whether the numbers of the connection have just become free.
    fn is_over_now(&mut self) -> bool {
        let is_over = matches!(self, Self::Since(then) if then.elapsed() > TIME_WAIT);
        if is_over {
            *self = Self::Over;
        }
        is_over
    }
}

/// An id.
#[derive(Debug)]
pub(super) struct Id {
    /// The program's number of it; 0 until a request is accepted.
    pub(super) uid: u64,
    /// The descriptor of its channel.
    pub(super) channel: c_int,
    pub(super) space: u16,
    pub(super) is_datagram: bool,
    /// Its address, as far as the program or a peer has said.
    pub(super) source: Option<SocketAddr>,
    /// It is bound to a device, not only to a port; the number of the device.
    pub(super) has_device: bool,
    pub(super) rail: usize,
    /// The peer as the program calls it, and the node that this leads to.
    pub(super) peer: Option<SocketAddr>,
    pub(super) node: Option<IpAddr>,
    pub(super) is_routed: bool,
    pub(super) life: Life,
    /// It was asked for here.
    pub(super) is_active: bool,
    /// The state of its connection that events were made for.
    pub(super) told: State,
    pub(super) parting: Parting,
    /// Its address of IPv6 is not for IPv4, too.
    pub(super) is_one_family: bool,
    /// How long its queue pair waits for acknowledgements, where the program has said it.
    pub(super) ack_timeout: Option<u8>,
    /// Events that the program has taken.
    pub(super) reported: u32,
    /// Groups that it has joined.
    pub(super) groups: HashMap<u32, Joined>,
}

/// A group that an id has joined.
#[derive(Debug)]
pub(super) struct Joined {
    /// Events about it that the program has taken.
    pub(super) reported: u32,
    pub(super) _membership: Membership,
}

/// An event about an id, without what it says besides.
pub(super) fn about(number: u32, kind: u32) -> Event {
    let response = rdma_ucm_event_resp { id: number, event: kind, ..Default::default() };
    Event { about: number, makes: None, is_group: false, response }
}

impl Id {
    /// The device that it is bound to.
    pub(super) fn device(&self) -> Option<usize> {
        self.has_device.then_some(self.rail)
    }

    pub(super) fn new(uid: u64, channel: c_int, space: u16, is_datagram: bool) -> Self {
        Self {
            uid,
            channel,
            space,
            is_datagram,
            source: None,
            has_device: false,
            rail: 0,
            peer: None,
            node: None,
            is_routed: false,
            life: Life::New,
            is_active: false,
            told: State::Ended,
            parting: Parting::None,
            is_one_family: false,
            ack_timeout: None,
            reported: 0,
            groups: HashMap::new(),
        }
    }

    /// Makes events of what has become of the connection.
    pub(super) fn tell(&mut self, number: u32, node: &Node, mut push: impl FnMut(Event)) {
        if let Life::Asking(question) = &self.life
            && let Some(answer) = question.poll()
        {
            let path = question.path().ok().flatten();
            push(found(number, node, answer, path));
            self.life = Life::Found;
        }
        let Life::Conn(conn) = &self.life else { return };
        if !matches!(self.parting, Parting::None) {
            // Nobody answers our goodbye; what becomes of it is no news.
            if self.parting.is_over_now() {
                push(about(number, event::TIMEWAIT_EXIT));
            }
            return;
        }
        let (was, is) = (self.told, conn.state());
        if was == is {
            return;
        }
        self.told = is;
        match is {
            State::RepRcvd => push(response(number, conn)),
            State::Established if !self.is_active => push(about(number, event::ESTABLISHED)),
            State::TimeWait | State::Ended if was == State::TimeWait => {
                push(about(number, event::TIMEWAIT_EXIT));
            }
            State::TimeWait | State::Ended => {
                let events = over(number, (was, is), conn.end());
                events.into_iter().flatten().for_each(push);
            }
            _ => {}
        }
    }

    /// Ends the connection if the process of its peer is gone, by `is_gone`: where a kernel has the
    /// connection, it says goodbye for a process that was killed.
    pub(super) fn look_after(
        &mut self,
        number: u32,
        is_gone: impl FnOnce(IpAddr) -> bool,
        push: impl FnOnce(Event),
    ) {
        let Life::Conn(conn) = &self.life else { return };
        if self.told == State::Established
            && conn.state() == State::Established
            && self.node.is_some_and(is_gone)
        {
            // Nobody will answer that; the program need not wait until it is given up.
            conn.disconnect();
            self.parting = Parting::Since(Instant::now());
            push(about(number, event::DISCONNECTED));
        }
    }

    /// Counts an event about a group, too.
    pub(super) fn count_group(&mut self, group: u32) {
        if let Some(joined) = self.groups.get_mut(&group) {
            joined.reported += 1;
        }
    }
}

/// The event of a connection that has ended, or was not made.
fn ended(number: u32, end: Option<End>, was: State, was_made: bool) -> Option<Event> {
    match end {
        Some(End::Rejected { reason, private_data }) => {
            let mut rejected = about(number, event::REJECTED);
            let (private_data, private_data_len) = filled(&private_data);
            let said = rdma_ucm_conn_param { private_data, private_data_len, ..Default::default() };
            rejected.response.set_conn(&said);
            rejected.response.status = reason.0.into();
            Some(rejected)
        }
        _ if was_made => Some(about(number, event::DISCONNECTED)),
        Some(End::ByPeer(_)) => Some(about(number, event::DISCONNECTED)),
        // Nobody here said yes in time: the program still holds a request that is gone.
        _ if was == State::ReqRcvd => None,
        Some(End::NoAnswer { .. } | End::Unreachable(_) | End::GivenUp(_)) => {
            let mut unreachable = about(number, event::UNREACHABLE);
            unreachable.response.status = (-libc::ETIMEDOUT) as u32;
            Some(unreachable)
        }
        _ => None,
    }
}

/// What the program is told of a connection that is over: that it was made, if nobody has said so,
/// that it ended, and that its numbers are free.
fn over(number: u32, (was, is): (State, State), end: Option<End>) -> [Option<Event>; 3] {
    let was_made = matches!(was, State::Established | State::DreqSent);
    // The peer may have made and ended it since somebody last looked.
    let is_news =
        matches!(was, State::ReqRcvd | State::RepSent) && matches!(end, Some(End::ByPeer(_)));
    [
        is_news.then(|| about(number, event::ESTABLISHED)),
        ended(number, end, was, was_made),
        (was_made && is == State::Ended).then(|| about(number, event::TIMEWAIT_EXIT)),
    ]
}

/// A datagram service was found, or was not.
fn found(number: u32, node: &Node, answer: DatagramAnswer, path: Option<Path>) -> Event {
    let mut event = about(number, event::UNREACHABLE);
    let response = &mut event.response;
    match (answer, path) {
        (DatagramAnswer::Found { qpn, qkey, private_data }, Some(path)) => {
            response.event = event::ESTABLISHED;
            let (private_data, private_data_len) = filled(&private_data);
            response.param = rdma_ucm_ud_param {
                qp_num: qpn,
                qkey,
                ah_attr: ah_attr(node, &path),
                private_data,
                private_data_len,
                ..Default::default()
            };
        }
        (DatagramAnswer::Refused(status), _) => response.status = status,
        _ => response.status = (-libc::ETIMEDOUT) as u32,
    }
    event
}

/// The address of a path, as programs name it.
pub(super) fn ah_attr(node: &Node, path: &Path) -> ib_uverbs_ah_attr {
    let index = node.gids().iter().position(|entry| *entry == path.route.source);
    ib_uverbs_ah_attr {
        grh: ib_uverbs_global_route {
            dgid: path.route.destination.0,
            sgid_index: index.unwrap_or(0) as u8,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            ..Default::default()
        },
        is_global: 1,
        port_num: 1,
        ..Default::default()
    }
}

/// The peer has accepted.
fn response(number: u32, conn: &ConnId) -> Event {
    let mut event = about(number, event::CONNECT_RESPONSE);
    let (private_data, private_data_len) = filled(&conn.private_data());
    let (rtr, rts) = conn.attributes().ok().flatten().unzip();
    event.response.set_conn(&rdma_ucm_conn_param {
        qp_num: conn.remote_qpn().map_or(0, |qpn| qpn.0),
        private_data,
        private_data_len,
        responder_resources: rtr.map_or(0, |rtr| rtr.max_dest_rd_atomic),
        initiator_depth: rts.map_or(0, |rts| rts.max_rd_atomic),
        flow_control: 1,
        rnr_retry_count: conn.rnr_retry_count().unwrap_or(0),
        ..Default::default()
    });
    event
}

/// The id of a peer's request.
fn requested(listener: &Id, rail: usize, local: IpAddr, peer: SocketAddr, life: Life) -> Id {
    let port = listener.source.map_or(0, |source| source.port());
    Id {
        source: Some(SocketAddr::new(local, port)),
        has_device: true,
        rail,
        peer: Some(peer),
        node: Some(peer.ip()),
        is_routed: true,
        life,
        told: State::ReqRcvd,
        ..Id::new(0, listener.channel, listener.space, listener.is_datagram)
    }
}

impl Id {
    /// What a peer asks this listener for.
    fn take_request(&self) -> Option<Request> {
        let Life::Listening { port, family } = &self.life else { return None };
        let is_alone = Arc::strong_count(port) == 1;
        lock(port).take(*family, is_alone)
    }
}

impl Table {
    /// A number that no id and no group has; `None` when there is none.
    pub(super) fn new_number(&mut self) -> Option<u32> {
        // Peers take numbers, too, and ask again: those that are all gone are not searched for.
        if self.ids.len() >= NUMBERS as usize {
            return None;
        }
        let is_group = |number| self.ids.values().any(|id| id.groups.contains_key(&number));
        let number = (0..NUMBERS)
            .map(|step| (self.next_id + step) % NUMBERS)
            .find(|number| !self.ids.contains_key(number) && !is_group(*number))?;
        self.next_id = (number + 1) % NUMBERS;
        Some(number)
    }

    /// Takes what peers ask listeners for, for each the next that its program is to be told of: the
    /// others wait among those that its backlog has room for.
    pub(super) fn take_requests(&mut self, rails: &[Rail]) {
        let listens = |id: &Id| matches!(id.life, Life::Listening { .. });
        let listening: Vec<u32> =
            self.ids.iter().filter(|(_, id)| listens(id)).map(|(number, _)| *number).collect();
        for of in listening {
            if let Some(listener) = self.ids.get_mut(&of)
                && let Some(channel) = self.channels.get(&listener.channel)
                && !channel.has_request(of)
                && let Some(Request { asked, rail, peer, response }) = listener.take_request()
            {
                let life = match asked {
                    Asked::Connection(id) => Life::Conn(id),
                    Asked::QueuePair(request) => Life::Asked(request),
                };
                let id = requested(listener, rail, rails[rail].local(), peer, life);
                let Some(number) = self.new_number() else {
                    tracing::info!(%peer, "refused: {NUMBERS} ids and groups are there, all that \
                        there may be; one that is destroyed makes room");
                    // One that asks for a queue pair is told when the request is dropped.
                    if let Life::Conn(conn) = &id.life {
                        conn.reject(RejectReason::NO_RESOURCES, &[]);
                    }
                    continue;
                };
                let Some(channel) = self.channels.get_mut(&id.channel) else { continue };
                let response =
                    rdma_ucm_event_resp { id: number, event: event::CONNECT_REQUEST, ..response };
                channel.push(Event { about: of, makes: Some(number), is_group: false, response });
                self.ids.insert(number, id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kinds of events about a connection that was in a state when somebody last looked.
    fn kinds(was: State, is: State, end: End) -> Vec<u32> {
        let events = over(1, (was, is), Some(end));
        events.into_iter().flatten().map(|event| event.response.event).collect()
    }

    #[test]
    fn a_passive_end_hears_of_a_connection_before_it_hears_of_its_end() {
        let by_peer = || End::ByPeer(Box::default());
        let both = [event::ESTABLISHED, event::DISCONNECTED];
        for was in [State::ReqRcvd, State::RepSent] {
            assert_eq!(kinds(was, State::TimeWait, by_peer()), both, "{was:?}");
        }
        assert_eq!(kinds(State::Established, State::TimeWait, by_peer()), both[1..]);
        let whole = [event::DISCONNECTED, event::TIMEWAIT_EXIT];
        assert_eq!(kinds(State::Established, State::Ended, by_peer()), whole);
        // Nobody said yes: the program never had it.
        assert!(kinds(State::ReqRcvd, State::Ended, End::ByUs).is_empty());
    }
    #[test]
    fn the_numbers_of_a_peer_that_is_gone_are_free_after_a_second_and_once() {
        let mut parting = Parting::None;
        assert!(!parting.is_over_now(), "it is there");
        parting = Parting::Since(Instant::now());
        assert!(!parting.is_over_now(), "its packets may be on the way");
        parting = Parting::Since(Instant::now().checked_sub(TIME_WAIT * 2).unwrap());
        assert!(parting.is_over_now());
        assert!(!parting.is_over_now(), "that was told");
    }
    #[test]
    fn when_all_numbers_are_taken_there_is_none_and_the_search_ends() {
        let mut table = Table { next_id: 100, ..Table::default() };
        let id = |number| (number, Id::new(1, 0, 0x106, false));
        table.ids.extend((0..NUMBERS).map(id));
        assert_eq!(table.new_number(), None);
        table.ids.remove(&77);
        assert_eq!(table.new_number(), Some(77));
        assert_eq!(table.next_id, 78);
    }
}
