//! The port: link, MAC addresses, MTU, and what the vport lets through.

use ferrocx_net::ether::MacAddr;
use ferrocx_prm::Layout;
use ferrocx_prm::caps::{EthCap, HcaCap};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::port::{
    AccessReg, DeleteL2TableEntry, ModifyNicVportContext, QueryNicVportContext, QueryVportState,
    SetL2TableEntry, access_reg,
};
use ferrocx_prm::reg::{Paos, Pmtu, PortStatus, RegisterId};
use ferrocx_prm::vport::{NicVportContext, field_select, list_type};

use crate::cmd::CommandError;
use crate::config::{DeviceConfig, MAX_MTU, check_mtu};
use crate::control::Control;
use crate::error::DeviceError;

/// Bytes by which the device's MTU exceeds ours: Ethernet header 14, VLAN tag 4, FCS 4.
///
/// Source: reference 4.7, PMTU.
const L2_BYTES: u16 = 22;
/// The only port of a function. Source: reference 4.7, registers count from 1.
const LOCAL_PORT: u32 = 1;
/// Where the function's address stands in the table of several hosts. Source: Linux
/// `mlx5_mpfs_add_mac`, which takes the first free place.
const L2_ENTRY: u32 = 0;
/// [`EthCap::wqe_inline_mode`]: the headers that a work request must carry. Source: reference 5.11.
const INLINE_L2_REQUIRED: u32 = 0;
const INLINE_FROM_VPORT: u32 = 1;
/// [`NicVportContext::min_wqe_inline_mode`]: no inline headers. Source: reference 4.5.
const INLINE_NONE: u32 = 0;
/// Bytes of an Ethernet header with a VLAN tag: what "L2" means at most. Source: reference 6.3.
const L2_INLINE_BYTES: u16 = 18;
/// Bytes up to the end of the IP and of the TCP header, at most, without IP options: 18 + 40 + 20.
const L4_INLINE_BYTES: u16 = 78;

/// The eight bytes of an entry in the device's lists. Source: reference 4.5.
fn padded(mac: MacAddr) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[2..].copy_from_slice(&mac.0);
    bytes
}

/// The address to receive by: the permanent one, or where there is none, as for a virtual function
/// that nobody gave one, one drawn by chance: unicast and locally administered. Source: IEEE
/// 802-2014, 8.2 (Linux `mlx5e_set_netdev_dev_addr`).
fn own_mac(permanent: MacAddr, random: u64) -> MacAddr {
    if permanent != MacAddr::default() {
        return permanent;
    }
    const GROUP: u8 = 1;
    const LOCAL: u8 = 2;
    let [_, _, mut mac @ ..] = random.to_be_bytes();
    mac[0] = mac[0] & !GROUP | LOCAL;
    MacAddr(mac)
}

/// Link state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkState {
    /// Frames can pass.
    pub up: bool,
    /// The port is administratively up.
    pub admin_up: bool,
}

/// What the driver set on the port.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    pub(crate) permanent_mac: MacAddr,
    pub(crate) mac: MacAddr,
    pub(crate) mtu: u16,
    pub(crate) max_mtu: u16,
    pub(crate) promiscuous: bool,
    pub(crate) all_multicast: bool,
    pub(crate) multicast: Vec<MacAddr>,
    /// Groups that objects of a crate above receive, one entry for each object.
    pub(crate) joined: Vec<MacAddr>,
    min_inline_mode: u32,
    /// The function fills the table by which a card with several hosts chooses theirs.
    has_l2_table: bool,
}

