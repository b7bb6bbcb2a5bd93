//! The way that orders leave by: a TCP connection on a send queue, with the next order's frame
//! ready.
//!
//! [`OrderLine`] keeps a frame with all headers for a new order, one for a replacement and one for
//! a cancel. A message changes its numbers and its payload; the frame is copied into the work
//! request, and one doorbell sends it. Everything else, heartbeats and the kill switch's messages
//! and what has to be sent again, goes as [`tcp::Client`] builds it.
//!
//! # Limits
//! IPv4 without VLAN tags has the short way; other orders go by the long one.

use ferrocx::{Field, MacAddr, PrebuiltFrame, TxQueue};
use ferrocx_net::packet::{Headers, Packet, Transport, tcp as flags};

use crate::capture::Recorder;
use crate::latency::now_ns;
use crate::orders::{CANCEL_LEN, ENTER_LEN, REPLACE_LEN};
use crate::strategy::Outbox;
use crate::tcp;
use crate::timed::{FirstOrder, SendTimes};

/// Bytes in front of an order: Ethernet, IPv4 and TCP.
const HEADERS: usize = 14 + 20 + 20;
/// A message's frame of `FRAME` bytes, ready but for its numbers and its `LEN` bytes of payload.
#[derive(Debug)]
struct Ready<const LEN: usize, const FRAME: usize> {
    frame: PrebuiltFrame<FRAME>,
    /// Sequence number and acknowledgment, which stand side by side.
    numbers: Field<8>,
    payload: Field<LEN>,
}

impl<const LEN: usize, const FRAME: usize> Ready<LEN, FRAME> {
    /// `None` if the connection's headers have another length.
    fn new(headers: &Headers) -> Option<Self> {
        const { assert!(HEADERS + LEN == FRAME, "headers and payload fill the frame") };
        let mut bytes = [0; FRAME];
        headers.write(&mut bytes).ok().filter(|()| headers.len_bytes() == HEADERS)?;
        let frame = PrebuiltFrame::new(&bytes);
        let numbers = frame.field(HEADERS - 20 + 4).ok()?;
        let payload = frame.field(HEADERS).ok()?;
        Some(Self { frame, numbers, payload })
    }

    #[inline]
    fn set(&mut self, template: tcp::Template, payload: &[u8; LEN]) {
        let [sequence, acknowledgment] = [template.sequence, template.acknowledgment];
        let numbers = u64::from(sequence) << 32 | u64::from(acknowledgment);
        self.frame.set(self.numbers, numbers.to_be_bytes());
        self.frame.set(self.payload, *payload);
    }

    /// Does what sending does, but that nothing leaves; `false` if the queue could not.
    fn rehearse(&mut self, template: tcp::Template, tx: &mut TxQueue) -> bool {
        self.set(template, &[0; LEN]);
        tx.warm_up(&self.frame)
    }
}

/// The frames that stand ready: what a strategy sends, each kind with its own length.
#[derive(Debug)]
struct Frames {
    enter: Ready<ENTER_LEN, { HEADERS + ENTER_LEN }>,
    replace: Ready<REPLACE_LEN, { HEADERS + REPLACE_LEN }>,
    cancel: Ready<CANCEL_LEN, { HEADERS + CANCEL_LEN }>,
}

impl Frames {
    /// `None` if the connection's headers have another length than the short way's.
    fn new(config: &tcp::Config) -> Option<Self> {
        let transport = Transport::Tcp {
            sequence: 0,
            acknowledgment: 0,
            flags: flags::ACK | flags::PSH,
            window: config.window,
            max_segment: None,
        };
        let headers = Headers { transport, ..config.headers() };
        Some(Self {
            enter: Ready::new(&headers)?,
            replace: Ready::new(&headers)?,
            cancel: Ready::new(&headers)?,
        })
    }
}

/// A send queue, and who is told of what it sends.
#[derive(Debug)]
struct Way {
    tx: TxQueue,
    recorder: Option<Recorder>,
    /// The device stamps what goes the short way.
    is_stamped: bool,
    /// One of the two is wanted of what goes the short way.
    is_noted: bool,
}

impl Way {
    const fn new(tx: TxQueue) -> Self {
        Self { tx, recorder: None, is_stamped: false, is_noted: false }
    }

    /// Sends a frame that stands ready, by its number, and has it stamped and recorded as wanted.
    #[cold]
    fn send_noted<const FRAME: usize>(&mut self, frame: &PrebuiltFrame<FRAME>, number: u64) {
        let is_sent = match self.is_stamped {
            true => self.tx.send_one_stamped(frame, number),
            false => self.tx.send_one(frame),
        };
        if is_sent && let Some(recorder) = &mut self.recorder {
            recorder.left(frame.bytes(), now_ns(), self.is_stamped.then_some(number));
        }
    }

