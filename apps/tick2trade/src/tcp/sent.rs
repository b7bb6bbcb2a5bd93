//! Bytes that were sent and are not acknowledged, to be sent again.

use std::collections::VecDeque;

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
    bytes: VecDeque<u8>,
    flights: VecDeque<Flight>,
    max_bytes: usize,
    max_flights: usize,
}

impl Sent {
    pub(super) fn new(max_bytes: usize, max_flights: usize) -> Self {
        Self {
            bytes: VecDeque::with_capacity(max_bytes),
            // One more for the FIN, which must always fit.
            flights: VecDeque::with_capacity(max_flights + 1),
            max_bytes,
            max_flights,
        }
    }

    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.bytes.len() + bytes <= self.max_bytes && self.flights.len() < self.max_flights
    }

    #[inline]
    pub(super) fn push(&mut self, flight: Flight, payload: &[u8]) {
        self.bytes.extend(payload);
        self.flights.push_back(flight);
    }

    pub(super) fn len(&self) -> usize {
        self.flights.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Drops what lies before `acknowledged`; says when a segment that was sent once and is wholly
    /// acknowledged was sent, the newest such.
    pub(super) fn acknowledge(&mut self, acknowledged: Seq) -> Option<u64> {
        let mut measured = None;
        while let Some(flight) = self.flights.front_mut() {
            if acknowledged.before(flight.end()) {
                let part = acknowledged.since(flight.sequence).clamp(0, flight.len as i32) as u32;
                self.bytes.drain(..part as usize);
                flight.sequence = flight.sequence.add(part);
                flight.len -= part;
                break;
            }
            if !flight.again {
                measured = Some(flight.sent_ns);
            }
            self.bytes.drain(..flight.len as usize);
            self.flights.pop_front();
        }
        measured
    }

    /// Notes that the oldest (`false`) or the newest (`true`) segment is sent again, and gives its
    /// bytes into `out`.
    pub(super) fn resend(
        &mut self,
        newest: bool,
        now_ns: u64,
        out: &mut Vec<u8>,
    ) -> Option<Flight> {
        let flight = if newest { self.flights.back_mut() } else { self.flights.front_mut() }?;
        (flight.again, flight.sent_ns) = (true, now_ns);
        let flight = *flight;
        let len = flight.len as usize;
        let start = if newest { self.bytes.len() - len } else { 0 };
        out.clear();
        out.extend(self.bytes.range(start..start + len));
        Some(flight)
    }
}
