//! What a receive queue's work requests look like: how many buffers, how long, of which pool.
//!
//! A work request is a row of data segments, of which the device fills one after the other. Their
//! lengths and keys never change, so they are written once; posting a buffer writes its address.
//!
//! | queue | first segment | the others |
//! |---|---|---|
//! | one buffer to a packet | a buffer of the pool, behind its headroom | none |
//! | long frames | the same | whole buffers of the pool |
//! | [striding](crate::Striding) | a link | a large buffer, written once by `strides` |
//! | [split](crate::BufferSplit) | `header_bytes` of a buffer of the pool, behind its headroom | whole buffers of the payload pool |

use ferrocx_core::wq::{RecvRing, RqAttr, put_data};
use ferrocx_core::{ConfigError, Device, DeviceError, Handle};
use ferrocx_mempool::Pool;
use ferrocx_prm::cqe::Cqe64;
use ferrocx_prm::wqe::INVALID_LKEY;

use super::tails::Tails;
use super::{L2_BYTES, RxRing, strides};
use crate::config::{BufferSplit, RxQueueConfig, Striding};

/// Sizes of a receive queue, checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Completions.
    pub(super) log_cq: u8,
    /// Work requests.
    pub(super) log_size: u8,
    /// Units of 16 bytes of a work request: its buffers, but of a striding queue.
    pub(super) log_segs: u8,
    is_striding: bool,
}

impl Shape {
    pub(crate) fn of(
        device: &Device,
        pool: &Pool,
        config: &RxQueueConfig,
    ) -> Result<Self, ConfigError> {
        let limits = device.limits();
        let (least, hint) = match config.striding {
            Some(_) => (2 * Striding::STRIDES, ", strides of 64 bytes of a striding queue"),
            None => (limits.min_descriptors, ""),
        };
        let (descriptors, most) = (config.descriptors, limits.max_descriptors);
        let log_size = ConfigError::log2("receive descriptors", descriptors, least, most, hint)?;
        // The entries of a compressed block are the device's again when all of it is read. Packets
        // that were taken out of it meanwhile have buffers in the ring already, which complete too.
        let log_cq = log_size + u8::from(config.cqe_compression);
        let mtu = u32::from(device.mtu());
        let frame = config.max_frame_bytes.unwrap_or(mtu + L2_BYTES);
        ConfigError::range("largest frame in bytes", frame.into(), 64, 65535, "")?;
        let (room, headroom) = (pool.data_room_bytes() as u32, pool.headroom_bytes() as u32);
        if room <= headroom {
            let what = "the pool's buffers have no room behind their headroom; make them larger";
            return Err(ConfigError::Conflict { what });
        }
        let first = room - headroom;
        if let Some(Striding { copy_bytes, .. }) = config.striding {
            let hint = "; give the queue's pool larger buffers, or copy less";
            ConfigError::range("bytes to copy", copy_bytes.into(), 0, first.into(), hint)?;
            let (most, hint) = (Striding::BUFFER_BYTES, ", what a large buffer holds");
            ConfigError::range("largest frame in bytes", frame.into(), 64, most.into(), hint)?;
            let (log_size, log_segs) = (log_size - Striding::LOG_STRIDES, strides::LOG_UNITS);
            return Ok(Self { log_cq, log_size, log_segs, is_striding: true });
        }
        let segs = match &config.split {
            None => 1 + frame.saturating_sub(first).div_ceil(room),
            Some(BufferSplit { header_bytes, payload }) => {
                let header = u32::from(*header_bytes);
                let hint = "; give the header's pool larger buffers, or split earlier";
                ConfigError::range("header bytes", header.into(), 1, first.into(), hint)?;
                let room = payload.data_room_bytes() as u32;
                // One at least: a queue that splits has a second segment, whatever the MTU.
                1 + frame.saturating_sub(header).div_ceil(room).max(1)
            }
        };
        let segs = segs.next_power_of_two();
        let max = RxQueueConfig::MAX_SEGMENTS;
        let hint = "; use a pool with larger buffers, or a smaller max_frame_bytes";
        ConfigError::range("buffers for the largest frame", segs.into(), 1, max.into(), hint)?;
        let log_segs = segs.trailing_zeros() as u8;
        Ok(Self { log_cq, log_size, log_segs, is_striding: false })
    }

