//! Messages become numbered packets, and are kept for those who lost some.

use crate::proto::mold::{self, Builder, Header, Session};
use zerocopy::IntoBytes;

use super::kept::Kept;

/// Numbers, packs, and keeps the messages of a session.
#[derive(Debug)]
pub struct Publisher {
    session: Session,
    messages: Kept,
    /// Messages that went into packets.
    sent: usize,
    max_packet: usize,
}

impl Publisher {
    /// A session without messages, whose packets have at most `max_packet` bytes, with room for so
    /// many messages: until then no growth of a table delays one.
    ///
    /// # Panics
    /// If no message of 64 bytes fits a packet.
    pub fn new(session: Session, max_packet: usize, messages: usize) -> Self {
        assert!(max_packet >= mold::HEADER_LEN + 66, "packets of {max_packet} bytes hold nothing");
        Self { session, messages: Kept::with_room(messages), sent: 0, max_packet }
    }

    /// Adds a message, to go with the next packet.
    pub fn push(&mut self, message: &[u8]) {
        self.messages.push(message);
    }

    /// The next packet of messages that were not sent, at most `messages` of them; `None` if all
    /// were.
    pub fn next_packet(&mut self, messages: usize) -> Option<Vec<u8>> {
        if self.sent == self.messages.len() {
            return None;
        }
        let (packet, count) = self.pack(self.sent, messages);
        self.sent += count;
        Some(packet)
    }

    fn pack(&self, first: usize, messages: usize) -> (Vec<u8>, usize) {
        let mut bytes = vec![0; self.max_packet];
        let mut builder = Builder::new(&mut bytes, self.session, first as u64 + 1)
            .expect("a packet holds its header");
        for message in self.messages.from(first).take(messages) {
            if !builder.push(message) {
                break;
            }
        }
        let count = usize::from(builder.count());
        (builder.finish().to_vec(), count)
    }

    /// A sign of life.
    pub fn heartbeat(&self) -> Vec<u8> {
        mold::heartbeat(self.session, self.sent as u64 + 1).as_bytes().to_vec()
    }

    /// The end of the session.
    pub fn end_of_session(&self) -> Vec<u8> {
        mold::end_of_session(self.session, self.sent as u64 + 1).as_bytes().to_vec()
    }

    /// The answer to a request: one packet with as many of the wanted messages as fit and were
    /// sent; `None` for another session and for messages that do not exist.
    pub fn answer(&self, request: &Header) -> Option<Vec<u8>> {
        let first = usize::try_from(request.sequence.get().checked_sub(1)?).ok()?;
        let left = self.sent.checked_sub(first)?;
        let wanted = usize::from(request.count.get()).min(left);
        (request.session == self.session && wanted != 0).then(|| self.pack(first, wanted).0)
    }

    /// Messages that were sent.
    pub const fn sent(&self) -> usize {
        self.sent
    }

    /// The session that these messages are of.
    pub const fn session(&self) -> Session {
        self.session
    }
}
