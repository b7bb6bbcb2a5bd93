//! Requests byte by byte, worked out by hand from reference 6.1 to 6.3.

use arrayvec::ArrayVec;
use ferrocx_mempool::{Mbuf, OlFlags, PageSize, Pool, PoolConfig, RegionConfig, TxLengths};
use ferrocx_prm::cqe::{CqeOpcode, ErrCqe};
use ferrocx_prm::syndrome::CqeSyndrome;

use ferrocx_net::ether::MacAddr;
use ferrocx_net::packet::{Headers, Transport};

use crate::{PrebuiltFrame, TxQueue, TxQueueConfig};
use ferrocx_core::{Device, DeviceConfig, QueueFault};
use ferrocx_model::NicConfig;
use ferrocx_model::played::{PlayedTx, Sender, Still};

struct Fixture {
    tx: TxQueue,
    played: PlayedTx,
}

type Burst = ArrayVec<Mbuf, 64>;

fn fixture() -> Fixture {
    let pool = Pool::new(&PoolConfig {
        count: 512,
        region: RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() },
        ..PoolConfig::default()
    })
    .unwrap();
    let still = Still::new(NicConfig::default()).unwrap();
    let config = DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() };
    let device = Device::open(still.transport(), &config).unwrap();
    device.register_pool(&pool).unwrap();
    let config = TxQueueConfig { descriptors: 64, ..TxQueueConfig::default() };
    let tx = TxQueue::new(&device, &pool, &config).unwrap();
    let played = still.sender(Sender::Sq(tx.sqn()));
    Fixture { tx, played }
}

impl Fixture {
    fn packet(&mut self, bytes: &[u8]) -> Mbuf {
        let mut mbuf = self.tx.cache().get().unwrap();
        assert!(mbuf.extend_from_slice(bytes));
        mbuf
    }

    fn send(&mut self, packets: impl IntoIterator<Item = Mbuf>) -> usize {
        let mut burst = Burst::new();
        burst.extend(packets);
        self.tx.tx_burst(&mut burst)
    }

    fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.played.read_wqe(offset, &mut bytes);
        bytes
    }

    /// A control segment, in which the queue's number is made 0x123.
    fn ctrl(&self, offset: usize) -> [u8; 16] {
        let mut bytes = self.bytes::<16>(offset);
        assert_eq!(bytes[4..7], self.tx.sqn().to_be_bytes()[1..]);
        bytes[4..7].copy_from_slice(&[0x00, 0x01, 0x23]);
        bytes
    }

    /// A data segment, in which the key is made 0x700.
    fn data(&self, offset: usize) -> [u8; 16] {
        let mut bytes = self.bytes::<16>(offset);
        assert_eq!(bytes[4..8], self.tx.hot.requests.own.lkey_be.to_ne_bytes());
        bytes[4..8].copy_from_slice(&[0, 0, 7, 0]);
        bytes
    }
}

/// Length, key 0x700, address.
fn data_segment(len: u32, address: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&len.to_be_bytes());
    bytes[4..8].copy_from_slice(&[0, 0, 7, 0]);
    bytes[8..].copy_from_slice(&address.to_be_bytes());
    bytes
}

