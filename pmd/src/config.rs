//! Settings of queues: plain structs with defaults, checked once when they are used.

use ferrocx_core::ConfigError;
use ferrocx_core::wq::REAL_TIME_ONLY;
use ferrocx_mempool::Pool;

/// Settings of a receive queue. The device checks checksums without being asked, where it can
/// ([`Limits::checksum_offload`](ferrocx_core::Limits::checksum_offload)): the results are in
/// [`Mbuf::flags`](ferrocx_mempool::Mbuf::flags).
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(alias = "rte_eth_rxconf")]
pub struct RxQueueConfig {
    /// Packets that the ring holds, a power of two from
    /// [`MIN_DESCRIPTORS`](ferrocx_core::MIN_DESCRIPTORS) to the device's limit. A frame that spans
    /// several buffers takes one descriptor too.
    ///
    /// Of a [striding](Striding) queue, strides: a packet takes one for each 64 bytes. From 1024.
    pub descriptors: u32,
    /// Largest frame in bytes, Ethernet header and VLAN tag included. Frames larger than one
    /// buffer are spread over a chain of up to [`RxQueueConfig::MAX_SEGMENTS`]. `None` for the
    /// device's MTU plus 18.
    pub max_frame_bytes: Option<u32>,
    /// Take the VLAN tag out of the frame and put it into the metadata.
    pub vlan_strip: bool,
    /// Let the device compress completions: less PCIe traffic at high packet rates. It compresses
    /// those that have VLAN tag, mark and checksum results in common, and the packets have them; of
    /// a [striding](Striding) queue such packets are without their RSS hash.
    pub cqe_compression: bool,
    /// Note when each packet came, in ticks of the device's counter:
    /// [`Mbuf::rx_timestamp`](ferrocx_mempool::Mbuf::rx_timestamp), which a
    /// [`Clock`](ferrocx_core::Clock) makes nanoseconds of. Not together with `cqe_compression`: a
    /// compressed completion has no room for them.
    pub timestamps: bool,
    /// Free buffers that the queue keeps for itself, see [`ferrocx_mempool::PoolCache`].
    pub cache_size: usize,
    /// Interrupt vector that wakes a core sleeping on the queue, 0 to 63 and below the device's
    /// number; several queues may share one. `None` for a queue that is only polled. See
    /// [`RxQueue::wait`](crate::RxQueue::wait).
    pub interrupt: Option<u16>,
    /// Microseconds between two interrupts of the queue, 0 to 4095 (`rx-usecs` of `ethtool -C`):
    /// packets that come meanwhile share one, up to 64 of them. 0 for an interrupt as soon as there
    /// is a packet.
    pub interrupt_period_us: u16,
    /// Put the header of each packet and what follows it into buffers of two pools. `None` for
    /// packets that lie in the queue's pool as a whole.
    pub split: Option<BufferSplit>,
    /// Let packets share large buffers. `None` for one buffer a packet, or more.
    pub striding: Option<Striding>,
}

/// How a receive queue lets packets share large buffers: a striding receive queue, which DPDK calls
/// multi-packet.
///
/// The device cuts each large buffer into strides of 64 bytes and puts packets into them one behind
/// the other: it fetches one work request for hundreds of packets, and short packets waste no
/// memory. A packet of up to `copy_bytes` is copied into a buffer of the queue's own pool and has
/// headroom like any other. A longer one has its strides as its data room, without headroom, and
/// nobody else's: it may be written to, sent, and freed anywhere. A large buffer is posted again
/// when all packets that lie in it are gone, so that one which is kept for long keeps its
/// neighbours' memory too.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(alias = "mprq")]
pub struct Striding {
    /// The large buffers: a pool of buffers of at least [`Striding::BUFFER_BYTES`], registered with
    /// the device. The queue posts one for [`Striding::STRIDES`] of its descriptors, and wants
    /// others while packets lie in those that it has filled. Its headroom is not kept free.
    pub buffers: Pool,
    /// Longest packet that is copied, at most what a buffer of the queue's own pool has behind its
    /// headroom. 0 for none.
    pub copy_bytes: u16,
}