    /// Buffers of the queue's pool that it holds, log2 of those to a received frame.
    pub(crate) fn log_buffers(self) -> u8 {
        if self.is_striding { 0 } else { self.log_segs }
    }

    /// Places for buffers of the queue's pool, of work requests their first ones.
    pub(super) fn elts(self) -> usize {
        if self.is_striding { strides::AT_HAND } else { 1 << self.log_size }
    }

    /// Bits of a completion's counter that must be as expected: those that name a work request, of
    /// a striding queue a stride.
    pub(super) fn counter_mask(self) -> u32 {
        let log = if self.is_striding { u16::BITS } else { self.log_size.into() };
        Cqe64::WQE_COUNTER.of((1 << log) - 1)
    }
}

/// A data segment of a work request.
#[derive(Debug, Clone, Copy)]
pub(super) struct SegmentShape {
    /// Bytes of the buffer in front of what the device may write.
    pub(super) headroom: u16,
    /// Bytes that the device may write.
    pub(super) room: u32,
    /// Key, as it stands in a WQE.
    lkey_be: u32,
}

impl SegmentShape {
    /// The first segment of every work request, and the others.
    pub(super) fn both(
        pool: &Pool,
        lkey_be: u32,
        split: Option<&BufferSplit>,
        tails: Option<&Tails>,
    ) -> [Self; 2] {
        let room_of = |pool: &Pool| pool.data_room_bytes() as u32;
        let headroom = pool.headroom_bytes() as u16;
        let behind = room_of(pool) - u32::from(headroom);
        let first = split.map_or(behind, |split| split.header_bytes.into());
        let payload = tails.and_then(|tails| tails.payload.as_ref());
        let rest = room_of(tails.map_or(pool, Tails::pool));
        let rest_key = payload.map_or(lkey_be, |payload| payload.keys.lkey_be);
        [
            Self { headroom, room: first, lkey_be },
            Self { headroom: 0, room: rest, lkey_be: rest_key },
        ]
    }
}

impl RxRing {
    /// Writes length and key of every descriptor, once.
    pub(super) fn stamp_segments(&self) {
        if let Some(strides) = &self.strides {
            return strides.stamp(&self.ring);
        }
        let view = self.ring.view();
        for index in 0..self.ring.entries() << self.ring.log_segments() {
            let SegmentShape { room, lkey_be, .. } =
                self.shapes[usize::from(index & ((1 << self.ring.log_segments()) - 1) != 0)];
            debug_assert_ne!(u32::from_be(lkey_be), INVALID_LKEY, "the pool is registered");
            put_data(view.at(index), room, lkey_be, 0);
        }
    }

    /// Why [`RxRing::fill`] could not fill the ring: which pool has too few buffers for it.
    #[cold]
    pub(super) fn too_small(&mut self) -> DeviceError {
        if let Some(strides) = &self.strides {
            let (need, pool) = (self.ring.entries() as usize, strides.pool().name().to_owned());
            return DeviceError::PoolTooSmall { pool, need, got: strides.posted() };
        }
        let segs = 1 << self.ring.log_segments();
        let split = self.tails.as_ref().filter(|tails| tails.payload.is_some());
        let (pool, of_each) = match (self.cache.get(), split) {
            (Some(header), Some(tails)) => {
                self.cache.put(header);
                (tails.pool(), segs - 1)
            }
            (None, Some(_)) => (self.cache.pool(), 1),
            (_, None) => (self.cache.pool(), segs),
        };
        // Only whole work requests are posted.
        DeviceError::PoolTooSmall {
            pool: pool.name().to_owned(),
            need: self.ring.entries() as usize * of_each,
            got: self.ring.outstanding() as usize * of_each,
        }
    }
}

/// Makes the ring that the buffers of the queue are posted to.
#[expect(unsafe_code, reason = "a ring is a promise about what stands in it")]
pub(super) fn create(
    device: &Device,
    attr: &RqAttr<'_>,
) -> Result<(RecvRing, Handle), DeviceError> {
    // SAFETY: entries name the room of buffers of a registered pool that the queue owns from before
    // the device is told of the entry until its completion was read; at the queue's end they stay
    // its own until the device let go of them, or are leaked.
    unsafe { RecvRing::create(device, attr) }
}
