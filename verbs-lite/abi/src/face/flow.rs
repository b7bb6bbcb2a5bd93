//! Rules that lead frames to raw packet queue pairs.
//!
//! A rule is there from when it is made until it is destroyed, whatever its queue pair goes
//! through: it leads frames there from RTR on, until a reset. Of rules that match, the one decides
//! whose combination of fields was used first; programs that give priorities are refused.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ferrocx_core::{FlowMatch, Ipv4Match, Ipv6Match, MacAddr, Masked};
use ferrocx_verbs_lite::QpType;

use super::context::Shared;
use super::life::User;
use super::pair::{Member, Pair};
use super::queue_pair::QueuePair;
use super::shown::Shown;
use super::{Errno, give_out, number, object, take_back, tried};
use crate::abi::{
    FLOW_ATTR_NORMAL, flow_spec, flow_spec_head, flow_spec_of, ibv_flow, ibv_flow_attr,
    ibv_flow_eth_filter, ibv_flow_ipv4_ext_filter, ibv_flow_ipv4_filter, ibv_flow_ipv6_filter,
    ibv_flow_spec_eth, ibv_flow_spec_ipv4, ibv_flow_spec_ipv4_ext, ibv_flow_spec_ipv6,
    ibv_flow_spec_tcp_udp, ibv_flow_tcp_udp_filter, ibv_qp,
};

/// Ethertypes and protocols that the layers above imply. Source: IEEE 802 and IANA numbers.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The number of a VLAN in its tag.
const VLAN_ID: u16 = 0xfff;

/// A field that is compared as a whole, or not at all.
fn whole<T: PartialEq + Default>(value: T, mask: T, ones: T) -> Result<Option<T>, Errno> {
    match mask {
        none if none == T::default() => Ok(None),
        all if all == ones => Ok(Some(value)),
        _ => Err(Errno::NOT_SUPPORTED),
    }
}

/// Fails if a field is compared that rules do not have.
fn ignored(is_ignored: bool) -> Result<(), Errno> {
    if is_ignored { Ok(()) } else { Err(Errno::NOT_SUPPORTED) }
}

fn mac(value: [u8; 6], mask: [u8; 6]) -> Option<Masked<MacAddr>> {
    let value = std::array::from_fn(|at| value[at] & mask[at]);
    (mask != [0; 6]).then_some(Masked { value: MacAddr(value), mask: MacAddr(mask) })
}

fn port(value: u16, mask: u16) -> Option<Masked<u16>> {
    let (value, mask) = (u16::from_be(value & mask), u16::from_be(mask));
    (mask != 0).then_some(Masked { value, mask })
}

fn v4(value: u32, mask: u32) -> Option<Masked<Ipv4Addr>> {
    let address = |word: u32| Ipv4Addr::from(word.to_ne_bytes());
    (mask != 0).then(|| Masked { value: address(value & mask), mask: address(mask) })
}

fn v6(value: [u8; 16], mask: [u8; 16]) -> Option<Masked<Ipv6Addr>> {
    let (value, mask) = (u128::from_be_bytes(value), u128::from_be_bytes(mask));
    let address = Ipv6Addr::from_bits;
    (mask != 0).then(|| Masked { value: address(value & mask), mask: address(mask) })
}

/// What the specifications of a rule describe together.
#[derive(Debug, Default)]
struct Described {
    matches: FlowMatch,
}

impl Described {
    fn eth(&mut self, val: &ibv_flow_eth_filter, mask: &ibv_flow_eth_filter) -> Result<(), Errno> {
        let matches = &mut self.matches;
        matches.destination_mac = mac(val.dst_mac, mask.dst_mac);
        matches.source_mac = mac(val.src_mac, mask.src_mac);
        let [ether_type, tag] = [val.ether_type, val.vlan_tag].map(u16::from_be);
        matches.ethertype = whole(ether_type, u16::from_be(mask.ether_type), u16::MAX)?;
        let id = whole(tag & VLAN_ID, u16::from_be(mask.vlan_tag), VLAN_ID)?;
        matches.vlan = id.map(Some);
        Ok(())
    }

    fn protocol(&mut self, value: u8, mask: u8) -> Result<(), Errno> {
        self.matches.ip_protocol = whole(value, mask, u8::MAX)?;
        Ok(())
    }

