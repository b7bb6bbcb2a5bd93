//! Kinds of receive queues, offloads, steering, RSS.

use ferrocx_prm::flow::{FlowContext, FlowMatchLyr24, FlowMatchMisc, FlowMatchParam};

use super::{frame, port, put};
use crate::datapath::harness::{KEY, Port, TestCq, TestRq, data};
use crate::frame::offload::sum16;
use crate::frame::rss::FieldSelector;
use crate::objects::{
    FlowCounter, FlowDest, FlowEntry, MissAction, Rq, Rqt, RxHash, TirTarget, WorkQueue, WqType,
    flow_action,
};
use crate::wire::{Fcs, Link, Wire};

/// IPv4/TCP between 10.0.0.1 and 10.0.0.2 with right checksums.
fn tcp(sport: u16, payload: usize, ack: bool) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(sport, 80, 1, 1024);
    let builder = if ack { builder.ack(1) } else { builder.syn() };
    builder.write(&mut frame, &vec![0x5a; payload]).expect("written to memory");
    frame.resize(frame.len().max(60), 0);
    frame
}

fn tagged(frame: &[u8], tpid: u16, tci: u16) -> Vec<u8> {
    let [a, b] = tpid.to_be_bytes();
    let [c, d] = tci.to_be_bytes();
    [&frame[..12], &[a, b, c, d], &frame[12..]].concat()
}

/// A port with one receive queue of 16 entries of one segment, 2 KiB each, and all packets to it.
fn one_queue() -> (Port, Link, TestCq, TestRq, ferrocx_bus::DmaBuf) {
    let (mut port, far) = port();
    let cq = port.cq(6);
    let mut rq = port.rq(cq.cqn, 4, 4);
    port.steer_all_to(rq.rqn);
    let pool = port.alloc(16 * 2048);
    for index in 0..16 {
        rq.post(&data(2048, KEY, pool.iova() + index * 2048));
    }
    (port, far, cq, rq, pool)
}

/// What stays inside the machine may be longer than any frame of a cable: a queue of Ethernet gets
/// none of it, where no RoCE port takes it.
#[test]
fn packets_that_one_frame_stands_for_reach_no_queue_of_ethernet() {
    use crate::wire::Train;
    let (mut port, mut far, mut cq, _rq, _pool) = one_queue();
    let train = Fcs::Inside(Train { frames: 7, bytes: 60_000, longest: 1_000 });
    far.reserve(1_900).expect("room").copy_from_slice(&[frame(1).as_slice(), &[1; 1_840]].concat());
    far.commit(0, train);
    far.flush(0);
    port.poll();
    assert!(cq.poll().is_none());
    assert_eq!(port.datapath.receive_drops().unwanted, 7);
    put(&mut far, &frame(2));
    port.poll();
    assert!(cq.poll().is_some(), "the next frame is taken as ever");
}

#[test]
fn completions_tell_what_the_packet_is() {
    let (mut port, mut far, mut cq, _rq, _pool) = one_queue();
    let mut bad_l4 = tcp(1, 10, true);
    bad_l4[60] ^= 1;
    let mut bad_l3 = tcp(1, 10, true);
    bad_l3[22] ^= 1;
    let mut fragment = tcp(1, 10, true);
    fragment[20] = 0x20;
    let mut options = tcp(1, 10, true);
    options[14] = 0x46;
    options[17] += 4;
    options.splice(34..34, [1, 1, 1, 1]);
    let cases: [(Vec<u8>, u8, u8); 7] = [
        // hds_ip_ext: L2 1, L3 2, L4 4; l4_l3_hdr_type: L4 in 6:4, L3 in 3:2; bit 7 fragment.
        (tcp(1, 10, false), 0x07, 0x18),
        (tcp(1, 0, true), 0x07, 0x38),
        (tcp(1, 10, true), 0x07, 0x48),
        (bad_l4, 0x03, 0x48),
        (bad_l3, 0x05, 0x48),
        (fragment, 0x01, 0x88),
        (options, 0x05, 0x4a),
    ];
    for (bytes, ok, types) in cases {
        put(&mut far, &bytes);
        port.poll();
        let cqe = cq.poll().expect("a completion");
        assert_eq!((cqe[0x1c], cqe[0x1d]), (ok, types), "{bytes:02x?}");
    }
}