impl Port {
    /// Reads the port and applies the configuration.
    pub(crate) fn open(
        control: &mut Control,
        config: &DeviceConfig,
        hca: &HcaCap,
    ) -> Result<Self, DeviceError> {
        let vport = control.call(&QueryNicVportContext::input())?.nic_vport_context();
        let [_, _, mac @ ..] = vport.permanent_address();
        let register = Pmtu::zeroed().with_local_port(LOCAL_PORT);
        let pmtu = access(control, RegisterId::PMTU, access_reg::READ, register)?;
        let max_mtu = (pmtu.max_mtu() as u16).saturating_sub(L2_BYTES).min(MAX_MTU);
        let permanent_mac = MacAddr(mac);
        let mut port = Self {
            permanent_mac,
            mac: own_mac(permanent_mac, control.transport.random()),
            mtu: 0,
            max_mtu,
            promiscuous: config.promiscuous,
            all_multicast: config.all_multicast,
            multicast: Vec::new(),
            joined: Vec::new(),
            min_inline_mode: vport.min_wqe_inline_mode(),
            has_l2_table: hca.eswitch_manager() && hca.log_max_l2_table() > 0,
        };
        port.set_mtu(control, config.mtu)?;
        port.write_promisc(control)?;
        port.write_lists(control)?;
        Ok(port)
    }

    /// Bytes of each packet that must stand in the work request.
    pub(crate) fn min_inline_bytes(&self, eth: &EthCap) -> u16 {
        match eth.wqe_inline_mode() {
            INLINE_L2_REQUIRED => L2_INLINE_BYTES,
            INLINE_FROM_VPORT => match self.min_inline_mode {
                INLINE_NONE => 0,
                1 => L2_INLINE_BYTES,
                _ => L4_INLINE_BYTES,
            },
            _ => 0,
        }
    }

    /// The SQ context's `min_wqe_inline_mode`.
    pub(crate) fn min_inline_mode(&self, eth: &EthCap) -> u32 {
        match eth.wqe_inline_mode() {
            INLINE_L2_REQUIRED => 1,
            INLINE_FROM_VPORT => self.min_inline_mode,
            _ => INLINE_NONE,
        }
    }

    pub(crate) fn set_mtu(&mut self, control: &mut Control, mtu: u16) -> Result<(), DeviceError> {
        check_mtu(mtu, self.max_mtu)?;
        let l2 = u32::from(mtu + L2_BYTES);
        let register = Pmtu::zeroed().with_local_port(LOCAL_PORT).with_admin_mtu(l2);
        access(control, RegisterId::PMTU, access_reg::WRITE, register)?;
        // The vport only notes it for others, and one that does not take it receives all the same.
        // Source: Linux `mlx5e_set_mtu`.
        let context = NicVportContext::zeroed().with_mtu(l2);
        match modify_vport(control, field_select::MTU, context, &[]) {
            Err(DeviceError::Command(error @ CommandError::Status { .. })) => {
                tracing::warn!(mtu, %error, "the vport does not take the MTU that the port has");
            }
            done => done?,
        }
        self.mtu = mtu;
        Ok(())
    }

    /// Tells the vport what the flow tables let through.
    pub(crate) fn write_promisc(&self, control: &mut Control) -> Result<(), DeviceError> {
        let context = NicVportContext::zeroed()
            .with_promisc_uc(self.promiscuous)
            .with_promisc_mc(self.promiscuous || self.all_multicast)
            .with_promisc_all(self.promiscuous);
        modify_vport(control, field_select::PROMISC, context, &[])
    }

    /// Tells the vport which addresses are used. The embedded switch forwards a virtual function no
    /// other frames, and broadcast is one of them. Source: reference 4.5 (Linux
    /// `esw_update_vport_addr_list`, `mlx5e_vport_context_update`).
    pub(crate) fn write_lists(&self, control: &mut Control) -> Result<(), DeviceError> {
        let mut groups = [&[MacAddr::BROADCAST], &self.multicast[..], &self.joined[..]].concat();
        groups.sort_unstable();
        groups.dedup();
        let lists = [(list_type::UNICAST, vec![self.mac]), (list_type::MULTICAST, groups)];
        for (list_type, list) in lists {
            let tail: Vec<u8> = list.iter().flat_map(|&mac| padded(mac)).collect();
            let context = NicVportContext::zeroed()
                .with_allowed_list_type(list_type)
                .with_allowed_list_size(list.len() as u32);
            modify_vport(control, field_select::ADDRESSES_LIST, context, &tail)?;
        }
        if self.has_l2_table {
            let entry = SetL2TableEntry::input()
                .with_table_index(L2_ENTRY)
                .with_mac_address(u64::from_be_bytes(padded(self.mac)));
            l2_table(control.call(&entry).map(|_| ()))?;
        }
        Ok(())
    }

