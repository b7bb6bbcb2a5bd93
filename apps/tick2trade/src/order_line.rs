//! The way that orders leave by: a TCP connection on a send queue, with the next order's frame
//! ready.
//!
//! [`OrderLine`] keeps a frame with all headers, of which an order changes its numbers and its
//! payload: it is copied into the work request, and one doorbell sends it. Everything else, cancels
//! and heartbeats and what has to be sent again, goes as [`tcp::Client`] builds it.
//!
//! # Limits
//! IPv4 without VLAN tags has the short way; other orders go by the long one.

use ferrocx::{Field, FrameError, PrebuiltFrame, TxQueue};
use ferrocx_net::packet::{Headers, Packet, Transport, tcp as flags};

use crate::latency::now_ns;
use crate::orders::ENTER_LEN;
use crate::strategy::Outbox;
use crate::tcp;
use crate::timed::SendTimes;

/// Bytes in front of an order: Ethernet, IPv4 and TCP.
const HEADERS: usize = 14 + 20 + 20;
/// Bytes of an order's frame.
const FRAME: usize = HEADERS + ENTER_LEN;

/// What changes from order to order.
#[derive(Debug, Clone, Copy)]
struct Fields {
    sequence: Field<4>,
    acknowledgment: Field<4>,
    parts: [Field<16>; 3],
    rest: Field<2>,
}

/// An order's frame, ready but for its numbers and its payload.
#[derive(Debug)]
struct Ready {
    frame: PrebuiltFrame<FRAME>,
    fields: Fields,
}

impl Ready {
    /// `None` if the connection's headers have another length.
    fn new(config: &tcp::Config) -> Option<Self> {
        let headers = Headers {
            transport: Transport::Tcp {
                sequence: 0,
                acknowledgment: 0,
                flags: flags::ACK | flags::PSH,
                window: config.window,
                max_segment: None,
            },
            ..config.headers()
        };
        let mut bytes = [0; FRAME];
        headers.write(&mut bytes).ok().filter(|()| headers.len_bytes() == HEADERS)?;
        let frame = PrebuiltFrame::new(&bytes);
        let fields = Self::fields(&frame).ok()?;
        Some(Self { frame, fields })
    }

    fn fields(frame: &PrebuiltFrame<FRAME>) -> Result<Fields, FrameError> {
        const { assert!(ENTER_LEN == 3 * 16 + 2, "an order is three fields and a rest") };
        let tcp = HEADERS - 20;
        let part = |index: usize| frame.field(HEADERS + 16 * index);
        Ok(Fields {
            sequence: frame.field(tcp + 4)?,
            acknowledgment: frame.field(tcp + 8)?,
            parts: [part(0)?, part(1)?, part(2)?],
            rest: frame.field(HEADERS + 48)?,
        })
    }

    #[inline]
    fn set(&mut self, template: tcp::Template, order: &[u8; ENTER_LEN]) {
        let Fields { sequence, acknowledgment, parts, rest } = self.fields;
        self.frame.set(sequence, template.sequence.to_be_bytes());
        self.frame.set(acknowledgment, template.acknowledgment.to_be_bytes());
        let (chunks, tail) = order.as_chunks();
        for (field, chunk) in parts.into_iter().zip(chunks) {
            self.frame.set(field, *chunk);
        }
        if let Some(tail) = tail.first_chunk() {
            self.frame.set(rest, *tail);
        }
    }
}

/// A connection for orders, on a send queue of its own.
#[derive(Debug)]
pub struct OrderLine {
    tcp: tcp::Client,
    tx: TxQueue,
    ready: Option<Ready>,
    is_open: bool,
    is_timed: bool,
    now_ns: u64,
    times: SendTimes,
    orders: u64,
}

impl OrderLine {
    /// Starts a connection.
    ///
    /// # Errors
    /// A [`tcp::ConfigError`] for a value out of its range.
    pub fn connect(
        config: tcp::Config,
        initial: tcp::Seq,
        mut tx: TxQueue,
        now_ns: u64,
    ) -> Result<Self, tcp::ConfigError> {
        let ready = Ready::new(&config);
        let tcp = tcp::Client::connect(config, initial, now_ns, |frame| transmit(&mut tx, frame))?;
        let times = SendTimes::default();
        Ok(Self { tcp, tx, ready, is_open: false, is_timed: false, now_ns, times, orders: 0 })
    }

