use proptest::prelude::*;

use super::*;
use crate::eth::steering::key;

/// A frame of 60 bytes, of UDP or TCP over IPv4.
fn frame(protocol: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 46, 0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x12, 0x34, 0, 80, 0, 26, 0, 0, 7, 7, 7, 7, 0x50, 0x10]);
    frame.resize(60, 0);
    frame
}

#[test]
fn what_no_look_depends_on_may_change() {
    for (protocol, skipped) in [(17, 34..38), (17, 40..42), (6, 34..46), (6, 48..54)] {
        let mut recent = Recent::default();
        let mut frame = frame(protocol);
        let number = recent.parse(&frame).number;
        for at in [18, 19, 24, 25, 56].into_iter().chain(skipped) {
            frame[at] ^= 0xff;
            assert_eq!(recent.parse(&frame).number, number, "{protocol}: byte {at}");
        }
        for at in 0..34 {
            if !matches!(at, 18 | 19 | 24 | 25) {
                frame[at] ^= 1;
                assert_ne!(recent.parse(&frame).number, number, "{protocol}: byte {at}");
                frame[at] ^= 1;
                recent.parse(&frame);
            }
        }
        let longer = [frame.as_slice(), &[0]].concat();
        assert_ne!(recent.parse(&frame).number, recent.parse(&longer).number);
    }
}

#[test]
fn what_cannot_be_compared_is_read_each_time() {
    let mut recent = Recent::default();
    for frame in [&frame(1)[..], &frame(17)[..55], &[]] {
        let number = recent.parse(frame).number;
        assert_eq!(recent.parse(frame).number, number + 1);
    }
}

proptest! {
    /// Whatever changes from one frame to the next, what is said is what a look at it says.
    #[test]
    fn the_same_number_means_the_same_headers(
        is_tcp: bool,
        changes in prop::collection::vec((0_usize..60, any::<u8>()), 1..40),
    ) {
        let mut recent = Recent::default();
        let mut frame = frame(if is_tcp { 6 } else { 17 });
        let mut before = None;
        for (at, value) in changes {
            frame[at] = value;
            let Numbered { packet, number } = recent.parse(&frame);
            prop_assert_eq!(*packet, Packet::parse(&frame));
            let mut key = key(&frame, packet);
            // The ports of TCP and of UDP.
            (key[5], key[7]) = (0, 0);
            let now = (number, key);
            if let Some((known, expected)) = before && known == number {
                prop_assert_eq!(now.1, expected);
            }
            before = Some(now);
        }
    }
}
