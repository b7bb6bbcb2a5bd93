//! Engines on buffers of the heap.

use ferrocx_mempool::{Pool, PoolConfig, RegionConfig, RxMeta};

use super::*;

const COUNT: usize = 64;

fn pool() -> Pool {
    let region = RegionConfig::heap(0);
    let name = "test".into();
    let config = PoolConfig { name, count: COUNT, cache_size: 8, region, ..PoolConfig::default() };
    Pool::new(&config).unwrap()
}

fn mbuf(pool: &Pool, bytes: &[u8]) -> Mbuf {
    let mut mbuf = pool.get().unwrap();
    assert!(mbuf.extend_from_slice(bytes));
    mbuf
}

/// A burst of frames whose first byte of payload is their number.
fn burst(pool: &Pool, n: u8) -> ArrayVec<Mbuf, 8> {
    let frame = |number: u8| {
        let mut bytes: Vec<u8> = (0..60).collect();
        bytes[14] = number;
        mbuf(pool, &bytes)
    };
    (0..n).map(frame).collect()
}

fn run(engine: &mut Engine, frames: &mut ArrayVec<Mbuf, 8>, pool: &Pool) -> Drops {
    let mut drops = Drops::default();
    engine.process(frames, &mut pool.cache(), &mut drops);
    drops
}

#[test]
fn io_changes_nothing() {
    let pool = pool();
    let mut frames = burst(&pool, 8);
    assert_eq!(run(&mut Engine::Io, &mut frames, &pool), Drops::default());
    assert_eq!(frames.len(), 8);
    assert!(frames.iter().all(|frame| frame.data()[..14] == (0..14).collect::<Vec<u8>>()));
}

#[test]
fn mac_writes_both_addresses_and_macswap_exchanges_them() {
    let pool = pool();
    let mut frames = burst(&pool, 2);
    let mut mac = Engine::Mac { destination: MacAddr([0xd; 6]), source: MacAddr([0xa; 6]) };
    assert_eq!(run(&mut mac, &mut frames, &pool).total(), 0);
    assert_eq!(frames[1].data()[..15], [13, 13, 13, 13, 13, 13, 10, 10, 10, 10, 10, 10, 12, 13, 1]);
    assert_eq!(run(&mut Engine::MacSwap, &mut frames, &pool).total(), 0);
    assert_eq!(frames[1].data()[..12], [10, 10, 10, 10, 10, 10, 13, 13, 13, 13, 13, 13]);
}

#[test]
fn a_shared_frame_is_not_rewritten() {
    let pool = pool();
    let mut frames = burst(&pool, 3);
    let other = frames[1].clone_ref(&mut pool.cache()).expect("a header for the clone");
    let drops = run(&mut Engine::MacSwap, &mut frames, &pool);
    assert_eq!((drops.get(Reason::ReadOnly), drops.total()), (1, 1));
    let left: Vec<u8> = frames.iter().map(|frame| frame.data()[14]).collect();
    assert_eq!(left, [0, 2]);
    drop((frames, other));
    assert_eq!(pool.stats().in_use, 0);
}

#[test]
fn consumed_frames_are_counted_and_freed() {
    let pool = pool();
    let mut frames = burst(&pool, 8);
    let drops = run(&mut Engine::Consume, &mut frames, &pool);
    assert_eq!((drops.get(Reason::Consumed), frames.len()), (8, 0));
    assert_eq!(pool.stats().in_use, 0);
}

/// Frames that stay keep their order, whichever are dropped: all 256 choices of a burst of 8.
#[test]
fn dropping_any_subset_keeps_the_order_of_the_rest() {
    let pool = pool();
    for choice in 0..=255u8 {
        let mut frames = burst(&pool, 8);
        let mut drops = Drops::default();
        sift(&mut frames, &mut pool.cache(), &mut drops, |frame| {
            match choice >> frame.data()[14] & 1 {
                1 => Ok(()),
                _ => Err(Reason::Runt),
            }
        });
        let left: Vec<u8> = frames.iter().map(|frame| frame.data()[14]).collect();
        let expected: Vec<u8> = (0..8).filter(|bit| choice >> bit & 1 == 1).collect();
        assert_eq!(left, expected);
        assert_eq!(drops.get(Reason::Runt), u64::from(choice.count_zeros()));
    }
    assert_eq!(pool.stats().in_use, 0);
}

