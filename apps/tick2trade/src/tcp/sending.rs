//! What goes out: new bytes, as far as peer and network take them, and old ones again.

use ferrocx_net::packet::{Headers, Transport};

use super::sent::Flight;
use super::{ACK, Client, FIN, PSH, Refused, SYN, Seq, State, Template};

impl Client {
    pub(super) fn syn(&mut self, now_ns: u64, emit: impl FnMut(&[u8])) {
        self.resend_at = Some(now_ns + self.rtt.timeout_ns());
        let max_segment = Some(self.config.max_segment);
        self.emit(SYN, self.unacknowledged, max_segment, false, emit);
    }

    /// Sends bytes as one segment.
    ///
    /// # Errors
    /// A [`Refused`]; nothing was sent.
    pub fn send(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        emit: impl FnMut(&[u8]),
    ) -> Result<(), Refused> {
        self.may_send(bytes.len(), now_ns)?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.payload.clear();
        self.payload.extend(bytes);
        self.emit(ACK | PSH, self.next, None, true, emit);
        self.on_its_way(bytes, now_ns);
        Ok(())
    }

    /// What a segment that is built beside this has to hold now.
    #[inline]
    pub fn template(&self) -> Template {
        let open = matches!(self.state, State::Established | State::CloseWait) && !self.our_fin;
        let room = if open && self.sent.has_room(1) { self.room() } else { 0 };
        Template {
            sequence: self.next.0,
            acknowledgment: self.expected.0,
            window: self.config.window,
            room: room.min(u32::from(self.max_segment)) as usize,
        }
    }

    /// Takes note of a segment that was sent beside this, as [`Client::template`] said it.
    ///
    /// # Errors
    /// A [`Refused`] if the template allowed no such segment: it will not be repeated when lost.
    #[inline(always)]
    pub fn sent_beside(&mut self, bytes: &[u8], now_ns: u64) -> Result<(), Refused> {
        self.may_send(bytes.len(), now_ns)?;
        self.stats.sent += 1;
        self.ack_at = None;
        self.on_its_way(bytes, now_ns);
        Ok(())
    }

    #[inline]
    fn may_send(&mut self, len: usize, now_ns: u64) -> Result<(), Refused> {
        if !matches!(self.state, State::Established | State::CloseWait) || self.our_fin {
            return Err(Refused::NotOpen);
        }
        if len > usize::from(self.max_segment) {
            return Err(Refused::TooLong(len));
        }
        if len > self.peer_room() as usize {
            // An update of the window may be lost: it is asked for.
            if self.ask_window_at.is_none() {
                self.ask_window_ns = self.rtt.timeout_ns().max(1_000_000);
                self.ask_window_at = Some(now_ns + self.ask_window_ns);
            }
            return Err(Refused::Window);
        }
        if len > self.room() as usize {
            return Err(Refused::Congestion);
        }
        if self.sent.has_room(len) { Ok(()) } else { Err(Refused::Unacknowledged) }
    }

    /// Bytes that the peer still takes.
    pub(super) fn peer_room(&self) -> u32 {
        self.peer_window.saturating_sub(self.in_flight())
    }

    /// Bytes that peer and network still take.
    fn room(&self) -> u32 {
        self.peer_window.min(self.congestion_window).saturating_sub(self.in_flight())
    }

    pub(super) const fn in_flight(&self) -> u32 {
        self.next.0.wrapping_sub(self.unacknowledged.0)
    }

    /// Bytes were sent at [`Self::next`].
    #[inline(always)]
    fn on_its_way(&mut self, bytes: &[u8], now_ns: u64) {
        let len = bytes.len() as u32;
        let flight = Flight { sequence: self.next, len, fin: false, sent_ns: now_ns, again: false };
        self.push(flight, bytes, now_ns);
    }

    #[inline(always)]
    pub(super) fn push(&mut self, flight: Flight, bytes: &[u8], now_ns: u64) {
        if self.sent.is_empty() {
            self.silent_since = now_ns;
        }
        self.sent.push(flight, bytes);
        self.next = flight.end();
        self.resend_at.get_or_insert(now_ns + self.rtt.timeout_ns());
        self.probe_at = self
            .rtt
            .smoothed_ns()
            .map(|smoothed| now_ns + (2 * smoothed).max(self.config.min_probe_ns));
    }

    /// Builds a segment at `sequence` with what [`Self::payload`] holds, or with nothing.
    pub(super) fn emit(
        &mut self,
        flags: u8,
        sequence: Seq,
        max_segment: Option<u16>,
        with_payload: bool,
        mut emit: impl FnMut(&[u8]),
    ) {
        let headers = Headers {
            transport: Transport::Tcp {
                sequence: sequence.0,
                acknowledgment: if flags & ACK == 0 { 0 } else { self.expected.0 },
                flags,
                window: self.config.window,
                max_segment,
            },
            ..self.config.headers()
        };
        self.scratch.clear();
        self.scratch.resize(headers.len_bytes(), 0);
        if with_payload {
            self.scratch.extend(&self.payload);
        }
        // Both ends are of one family, and no segment is longer than IP allows: `check` saw to it.
        let written = headers.write(&mut self.scratch);
        debug_assert_eq!(written, Ok(()));
        if flags & ACK != 0 {
            (self.ack_at, self.repeat_ack_at) = (None, None);
        }
        self.stats.sent += 1;
        emit(&self.scratch);
    }

    /// Half of what is on its way is what the network takes. Source: RFC 5681, 3.1, equation 4.
    pub(super) fn loss(&mut self) {
        let segment = u32::from(self.max_segment);
        self.slow_start_threshold = (self.in_flight() / 2).max(2 * segment);
        self.congestion_window = self.slow_start_threshold;
    }

    pub(super) fn resend(&mut self, newest: bool, now_ns: u64, emit: impl FnMut(&[u8])) {
        if let Some(flight) = self.sent.resend(newest, now_ns, &mut self.payload) {
            let flags = if flight.fin { ACK | FIN } else { ACK | PSH };
            self.emit(flags, flight.sequence, None, true, emit);
        }
    }
}
