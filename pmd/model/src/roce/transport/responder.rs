//! The receiving half of a queue pair: which packets are new, what is answered, what is repeated.
//!
//! Source: reference 7.4 to 7.6; IBTA vol. 1, 9.7.

use std::collections::VecDeque;

use super::bth::{AckSyndrome, Header, Op, Reth};
use super::psn::Psn;

/// Kind of a packet, as the responder sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The next one: carry it out, then accept it.
    New,
    /// Unreliable: the next one of a new message; the message before it was cut short.
    Restart,
    /// It was carried out before; what is due was answered.
    Duplicate,
    /// Nothing is due.
    Dropped,
    /// Ahead of what is expected: a NAK is due or was sent.
    OutOfSequence,
    /// Wrong in itself: refuse it.
    Invalid(&'static str),
}

/// A message that is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    Send,
    Write { va: u64, rkey: u32, left: u32, total: u32 },
}

/// A READ or atomic that was served, for duplicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    Read { first: Psn, packets: u32, reth: Reth, pd: u32 },
    Atomic { psn: Psn, original: u64 },
}

/// Something to send back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// ACK or NAK.
    Ack {
        /// PSN that it is about.
        psn: Psn,
        /// Syndrome of the acknowledgement.
        syndrome: AckSyndrome,
        /// Messages completed.
        msn: u32,
    },
    /// The data of a READ.
    Read {
        /// PSN of the first packet.
        psn: Psn,
        /// Range to be read.
        reth: Reth,
        /// Protection domain in which it is read.
        pd: u32,
        /// Packets that are on the wire already.
        number: u32,
        /// Messages completed.
        msn: u32,
    },
    /// The old value of an atomic.
    Atomic {
        /// PSN of the request.
        psn: Psn,
        /// The value.
        original: u64,
        /// Messages completed.
        msn: u32,
    },
}

impl Reply {
    /// Packets of it that are not on the wire.
    #[must_use]
    pub fn packets_left(&self, mtu: u32) -> u32 {
        match self {
            Self::Read { reth, number, .. } => packets_of(reth.len, mtu).saturating_sub(*number),
            Self::Ack { .. } | Self::Atomic { .. } => 1,
        }
    }

    fn psn(&self) -> Psn {
        match self {
            Self::Ack { psn, .. } | Self::Read { psn, .. } | Self::Atomic { psn, .. } => *psn,
        }
    }
}

/// A reply in line.
#[derive(Debug)]
struct Waiting {
    reply: Reply,
    /// It was given before, or may have been: it takes up no resource.
    is_repeat: bool,
}

/// Replies that may wait: READs and atomics up to the depth, acknowledgements between them, and
/// repeats. A peer may ask again for any part of a READ, one by one, faster than they go out.
const MAX_REPLIES: usize = 64;

/// The receiving half of a queue pair.
#[derive(Debug, Default)]
pub struct Responder {
    expected: Psn,
    msn: u32,
    nak_sent: bool,
    message: Option<Message>,
    served: VecDeque<Served>,
    replies: VecDeque<Waiting>,
    /// READs and atomics that are remembered, and that may wait for their answer.
    depth: usize,
    mtu: u32,
}

/// Packets that a READ or a message of `len` bytes takes. Source: reference 7.4.
#[must_use]
pub fn packets_of(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu).max(1)
}

impl Responder {
    /// Memory that a responder of 16 READs takes at most, its lists doubling while they grow.
    pub(crate) const HEAP_BYTES: u64 =
        (3 * (MAX_REPLIES * size_of::<Waiting>() + 16 * size_of::<Served>())) as u64;

    /// A responder that expects `first`, serves `depth` READs and atomics at a time.
    #[must_use]
    pub fn new(first: Psn, depth: usize, mtu: u32) -> Self {
        Self { expected: first, depth, mtu, ..Self::default() }
    }

    /// PSN of the next packet.
    #[must_use]
    pub fn expected(&self) -> Psn {
        self.expected
    }

    /// Messages completed, modulo 2^24.
    #[must_use]
    pub fn msn(&self) -> u32 {
        self.msn
    }

    /// The reply that is due first.
    #[must_use]
    pub fn reply(&self) -> Option<Reply> {
        self.replies.front().map(|waiting| waiting.reply)
    }

    /// The reply that is due first went onto the wire, or so many packets of it.
    pub fn replied(&mut self, packets: u32) {
        let Some(front) = self.replies.front_mut() else { return };
        if let Reply::Read { reth, number, .. } = &mut front.reply {
            *number += packets;
            if *number < packets_of(reth.len, self.mtu) {
                return;
            }
        }
        self.replies.pop_front();
    }

