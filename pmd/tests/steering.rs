//! RSS over several queues, and flow rules.

mod common;

use std::net::Ipv4Addr;

use common::{Bench, Burst, bytes_of, config, frame, pool, tcp, udp};
use ferrocx_core::{
    Device, DeviceConfig, FlowAction, FlowMatch, FlowRule, Ipv4Match, Masked, RxQueueRef,
};
use ferrocx_mempool::Pool;
use ferrocx_net::ether::MacAddr;
use ferrocx_net::ip;
use ferrocx_pmd::{Rss, RssConfig, RxQueue, RxQueueConfig};

const MAC: [u8; 6] = [0x02, 0xfe, 0x0c, 0, 0, 1];

fn queues(device: &Device, pool: &Pool, count: usize) -> Vec<RxQueue> {
    device.register_pool(pool).unwrap();
    let config = RxQueueConfig { descriptors: 64, cache_size: 32, ..RxQueueConfig::default() };
    (0..count).map(|_| RxQueue::new(device, pool, &config).unwrap()).collect()
}

fn refs(queues: &[RxQueue]) -> Vec<RxQueueRef> {
    queues.iter().map(RxQueue::queue_ref).collect()
}

/// Packets that each queue received since the last call.
fn counts(queues: &mut [RxQueue]) -> Vec<usize> {
    queues
        .iter_mut()
        .map(|queue| {
            let mut sum = 0;
            loop {
                let mut out = Burst::new();
                match queue.rx_burst(&mut out) {
                    0 => return sum,
                    count => sum += count,
                }
            }
        })
        .collect()
}

/// Toeplitz hash over an IPv4 source, destination, and ports, straight from the definition: for
/// each set bit of the input, the 32 bits of the key from there on.
fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let bit = |at: usize| key[at / 8] >> (7 - at % 8) & 1;
    let mut hash = 0;
    for at in 0..input.len() * 8 {
        if input[at / 8] >> (7 - at % 8) & 1 == 1 {
            hash ^= (0..32).fold(0u32, |word, next| word << 1 | u32::from(bit(at + next)));
        }
    }
    hash
}

#[test]
fn hash_and_queue_follow_toeplitz_and_the_table() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(1024);
    let mut rx = queues(&device, &pool, 4);
    let config = RssConfig { reta: vec![0, 1, 2, 3, 3, 2, 1, 0], ..RssConfig::default() };
    let rss = Rss::new(&device, &refs(&rx), &config).unwrap();
    assert_eq!((rss.queues(), rss.reta().len()), (4, 8));
    for port in 1000..1100u16 {
        let sent =
            if port % 2 == 0 { udp(MAC, port, 80, &[7; 40]) } else { tcp(MAC, port, &[7; 40]) };
        bench.inject(&sent);
        bench.settle();
        let mut input = vec![10, 0, 0, 1, 10, 0, 0, 2];
        input.extend(port.to_be_bytes());
        input.extend(80u16.to_be_bytes());
        let hash = toeplitz(&config.key, &input);
        let wanted = usize::from(config.reta[hash as usize % 8]);
        let mut out = Burst::new();
        assert_eq!(rx[wanted].rx_burst(&mut out), 1, "port {port}, hash {hash:#x}");
        assert_eq!(out[0].rss_hash(), Some(hash));
        assert_eq!(bytes_of(&out[0]), sent);
    }
    // What is not IP goes to the first queue of the table.
    bench.inject(&frame(MAC, 64, 0));
    bench.settle();
    assert_eq!(counts(&mut rx), [1, 0, 0, 0]);
    bench.assert_clean();
}

#[test]
fn table_can_be_changed_while_receiving() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(1024);
    let mut rx = queues(&device, &pool, 2);
    let rss = Rss::new(&device, &refs(&rx), &RssConfig::default()).unwrap();
    let len = rss.reta().len();
    for target in [0, 1] {
        rss.set_reta(&vec![target; len]).unwrap();
        for port in 0..20 {
            bench.inject(&udp(MAC, port, 80, &[1; 40]));
        }
        bench.settle();
        let mut wanted = vec![0, 0];
        wanted[usize::from(target)] = 20;
        assert_eq!(counts(&mut rx), wanted);
    }
    assert!(rss.set_reta(&[0]).is_err(), "another length");
    assert!(rss.set_reta(&vec![2; len]).is_err(), "no such queue");
    assert!(Rss::new(&device, &refs(&rx), &RssConfig::default()).is_err(), "one at a time");
    rss.destroy().unwrap();
    bench.inject(&udp(MAC, 1, 80, &[1; 40]));
    bench.settle();
    assert_eq!(counts(&mut rx), [0, 0], "nothing is steered any more");
    let _again = Rss::new(&device, &refs(&rx), &RssConfig::default()).unwrap();
    bench.inject(&udp(MAC, 1, 80, &[1; 40]));
    bench.settle();
    assert_eq!(counts(&mut rx).iter().sum::<usize>(), 1);
    bench.assert_clean();
}

