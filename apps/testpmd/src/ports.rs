//! Ports from their device to their queues, and back again.

use anyhow::{Context, Result, bail};
use ferrocx_app_common::wait::Wait;
use ferrocx_core::{Device, DeviceConfig};
use ferrocx_mempool::{Pool, PoolConfig, PoolStats};
use ferrocx_pmd::{
    BufferSplit, Rss, RssConfig, RxQueue, RxQueueConfig, Striding, TxQueue, TxQueueConfig,
};

use crate::{
    config::{Config, Mode, QueueSettings},
    ether::MacAddr,
    payload::Payloads,
};

/// A port with its buffers, before its queues are handed to workers.
#[derive(Debug)]
pub struct Port {
    /// Its number.
    pub index: usize,
    /// What it was called on the command line.
    pub name: String,
    /// The device.
    pub device: Device,
    /// Buffers that its receive queues fill, and generated frames use.
    pub pool: Pool,
    /// Buffers for what lies behind the headers of received packets, if those are split.
    pub payload: Option<Pool>,
    /// Buffers that received packets share, if they do.
    large: Option<Pool>,
    rss: Option<Rss>,
}

/// The port whose send queues take the frames that `port` receives.
///
/// Ports form pairs, 0 and 1, 2 and 3, and so on; a port without a partner is its own. Modes that
/// do not forward use the port itself.
#[must_use]
pub fn peer(mode: Mode, port: usize, ports: usize) -> usize {
    match mode {
        Mode::Io | Mode::Mac | Mode::MacSwap if port ^ 1 < ports => port ^ 1,
        _ => port,
    }
}

impl Port {
    /// Brings up a device and makes its buffers.
    ///
    /// # Errors
    /// What the driver says, with the port and the option to change.
    pub fn open(
        index: usize,
        transport: std::sync::Arc<dyn ferrocx_bus::Transport>,
        config: &Config,
        payloads: Option<&mut Payloads>,
    ) -> Result<Self> {
        let name = config.ports[index].device.to_string();
        let place = || format!("port {index} ({name})");
        let settings = DeviceConfig {
            mtu: config.mtu,
            promiscuous: config.promiscuous,
            // Solicitations of IPv6 neighbours go to groups.
            all_multicast: config.mode == Mode::IcmpEcho,
            key_mode: config.key_mode,
            ..DeviceConfig::default()
        };
        let device = Device::open(transport, &settings).with_context(place)?;
        check_limits(&device, config).with_context(place)?;
        let queues = &config.queues;
        let pool = Pool::new(&PoolConfig {
            name: format!("port{index}"),
            count: queues.mbufs,
            data_room_bytes: queues.mbuf_bytes,
            cache_size: queues.mbuf_cache,
            ..PoolConfig::default()
        })
        .with_context(place)?;
        let payload = payloads.map(|memory| memory.pool(&format!("payload{index}"), queues));
        let payload = payload.transpose().with_context(place)?;
        let large = queues.striding.map(|_| large_buffers(index, queues));
        let large = large.transpose().with_context(place)?;
        Ok(Self { index, name, device, pool, payload, large, rss: None })
    }

    /// The address of the port.
    #[must_use]
    pub fn mac(&self) -> MacAddr {
        self.device.mac()
    }

    /// Makes the receive queues, filled; nothing arrives before [`Port::start`].
    ///
    /// # Errors
    /// What the driver says.
    pub fn rx_queues(&self, config: &Config) -> Result<Vec<RxQueue>> {
        let queues = &config.queues;
        let vectors = usize::from(self.device.interrupt_vectors()).max(1);
        let apart = match config.wait {
            Some(Wait::Interrupt(apart)) => Some(apart),
            _ => None,
        };
        let make = |queue| {
            let settings = RxQueueConfig {
                descriptors: if self.large.is_some() { queues.strides } else { queues.rxd },
                vlan_strip: queues.vlan,
                cqe_compression: queues.cqe_compression,
                cache_size: queues.mbuf_cache,
                interrupt: apart.and_then(|_| u16::try_from(queue % vectors).ok()),
                interrupt_period_us: apart.map_or(0, |apart| apart.as_micros() as u16),
                split: self.split(config),
                striding: self.striding(config),
                ..RxQueueConfig::default()
            };
            let made = RxQueue::new(&self.device, &self.pool, &settings);
            made.with_context(|| format!("port {}, receive queue {queue}", self.index))
        };
        (0..queues.count).map(make).collect()
    }

    fn split(&self, config: &Config) -> Option<BufferSplit> {
        let (split, payload) = (config.queues.split?, self.payload.clone()?);
        Some(BufferSplit { header_bytes: split.header_bytes, payload })
    }

