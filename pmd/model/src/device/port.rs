//! The port and the NIC vport: link, MTU, addresses, counters.

use std::collections::BTreeMap;

use super::config::NicConfig;
use super::congestion::Congestion;
use crate::wire::Train;

/// Packets and bytes of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes, FCS excluded.
    pub octets: u64,
}

impl Traffic {
    /// Counts one packet.
    #[inline]
    pub fn add(&mut self, octets: u64) {
        self.packets += 1;
        self.octets += octets;
    }

    fn plus(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, octets: self.octets + other.octets }
    }

    /// Counts the packets that go as one inside the process.
    #[inline]
    pub(crate) fn add_train(&mut self, train: &Train) {
        self.packets += u64::from(train.frames);
        self.octets += u64::from(train.bytes);
    }
}

/// Counters of the vport and of the port behind it. Source: reference 4.8, 4.7 (PPCNT).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Received by Ethernet, unicast.
    pub rx_unicast: Traffic,
    /// Received by Ethernet, multicast.
    pub rx_multicast: Traffic,
    /// Received by Ethernet, broadcast.
    pub rx_broadcast: Traffic,
    /// Received from the wire and not taken: malformed, too long.
    pub rx_errors: Traffic,
    /// Received, no steering entry wanted it.
    pub rx_steering_missed: u64,
    /// Received, no buffer was posted.
    pub rx_out_of_buffer: u64,
    /// Received while the link was down.
    pub rx_link_down: u64,
    /// Sent by Ethernet, unicast.
    pub tx_unicast: Traffic,
    /// Sent by Ethernet, multicast.
    pub tx_multicast: Traffic,
    /// Sent by Ethernet, broadcast.
    pub tx_broadcast: Traffic,
    /// Received by RoCE, unicast.
    pub rx_ib_unicast: Traffic,
    /// Received by RoCE, multicast.
    pub rx_ib_multicast: Traffic,
    /// Sent by RoCE, unicast.
    pub tx_ib_unicast: Traffic,
    /// Sent by RoCE, multicast.
    pub tx_ib_multicast: Traffic,
    /// Not sent.
    pub tx_errors: Traffic,
    /// Not sent because the link was down.
    pub tx_link_down: u64,
    /// Received with a wrong FCS, as told by the wire.
    pub rx_fcs_errors: u64,
}

impl PortCounters {
    /// Frames received without error, by cast.
    pub(crate) fn rx_by_cast(&self) -> [Traffic; 3] {
        let unicast = self.rx_unicast.plus(self.rx_ib_unicast);
        [unicast, self.rx_multicast.plus(self.rx_ib_multicast), self.rx_broadcast]
    }

    /// Frames sent, by cast.
    pub(crate) fn tx_by_cast(&self) -> [Traffic; 3] {
        let unicast = self.tx_unicast.plus(self.tx_ib_unicast);
        [unicast, self.tx_multicast.plus(self.tx_ib_multicast), self.tx_broadcast]
    }

    /// Frames received without error.
    #[must_use]
    pub fn rx(&self) -> Traffic {
        sum(self.rx_by_cast())
    }

    /// Frames sent.
    #[must_use]
    pub fn tx(&self) -> Traffic {
        sum(self.tx_by_cast())
    }
}

fn sum(parts: [Traffic; 3]) -> Traffic {
    parts.into_iter().fold(Traffic::default(), Traffic::plus)
}

/// Frames that the vport takes besides those that a steering entry wants by address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Promiscuous {
    /// Every unicast frame.
    pub unicast: bool,
    /// Every multicast frame.
    pub multicast: bool,
    /// Every frame.
    pub all: bool,
}

/// The NIC vport context. Source: reference 4.5.
#[derive(Debug, Clone)]
pub struct Vport {
    /// Permanent MAC address.
    pub mac: [u8; 6],
    /// Largest frame, as told by the driver.
    pub mtu: u32,
    /// Promiscuous modes.
    pub promiscuous: Promiscuous,
    /// Unicast addresses the driver asked for.
    pub unicast: Vec<[u8; 6]>,
    /// Multicast addresses the driver asked for.
    pub multicast: Vec<[u8; 6]>,
    /// VLANs the driver asked for.
    pub vlans: Vec<u16>,
    /// Unicast frames are not looped back.
    pub disable_uc_local_lb: bool,
    /// Multicast frames are not looped back.
    pub disable_mc_local_lb: bool,
    /// RoCE is enabled.
    pub roce_en: bool,
    /// Headers that send WQEs must carry inline.
    pub min_wqe_inline_mode: u32,
    /// The next change raises an event.
    pub event_armed: bool,
    /// Changes that raise the event.
    pub event_on: u32,
    /// Node GUID.
    pub node_guid: u64,
    /// Port GUID.
    pub port_guid: u64,
    /// System image GUID.
    pub system_image_guid: u64,
    /// `admin_state` of the vport: 0 down, 1 up, 2 follows the port.
    pub admin_state: u32,
}

