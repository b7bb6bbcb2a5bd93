//! Messages of a day, one behind the other in memory that was there before.

/// Bytes of a message, for which room is made.
const ROOM_BYTES: usize = 64;

/// Messages that are kept, by their place from 0.
#[derive(Debug, Default)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Kept {
    /// None yet, and room for so many: until then keeping one allocates nothing.
    pub(super) fn with_room(messages: usize) -> Self {
        let bytes = Vec::with_capacity(messages * ROOM_BYTES);
        Self { bytes, ends: Vec::with_capacity(messages) }
    }

    pub(super) fn push(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(message);
        self.ends.push(self.bytes.len());
    }

    pub(super) const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Forgets all behind so many.
    pub(super) fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
    }

    /// The messages from a place on.
    pub(super) fn from(&self, first: usize) -> impl Iterator<Item = &[u8]> + Clone {
        let start = |place: usize| place.checked_sub(1).map_or(0, |before| self.ends[before]);
        (first..self.len()).map(move |place| &self.bytes[start(place)..self.ends[place]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_from_any_place_on_and_what_is_forgotten_does_not() {
        let mut kept = Kept::with_room(2);
        for message in [&b"one"[..], b"", b"three", b"four"] {
            kept.push(message);
        }
        assert_eq!(kept.from(1).collect::<Vec<_>>(), [&b""[..], b"three", b"four"]);
        assert_eq!((kept.len(), kept.from(4).count()), (4, 0));
        kept.truncate(1);
        kept.push(b"another");
        assert_eq!(kept.from(0).collect::<Vec<_>>(), [&b"one"[..], b"another"]);
        kept.truncate(0);
        assert_eq!(kept.len(), 0);
    }

    /// A run that is measured makes room before it starts.
    #[test]
    fn while_there_is_room_nothing_moves() {
        let mut kept = Kept::with_room(100);
        let before = (kept.bytes.capacity(), kept.ends.capacity());
        (0..100).for_each(|_| kept.push(&[7; ROOM_BYTES]));
        assert_eq!((kept.bytes.capacity(), kept.ends.capacity()), before);
    }
}