    fn striding(&self, config: &Config) -> Option<Striding> {
        let (copy_bytes, buffers) = (config.queues.striding?, self.large.clone()?);
        Some(Striding { buffers, copy_bytes })
    }

    /// All buffers of the port.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        std::iter::once(&self.pool).chain(&self.payload).chain(&self.large)
    }

    /// Makes the send queues; most of what they send comes from `pool`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn tx_queues(&self, config: &Config, pool: &Pool) -> Result<Vec<TxQueue>> {
        let queues = &config.queues;
        let settings = TxQueueConfig {
            descriptors: queues.txd,
            multi_packet: queues.multi_packet,
            inline_bytes: queues.inline_bytes,
            ..TxQueueConfig::default()
        };
        let make = |queue| {
            let made = TxQueue::new(&self.device, pool, &settings);
            made.with_context(|| format!("port {}, send queue {queue}", self.index))
        };
        let made: Vec<_> = (0..queues.count).map(make).collect::<Result<_>>()?;
        if let Some(first) = made.first() {
            let kind = first.doorbell_kind();
            eprintln!("port {}: bursts go by plain doorbell, single frames by {kind}", self.index);
        }
        Ok(made)
    }

    /// Lets traffic flow to `queues`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn start(&mut self, queues: &[RxQueue], config: &Config) -> Result<()> {
        let refs: Vec<_> = queues.iter().map(RxQueue::queue_ref).collect();
        let l4 = config.queues.rss_l4;
        let settings = RssConfig { tcp: l4, udp: l4, ..RssConfig::default() };
        let rss = Rss::new(&self.device, &refs, &settings);
        self.rss = Some(rss.with_context(|| format!("port {}, steering", self.index))?);
        Ok(())
    }

    /// Stops traffic to the queues.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stop(&mut self) -> Result<()> {
        match self.rss.take() {
            Some(rss) => rss.destroy().with_context(|| format!("port {}, steering", self.index)),
            None => Ok(()),
        }
    }

    /// Tears the device down. All queues are gone by now.
    ///
    /// # Errors
    /// What the driver says.
    pub fn close(mut self) -> Result<Vec<PoolStats>> {
        self.stop()?;
        let place = format!("port {} ({})", self.index, self.name);
        self.device.close().with_context(|| format!("{place}, teardown"))?;
        let Self { pool, payload, large, .. } = self;
        Ok(std::iter::once(&pool).chain(&payload).chain(&large).map(Pool::stats).collect())
    }
}

/// The buffers that received packets of a port share.
fn large_buffers(index: usize, queues: &QueueSettings) -> Result<Pool> {
    let pool = Pool::new(&PoolConfig {
        name: format!("large{index}"),
        count: queues.large_buffers(),
        data_room_bytes: Striding::BUFFER_BYTES as usize,
        headroom_bytes: 0,
        cache_size: 64,
        ..PoolConfig::default()
    })?;
    Ok(pool)
}

/// Compares the command line with what the device can do.
fn check_limits(device: &Device, config: &Config) -> Result<()> {
    let limits = device.limits();
    let queues = &config.queues;
    let offered = limits.max_rx_queues.min(limits.max_tx_queues);
    if queues.count > offered as usize {
        bail!("--queues is {}; this device has {offered}; ask for fewer", queues.count);
    }
    for (option, value) in [("rxd", queues.rxd), ("txd", queues.txd)] {
        let (min, max) = (limits.min_descriptors, limits.max_descriptors);
        if !(min..=max).contains(&value) {
            bail!("--{option} is {value}; this device takes {min} to {max}");
        }
    }
    for (option, wanted, has) in [
        ("checksum", queues.checksum, limits.checksum_offload),
        ("vlan", queues.vlan, limits.vlan_strip && limits.vlan_insert),
        ("cqe-compression", queues.cqe_compression, limits.cqe_compression),
        ("striding", queues.striding.is_some(), limits.striding),
    ] {
        if wanted && !has {
            bail!("--{option} needs what this device does not have; leave it out");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_pair_up_when_they_forward() {
        let peers =
            |mode, ports| (0..ports).map(|port| peer(mode, port, ports)).collect::<Vec<_>>();
        assert_eq!(peers(Mode::Io, 1), [0]);
        assert_eq!(peers(Mode::Mac, 2), [1, 0]);
        assert_eq!(peers(Mode::MacSwap, 3), [1, 0, 2]);
        assert_eq!(peers(Mode::Io, 4), [1, 0, 3, 2]);
        for mode in [Mode::IcmpEcho, Mode::RxOnly, Mode::TxOnly] {
            assert_eq!(peers(mode, 2), [0, 1]);
        }
    }
}
