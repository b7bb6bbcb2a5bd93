//! What a receive queue's work requests look like: how many buffers, how long, of which pool.
//!
//! A work request is a row of data segments, of which the device fills one after the other. Their
//! lengths and keys never change, so they are written once; posting a buffer writes its address.
//!
//! | queue | first segment | the others |
//! |---|---|---|
//! | one buffer to a packet | a buffer of the pool, behind its headroom | none |
//! | long frames | the same | whole buffers of the pool |
//! | [split](crate::BufferSplit) | `header_bytes` of a buffer of the pool, behind its headroom | whole buffers of the payload pool |

use ferrocx_core::wq::put_data;
use ferrocx_core::{ConfigError, Device, DeviceError, RegionKeys};
use ferrocx_mempool::{Pool, PoolCache};
use ferrocx_prm::wqe::INVALID_LKEY;

use super::{L2_BYTES, RxRing};
use crate::config::{BufferSplit, RxQueueConfig};

/// Sizes of a receive queue, checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) log_size: u8,
    pub(crate) log_segs: u8,
}

impl Shape {
    pub(crate) fn of(
        device: &Device,
        pool: &Pool,
        config: &RxQueueConfig,
    ) -> Result<Self, ConfigError> {
        let limits = device.limits();
        let log_size = ConfigError::log2(
            "receive descriptors",
            config.descriptors,
            limits.min_descriptors,
            limits.max_descriptors,
            "",
        )?;
        let mtu = u32::from(device.mtu());
        let frame = config.max_frame_bytes.unwrap_or(mtu + L2_BYTES);
        ConfigError::range("largest frame in bytes", frame.into(), 64, 65535, "")?;
        let (room, headroom) = (pool.data_room_bytes() as u32, pool.headroom_bytes() as u32);
        if room <= headroom {
            let what = "the pool's buffers have no room behind their headroom; make them larger";
            return Err(ConfigError::Conflict { what });
        }
        let first = room - headroom;
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
        Ok(Self { log_size, log_segs: segs.trailing_zeros() as u8 })
    }
}

/// Of a queue that splits: where the bytes behind the header go.
pub(super) struct Split {
    pub(super) header_bytes: u16,
    /// Bytes of a payload buffer.
    pub(super) room: u16,
    pub(super) cache: PoolCache,
    /// What turns a payload buffer's stamped address into the one to post.
    pub(super) post_offset: u64,
    /// Keeps the payload pool's region mapped.
    pub(super) keys: RegionKeys,
}

impl Split {
    pub(super) fn of(
        device: &Device,
        split: &BufferSplit,
        cache_size: usize,
    ) -> Result<Box<Self>, DeviceError> {
        let BufferSplit { header_bytes, payload } = split;
        let keys = device.region_keys(payload)?;
        Ok(Box::new(Self {
            header_bytes: *header_bytes,
            room: payload.data_room_bytes() as u16,
            cache: payload.cache_with_size(cache_size),
            post_offset: keys.stamp_to_iova,
            keys,
        }))
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
    pub(super) fn stamp(&self) {
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
        let of_pool = |buffers: usize| (buffers >> self.ring.log_segments()) * of_each;
        DeviceError::PoolTooSmall {
            pool: pool.name().to_owned(),
            need: of_pool(self.elts.capacity()),
            got: of_pool(self.elts.len()),
        }
    }
}
