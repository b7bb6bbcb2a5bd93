//! Any frames at the Ethernet side of an RDMA port: what is learned, answered and asked.
#![no_main]

use std::net::IpAddr;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use ferrocx_net::ether::MacAddr;
use ferrocx_net::icmpecho::{self, Station, Tail, Verdict};
use ferrocx_net::neighbour::{Config, Neighbours, Own};
use libfuzzer_sys::fuzz_target;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

fuzz_target!(|data: &[u8]| {
    let _ = run(&mut Unstructured::new(data));
});

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let own = |text: &str| Own { ip: text.parse().expect("literal"), mac: MAC, vlan: None };
    let owns = [own("10.0.0.1"), own("fd00::1"), Own { vlan: Some(5), ..own("10.5.0.1") }];
    let mut us = Neighbours::new(Config { entries: 4, ..Config::default() });
    us.set_own(owns, Duration::ZERO);
    let station = Station { mac: MAC, addresses: owns.iter().map(|own| own.ip).collect() };
    let mut now = Duration::ZERO;
    let mut frame = Vec::new();
    while !u.is_empty() {
        match u.int_in_range(0..=4)? {
            // A frame of ours, as it was or damaged, is what another host would say.
            0 => {
                if let Some(sent) = us.next_frame(now) {
                    assert_eq!(sent[6..12], MAC.0);
                    frame = sent.to_vec();
                }
            }
            1 => frame = ferrocx_fuzz::frame(u)?,
            2 => {
                for _ in 0..u.int_in_range(1..=4)? {
                    if !frame.is_empty() {
                        let at = u.choose_index(frame.len())?;
                        frame[at] = u.arbitrary()?;
                    }
                }
            }
            3 => now += Duration::from_millis(u.int_in_range(0..=70_000)?),
            _ => {
                let target = IpAddr::from([10, 0, 0, u.int_in_range(0..=9)?]);
                let _ = us.resolve(target, u.choose(&owns)?, now);
            }
        }
        us.frame(&frame, now);
        let mut answer = frame.clone();
        if let Verdict::Reply { len_bytes } = icmpecho::reply(&mut answer, Tail::NONE, &station) {
            assert!((14..=frame.len()).contains(&len_bytes));
            assert_eq!(answer[6..12], MAC.0);
        }
    }
    Ok(())
}
