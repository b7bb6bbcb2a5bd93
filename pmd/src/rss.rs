//! Receiving on several queues: the table of queues (RQT) and what hashes into it (TIRs).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrocx_core::{
    ConfigError, Device, DeviceError, FlowAction, FlowRuleHandle, Handle, Routes, RxQueueRef,
    TrafficTirs, TrafficType,
};
use ferrocx_prm::tirc::{Tirc, disp_type, hash_field, hash_fn};

use crate::config::RssConfig;

/// Fields that the hash of a type of traffic covers, 0 for no hash.
fn selector(traffic: TrafficType, config: &RssConfig) -> u32 {
    use hash_field::{DST_IP, L3_IPV6, L4_DPORT, L4_SPORT, L4_UDP, SRC_IP};
    let ip = SRC_IP | DST_IP;
    let ports = ip | L4_SPORT | L4_DPORT;
    let v6 = match traffic {
        TrafficType::TcpV6 | TrafficType::UdpV6 | TrafficType::IpV6 => L3_IPV6,
        _ => 0,
    };
    match traffic {
        TrafficType::TcpV4 | TrafficType::TcpV6 if config.tcp => ports | v6,
        TrafficType::UdpV4 | TrafficType::UdpV6 if config.udp => ports | v6 | L4_UDP,
        TrafficType::Any => 0,
        _ if config.ip => ip | v6,
        _ => 0,
    }
}

/// Builds the context of one TIR.
fn tirc(config: &RssConfig, traffic: TrafficType, rqtn: u32, first_rqn: u32) -> Tirc {
    let fields = selector(traffic, config);
    let tirc = Tirc::zeroed();
    if fields == 0 {
        return tirc
            .with_disp_type(disp_type::DIRECT)
            .with_rx_hash_fn(hash_fn::NONE)
            .with_inline_rqn(first_rqn);
    }
    tirc.with_disp_type(disp_type::INDIRECT)
        .with_indirect_table(rqtn)
        .with_rx_hash_fn(hash_fn::TOEPLITZ)
        .with_rx_hash_symmetric(config.symmetric)
        .with_rx_hash_toeplitz_key(config.key)
        .with_rx_hash_field_selector_outer(fields)
}

/// What leads packets to a queue, in force as long as one queue has it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Steering {
    /// Packets that match; without one it is all that nothing else takes.
    pub(crate) rule: Option<Arc<FlowRuleHandle>>,
    /// The queue has a share of them.
    pub(crate) rss: Option<Arc<Rss>>,
}

/// Traffic flows to the queues as long as this lives.
#[derive(Debug)]
#[must_use = "traffic flows as long as it lives"]
pub struct Rss {
    // Entries are dropped first. Each TIR holds the table, and that the queues.
    routes: Option<Routes>,
    /// One for each type of traffic, or one for all.
    tirs: Vec<Arc<Handle>>,
    rqt: Option<Arc<Handle>>,
    queues: Vec<RxQueueRef>,
    reta: Mutex<Vec<u16>>,
}

impl Rss {
    /// Steers all traffic that the port lets in to `queues`, until the result is dropped.
    ///
    /// With one queue there is no hashing. With more, packets are spread by the table; what has no
    /// hash (not IP, or not chosen in `config`) goes to the queue of the table's first entry.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for no queue, a table too long or with an index out of range, or if an
    /// [`Rss`] of this device lives already; or what the device refused.
    #[doc(alias = "rte_eth_dev_rss_hash_update")]
    pub fn new(
        device: &Device,
        queues: &[RxQueueRef],
        config: &RssConfig,
    ) -> Result<Self, DeviceError> {
        let mut rss = Self::for_rules(device, queues, config)?;
        let tirns: Vec<_> = rss.of_traffic().iter().map(|tir| tir.number()).collect();
        let tirns = tirns.try_into().expect("one for each type");
        rss.routes = Some(Routes::new(device, &tirns)?);
        Ok(rss)
    }