    /// The reply that is due first cannot be given: a NAK takes its place, and ends it all. `false`
    /// if it was given before: then it goes without a word, because a NAK answers nothing but the
    /// packet that was expected, and the peer may have asked before it was content.
    ///
    /// # Source
    ///
    /// IBTA vol. 1, 9.7.5.1: no NAK but for a sequence error answers any other packet.
    pub fn refuse_reply(&mut self, syndrome: AckSyndrome) -> bool {
        let Some(Waiting { reply, is_repeat }) = self.replies.pop_front() else { return false };
        if let (Reply::Read { psn, number, .. }, false) = (reply, is_repeat) {
            self.replies.clear();
            self.push_ack(psn.plus(number), syndrome);
        }
        !is_repeat
    }

    /// Classifies a packet of a reliable connection.
    pub fn receive(&mut self, header: &Header, len: u32) -> Arrival {
        // A peer that is answered more slowly than it asks asks again.
        if self.replies.len() >= MAX_REPLIES {
            return Arrival::Dropped;
        }
        let ahead = header.psn.since(self.expected);
        if ahead > 0 {
            if !self.nak_sent {
                self.nak_sent = true;
                self.push_ack(self.expected, AckSyndrome::NAK_SEQUENCE);
            }
            return Arrival::OutOfSequence;
        }
        if ahead < 0 {
            return self.duplicate(header);
        }
        self.nak_sent = false;
        self.check(header, len)
    }

    /// Classifies a packet of an unreliable connection.
    pub fn receive_unreliable(&mut self, header: &Header, len: u32) -> Arrival {
        let lost = header.psn != self.expected;
        self.expected = header.psn;
        if lost || (header.op.starts_message() && self.message.is_some()) {
            // Packets are missing: the message they belong to is gone. Source: reference 7.6, "UC".
            let was_open = self.message.take().is_some();
            if !header.op.starts_message() {
                self.expected = header.last_psn().plus(1);
                return if was_open { Arrival::Restart } else { Arrival::Dropped };
            }
            return match self.check(header, len) {
                Arrival::New if was_open => Arrival::Restart,
                arrival => arrival,
            };
        }
        match self.check(header, len) {
            Arrival::Invalid(_) => {
                self.message = None;
                self.expected = header.last_psn().plus(1);
                Arrival::Dropped
            }
            arrival => arrival,
        }
    }

    /// Order of opcodes, and lengths. Source: reference 7.1 "payload size"; IBTA vol. 1, 9.7.4.
    fn check(&self, header: &Header, len: u32) -> Arrival {
        let op = header.op;
        let in_order = match self.message {
            None => op.starts_message() || !(op.is_send() || op.is_write()),
            Some(Message::Send) => op.is_send() && !op.starts_message(),
            Some(Message::Write { .. }) => op.is_write() && !op.starts_message(),
        };
        if !in_order {
            return Arrival::Invalid("an opcode that does not follow the one before");
        }
        // All but the last of the packets that come as one are full.
        let packets = header.packets;
        let are_full = packets.checked_mul(self.mtu) == Some(len);
        let fits = match (op.starts_message(), op.ends_message()) {
            (_, false) if op.is_send() || op.is_write() => are_full,
            (false, true) => len > 0 && packets_of(len, self.mtu) == packets,
            (true, true) => packets_of(len, self.mtu) == packets,
            _ => len == 0,
        };
        if !fits {
            return Arrival::Invalid("a payload that does not fit opcode and MTU");
        }
        let left = match self.message {
            Some(Message::Write { left, .. }) => Some(left),
            _ if op.is_write() => Some(header.reth.len),
            _ => None,
        };
        let fits = left.is_none_or(|left| if op.ends_message() { left == len } else { left > len });
        if !fits {
            return Arrival::Invalid("a payload that does not fit the length of the write");
        }
        Arrival::New
    }

    fn duplicate(&mut self, header: &Header) -> Arrival {
        match header.op {
            Op::ReadRequest => {
                let Some((reth, pd)) = self.served_read(header) else { return Arrival::Dropped };
                // Answers from there on are asked for again.
                let psn = header.psn;
                self.replies.retain(|waiting| waiting.reply.psn().is_before(psn));
                self.push(Reply::Read { psn, reth, pd, number: 0, msn: self.msn }, true);
            }
            op if op.is_atomic() => {
                let found = self.served.iter().find_map(|served| match served {
                    Served::Atomic { psn, original } if *psn == header.psn => Some(*original),
                    _ => None,
                });
                let Some(original) = found else { return Arrival::Dropped };
                let (psn, msn) = (header.psn, self.msn);
                if !self.replies.iter().any(|waiting| waiting.reply.psn() == psn) {
                    self.push(Reply::Atomic { psn, original, msn }, true);
                }
            }
            _ => self.push_ack(self.expected.previous(), AckSyndrome::ACK),
        }
        Arrival::Duplicate
    }

