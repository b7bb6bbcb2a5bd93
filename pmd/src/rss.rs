//! Receiving on several queues: the table of queues (RQT) and what hashes into it (TIRs).

use std::sync::Arc;

use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::tir::ModifyRqt;
use ferrocx_prm::tirc::{Rqtc, Tirc};

use crate::cmd::objects::{Handle, Kind};
use crate::config::RssConfig;
use crate::device::{Device, Inner, lock};
use crate::error::{ConfigError, DeviceError};
use crate::rx::RxQueueRef;

/// `disp_type`: to one queue, or to a table. Source: reference 5.9.
const DISP_DIRECT: u32 = 0;
const DISP_INDIRECT: u32 = 1;
/// `rx_hash_fn`. Source: reference 5.9.
const HASH_NONE: u32 = 0;
const HASH_TOEPLITZ: u32 = 2;
/// MODIFY_RQT: the list of queues changes. Source: reference 4.3.
const MODIFY_RQN_LIST: u64 = 1;

/// Bits of `rx_hash_field_selector_outer`. Source: reference 5.9.
mod selector {
    pub(super) const L3_IPV6: u32 = 1 << 31;
    pub(super) const L4_UDP: u32 = 1 << 30;
    pub(super) const SRC_IP: u32 = 1 << 0;
    pub(super) const DST_IP: u32 = 1 << 1;
    pub(super) const L4_SPORT: u32 = 1 << 2;
    pub(super) const L4_DPORT: u32 = 1 << 3;
}

/// Kinds of traffic that are hashed differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrafficType {
    TcpV4,
    UdpV4,
    TcpV6,
    UdpV6,
    IpV4,
    IpV6,
    /// Everything that is not IP: no hash, first queue of the table.
    Any,
}

impl TrafficType {
    /// In the order of the flow table: the first match wins.
    pub(crate) const ALL: [Self; 7] =
        [Self::TcpV4, Self::UdpV4, Self::TcpV6, Self::UdpV6, Self::IpV4, Self::IpV6, Self::Any];

    /// Fields that the hash covers, 0 for no hash.
    fn selector(self, config: &RssConfig) -> u32 {
        use selector::{DST_IP, L3_IPV6, L4_DPORT, L4_SPORT, L4_UDP, SRC_IP};
        let ip = SRC_IP | DST_IP;
        let ports = ip | L4_SPORT | L4_DPORT;
        let v6 = match self {
            Self::TcpV6 | Self::UdpV6 | Self::IpV6 => L3_IPV6,
            _ => 0,
        };
        match self {
            Self::TcpV4 | Self::TcpV6 if config.tcp => ports | v6,
            Self::UdpV4 | Self::UdpV6 if config.udp => ports | v6 | L4_UDP,
            Self::Any => 0,
            _ if config.ip => ip | v6,
            _ => 0,
        }
    }
}

/// Builds the context of one TIR.
pub(crate) fn tirc(
    config: &RssConfig,
    traffic: TrafficType,
    transport_domain: u32,
    rqtn: u32,
    first_rqn: u32,
) -> Tirc {
    let fields = traffic.selector(config);
    let tirc = Tirc::zeroed().with_transport_domain(transport_domain);
    if fields == 0 {
        return tirc
            .with_disp_type(DISP_DIRECT)
            .with_rx_hash_fn(HASH_NONE)
            .with_inline_rqn(first_rqn);
    }
    tirc.with_disp_type(DISP_INDIRECT)
        .with_indirect_table(rqtn)
        .with_rx_hash_fn(HASH_TOEPLITZ)
        .with_rx_hash_symmetric(config.symmetric)
        .with_rx_hash_toeplitz_key(config.key)
        .with_rx_hash_field_selector_outer(fields)
}

/// Makes a TIR that leads to one queue.
pub(crate) fn direct_tir(device: &Arc<Inner>, rqn: u32) -> Result<Handle, DeviceError> {
    let tirc = Tirc::zeroed()
        .with_transport_domain(device.transport_domain)
        .with_disp_type(DISP_DIRECT)
        .with_inline_rqn(rqn);
    let tirn = device.control().create_tir(tirc)?;
    Ok(Handle::new(device, Kind::Tir, tirn, Vec::new()))
}

