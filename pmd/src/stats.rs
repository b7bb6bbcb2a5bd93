//! Counters: of queues, kept by the driver, and of the vport, kept by the device.

use ferrocx_prm::cmd::port::QueryVportCounterOut;

use crate::error::QueueFault;

/// Counts of one receive queue since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RxStats {
    /// Packets handed out.
    pub packets: u64,
    /// Bytes of those packets, without FCS.
    pub bytes: u64,
    /// Packets dropped because they did not fit, or arrived broken (completions with error).
    pub errors: u64,
    /// Times that the pool had no buffer to post: the ring runs shorter until it has.
    pub no_mbuf: u64,
    /// Times that the queue was reset after a fault.
    pub resets: u64,
    /// Why the queue stands still, if it does.
    pub fault: Option<QueueFault>,
}

/// Counts of one send queue since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TxStats {
    /// Packets handed to the device.
    pub packets: u64,
    /// Bytes of those packets, without FCS.
    pub bytes: u64,
    /// Packets that the device refused (completions with error), and packets lost with them.
    pub errors: u64,
    /// Packets dropped because no work request can describe them, see [`crate::TxQueue::tx_burst`].
    pub dropped: u64,
    /// Times that a burst found the ring full.
    pub full: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Times that the queue was reset after a fault.
    pub resets: u64,
    /// Why the queue stands still, if it does.
    pub fault: Option<QueueFault>,
}

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