    /// Steers nothing by itself, but what flow rules lead to it: see [`Rss::action`]. There may be
    /// several, beside the one that takes the port's traffic.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for no queue, a table too long or with an index out of range; or what the
    /// device refused.
    pub fn for_rules(
        device: &Device,
        queues: &[RxQueueRef],
        config: &RssConfig,
    ) -> Result<Self, DeviceError> {
        let reta = checked_reta(config, queues.len(), device.limits().max_reta)?;
        let rqns = rqns(queues, &reta);
        let (mut rqt, mut tirs) = (None, Vec::new());
        if let [queue] = queues {
            tirs.push(Arc::new(queue.direct_tir()?));
        } else {
            let made = device.create_rqt(&rqns)?;
            let made = Arc::new(queues.iter().fold(made, |made, queue| queue.needed_by(made)));
            for traffic in TrafficType::ALL {
                let tirc = tirc(config, traffic, made.number(), rqns[0]);
                tirs.push(Arc::new(device.create_tir(tirc)?.needing(&made)));
            }
            rqt = Some(made);
        }
        let reta = Mutex::new(reta);
        Ok(Self { routes: None, tirs, rqt, queues: queues.to_vec(), reta })
    }

    /// The TIR of each type of traffic.
    fn of_traffic(&self) -> TrafficTirs {
        std::array::from_fn(|at| Arc::clone(self.tirs.get(at).unwrap_or(&self.tirs[0])))
    }

    /// What a [`FlowRule`](ferrocx_core::FlowRule) does that has its packets spread over these
    /// queues, by their hash and the table. The rule may outlive this: the table stays then.
    #[must_use]
    #[doc(alias = "rte_flow_action_rss")]
    pub fn action(&self) -> FlowAction {
        FlowAction::Spread(self.of_traffic())
    }

    /// The table in force: indices into the list of queues.
    #[must_use]
    pub fn reta(&self) -> Vec<u16> {
        self.table().clone()
    }

    fn table(&self) -> MutexGuard<'_, Vec<u16>> {
        self.reta.lock().unwrap_or_else(PoisonError::into_inner)
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
    #[doc(alias = "rte_eth_dev_rss_reta_update")]
    pub fn set_reta(&self, reta: &[u16]) -> Result<(), DeviceError> {
        let Some(rqt) = &self.rqt else {
            let what = "there is one queue only, so there is no table; make it with more queues";
            return Err(ConfigError::Conflict { what }.into());
        };
        let mut table = self.table();
        let len = table.len() as u64;
        ConfigError::range("entries of the RSS table", reta.len() as u64, len, len, "")?;
        check_indices(reta, self.queues.len())?;
        rqt.modify_rqt(&rqns(&self.queues, reta))?;
        table.copy_from_slice(reta);
        Ok(())
    }

    /// Stops receiving and says how that went.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Conflict`] while flow rules lead to it or an action is kept, or the first
    /// object that could not be destroyed; the others are dropped all the same, or with the last
    /// rule.
    pub fn destroy(self) -> Result<(), DeviceError> {
        self.routes.map_or(Ok(()), Routes::destroy)?;
        // The TIRs, and then the table that each of them holds.
        for handle in self.tirs.into_iter().chain(self.rqt) {
            let Some(mut handle) = Arc::into_inner(handle) else {
                let what = "flow rules or actions of this Rss are alive; drop them first";
                return Err(ConfigError::Conflict { what }.into());
            };
            handle.destroy()?;
        }
        Ok(())
    }
}

/// Queue numbers in the order of the table.
fn rqns(queues: &[RxQueueRef], reta: &[u16]) -> Vec<u32> {
    reta.iter().map(|index| queues[usize::from(*index)].rqn()).collect()
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
        let tirc = tirc(&config, TrafficType::UdpV6, 0x17, 0x99);
        let mut expected = [0; 0xf0];
        expected[0x04] = 0x10; // indirect
        expected[0x23] = 0x17; // table
        expected[0x24] = 0x20; // Toeplitz
        expected[0x28..0x50].fill(0xab);
        expected[0x50..0x54].copy_from_slice(&[0xc0, 0, 0, 0x0f]); // IPv6, UDP, IPs and ports
        assert_eq!(tirc.0, expected);

        let tirc = super::tirc(&config, TrafficType::Any, 0x17, 0x99);
        let mut expected = [0; 0xf0];
        expected[0x1f] = 0x99; // direct, to the first queue
        assert_eq!(tirc.0, expected);

        let no_udp = RssConfig { udp: false, ..config };
        assert_eq!(selector(TrafficType::UdpV4, &no_udp), 3);
        let nothing = RssConfig { udp: false, ip: false, ..RssConfig::default() };
        assert_eq!(selector(TrafficType::UdpV4, &nothing), 0);
        assert_eq!(selector(TrafficType::TcpV4, &nothing), 0x0f);
    }
}