/// Traffic flows to the queues as long as this lives. Made by [`Device::rss`].
#[derive(Debug)]
pub struct Rss {
    // Dropped in this order: entries, TIRs and table, the queues.
    entries: Vec<Handle>,
    chain: Chain,
    queues: Vec<RxQueueRef>,
    reta: Vec<u16>,
    device: Arc<Inner>,
}

impl Drop for Rss {
    fn drop(&mut self) {
        self.entries.clear();
        lock(&self.device.steering).unrouted();
    }
}

impl Rss {
    /// The table in force: indices into the list of queues.
    #[must_use]
    pub fn reta(&self) -> &[u16] {
        &self.reta
    }

    /// Number of queues.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Replaces the table, without a gap in receiving.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for a table of another length, or an index out of range; or what the device
    /// refused.
    pub fn set_reta(&mut self, reta: &[u16]) -> Result<(), DeviceError> {
        let Some(rqt) = &self.chain.rqt else {
            let what = "there is one queue only, so there is no table; make it with more queues";
            return Err(ConfigError::Conflict { what }.into());
        };
        let len = self.reta.len() as u64;
        ConfigError::range("entries of the RSS table", reta.len() as u64, len, len, "")?;
        check_indices(reta, self.queues.len())?;
        let rqns = rqns(&self.queues, reta);
        let tail: Vec<u8> = rqns.iter().flat_map(|rqn| rqn.to_be_bytes()).collect();
        let input = ModifyRqt::input()
            .with_rqtn(rqt.number())
            .with_bitmask(MODIFY_RQN_LIST)
            .with_ctx(Rqtc::zeroed().with_rqt_actual_size(rqns.len() as u32));
        rqt.device().control().execute::<ModifyRqt>(&input, &tail, &mut [])?;
        self.reta = reta.to_vec();
        Ok(())
    }

    /// Stops receiving and says how that went.
    ///
    /// # Errors
    ///
    /// The first object that could not be destroyed; the others are dropped all the same.
    pub fn destroy(mut self) -> Result<(), DeviceError> {
        let Chain { tirs, rqt } = &mut self.chain;
        for handle in self.entries.iter_mut().chain(tirs).chain(rqt) {
            handle.destroy()?;
        }
        Ok(())
    }
}

/// What hashes, and the table that it looks up; dropped in this order.
#[derive(Debug)]
struct Chain {
    tirs: Vec<Handle>,
    rqt: Option<Handle>,
}

/// Queue numbers in the order of the table.
fn rqns(queues: &[RxQueueRef], reta: &[u16]) -> Vec<u32> {
    reta.iter().map(|index| queues[usize::from(*index)].rqn()).collect()
}

impl Device {
    /// Steers all traffic that the port lets in to `queues`, until the result is dropped.
    ///
    /// With one queue there is no hashing. With more, packets are spread by the table; what has no
    /// hash (not IP, or not chosen in `config`) goes to the queue of the table's first entry.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for no queue, a table too long or with an index out of range, or if an
    /// [`Rss`] of this device lives already; or what the device refused.
    pub fn rss(&self, queues: &[RxQueueRef], config: &RssConfig) -> Result<Rss, DeviceError> {
        let inner = self.inner();
        let reta = checked_reta(config, queues.len(), inner.limits.max_reta)?;
        let mut rss = Chain { tirs: Vec::new(), rqt: None };
        let rqns = rqns(queues, &reta);
        if queues.len() > 1 {
            let rqtn = inner.control().create_rqt(&rqns)?;
            rss.rqt = Some(Handle::new(inner, Kind::Rqt, rqtn, Vec::new()));
        }
        let rqtn = rss.rqt.as_ref().map(Handle::number);
        let mut tirns = [0; TrafficType::ALL.len()];
        for (traffic, slot) in TrafficType::ALL.into_iter().zip(&mut tirns) {
            let Some(rqtn) = rqtn else {
                // One queue: one TIR for everything.
                if rss.tirs.is_empty() {
                    rss.tirs.push(direct_tir(inner, rqns[0])?);
                }
                *slot = rss.tirs[0].number();
                continue;
            };
            let context = tirc(config, traffic, inner.transport_domain, rqtn, rqns[0]);
            let tirn = inner.control().create_tir(context)?;
            rss.tirs.push(Handle::new(inner, Kind::Tir, tirn, Vec::new()));
            *slot = tirn;
        }
        let port = lock(&inner.port);
        let mut control = inner.control();
        let mut steering = lock(&inner.steering);
        let places = steering.route(&mut control, inner, &port, &tirns)?;
        let entry =
            |(table, index)| Handle::new(inner, Kind::FlowEntry { table }, index, Vec::new());
        Ok(Rss {
            entries: places.into_iter().map(entry).collect(),
            chain: rss,
            queues: queues.to_vec(),
            reta,
            device: Arc::clone(inner),
        })
    }
}

