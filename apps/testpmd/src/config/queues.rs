//! The settings of the queues and their buffers.

use ferrocx_app_common::{option::ConfigError, peer::PeerSpec};
use ferrocx_mempool::DEFAULT_HEADROOM_BYTES;
use ferrocx_pmd::Striding;

use crate::{cli::Args, ether::HEADER_BYTES};

/// Most queues of a port in each direction.
pub const MAX_QUEUES: usize = 64;
/// Burst sizes: the data path is compiled once for each.
pub const BURSTS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Bytes that a received frame may have besides its layer-3 packet: a tag more.
const L2_TAGGED_BYTES: usize = HEADER_BYTES + 4;
/// Most bytes that are copied into a work request.
const MAX_INLINE_BYTES: u16 = ferrocx_pmd::TxQueueConfig::MAX_INLINE_BYTES;
/// Least bytes of a packet's first part: all headers that an engine looks at.
const MIN_HEADER_BYTES: usize = 64;

/// Packets in two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Bytes of the first part, in a buffer of the port.
    pub header_bytes: u16,
    /// Whose memory holds the second.
    pub payload: PeerSpec,
}

impl Split {
    /// What the command line says, for buffers of so many bytes.
    fn of(args: &Args, mbuf_bytes: usize) -> Result<Option<Self>, ConfigError> {
        let Some(payload) = &args.payload else { return Ok(None) };
        let (payload, header_bytes) = (payload.parse()?, args.split);
        let max = mbuf_bytes - DEFAULT_HEADROOM_BYTES;
        if !(MIN_HEADER_BYTES..=max).contains(&usize::from(header_bytes)) {
            let range = format!("{MIN_HEADER_BYTES} to {max}, what a buffer holds");
            return Err(ConfigError::range("split", header_bytes, range));
        }
        Ok(Some(Self { header_bytes, payload }))
    }
}

/// Settings of the queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSettings {
    /// Queues of each port in each direction.
    pub count: usize,
    /// Most packets of one burst; one of [`BURSTS`].
    pub burst: usize,
    /// Descriptors of a receive queue.
    pub rxd: u32,
    /// Descriptors of a send queue.
    pub txd: u32,
    /// Buffers of each port.
    pub mbufs: usize,
    /// Bytes of a buffer, headroom included. Payload buffers have as many, and no headroom.
    pub mbuf_bytes: usize,
    /// Where packets are split, and where what follows goes.
    pub split: Option<Split>,
    /// Buffers in each queue's cache.
    pub mbuf_cache: usize,
    /// Whether several packets share a work request.
    pub multi_packet: bool,
    /// Packets up to this length are copied into the work request.
    pub inline_bytes: u16,
    /// Whether completions are compressed.
    pub cqe_compression: bool,
    /// Whether received packets share large buffers, and if so, up to how many bytes of each are
    /// copied.
    pub striding: Option<u16>,
    /// Strides of the ring of such a queue.
    pub strides: u32,
    /// Whether ports take part in the RSS hash.
    pub rss_l4: bool,
    /// Whether the device checks and writes checksums.
    pub checksum: bool,
    /// Whether the device strips and inserts VLAN tags.
    pub vlan: bool,
}

