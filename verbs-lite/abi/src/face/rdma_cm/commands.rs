//! The commands, one function each. What they answer with goes to a place in the program.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ferrocx_verbs_lite::cm::{CmError, ConnParams, RejectReason, State};
use ferrocx_verbs_lite::{Gid, Path, Qpn, RtrAttr, RtsAttr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::id::{Id, Joined, Life, about, ah_attr};
use super::kernel::*;
use super::{Rail, Service, Table, places};
use crate::abi::{access, mask, qps, qpt};
use crate::face::Errno;
use crate::face::wait::{MOMENT, nap};
use crate::node::{Turn as _, lock};

/// Key of datagrams that programs agree on by port space. Source: `RDMA_UDP_QKEY` of rdma_cma.h.
const UDP_QKEY: u32 = 0x0123_4567;
/// Ports for programs that ask for any. Source: Linux, `ip_local_port_range`.
const FIRST_PORT: u16 = 32768;
const LAST_PORT: u16 = 60999;
/// Bytes of a request for the program, of an acceptance, of one of datagrams, of a refusal.
const REQUEST_BYTES: usize = 56;
const ANSWER_BYTES: usize = 196;
const FOUND_BYTES: usize = 136;
const REFUSAL_BYTES: usize = 148;
const QUESTION_BYTES: usize = 180;
/// Longest that a caller waits for a service of this machine before it is refused.
const SERVICE_WAIT: Duration = Duration::from_millis(500);
/// Longest that a caller waits for the MAC address of its peer: a neighbour is given up before.
const PEER_WAIT: Duration = Duration::from_secs(5);
/// The one partition, and the rate of a path: 100 Gbit/s.
const PKEY: u16 = 0xffff;
const RATE: u8 = 16;
/// Life time of packets on Ethernet, as a power of two of 4 us. Source: Linux `cma.c`.
const LIFE_TIME: u8 = 18;

impl From<CmError> for Errno {
    fn from(error: CmError) -> Self {
        tracing::info!(%error, "refused");
        match error {
            CmError::Verbs(error) => error.into(),
            CmError::PortInUse(_) => Self(libc::EADDRINUSE),
            _ => Self(libc::ENETUNREACH),
        }
    }
}

/// A command of a form.
fn read<T: FromBytes + KnownLayout + Immutable>(command: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(command).map(|(command, _)| command).map_err(|_| Errno::INVALID)
}

/// An answer, as much of it as the program has room for.
fn answer<T: IntoBytes + Immutable>(place: u64, room: u16, value: &T) -> Result<(), Errno> {
    if place == 0 {
        return Err(Errno(libc::EFAULT));
    }
    let bytes = value.as_bytes();
    let to: *mut u8 = std::ptr::with_exposed_provenance_mut(place as usize);
    let len = bytes.len().min(room.into());
    promised!(to.copy_from_nonoverlapping(bytes.as_ptr(), len));
    Ok(())
}

/// What the program says with a request or an answer, of so many bytes at most.
fn said(bytes: &[u8; MAX_PRIVATE], len: u8, most: usize) -> Result<&[u8], Errno> {
    bytes.get(..len.into()).filter(|said| said.len() <= most).ok_or(Errno::INVALID)
}

/// What both ends say when they connect, in verbs-lite's words.
fn params(rail: &Rail, conn: &rdma_ucm_conn_param) -> ConnParams<'static> {
    let most = rail.node.context.attr().max_qp_rd_atom.min(255) as u8;
    ConnParams {
        responder_resources: conn.responder_resources.min(most),
        initiator_depth: conn.initiator_depth.min(most),
        retry_count: conn.retry_count.min(7),
        rnr_retry_count: conn.rnr_retry_count.min(7),
        ..ConnParams::default()
    }
}

