//! Bytes that were sent and are not acknowledged, to be sent again.

use super::seq::Seq;

/// One segment that is on its way. A FIN counts as a byte, and has none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flight {
    pub(super) sequence: Seq,
    /// Bytes of payload.
    pub(super) len: u32,
    pub(super) fin: bool,
    pub(super) sent_ns: u64,
    /// Sent more than once: its acknowledgment measures nothing. Source: RFC 6298, 3.
    pub(super) again: bool,
}

impl Flight {
    pub(super) const fn end(&self) -> Seq {
        self.sequence.add(self.len + self.fin as u32)
    }
}

/// Segments on their way, oldest first, and their bytes. Nothing is allocated after [`Sent::new`].
#[derive(Debug)]
pub(super) struct Sent {
    /// Each byte lies at its place in the stream, modulo the length, a power of two.
    bytes: Box<[u8]>,
    /// Bytes that are held.
    held: usize,
    /// A ring, whose length is a power of two: `count` segments from `first` on.
    flights: Box<[Flight]>,
    first: usize,
    count: usize,
    max_bytes: usize,
    max_flights: usize,
}

impl Sent {
    pub(super) fn new(max_bytes: usize, max_flights: usize) -> Self {
        let none = Flight { sequence: Seq(0), len: 0, fin: false, sent_ns: 0, again: false };
        Self {
            bytes: vec![0; max_bytes.next_power_of_two()].into(),
            held: 0,
            // One more for the FIN, which must always fit.
            flights: vec![none; (max_flights + 1).next_power_of_two()].into(),
            first: 0,
            count: 0,
            max_bytes,
            max_flights,
        }
    }

    #[inline]
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.held + bytes <= self.max_bytes && self.count < self.max_flights
    }

    /// Notes a segment that follows those before, for which there is room.
    #[inline(always)]
    pub(super) fn push(&mut self, flight: Flight, payload: &[u8]) {
        let at = flight.sequence.0 as usize & (self.bytes.len() - 1);
        match self.bytes.get_mut(at..at + payload.len()) {
            Some(place) => place.copy_from_slice(payload),
            None => self.push_around(at, payload),
        }
        self.held += payload.len();
        let place = (self.first + self.count) & (self.flights.len() - 1);
        self.flights[place] = flight;
        self.count += 1;
    }

    /// Bytes that go on at the ring's start.
    #[cold]
    fn push_around(&mut self, at: usize, payload: &[u8]) {
        let (end, start) = payload.split_at(self.bytes.len() - at);
        self.bytes[at..].copy_from_slice(end);
        self.bytes[..start.len()].copy_from_slice(start);
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Drops what lies before `acknowledged`; says when the newest segment that is wholly
    /// acknowledged was sent, if each of them was sent once. What was sent behind a lost one waited
    /// at the peer until that came again, so it measures the repair and not the way.
    pub(super) fn acknowledge(&mut self, acknowledged: Seq) -> Option<u64> {
        let (mut measured, mut is_repair) = (None, false);
        while self.count != 0 {
            let flight = &mut self.flights[self.first];
            if acknowledged.before(flight.end()) {
                let part = acknowledged.since(flight.sequence).clamp(0, flight.len as i32) as u32;
                flight.sequence = flight.sequence.add(part);
                flight.len -= part;
                self.held -= part as usize;
                break;
            }
            is_repair |= flight.again;
            measured = Some(flight.sent_ns);
            self.held -= flight.len as usize;
            self.first = (self.first + 1) & (self.flights.len() - 1);
            self.count -= 1;
        }
        measured.filter(|_| !is_repair)
    }

    /// Notes that the oldest (`false`) or the newest (`true`) segment is sent again, and gives its
    /// bytes into `out`.
    pub(super) fn resend(
        &mut self,
        newest: bool,
        now_ns: u64,
        out: &mut Vec<u8>,
    ) -> Option<Flight> {
        let ahead = if newest { self.count.checked_sub(1)? } else { 0 };
        if self.is_empty() {
            return None;
        }
        let flight = &mut self.flights[(self.first + ahead) & (self.flights.len() - 1)];
        (flight.again, flight.sent_ns) = (true, now_ns);
        let flight = *flight;
        let at = flight.sequence.0 as usize & (self.bytes.len() - 1);
        out.clear();
        out.extend(self.bytes[at..].iter().chain(&self.bytes).take(flight.len as usize));
        Some(flight)
    }
}
