//! The examples of the guide, run on the model.

#[path = "../examples/feed_handler.rs"]
#[expect(dead_code, unreachable_pub, reason = "a program of its own, whose main is not called")]
mod feed_handler;
#[path = "../examples/l2_forwarder.rs"]
#[expect(dead_code, unreachable_pub, reason = "a program of its own, whose main is not called")]
mod l2_forwarder;
#[path = "../examples/storage_loop.rs"]
#[expect(dead_code, unreachable_pub, reason = "a program of its own, whose main is not called")]
mod storage_loop;

use ferrocx::net::packet::Packet;
use ferrocx::{Burst, MacAddr, Mbuf, Port};

/// A frame with `tag` in it.
fn frame(lane: &mut ferrocx::Lane, to: MacAddr, from: MacAddr, tag: u32) -> Mbuf {
    let bytes = [&to.0[..], &from.0, &[0x88, 0xb5], &tag.to_be_bytes()].concat();
    lane.alloc_copy(&bytes).expect("a buffer")
}

#[test]
fn the_forwarder_joins_two_networks() {
    const FRAMES: u32 = 1000;
    let names = ["model:net=west", "model:net=west", "model:net=east", "model:net=east"];
    let [host_west, west, east, host_east] = Port::open_all(names).unwrap();
    for port in [&west, &east] {
        port.device().set_promiscuous(true).unwrap();
    }
    let (mut west, mut east) = (west.lane().unwrap(), east.lane().unwrap());
    let (mut sender, mut receiver) = (host_west.lane().unwrap(), host_east.lane().unwrap());
    let (to, from) = (host_east.device().mac(), host_west.device().mac());

    let (mut sent, mut received) = (0, 0);
    while received < FRAMES {
        let mut burst = Burst::<32>::new();
        // At most a ring's worth is under way, so that nothing is lost for want of room.
        while sent < FRAMES && sent - received < 128 && !burst.is_full() {
            burst.push(frame(&mut sender, to, from, sent));
            sent += 1;
        }
        while !burst.is_empty() {
            sender.tx_burst(&mut burst);
        }
        l2_forwarder::forward(&mut west, &mut east);
        l2_forwarder::forward(&mut east, &mut west);
        let mut burst = Burst::<32>::new();
        receiver.rx_burst(&mut burst);
        for frame in &burst {
            assert_eq!(frame.data()[14..18], received.to_be_bytes(), "in order, each once");
            received += 1;
        }
    }
    assert_eq!(sender.tx().stats().dropped + sender.tx().stats().errors, 0);
}

#[test]
fn the_feed_handler_answers_its_own_group_only() {
    let names = ["model:net=exchange", "model:net=exchange"];
    let [market, trader] = Port::open_all(names).unwrap();
    let group = "239.1.2.3:26400".parse().unwrap();
    let other = "239.1.2.3:26401".parse().unwrap();
    let to_market = "192.0.2.1:9000".parse().unwrap();
    let order = feed_handler::message(&trader, market.device().mac(), to_market, 0).unwrap();
    let mut handler = feed_handler::FeedHandler::new(&trader, group, order, 100).unwrap();
    let mut exchange = market.lane().unwrap();

    let mac = MacAddr::of_group((*group.ip()).into()).unwrap();
    for (to, price) in [(group, 99), (other, 1), (group, 100), (group, 7)] {
        assert!(exchange.send_one(&feed_handler::message(&market, mac, to, price).unwrap()));
    }

    let (mut orders, mut prices) = (0, Vec::new());
    while prices.len() < 2 {
        orders += u32::from(handler.poll());
        while let Some(order) = exchange.rx_one() {
            let packet = Packet::parse(order.data()).unwrap();
            assert!(packet.is_intact(), "the checksum follows the price");
            prices.push(feed_handler::price_of(order.data()).unwrap());
        }
    }
    assert_eq!((orders, prices), (2, vec![99, 7]));
}