    /// Sends a frame from a buffer of the pool. One that finds no buffer or no room is lost, as on
    /// a wire; the connection repeats what matters.
    fn transmit(&mut self, frame: &[u8]) {
        let Some(mut mbuf) = self.tx.cache().get() else { return };
        if mbuf.extend_from_slice(frame)
            && self.tx.tx_burst(&mut ferrocx::Burst::<1>::from_iter([mbuf])) == 1
            && let Some(recorder) = &mut self.recorder
        {
            recorder.left(frame, now_ns(), None);
        }
    }
}

/// A connection for orders, on a send queue of its own.
#[derive(Debug)]
pub struct OrderLine {
    tcp: tcp::Client,
    way: Way,
    frames: Option<Frames>,
    is_open: bool,
    is_timed: bool,
    now_ns: u64,
    first: FirstOrder,
    orders: u64,
    rehearsals: u64,
}

impl OrderLine {
    /// Starts a connection.
    ///
    /// # Errors
    /// A [`tcp::ConfigError`] for a value out of its range.
    pub fn connect(
        config: tcp::Config,
        initial: tcp::Seq,
        tx: TxQueue,
        now_ns: u64,
    ) -> Result<Self, tcp::ConfigError> {
        let frames = Frames::new(&config);
        let mut way = Way::new(tx);
        let tcp = tcp::Client::connect(config, initial, now_ns, |frame| way.transmit(frame))?;
        Ok(Self::new(tcp, way, frames, now_ns))
    }

    fn new(tcp: tcp::Client, way: Way, frames: Option<Frames>, now_ns: u64) -> Self {
        let (is_open, is_timed, first) = (false, false, FirstOrder::default());
        let (orders, rehearsals) = (0, 0);
        Self { tcp, way, frames, is_open, is_timed, now_ns, first, orders, rehearsals }
    }

    /// A line that is not connected: [`OrderLine::reconnect`] does that.
    ///
    /// # Errors
    /// A [`tcp::ConfigError`] for a value out of its range.
    pub fn closed(config: tcp::Config, tx: TxQueue, now_ns: u64) -> Result<Self, tcp::ConfigError> {
        let frames = Frames::new(&config);
        let mut tcp = tcp::Client::connect(config, tcp::Seq(0), now_ns, |_| ())?;
        tcp.abort(|_| ());
        Ok(Self::new(tcp, Way::new(tx), frames, now_ns))
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
        let (frames, way) = (Frames::new(&config), &mut self.way);
        let next = tcp::Client::connect(config, initial, now_ns, |frame| way.transmit(frame))?;
        self.tcp.abort(|frame| way.transmit(frame));
        (self.tcp, self.frames, self.is_open) = (next, frames, false);
        Ok(())
    }

    /// The exchange is reached by another station from now on, in the connection that runs and with
    /// the frames that stand ready, too. Nothing of the connection's state changes.
    pub fn set_station(&mut self, station: MacAddr) {
        if self.tcp.config().remote_mac != station {
            self.tcp.set_station(station);
            self.frames = Frames::new(self.tcp.config());
        }
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

    /// Has the device stamp the frames of orders, by their numbers in [`SendTimes::frame`]; for a
    /// queue that [keeps stamps](ferrocx::TxQueueConfig::timestamps), which loses every order
    /// otherwise. Each then has a completion of its own.
    pub const fn set_stamped(&mut self, is_stamped: bool) {
        self.way.is_stamped = is_stamped;
        self.way.is_noted |= is_stamped;
    }

    /// Tells a recorder of every frame that goes out here, from now on.
    pub fn set_recorder(&mut self, recorder: Recorder) {
        self.way.recorder = Some(recorder);
        self.way.is_noted = true;
    }

    /// Who is told of what goes out here, if anybody is.
    pub const fn recorder(&mut self) -> Option<&mut Recorder> {
        self.way.recorder.as_mut()
    }

    /// A frame of the feed comes: times of what was sent before are forgotten.
    #[inline]
    pub const fn begin_frame(&mut self) {
        self.first.begin();
    }

    /// When the first order was sent that followed this frame, once.
    #[inline]
    pub const fn take_times(&mut self) -> Option<SendTimes> {
        self.first.take()
    }

    /// The time, for what is sent from now on.
    #[inline]
    pub const fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Goes the short way of the next order, replacement or cancel, in turn, but that nothing
    /// leaves ([`TxQueue::warm_up`]): for the time in which nothing comes, so that what comes then
    /// finds code and memory in the caches, and the queue ready behind whatever else it sent.
    /// `false` if it did not: orders do not pass, or do not go that way, or the queue's next
    /// request goes another.
    pub fn warm_up(&mut self) -> bool {
        let Self { tcp, way: Way { tx, is_stamped, .. }, frames, .. } = self;
        let Some(frames) = frames.as_mut().filter(|_| self.is_open && !*is_stamped) else {
            return false;
        };
        let template = tcp.template();
        let is_done = match self.rehearsals % 3 {
            0 => frames.enter.rehearse(template, tx),
            1 => frames.cancel.rehearse(template, tx),
            _ => frames.replace.rehearse(template, tx),
        };
        self.rehearsals += u64::from(is_done);
        is_done
    }

    /// Times that [`OrderLine::warm_up`] did.
    pub const fn rehearsals(&self) -> u64 {
        self.rehearsals
    }

    /// Takes a frame of the connection; bytes that are next go to `deliver`.
    pub fn receive(&mut self, packet: &Packet<'_>, deliver: impl FnMut(&[u8])) {
        let Self { tcp, way, now_ns, .. } = self;
        tcp.receive(packet, *now_ns, deliver, |frame| way.transmit(frame));
    }

    /// Does what is due; returns whether anything was.
    pub fn poll(&mut self) -> bool {
        let Self { tcp, way, now_ns, .. } = self;
        let is_due = tcp.poll_at().is_some_and(|at| at <= *now_ns);
        if is_due {
            tcp.poll(*now_ns, |frame| way.transmit(frame));
        }
        is_due
    }

    /// Sends bytes whether orders pass or not: logins and heartbeats.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> bool {
        let Self { tcp, way, now_ns, .. } = self;
        tcp.send(bytes, *now_ns, |frame| way.transmit(frame)).is_ok()
    }

