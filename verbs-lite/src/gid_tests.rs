use std::net::Ipv4Addr;

use super::*;

fn entry(index: u8, address: &str, prefix_len: u8, gateway: Option<&str>) -> Option<GidEntry> {
    let address = address.parse().unwrap();
    let gateway = gateway.map(|ip| ip.parse().unwrap());
    let config = GidConfig { address, prefix_len, gateway, vlan: None };
    Some(GidEntry { index, gid: address.into(), config, mac: MacAddr([2, 0, 0, 0, 0, 1]) })
}

fn table() -> GidTable {
    GidTable {
        entries: vec![
            entry(0, "fe80::1", 64, None),
            entry(1, "10.0.0.1", 8, Some("10.0.0.254")),
            None,
            entry(3, "10.1.0.1", 16, None),
            entry(4, "fd00:18::1", 64, None),
            entry(5, "169.254.1.1", 16, None),
        ],
        changes: 0,
    }
}

fn choice(remote: &str) -> Option<(u8, String)> {
    let remote: IpAddr = remote.parse().unwrap();
    let route = table().route(remote.into()).ok()?;
    Some((route.source.index, route.next_hop.to_string()))
}

#[test]
fn the_longest_subnet_wins_then_the_gateway() {
    let some = |index, hop: &str| Some((index, hop.to_owned()));
    assert_eq!(choice("10.1.7.7"), some(3, "10.1.7.7"));
    assert_eq!(choice("10.2.7.7"), some(1, "10.2.7.7"));
    assert_eq!(choice("192.0.2.1"), some(1, "10.0.0.254"));
    assert_eq!(choice("fe80::2"), some(0, "fe80::2"));
    assert_eq!(choice("fd00:18::2"), some(4, "fd00:18::2"));
    assert_eq!(choice("169.254.9.9"), some(5, "169.254.9.9"));
    assert_eq!(choice("fd00:19::2"), None, "no IPv6 gateway");
}

#[test]
fn an_address_reaches_none_of_the_other_family() {
    // Every peer of their family is on the link.
    for (own, there, not) in
        [("fd00::1", "fd01::2", "10.0.0.2"), ("10.0.0.1", "11.0.0.2", "fd01::2")]
    {
        let entry = entry(0, own, 0, None).unwrap();
        let route = |to: &str| entry.route(to.parse::<IpAddr>().unwrap().into());
        assert_eq!(route(there).unwrap().next_hop.to_string(), there);
        assert!(matches!(route(not), Err(VerbsError::NoRoute { .. })), "{own} to {not}");
    }
}

#[test]
fn a_table_entry_is_literal() {
    let bytes = address_of(&entry(0, "10.0.0.1", 8, None).unwrap()).0;
    let mut expected = [0; 32];
    expected[10..16].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
    expected[0x12] = 2;
    expected[0x17] = 1;
    expected[0x1b] = 2;
    assert_eq!(bytes, expected);
    let bytes = address_of(&entry(0, "fd00:18::1", 64, None).unwrap()).0;
    assert_eq!(bytes[0x18..0x1c], [0, 0, 1, 2]);
}

/// Values worked out by hand from reference 7.9.
#[test]
fn source_ports_are_symmetric_and_follow_the_label() {
    assert_eq!(udp_source_port(0, 0x123, 0x456), udp_source_port(0, 0x456, 0x123));
    // 0x123 * 0x456 = 0x4edc2; 0xedc2 & 0x3fff = 0x2dc2; >> 14 = 0x13; xor = 0x2dd1.
    assert_eq!(udp_source_port(0, 0x123, 0x456), 0xedd1);
    assert_eq!(udp_source_port(0xf_ffff, 1, 1), 0xc000 | (0x3fff ^ 0x3f));
}

#[test]
fn a_path_has_the_bytes_of_an_address_vector() {
    let route = table().route(Gid::from(Ipv4Addr::new(10, 1, 0, 2))).unwrap();
    let path = Path { traffic_class: 0x68, ..Path::new(route, MacAddr([2, 0, 0, 0, 0, 2])) };
    let bytes = path.address_vector().0;
    let mut expected = [0; 48];
    expected[8] = 0x80;
    expected[0x0e..0x10].copy_from_slice(&[0xc0, 0]);
    expected[0x14..0x1a].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    expected[0x1a..0x1c].copy_from_slice(&[0x6a, 64]);
    expected[0x1c..0x20].copy_from_slice(&(1u32 << 30 | 3 << 20).to_be_bytes());
    expected[0x2a..0x30].copy_from_slice(&[0xff, 0xff, 10, 1, 0, 2]);
    assert_eq!(bytes, expected);
}