#[test]
fn a_wrong_name_is_one_sentence() {
    let sentence = Port::open("eth0").unwrap_err().to_string();
    assert!(sentence.contains("`eth0`") && sentence.contains("0000:3b:00.0"), "{sentence}");
    let sentence = Port::open("model:colour=red").unwrap_err().to_string();
    assert!(sentence.contains("no option `colour`"), "{sentence}");
    let sentence = Port::open("0000:ff:1f.7").unwrap_err().to_string();
    assert!(sentence.contains("0000:ff:1f.7"), "{sentence}");
}

#[test]
fn everything_ends_in_any_order() {
    let [a, b] = Port::open_all(["model:net=ends", "model:net=ends"]).unwrap();
    let (lane, device, pool) = (a.lane().unwrap(), a.device().clone(), b.pool().clone());
    let second = a.lane().unwrap_err().to_string();
    assert!(second.contains("Rss"), "{second}");
    let rdma = a.rdma().unwrap();
    assert_eq!(rdma.gids(), a.rdma().unwrap().gids(), "one context for each device");
    drop(a);
    drop(lane);
    drop(pool);
    drop(rdma);
    device.close().unwrap();
    drop(b);
}

#[test]
fn the_storage_loop_moves_blocks_and_every_key_ends() {
    let [near, also_near, far] = Port::open_all(["model:net=storage"; 3]).unwrap();
    let at = "192.0.2.1:4420".parse().unwrap();
    let mut store = storage_loop::Store::new(&far, at, 64, 2).unwrap();
    let client = |port: Port, own: u8| {
        std::thread::spawn(move || {
            let run = || -> Result<(), Box<dyn std::error::Error>> {
                let own_address = [192, 0, 2, own].into();
                let mut client = storage_loop::Client::connect(&port, own_address, at)?;
                let blocks = u32::from(own) * 16..u32::from(own) * 16 + 16;
                for block in blocks.clone() {
                    client.write(block, &[block as u8; storage_loop::BLOCK])?;
                }
                for block in blocks {
                    assert_eq!(client.read(block)?, [block as u8; storage_loop::BLOCK]);
                }
                assert_eq!(client.read(1)?, [0; storage_loop::BLOCK]);
                Ok(())
            };
            run().map_err(|error| error.to_string())
        })
    };
    // They come at the same time.
    let clients = [client(near, 2), client(also_near, 3)];
    let mut served = 0;
    while clients.iter().any(|client| !client.is_finished()) {
        served += store.poll().unwrap();
    }
    clients.into_iter().for_each(|client| client.join().unwrap().unwrap());
    assert_eq!(served, 2 * 33);
}

/// More clients than there are places come one after another, some ask for a block that there is
/// not, and two of those at once: each frees its place, and nobody else notices.
#[test]
fn clients_of_the_storage_loop_leave_their_places() {
    let [near, also_near, far] = Port::open_all(["model:net=leaving"; 3]).unwrap();
    let at = "192.0.2.1:4420".parse().unwrap();
    let mut store = storage_loop::Store::new(&far, at, 64, 2).unwrap();
    let client = |port: &Port, own: u8, block: u32| -> Result<(), Box<dyn std::error::Error>> {
        let mut client = storage_loop::Client::connect(port, [192, 0, 2, own].into(), at)?;
        client.read(block)?;
        Ok(())
    };
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            for visit in 0..3 {
                client(&near, 2, visit).unwrap();
            }
            std::thread::scope(|two| {
                let bad = two.spawn(|| client(&near, 2, 1 << 31).is_err());
                assert!(client(&also_near, 3, 64).is_err(), "blocks are 0 to 63");
                assert!(bad.join().unwrap());
            });
            for visit in 0..3 {
                client(&also_near, 3, visit).unwrap();
            }
        });
        while !clients.is_finished() {
            store.poll().unwrap();
        }
        clients.join().unwrap();
    });
}