fn station() -> Station {
    Station { mac: MacAddr([2, 0, 0, 0, 0, 1]), addresses: Vec::new() }
}

/// An ICMP echo request with `payload` bytes of data.
fn request(payload: usize) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2([0xa2; 6], station().mac.0)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .icmpv4_echo_request(7, 9);
    let mut frame = Vec::new();
    let data: Vec<u8> = (0..payload).map(|at| (at % 251) as u8).collect();
    builder.write(&mut frame, &data).unwrap();
    frame
}

fn is_reply(bytes: &[u8], request: &[u8]) -> bool {
    let sliced = etherparse::SlicedPacket::from_ethernet(bytes).unwrap();
    let Some(etherparse::TransportSlice::Icmpv4(icmp)) = sliced.transport else { return false };
    let echo = etherparse::IcmpEchoHeader { id: 7, seq: 9 };
    let intact = icmp.icmp_type().calc_checksum(icmp.payload()) == icmp.checksum();
    intact
        && icmp.icmp_type() == etherparse::Icmpv4Type::EchoReply(echo)
        && icmp.payload() == &request[42..]
}

#[test]
fn echo_answers_frames_of_one_segment_and_drops_the_rest() {
    let pool = pool();
    let request = request(100);
    let mut frames: ArrayVec<Mbuf, 8> = ArrayVec::new();
    frames.push(mbuf(&pool, &request[..10]));
    frames.push(mbuf(&pool, &request));
    frames.push(mbuf(&pool, &[0; 60]));
    let drops = run(&mut Engine::IcmpEcho(station()), &mut frames, &pool);
    assert_eq!((drops.get(Reason::Runt), drops.total(), frames.len()), (1, 2, 1));
    assert!(is_reply(frames[0].data(), &request));
}

/// A chain of three segments, cut at every pair of places behind the headers.
#[test]
fn echo_answers_chains_at_odd_and_even_cuts() {
    let pool = pool();
    let request = request(23);
    for first in 42..request.len() - 1 {
        for second in first + 1..request.len() {
            let mut tail = mbuf(&pool, &request[first..second]);
            tail.chain(mbuf(&pool, &request[second..])).unwrap();
            let mut frame = mbuf(&pool, &request[..first]);
            frame.chain(tail).unwrap();
            let mut frames: ArrayVec<Mbuf, 8> = ArrayVec::new();
            frames.push(frame);
            let drops = run(&mut Engine::IcmpEcho(station()), &mut frames, &pool);
            assert_eq!(drops.total(), 0, "cut at {first} and {second}");
            let mut bytes = vec![0; request.len()];
            assert!(frames[0].read(0, &mut bytes));
            assert!(is_reply(&bytes, &request), "cut at {first} and {second}");
        }
    }
    assert_eq!(pool.stats().in_use, 0);
}

/// What lies behind the datagram goes, also when it fills segments of its own.
#[test]
fn an_answer_is_cut_across_segments() {
    let pool = pool();
    let request = request(30);
    let mut frame = mbuf(&pool, &request[..50]);
    for part in [&request[50..], &[0xee; 40], &[0xee; 7]] {
        frame.chain(mbuf(&pool, part)).unwrap();
    }
    let mut frames: ArrayVec<Mbuf, 8> = ArrayVec::new();
    frames.push(frame);
    assert_eq!(run(&mut Engine::IcmpEcho(station()), &mut frames, &pool).total(), 0);
    assert_eq!(frames[0].pkt_len(), request.len());
}

fn with_meta(pool: &Pool, bytes: &[u8], flags: OlFlags, packet_type: u8) -> Mbuf {
    let mut frame = pool.get().unwrap();
    let meta = RxMeta { flags, packet_type: PacketType(packet_type), ..RxMeta::default() };
    assert!(frame.init_rx(128, u32::try_from(bytes.len()).unwrap(), meta));
    frame.data_mut().unwrap().copy_from_slice(bytes);
    frame
}