impl Striding {
    /// Bytes of a stride, the fewest that devices take. Source: reference 5.6.
    pub const STRIDE_BYTES: u32 = 1 << Self::LOG_STRIDE_BYTES;
    /// Strides of a buffer, the fewest that devices take. Source: reference 5.6.
    pub const STRIDES: u32 = 1 << Self::LOG_STRIDES;
    /// Bytes of a large buffer that the device fills.
    pub const BUFFER_BYTES: u32 = Self::STRIDES * Self::STRIDE_BYTES;
    /// A good choice for [`Striding::copy_bytes`]: two cache lines are copied faster than a large
    /// buffer is counted and sent as another's.
    pub const COPY_BYTES: u16 = 128;
    pub(crate) const LOG_STRIDE_BYTES: u8 = 6;
    pub(crate) const LOG_STRIDES: u8 = 9;

    /// With these buffers, and [`Striding::COPY_BYTES`].
    #[must_use]
    pub fn new(buffers: Pool) -> Self {
        Self { buffers, copy_bytes: Self::COPY_BYTES }
    }
}

/// Where a receive queue splits its packets, and where the second part goes.
///
/// The first `header_bytes` bytes of each packet fill a buffer of the queue's own pool, the rest as
/// many buffers of `payload` as it takes. A received packet is a chain of both; one that ends
/// within its header is a single buffer, and its payload buffers stay posted.
///
/// # Payload in another device's memory
///
/// The payload pool may lie over memory of a GPU or a BAR
/// ([`Region::map_file`](ferrocx_mempool::Region::map_file),
/// [`Pool::with_region`](ferrocx_mempool::Pool::with_region)). The adapter then writes payloads
/// straight into it, and the processor reads and writes none of it, neither here nor when such a
/// chain is sent: see [`Mbuf::is_foreign`](ferrocx_mempool::Mbuf::is_foreign). A completion may be
/// seen before the memory's owner sees the last byte: it has to order that by its own means.
///
/// The owner lends the memory for as long as the pool is registered, under a key of its own. It has
/// it back in one of two ways:
///
/// | | by | who stops what | afterwards |
/// |---|---|---|---|
/// | in order | [`Device::unregister_pool`](ferrocx_core::Device::unregister_pool) | whoever runs the queues has destroyed this one, and the send queues made since the pool was registered, and freed its packets; it is refused before | the queues of other pools never noticed |
/// | at once | [`Device::revoke_pool`](ferrocx_core::Device::revoke_pool) | nobody: the key is destroyed under the queues, from any thread | a queue that needs the memory stops with a fault, and is to be destroyed |
///
/// When either returns, the device reaches none of it. If it vanishes unasked, with its device,
/// what the adapter reads and writes fails as the bus makes it fail: nothing is promised about
/// those packets.
///
/// # Example
///
/// ```
/// use std::error::Error;
/// use std::fs::File;
///
/// use ferrocx_mempool::{Pool, PoolConfig, Region};
/// use ferrocx_core::Device;
/// use ferrocx_pmd::{BufferSplit, RxQueue, RxQueueConfig};
///
/// /// A queue whose payloads land in a BAR, such as a GPU's: `bar` is its sysfs `resource` file.
/// fn into_bar(device: &Device, headers: &Pool, bar: &File) -> Result<RxQueue, Box<dyn Error>> {
///     let region = Region::map_file(bar, 0, 16 << 20)?;
///     let config = PoolConfig {
///         name: "payload".to_owned(),
///         count: 4096,
///         data_room_bytes: 4096,
///         headroom_bytes: 0,
///         ..PoolConfig::default()
///     };
///     let payload = Pool::with_region(&config, &region, 0)?;
///     device.register_pool(headers)?;
///     device.register_pool(&payload)?;
///     let split = Some(BufferSplit { header_bytes: 128, payload });
///     Ok(RxQueue::new(device, headers, &RxQueueConfig { split, ..RxQueueConfig::default() })?)
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(alias = "rte_eth_rxseg_split")]
pub struct BufferSplit {
    /// Bytes of each packet that go into the first buffer: 1 to what a buffer of the queue's pool
    /// has behind its headroom. Headers should fit, as nothing else can be parsed or changed.
    pub header_bytes: u16,
    /// Pool of the rest, registered with the device. Its headroom is not kept free.
    pub payload: Pool,
}

impl RxQueueConfig {
    /// Most buffers of one received frame. Limits the size of a receive work request to 128 bytes.
    pub const MAX_SEGMENTS: u32 = 8;
}

