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
    /// Received by Ethernet queues, unicast.
    pub rx_unicast: Traffic,
    /// Sent by Ethernet queues, unicast.
    pub tx_unicast: Traffic,
    /// Received by Ethernet queues, multicast.
    pub rx_multicast: Traffic,
    /// Sent by Ethernet queues, multicast.
    pub tx_multicast: Traffic,
    /// Received by Ethernet queues, broadcast.
    pub rx_broadcast: Traffic,
    /// Sent by Ethernet queues, broadcast.
    pub tx_broadcast: Traffic,
    /// Received by RoCE, unicast.
    pub rx_rdma_unicast: Traffic,
    /// Sent by RoCE, unicast.
    pub tx_rdma_unicast: Traffic,
    /// Received by RoCE, multicast.
    pub rx_rdma_multicast: Traffic,
    /// Sent by RoCE, multicast.
    pub tx_rdma_multicast: Traffic,
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
            rx_rdma_unicast: traffic(out.rx_ib_unicast_packets(), out.rx_ib_unicast_octets()),
            tx_rdma_unicast: traffic(out.tx_ib_unicast_packets(), out.tx_ib_unicast_octets()),
            rx_rdma_multicast: traffic(out.rx_ib_multicast_packets(), out.rx_ib_multicast_octets()),
            tx_rdma_multicast: traffic(out.tx_ib_multicast_packets(), out.tx_ib_multicast_octets()),
        }
    }

    /// Packets that Ethernet queues received, of all kinds.
    #[must_use]
    pub fn rx_packets(&self) -> u64 {
        self.rx_unicast.packets + self.rx_multicast.packets + self.rx_broadcast.packets
    }

    /// Packets that Ethernet queues sent, of all kinds.
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