#[test]
fn queue_in_use_comes_back_from_destroy() {
    let bench = Bench::new();
    let device = bench.device();
    let pool = pool(256);
    let mut rx = queues(&device, &pool, 1);
    let rss = Rss::new(&device, &refs(&rx), &RssConfig::default()).unwrap();
    let failed = rx.pop().unwrap().destroy().unwrap_err();
    assert!(failed.cause.to_string().contains("are alive"), "{}", failed.cause);
    drop(rss);
    failed.object.destroy().unwrap();
    device.close().unwrap();
    bench.assert_clean();
    assert_eq!(pool.stats().in_use, 0);
}

#[test]
fn rules_steer_mark_count_and_drop() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(1024);
    let mut rx = queues(&device, &pool, 2);
    let _rss = Rss::new(&device, &[rx[0].queue_ref()], &RssConfig::default()).unwrap();
    let udp_to = |port: u16| FlowMatch {
        ipv4: Some(Ipv4Match {
            source: None,
            destination: Some(Ipv4Addr::new(10, 0, 0, 2).into()),
        }),
        ip_protocol: Some(ip::UDP),
        destination_port: Some(port.into()),
        ..FlowMatch::default()
    };
    let to_second = device
        .add_flow_rule(&FlowRule {
            matches: udp_to(4791),
            action: FlowAction::Queue(rx[1].queue_ref()),
            mark: Some(0xabcde),
            count: true,
        })
        .unwrap();
    let dropped = device
        .add_flow_rule(&FlowRule {
            matches: udp_to(9),
            action: FlowAction::Drop,
            mark: None,
            count: true,
        })
        .unwrap();
    for port in [4791, 9, 5000, 4791] {
        bench.inject(&udp(MAC, 1, port, &[0; 40]));
    }
    bench.settle();
    let mut out = Burst::new();
    assert_eq!(rx[1].rx_burst(&mut out), 2, "{:?}", bench.refusals());
    assert_eq!(out[0].flow_mark(), Some(0xabcde));
    let mut out = Burst::new();
    assert_eq!(rx[0].rx_burst(&mut out), 1);
    assert_eq!(out[0].flow_mark(), None);
    assert_eq!(out[0].flow_mark(), None);
    assert_eq!(to_second.counts().unwrap().packets, 2);
    assert_eq!(dropped.counts().unwrap().packets, 1);
    to_second.destroy().unwrap();
    drop(dropped);
    for port in [4791, 9] {
        bench.inject(&udp(MAC, 1, port, &[0; 40]));
    }
    bench.settle();
    assert_eq!(counts(&mut rx), [2, 0], "without rules everything goes to the first queue");
    bench.assert_clean();
}

