//! [`Sgl`]: where a command's data are.

use super::status::Status;

/// Memory of the host that a key lends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keyed {
    /// Address under the key.
    pub addr: u64,
    /// Bytes, below 2^24.
    pub len: u32,
    /// The key.
    pub rkey: u32,
    /// The answer shall end the key.
    pub inv: bool,
}

/// Where a command's data are.
///
/// # Source
///
/// NVM Express base, "SGL Descriptor"; reference 10.1.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sgl {
    /// In the host's memory; of no length for a command without data.
    Keyed(Keyed),
    /// Behind the command in its capsule: offset from there, and bytes.
    InCapsule {
        /// Where the data begin.
        offset: u64,
        /// Bytes.
        len: u32,
    },
}

impl Keyed {
    /// Reads a descriptor; `None` for one of another kind.
    #[inline(always)]
    #[must_use]
    pub fn parse(bytes: &[u8; 16]) -> Option<Self> {
        matches!(bytes[15], 0x40 | 0x4f).then(|| Self::fields(bytes))
    }

    /// The fields of a descriptor that is known to be of this kind.
    #[inline(always)]
    #[must_use]
    pub fn fields(bytes: &[u8; 16]) -> Self {
        Self {
            addr: u64::from_le_bytes([
                bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
            ]),
            len: u32::from_le_bytes([bytes[8], bytes[9], bytes[10], 0]),
            rkey: u32::from_le_bytes([bytes[11], bytes[12], bytes[13], bytes[14]]),
            inv: bytes[15] == 0x4f,
        }
    }
}

impl Sgl {
    /// Of a command without data.
    pub const NONE: Self = Self::Keyed(Keyed { addr: 0, len: 0, rkey: 0, inv: false });

    /// Reads a descriptor.
    ///
    /// # Errors
    ///
    /// [`Status::SGL_TYPE`], or [`Status::INVALID_FIELD`] for a known type of another subtype.
    pub fn parse(bytes: &[u8; 16]) -> Result<Self, Status> {
        let low = u64::from_le_bytes([
            bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
        ]);
        if let Some(keyed) = Keyed::parse(bytes) {
            return Ok(Self::Keyed(keyed));
        }
        match bytes[15] {
            0x01 => {
                let len = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
                Ok(Self::InCapsule { offset: low, len })
            }
            kind if matches!(kind >> 4, 0 | 4) => Err(Status::INVALID_FIELD.dnr()),
            _ => Err(Status::SGL_TYPE.dnr()),
        }
    }

    /// The descriptor.
    #[must_use]
    pub fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        match self {
            Self::Keyed(keyed) => {
                bytes[..8].copy_from_slice(&keyed.addr.to_le_bytes());
                bytes[8..11].copy_from_slice(&keyed.len.to_le_bytes()[..3]);
                bytes[11..15].copy_from_slice(&keyed.rkey.to_le_bytes());
                bytes[15] = if keyed.inv { 0x4f } else { 0x40 };
            }
            Self::InCapsule { offset, len } => {
                bytes[..8].copy_from_slice(&offset.to_le_bytes());
                bytes[8..12].copy_from_slice(&len.to_le_bytes());
                bytes[15] = 0x01;
            }
        }
        bytes
    }

    /// Bytes that it describes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        match self {
            Self::Keyed(keyed) => keyed.len,
            Self::InCapsule { len, .. } => *len,
        }
    }

    /// Whether it describes none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key that the answer shall end: also of a command that is refused for something else.
    #[inline]
    #[must_use]
    pub fn key_to_end(bytes: &[u8; 16]) -> Option<u32> {
        let key = u32::from_le_bytes([bytes[11], bytes[12], bytes[13], bytes[14]]);
        (bytes[15] == 0x4f).then_some(key)
    }
}

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;
/// Descriptors of a list at most: MSDBD, and what SPDK's hosts use.
pub const MAX_DESCRIPTORS: usize = 16;

/// A list of descriptors in a command's capsule: the last segment of an SGL, and the only one.
///
/// # Source
///
/// NVM Express base, "SGL Last Segment descriptor"; reference 10.1.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List {
    /// Where it begins, counted from behind the command.
    pub start: usize,
    /// Descriptors of it: 1 to [`MAX_DESCRIPTORS`].
    pub count: u8,
}

