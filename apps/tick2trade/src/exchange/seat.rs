//! A port at which one member at a time is served, over smoltcp's TCP.

use std::net::SocketAddr;

use ferrocx_net::packet::Packet;
use ferrocx_net::packet::tcp::{ACK, SYN};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp;

use super::Account;
use crate::proto::ouch::Request;

/// Bytes of a connection that wait in each direction.
const SOCKET_BYTES: usize = 1 << 20;

/// How a seat's connection changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// It did not.
    None,
    /// It opened: the account is to be told, when it is ready.
    Taken,
    /// It ended.
    Left,
}

/// One member's connection, and its account.
pub(super) struct Seat {
    pub(super) account: Account,
    socket: SocketHandle,
    port: u16,
    /// Bytes that leave at a time.
    answer_bytes: usize,
    is_taken: bool,
    /// The member was told that the session is over.
    is_over: bool,
    /// Bytes for the member that its connection has not taken yet.
    to_member: Vec<u8>,
}

impl Seat {
    /// A seat at a port, which is not 0, that nobody has.
    pub(super) fn new(
        account: Account,
        port: u16,
        answer_bytes: usize,
        sockets: &mut SocketSet<'static>,
    ) -> Self {
        let buffer = || tcp::SocketBuffer::new(vec![0; SOCKET_BYTES]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        let socket = sockets.add(socket);
        let (is_taken, is_over, to_member) = (false, false, Vec::new());
        Self { account, socket, port, answer_bytes, is_taken, is_over, to_member }
    }

    /// Whether a member is connected.
    pub(super) const fn is_taken(&self) -> bool {
        self.is_taken
    }

    /// Tells the member that the session is over; its connection is closed behind that.
    pub(super) fn dismiss(&mut self) {
        self.account.end_session(&mut self.to_member);
        self.is_over = true;
    }

    /// Takes a member again, although the last one was told that its session is over.
    pub(super) const fn open_again(&mut self) {
        self.is_over = false;
    }

    /// Bytes that leave at a time, from now on.
    pub(super) const fn set_answer_bytes(&mut self, bytes: usize) {
        self.answer_bytes = bytes;
    }

    /// Resets the connection.
    pub(super) fn reset(&self, sockets: &mut SocketSet<'static>) {
        sockets.get_mut::<tcp::Socket<'_>>(self.socket).abort();
    }

    /// A member that connects anew, because it was killed or its cable pulled, takes the place of
    /// its old connection: says whether that was so.
    pub(super) fn make_room(
        &mut self,
        sockets: &mut SocketSet<'static>,
        packet: &Packet<'_>,
    ) -> Change {
        let (from, to) = (packet.source(), packet.destination());
        let is_first = packet.tcp().is_some_and(|segment| segment.has(SYN) && !segment.has(ACK));
        let socket = sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        let is_other = socket
            .remote_endpoint()
            .is_some_and(|end| SocketAddr::new(end.addr.into(), end.port) != from);
        if !is_first || !is_other || to.port() != self.port {
            return Change::None;
        }
        socket.abort();
        // The socket is closed: its first segment finds it listening.
        let _ = socket.listen(self.port);
        self.account.disconnected();
        self.to_member.clear();
        if std::mem::take(&mut self.is_taken) { Change::Left } else { Change::None }
    }

    /// When a connection is over, the next one is waited for.
    pub(super) fn listen(&mut self, sockets: &mut SocketSet<'static>) -> Change {
        let socket = sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        let was_taken = self.is_taken;
        self.is_taken = socket.may_recv() && socket.may_send();
        let change = match (was_taken, self.is_taken) {
            (false, true) => Change::Taken,
            (true, false) => {
                self.account.disconnected();
                self.to_member.clear();
                socket.close();
                Change::Left
            }
            _ => Change::None,
        };
        // Behind what closes it: the next segment may be of who comes next.
        if !socket.is_open() {
            // It is not open, so that it can listen.
            let _ = socket.listen(self.port);
        }
        change
    }

    /// Takes what the member sent; its requests go to `request`.
    pub(super) fn receive(
        &mut self,
        sockets: &mut SocketSet<'static>,
        now_ns: u64,
        mut request: impl FnMut(&Request<'_>),
    ) {
        let socket = sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        while self.is_taken && socket.can_recv() {
            let Self { account, to_member, .. } = self;
            let goes_on = socket.recv(|bytes| {
                (bytes.len(), account.receive(bytes, now_ns, to_member, &mut request))
            });
            if goes_on != Ok(true) {
                // Behind what it is told: why its login was refused.
                let _ = socket.send_slice(&self.to_member);
                self.to_member.clear();
                socket.close();
                break;
            }
        }
    }

    /// Sends what the member is to know.
    pub(super) fn send(&mut self, sockets: &mut SocketSet<'static>, now_ns: u64) {
        if !self.is_taken {
            return;
        }
        let goes_on = self.account.poll(now_ns, &mut self.to_member);
        let socket = sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        let len = self.to_member.len().min(self.answer_bytes);
        let taken = socket.send_slice(&self.to_member[..len]).unwrap_or(0);
        self.to_member.drain(..taken);
        if (!goes_on || self.is_over) && self.to_member.is_empty() {
            socket.close();
        }
    }
}