/// The table to use: the one configured, or the queues in turn.
fn checked_reta(config: &RssConfig, queues: usize, max: u32) -> Result<Vec<u16>, ConfigError> {
    let hint = "; make a receive queue first";
    ConfigError::range("number of receive queues", queues as u64, 1, u64::from(u16::MAX), hint)?;
    if config.reta.is_empty() {
        // Several entries per queue, so that queue counts that are no power of two share fairly.
        let len = (queues * 8).next_power_of_two().min(max as usize).max(1);
        ConfigError::range("number of receive queues", queues as u64, 1, max.into(), "")?;
        return Ok((0..len).map(|entry| (entry % queues) as u16).collect());
    }
    ConfigError::log2("entries of the RSS table", config.reta.len() as u32, 1, max, "")?;
    check_indices(&config.reta, queues)?;
    Ok(config.reta.clone())
}

fn check_indices(reta: &[u16], queues: usize) -> Result<(), ConfigError> {
    for index in reta {
        let hint = "; entries count queues from 0";
        let max = queues as u64 - 1;
        ConfigError::range("entry of the RSS table", u64::from(*index), 0, max, hint)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_defaults_to_queues_in_turn() {
        let config = RssConfig::default();
        let reta = checked_reta(&config, 3, 512).unwrap();
        assert_eq!(reta.len(), 32);
        assert_eq!(reta[..4], [0, 1, 2, 0]);
        assert_eq!(checked_reta(&config, 100, 512).unwrap().len(), 512);
        assert_eq!(checked_reta(&config, 1, 512).unwrap().len(), 8);
        assert!(checked_reta(&config, 0, 512).is_err());
        assert!(checked_reta(&config, 513, 512).is_err());
    }

    #[test]
    fn wrong_tables_are_refused() {
        let config = |reta: &[u16]| RssConfig { reta: reta.to_vec(), ..RssConfig::default() };
        assert!(checked_reta(&config(&[0, 1]), 2, 512).is_ok());
        assert!(checked_reta(&config(&[0, 2]), 2, 512).is_err());
        assert!(checked_reta(&config(&[0, 1, 0]), 2, 512).is_err());
        assert!(checked_reta(&config(&[0; 1024]), 2, 512).is_err());
    }

    #[test]
    fn tir_contexts_are_literal() {
        let config = RssConfig { key: [0xab; 40], ..RssConfig::default() };
        let tirc = tirc(&config, TrafficType::UdpV6, 0x0a, 0x17, 0x99);
        let mut expected = [0; 0xf0];
        expected[0x04] = 0x10; // indirect
        expected[0x23] = 0x17; // table
        expected[0x24] = 0x20; // Toeplitz
        expected[0x27] = 0x0a; // transport domain
        expected[0x28..0x50].fill(0xab);
        expected[0x50..0x54].copy_from_slice(&[0xc0, 0, 0, 0x0f]); // IPv6, UDP, IPs and ports
        assert_eq!(tirc.0, expected);

        let tirc = super::tirc(&config, TrafficType::Any, 0x0a, 0x17, 0x99);
        let mut expected = [0; 0xf0];
        expected[0x1f] = 0x99; // direct, to the first queue
        expected[0x27] = 0x0a;
        assert_eq!(tirc.0, expected);

        let no_udp = RssConfig { udp: false, ..config };
        assert_eq!(TrafficType::UdpV4.selector(&no_udp), 3);
        let nothing = RssConfig { udp: false, ip: false, ..RssConfig::default() };
        assert_eq!(TrafficType::UdpV4.selector(&nothing), 0);
        assert_eq!(TrafficType::TcpV4.selector(&nothing), 0x0f);
    }
}