    /// Sends a frame that has nothing to do with the connection.
    pub fn send_frame(&mut self, frame: &[u8]) {
        self.way.transmit(frame);
    }

    /// Ends the connection in good order.
    pub fn close(&mut self) {
        let Self { tcp, way, now_ns, .. } = self;
        tcp.close(*now_ns, |frame| way.transmit(frame));
    }

    /// Where the connection stands.
    pub const fn state(&self) -> tcp::State {
        self.tcp.state()
    }

    /// Bytes that were sent and are not acknowledged.
    pub const fn unacknowledged(&self) -> u32 {
        self.tcp.unacknowledged()
    }

    /// Place in the connection of what is sent next.
    pub fn next_sequence(&self) -> tcp::Seq {
        tcp::Seq(self.tcp.template().sequence)
    }

    /// What the connection counted.
    pub const fn stats(&self) -> tcp::Stats {
        self.tcp.stats()
    }

    /// Orders, replacements and cancels that went the short way.
    pub const fn orders(&self) -> u64 {
        self.orders
    }

    /// The send queue.
    pub const fn tx(&mut self) -> &mut TxQueue {
        &mut self.way.tx
    }

    // ANCHOR: send_order
    /// A message the short way. What the ring has no room for counts as lost on the wire: the
    /// connection repeats it.
    #[inline]
    fn send_ready<const LEN: usize, const FRAME: usize>(
        &mut self,
        ready: impl FnOnce(&mut Frames) -> &mut Ready<LEN, FRAME>,
        message: &[u8; LEN],
    ) -> bool {
        let Some(frames) = &mut self.frames else { return self.send_bytes(message) };
        let template = self.tcp.template();
        if self.tcp.sent_beside(message, self.now_ns).is_err() {
            return false;
        }
        let ready = ready(frames);
        ready.set(template, message);
        match self.way.is_noted {
            true => self.way.send_noted(&ready.frame, self.orders),
            false => _ = self.way.tx.send_one(&ready.frame),
        }
        self.orders += 1;
        true
    }
    // ANCHOR_END: send_order
}

impl OrderLine {
    #[inline(always)]
    fn send_now(&mut self, packet: &[u8]) -> bool {
        if let Ok(order) = packet.try_into() {
            self.send_ready(|frames| &mut frames.enter, order)
        } else if let Ok(cancel) = packet.try_into() {
            self.send_ready(|frames| &mut frames.cancel, cancel)
        } else if let Ok(replace) = packet.try_into() {
            self.send_ready(|frames| &mut frames.replace, replace)
        } else {
            self.send_bytes(packet)
        }
    }

    #[inline(never)]
    fn send_timed(&mut self, packet: &[u8]) -> bool {
        let (asked_ns, number) = (now_ns(), self.orders);
        let is_sent = self.send_now(packet);
        if is_sent {
            let frame = (self.way.is_stamped && self.orders != number).then_some(number);
            self.first.sent(asked_ns, now_ns(), frame);
        }
        is_sent
    }
}

impl Outbox for OrderLine {
    #[inline]
    fn send(&mut self, packet: &[u8]) -> bool {
        if !self.is_open {
            return false;
        }
        if self.is_timed {
            return self.send_timed(packet);
        }
        self.send_now(packet)
    }

    #[inline]
    fn told(&mut self, at_ns: u64) {
        self.first.told(at_ns);
    }
}