/// An RSS of a rule's own, beside the port's: what the match leaves open is told apart by a table.
#[test]
fn rules_spread_what_matches_by_hash_mark_and_count() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(1024);
    let mut rx = queues(&device, &pool, 4);
    let _rss = Rss::new(&device, &[rx[0].queue_ref()], &RssConfig::default()).unwrap();
    let config = RssConfig { reta: vec![0, 1, 2, 1], ..RssConfig::default() };
    let some = Rss::for_rules(&device, &refs(&rx[1..]), &config).unwrap();
    let from_here =
        Ipv4Match { source: Some(Ipv4Addr::new(10, 0, 0, 1).into()), destination: None };
    let any =
        FlowMatch { source_mac: Some(MacAddr([2, 0, 0, 0, 0, 9]).into()), ..FlowMatch::default() };
    let ipv4 = FlowMatch { ipv4: Some(from_here), ..any };
    let udp_alone = FlowMatch { ip_protocol: Some(ip::UDP), ..ipv4 };
    // TCP, UDP, and what has no hash: where a rule that matches it takes them, by queue.
    let cases = [(any, true, true), (ipv4, true, false), (udp_alone, false, false)];
    for (matches, takes_tcp, takes_others) in cases {
        let action = some.action();
        let rule = FlowRule { matches, action, mark: Some(0x1234), count: true };
        let rule = device.add_flow_rule(&rule).unwrap();
        let mut taken = 0;
        for port in 1000..1040u16 {
            let mut input = vec![10, 0, 0, 1, 10, 0, 0, 2];
            input.extend(port.to_be_bytes());
            input.extend(80u16.to_be_bytes());
            let hash = toeplitz(&config.key, &input);
            let by_table = 1 + usize::from(config.reta[hash as usize % 4]);
            for (sent, takes) in
                [(udp(MAC, port, 80, &[7; 40]), true), (tcp(MAC, port, &[7; 40]), takes_tcp)]
            {
                bench.inject(&sent);
                bench.settle();
                let (wanted, mark) = if takes { (by_table, Some(0x1234)) } else { (0, None) };
                let mut out = Burst::new();
                assert_eq!(rx[wanted].rx_burst(&mut out), 1, "{matches:?}, port {port}");
                assert_eq!((out[0].flow_mark(), bytes_of(&out[0])), (mark, sent));
                if takes {
                    assert_eq!(out[0].rss_hash(), Some(hash));
                    taken += 1;
                }
            }
        }
        bench.inject(&frame(MAC, 64, 0));
        bench.settle();
        let first_of_table = [0, 1, 0, 0];
        assert_eq!(counts(&mut rx), if takes_others { first_of_table } else { [1, 0, 0, 0] });
        assert_eq!(rule.counts().unwrap().packets, taken + u64::from(takes_others));
    }
    // The table changes while its rule is in force; the rule may outlive what it was made by.
    let matches = ipv4;
    let rule = device
        .add_flow_rule(&FlowRule { matches, action: some.action(), mark: None, count: false })
        .unwrap();
    some.set_reta(&[2; 4]).unwrap();
    let error = some.destroy().unwrap_err().to_string();
    assert!(
        error.contains("flow rules or actions of this Rss are alive; drop them first"),
        "{error}"
    );
    for port in 0..20 {
        bench.inject(&udp(MAC, port, 80, &[1; 40]));
    }
    bench.settle();
    assert_eq!(counts(&mut rx), [0, 0, 0, 20]);
    let failed = rx.pop().unwrap().destroy().unwrap_err();
    assert!(failed.cause.to_string().contains("are alive"), "{}", failed.cause);
    rule.destroy().unwrap();
    failed.object.destroy().unwrap();
    bench.assert_clean();
}

/// A rule for which there is no room keeps nothing of its own table.
#[test]
fn a_rule_that_fails_half_way_leaves_nothing() {
    let bench = Bench::new();
    let device = bench.try_device(&DeviceConfig { flow_rules: 2, ..config() });
    let pool = pool(256);
    let rx = queues(&device, &pool, 2);
    let rss = Rss::for_rules(&device, &refs(&rx), &RssConfig::default()).unwrap();
    let to = |vlan| FlowRule {
        matches: FlowMatch { vlan: Some(Some(vlan)), ..FlowMatch::default() },
        action: rss.action(),
        mark: None,
        count: false,
    };
    let all = |rule| FlowRule { matches: FlowMatch::default(), ..rule };
    let kept = [to(1), all(to(1))].map(|rule| device.add_flow_rule(&rule).unwrap());
    for vlan in 2..50 {
        let error = device.add_flow_rule(&to(vlan)).unwrap_err().to_string();
        assert!(error.contains("the table of flow rules is full"), "{error}");
    }
    drop(kept);
    rss.destroy().unwrap();
    for queue in rx {
        queue.destroy().unwrap();
    }
    device.close().unwrap();
    bench.assert_clean();
}

#[test]
fn masks_and_tables_have_limits() {
    let bench = Bench::new();
    let device = bench.try_device(&DeviceConfig { flow_rules: 2, ..config() });
    let pool = pool(256);
    let rx = queues(&device, &pool, 1);
    let rule = |value: u8, mask: u8| FlowRule {
        matches: FlowMatch {
            ipv4: Some(Ipv4Match {
                source: Some(Masked {
                    value: Ipv4Addr::new(10, 0, 0, value),
                    mask: Ipv4Addr::new(255, 255, 255, mask),
                }),
                destination: None,
            }),
            ..FlowMatch::default()
        },
        action: FlowAction::Queue(rx[0].queue_ref()),
        mark: None,
        count: false,
    };
    let first = device.add_flow_rule(&rule(1, 255)).unwrap();
    let _second = device.add_flow_rule(&rule(0, 0)).unwrap();
    let error = device.add_flow_rule(&rule(2, 255)).unwrap_err().to_string();
    assert!(error.contains("the table of flow rules is full"), "{error}");
    drop(first);
    device.add_flow_rule(&rule(2, 255)).map(drop).expect("a place became free");
    let error = device
        .add_flow_rule(&FlowRule { mark: Some(1 << 24), ..rule(3, 255) })
        .unwrap_err()
        .to_string();
    assert!(error.contains("mark of a flow rule is 16777216; it must be 1 to 16777215"), "{error}");
    bench.assert_clean();
}