    /// Ends this connection, if it has not ended, and starts another on the same queue.
    ///
    /// # Errors
    /// A [`tcp::ConfigError`]; the old connection stays as it is.
    pub fn reconnect(
        &mut self,
        config: tcp::Config,
        initial: tcp::Seq,
        now_ns: u64,
    ) -> Result<(), tcp::ConfigError> {
        let (ready, tx) = (Ready::new(&config), &mut self.tx);
        let next = tcp::Client::connect(config, initial, now_ns, |frame| transmit(tx, frame))?;
        self.tcp.abort(|frame| transmit(tx, frame));
        (self.tcp, self.ready, self.is_open) = (next, ready, false);
        Ok(())
    }

    /// Lets orders pass, or none. A line that was connected lets none pass, until the day's answers
    /// are known.
    pub const fn open(&mut self, is_open: bool) {
        self.is_open = is_open;
    }

    /// Whether orders pass.
    pub const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Notes when orders are sent: [`OrderLine::take_times`].
    pub const fn set_timed(&mut self, is_timed: bool) {
        self.is_timed = is_timed;
    }

    /// When the last order was sent, once.
    pub fn take_times(&mut self) -> Option<SendTimes> {
        (self.times.rung_ns != 0).then(|| std::mem::take(&mut self.times))
    }

    /// The time, for what is sent from now on.
    #[inline]
    pub const fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Takes a frame of the connection; bytes that are next go to `deliver`.
    pub fn receive(&mut self, packet: &Packet<'_>, deliver: impl FnMut(&[u8])) {
        let Self { tcp, tx, now_ns, .. } = self;
        tcp.receive(packet, *now_ns, deliver, |frame| transmit(tx, frame));
    }

    /// Does what is due.
    pub fn poll(&mut self) {
        let Self { tcp, tx, now_ns, .. } = self;
        if tcp.poll_at().is_some_and(|at| at <= *now_ns) {
            tcp.poll(*now_ns, |frame| transmit(tx, frame));
        }
    }

    /// Sends bytes whether orders pass or not: logins and heartbeats.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> bool {
        let Self { tcp, tx, now_ns, .. } = self;
        tcp.send(bytes, *now_ns, |frame| transmit(tx, frame)).is_ok()
    }

    /// Sends a frame that has nothing to do with the connection.
    pub fn send_frame(&mut self, frame: &[u8]) {
        transmit(&mut self.tx, frame);
    }

    /// Ends the connection in good order.
    pub fn close(&mut self) {
        let Self { tcp, tx, now_ns, .. } = self;
        tcp.close(*now_ns, |frame| transmit(tx, frame));
    }

    /// Where the connection stands.
    pub const fn state(&self) -> tcp::State {
        self.tcp.state()
    }

    /// What the connection counted.
    pub const fn stats(&self) -> tcp::Stats {
        self.tcp.stats()
    }

    /// Orders that went the short way.
    pub const fn orders(&self) -> u64 {
        self.orders
    }

    /// The send queue.
    pub const fn tx(&mut self) -> &mut TxQueue {
        &mut self.tx
    }

    // ANCHOR: send_order
    /// An order the short way. What the ring has no room for counts as lost on the wire: the
    /// connection repeats it.
    #[inline]
    fn send_order(&mut self, order: &[u8; ENTER_LEN]) -> bool {
        let Some(ready) = &mut self.ready else { return self.send_bytes(order) };
        let template = self.tcp.template();
        if self.tcp.sent_beside(order, self.now_ns).is_err() {
            return false;
        }
        ready.set(template, order);
        self.tx.send_one(&ready.frame);
        self.orders += 1;
        true
    }
    // ANCHOR_END: send_order
}

impl Outbox for OrderLine {
    #[inline]
    fn send(&mut self, packet: &[u8]) -> bool {
        if !self.is_open {
            return false;
        }
        let asked_ns = if self.is_timed { now_ns() } else { 0 };
        let is_sent = match packet.try_into() {
            Ok(order) => self.send_order(order),
            Err(_) => self.send_bytes(packet),
        };
        if self.is_timed {
            self.times = SendTimes { asked_ns, rung_ns: now_ns() };
        }
        is_sent
    }
}

/// Sends a frame from a buffer of the pool. One that finds no buffer or no room is lost, as on a
/// wire; the connection repeats what matters.
fn transmit(tx: &mut TxQueue, frame: &[u8]) {
    let Some(mut mbuf) = tx.cache().get() else { return };
    if mbuf.extend_from_slice(frame) {
        tx.tx_burst(&mut ferrocx::Burst::<1>::from_iter([mbuf]));
    }
}
