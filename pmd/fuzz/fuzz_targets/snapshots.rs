//! Any bytes as a snapshot and its end, in pieces and again, beside a feed that goes on: nothing is
//! told of the market and no order leaves before the snapshot is whole, the feed goes on where the
//! end says, and nothing panics.
#![no_main]

use ferrocx_fuzz::{ItchFields, itch_message};
use ferrocx_tick2trade::book::BooksConfig;
use ferrocx_tick2trade::engine::{Engine, EngineConfig, Snapshot};
use ferrocx_tick2trade::feed::{ArbiterConfig, Source, Start};
use ferrocx_tick2trade::orders::{OrderEvent, OrdersConfig};
use ferrocx_tick2trade::proto::{Text, mold};
use ferrocx_tick2trade::strategy::{Desk, MarketEvent, Outbox, Strategy, Taker};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, arbitrary::Arbitrary)]
enum Step {
    /// A message of the snapshot, by its number.
    Message(u8, ItchFields),
    /// The snapshot's end, which names a message.
    End(u16),
    /// An end that names one far away.
    FarEnd(u64),
    /// A message of any bytes.
    Raw(u8, Vec<u8>),
    /// A packet of the feed: its line, session, first message and messages.
    Feed(bool, bool, u16, Vec<ItchFields>),
    /// Time passes, in us.
    Wait(u16),
}

/// Takes what is offered, and hears nothing before there are books.
struct Late {
    taker: Taker,
    has_books: bool,
}

impl Strategy for Late {
    fn on_market(&mut self, event: MarketEvent, desk: &mut Desk<'_>) {
        self.has_books |= matches!(event, MarketEvent::Joined | MarketEvent::NewSession);
        assert!(self.has_books, "{event:?}");
        self.taker.on_market(event, desk);
    }

    fn on_order(&mut self, _: OrderEvent, _: &mut Desk<'_>) {}
}

/// Counts what leaves.
#[derive(Default)]
struct Wire(u32);

impl Outbox for Wire {
    fn send(&mut self, _: &[u8]) -> bool {
        self.0 += 1;
        true
    }
}

fuzz_target!(|steps: Vec<Step>| {
    // The name that `itch_message` gives every security.
    let symbols = vec![Text([0; 8])];
    let config = EngineConfig {
        feed: ArbiterConfig {
            start: Start::Held,
            window: 16,
            attempts: 2,
            max_jump: 1000,
            ..ArbiterConfig::default()
        },
        books: BooksConfig { books: 2, orders: 16, levels: 4, ..BooksConfig::default() },
        orders: OrdersConfig { symbols, capacity: 4, ..OrdersConfig::default() },
    };
    let strategy = Late { taker: Taker::new(0, u32::MAX, 10), has_books: false };
    let mut engine = Engine::new(config, strategy).unwrap();
    let (mut wire, mut now) = (Wire::default(), 0);
    for step in steps {
        let has_begun = engine.arbiter().next() != 0;
        let (number, message, end) = match step {
            Step::Message(number, fields) => (number, itch_message(fields), None),
            Step::End(next) => (0, end(next.into()), Some(u64::from(next))),
            Step::FarEnd(next) => (0, end(next), Some(next)),
            Step::Raw(number, bytes) => (number, bytes, None),
            Step::Feed(line, other_session, first, messages) => {
                let session = Text::new(if other_session { "T" } else { "S" }).unwrap();
                let mut bytes = [0; 4096];
                let built = mold::Builder::new(&mut bytes, session, first.into());
                let mut built = built.expect("a header fits");
                for fields in messages {
                    let _ = built.push(&itch_message(fields));
                }
                let source = if line { Source::A } else { Source::B };
                engine.feed(source, built.finish(), now, &mut wire);
                continue;
            }
            Step::Wait(us) => {
                now += u64::from(us) * 1000;
                engine.poll(now, &mut wire);
                continue;
            }
        };
        // Books that may be wrong are given up for a snapshot that begins.
        let has_begun = has_begun && !(number == 1 && engine.wants_snapshot());
        let broken = engine.stats().broken_snapshots;
        match engine.snapshot(number.into(), &message, now, &mut wire) {
            Snapshot::Whole if has_begun => {}
            Snapshot::Whole => {
                let joined_at = engine.arbiter().stats().joined_at;
                assert!(end.is_none_or(|end| end == joined_at) && joined_at != 0);
                assert!(engine.arbiter().next() >= joined_at && engine.strategy().has_books);
            }
            Snapshot::Broken => {
                assert_eq!((engine.stats().broken_snapshots, has_begun), (broken + 1, false));
                assert_eq!(engine.arbiter().next(), 0);
            }
            Snapshot::GoesOn => assert!(end.is_none() && !has_begun),
        }
        assert!(wire.0 == 0 || engine.strategy().has_books);
    }
    engine.books().check().unwrap();
});

/// The end of a snapshot behind which the feed goes on from this message.
fn end(next: u64) -> Vec<u8> {
    let mut end = b"G".to_vec();
    end.extend(Text::<20>::number(next).expect("64 bits have 20 digits").0);
    end
}