impl Vport {
    fn new(config: &NicConfig) -> Self {
        let mac = config.mac;
        let guid = u64::from_be_bytes([mac[0], mac[1], mac[2], 0, 0, mac[3], mac[4], mac[5]]);
        Self {
            mac,
            mtu: DEFAULT_MTU,
            promiscuous: Promiscuous::default(),
            unicast: Vec::new(),
            multicast: Vec::new(),
            vlans: Vec::new(),
            disable_uc_local_lb: false,
            disable_mc_local_lb: false,
            roce_en: false,
            min_wqe_inline_mode: 0,
            event_armed: false,
            event_on: 0,
            node_guid: guid,
            port_guid: guid,
            system_image_guid: guid,
            admin_state: 2,
        }
    }

    /// Whether the embedded switch forwards a frame to a virtual function that the host trusts:
    /// what promiscuous modes say, and addresses of the lists, among which the function's own and
    /// broadcast have to be. `promisc_uc` alone changes nothing.
    ///
    /// # Source
    /// Linux, the driver of the switch: `esw_update_vport_addr_list`, `esw_update_vport_rx_mode`.
    fn lets_in(&self, to: &[u8; 6]) -> bool {
        let Promiscuous { all, multicast, .. } = self.promiscuous;
        if to[0] & 1 == 0 {
            all || self.unicast.contains(to)
        } else {
            all || multicast || self.multicast.contains(to)
        }
    }
}

/// Largest frame after a reset: 1500 bytes of payload, and what Linux adds in PMTU: Ethernet
/// header 14, VLAN tag 4, FCS 4. Source: reference 4.7.
pub const DEFAULT_MTU: u32 = 1522;

/// The physical port.
#[derive(Debug, Clone)]
pub struct Port {
    /// Largest frame the port can do.
    pub max_mtu: u32,
    /// Largest frame asked for, which is also the one in force.
    pub mtu: u32,
    /// The driver wants the link up.
    pub admin_up: bool,
    /// The wire has a carrier.
    pub carrier: bool,
    /// INIT_HCA brought the link logic up.
    pub enabled: bool,
    /// The state that the driver was told last.
    pub reported_up: bool,
    /// Sends pause frames.
    pub pause_tx: bool,
    /// Obeys pause frames.
    pub pause_rx: bool,
    /// Speeds that the driver allows, bits of PTYS.
    pub speeds_admin: u32,
    /// Counters.
    pub counters: PortCounters,
    /// The vport.
    pub vport: Vport,
    /// Congestion control of RoCE.
    pub congestion: Congestion,
    /// Entries of the table of several hosts.
    pub l2_table: BTreeMap<u32, [u8; 6]>,
    /// Frames from the wire pass the embedded switch, which forwards by [`Vport::lets_in`].
    is_switched: bool,
}

impl Port {
    /// A port after power-on.
    #[must_use]
    pub fn new(config: &NicConfig) -> Self {
        Self {
            max_mtu: config.max_mtu,
            mtu: DEFAULT_MTU,
            admin_up: true,
            carrier: true,
            enabled: false,
            reported_up: false,
            pause_tx: false,
            pause_rx: false,
            speeds_admin: config.speeds,
            counters: PortCounters::default(),
            congestion: Congestion::default(),
            l2_table: BTreeMap::new(),
            is_switched: config.identity.is_vf(),
            vport: Vport::new(config),
        }
    }

    /// Whether a frame from the wire, an Ethernet header at least, reaches the function: a physical
    /// one gets all of them, a virtual one what its driver asked for.
    #[inline]
    pub(crate) fn is_forwarded(&self, frame: &[u8]) -> bool {
        !self.is_switched || frame.first_chunk().is_some_and(|to| self.vport.lets_in(to))
    }

    /// Frames can be sent and received.
    #[inline]
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.admin_up && self.carrier && self.enabled && self.vport.admin_state != 0
    }
}