impl Default for RxQueueConfig {
    fn default() -> Self {
        Self {
            descriptors: 512,
            max_frame_bytes: None,
            vlan_strip: false,
            cqe_compression: false,
            timestamps: false,
            cache_size: 512,
            interrupt: None,
            interrupt_period_us: 0,
            split: None,
            striding: None,
        }
    }
}

/// Settings of a send queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(alias = "rte_eth_txconf")]
pub struct TxQueueConfig {
    /// 64-byte blocks of the ring, a power of two from
    /// [`MIN_DESCRIPTORS`](ferrocx_core::MIN_DESCRIPTORS) to the device's limit.
    /// A plain packet takes at most one; with multi-packet requests four packets share one. It is
    /// also the most packets that can be in flight; one of two to four segments of the queue's own
    /// pool counts as so many.
    pub descriptors: u32,
    /// Put several plain packets into one work request where the device can.
    pub multi_packet: bool,
    /// Copy packets of up to this many bytes into the work request instead of pointing at them:
    /// 0 (never) to [`TxQueueConfig::MAX_INLINE_BYTES`]. Saves the device a read per packet, and
    /// costs the core a copy.
    pub inline_bytes: u16,
    /// Let [`TxQueue::send_one`](crate::TxQueue::send_one) copy requests into the device's
    /// BlueFlame register where that takes them whole, so that the device need not fetch them; see
    /// [`TxQueue::doorbell_kind`](crate::TxQueue::doorbell_kind).
    pub blueflame: bool,
    /// Send timestamps that are kept until [`TxQueue::next_timestamp`] takes them: 1 to
    /// [`TxQueueConfig::MAX_TIMESTAMPS`]; more are lost, and counted. 0 for none: packets that ask
    /// for one are then dropped. A packet that asks takes a work request and a completion of its
    /// own, others cost what they cost without.
    ///
    /// [`TxQueue::next_timestamp`]: crate::TxQueue::next_timestamp
    pub timestamps: u32,
}

impl TxQueueConfig {
    /// Largest packet that can be copied into a work request.
    pub const MAX_INLINE_BYTES: u16 = 256;
    /// Most send timestamps that are kept.
    pub const MAX_TIMESTAMPS: u32 = 65536;
}

impl Default for TxQueueConfig {
    fn default() -> Self {
        Self {
            descriptors: 512,
            multi_packet: true,
            inline_bytes: 0,
            blueflame: true,
            timestamps: 0,
        }
    }
}

/// Which headers the hash covers, and the table that it looks up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(alias = "rte_eth_rss_conf")]
pub struct RssConfig {
    /// Key of the Toeplitz hash.
    pub key: [u8; 40],
    /// Hash the addresses of IP packets.
    pub ip: bool,
    /// Hash the ports of TCP packets too.
    pub tcp: bool,
    /// Hash the ports of UDP packets too.
    pub udp: bool,
    /// The table: indices into the list of queues, by the low bits of the hash. A power of two
    /// of entries, at most the device's limit; empty for queues in turn.
    pub reta: Vec<u16>,
    /// Hash both directions of a connection to the same value.
    pub symmetric: bool,
}

/// The Toeplitz key of Microsoft's verification suite, which drivers use as their default.
///
/// # Source
///
/// "RSS Hash Key", Microsoft NDIS documentation, *Verifying the RSS Hash Calculation*.
pub const DEFAULT_RSS_KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

impl Default for RssConfig {
    fn default() -> Self {
        Self {
            key: DEFAULT_RSS_KEY,
            ip: true,
            tcp: true,
            udp: true,
            reta: Vec::new(),
            symmetric: false,
        }
    }
}

/// Refuses timestamps of a device whose completions carry no ticks of the counter that
/// [`Clock`](ferrocx_core::Clock) reads; `cap` is `rq_ts_format` or `sq_ts_format`.
pub(crate) fn check_ticks(wanted: bool, cap: u32) -> Result<(), ConfigError> {
    if wanted && cap == REAL_TIME_ONLY {
        let what = "timestamps of a clock that runs freely";
        let way_out = "ask for none, or switch its real-time clock off (mlxconfig set \
                       REAL_TIME_CLOCK_ENABLE=0)";
        return Err(ConfigError::Unsupported { what, way_out });
    }
    Ok(())
}