impl List {
    /// The kind of the descriptor that names a list in the capsule.
    pub const KIND: u8 = 0x31;

    /// Reads the descriptor of a list that lies among `received` bytes behind the command; `None`
    /// for a descriptor of another kind.
    ///
    /// # Errors
    ///
    /// [`Status::SGL_SEGMENT`], [`Status::SGL_COUNT`], [`Status::SGL_OFFSET`].
    pub fn parse(bytes: &[u8; 16], received: usize) -> Option<Result<Self, Status>> {
        if bytes[15] != Self::KIND {
            return None;
        }
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *bytes;
        let offset = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let len = u32::from_le_bytes([i, j, k, l]);
        Some(Self::check(offset, len, received))
    }

    fn check(offset: u64, len: u32, received: usize) -> Result<Self, Status> {
        if len == 0 || !(len as usize).is_multiple_of(DESCRIPTOR_BYTES) {
            return Err(Status::SGL_SEGMENT.dnr());
        }
        let count = len as usize / DESCRIPTOR_BYTES;
        if count > MAX_DESCRIPTORS {
            return Err(Status::SGL_COUNT.dnr());
        }
        let start = in_capsule(offset, len, received)?.start;
        Ok(Self { start, count: count as u8 })
    }

    /// Its bytes.
    #[must_use]
    pub fn len_bytes(self) -> usize {
        usize::from(self.count) * DESCRIPTOR_BYTES
    }

    /// The descriptor of a list at an offset behind the command.
    #[must_use]
    pub fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&(self.start as u64).to_le_bytes());
        bytes[8..12].copy_from_slice(&(self.len_bytes() as u32).to_le_bytes());
        bytes[15] = Self::KIND;
        bytes
    }
}

/// The blocks of a list: all are in the host's memory, by a key each, and none is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    blocks: [Keyed; MAX_DESCRIPTORS],
    count: usize,
    total: u64,
    /// What the last descriptor is, be it empty or not.
    last: Keyed,
}

impl Listed {
    /// Reads the descriptors of a list whose blocks have `len` bytes together.
    ///
    /// # Errors
    ///
    /// [`Status::DATA_LENGTH`] if they have not; [`Status::SGL_TYPE`] or [`Status::INVALID_FIELD`]
    /// for one that is no block of the host's memory, and [`Status::INVALID_FIELD`] for a key that
    /// is to be ended and is not the last: an answer ends one.
    pub fn exactly(bytes: &[u8], len: u64) -> Result<Self, Status> {
        let listed = Self::read(bytes, u64::MAX)?;
        if listed.total == len { Ok(listed) } else { Err(Status::DATA_LENGTH.dnr()) }
    }

    /// Reads the descriptors of a list whose blocks have `len` bytes at least, and takes these.
    ///
    /// # Errors
    ///
    /// As [`Listed::exactly`].
    pub fn at_least(bytes: &[u8], len: u32) -> Result<Self, Status> {
        let listed = Self::read(bytes, len.into())?;
        if listed.total >= len.into() { Ok(listed) } else { Err(Status::DATA_LENGTH.dnr()) }
    }

    /// Reads descriptors; blocks are cut to `most` bytes together.
    fn read(bytes: &[u8], most: u64) -> Result<Self, Status> {
        let mut listed = Self {
            blocks: [Keyed::default(); MAX_DESCRIPTORS],
            count: 0,
            total: 0,
            last: Keyed::default(),
        };
        let (descriptors, rest) = bytes.as_chunks::<DESCRIPTOR_BYTES>();
        if !rest.is_empty() || descriptors.len() > MAX_DESCRIPTORS {
            return Err(Status::SGL_SEGMENT.dnr());
        }
        for (at, descriptor) in descriptors.iter().enumerate() {
            let Sgl::Keyed(keyed) = Sgl::parse(descriptor)? else {
                return Err(Status::SGL_TYPE.dnr());
            };
            if keyed.inv && at + 1 < descriptors.len() {
                return Err(Status::INVALID_FIELD.dnr());
            }
            listed.last = keyed;
            // Sixteen lengths of 24 bits fit.
            let left = most.saturating_sub(listed.total);
            listed.total += u64::from(keyed.len);
            let len = u64::from(keyed.len).min(left) as u32;
            if len > 0
                && let Some(block) = listed.blocks.get_mut(listed.count)
            {
                *block = Keyed { len, ..keyed };
                listed.count += 1;
            }
        }
        Ok(listed)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What the last descriptor of the list says.
    #[must_use]
    pub fn last(&self) -> Option<Keyed> {
        (self.count > 0).then_some(self.last)
    }

    /// The blocks, and where each begins among the command's bytes.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Keyed)> {
        let mut next = 0;
        self.blocks.iter().take(self.count).map(move |block| {
            let at = next;
            next += block.len;
            (at, *block)
        })
    }
}

