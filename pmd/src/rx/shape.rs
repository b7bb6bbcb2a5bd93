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
use ferrocx_core::{ConfigError, Device, DeviceError, Handle, RegionKeys};
use ferrocx_mempool::{MbufFifo, Pool, PoolCache};
use ferrocx_prm::cqe::Cqe64;
use ferrocx_prm::wqe::{Data, INVALID_LKEY};

use super::{L2_BYTES, REFILL, RxRing, strides};
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

    /// Places for buffers of the queue's pool.
    pub(super) fn elts(self) -> usize {
        if self.is_striding { strides::AT_HAND } else { 1 << (self.log_size + self.log_segs) }
    }

    /// Bits of a completion's counter that must be as expected: those that name a work request, of
    /// a striding queue a stride.
    pub(super) fn counter_mask(self) -> u32 {
        let log = if self.is_striding { u16::BITS } else { self.log_size.into() };
        Cqe64::WQE_COUNTER.of((1 << log) - 1)
    }
}

/// Of a queue that splits: where the bytes behind the header go.
pub(super) struct Split {
    header_bytes: u16,
    /// Bytes of a payload buffer.
    room: u16,
    pub(super) cache: PoolCache,
    /// Payload buffers in the ring. They may be ahead of the headers.
    pub(super) elts: MbufFifo,
    /// Payload buffers of a work request.
    pub(super) of_each: usize,
    /// Where the next one goes: work request, and segment of it.
    at: (u32, u32),
    /// Keeps the payload pool's region mapped.
    pub(super) keys: RegionKeys,
}

impl Split {
    pub(super) fn of(
        device: &Device,
        split: &BufferSplit,
        (cache_size, shape): (usize, Shape),
    ) -> Result<Box<Self>, DeviceError> {
        let BufferSplit { header_bytes, payload } = split;
        let keys = device.region_keys(payload)?;
        Ok(Box::new(Self {
            header_bytes: *header_bytes,
            room: payload.data_room_bytes() as u16,
            cache: payload.cache_with_size(cache_size),
            elts: MbufFifo::new(payload, 1 << (shape.log_size + shape.log_segs)),
            of_each: (1 << shape.log_segs) - 1,
            at: (0, FIRST_PAYLOAD),
            keys,
        }))
    }

    /// Puts payload buffers into all places of `ring` that have none, many at a time as long as the
    /// pool has so many.
    pub(super) fn fill(&mut self, ring: &RecvRing) {
        let (log_segs, most) = (ring.log_segments(), ring.entries() as usize * self.of_each);
        let (view, offset, mut at) = (ring.view(), self.keys.va_to_iova, self.at);
        let mut at_once = REFILL * self.of_each;
        while at_once != 0 && self.elts.len() < most {
            let n = at_once.min(most - self.elts.len());
            let posted = self.elts.fill(&mut self.cache, n, |room| {
                let slot = view.at((at.0 << log_segs).wrapping_add(at.1));
                slot.store_be64::<{ Data::ADDR.offset }>((room as u64).wrapping_add(offset));
                at.1 += 1;
                if at.1 >> log_segs != 0 {
                    at = (at.0.wrapping_add(1), FIRST_PAYLOAD);
                }
            });
            // Fewer than wanted: as many as there are, one by one.
            at_once = if posted != 0 { at_once } else { usize::from(at_once > 1) };
        }
        self.at = at;
    }

    /// After a reset of the queue: no buffers, and the next goes to the first place.
    pub(super) fn restart(&mut self) {
        self.elts.free(self.elts.len(), &mut self.cache);
        self.at = (0, FIRST_PAYLOAD);
    }
}

/// Segment of a work request that the first payload buffer is.
const FIRST_PAYLOAD: u32 = 1;

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
    pub(super) fn both(pool: &Pool, lkey_be: u32, split: Option<&Split>) -> [Self; 2] {
        let (room, headroom) = (pool.data_room_bytes() as u32, pool.headroom_bytes() as u16);
        match split {
            None => [
                Self { headroom, room: room - u32::from(headroom), lkey_be },
                Self { headroom: 0, room, lkey_be },
            ],
            Some(split) => [
                Self { headroom, room: split.header_bytes.into(), lkey_be },
                Self { headroom: 0, room: split.room.into(), lkey_be: split.keys.lkey_be },
            ],
        }
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
        let (pool, of_each) = match (self.cache.get(), &self.split) {
            (Some(header), Some(split)) => {
                self.cache.put(header);
                (split.cache.pool(), segs - 1)
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