    fn ipv4(&mut self, val: &ibv_flow_ipv4_filter, mask: &ibv_flow_ipv4_filter) {
        let (source, destination) = (v4(val.src_ip, mask.src_ip), v4(val.dst_ip, mask.dst_ip));
        self.matches.ipv4 = Some(Ipv4Match { source, destination });
    }

    fn ipv4_ext(
        &mut self,
        val: &ibv_flow_ipv4_ext_filter,
        mask: &ibv_flow_ipv4_ext_filter,
    ) -> Result<(), Errno> {
        ignored(mask.tos == 0 && mask.ttl == 0 && mask.flags == 0)?;
        let addresses = |of: &ibv_flow_ipv4_ext_filter| ibv_flow_ipv4_filter {
            src_ip: of.src_ip,
            dst_ip: of.dst_ip,
        };
        self.ipv4(&addresses(val), &addresses(mask));
        self.protocol(val.proto, mask.proto)
    }

    fn ipv6(
        &mut self,
        val: &ibv_flow_ipv6_filter,
        mask: &ibv_flow_ipv6_filter,
    ) -> Result<(), Errno> {
        ignored(mask.flow_label == 0 && mask.traffic_class == 0 && mask.hop_limit == 0)?;
        let (source, destination) = (v6(val.src_ip, mask.src_ip), v6(val.dst_ip, mask.dst_ip));
        self.matches.ipv6 = Some(Ipv6Match { source, destination });
        self.protocol(val.next_hdr, mask.next_hdr)
    }

    fn ports(
        &mut self,
        protocol: u8,
        (val, mask): (&ibv_flow_tcp_udp_filter, &ibv_flow_tcp_udp_filter),
    ) -> Result<(), Errno> {
        if self.matches.ip_protocol.is_some_and(|known| known != protocol) {
            return Err(Errno::INVALID);
        }
        self.matches.ip_protocol = Some(protocol);
        self.matches.source_port = port(val.src_port, mask.src_port);
        self.matches.destination_port = port(val.dst_port, mask.dst_port);
        Ok(())
    }

    /// The whole, in which a layer says what is below it.
    fn matches(mut self) -> Result<FlowMatch, Errno> {
        let matches = &mut self.matches;
        if matches.ip_protocol.is_some() && matches.ipv4.is_none() && matches.ipv6.is_none() {
            match matches.ethertype {
                Some(IPV4) => matches.ipv4 = Some(Ipv4Match::default()),
                Some(IPV6) => matches.ipv6 = Some(Ipv6Match::default()),
                // The protocol over either version would be two rules.
                _ => return Err(Errno::NOT_SUPPORTED),
            }
        }
        let implied = match (matches.ipv4, matches.ipv6) {
            (Some(_), Some(_)) => return Err(Errno::INVALID),
            (Some(_), None) => Some(IPV4),
            (None, Some(_)) => Some(IPV6),
            (None, None) => None,
        };
        match (implied, matches.ethertype) {
            (Some(implied), Some(said)) if implied != said => Err(Errno::INVALID),
            (Some(_), _) => Ok(FlowMatch { ethertype: None, ..self.matches }),
            (None, _) => Ok(self.matches),
        }
    }
}

/// What a rule matches.
///
/// # Safety
/// The module's: `attr` is followed by its specifications.
unsafe fn matches_of(attr: *const ibv_flow_attr) -> Result<FlowMatch, Errno> {
    let head = promised!(&*attr);
    if head.comp_mask != 0 || head.port != 1 {
        return Err(Errno::INVALID);
    }
    if head.kind != FLOW_ATTR_NORMAL || head.flags != 0 || head.priority != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    let mut described = Described::default();
    let mut at = size_of::<ibv_flow_attr>();
    for _ in 0..head.num_of_specs {
        let spec = promised!(attr.byte_add(at));
        let flow_spec_head { kind, size } =
            promised!(spec.cast::<flow_spec_head>().read_unaligned());
        let size = usize::from(size);
        macro_rules! read {
            ($kind:ty) => {{
                if size < size_of::<$kind>() {
                    return Err(Errno::INVALID);
                }
                let flow_spec_of { val, mask, .. } =
                    promised!(spec.cast::<$kind>().read_unaligned());
                (val, mask)
            }};
        }
        match kind {
            flow_spec::ETH => {
                let (val, mask) = read!(ibv_flow_spec_eth);
                described.eth(&val, &mask)?;
            }
            flow_spec::IPV4 => {
                let (val, mask) = read!(ibv_flow_spec_ipv4);
                described.ipv4(&val, &mask);
            }
            flow_spec::IPV4_EXT => {
                let (val, mask) = read!(ibv_flow_spec_ipv4_ext);
                described.ipv4_ext(&val, &mask)?;
            }
            flow_spec::IPV6 => {
                let (val, mask) = read!(ibv_flow_spec_ipv6);
                described.ipv6(&val, &mask)?;
            }
            flow_spec::TCP | flow_spec::UDP => {
                let (val, mask) = read!(ibv_flow_spec_tcp_udp);
                described.ports(if kind == flow_spec::TCP { TCP } else { UDP }, (&val, &mask))?;
            }
            _ => return Err(Errno::NOT_SUPPORTED),
        }
        at += size;
    }
    described.matches()
}