    /// The part of a READ served before that is asked for again.
    fn served_read(&self, header: &Header) -> Option<(Reth, u32)> {
        self.served.iter().find_map(|served| {
            let Served::Read { first, packets, reth, pd } = served else { return None };
            let number = u32::try_from(header.psn.since(*first)).ok().filter(|n| n < packets)?;
            let skipped = number.checked_mul(self.mtu)?;
            let rest = Reth {
                va: reth.va.wrapping_add(u64::from(skipped)),
                rkey: reth.rkey,
                len: reth.len.checked_sub(skipped)?,
            };
            let asked = header.reth;
            let inside = asked.va == rest.va && asked.rkey == rest.rkey && asked.len <= rest.len;
            inside.then_some((asked, *pd))
        })
    }

    /// A WRITE starts: its target was checked.
    pub fn begin_write(&mut self, reth: Reth) {
        let Reth { va, rkey, len } = reth;
        self.message = Some(Message::Write { va, rkey, left: len, total: len });
    }

    /// Address and key of the next bytes of a WRITE.
    #[must_use]
    pub fn write_target(&self) -> Option<(u64, u32)> {
        match self.message {
            Some(Message::Write { va, rkey, .. }) => Some((va, rkey)),
            _ => None,
        }
    }

    /// Bytes of the WRITE that is being carried out.
    #[must_use]
    pub fn write_len(&self) -> u32 {
        match self.message {
            Some(Message::Write { total, .. }) => total,
            _ => 0,
        }
    }

    /// A packet of a SEND or WRITE was carried out.
    pub fn accept(&mut self, header: &Header, len: u32) {
        self.expected = header.last_psn().plus(1);
        match &mut self.message {
            Some(Message::Write { va, left, .. }) => {
                *va = va.wrapping_add(u64::from(len));
                *left = left.saturating_sub(len);
            }
            Some(Message::Send) => {}
            None => self.message = Some(Message::Send),
        }
        if header.op.ends_message() {
            self.message = None;
            self.msn = (self.msn + 1) & 0xff_ffff;
        }
    }

    /// Acknowledges a packet that was accepted.
    pub fn acknowledge(&mut self, psn: Psn) {
        self.push_ack(psn, AckSyndrome::ACK);
    }

    /// Whether another READ or atomic may be served.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.replies.iter().filter(|waiting| !waiting.is_repeat).count() < self.depth
    }

    fn remember(&mut self, served: Served) {
        if self.served.len() >= self.depth {
            self.served.pop_front();
        }
        self.served.push_back(served);
    }

    /// A READ was checked: its data are due.
    pub fn accept_read(&mut self, psn: Psn, reth: Reth, pd: u32) {
        let packets = packets_of(reth.len, self.mtu);
        self.expected = psn.plus(packets);
        self.msn = (self.msn + 1) & 0xff_ffff;
        self.remember(Served::Read { first: psn, packets, reth, pd });
        self.push(Reply::Read { psn, reth, pd, number: 0, msn: self.msn }, false);
    }

    /// An atomic was carried out.
    pub fn accept_atomic(&mut self, psn: Psn, original: u64) {
        self.expected = psn.plus(1);
        self.msn = (self.msn + 1) & 0xff_ffff;
        self.remember(Served::Atomic { psn, original });
        self.push(Reply::Atomic { psn, original, msn: self.msn }, false);
    }

    /// Refuses the packet that is expected; what follows it is dropped until it comes again.
    pub fn refuse(&mut self, psn: Psn, syndrome: AckSyndrome) {
        self.nak_sent = true;
        self.push_ack(psn, syndrome);
    }

    /// Puts an acknowledgement into line; one right behind another takes its place.
    fn push_ack(&mut self, psn: Psn, syndrome: AckSyndrome) {
        let msn = self.msn;
        let back = self.replies.back_mut().map(|waiting| &mut waiting.reply);
        if let Some(Reply::Ack { psn: last, syndrome: AckSyndrome::ACK, msn: count }) = back
            && syndrome == AckSyndrome::ACK
        {
            (*last, *count) = (psn, msn);
            return;
        }
        // An acknowledgement takes up no resource either.
        self.push(Reply::Ack { psn, syndrome, msn }, true);
    }

    fn push(&mut self, reply: Reply, is_repeat: bool) {
        self.replies.push_back(Waiting { reply, is_repeat });
    }
}

#[cfg(test)]
#[path = "responder_tests.rs"]
mod tests;
