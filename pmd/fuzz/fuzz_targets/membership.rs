//! Any frames at a member of multicast groups: what is answered, and that it ends.
#![no_main]

use std::net::IpAddr;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use ferrocx_net::checksum;
use ferrocx_net::ether::MacAddr;
use ferrocx_net::membership::{Config, Host, MAX_FRAME_BYTES, Memberships};
use libfuzzer_sys::fuzz_target;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

fuzz_target!(|data: &[u8]| {
    let _ = run(&mut Unstructured::new(data));
});

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let host = Host {
        mac: MAC,
        vlan: u.arbitrary::<bool>()?.then_some(5),
        ipv4: [10, 0, 0, 1].into(),
        ipv6: [0xfe80, 0, 0, 0, 0, 0, 0, 1].into(),
    };
    let mut us = Memberships::new(host, Config { groups: 5, robustness: 3 }, u.arbitrary()?);
    let mut now = Duration::ZERO;
    let mut frame = Vec::new();
    while !u.is_empty() {
        let last = u.int_in_range(0..=7)?;
        let v6 = |scope, last| IpAddr::from([scope, 0, 0, 0, 0, 0, 0, last]);
        let (group, source) = if u.arbitrary()? {
            (IpAddr::from([239, 1, 2, last as u8]), IpAddr::from([10, 0, 0, last as u8]))
        } else {
            (v6(0xff15, last), v6(0xfd00, last))
        };
        let source = u.arbitrary::<bool>()?.then_some(source);
        match u.int_in_range(0..=5)? {
            0 => _ = us.join(group, source, now),
            1 => _ = us.leave(group, source, now),
            2 => frame = if u.arbitrary()? { query(u)? } else { ferrocx_fuzz::frame(u)? },
            3 => now += Duration::from_millis(u.int_in_range(0..=300_000)?),
            4 => {
                for _ in 0..u.int_in_range(1..=4)? {
                    if !frame.is_empty() {
                        let at = u.choose_index(frame.len())?;
                        frame[at] = u.arbitrary()?;
                    }
                }
            }
            _ => _ = us.frame(&frame, now),
        }
        // At most a change and an answer of every group are due at one time.
        for sent in 0.. {
            let Some(next) = us.next_frame(now) else { break };
            assert!(sent < 10 && (60..=MAX_FRAME_BYTES).contains(&next.len()));
            assert_eq!(next[6..12], MAC.0);
            frame = next;
        }
        assert!(us.next_time().is_none_or(|next| next > now));
        assert!(us.groups().count() <= 5);
    }
    Ok(())
}

/// A query, or another message, that is not stopped by its checksums.
fn query(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let is_ipv6 = u.arbitrary()?;
    let mut message = vec![if is_ipv6 { 130 } else { 0x11 }, u.arbitrary()?, 0, 0];
    message.extend(ferrocx_fuzz::bytes(u, 60)?);
    let mut packet = if is_ipv6 {
        let mut packet = vec![0x60, 0, 0, 0, 0, (8 + message.len()) as u8, 0, 1, 0xfe, 0x80];
        packet.resize(40, 9);
        packet.extend([58, 0, 5, 2, 0, 0, 1, 0]);
        packet
    } else {
        let mut packet = vec![0x45, 0, 0, (20 + message.len()) as u8, 0, 0, 0, 0, 1, 2, 0, 0];
        packet.resize(20, 0);
        let sum = checksum::finish(checksum::sum(&packet));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    };
    let len = message.len() as u32;
    let pseudo = if is_ipv6 { checksum::pseudo_v6(&packet[8..40], 58, len) } else { 0 };
    let sum = checksum::finish(pseudo + checksum::sum(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = [[2; 6], [4; 6]].concat();
    frame.extend(if is_ipv6 { [0x86, 0xdd] } else { [8, 0] });
    frame.append(&mut packet);
    frame.append(&mut message);
    Ok(frame)
}