/// A rule as the program has it.
#[repr(C)]
struct Flow {
    _face: Shown<ibv_flow>,
    shared: Arc<Shared>,
    member: Arc<Member>,
    /// The queue pair stays as long as it is.
    _queue_pair: User,
}

unsafe fn create(qp: *mut ibv_qp, attr: *const ibv_flow_attr) -> Result<*mut ibv_flow, Errno> {
    let queue_pair = promised!(QueuePair::of(qp));
    queue_pair.shared.here()?;
    let mut pair = queue_pair.member.pair.lock();
    if pair.qp.qp_type() != QpType::Raw {
        return Err(Errno::INVALID);
    }
    let Pair { qp: raw, rules, spread, .. } = &mut *pair;
    let handle = rules.add(promised!(matches_of(attr))?, raw, spread.as_mut())?;
    let context = promised!((*qp).context);
    Ok(give_out(Flow {
        _face: Shown::new(ibv_flow { comp_mask: 0, context, handle }),
        shared: Arc::clone(&queue_pair.shared),
        member: Arc::clone(&queue_pair.member),
        _queue_pair: queue_pair.users.one(),
    }))
}

pub(super) unsafe extern "C" fn create_flow(
    qp: *mut ibv_qp,
    attr: *mut ibv_flow_attr,
) -> *mut ibv_flow {
    object(promised!(create(qp, attr)))
}

