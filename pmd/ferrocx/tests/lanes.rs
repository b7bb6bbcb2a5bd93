//! What leads packets to lanes and queues, how long, and packets one at a time.

use std::net::SocketAddrV4;

use ferrocx::net::ip;
use ferrocx::net::packet::{Headers, Transport};
use ferrocx::{Burst, FlowMatch, Ipv4Match, Lane, Mbuf, Port, PrebuiltFrame};

const FRAMES: u16 = 64;

/// A datagram between ports of that number.
fn datagram([from, to]: [&Port; 2], source_port: u16, destination_port: u16) -> PrebuiltFrame<64> {
    let ends = [([192, 0, 2, 1], source_port), ([192, 0, 2, 2], destination_port)];
    let [source, destination] = ends.map(|(ip, port)| SocketAddrV4::new(ip.into(), port).into());
    let headers = Headers {
        destination_mac: to.device().mac(),
        source_mac: from.device().mac(),
        vlan_tci: None,
        source,
        destination,
        hop_limit: 64,
        traffic_class: 0,
        transport: Transport::Udp,
    };
    let mut frame = [0; 64];
    headers.write(&mut frame).unwrap();
    PrebuiltFrame::new(&frame)
}

/// Sends frames of many source ports, and takes them until all have come; how many to each.
fn spread<const N: usize>(
    sender: &mut Lane,
    ports: [&Port; 2],
    mut take: impl FnMut() -> [Option<Mbuf>; N],
) -> [u16; N] {
    for source in 0..FRAMES {
        assert!(sender.send_one(&datagram(ports, 1000 + source, 9)));
    }
    let mut counts = [0; N];
    while counts.iter().sum::<u16>() < FRAMES {
        let taken = take();
        counts.iter_mut().zip(taken).for_each(|(count, one)| *count += u16::from(one.is_some()));
    }
    counts
}

#[test]
fn traffic_is_spread_as_long_as_one_lane_lives() {
    let [from, to] = Port::open_all(["model:net=spread"; 2]).unwrap();
    let mut sender = from.lane().unwrap();
    let [mut first, mut second]: [Lane; 2] = to.lanes(2).unwrap().try_into().unwrap();
    let both = spread(&mut sender, [&from, &to], || [first.rx_one(), second.rx_one()]);
    assert!(both[0] > 0 && both[1] > 0, "{both:?}");
    assert!(to.lane().unwrap_err().to_string().contains("Rss"), "the port's traffic is taken");

    // One ends; its share goes to the other, which has the table.
    drop(first);
    let rss = second.rss().unwrap();
    let table = rss.reta();
    assert!(table.contains(&0) && table.contains(&1));
    rss.set_reta(&vec![1; table.len()]).unwrap();
    assert_eq!(second.rss().unwrap().reta(), vec![1; table.len()]);
    assert_eq!(spread(&mut sender, [&from, &to], || [second.rx_one()]), [FRAMES]);

    // With the last lane its traffic is free for others.
    drop(second);
    let mut third = to.lane().unwrap();
    assert_eq!(third.rss().unwrap().queues(), 1);
    assert_eq!(spread(&mut sender, [&from, &to], || [third.rx_one()]), [FRAMES]);
}

#[test]
fn packets_that_match_are_spread_as_long_as_one_of_their_lanes_lives() {
    let [from, to] = Port::open_all(["model:net=some"; 2]).unwrap();
    let (mut sender, mut rest) = (from.lane().unwrap(), to.lane().unwrap());
    let matches = FlowMatch { ipv4: Some(Ipv4Match::default()), ..FlowMatch::default() };
    let [mut first, mut second]: [Lane; 2] =
        to.lanes_matching(2, matches).unwrap().try_into().unwrap();
    let mut take = || [first.rx_one(), second.rx_one(), rest.rx_one()];
    let each = spread(&mut sender, [&from, &to], &mut take);
    assert!(each[0] > 0 && each[1] > 0 && each[2] == 0, "{each:?}");

    drop(first);
    let rss = second.rss().unwrap();
    rss.set_reta(&vec![1; rss.reta().len()]).unwrap();
    let each = spread(&mut sender, [&from, &to], || [second.rx_one(), rest.rx_one()]);
    assert_eq!(each, [FRAMES, 0]);

    // With the last of them the rule has gone.
    drop(second);
    assert_eq!(spread(&mut sender, [&from, &to], || [rest.rx_one()]), [FRAMES]);
}

#[test]
fn a_receive_queue_of_a_match_sees_it_as_long_as_it_lives() {
    let [from, to] = Port::open_all(["model:net=matching"; 2]).unwrap();
    let (mut sender, mut rest) = (from.lane().unwrap(), to.lane().unwrap());
    let matches = FlowMatch {
        ipv4: Some(Ipv4Match::default()),
        ip_protocol: Some(ip::UDP),
        destination_port: Some(53.into()),
        ..FlowMatch::default()
    };
    let mut names = to.rx_matching(matches).unwrap();
    assert!(to.lane_matching(matches).unwrap().rss().is_none());
    let ask = |sender: &mut Lane| assert!(sender.send_one(&datagram([&from, &to], 4000, 53)));
    let tell = |sender: &mut Lane| assert!(sender.send_one(&datagram([&from, &to], 4000, 54)));
    ask(&mut sender);
    tell(&mut sender);
    let port_of = |mbuf: Mbuf| mbuf.data()[37];
    let mut seen = (None, None);
    while seen.0.is_none() || seen.1.is_none() {
        seen = (seen.0.or_else(|| names.rx_one()), seen.1.or_else(|| rest.rx_one()));
    }
    assert_eq!((seen.0.map(port_of), seen.1.map(port_of)), (Some(53), Some(54)));
    assert!(names.rx_one().is_none() && rest.rx_one().is_none());

    // Its rule ends with it, whichever way it ends.
    names.destroy().unwrap();
    ask(&mut sender);
    let back = loop {
        if let Some(mbuf) = rest.rx_one() {
            break port_of(mbuf);
        }
    };
    assert_eq!(back, 53, "what had a queue goes where the rest goes");
}

#[test]
fn a_lane_that_takes_packets_one_by_one_gets_back_what_it_sent() {
    let port = Port::open("model:net=alone").unwrap();
    let mut lane = port.lane().unwrap();
    // As if they had been sent: a receive queue has room for half of its stock.
    let mut sent = Burst::<32>::from_iter(std::iter::from_fn(|| port.pool().get()).take(32));
    lane.tx().cache().put_bulk(&mut sent);
    let rx = lane.rx().cache();
    let mut held: Vec<Mbuf> = (0..rx.len()).map_while(|_| rx.get()).collect();
    assert_eq!((lane.tx().cache().len(), lane.rx().cache().len()), (32, 0));
    assert!(lane.rx_one().is_none());
    assert_eq!((lane.tx().cache().len(), lane.rx().cache().len()), (0, 32));
    held.clear();
}
