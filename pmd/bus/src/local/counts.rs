//! What a device did to host memory, counted.

/// Places in the array of counts, which [`DmaCounts::from`] names.
pub(super) const READS: usize = 0;
pub(super) const WRITES: usize = 2;
pub(super) const FAULTS: usize = 4;
pub(super) const DATA_READ: usize = 5;
pub(super) const DATA_WRITTEN: usize = 6;
pub(super) const WATCHED_READ: usize = 7;
pub(super) const WATCHED_WRITTEN: usize = 8;
pub(super) const COUNTS: usize = 9;

/// Accesses by I/O address, refused ones included in `faults` only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DmaCounts {
    /// Reads made.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes made.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Accesses refused.
    pub faults: u64,
    /// Of the bytes read, those of messages and packets, see
    /// [`DmaView::note_data`](super::DmaView::note_data).
    pub data_read_bytes: u64,
    /// Of the bytes written, those of messages and packets.
    pub data_written_bytes: u64,
    /// Of the bytes read, those of mappings that are watched, see
    /// [`super::DeviceSide::dma_watch`].
    pub watched_read_bytes: u64,
    /// Of the bytes written, those of mappings that are watched.
    pub watched_written_bytes: u64,
}

impl From<[u64; COUNTS]> for DmaCounts {
    fn from(counts: [u64; COUNTS]) -> Self {
        Self {
            reads: counts[READS],
            read_bytes: counts[READS + 1],
            writes: counts[WRITES],
            written_bytes: counts[WRITES + 1],
            faults: counts[FAULTS],
            data_read_bytes: counts[DATA_READ],
            data_written_bytes: counts[DATA_WRITTEN],
            watched_read_bytes: counts[WATCHED_READ],
            watched_written_bytes: counts[WATCHED_WRITTEN],
        }
    }
}