pub(super) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    let known = promised!(&*flow.cast::<Flow>());
    tried!(known.shared.here());
    let handle = promised!((*flow).handle);
    let mut pair = known.member.pair.lock();
    let Pair { qp, rules, spread, .. } = &mut *pair;
    let removed = rules.remove(handle, qp, spread.as_mut());
    drop(pair);
    if removed.is_ok() {
        drop(promised!(take_back::<Flow, _>(flow)));
    }
    number(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A head and a specification behind it, as programs lay them out.
    #[repr(C)]
    struct With<T> {
        attr: ibv_flow_attr,
        spec: T,
    }

    fn with<T>(kind: u32, val: T, mask: T) -> With<flow_spec_of<T>> {
        let size = size_of::<flow_spec_of<T>>() as u16;
        let attr = ibv_flow_attr {
            comp_mask: 0,
            kind: FLOW_ATTR_NORMAL,
            size: size + size_of::<ibv_flow_attr>() as u16,
            priority: 0,
            num_of_specs: 1,
            port: 1,
            flags: 0,
        };
        With { attr, spec: flow_spec_of { kind, size, val, mask } }
    }

    fn read<T>(rule: &With<T>) -> Result<FlowMatch, c_int> {
        // SAFETY: one specification stands behind the head, in one structure.
        unsafe { matches_of((&raw const *rule).cast()) }.map_err(|errno| errno.0)
    }

    const NO_ETH: ibv_flow_eth_filter =
        ibv_flow_eth_filter { dst_mac: [0; 6], src_mac: [0; 6], ether_type: 0, vlan_tag: 0 };

    #[test]
    fn an_ethernet_header_is_compared_by_its_mask() {
        let val = ibv_flow_eth_filter {
            dst_mac: [2, 0, 1, 2, 3, 4],
            ether_type: IPV6.to_be(),
            vlan_tag: 0x6123_u16.to_be(),
            ..NO_ETH
        };
        let mask = ibv_flow_eth_filter { dst_mac: [0xff, 0, 0, 0, 0, 0xff], ..NO_ETH };
        let found = read(&with(flow_spec::ETH, val, mask)).unwrap();
        let mac =
            Masked { value: MacAddr([2, 0, 0, 0, 0, 4]), mask: MacAddr([0xff, 0, 0, 0, 0, 0xff]) };
        assert_eq!(found, FlowMatch { destination_mac: Some(mac), ..FlowMatch::default() });
        let mask = ibv_flow_eth_filter { ether_type: 0xffff, vlan_tag: VLAN_ID.to_be(), ..NO_ETH };
        let found = read(&with(flow_spec::ETH, val, mask)).unwrap();
        assert_eq!((found.ethertype, found.vlan), (Some(IPV6), Some(Some(0x123))));
        // A part of the type, and the priority of a tag, are no fields of a rule.
        for (ether_type, vlan_tag) in [(0xff, 0), (0, 0xffff)] {
            let mask = ibv_flow_eth_filter { ether_type, vlan_tag, ..NO_ETH };
            assert_eq!(read(&with(flow_spec::ETH, val, mask)), Err(libc::EOPNOTSUPP));
        }
    }

    #[test]
    fn addresses_are_in_the_networks_order() {
        let word = |octets: [u8; 4]| u32::from_ne_bytes(octets);
        let val = ibv_flow_ipv4_ext_filter {
            src_ip: word([10, 1, 2, 3]),
            dst_ip: word([10, 4, 5, 6]),
            proto: UDP,
            tos: 1,
            ttl: 2,
            flags: 3,
        };
        let none =
            ibv_flow_ipv4_ext_filter { src_ip: 0, dst_ip: 0, proto: 0, tos: 0, ttl: 0, flags: 0 };
        let mask = ibv_flow_ipv4_ext_filter {
            src_ip: u32::MAX,
            dst_ip: word([255, 255, 0, 0]),
            proto: 0xff,
            ..none
        };
        let found = read(&with(flow_spec::IPV4_EXT, val, mask)).unwrap();
        let ipv4 = found.ipv4.unwrap();
        assert_eq!(ipv4.source, Some(Ipv4Addr::new(10, 1, 2, 3).into()));
        assert_eq!(ipv4.destination.unwrap().value, Ipv4Addr::new(10, 4, 0, 0));
        assert_eq!((found.ip_protocol, found.ethertype), (Some(UDP), None));
        let tos = ibv_flow_ipv4_ext_filter { tos: 1, ..none };
        assert_eq!(read(&with(flow_spec::IPV4_EXT, val, tos)), Err(libc::EOPNOTSUPP));
        // The protocol of either version of IP.
        let ports = ibv_flow_tcp_udp_filter { dst_port: 80_u16.to_be(), src_port: 0 };
        let mask = ibv_flow_tcp_udp_filter { dst_port: 0xffff, src_port: 0 };
        assert_eq!(read(&with(flow_spec::TCP, ports, mask)), Err(libc::EOPNOTSUPP));
    }

    #[test]
    fn what_a_rule_cannot_say_is_refused() {
        let eth = || with(flow_spec::ETH, NO_ETH, NO_ETH);
        assert_eq!(read(&eth()), Ok(FlowMatch::default()));
        type Change = fn(&mut With<ibv_flow_spec_eth>);
        let changes: [(Change, c_int); 7] = [
            (|rule| rule.attr.port = 2, libc::EINVAL),
            (|rule| rule.attr.comp_mask = 1, libc::EINVAL),
            (|rule| rule.spec.size -= 1, libc::EINVAL),
            (|rule| rule.attr.kind = 3, libc::EOPNOTSUPP),
            (|rule| rule.attr.flags = 2, libc::EOPNOTSUPP),
            (|rule| rule.attr.priority = 1, libc::EOPNOTSUPP),
            (|rule| rule.spec.kind = 0x1001, libc::EOPNOTSUPP),
        ];
        for (at, (change, errno)) in changes.into_iter().enumerate() {
            let mut rule = eth();
            change(&mut rule);
            assert_eq!(read(&rule), Err(errno), "{at}");
        }
    }
}