impl Rail {
    /// The node, or the group, that a peer's address leads to right now; this one, which refuses,
    /// if the service is not there.
    fn node_of(&self, peer: SocketAddr, space: u16) -> IpAddr {
        match peer.ip() {
            ip if ip.is_multicast() || !self.node.is_model() => ip.to_canonical(),
            _ => places::find(peer, space).unwrap_or_else(|| self.local()),
        }
    }

    /// The path to a node or a group.
    fn path(&self, to: IpAddr) -> Option<Path> {
        // Programs' first entry is the address that nodes reach each other by.
        let to = Gid::from(to);
        self.node.path(0, to).or_else(|| self.node.path(1, to))
    }
}

impl Service {
    /// Carries out what the program wrote to a channel.
    pub(super) fn command(&self, fd: c_int, bytes: &[u8]) -> Result<(), Errno> {
        let header: rdma_ucm_cmd_hdr = read(bytes)?;
        let (command, room) = (&bytes[size_of_val(&header)..], header.output);
        if command.len() < header.input.into() {
            return Err(Errno::INVALID);
        }
        tracing::trace!(command = header.cmd, fd, "rdma_cm");
        match header.cmd {
            cmd::CREATE_ID => self.create_id(fd, &read(command)?, room),
            cmd::DESTROY_ID => self.destroy_id(&read(command)?, room),
            cmd::BIND_IP => self.bind(&read(command)?),
            cmd::RESOLVE_IP => self.resolve(&read(command)?),
            cmd::RESOLVE_ROUTE => self.resolve_route(&read(command)?),
            cmd::QUERY_ROUTE => self.query_route(&read(command)?, room),
            cmd::CONNECT => self.connect(&read(command)?),
            cmd::LISTEN => self.listen(&read(command)?),
            cmd::ACCEPT => self.accept(&read(command)?),
            cmd::REJECT => self.reject(&read(command)?),
            cmd::DISCONNECT => self.disconnect(&read(command)?),
            cmd::INIT_QP_ATTR => self.init_qp_attr(&read(command)?, room),
            cmd::GET_EVENT => {
                let place = read::<rdma_ucm_get_event>(command)?.response;
                answer(place, room, &self.next_event(fd)?)
            }
            cmd::SET_OPTION => self.set_option(&read(command)?),
            // A peer's first message shows by itself that it is there.
            cmd::NOTIFY => self.with(read::<rdma_ucm_notify>(command)?.id, |_| Ok(())),
            cmd::JOIN_IP_MCAST => self.join(&read(command)?, room),
            cmd::LEAVE_MCAST => self.leave(&read(command)?, room),
            cmd::MIGRATE_ID => self.migrate(fd, &read(command)?, room),
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    /// Does something with an id.
    pub(super) fn with<T>(
        &self,
        number: u32,
        run: impl FnOnce(&mut Id) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        run(lock(&self.table).ids.get_mut(&number).ok_or(Errno(libc::ENOENT))?)
    }

    /// The device of an id.
    fn rail_of(&self, number: u32) -> Result<&Rail, Errno> {
        Ok(&self.rails[self.with(number, |id| Ok(id.rail))?])
    }

    /// Tells the program of an id what was done at once.
    fn push(&self, number: u32, kind: u32) -> Result<(), Errno> {
        let mut table = lock(&self.table);
        let Table { channels, ids, .. } = &mut *table;
        let id = ids.get(&number).ok_or(Errno(libc::ENOENT))?;
        channels.get_mut(&id.channel).ok_or(Errno(libc::EBADF))?.push(about(number, kind));
        Ok(())
    }

    fn create_id(&self, fd: c_int, new: &rdma_ucm_create_id, room: u16) -> Result<(), Errno> {
        let is_datagram = i32::from(new.qp_type) == qpt::UD;
        let mut table = lock(&self.table);
        let number = table.new_number().ok_or(Errno::NO_MEMORY)?;
        answer(new.response, room, &rdma_ucm_create_id_resp { id: number })?;
        table.ids.insert(number, Id::new(new.uid, fd, new.ps, is_datagram));
        Ok(())
    }

    fn destroy_id(&self, old: &rdma_ucm_destroy_id, room: u16) -> Result<(), Errno> {
        let mut table = lock(&self.table);
        let id = table.ids.remove(&old.id).ok_or(Errno(libc::ENOENT))?;
        let mut ended = Vec::new();
        if let Some(channel) = table.channels.get_mut(&id.channel) {
            // What the program was not told it need not know; requests are refused.
            let untold = channel.take(|event| event.about == old.id);
            let requests = untold.iter().filter_map(|event| event.makes);
            ended.extend(requests.filter_map(|number| table.ids.remove(&number)));
        }
        drop(table);
        let events_reported = id.reported;
        drop((id, ended));
        answer(old.response, room, &rdma_ucm_destroy_id_resp { events_reported })
    }

    /// A port that nobody here has, or the one that is asked for.
    pub(super) fn take_port(&self, wanted: u16) -> u16 {
        if wanted != 0 {
            return wanted;
        }
        let table = lock(&self.table);
        let is_taken = |port: u16| {
            let mut sources = table.ids.values().filter_map(|id| id.source);
            sources.any(|source| source.port() == port)
        };
        let start = FIRST_PORT + self.rails[0].node.context.device().random() as u16 % 8192;
        (start..=LAST_PORT).find(|port| !is_taken(*port)).unwrap_or(FIRST_PORT)
    }

    fn bind(&self, command: &rdma_ucm_bind_ip) -> Result<(), Errno> {
        let wanted = command.addr.get().ok_or(Errno(libc::EAFNOSUPPORT))?;
        let is_any = wanted.ip().is_unspecified();
        let own = self.rails.iter().position(|rail| rail.local() == wanted.ip());
        let any_model = || self.rails.iter().position(|rail| rail.node.is_model());
        let rail = own.or_else(|| any_model().filter(|_| is_any || places::is_of_machine(wanted)));
        if !is_any && rail.is_none() {
            return Err(Errno(libc::EADDRNOTAVAIL));
        }
        let port = self.take_port(wanted.port());
        self.with(command.id, |id| {
            if id.source.is_some() {
                return Err(Errno::INVALID);
            }
            (id.source, id.has_device) = (Some(SocketAddr::new(wanted.ip(), port)), !is_any);
            id.rail = rail.unwrap_or(0);
            Ok(())
        })
    }

    fn resolve(&self, command: &rdma_ucm_resolve_ip) -> Result<(), Errno> {
        let peer = command.dst_addr.get().ok_or(Errno(libc::EAFNOSUPPORT))?;
        let (space, bound) = self.with(command.id, |id| Ok((id.space, id.device())))?;
        let source = command.src_addr.get();
        let named = |rail: &Rail| source.is_some_and(|source| source.ip() == rail.local());
        let bound = bound.or_else(|| self.rails.iter().position(named));
        // Else the first device that has a way there.
        let leads = |index: &usize| {
            let rail = &self.rails[*index];
            let node = rail.node_of(peer, space);
            rail.path(node).map(|_| (*index, node))
        };
        let found = match bound {
            Some(index) => leads(&index),
            None => (0..self.rails.len()).find_map(|index| leads(&index)),
        };
        let (index, node) = found.ok_or(Errno(libc::ENETUNREACH))?;
        let port = self.take_port(source.map_or(0, |source| source.port()));
        let local = self.rails[index].local();
        self.with(command.id, |id| {
            let port = id.source.map_or(port, |source| source.port());
            id.source = Some(SocketAddr::new(local, port));
            (id.peer, id.node, id.has_device, id.rail) = (Some(peer), Some(node), true, index);
            Ok(())
        })?;
        self.push(command.id, event::ADDR_RESOLVED)
    }

    /// Waits a moment for a service of this machine. Programs call their peer when it has said that
    /// it will listen, perftest for one, and count on the time that resolving takes elsewhere.
    fn wait_for_service(&self, number: u32) -> Result<(), Errno> {
        let is_model = self.rail_of(number)?.node.is_model();
        let (peer, space) = self.with(number, |id| Ok((id.peer, id.space)))?;
        let start = Instant::now();
        while let Some(peer) = peer
            && is_model
            && !peer.ip().is_multicast()
            && places::find(peer, space).is_none()
            && start.elapsed() < SERVICE_WAIT
        {
            nap(MOMENT);
        }
        Ok(())
    }

    fn resolve_route(&self, command: &rdma_ucm_resolve_route) -> Result<(), Errno> {
        self.with(command.id, |id| {
            id.is_routed = true;
            id.node.map(drop).ok_or(Errno::INVALID)
        })?;
        self.push(command.id, event::ROUTE_RESOLVED)
    }

    fn query_route(&self, command: &rdma_ucm_query, room: u16) -> Result<(), Errno> {
        let own = &self.rail_of(command.id)?.node;
        let mtu = own.context.port_attr()?.active_mtu as u32;
        let scoped = |address| own.scoped(address);
        let route = self.with(command.id, |id| {
            let mut route = rdma_ucm_query_route_resp {
                src_addr: Address::of(id.source.map(scoped)),
                dst_addr: Address::of(id.peer.map(scoped)),
                ..Default::default()
            };
            if id.has_device {
                route.node_guid = own.context.attr().node_guid.to_be();
                route.port_num = 1;
                route.ibdev_index = id.rail as u32;
                route.ib_route[0].sgid = own.address.gid.0;
                route.ib_route[0].pkey = PKEY;
            }
            if let (Some(node), true) = (id.node, id.is_routed) {
                route.num_paths = 1;
                route.ib_route[0] = ib_user_path_rec {
                    dgid: Gid::from(node).0,
                    reversible: 1,
                    mtu,
                    hop_limit: 64,
                    numb_path: 1,
                    // Exactly.
                    mtu_selector: 2,
                    rate_selector: 2,
                    rate: RATE,
                    packet_life_time_selector: 2,
                    packet_life_time: LIFE_TIME,
                    ..route.ib_route[0]
                };
            } else if let Some(node) = id.node {
                route.ib_route[0].dgid = Gid::from(node).0;
            }
            Ok(route)
        })?;
        answer(command.response, room, &route)
    }

    fn connect(&self, command: &rdma_ucm_connect) -> Result<(), Errno> {
        let conn = &command.conn_param;
        self.wait_for_service(command.id)?;
        self.with(command.id, |id| {
            let (Some(peer), Life::New) = (id.peer, &id.life) else {
                return Err(Errno::INVALID);
            };
            // The service may have come since the address was asked for.
            let rail = &self.rails[id.rail];
            let node = rail.node_of(peer, id.space);
            id.node = Some(node);
            let to = SocketAddr::new(node, peer.port());
            let port = id.source.map(|source| source.port());
            if id.is_datagram {
                let private = said(&conn.private_data, conn.private_data_len, QUESTION_BYTES)?;
                let asked = rail.manager.ask_datagrams(to, port.unwrap_or(0), private)?;
                id.life = Life::Asking(asked);
                return Ok(());
            }
            let private_data = said(&conn.private_data, conn.private_data_len, REQUEST_BYTES)?;
            let params = ConnParams { private_data, ..params(rail, conn) };
            let asked = rail.manager.ask(Qpn(conn.qp_num & 0xff_ffff), to, port, &params)?;
            (id.life, id.is_active, id.told) = (Life::Conn(asked), true, State::ReqSent);
            Ok(())
        })?;
        self.turn();
        Ok(())
    }

    fn accept(&self, command: &rdma_ucm_accept) -> Result<(), Errno> {
        let conn = &command.conn_param;
        let private_data = said(&conn.private_data, conn.private_data_len, ANSWER_BYTES)?;
        self.with(command.id, |id| {
            let params = ConnParams { private_data, ..params(&self.rails[id.rail], conn) };
            if let Life::Asked(asked) = &id.life {
                if private_data.len() > FOUND_BYTES {
                    return Err(Errno::INVALID);
                }
                let qkey = if conn.qkey == 0 { UDP_QKEY } else { conn.qkey };
                asked.accept(Qpn(conn.qp_num & 0xff_ffff), qkey, private_data);
                id.uid = command.uid;
                return Ok(());
            }
            let Life::Conn(made) = &id.life else { return Err(Errno::INVALID) };
            if conn.valid == 0 {
                return if made.establish() { Ok(()) } else { Err(Errno::INVALID) };
            }
            if !made.accept(Qpn(conn.qp_num & 0xff_ffff), &params)? {
                return Err(Errno::INVALID);
            }
            // From here on the program is told of it. Source: Linux `ucma.c`, `ucma_accept`.
            id.uid = command.uid;
            Ok(())
        })
    }

    fn reject(&self, command: &rdma_ucm_reject) -> Result<(), Errno> {
        let private_data = said(&command.private_data, command.private_data_len, REFUSAL_BYTES)?;
        // What a program may say, and what it says without a reason. Source: Linux `ucma.c`,
        // `ucma_reject`. Of a datagram service there is but one refusal.
        let reason = match RejectReason(command.reason.into()) {
            RejectReason(0) => RejectReason::CONSUMER_DEFINED,
            reason @ (RejectReason::CONSUMER_DEFINED
            | RejectReason::VENDOR_OPTION_NOT_SUPPORTED) => reason,
            _ => return Err(Errno::INVALID),
        };
        self.with(command.id, |id| {
            match &id.life {
                Life::Conn(conn) => conn.reject(reason, private_data),
                Life::Asked(asked) => asked.reject(private_data),
                _ => return Err(Errno::INVALID),
            }
            Ok(())
        })
    }

    fn disconnect(&self, command: &rdma_ucm_disconnect) -> Result<(), Errno> {
        self.with(command.id, |id| {
            match &id.life {
                Life::Conn(conn) => conn.disconnect(),
                // Of datagrams there is nothing to end. Source: Linux `cma.c`, `rdma_disconnect`,
                // which passes over what `ib_send_cm_dreq` and `_drep` say.
                Life::Asking(_) | Life::Found | Life::Asked(_) => {}
                Life::New | Life::Listening { .. } => return Err(Errno::INVALID),
            }
            Ok(())
        })?;
        self.turn();
        Ok(())
    }

    /// What the queue pair of a connection is to be set to, once its peer's MAC address is known.
    fn attributes(&self, number: u32) -> Result<Option<(RtrAttr, RtsAttr)>, Errno> {
        let is_model = self.rail_of(number)?.node.is_model();
        let start = Instant::now();
        loop {
            let attributes = self.with(number, |id| match &id.life {
                Life::Conn(conn) => Ok(conn.attributes()?),
                _ => Err(Errno::INVALID),
            })?;
            // The model's peers are known at once.
            if attributes.is_some() || is_model || start.elapsed() > PEER_WAIT {
                return Ok(attributes);
            }
            self.turn();
            nap(MOMENT);
        }
    }

    fn init_qp_attr(&self, command: &rdma_ucm_init_qp_attr, room: u16) -> Result<(), Errno> {
        let to = command.qp_state as c_int;
        let wanted = match to {
            qps::RTR | qps::RTS => self.attributes(command.id)?,
            _ => None,
        };
        let attr = self.with(command.id, |id| match (to, &id.life) {
            (qps::INIT, life) => Ok(init_attr(id.is_datagram, matches!(life, Life::Conn(_)))),
            (qps::RTR | qps::RTS, Life::Conn(_)) => {
                let (rtr, rts) = wanted.ok_or(Errno::INVALID)?;
                Ok(if to == qps::RTS {
                    ib_uverbs_qp_attr {
                        qp_attr_mask: mask::STATE
                            | mask::SQ_PSN
                            | mask::TIMEOUT
                            | mask::RETRY_CNT
                            | mask::RNR_RETRY
                            | mask::MAX_QP_RD_ATOMIC,
                        sq_psn: rts.psn.0,
                        timeout: id.ack_timeout.unwrap_or(rts.timeout),
                        retry_cnt: rts.retry_count,
                        rnr_retry: rts.rnr_retry,
                        max_rd_atomic: rts.max_rd_atomic,
                        ..Default::default()
                    }
                } else {
                    ib_uverbs_qp_attr {
                        qp_attr_mask: mask::STATE
                            | mask::AV
                            | mask::PATH_MTU
                            | mask::DEST_QPN
                            | mask::RQ_PSN
                            | mask::MAX_DEST_RD_ATOMIC
                            | mask::MIN_RNR_TIMER,
                        path_mtu: rtr.mtu as u32,
                        rq_psn: rtr.psn.0,
                        dest_qp_num: rtr.remote_qpn.0,
                        ah_attr: ah_attr(&self.rails[id.rail].node, &rtr.path),
                        max_dest_rd_atomic: rtr.max_dest_rd_atomic,
                        ..Default::default()
                    }
                })
            }
            _ => Err(Errno::INVALID),
        })?;
        let attr = ib_uverbs_qp_attr {
            qp_state: command.qp_state,
            // The state that the step starts from is the queue pair's own.
            port_num: 1,
            ..attr
        };
        answer(command.response, room, &attr)
    }

    fn set_option(&self, command: &rdma_ucm_set_option) -> Result<(), Errno> {
        /// `RDMA_OPTION_ID`, whose options but the next two (type of service, address reuse) change
        /// nothing on wires of this machine.
        const ID: u32 = 0;
        /// `RDMA_OPTION_ID_AFONLY`: an int.
        const ONE_FAMILY: u32 = 2;
        /// `RDMA_OPTION_ID_ACK_TIMEOUT`: a byte, as queue pairs have it.
        const ACK_TIMEOUT: u32 = 3;
        if command.level != ID {
            return Err(Errno(libc::ENOSYS));
        }
        let mut ack_timeout = None;
        let mut is_one_family = None;
        match (command.optname, command.optlen) {
            (ACK_TIMEOUT, 1) => {
                let value: *const u8 = std::ptr::with_exposed_provenance(command.optval as usize);
                ack_timeout = Some(promised!(value.read()));
            }
            (ONE_FAMILY, 4) => {
                let value: *const c_int =
                    std::ptr::with_exposed_provenance(command.optval as usize);
                is_one_family = Some(promised!(value.read_unaligned()) != 0);
            }
            (ACK_TIMEOUT | ONE_FAMILY, _) => return Err(Errno::INVALID),
            _ => {}
        }
        if ack_timeout.is_some_and(|timeout| timeout > 31) {
            return Err(Errno::INVALID);
        }
        self.with(command.id, |id| {
            id.ack_timeout = ack_timeout.or(id.ack_timeout);
            id.is_one_family = is_one_family.unwrap_or(id.is_one_family);
            Ok(())
        })
    }

    /// Joins a group; the program attaches its queue pair by itself.
    fn join(&self, command: &rdma_ucm_join_ip_mcast, room: u16) -> Result<(), Errno> {
        let group = command.addr.get().ok_or(Errno(libc::EAFNOSUPPORT))?.ip();
        let rail = self.rail_of(command.id)?;
        let path = rail.path(group).filter(|_| group.is_multicast()).ok_or(Errno::INVALID)?;
        let membership = rail.node.join(group)?;
        let mut table = lock(&self.table);
        let number = table.new_number().ok_or(Errno::NO_MEMORY)?;
        let Table { channels, ids, .. } = &mut *table;
        let id = ids.get_mut(&command.id).ok_or(Errno(libc::ENOENT))?;
        let channel = channels.get_mut(&id.channel).ok_or(Errno(libc::EBADF))?;
        answer(command.response, room, &rdma_ucm_create_id_resp { id: number })?;
        id.groups.insert(number, Joined { reported: 0, _membership: membership });
        let mut joined = about(command.id, event::MULTICAST_JOIN);
        (joined.is_group, joined.response.id) = (true, number);
        joined.response.uid = command.uid;
        joined.response.param = rdma_ucm_ud_param {
            qp_num: Qpn::MULTICAST.0,
            qkey: UDP_QKEY,
            ah_attr: ah_attr(&rail.node, &path),
            ..Default::default()
        };
        channel.push(joined);
        Ok(())
    }

    fn leave(&self, command: &rdma_ucm_destroy_id, room: u16) -> Result<(), Errno> {
        let mut table = lock(&self.table);
        let Table { channels, ids, .. } = &mut *table;
        let left = ids
            .values_mut()
            .find_map(|id| id.groups.remove(&command.id).map(|joined| (id.channel, joined)));
        let (channel, joined) = left.ok_or(Errno(libc::ENOENT))?;
        if let Some(channel) = channels.get_mut(&channel) {
            channel.take(|event| event.is_group && event.response.id == command.id);
        }
        drop(table);
        let events_reported = joined.reported;
        answer(command.response, room, &rdma_ucm_destroy_id_resp { events_reported })
    }

    /// Moves an id and what it has to tell to the channel that is written to.
    fn migrate(&self, to: c_int, command: &rdma_ucm_migrate_id, room: u16) -> Result<(), Errno> {
        let mut table = lock(&self.table);
        let Table { channels, ids, .. } = &mut *table;
        let id = ids.get_mut(&command.id).ok_or(Errno(libc::ENOENT))?;
        let from = channels.get_mut(&id.channel).ok_or(Errno(libc::EBADF))?;
        let events = from.take(|event| event.about == command.id);
        id.channel = to;
        let requests: Vec<u32> = events.iter().filter_map(|event| event.makes).collect();
        let channel = channels.get_mut(&to).ok_or(Errno(libc::EBADF))?;
        events.into_iter().for_each(|event| channel.push(event));
        let events_reported = id.reported;
        for number in requests {
            if let Some(id) = ids.get_mut(&number) {
                id.channel = to;
            }
        }
        drop(table);
        answer(command.response, room, &rdma_ucm_destroy_id_resp { events_reported })
    }
}

/// What a queue pair is set to first; its peer may write and read once there is one.
fn init_attr(is_datagram: bool, has_peer: bool) -> ib_uverbs_qp_attr {
    let attr = ib_uverbs_qp_attr {
        qp_attr_mask: mask::STATE | mask::PKEY_INDEX | mask::PORT,
        ..Default::default()
    };
    if is_datagram {
        return ib_uverbs_qp_attr {
            qp_attr_mask: attr.qp_attr_mask | mask::QKEY,
            qkey: UDP_QKEY,
            ..attr
        };
    }
    let rights = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    ib_uverbs_qp_attr {
        qp_attr_mask: attr.qp_attr_mask | mask::ACCESS_FLAGS,
        qp_access_flags: if has_peer { rights } else { 0 },
        ..attr
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn an_id_of_datagrams_has_nothing_to_disconnect() {
        /// `RDMA_PS_UDP`.
        const UDP: u16 = 0x111;
        let service = Service { rails: Vec::new(), table: Mutex::default() };
        let disconnect = |life| {
            let id = Id { life, ..Id::new(1, 0, UDP, true) };
            lock(&service.table).ids.insert(1, id);
            service.disconnect(&rdma_ucm_disconnect { id: 1 })
        };
        assert_eq!(disconnect(Life::Found), Ok(()));
        assert_eq!(disconnect(Life::New), Err(Errno::INVALID), "it has asked for nothing");
    }
}
