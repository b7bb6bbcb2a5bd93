#![allow(clippy::cast_possible_truncation, reason = "test data")]

use super::super::{Link, link};
use super::*;

fn bad(config: ImpairConfig, seed: u64) -> (Impair<Link>, Link) {
    let (near, far) = link(1 << 20);
    (Impair::new(near, config, SplitMix64::new(seed)), far)
}

/// Sends `count` frames that carry their number; returns the numbers that arrive, and their FCS.
fn run(config: ImpairConfig, seed: u64, count: u32) -> (Vec<(u32, Fcs)>, ImpairStats) {
    let (mut near, mut far) = bad(config, seed);
    let mut arrived = Vec::new();
    let mut take = |far: &mut Link, now_ns| {
        while let Some(frame) = far.receive(now_ns) {
            let number = frame.bytes[..4].try_into().expect("four bytes");
            arrived.push((u32::from_be_bytes(number), frame.fcs));
        }
    };
    for number in 0..count {
        let now_ns = u64::from(number) * 100;
        let into = near.reserve(60).expect("room");
        into.fill(0x5a);
        into[..4].copy_from_slice(&number.to_be_bytes());
        near.commit(now_ns, Fcs::Good);
        near.flush(now_ns);
        take(&mut far, now_ns);
    }
    let end_ns = u64::from(count) * 100 + REORDER_TIMEOUT_NS + config.delay_ns + config.jitter_ns;
    near.flush(end_ns);
    take(&mut far, end_ns);
    (arrived, near.stats())
}

#[test]
fn a_perfect_cable_changes_nothing() {
    let (arrived, _) = run(ImpairConfig::default(), 1, 1000);
    assert!(arrived.iter().map(|frame| frame.0).eq(0..1000));
}

/// What a sender can make a cable hold ends at so many bytes, and does not stay.
#[test]
fn frames_on_the_way_have_a_limit_in_bytes() {
    const LONGEST: usize = 9974;
    let config = ImpairConfig { delay_ns: 1_000_000, ..ImpairConfig::default() };
    let (mut near, mut far) = bad(config, 1);
    for len in [60, LONGEST, 60] {
        for _ in 0..20_000 {
            near.reserve(len).expect("room").fill(1);
            near.commit(0, Fcs::Good);
        }
        let held: usize = near.pending.iter().map(|frame| frame.bytes.capacity()).sum();
        assert_eq!(held, near.pending_bytes);
        // The last one may have room for as much again.
        assert!(held <= MAX_BYTES + LONGEST, "{held}");
    }
    let on_the_way = near.pending.len() as u64;
    assert_eq!(near.stats().overflowed + on_the_way, 60_000);
    assert!(near.pending_bytes > MAX_BYTES - LONGEST);
    for _ in 0..on_the_way {
        near.flush(2_000_000);
        while far.receive(2_000_000).is_some() {}
    }
    assert_eq!((near.pending.len(), near.pending_bytes), (0, 0));
    assert!(near.spare.len() <= MAX_SPARE);
}

#[test]
fn everything_can_be_lost() {
    let config = ImpairConfig { loss_ppm: 1_000_000, ..ImpairConfig::default() };
    let (arrived, stats) = run(config, 1, 100);
    assert_eq!((arrived.len(), stats.lost, stats.sent), (0, 100, 100));
}

#[test]
fn counts_add_up_and_a_seed_repeats_itself() {
    let config = ImpairConfig {
        loss_ppm: 100_000,
        duplicate_ppm: 50_000,
        corrupt_ppm: 20_000,
        silent_corrupt_ppm: 20_000,
        reorder_ppm: 30_000,
        reorder_frames: 3,
        delay_ns: 5_000,
        jitter_ns: 2_000,
        congestion_ppm: 0,
        max_frames: 0,
    };
    let (first, stats) = run(config, 42, 10_000);
    assert_eq!(first.len() as u64, stats.sent - stats.lost + stats.duplicated);
    let bad = first.iter().filter(|frame| frame.1 == Fcs::Bad).count() as u64;
    // A damaged frame may also be repeated.
    assert!(bad >= stats.corrupted && stats.corrupted > 100);
    assert!(stats.silently_corrupted > 100 && stats.reordered > 100 && stats.lost > 500);
    assert_eq!(run(config, 42, 10_000).0, first);
    assert_ne!(run(config, 43, 10_000).0, first);
}