    /// Takes the function's address out of the table of several hosts.
    pub(crate) fn close(&self, control: &mut Control) -> Result<(), CommandError> {
        if !self.has_l2_table {
            return Ok(());
        }
        let entry = DeleteL2TableEntry::input().with_table_index(L2_ENTRY);
        l2_table(control.call(&entry).map(|_| ()))
    }
}

/// The answer about an entry of the table of several hosts. One that is refused is no reason to
/// end: a card with one host needs none. Source: Linux `mlx5e_execute_l2_action`.
fn l2_table(done: Result<(), CommandError>) -> Result<(), CommandError> {
    match done {
        Err(error @ CommandError::Status { .. }) => {
            tracing::warn!(%error, "the table of the card's hosts stays as it is");
            Ok(())
        }
        done => done,
    }
}

/// Switches the port on or off.
pub(crate) fn set(control: &mut Control, up: bool) -> Result<(), CommandError> {
    let status = if up { PortStatus::UP } else { PortStatus::DOWN };
    let register =
        Paos::zeroed().with_local_port(LOCAL_PORT).with_admin_status(status.0).with_ase(true);
    access(control, RegisterId::PAOS, access_reg::WRITE, register).map(|_| ())
}

/// Reads the link state.
pub(crate) fn query(control: &mut Control) -> Result<LinkState, DeviceError> {
    let output = control.call(&QueryVportState::input())?;
    // Source: reference 4.3, QUERY_VPORT_STATE: 0 down, 1 up, 2 follow.
    Ok(LinkState { up: output.state() == 1, admin_up: output.admin_state() != 0 })
}

fn modify_vport(
    control: &mut Control,
    select: u32,
    context: NicVportContext,
    list: &[u8],
) -> Result<(), DeviceError> {
    let input =
        ModifyNicVportContext::input().with_field_select(select).with_nic_vport_context(context);
    control.execute::<ModifyNicVportContext>(&input, list, &mut [])?;
    Ok(())
}

/// Reads or writes a register; returns what the device answered.
pub(crate) fn access<R: Layout>(
    control: &mut Control,
    id: RegisterId,
    op_mod: u32,
    register: R,
) -> Result<R, CommandError> {
    let input = AccessReg::input().with_op_mod(op_mod).with_register_id(u32::from(id.0));
    let mut answer = vec![0; R::SIZE_BYTES];
    control.execute::<AccessReg>(&input, register.as_bytes(), &mut answer)?;
    Ok(R::load(&answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_without_an_address_draws_a_local_unicast_one() {
        let permanent = MacAddr([0x98, 3, 0x9b, 1, 2, 3]);
        assert_eq!(own_mac(permanent, u64::MAX), permanent);
        assert_eq!(own_mac(MacAddr::default(), 0), MacAddr([2, 0, 0, 0, 0, 0]));
        let drawn = own_mac(MacAddr::default(), 0x1122_ff34_5678_9abc);
        assert_eq!(drawn, MacAddr([0xfe, 0x34, 0x56, 0x78, 0x9a, 0xbc]));
    }

    #[test]
    fn an_entry_of_a_list_is_literal() {
        let mac = MacAddr([0x02, 0, 0xab, 3, 4, 5]);
        assert_eq!(padded(mac), [0, 0, 0x02, 0, 0xab, 3, 4, 5]);
    }
}