/// Where in-capsule data lie among `received` bytes behind the command.
///
/// # Errors
///
/// [`Status::SGL_OFFSET`] for any byte outside what was received, whatever stands in the buffer.
#[inline]
pub fn in_capsule(
    offset: u64,
    len: u32,
    received: usize,
) -> Result<std::ops::Range<usize>, Status> {
    let end = offset.checked_add(u64::from(len)).filter(|end| *end <= received as u64);
    match end {
        Some(end) => Ok(offset as usize..end as usize),
        None => Err(Status::SGL_OFFSET.dnr()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_linux_are_read() {
        let mut bytes = [0; 16];
        bytes[..11].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1, 0x03, 0x02, 0x01]);
        bytes[11..].copy_from_slice(&[0xdd, 0xcc, 0xbb, 0xaa, 0x40]);
        let keyed =
            Keyed { addr: 0x0102_0304_0506_0708, len: 0x01_0203, rkey: 0xaabb_ccdd, inv: false };
        assert_eq!(Sgl::parse(&bytes), Ok(Sgl::Keyed(keyed)));
        assert_eq!(Sgl::key_to_end(&bytes), None);
        bytes[15] = 0x4f;
        assert_eq!(Sgl::parse(&bytes), Ok(Sgl::Keyed(Keyed { inv: true, ..keyed })));
        assert_eq!(Sgl::key_to_end(&bytes), Some(0xaabb_ccdd));
        assert_eq!(Sgl::Keyed(Keyed { inv: true, ..keyed }).encode(), bytes);
        let mut bytes = [0; 16];
        bytes[8..12].copy_from_slice(&[0, 0x10, 0, 0]);
        bytes[15] = 0x01;
        assert_eq!(Sgl::parse(&bytes), Ok(Sgl::InCapsule { offset: 0, len: 4096 }));
        assert_eq!(Sgl::InCapsule { offset: 0, len: 4096 }.encode(), bytes);
    }

    #[test]
    fn all_other_kinds_are_refused() {
        for kind in 0..=255 {
            let parsed = Sgl::parse(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, kind]);
            match kind {
                0x01 | 0x40 | 0x4f => assert!(parsed.is_ok()),
                0x00..=0x0f | 0x41..=0x4e => assert_eq!(parsed, Err(Status::INVALID_FIELD.dnr())),
                _ => assert_eq!(parsed, Err(Status::SGL_TYPE.dnr()), "{kind:#x}"),
            }
        }
    }

    /// A descriptor of a list at 0x20 of 3 entries, as the table says by hand.
    #[test]
    fn a_list_has_the_bytes_of_the_table() {
        let mut bytes = [0; 16];
        (bytes[0], bytes[8], bytes[15]) = (0x20, 0x30, 0x31);
        let list = List { start: 0x20, count: 3 };
        assert_eq!((list.encode(), List::parse(&bytes, 0x50)), (bytes, Some(Ok(list))));
        assert_eq!(List::parse(&bytes, 0x4f), Some(Err(Status::SGL_OFFSET.dnr())));
        bytes[..8].fill(0xff);
        assert_eq!(List::parse(&bytes, 0x1000), Some(Err(Status::SGL_OFFSET.dnr())));
        bytes[..8].fill(0);
        for (len, expected) in [
            (0, Status::SGL_SEGMENT),
            (8, Status::SGL_SEGMENT),
            (17, Status::SGL_SEGMENT),
            (17 * 16, Status::SGL_COUNT),
            (0xffff_fff0, Status::SGL_COUNT),
        ] {
            bytes[8..12].copy_from_slice(&u32::to_le_bytes(len));
            assert_eq!(List::parse(&bytes, 0x1000), Some(Err(expected.dnr())), "{len}");
        }
        bytes[8..12].copy_from_slice(&256_u32.to_le_bytes());
        assert_eq!(List::parse(&bytes, 256), Some(Ok(List { start: 0, count: 16 })));
        bytes[15] = 0x30;
        assert_eq!(List::parse(&bytes, 256), None);
    }

    fn keyed(len: u32, rkey: u32, inv: bool) -> Keyed {
        Keyed { addr: u64::from(rkey) << 32, len, rkey, inv }
    }

    fn bytes_of(blocks: &[Keyed]) -> Vec<u8> {
        blocks.iter().flat_map(|it| Sgl::Keyed(*it).encode()).collect()
    }

    #[test]
    fn blocks_of_a_list_are_those_that_have_bytes() {
        let list = [keyed(512, 1, false), keyed(0, 2, false), keyed(1024, 3, true)];
        let listed = Listed::exactly(&bytes_of(&list), 1536).unwrap();
        assert_eq!(listed.iter().collect::<Vec<_>>(), [(0, list[0]), (512, list[2])]);
        assert_eq!((listed.len(), listed.last()), (2, Some(list[2])));
        for len in [0, 1535, 1537, u64::MAX] {
            let wrong = Listed::exactly(&bytes_of(&list), len);
            assert_eq!(wrong, Err(Status::DATA_LENGTH.dnr()), "{len}");
        }
        // Of what has more bytes than are needed the first are taken, and the last key is the last.
        let listed = Listed::at_least(&bytes_of(&list), 600).unwrap();
        assert_eq!(listed.iter().map(|(_, it)| it.len).collect::<Vec<_>>(), [512, 88]);
        let listed = Listed::at_least(&bytes_of(&list), 512).unwrap();
        assert_eq!((listed.len(), listed.last()), (1, Some(list[2])));
        assert_eq!(Listed::at_least(&bytes_of(&list), 1537), Err(Status::DATA_LENGTH.dnr()));
        let most = [keyed(0xff_ffff, 1, false); 16];
        assert_eq!(Listed::exactly(&bytes_of(&most), 16 * 0xff_ffff).unwrap().len(), 16);
    }

    #[test]
    fn what_is_no_block_of_the_hosts_memory_is_refused() {
        let first = [keyed(512, 1, true), keyed(512, 2, false)];
        assert_eq!(Listed::exactly(&bytes_of(&first), 1024), Err(Status::INVALID_FIELD.dnr()));
        for (kind, expected) in [
            (0x00, Status::INVALID_FIELD),
            (0x01, Status::SGL_TYPE),
            (0x10, Status::SGL_TYPE),
            (0x20, Status::SGL_TYPE),
            (0x31, Status::SGL_TYPE),
            (0x41, Status::INVALID_FIELD),
            (0x5a, Status::SGL_TYPE),
        ] {
            let mut bytes = bytes_of(&[keyed(512, 1, false); 2]);
            bytes[31] = kind;
            assert_eq!(Listed::exactly(&bytes, 1024), Err(expected.dnr()), "{kind:#x}");
        }
        assert_eq!(Listed::exactly(&[0; 15], 0), Err(Status::SGL_SEGMENT.dnr()));
        assert_eq!(Listed::exactly(&[0x40; 17 * 16], 0), Err(Status::SGL_SEGMENT.dnr()));
    }

    #[test]
    fn in_capsule_data_stay_among_what_was_received() {
        assert_eq!(in_capsule(0, 512, 512), Ok(0..512));
        assert_eq!(in_capsule(512, 0, 512), Ok(512..512));
        for (offset, len, received) in
            [(0, 513, 512), (1, 512, 512), (u64::MAX, 512, 512), (u64::MAX - 511, 512, 512)]
        {
            assert_eq!(in_capsule(offset, len, received), Err(Status::SGL_OFFSET.dnr()));
        }
    }
}