#[test]
fn a_held_back_frame_is_overtaken_by_exactly_so_many() {
    let config =
        ImpairConfig { reorder_ppm: 1_000_000, reorder_frames: 2, ..ImpairConfig::default() };
    let (mut near, mut far) = bad(config, 1);
    let mut numbers = Vec::new();
    for number in 0..4_u8 {
        // Only the first frame is held back.
        near.config.reorder_ppm = if number == 0 { 1_000_000 } else { 0 };
        near.reserve(60).expect("room").fill(number);
        near.commit(0, Fcs::Good);
    }
    near.flush(0);
    while let Some(frame) = far.receive(0) {
        numbers.push(frame.bytes[0]);
    }
    assert_eq!(numbers, [1, 2, 0, 3]);
}

#[test]
fn a_delayed_frame_arrives_when_it_is_due_and_not_before() {
    let config = ImpairConfig { delay_ns: 500, ..ImpairConfig::default() };
    let (mut near, mut far) = bad(config, 1);
    near.reserve(60).expect("room").fill(1);
    near.commit(1000, Fcs::Good);
    near.flush(1499);
    assert!(far.receive(1499).is_none());
    near.flush(1500);
    assert!(far.receive(1500).is_some());
}

#[test]
fn a_full_cable_drops() {
    let config = ImpairConfig { delay_ns: 1, max_frames: 2, ..ImpairConfig::default() };
    let (_, stats) = run(ImpairConfig { delay_ns: 1_000_000, ..config }, 1, 5);
    assert_eq!(stats.overflowed, 3);
}

#[test]
fn congestion_marks_who_can_tell_of_it() {
    let config = ImpairConfig { congestion_ppm: 1_000_000, ..ImpairConfig::default() };
    let send = |frame: &[u8]| {
        let (mut near, mut far) = bad(config, 1);
        near.reserve(frame.len()).expect("room").copy_from_slice(frame);
        near.commit(0, Fcs::Good);
        near.flush(0);
        (far.receive(0).expect("a frame").bytes.to_vec(), near.stats().marked)
    };
    let v4 = |tos: u8, checksum: [u8; 2]| {
        let mut frame = vec![0; 60];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14..24].copy_from_slice(&[0x45, tos, 0, 46, 0, 0, 0x40, 0, 64, 17]);
        frame[24..26].copy_from_slice(&checksum);
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame
    };
    // One more in the type of service is one less in the checksum.
    assert_eq!(send(&v4(2, [0x26, 0xbb])), (v4(3, [0x26, 0xba]), 1));
    assert_eq!(send(&v4(0, [0x26, 0xbd])), (v4(0, [0x26, 0xbd]), 0), "it cannot tell");
    let v6 = |class: u8| {
        let mut frame = vec![0; 60];
        frame[12..20].copy_from_slice(&[0x81, 0, 0x60, 5, 0x86, 0xdd, 0x60, class << 4]);
        frame
    };
    assert_eq!(send(&v6(1)), (v6(3), 1));
    assert_eq!(send(&v6(0)), (v6(0), 0));
    assert_eq!(send(&[0x5a; 60]), (vec![0x5a; 60], 0), "no IP");
    assert_eq!(send(&[0x81; 13]).1, 0, "cut short");
}

#[test]
fn text_says_what_goes_wrong_and_nothing_else() {
    let config = ImpairConfig {
        loss_ppm: 10_000,
        duplicate_ppm: 1,
        corrupt_ppm: 2,
        silent_corrupt_ppm: 3,
        reorder_ppm: 1_000_000,
        reorder_frames: 4,
        delay_ns: 5_000_000_000,
        jitter_ns: 6,
        congestion_ppm: 7,
        max_frames: 0,
    };
    let text = config.to_string();
    assert_eq!(text.parse(), Ok(config), "{text}");
    assert!(text.starts_with("loss=10000,") && text.contains("delay=5000000000"), "{text}");
    assert_eq!(
        ("".parse(), ImpairConfig::default().to_string()),
        (Ok(ImpairConfig::default()), String::new())
    );
    for wrong in
        ["loss", "loss=", "loss=1%", "loss=1000001", "lose=1", "delay=-1", "loss=1;delay=2"]
    {
        let error = wrong.parse::<ImpairConfig>().unwrap_err().to_string();
        assert!(error.contains(wrong), "{error}");
    }
}
