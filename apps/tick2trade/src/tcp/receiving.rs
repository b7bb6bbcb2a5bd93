//! What comes in: acknowledgments, bytes, ends, and what no honest peer sends.

use ferrocx_net::packet::tcp::Segment;
use ferrocx_net::packet::{Headers, Packet, Transport};

use super::{
    ACK, CHALLENGE_NS, CHALLENGES, Client, Closed, DEFAULT_MSS, DUPLICATES, FIN, RST, SYN, Seq,
    State,
};

impl Client {
    /// Takes a frame, whose checksums were looked at, by the device or by [`Packet::is_intact`].
    /// Bytes that are next go to `deliver`, in order and once.
    #[inline]
    pub fn receive(
        &mut self,
        packet: &Packet<'_>,
        now_ns: u64,
        deliver: impl FnMut(&[u8]),
        emit: impl FnMut(&[u8]),
    ) {
        let is_ours = (packet.source(), packet.destination())
            == (self.config.remote, self.config.local)
            && !matches!(self.state, State::Closed(_));
        let Some(segment) = packet.tcp().filter(|_| is_ours) else {
            return self.disown(packet, now_ns, emit);
        };
        self.stats.received += 1;
        if self.state == State::SynSent {
            self.answered(&segment, now_ns, emit);
        } else {
            self.arrived(&segment, now_ns, deliver, emit);
        }
    }

    /// A segment of no connection that there is: the peer of one that was, and that it holds for
    /// open, hears that it is over. Source: RFC 9293, 3.10.7.1.
    #[cold]
    fn disown(&mut self, packet: &Packet<'_>, now_ns: u64, mut emit: impl FnMut(&[u8])) {
        self.stats.refused += 1;
        let is_of_peer = packet.source() == self.config.remote
            && packet.destination().ip() == self.config.local.ip();
        let Some(segment) = packet.tcp().filter(|segment| is_of_peer && !segment.has(RST)) else {
            return;
        };
        if !self.may_answer(now_ns) {
            return;
        }
        let more = u32::from(segment.has(SYN)) + u32::from(segment.has(FIN));
        let end = Seq(segment.sequence()).add(segment.payload.len() as u32 + more);
        let (flags, sequence, acknowledgment) = match segment.acknowledgment() {
            Some(place) => (RST, place, 0),
            None => (ACK | RST, 0, end.0),
        };
        let (window, max_segment) = (0, None);
        let transport = Transport::Tcp { sequence, acknowledgment, flags, window, max_segment };
        let headers = Headers { source: packet.destination(), transport, ..self.config.headers() };
        self.scratch.clear();
        self.scratch.resize(headers.len_bytes(), 0);
        // Both ends are of one family: `check` saw to it.
        if headers.write(&mut self.scratch).is_ok() {
            self.stats.sent += 1;
            emit(&self.scratch);
        }
    }

    /// A segment before the connection is open. Source: RFC 9293, 3.10.7.3.
    fn answered(&mut self, segment: &Segment<'_>, now_ns: u64, mut emit: impl FnMut(&[u8])) {
        let acknowledged = segment.acknowledgment().map(Seq);
        if let Some(other) = acknowledged.filter(|&place| place != self.next) {
            self.stats.refused += 1;
            if !segment.has(RST) {
                self.emit(RST, other, None, false, emit);
            }
            return;
        }
        if segment.has(RST) {
            match acknowledged {
                Some(_) => self.end(Closed::Refused),
                None => self.stats.refused += 1,
            }
            return;
        }
        // Both ends at once (a SYN without ACK) is for peers that open, too: not this one's.
        if !segment.has(SYN) || acknowledged.is_none() {
            self.stats.refused += 1;
            return;
        }
        let mss = segment.max_segment().unwrap_or(DEFAULT_MSS).max(64);
        self.max_segment = mss.min(self.config.max_segment);
        self.expected = Seq(segment.sequence()).add(1);
        self.unacknowledged = self.next;
        self.peer_window = segment.window().into();
        self.window_said = (Seq(segment.sequence()), self.next);
        // Source: RFC 6928, 2.
        self.congestion_window = 10 * u32::from(self.max_segment);
        if self.stats.timeouts == 0 {
            self.rtt.measured(now_ns.saturating_sub(self.silent_since));
        }
        (self.resend_at, self.silent_since) = (None, now_ns);
        self.state = State::Established;
        self.emit(ACK, self.next, None, false, &mut emit);
    }

