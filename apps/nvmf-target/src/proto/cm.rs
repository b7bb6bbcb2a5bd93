//! Private data of the connection manager: [`Request`], [`Accept`], [`Reject`].

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What a host says when it asks for a queue.
///
/// # Source
///
/// NVMe over RDMA transport, "Fabrics Dependent Settings"; reference 10.1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Request {
    /// Format: 0.
    pub recfmt: U16,
    /// The queue, 0 for the admin queue.
    pub qid: U16,
    /// Receives of the host, counted from 1.
    pub hrqsize: U16,
    /// Entries of the host's submission queue, less one.
    pub hsqsize: U16,
    /// Controller of an I/O queue.
    pub cntlid: U16,
    /// Zeros.
    pub reserved: [u8; 22],
}

/// What a target says when it accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Accept {
    /// Format: 0.
    pub recfmt: U16,
    /// Receives of the target.
    pub crqsize: U16,
    /// Zeros.
    pub reserved: [[u8; 14]; 2],
}

/// Why a target refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    /// Too few bytes of private data.
    Length = 1,
    /// A format that is not known.
    Format = 2,
    /// A queue that cannot be.
    QueueId = 3,
    /// The submission queue is too long.
    SqSize = 4,
    /// The host has too few receives.
    RqSize = 5,
    /// No room for another queue.
    Resources = 6,
    /// The host serves no READs.
    Reads = 7,
}

impl Reject {
    /// The private data of a refusal.
    #[must_use]
    pub fn encode(self) -> [u8; 4] {
        [0, 0, self as u8, 0]
    }
}

impl Request {
    /// Reads a host's private data, and checks them against the queue sizes that are offered:
    /// `max_entries` of an I/O queue, 32 of the admin queue.
    ///
    /// # Errors
    ///
    /// [`Reject`], which goes to the host.
    pub fn parse(bytes: &[u8], max_entries: u16, reads: u8) -> Result<Self, Reject> {
        let Ok((request, _)) = Self::read_from_prefix(bytes) else { return Err(Reject::Length) };
        let limit = if request.qid == 0 { super::connect::ADMIN_ENTRIES } else { max_entries };
        let entries = u32::from(request.hsqsize.get()) + 1;
        if request.recfmt != 0 {
            Err(Reject::Format)
        } else if entries < 2 || entries > u32::from(limit) {
            Err(Reject::SqSize)
        } else if u32::from(request.hrqsize.get()) < entries {
            // Answers would find no receive.
            Err(Reject::RqSize)
        } else if reads == 0 {
            Err(Reject::Reads)
        } else {
            Ok(request)
        }
    }

    /// Entries of the host's submission queue.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.hsqsize.get().saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINUX_IO: [u8; 10] = [0, 0, 2, 0, 0x80, 0, 0x7f, 0, 0x34, 0x12];

    fn padded(head: &[u8]) -> Vec<u8> {
        let mut bytes = head.to_vec();
        bytes.resize(56, 0);
        bytes
    }

    #[test]
    fn the_request_of_a_linux_host_is_read() {
        let request = Request::parse(&padded(&LINUX_IO), 128, 16).unwrap();
        assert_eq!((request.qid.get(), request.entries()), (2, 128));
        assert_eq!((request.hrqsize.get(), request.cntlid.get()), (128, 0x1234));
        assert_eq!(size_of::<Request>(), 32);
        let accept = Accept { crqsize: 128.into(), ..Accept::default() };
        assert_eq!(&accept.as_bytes()[..4], [0, 0, 128, 0]);
        assert_eq!(accept.as_bytes().len(), 32);
        assert_eq!(Reject::Resources.encode(), [0, 0, 6, 0]);
    }

    #[test]
    fn each_wrong_field_has_its_reason() {
        let with = |at: usize, value: u8| {
            let mut bytes = padded(&LINUX_IO);
            bytes[at] = value;
            Request::parse(&bytes, 128, 16)
        };
        assert_eq!(with(0, 1), Err(Reject::Format));
        assert_eq!(with(6, 0x80), Err(Reject::SqSize));
        assert_eq!(with(7, 0xff), Err(Reject::SqSize));
        assert_eq!(with(4, 0x7f), Err(Reject::RqSize));
        assert_eq!(with(2, 0), Err(Reject::SqSize), "128 entries of an admin queue");
        assert_eq!(Request::parse(&padded(&LINUX_IO), 128, 0), Err(Reject::Reads));
        assert_eq!(Request::parse(&LINUX_IO, 128, 16), Err(Reject::Length));
    }
}
