use super::*;

fn config(pace: Pace) -> GeneratorConfig {
    GeneratorConfig { pace, ..GeneratorConfig::default() }
}

fn next(generator: &mut Generator, now_ns: u64) -> Option<Vec<u8>> {
    generator.receive(now_ns).map(|frame| frame.bytes.to_vec())
}

fn give_back(generator: &mut Generator, frame: &[u8], now_ns: u64) {
    generator.reserve(frame.len()).expect("room").copy_from_slice(frame);
    generator.commit(now_ns, Fcs::Good);
}

#[test]
fn frames_are_valid_udp_and_cycle_through_sizes_and_flows() {
    let mut generator = Generator::new(GeneratorConfig {
        sizes: vec![60, 1514, 17],
        flows: 2,
        udp_checksums: true,
        ..config(Pace::Flood)
    });
    let expected = [(60, 1024), (1514, 1025), (60, 1024), (60, 1025), (1514, 1024)];
    for (len, port) in expected {
        let frame = next(&mut generator, 5).expect("a frame");
        let packet = Packet::parse(&frame);
        let verified = offload::verify(&frame, &packet, false);
        assert!(verified.l3_ok && verified.l4_ok);
        assert_ne!(frame[UDP_CHECKSUM..UDP_CHECKSUM + 2], [0, 0]);
        assert_eq!(frame.len(), len);
        assert_eq!(u16::from_be_bytes([frame[SPORT], frame[SPORT + 1]]), port);
    }
}

#[test]
fn what_comes_back_is_judged() {
    let mut generator = Generator::new(config(Pace::Flood));
    let frames: Vec<_> = (0..4).filter_map(|_| next(&mut generator, 100)).collect();
    give_back(&mut generator, &frames[0], 150);
    give_back(&mut generator, &frames[2], 300);
    give_back(&mut generator, &frames[1], 300);
    let mut damaged = frames[3].clone();
    damaged[SEQUENCE + 7] ^= 1;
    give_back(&mut generator, &damaged, 300);
    give_back(&mut generator, &[0xff; 60], 300);
    generator.flush(300);
    let stats = generator.handle().stats();
    assert_eq!(stats, generator.stats());
    assert_eq!((stats.sent, stats.returned, stats.damaged, stats.foreign), (4, 3, 1, 1));
    assert_eq!((stats.out_of_order, stats.missing()), (1, 0));
    assert_eq!((stats.latency_sum_ns, stats.latency_max_ns), (450, 200));
}

#[test]
fn a_changed_pattern_is_damage_and_changed_addresses_are_not() {
    let mut generator = Generator::new(GeneratorConfig { sizes: vec![128], ..config(Pace::Flood) });
    let mut frame = next(&mut generator, 0).expect("a frame");
    frame[..12].rotate_left(6);
    give_back(&mut generator, &frame, 1);
    frame[127] ^= 0x80;
    give_back(&mut generator, &frame, 1);
    assert_eq!((generator.stats().returned, generator.stats().damaged), (1, 1));
}

#[test]
fn a_rate_is_kept_and_a_pause_is_not_made_up_for() {
    let mut generator = Generator::new(config(Pace::PerSecond(1_000_000)));
    let sent = (0..1_000_u64).filter(|step| next(&mut generator, step * 100).is_some()).count();
    assert_eq!(sent, 100);
    let burst = (0..10_000).filter(|_| next(&mut generator, 1_000_000_000).is_some()).count();
    assert!(burst <= 65, "{burst}");
}

#[test]
fn a_window_waits_for_returns_and_gives_up_after_the_timeout() {
    let mut generator = Generator::new(config(Pace::Window(2)));
    let first = next(&mut generator, 0).expect("a frame");
    assert!(next(&mut generator, 0).is_some() && next(&mut generator, 0).is_none());
    give_back(&mut generator, &first, 10);
    assert!(next(&mut generator, 10).is_some() && next(&mut generator, 10).is_none());
    assert!(next(&mut generator, 10 + 100_000_001).is_some());
    assert_eq!(generator.stats().timed_out, 2);
}

#[test]
fn it_stops_at_its_count_and_on_request() {
    let mut generator = Generator::new(GeneratorConfig { count: Some(2), ..config(Pace::Flood) });
    assert_eq!((0..5).filter(|_| next(&mut generator, 0).is_some()).count(), 2);
    let mut generator = Generator::new(config(Pace::Flood));
    generator.handle().set_paused(true);
    assert!(next(&mut generator, 0).is_none());
    generator.handle().set_paused(false);
    assert!(next(&mut generator, 0).is_some());
}

#[test]
fn frames_carry_the_time_at_which_they_were_taken_however_many_were_written() {
    let sizes = vec![60, 256];
    let mut generator = Generator::new(GeneratorConfig { sizes, flows: 3, ..config(Pace::Flood) });
    let mut sequence = 0_u64;
    for (now_ns, frames) in (7..).zip([1, 2, 130, 5, 64, 0, 64, 1]) {
        for _ in 0..frames {
            let frame = next(&mut generator, now_ns).expect("a frame");
            let number = |at: usize| u64::from_be_bytes(frame[at..at + 8].try_into().expect("8"));
            assert_eq!((number(SEQUENCE), number(SENT_NS)), (sequence, now_ns));
            let port = FIRST_PORT + u32::try_from(sequence % 3).expect("below 3");
            assert_eq!(u32::from(u16::from_be_bytes([frame[SPORT], frame[SPORT + 1]])), port);
            assert_eq!(frame.len(), if sequence.is_multiple_of(2) { 60 } else { 256 });
            give_back(&mut generator, &frame, now_ns);
            sequence += 1;
        }
    }
    let stats = generator.stats();
    assert_eq!((stats.sent, stats.returned, stats.damaged), (sequence, sequence, 0));
    assert_eq!((stats.out_of_order, stats.latency_max_ns), (0, 0));
}