    /// A segment of an open connection. Source: RFC 9293, 3.10.7.4; RFC 5961.
    fn arrived(
        &mut self,
        segment: &Segment<'_>,
        now_ns: u64,
        deliver: impl FnMut(&[u8]),
        mut emit: impl FnMut(&[u8]),
    ) {
        let sequence = Seq(segment.sequence());
        if !self.is_acceptable(segment) {
            if !segment.has(RST) {
                self.stats.refused += u64::from(segment.payload.is_empty());
                self.repeat_ack(now_ns, emit);
            }
            return;
        }
        if segment.has(RST) {
            if self.state == State::TimeWait {
                // Late repetitions may provoke one. Source: RFC 1337, 3, first remedy.
                self.stats.refused += 1;
            } else if sequence == self.expected {
                self.end(Closed::Reset);
            } else {
                self.challenge(now_ns, emit);
            }
            return;
        }
        if segment.has(SYN) {
            self.challenge(now_ns, emit);
            return;
        }
        let Some(acknowledged) = segment.acknowledgment().map(Seq) else {
            self.stats.refused += 1;
            return;
        };
        // What was never sent, and what lies further back than any window. Source: RFC 5961, 5.
        let ahead = acknowledged.since(self.next) > 0;
        if ahead || self.unacknowledged.since(acknowledged) > i32::from(u16::MAX) {
            self.challenge(now_ns, emit);
            return;
        }
        self.acknowledged(segment, acknowledged, now_ns, &mut emit);
        if !matches!(self.state, State::Closed(_)) {
            self.take_payload(segment, now_ns, deliver);
            self.take_fin(now_ns);
        }
        if self.ack_at.is_some_and(|at| at <= now_ns) {
            self.emit(ACK, self.next, None, false, emit);
        }
    }

    /// Whether any of a segment lies in the window. Source: RFC 9293, 3.4, table 6.
    fn is_acceptable(&self, segment: &Segment<'_>) -> bool {
        let window = u32::from(self.config.window);
        let len = segment.payload.len() as u32 + u32::from(segment.has(FIN));
        let first = Seq(segment.sequence());
        match len {
            0 => first.within(self.expected, window),
            _ => {
                let last = first.add(len - 1);
                first.within(self.expected, window) || last.within(self.expected, window)
            }
        }
    }

    /// Answers what a stranger could have sent. Source: RFC 5961, 3 to 5.
    fn challenge(&mut self, now_ns: u64, emit: impl FnMut(&[u8])) {
        self.stats.refused += 1;
        if self.may_answer(now_ns) {
            self.emit(ACK, self.next, None, false, emit);
        }
    }

    /// Says again where this end stands, to a peer that may have missed it: at once, or with all
    /// that asked for it meanwhile. Source: RFC 9293, 3.10.7.4; RFC 5961, 7.
    fn repeat_ack(&mut self, now_ns: u64, emit: impl FnMut(&[u8])) {
        if self.may_answer(now_ns) {
            self.emit(ACK, self.next, None, false, emit);
        } else {
            let pause_ns = CHALLENGE_NS / u64::from(CHALLENGES);
            self.repeat_ack_at.get_or_insert(now_ns.saturating_add(pause_ns));
        }
    }

    /// Whether what a stranger could have sent may be answered still. Source: RFC 5961, 7.
    fn may_answer(&mut self, now_ns: u64) -> bool {
        let (since, count) = &mut self.challenges;
        if now_ns.saturating_sub(*since) >= CHALLENGE_NS {
            (*since, *count) = (now_ns, 0);
        }
        let may = *count < CHALLENGES;
        *count += u32::from(may);
        may
    }

    /// The peer has everything before `place`.
    fn acknowledged(
        &mut self,
        segment: &Segment<'_>,
        place: Seq,
        now_ns: u64,
        emit: &mut impl FnMut(&[u8]),
    ) {
        let window = u32::from(segment.window());
        let newly = place.since(self.unacknowledged);
        if newly > 0 {
            let measured = self.sent.acknowledge(place);
            self.unacknowledged = place;
            (self.silent_since, self.duplicates) = (now_ns, 0);
            if let Some(sent_ns) = measured {
                self.rtt.measured(now_ns.saturating_sub(sent_ns));
            }
            self.grow(newly as u32, place, now_ns, emit);
            let flying = !self.sent.is_empty();
            self.resend_at = flying.then(|| now_ns + self.rtt.timeout_ns());
            self.probe_at = self.probe_at.filter(|_| flying);
            if self.our_fin && !flying {
                self.our_fin_is_known(now_ns);
            }
        } else if newly == 0
            && segment.payload.is_empty()
            && !segment.has(FIN)
            && window == self.peer_window
            && !self.sent.is_empty()
        {
            self.duplicates += 1;
            if self.duplicates == DUPLICATES && self.recover.is_none() {
                self.loss();
                self.recover = Some(self.next);
                self.stats.fast += 1;
                self.resend(false, now_ns, emit);
            }
        }
        // A window counts if it is not older than the one that is known. Source: RFC 9293,
        // 3.10.7.4.
        let (said_at, said_for) = self.window_said;
        let sequence = Seq(segment.sequence());
        let newer = said_at.before(sequence) || said_at == sequence && !place.before(said_for);
        if newly >= 0 && newer {
            (self.peer_window, self.window_said) = (window, (sequence, place));
            if self.peer_room() > 0 {
                self.ask_window_at = None;
            }
        }
    }