#[test]
fn check_sum_stops_at_the_end_of_the_ip_packet() {
    let (mut port, mut far, mut cq, _rq, _pool) = one_queue();
    let mut bytes = tcp(1, 1, true);
    bytes[55..].fill(0xee);
    put(&mut far, &bytes);
    port.poll();
    let cqe = cq.poll().expect("a completion");
    assert_eq!(cqe[0x14..0x16], sum16(&bytes[14..55]).to_be_bytes());
    assert_eq!(cqe[0x2c..0x30], [0, 0, 0, 60]);
}

#[test]
fn a_tag_is_stripped_unless_the_queue_says_not_to() {
    let plain = tcp(1, 20, true);
    for (vsd, tpid, is_stripped) in
        [(false, 0x8100, true), (true, 0x8100, false), (false, 0x88a8, false)]
    {
        let (mut port, mut far, mut cq, rq, pool) = one_queue();
        port.state.objects.rqs.get_mut(rq.rqn).expect("the queue").vlan_strip_disable = vsd;
        let sent = tagged(&plain, tpid, 0x6005);
        put(&mut far, &sent);
        port.poll();
        let cqe = cq.poll().expect("a completion");
        let expected = if is_stripped { &plain } else { &sent };
        let mut bytes = vec![0; expected.len()];
        pool.copy_out(0, &mut bytes);
        assert_eq!(bytes, *expected);
        assert_eq!(cqe[0x2f], expected.len() as u8);
        assert_eq!(cqe[0x1d] & 1 == 1, is_stripped);
        assert_eq!(cqe[0x1e..0x20] == [0x60, 0x05], is_stripped);
        // The sum starts behind the tag in either case.
        assert_eq!(cqe[0x14..0x16], sum16(&plain[14..]).to_be_bytes());
    }
}

#[test]
fn the_fcs_is_scattered_on_request() {
    let (mut port, mut far, mut cq, rq, pool) = one_queue();
    port.state.objects.rqs.get_mut(rq.rqn).expect("the queue").scatter_fcs = true;
    put(&mut far, &frame(0));
    port.poll();
    assert_eq!(cq.poll().expect("a completion")[0x2f], 64);
    let mut bytes = [0; 64];
    pool.copy_out(0, &mut bytes);
    // The CRC over a frame and its FCS is a constant: IEEE 802.3, residue 0xdebb20e3, inverted.
    assert_eq!(crc32fast::hash(&bytes), 0x2144_df1c);
}

#[test]
fn a_packet_is_scattered_over_a_list() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(4);
    let mut rq = port.rq_with(cq.cqn, 2, 6, |_, wq| wq.two_byte_shift = true);
    port.steer_all_to(rq.rqn);
    let buf = port.alloc(4096);
    buf.fill(0xa5);
    let at = buf.iova();
    let list =
        [data(12, KEY, at), data(0, KEY, 1), data(40, KEY, at + 100), data(10, KEY, at + 300)];
    rq.post(&list.concat());
    put(&mut far, &frame(0x61));
    port.poll();
    assert_eq!(cq.poll().expect("a completion")[0x2f], 60);
    let mut bytes = [0; 400];
    buf.copy_out(0, &mut bytes);
    let sent = frame(0x61);
    assert_eq!((&bytes[..2], &bytes[2..12]), (&[0xa5; 2][..], &sent[..10]));
    assert_eq!((&bytes[100..140], &bytes[300..310]), (&sent[10..50], &[0x61; 10][..]));
}

#[test]
fn receive_counters_wrap() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(6);
    let mut rq = port.rq_with(cq.cqn, 2, 4, |rq, _| {
        rq.ring.posted = 0xfffe;
        rq.ring.consumed = 0xfffe;
    });
    port.steer_all_to(rq.rqn);
    let buf = port.alloc(2048);
    let mut counters = Vec::new();
    for _ in 0..4 {
        rq.post(&data(2048, KEY, buf.iova()));
        put(&mut far, &frame(1));
        port.poll();
        let cqe = cq.poll().expect("a completion");
        counters.push(u16::from_be_bytes([cqe[0x3c], cqe[0x3d]]));
    }
    assert_eq!(counters, [0xfffe, 0xffff, 0, 1]);
}

