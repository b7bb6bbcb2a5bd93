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
