//! Counters that the device keeps: of the vport, and of flow rules.

use ferrocx_prm::cmd::port::QueryVportCounterOut;

/// Packets and bytes of one kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes, as the device counts them.
    pub bytes: u64,
}

/// Counts of the vport since bring-up. Source: QUERY_VPORT_COUNTER, reference 4.8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct VportCounters {
    /// Received with errors.
    pub rx_errors: Traffic,
    /// Not sent because of errors.
    pub tx_errors: Traffic,
    /// Received unicast.
    pub rx_unicast: Traffic,
    /// Sent unicast.
    pub tx_unicast: Traffic,
    /// Received multicast.
    pub rx_multicast: Traffic,
    /// Sent multicast.
    pub tx_multicast: Traffic,
    /// Received broadcast.
    pub rx_broadcast: Traffic,
    /// Sent broadcast.
    pub tx_broadcast: Traffic,
}

impl VportCounters {
    pub(crate) fn read(out: &QueryVportCounterOut) -> Self {
        let traffic = |packets, bytes| Traffic { packets, bytes };
        Self {
            rx_errors: traffic(out.rx_errors_packets(), out.rx_errors_octets()),
            tx_errors: traffic(out.tx_errors_packets(), out.tx_errors_octets()),
            rx_unicast: traffic(out.rx_eth_unicast_packets(), out.rx_eth_unicast_octets()),
            tx_unicast: traffic(out.tx_eth_unicast_packets(), out.tx_eth_unicast_octets()),
            rx_multicast: traffic(out.rx_eth_multicast_packets(), out.rx_eth_multicast_octets()),
            tx_multicast: traffic(out.tx_eth_multicast_packets(), out.tx_eth_multicast_octets()),
            rx_broadcast: traffic(out.rx_eth_broadcast_packets(), out.rx_eth_broadcast_octets()),
            tx_broadcast: traffic(out.tx_eth_broadcast_packets(), out.tx_eth_broadcast_octets()),
        }
    }

    /// Packets received, of all kinds.
    #[must_use]
    pub fn rx_packets(&self) -> u64 {
        self.rx_unicast.packets + self.rx_multicast.packets + self.rx_broadcast.packets
    }

    /// Packets sent, of all kinds.
    #[must_use]
    pub fn tx_packets(&self) -> u64 {
        self.tx_unicast.packets + self.tx_multicast.packets + self.tx_broadcast.packets
    }
}

/// Counts of a flow rule. Source: QUERY_FLOW_COUNTER, reference 4.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowCounts {
    /// Packets that matched.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}