fn linked(_: &mut Rq, wq: &mut WorkQueue) {
    (wq.wq_type, wq.next_segment) = (WqType::LinkedList, true);
}

/// Entries of a pool of UCX's: in turn, with a next segment that points anywhere.
#[test]
fn a_cyclic_pool_with_next_segments_is_taken_in_turn() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(6);
    let rq = port.rq_with(cq.cqn, 2, 5, |_, wq| wq.next_segment = true);
    port.steer_all_to(rq.rqn);
    port.pool_of(rq.rqn, 0);
    let buf = port.alloc(8192);
    for index in 0..4_u8 {
        let mut wqe = vec![0, 0, 0xff, 0xee, 0x55, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        wqe.extend(data(2048, KEY, buf.iova() + u64::from(index) * 2048));
        rq.ring.copy_in(usize::from(index) * 32, &wqe);
    }
    let mut counters = Vec::new();
    for fill in 1..=6 {
        rq.record.store_be32(0, u32::from(fill));
        put(&mut far, &frame(fill));
        port.poll();
        counters.extend(cq.poll().map(|cqe| cqe[0x3d]));
        let mut bytes = [0; 60];
        buf.copy_out(usize::from((fill - 1) % 4) * 2048, &mut bytes);
        assert_eq!(bytes, frame(fill));
    }
    assert_eq!(counters, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_pool_is_followed_by_its_links_and_tells_when_it_runs_low() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(6);
    let rq = port.rq_with(cq.cqn, 2, 5, linked);
    port.steer_all_to(rq.rqn);
    let rmpn = port.pool_of(rq.rqn, 1);
    let buf = port.alloc(8192);
    // Links 0 -> 2 -> 1 -> 3.
    for (index, next) in [(0, 2), (2, 1), (1, 3), (3, 0)] {
        let mut wqe = vec![0, 0, 0, next, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        wqe.extend(data(2048, KEY, buf.iova() + index * 2048));
        rq.ring.copy_in(index as usize * 32, &wqe);
    }
    rq.record.store_be32(0, 3);
    let mut indices = Vec::new();
    for fill in 1..=4 {
        put(&mut far, &frame(fill));
        port.poll();
        if let Some(cqe) = cq.poll() {
            assert_eq!(cqe[0x02..0x04], cqe[0x3c..0x3e]);
            indices.push(cqe[0x3d]);
        }
    }
    assert_eq!(indices, [0, 2, 1]);
    let mut bytes = [0; 60];
    buf.copy_out(2 * 2048, &mut bytes);
    assert_eq!(bytes, frame(2));
    let rmp = port.state.objects.rmps.get(rmpn).expect("the pool");
    assert_eq!((rmp.limit, rmp.ring.consumed), (0, 3));
    assert_eq!(port.state.port.counters.rx_out_of_buffer, 1);
}

#[test]
fn a_link_past_the_ring_fails_the_queue() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(6);
    let mut rq = port.rq_with(cq.cqn, 2, 5, linked);
    port.steer_all_to(rq.rqn);
    let buf = port.alloc(2048);
    let mut wqe = vec![0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    wqe.extend(data(2048, KEY, buf.iova()));
    (0..3).for_each(|_| rq.post(&wqe));
    put(&mut far, &frame(1));
    put(&mut far, &frame(2));
    port.poll();
    assert_eq!(cq.poll().map(|cqe| cqe[0x3f] >> 4), Some(2));
    assert_eq!(cq.poll().map(|cqe| (cqe[0x37], cqe[0x3d])), Some((0x02, 4)));
    // Nothing is flushed: nobody knows where the rest stands.
    assert_eq!(cq.poll(), None);
    assert!(port.last_refusal().contains("past the ring"));
}

/// A striding queue: entries of 8 strides of 128 bytes.
fn striding(wq_type: WqType) -> (Port, Link, TestCq, TestRq, ferrocx_bus::DmaBuf) {
    let (mut port, far) = port();
    let cq = port.cq(6);
    let log_stride = if wq_type.is_linked() { 5 } else { 4 };
    let rq = port.rq_with(cq.cqn, 2, log_stride, |_, wq| {
        (wq.wq_type, wq.next_segment) = (wq_type, wq_type.is_linked());
        wq.log_strides_per_wqe = 3;
        wq.log_stride_bytes = 7;
    });
    port.steer_all_to(rq.rqn);
    let buf = port.alloc(4 * 1024);
    for index in 0..4_u8 {
        let mut wqe = Vec::new();
        if wq_type.is_linked() {
            wqe.extend([0, 0, 0, (index + 1) & 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        wqe.extend(data(1024, KEY, buf.iova() + u64::from(index) * 1024));
        rq.ring.copy_in(usize::from(index) << log_stride, &wqe);
    }
    rq.record.store_be32(0, 4);
    (port, far, cq, rq, buf)
}

#[test]
fn strides_are_used_up_one_after_another() {
    for wq_type in [WqType::CyclicStriding, WqType::LinkedListStriding] {
        let (mut port, mut far, mut cq, _rq, buf) = striding(wq_type);
        let mut got = Vec::new();
        for len in [60, 300, 200, 200, 1000] {
            let mut bytes = vec![0x44; len];
            bytes[..14].copy_from_slice(&frame(0)[..14]);
            put(&mut far, &bytes);
            port.poll();
            while let Some(cqe) = cq.poll() {
                let byte_cnt = u32::from_be_bytes([cqe[0x2c], cqe[0x2d], cqe[0x2e], cqe[0x2f]]);
                got.push((cqe[0x03], cqe[0x3d], byte_cnt));
            }
        }
        // WQE, first stride, strides << 16 | bytes; a filler where the packet did not fit.
        let expected = [
            (0, 0, 1 << 16 | 60),
            (0, 1, 3 << 16 | 300),
            (0, 4, 2 << 16 | 200),
            (0, 6, 2 << 16 | 200),
            (1, 0, 8 << 16 | 1000),
        ];
        assert_eq!(got, expected);
        let mut bytes = [0; 300];
        buf.copy_out(128, &mut bytes);
        assert_eq!(bytes[14..], [0x44; 286]);
    }
}

#[test]
fn strides_that_are_too_few_are_skipped_by_a_filler() {
    let (mut port, mut far, mut cq, _rq, _buf) = striding(WqType::CyclicStriding);
    for len in [700, 400, 60] {
        let mut bytes = vec![0x44; len];
        bytes[..14].copy_from_slice(&frame(0)[..14]);
        put(&mut far, &bytes);
    }
    port.poll();
    let got: Vec<_> = std::iter::from_fn(|| cq.poll())
        .map(|cqe| {
            let byte_cnt = u32::from_be_bytes([cqe[0x2c], cqe[0x2d], cqe[0x2e], cqe[0x2f]]);
            (cqe[0x03], cqe[0x3d], byte_cnt)
        })
        .collect();
    let filler = 1 << 31 | 2 << 16;
    assert_eq!(
        got,
        [(0, 0, 6 << 16 | 700), (0, 6, filler), (1, 0, 4 << 16 | 400), (1, 4, 1 << 16 | 60)]
    );
    // A packet that no entry can hold takes what is left of one, and the next one the next.
    let mut bytes = vec![0x44; 1025];
    bytes[..14].copy_from_slice(&frame(0)[..14]);
    put(&mut far, &bytes);
    port.poll();
    let cqe = cq.poll().expect("an error");
    assert_eq!((cqe[0x37], cqe[0x3f] >> 4), (0x01, 14));
    assert_eq!(cqe[0x2c..0x30], [0, 3, 0, 0], "three strides");
    put(&mut far, &frame(0));
    port.poll();
    let cqe = cq.poll().expect("a packet, at the start of the next one");
    assert_eq!((cqe[0x03], cqe[0x3d], &cqe[0x2c..0x30]), (2, 0, &[0, 1, 0, 60][..]));
}

/// What Linux's `mlx5e` lists, its own address and broadcast, is what a virtual function gets.
#[test]
fn the_embedded_switch_forwards_a_virtual_function_what_its_driver_listed() {
    use crate::NicConfig;
    use crate::device::config::Identity;
    use crate::device::port::{Port as NicPort, Promiscuous};
    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 1];
    let (mut port, mut far, mut cq, mut rq, pool) = one_queue();
    let mut sent_to = |port: &mut Port, to: [u8; 6]| {
        let mut bytes = frame(0);
        bytes[..6].copy_from_slice(&to);
        put(&mut far, &bytes);
        port.poll();
        let came = cq.poll().is_some();
        if came {
            rq.post(&data(2048, KEY, pool.iova()));
        }
        came
    };
    let all = [OWN, [2, 0, 0, 0, 0, 2], [0xff; 6], GROUP];
    // A physical function gets every frame, without any list.
    assert_eq!(all.map(|to| sent_to(&mut port, to)), [true; 4]);
    port.state.port =
        NicPort::new(&NicConfig { identity: Identity::ConnectX5Vf, ..NicConfig::default() });
    port.state.port.enabled = true;
    assert_eq!(all.map(|to| sent_to(&mut port, to)), [false; 4], "nothing is listed");
    assert_eq!(port.datapath.receive_drops().unlisted, 4);
    assert_eq!(port.state.port.counters.rx_unicast.packets, 0, "not this function's frames");
    port.state.port.vport.unicast = vec![OWN];
    port.state.port.vport.multicast = vec![[0xff; 6]];
    assert_eq!(all.map(|to| sent_to(&mut port, to)), [true, false, true, false]);
    let modes = |unicast, multicast, all| Promiscuous { unicast, multicast, all };
    for (promiscuous, expected) in [
        (modes(true, false, false), [true, false, true, false]),
        (modes(false, true, false), [true, false, true, true]),
        (modes(false, false, true), [true; 4]),
    ] {
        port.state.port.vport.promiscuous = promiscuous;
        assert_eq!(all.map(|to| sent_to(&mut port, to)), expected, "{promiscuous:?}");
    }
}

#[test]
fn bad_frames_are_counted_by_reason_and_break_nothing() {
    let (mut port, mut far, mut cq, _rq, _pool) = one_queue();
    put(&mut far, &frame(0)[..59]);
    put(&mut far, &[0; 13]);
    put(&mut far, &[2; 1519]);
    far.reserve(60).expect("room").fill(0);
    far.commit(0, Fcs::Bad);
    far.flush(0);
    port.poll();
    let drops = port.datapath.receive_drops();
    assert_eq!((drops.undersize, drops.oversize, drops.fcs), (2, 1, 1));
    assert_eq!(port.state.port.counters.rx_errors.packets, 4);
    assert_eq!(cq.poll(), None);
    // The longest frames, with and without a tag.
    put(&mut far, &[2; 1514]);
    put(&mut far, &tagged(&[2; 1514], 0x8100, 1));
    port.poll();
    assert!(cq.poll().is_some() && cq.poll().is_some());
    port.state.port.admin_up = false;
    put(&mut far, &frame(0));
    port.poll();
    assert_eq!(port.datapath.receive_drops().link_down, 1);
    assert_eq!(cq.poll(), None);
}

/// A match on one outer field: mask and value are made by the same function.
fn outer(set: impl Fn(FlowMatchLyr24) -> FlowMatchLyr24) -> FlowMatchParam {
    FlowMatchParam::zeroed().with_outer_headers(set(FlowMatchLyr24::zeroed()))
}

#[test]
fn rss_spreads_by_the_hash_over_the_table() {
    let (mut port, mut far) = port();
    let mut cqs = Vec::new();
    let mut rqns = Vec::new();
    let buf = port.alloc(2048);
    let mut queues = Vec::new();
    for _ in 0..4 {
        let cq = port.cq(6);
        let mut rq = port.rq(cq.cqn, 6, 4);
        (0..64).for_each(|_| rq.post(&data(2048, KEY, buf.iova())));
        rqns.push(rq.rqn);
        queues.push(rq);
        cqs.push(cq);
    }
    let rqtn =
        port.state.objects.rqts.insert(Rqt { max_size: 4, rqns: rqns.into() }).expect("a table");
    let fields = FieldSelector::SRC_IP
        | FieldSelector::DST_IP
        | FieldSelector::L4_SPORT
        | FieldSelector::L4_DPORT;
    let tirn = port.tir(TirTarget::Indirect { rqtn }, RxHash::Toeplitz, fields);
    let table = port.table(0, MissAction::Default);
    port.group(table, 0, FlowMatchParam::zeroed());
    port.entry(table, 0, FlowMatchParam::zeroed(), 0, &[FlowDest::Tir(tirn)]);
    port.state.objects.rx_root = Some(table);
    for sport in 0..64 {
        put(&mut far, &tcp(sport, 10, true));
    }
    port.poll();
    let mut total = 0;
    for (index, cq) in cqs.iter_mut().enumerate() {
        let mut count = 0;
        while let Some(cqe) = cq.poll() {
            let hash = u32::from_be_bytes([cqe[0x0c], cqe[0x0d], cqe[0x0e], cqe[0x0f]]);
            assert_eq!(hash as usize & 3, index);
            // IPv4 and TCP were hashed.
            assert_eq!(cqe[0x10], 0x44);
            count += 1;
        }
        assert!(count > 4, "queue {index} got {count} of 64");
        total += count;
    }
    assert_eq!(total, 64);
}

#[test]
fn the_lowest_index_wins_and_tables_chain() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(6);
    let mut rq = port.rq(cq.cqn, 6, 4);
    let buf = port.alloc(2048);
    (0..16).for_each(|_| rq.post(&data(2048, KEY, buf.iova())));
    let tirn = port.tir(TirTarget::Direct { rqn: rq.rqn }, RxHash::None, 0);
    let root = port.table(0, MissAction::Default);
    let next = port.table(1, MissAction::Default);
    let last = port.table(2, MissAction::Default);
    // Root: destination address to `next`; everything else misses.
    port.group(root, 1, outer(|m| m.with_dmac_47_16(u32::MAX).with_dmac_15_0(0xffff)));
    let value = outer(|m| m.with_dmac_47_16(0x0200_0000).with_dmac_15_0(1));
    port.entry(root, 0, value, 5, &[FlowDest::Table(next)]);
    // Next: TCP port 80 from port 7 is dropped, other TCP gets tag 9; the rest goes on, by a miss.
    port.group(next, 1, outer(|m| m.with_ip_protocol(0xff).with_tcp_sport(0xffff)));
    port.entry(next, 0, outer(|m| m.with_ip_protocol(6).with_tcp_sport(7)), 0, &[]);
    port.group(next, 1, outer(|m| m.with_ip_protocol(0xff)));
    port.entry(next, 1, outer(|m| m.with_ip_protocol(6)), 9, &[FlowDest::Tir(tirn)]);
    port.state.objects.flow_tables.get_mut(next).expect("the table").miss =
        MissAction::Forward { table: last };
    port.group(last, 0, FlowMatchParam::zeroed());
    port.entry(last, 0, FlowMatchParam::zeroed(), 0, &[FlowDest::Tir(tirn)]);
    port.state.objects.rx_root = Some(root);

    let mut tag = |bytes: &[u8]| {
        put(&mut far, bytes);
        port.poll();
        cq.poll().map(|cqe| u32::from_be_bytes([0, cqe[0x39], cqe[0x3a], cqe[0x3b]]))
    };
    assert_eq!(tag(&tcp(8, 10, true)), Some(9));
    assert_eq!(tag(&tcp(7, 10, true)), None);
    assert_eq!(tag(&frame(1)), Some(5));
    let mut other = frame(1);
    other[5] = 2;
    assert_eq!(tag(&other), None);
    let drops = port.datapath.receive_drops();
    assert_eq!((drops.steering, drops.unwanted), (1, 1));
    assert_eq!(port.state.port.counters.rx_steering_missed, 1);
}

#[test]
fn every_match_field_is_compared() {
    let v4 = tagged(&tcp(1025, 10, true), 0x8100, 0xb123);
    let fields: [fn(FlowMatchLyr24, bool) -> FlowMatchLyr24; 15] = [
        |m, wrong| m.with_smac_47_16(0x0200_0000).with_smac_15_0(2 + u32::from(wrong)),
        |m, wrong| m.with_dmac_47_16(0x0200_0000).with_dmac_15_0(1 + u32::from(wrong)),
        |m, wrong| m.with_ethertype(0x0800 + u32::from(wrong)),
        |m, wrong| m.with_first_vid(0x123 + u32::from(wrong)),
        |m, wrong| m.with_first_prio(5 - u32::from(wrong)),
        |m, wrong| m.with_first_cfi(!wrong),
        |m, wrong| m.with_cvlan_tag(!wrong),
        |m, wrong| m.with_ip_version(4 + u32::from(wrong)),
        |m, wrong| m.with_ip_protocol(6 + u32::from(wrong)),
        |m, wrong| m.with_ttl_hoplimit(64 + u32::from(wrong)),
        |m, wrong| m.with_ipv4_ihl(5 + u32::from(wrong)),
        |m, wrong| m.with_tcp_flags(0x10 + u32::from(wrong)),
        |m, wrong| m.with_tcp_sport(1025 + u32::from(wrong)),
        |m, wrong| m.with_tcp_dport(80 + u32::from(wrong)),
        |m, wrong| {
            let mut address = [0; 16];
            address[12..].copy_from_slice(&[10, 0, 0, 2 + u8::from(wrong)]);
            m.with_dst_ipv4_dst_ipv6(address)
        },
    ];
    for (index, field) in fields.into_iter().enumerate() {
        for wrong in [false, true] {
            let (mut port, mut far, mut cq, rq, _pool) = one_queue();
            let tirn = port.tir(TirTarget::Direct { rqn: rq.rqn }, RxHash::None, 0);
            let table = port.table(0, MissAction::Default);
            // Mask: all ones where either value has a bit.
            let (right, other) = (outer(|m| field(m, false)), outer(|m| field(m, true)));
            let mut mask = right;
            mask.0.iter_mut().zip(other.0).for_each(|(mask, other)| *mask |= other);
            port.group(table, 1, mask);
            port.entry(table, 0, outer(|m| field(m, wrong)), 0, &[FlowDest::Tir(tirn)]);
            port.state.objects.rx_root = Some(table);
            put(&mut far, &v4);
            port.poll();
            assert_eq!(cq.poll().is_some(), !wrong, "field {index}, wrong {wrong}");
        }
    }
}

#[test]
fn fields_that_no_packet_here_has_never_match() {
    let (mut port, mut far, mut cq, rq, _pool) = one_queue();
    let tirn = port.tir(TirTarget::Direct { rqn: rq.rqn }, RxHash::None, 0);
    let table = port.table(0, MissAction::Default);
    let inner = FlowMatchLyr24::zeroed().with_ip_protocol(0xff);
    let mask = FlowMatchParam::zeroed().with_inner_headers(inner);
    port.group(table, 4, mask);
    port.entry(table, 0, mask, 0, &[FlowDest::Tir(tirn)]);
    // A part that is not enabled does not count, whatever its mask says.
    let misc = FlowMatchMisc::zeroed().with_source_port(0xffff);
    port.group(table, 1, mask.with_misc_parameters(misc));
    port.state.objects.rx_root = Some(table);
    put(&mut far, &frame(1));
    port.poll();
    assert_eq!(cq.poll(), None);
    port.entry(table, 1, mask, 0, &[FlowDest::Tir(tirn)]);
    put(&mut far, &frame(1));
    port.poll();
    assert!(cq.poll().is_some());
}

#[test]
fn copies_and_counters() {
    let (mut port, mut far) = port();
    let (mut a, mut b) = (port.cq(4), port.cq(4));
    let buf = port.alloc(2048);
    let mut destinations = Vec::new();
    let mut queues = Vec::new();
    for cqn in [a.cqn, b.cqn] {
        let mut rq = port.rq(cqn, 4, 4);
        rq.post(&data(2048, KEY, buf.iova()));
        let tirn = port.tir(TirTarget::Direct { rqn: rq.rqn }, RxHash::None, 0);
        destinations.push(FlowDest::Tir(tirn));
        queues.push(rq);
    }
    let counter = port.state.objects.flow_counters.insert(FlowCounter::default()).expect("one");
    let table = port.table(0, MissAction::Default);
    port.group(table, 0, FlowMatchParam::zeroed());
    let entry = FlowEntry {
        value: Box::new(FlowMatchParam::zeroed()),
        flow_tag: 0xab_cdef,
        action: flow_action::FORWARD | flow_action::COUNT,
        destinations,
        counters: vec![counter],
        context: Box::new(FlowContext::zeroed()),
    };
    port.add_entry(table, 0, entry);
    port.state.objects.rx_root = Some(table);
    put(&mut far, &frame(1));
    port.poll();
    for cq in [&mut a, &mut b] {
        let cqe = cq.poll().expect("a copy");
        assert_eq!(cqe[0x39..0x3c], [0xab, 0xcd, 0xef]);
    }
    let counted = port.state.objects.flow_counters.get(counter).expect("the counter");
    assert_eq!((counted.packets, counted.octets), (1, 60));
}

#[test]
fn a_large_group_is_searched_and_loops_end() {
    let (mut port, mut far, mut cq, rq, _pool) = one_queue();
    let tirn = port.tir(TirTarget::Direct { rqn: rq.rqn }, RxHash::None, 0);
    let table = port.table(3, MissAction::Default);
    port.group(table, 1, outer(|m| m.with_tcp_sport(0xffff)));
    for sport in (0..64).rev() {
        let value = outer(|m| m.with_tcp_sport(sport * 3));
        port.entry(table, 0, value, 1 + sport, &[FlowDest::Tir(tirn)]);
    }
    // A way back to a lower level is not taken.
    port.group(table, 0, FlowMatchParam::zeroed());
    port.entry(table, 1, FlowMatchParam::zeroed(), 0, &[FlowDest::Table(table)]);
    port.state.objects.rx_root = Some(table);
    for (sport, tag) in [(0, Some(1)), (189, Some(64)), (93, Some(32)), (94, None)] {
        put(&mut far, &tcp(sport, 10, true));
        port.poll();
        let got = cq.poll().map(|cqe| u32::from_be_bytes([0, cqe[0x39], cqe[0x3a], cqe[0x3b]]));
        assert_eq!(got, tag, "port {sport}");
    }
}

#[test]
fn remembered_verdicts_are_those_of_the_key_and_of_the_rules_in_force() {
    let (mut port, mut far, mut cq, mut rq, pool) = one_queue();
    let tirn = port.tir(TirTarget::Direct { rqn: rq.rqn }, RxHash::None, 0);
    let table = port.table(0, MissAction::Default);
    port.group(table, 1, outer(|m| m.with_tcp_sport(0xffff)));
    port.state.objects.rx_root = Some(table);
    let sport = |sport: u32| outer(move |m| m.with_tcp_sport(sport));
    for flow in 0..60 {
        port.entry(table, 0, sport(1000 + flow), 0x100 + flow, &[FlowDest::Tir(tirn)]);
    }
    let mut tags = |port: &mut Port, flows: &[u32]| -> Vec<u32> {
        for flow in flows {
            put(&mut far, &tcp(1000 + *flow as u16, 10, true));
        }
        port.poll();
        let cqes: Vec<_> = std::iter::from_fn(|| cq.poll()).collect();
        cqes.iter().for_each(|_| rq.post(&data(2048, KEY, pool.iova())));
        cqes.iter().map(|cqe| u32::from_be_bytes([0, cqe[0x39], cqe[0x3a], cqe[0x3b]])).collect()
    };
    // More flows than there are places, each twice in a row, forwards and backwards.
    for flow in (0..60).chain((0..60).rev()) {
        assert_eq!(tags(&mut port, &[flow, flow]), [0x100 + flow; 2]);
    }
    // Another rule for the flow that came last.
    let number = port.state.objects.flow_tables.get(table).expect("the table").groups[0];
    let group = port.state.objects.flow_groups.get_mut(number).expect("the group");
    group.entries.get_mut(&33).expect("the rule").flow_tag = 0x999;
    port.state.objects.group_changed(number);
    assert_eq!(tags(&mut port, &[33, 59]), [0x999, 0x100 + 59]);
    // The same packet from another root table.
    port.state.objects.rx_root = None;
    assert_eq!(tags(&mut port, &[33]), [0_u32; 0]);
}