    /// The network took `newly` bytes. Source: RFC 5681, 3.1; RFC 6582, 3.2.
    fn grow(&mut self, newly: u32, place: Seq, now_ns: u64, emit: &mut impl FnMut(&[u8])) {
        let segment = u32::from(self.max_segment);
        match self.recover {
            Some(recover) if place.before(recover) => {
                // A part of what was lost came through: the next hole is the oldest segment.
                self.stats.fast += 1;
                self.resend(false, now_ns, emit);
            }
            Some(_) => {
                self.recover = None;
                self.congestion_window = self.slow_start_threshold;
            }
            None if self.congestion_window < self.slow_start_threshold => {
                self.congestion_window = self.congestion_window.saturating_add(newly.min(segment));
            }
            None => {
                let step = (segment * segment / self.congestion_window.max(1)).max(1);
                self.congestion_window = self.congestion_window.saturating_add(step);
            }
        }
    }

    fn take_payload(&mut self, segment: &Segment<'_>, now_ns: u64, mut deliver: impl FnMut(&[u8])) {
        let open = matches!(self.state, State::Established | State::FinWait);
        let len = segment.payload.len() as u32;
        if segment.has(FIN) && open {
            self.peer_fin = self.peer_fin.or(Some(Seq(segment.sequence()).add(len)));
            if Seq(segment.sequence()) != self.expected {
                // Behind a hole, bytes or none: the sender is to hear of it. Source: RFC 5681, 4.2.
                self.ack_at = Some(now_ns);
            }
        }
        if len == 0 {
            return;
        }
        self.ack_at.get_or_insert(now_ns + self.config.ack_delay_ns);
        if !open {
            return;
        }
        let distance = Seq(segment.sequence()).since(self.expected);
        if distance > 0 {
            self.stats.out_of_order += 1;
            self.reassembly.insert(distance as usize, segment.payload);
            self.ack_at = Some(now_ns);
            return;
        }
        let fresh = segment.payload.get(distance.unsigned_abs() as usize..).unwrap_or(&[]);
        // No more than was offered.
        let fresh = &fresh[..fresh.len().min(usize::from(self.config.window))];
        if fresh.is_empty() {
            self.ack_at = Some(now_ns);
            return;
        }
        deliver(fresh);
        self.expected = self.expected.add(fresh.len() as u32);
        if self.state == State::FinWait {
            self.silent_since = now_ns;
        }
        if !self.reassembly.is_empty() {
            self.reassembly.advance(fresh.len());
            let more = self.reassembly.take(deliver);
            self.expected = self.expected.add(more as u32);
            // A hole was filled: the sender waits to hear it. Source: RFC 5681, 4.2.
            self.ack_at = Some(now_ns);
        }
    }

    /// The peer is done once all in front of its FIN has come.
    fn take_fin(&mut self, now_ns: u64) {
        if self.peer_fin != Some(self.expected) {
            return;
        }
        self.state = match self.state {
            State::Established => State::CloseWait,
            State::FinWait => {
                if self.sent.is_empty() {
                    self.ends_at = Some(now_ns + self.config.time_wait_ns);
                    State::TimeWait
                } else {
                    State::Closing
                }
            }
            _ => return,
        };
        self.expected = self.expected.add(1);
        self.ack_at = Some(now_ns);
    }

    /// The peer knows that we are done.
    fn our_fin_is_known(&mut self, now_ns: u64) {
        match self.state {
            State::LastAck => self.end(Closed::Done),
            State::Closing => {
                self.state = State::TimeWait;
                self.ends_at = Some(now_ns + self.config.time_wait_ns);
            }
            _ => {}
        }
    }
}