/// Checks the options of the queues, for so many ports.
pub(super) fn queues(args: &Args, ports: usize) -> Result<QueueSettings, ConfigError> {
    let within = |option, value: usize, min: usize, max: usize| {
        ConfigError::check(option, value as u64, min as u64, max as u64).map(|()| value)
    };
    let descriptors = |option, value: u32| {
        let (min, max) = (ferrocx_core::MIN_DESCRIPTORS, ferrocx_core::MAX_DESCRIPTORS);
        match value.is_power_of_two() && (min..=max).contains(&value) {
            true => Ok(value),
            false => {
                let range = format!("a power of two from {min} to {max}");
                Err(ConfigError::range(option, value, range))
            }
        }
    };
    let count = within("queues", args.queues, 1, MAX_QUEUES)?;
    if !BURSTS.contains(&args.burst) {
        let range = "1, 2, 4, 8, 16, 32, 64 or 128";
        return Err(ConfigError::range("burst", args.burst, range));
    }
    let rxd = descriptors("rxd", args.rxd)?;
    let txd = descriptors("txd", args.txd)?;
    let mbuf_cache = within("mbuf-cache", args.mbuf_cache, 0, 4096)?;
    let mbuf_bytes = within("mbuf-size", args.mbuf_size, 256, 65535)?;
    let split = Split::of(args, mbuf_bytes)?;
    let frame_bytes = usize::from(args.mtu) + L2_TAGGED_BYTES;
    let segments = match args.striding {
        // What is longer than a buffer stays where it is.
        Some(copy_bytes) => {
            let most = (mbuf_bytes - DEFAULT_HEADROOM_BYTES) as u64;
            ConfigError::check("striding", copy_bytes.into(), 0, most)?;
            1
        }
        None => segments(frame_bytes, mbuf_bytes, split),
    };
    let most = ferrocx_pmd::RxQueueConfig::MAX_SEGMENTS as usize;
    if segments > most {
        let what =
            format!("--mtu {} needs {segments} buffers of --mbuf-size {mbuf_bytes}", args.mtu);
        let way_out = format!("at most {most} make up a frame; give larger buffers");
        return Err(ConfigError::Conflict(format!("{what}; {way_out}")));
    }
    // Every queue full, every cache full, and the frames of each port in the send queues of its
    // neighbour, and a burst in hand on both sides.
    let frames = rxd as usize + 2 * txd as usize + 4 * args.burst;
    let need = count * (segments * frames + 3 * mbuf_cache);
    let mbufs = args.mbufs.unwrap_or(need);
    if mbufs < need || mbufs > 1 << 24 {
        let range = format!(
            "{need} to {}: {count} queues of {rxd}+{txd} descriptors, caches and bursts, for each \
             of {ports} ports",
            1 << 24
        );
        return Err(ConfigError::range("mbufs", mbufs, range));
    }
    if args.inline > MAX_INLINE_BYTES {
        return Err(ConfigError::range("inline", args.inline, format!("0 to {MAX_INLINE_BYTES}")));
    }
    let rss_l4 = match args.rss.as_str() {
        "ip" => false,
        "l4" => true,
        other => return Err(ConfigError::unknown("--rss value", other, "ip or l4")),
    };
    Ok(QueueSettings {
        count,
        burst: args.burst,
        rxd,
        txd,
        mbufs,
        mbuf_bytes,
        split,
        mbuf_cache,
        multi_packet: !args.single_packet,
        inline_bytes: args.inline,
        cqe_compression: args.cqe_compression,
        striding: args.striding,
        strides: strides(rxd, frame_bytes),
        rss_l4,
        checksum: args.checksum,
        vlan: args.vlan,
    })
}

/// Strides that a queue of so many descriptors posts: enough for as many frames of the largest
/// size, as far as a ring goes.
fn strides(rxd: u32, frame_bytes: usize) -> u32 {
    let of_each = (frame_bytes as u32).div_ceil(Striding::STRIDE_BYTES);
    let most = ferrocx_core::MAX_DESCRIPTORS;
    rxd.saturating_mul(of_each).clamp(2 * Striding::STRIDES, most).next_power_of_two()
}

impl QueueSettings {
    /// Large buffers of a port: thrice what its rings hold, since packets on their way out keep
    /// those in which they came.
    #[must_use]
    pub fn large_buffers(&self) -> usize {
        self.count * (3 * self.strides / Striding::STRIDES + 8) as usize
    }
}

/// Buffers that a receive queue posts for each frame: its first one keeps headroom free, and the
/// number is a power of two. A split frame has a second one in any case.
pub(super) fn segments(frame_bytes: usize, mbuf_bytes: usize, split: Option<Split>) -> usize {
    let behind = match split {
        None => frame_bytes.saturating_sub(mbuf_bytes - DEFAULT_HEADROOM_BYTES),
        Some(split) => frame_bytes.saturating_sub(split.header_bytes.into()).max(1),
    };
    (1 + behind.div_ceil(mbuf_bytes)).next_power_of_two()
}