#[test]
fn damaged_frames_are_dropped_only_when_asked() {
    let pool = pool();
    let bad = [OlFlags::RX_IP_CSUM_BAD, OlFlags::RX_L4_CSUM_BAD, OlFlags::RX_L4_CSUM_GOOD];
    let frames = || bad.map(|flags| with_meta(&pool, &[0; 60], flags, 0)).into_iter().collect();
    let mut drops = Drops::default();
    let mut some: ArrayVec<Mbuf, 8> = frames();
    Offloads::default().before(&mut some, &mut pool.cache(), &mut drops);
    assert_eq!((some.len(), drops.total()), (3, 0));
    let mut some: ArrayVec<Mbuf, 8> = frames();
    let offloads = Offloads { checksum: true, vlan: false };
    offloads.before(&mut some, &mut pool.cache(), &mut drops);
    assert_eq!((some.len(), drops.get(Reason::BadChecksum)), (1, 2));
}

/// The checksum fields of a frame after the engine, and what the device is asked for.
fn cleared(bytes: &[u8], packet_type: u8) -> (Vec<u8>, OlFlags) {
    let pool = pool();
    let mut frames: ArrayVec<Mbuf, 8> = ArrayVec::new();
    frames.push(with_meta(&pool, bytes, OlFlags::empty(), packet_type));
    Offloads { checksum: true, vlan: false }.after(&mut frames);
    (frames[0].data().to_vec(), frames[0].flags())
}

#[test]
fn checksums_are_zeroed_where_the_device_writes_them() {
    let both = OlFlags::TX_IP_CSUM | OlFlags::TX_L4_CSUM;
    let ones = |len: usize, l3: u8| {
        let mut bytes = vec![0xff; len];
        bytes[12..15].copy_from_slice(&if l3 == 4 { [8, 0, 0x45] } else { [0x86, 0xdd, 0x60] });
        bytes
    };
    let v4 = PacketType::L3_IPV4;
    let v6 = PacketType::L3_IPV6;
    let cases = [
        (ones(60, 4), v4 | PacketType::L4_TCP, both, vec![24, 25, 50, 51]),
        (ones(60, 4), v4 | PacketType::L4_UDP, both, vec![24, 25, 40, 41]),
        (ones(80, 6), v6 | PacketType::L4_TCP, OlFlags::TX_L4_CSUM, vec![70, 71]),
        (ones(80, 6), v6 | PacketType::L4_UDP, OlFlags::TX_L4_CSUM, vec![60, 61]),
        (ones(60, 4), v4, OlFlags::TX_IP_CSUM, vec![24, 25]),
        (ones(60, 4), v4 | PacketType::L4_FRAGMENT, OlFlags::empty(), vec![]),
        (ones(60, 4), v4 | PacketType::TUNNELED, OlFlags::empty(), vec![]),
        // Cut short: the field is not there, or not the header.
        (ones(51, 4), v4 | PacketType::L4_TCP, OlFlags::TX_IP_CSUM, vec![24, 25]),
        (ones(33, 4), v4 | PacketType::L4_TCP, OlFlags::empty(), vec![]),
        (vec![0xff; 10], v4 | PacketType::L4_TCP, OlFlags::empty(), vec![]),
    ];
    for (mut bytes, kind, flags, zeroed) in cases {
        let got = cleared(&bytes, kind);
        for at in zeroed {
            bytes[at] = 0;
        }
        assert_eq!(got, (bytes, flags), "type {kind:#x}");
    }
    // A UDP datagram without checksum stays without one.
    let mut bytes = ones(60, 4);
    bytes[40..42].fill(0);
    assert_eq!(cleared(&bytes, v4 | PacketType::L4_UDP).1, OlFlags::TX_IP_CSUM);
}

#[test]
fn a_stripped_tag_is_inserted_again() {
    let pool = pool();
    let mut frames: ArrayVec<Mbuf, 8> = ArrayVec::new();
    frames.push(with_meta(&pool, &[0; 60], OlFlags::RX_VLAN | OlFlags::RX_VLAN_STRIPPED, 0));
    frames.push(with_meta(&pool, &[0; 60], OlFlags::RX_VLAN, 0));
    Offloads { checksum: false, vlan: true }.after(&mut frames);
    assert!(frames[0].flags().contains(OlFlags::TX_VLAN_INSERT));
    assert!(!frames[1].flags().contains(OlFlags::TX_VLAN_INSERT));
}
