//! The feed as lines and a server make it, at random.

use proptest::prelude::*;

use super::*;

proptest! {
    /// Two lines that lose, repeat and reorder; a server that answers some requests in part. Every
    /// message comes once and in order, or is said to be lost.
    #[test]
    fn nothing_is_missed_doubled_or_out_of_order(
        cuts in prop::collection::vec((1_u64..6, 0_u8..8, 0_u8..8), 1..60),
        swaps in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        answers: Vec<u8>,
    ) {
        let mut feed = Feed::new(ArbiterConfig { window: 16, per_request: 4, ..small() });
        let mut packets = Vec::new();
        let mut first = 1;
        for (count, a, b) in cuts {
            packets.extend((a != 0).then_some((Source::A, first, count)));
            packets.extend((b != 0).then_some((Source::B, first, count)));
            first += count;
        }
        for swap in swaps {
            if packets.len() > 1 {
                let at = swap.index(packets.len() - 1);
                packets.swap(at, at + 1);
            }
        }
        let mut said = Vec::new();
        let mut now = 0;
        let mut answers = answers.into_iter();
        let mut step = |feed: &mut Feed, said: &mut Vec<String>, now: &mut u64| {
            *now += 300 * US;
            let request = feed.poll(*now);
            said.push(feed.heard.take());
            if let (Some((wanted, count)), Some(answer)) = (request, answers.next())
                && answer % 4 != 0
            {
                let count = u64::from(count).min(u64::from(answer % 4)).min(first - wanted);
                said.push(feed.receive(Source::Retransmission, wanted, count, *now));
            }
        };
        for (source, number, count) in packets {
            said.push(feed.receive(source, number, count, now));
            step(&mut feed, &mut said, &mut now);
        }
        let end = mold::end_of_session(session("S"), first);
        for line in [Source::A, Source::B] {
            said.push(feed.bytes(line, end.as_bytes(), now));
        }
        while feed.arbiter.has_gap() {
            step(&mut feed, &mut said, &mut now);
        }
        let mut next = 1;
        let said = said.join(" ");
        let mut words = said.split_whitespace();
        for word in words.by_ref() {
            if let Some(lost) = word.strip_prefix('-') {
                let (start, count) = lost.split_once('+').unwrap();
                prop_assert_eq!(start.parse::<u64>().unwrap(), next);
                next += count.parse::<u64>().unwrap();
            } else if let Ok(number) = word.parse::<u64>() {
                prop_assert_eq!(number, next);
                next += 1;
            } else {
                prop_assert_eq!(word, format!("end{first}"));
                break;
            }
        }
        prop_assert_eq!(next, first);
        prop_assert_eq!(words.next(), None);
    }
}