#[test]
fn multi_packet_request_is_literal() {
    let mut fixture = fixture();
    let packets = [fixture.packet(&[1; 60]), fixture.packet(&[2; 61]), fixture.packet(&[3; 62])];
    let addresses = [0, 1, 2].map(|at: usize| packets[at].data_iova());
    assert_eq!(fixture.send(packets), 3);
    // Enhanced MPW, block 0; queue 0x123, 5 units; no completion.
    let ctrl = [0, 0, 0, 0x29, 0x00, 0x01, 0x23, 5, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(fixture.ctrl(0), ctrl);
    assert_eq!(fixture.bytes::<16>(16), [0; 16], "no offloads, nothing inline");
    for (at, (len, address)) in [60, 61, 62].into_iter().zip(addresses).enumerate() {
        assert_eq!(fixture.data(32 + 16 * at), data_segment(len, address));
    }
    // The next request starts at the next whole block, number 2.
    let packet = fixture.packet(&[4; 64]);
    assert_eq!(fixture.send([packet]), 1);
    let ctrl = [0, 0, 2, 0x29, 0x00, 0x01, 0x23, 3, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(fixture.ctrl(128), ctrl);
}

#[test]
fn completion_is_asked_for_after_32_packets() {
    let mut fixture = fixture();
    let packets: Vec<_> = (0..32).map(|_| fixture.packet(&[0; 60])).collect();
    assert_eq!(fixture.send(packets), 32);
    let ctrl = [0, 0, 0, 0x29, 0x00, 0x01, 0x23, 34, 0, 0, 0, 8, 0, 0, 0, 0];
    assert_eq!(fixture.ctrl(0), ctrl, "completion mode: always");
    assert_eq!(fixture.tx.reclaim(), 32);
    assert_eq!(fixture.played.complete(), 1);
    assert_eq!(fixture.tx.reclaim(), 0);
}

#[test]
fn checksum_and_vlan_request_is_literal() {
    let mut fixture = fixture();
    let mut mbuf = fixture.packet(&[1; 60]);
    let address = mbuf.data_iova();
    let wanted = OlFlags::TX_IP_CSUM | OlFlags::TX_L4_CSUM | OlFlags::TX_VLAN_INSERT;
    mbuf.set_flags(wanted);
    mbuf.set_vlan_tci(0xe123);
    assert_eq!(fixture.send([mbuf]), 1);
    let ctrl = [0, 0, 0, 0x0a, 0x00, 0x01, 0x23, 3, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(fixture.ctrl(0), ctrl);
    let eth = [0, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x00, 0xe1, 0x23];
    assert_eq!(fixture.bytes::<16>(16), eth);
    assert_eq!(fixture.data(32), data_segment(60, address));
}

#[test]
fn device_that_wants_headers_inline_gets_them() {
    let mut fixture = fixture();
    fixture.tx.hot.requests.min_inline = 18;
    fixture.tx.hot.requests.multi_packet = false;
    let bytes: Vec<u8> = (0..60).collect();
    let mbuf = fixture.packet(&bytes);
    let address = mbuf.data_iova();
    assert_eq!(fixture.send([mbuf]), 1);
    // 18 bytes inline: two in the Ethernet segment, 16 in one more unit.
    let ctrl = [0, 0, 0, 0x0a, 0x00, 0x01, 0x23, 4, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(fixture.ctrl(0), ctrl);
    assert_eq!(fixture.bytes::<4>(28), [0, 18, 0, 1]);
    assert_eq!(fixture.bytes::<16>(32), bytes[2..18]);
    assert_eq!(fixture.data(48), data_segment(42, address + 18));

    // A tag that the device cannot insert goes into the inline header, behind the addresses.
    let mut mbuf = fixture.packet(&bytes);
    mbuf.set_flags(OlFlags::TX_VLAN_INSERT);
    mbuf.set_vlan_tci(0x0102);
    assert_eq!(fixture.send([mbuf]), 1);
    assert_eq!(fixture.bytes::<4>(64 + 28), [0, 22, 0, 1]);
    let mut inline = bytes[2..12].to_vec();
    inline.extend([0x81, 0x00, 0x01, 0x02]);
    inline.extend(&bytes[12..18]);
    inline.extend([0; 12]);
    assert_eq!(fixture.bytes::<32>(64 + 32)[..], inline);
}

#[test]
fn large_send_request_is_literal() {
    let mut fixture = fixture();
    fixture.tx.hot.requests.max_tso_bytes = 1 << 18;
    let bytes: Vec<u8> = (0..200).collect();
    let mut mbuf = fixture.packet(&bytes);
    let address = mbuf.data_iova();
    mbuf.set_flags(OlFlags::TX_TSO);
    mbuf.set_tx_lengths(TxLengths { l2_len: 14, l3_len: 20, l4_len: 20, tso_mss: 100 });
    assert_eq!(fixture.send([mbuf]), 1);
    // 54 bytes of headers: 2 + 52, which take four units; one data segment.
    let ctrl = [0, 0, 0, 0x0e, 0x00, 0x01, 0x23, 7, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(fixture.ctrl(0), ctrl);
    assert_eq!(fixture.bytes::<8>(20), [0xc0, 0, 0, 100, 0, 0, 0, 0]);
    assert_eq!(fixture.bytes::<4>(28), [0, 54, 0, 1]);
    assert_eq!(fixture.bytes::<52>(32)[..], bytes[2..54]);
    assert_eq!(fixture.data(96), data_segment(146, address + 54));
}

/// Headers of every length, with short and long payloads, wherever the ring ends.
#[test]
fn headers_of_every_length_stand_in_the_request() {
    let mut fixture = fixture();
    fixture.tx.hot.requests.max_tso_bytes = 1 << 18;
    let bytes: Vec<u8> = (0..600).map(|at| (at * 7) as u8).collect();
    let mut block = 0;
    for headers in 16..=256 {
        for payload in [1, 90, 300] {
            let mut mbuf = fixture.packet(&bytes[..headers + payload]);
            let address = mbuf.data_iova() + headers as u64;
            mbuf.set_flags(OlFlags::TX_TSO);
            let (l2_len, l3_len) = (14, headers as u16 - 15);
            mbuf.set_tx_lengths(TxLengths { l2_len, l3_len, l4_len: 1, tso_mss: 100 });
            assert_eq!(fixture.send([mbuf]), 1);
            let units = (headers - 2).div_ceil(16);
            let unit = |at: usize| (block * 64 + at * 16) % 4096;
            let place = (block as u16).to_be_bytes();
            let ctrl = [0, place[0], place[1], 0x0e, 0x00, 0x01, 0x23, units as u8 + 3];
            assert_eq!(fixture.ctrl(unit(0))[..8], ctrl);
            assert_eq!(fixture.bytes::<8>(unit(1) + 4), [0xc0, 0, 0, 100, 0, 0, 0, 0]);
            let start = [(headers >> 8) as u8, headers as u8, bytes[0], bytes[1]];
            assert_eq!(fixture.bytes::<4>(unit(1) + 12), start);
            for (at, part) in bytes[2..headers].chunks(16).enumerate() {
                assert_eq!(fixture.bytes::<16>(unit(2 + at))[..part.len()], *part, "{headers}");
            }
            assert_eq!(fixture.data(unit(2 + units)), data_segment(payload as u32, address));
            block += (units + 3).div_ceil(4);
            fixture.played.complete();
        }
    }
    assert_eq!(fixture.tx.stats().dropped, 0);
}

#[test]
fn copied_packet_is_literal() {
    let mut fixture = fixture();
    fixture.tx.hot.requests.inline_bytes = 64;
    let bytes: Vec<u8> = (0..60).collect();
    let packet = fixture.packet(&bytes);
    assert_eq!(fixture.send([packet]), 1);
    // 4 + 60 bytes: four units behind control and Ethernet segment.
    let ctrl = [0, 0, 0, 0x29, 0x00, 0x01, 0x23, 6, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(fixture.ctrl(0), ctrl);
    assert_eq!(fixture.bytes::<4>(32), [0x80, 0, 0, 60]);
    assert_eq!(fixture.bytes::<60>(36)[..], bytes);
}

#[test]
fn chain_requests_are_literal() {
    for (segments, ds) in [(2, 4), (3, 5), (4, 6)] {
        let mut fixture = fixture();
        let mut pieces: Vec<_> = (0..segments).map(|at| fixture.packet(&[at; 60])).collect();
        let addresses: Vec<_> = pieces.iter().map(Mbuf::data_iova).collect();
        let mut whole = pieces.remove(0);
        pieces.into_iter().for_each(|piece| whole.chain(piece).unwrap());
        whole.set_flags(OlFlags::TX_IP_CSUM | OlFlags::TX_L4_CSUM);
        assert_eq!(fixture.send([whole]), 1);
        let ctrl = [0, 0, 0, 0x0a, 0x00, 0x01, 0x23, ds, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(fixture.ctrl(0), ctrl);
        assert_eq!(fixture.bytes::<16>(16), [0, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for (at, address) in addresses.into_iter().enumerate() {
            assert_eq!(fixture.data(32 + 16 * at), data_segment(60, address));
        }
        assert_eq!(fixture.tx.hot.elts.len(), usize::from(segments), "taken apart");
        // The next request stands behind it.
        let packet = fixture.packet(&[4; 64]);
        assert_eq!(fixture.send([packet]), 1);
        let blocks = if segments == 2 { 1 } else { 2 };
        assert_eq!(fixture.ctrl(64 * blocks)[..4], [0, 0, blocks as u8, 0x29]);
    }
}

/// Chains take more of the list of buffers than of the ring: a completion is asked for in time.
#[test]
fn chains_never_fill_the_list_for_good() {
    for segments in [2, 4, 5, 8, 9, 16] {
        let mut fixture = fixture();
        let mut sent = 0;
        for _ in 0..200 {
            let mut pieces: Vec<_> = (0..segments).map(|at| fixture.packet(&[at; 60])).collect();
            let mut whole = pieces.remove(0);
            pieces.into_iter().for_each(|piece| whole.chain(piece).unwrap());
            sent += fixture.send([whole]);
            if fixture.tx.stats().full != 0 {
                break;
            }
            fixture.played.complete();
        }
        assert_eq!((sent, fixture.tx.stats().full), (200, 0), "{segments}");
    }
}

/// A sender that the wire holds up, one packet at a time: its ring stays more than half full.
#[test]
fn small_bursts_on_a_ring_that_is_low_share_completions() {
    let mut fixture = fixture();
    let (mut sent, mut completions) = (0, 0);
    for _ in 0..50 {
        loop {
            let packet = fixture.packet(&[0; 60]);
            match fixture.send([packet]) {
                0 => break,
                taken => sent += taken,
            }
        }
        // From more than half of the 64 blocks to all of them, by eighths.
        let due = fixture.played.complete();
        assert!((1..=5).contains(&due), "{due}");
        completions += due;
        fixture.tx.reclaim();
        assert!(fixture.tx.reclaim() < 8, "what was behind the last completion");
    }
    assert!(sent > 50 * 50 && completions <= 50 * 5, "{sent} by {completions}");
}

/// A request asks for one completion, whatever the reasons to ask.
#[test]
fn stamped_packet_in_the_second_half_completes_once() {
    let mut fixture = fixture();
    fixture.tx.hot.requests.multi_packet = false;
    fixture.tx.hot.requests.takes_stamps = true;
    fixture.tx.hot.stamps = super::Stamps::new(8);
    for round in 0..4 {
        let mut packets: Vec<_> = (0..40).map(|_| fixture.packet(&[0; 60])).collect();
        packets[39].set_tx_timestamp(round);
        assert_eq!(fixture.send(packets), 40);
        assert_eq!(fixture.played.complete(), 1);
        assert_eq!((fixture.tx.reclaim(), fixture.tx.fault()), (0, None));
        assert_eq!(fixture.tx.next_timestamp().map(|stamp| stamp.id), Some(round));
    }
}

fn order() -> PrebuiltFrame<128> {
    let headers = Headers {
        destination_mac: MacAddr([2; 6]),
        source_mac: MacAddr([4; 6]),
        vlan_tci: None,
        source: "192.0.2.1:4000".parse().unwrap(),
        destination: "192.0.2.2:5000".parse().unwrap(),
        hop_limit: 64,
        traffic_class: 0,
        transport: Transport::Udp,
    };
    let mut bytes = [0x5a; 128];
    headers.write(&mut bytes).unwrap();
    PrebuiltFrame::new(&bytes)
}

#[test]
fn single_frame_request_is_literal() {
    let mut fixture = fixture();
    let mut frame = order();
    // In half of the ring, one takes the longer way and asks for a completion.
    for block in (0..=30).step_by(3) {
        let completion = if block == 30 { 8 } else { 0 };
        let field = frame.field(50).unwrap();
        frame.set(field, [block; 8]);
        assert!(fixture.tx.send_one(&frame));
        let at = 64 * usize::from(block);
        let ctrl = [0, 0, block, 0x0a, 0x00, 0x01, 0x23, 10, 0, 0, 0, completion, 0, 0, 0, 0];
        assert_eq!(fixture.ctrl(at), ctrl);
        assert_eq!(fixture.bytes::<14>(at + 16), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 128]);
        assert_eq!(fixture.bytes::<128>(at + 30), frame.bytes());
    }
    let stats = fixture.tx.stats();
    assert_eq!((stats.packets, stats.bytes, stats.doorbells), (11, 11 * 128, 11));
    assert_eq!(fixture.played.complete(), 1);
    assert_eq!(fixture.tx.reclaim(), 0);
}

/// A rehearsal tells the device nothing and counts nothing, whatever came before.
#[test]
fn warming_up_leaves_no_trace() {
    let mut fixture = fixture();
    let frame = order();
    assert!(!fixture.tx.warm_up(&frame) || fixture.tx.stats().packets == 0);
    let mut exercised = 0;
    for round in 0..60u64 {
        let before = fixture.tx.stats();
        exercised += u32::from(fixture.tx.warm_up(&frame));
        assert_eq!(fixture.tx.stats(), before);
        assert!(fixture.tx.send_one(&frame));
        assert_eq!(fixture.tx.stats().packets, round + 1);
        fixture.played.complete();
    }
    assert!(exercised > 30, "{exercised}");
    assert_eq!((fixture.tx.hot.requests.ring.pi, fixture.tx.stats().doorbells), (180, 60));
}

#[test]
fn single_frames_fill_the_ring_and_no_more() {
    let mut fixture = fixture();
    let frame = order();
    let sent = (0..40).filter(|_| fixture.tx.send_one(&frame)).count();
    assert_eq!((sent, fixture.tx.stats().full), (21, 19), "three blocks of 64 each");
    let packet = fixture.packet(&[0; 60]);
    assert_eq!(fixture.send([packet]), 1, "one block is left");
    fixture.played.complete();
    let sent = (0..40).filter(|_| fixture.tx.send_one(&frame)).count();
    assert!((15..=21).contains(&sent), "{sent}");
    assert_eq!(fixture.tx.fault(), None);
    fixture.tx.reset().unwrap();
    fixture.played.restart();
    assert!((0..21).all(|_| fixture.tx.send_one(&frame)) && !fixture.tx.send_one(&frame));
}

#[test]
fn counters_wrap() {
    let mut fixture = fixture();
    let start = u64::from(u32::MAX - 40);
    let ring = &mut fixture.tx.hot.requests.ring;
    // As after 2^32 blocks less 40: the ring has 64, so block 0xffd7 stands at slot 23.
    (ring.pi, ring.ci) = (start, start);
    fixture.played.start_at(start as u16);
    let mut sent = 0;
    for _ in 0..20 {
        let packets: Vec<_> = (0..32).map(|_| fixture.packet(&[0; 60])).collect();
        sent += fixture.send(packets);
        fixture.played.complete();
    }
    assert_eq!(sent, 640);
    assert_eq!(fixture.tx.fault(), None);
    assert_eq!(fixture.tx.hot.requests.ring.pi, start + 20 * 9);
}

#[test]
fn completions_that_cannot_be_stop_the_queue() {
    for (cqe, wanted) in [
        (
            ferrocx_prm::cqe::Cqe64::zeroed().with_wqe_counter(7),
            QueueFault::WrongIndex { expected: 0, got: 7 },
        ),
        (
            ferrocx_prm::cqe::Cqe64::zeroed().with_opcode(3),
            QueueFault::BadCqe { opcode: 3, format: 0 },
        ),
        (
            ferrocx_prm::cqe::Cqe64(
                ErrCqe::zeroed()
                    .with_syndrome(4)
                    .with_vendor_err_synd(0x93)
                    .with_opcode(CqeOpcode::REQUESTER_ERROR.0)
                    .0,
            ),
            QueueFault::Completion {
                syndrome: CqeSyndrome::LOCAL_PROT_ERR,
                vendor: 0x93,
                wqe_counter: 0,
            },
        ),
    ] {
        let mut fixture = fixture();
        let packets: Vec<_> = (0..32).map(|_| fixture.packet(&[0; 60])).collect();
        assert_eq!(fixture.send(packets), 32);
        fixture.played.complete_with(cqe);
        let packet = fixture.packet(&[0; 60]);
        assert_eq!(fixture.send([packet]), 0);
        assert_eq!(fixture.tx.fault(), Some(wanted));
        assert_eq!(fixture.tx.stats().errors, 32);
    }
}

/// A buffer that was taken as it lay says what its last user left: here that it is short, which
/// its data is not.
#[test]
fn a_packet_that_says_less_than_it_has_is_not_copied_over_what_stands_behind() {
    let mut fixture = fixture();
    fixture.tx.hot.requests.inline_bytes = 64;
    let (mut chain, tail) = (fixture.packet(&[]), fixture.packet(&[7; 10]));
    chain.chain(tail).unwrap();
    assert!(chain.append(1990).is_some(), "in the last segment, counted in the first");
    fixture.tx.cache().put(chain);
    let mut raw = ArrayVec::<Mbuf, 2>::new();
    assert!(fixture.tx.cache().get_raw_bulk(&mut raw, 2));
    raw.retain(|mbuf| mbuf.data_len() == 2000);
    let (mut packet, tail) = (fixture.packet(&[]), raw.pop().expect("the tail"));
    let address = tail.data_iova();
    packet.chain(tail).unwrap();
    assert_eq!(packet.pkt_len(), 10);
    assert_eq!(fixture.send([packet]), 1);
    assert_eq!(fixture.ctrl(0)[7], 3, "control, Ethernet, and one data segment");
    assert_eq!(fixture.data(32), data_segment(2000, address));
}
