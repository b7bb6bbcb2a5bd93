//! Any bytes as packets of two lines of market data: messages come once and in order, books keep
//! their sums, and nothing panics.
#![no_main]

use ferrocx_fuzz::{ItchFields, itch_message};
use ferrocx_tick2trade::book::{Books, BooksConfig};
use ferrocx_tick2trade::feed::{Arbiter, ArbiterConfig, Event, Source, Start};
use ferrocx_tick2trade::proto::{Text, itch::Message, mold};
use libfuzzer_sys::fuzz_target;

/// One packet: where from, when, its header in small numbers, its messages.
#[derive(Debug, arbitrary::Arbitrary)]
struct Input {
    line: u8,
    after_us: u16,
    other_session: bool,
    first: u16,
    /// Kind of each message, its reference, another one, shares and price, all small.
    messages: Vec<ItchFields>,
    /// Bytes in place of all of that.
    raw: Option<Vec<u8>>,
}

fuzz_target!(|inputs: Vec<Input>| {
    let config = ArbiterConfig {
        start: Start::Live,
        window: 16,
        attempts: 2,
        max_jump: 1000,
        ..ArbiterConfig::default()
    };
    let mut arbiter = Arbiter::new(config).unwrap();
    let config = BooksConfig { books: 2, orders: 16, levels: 4, ..BooksConfig::default() };
    let mut books = Books::new(config).unwrap();
    let (mut now, mut next) = (0, None);
    let mut deliver = |event: Event<'_>| match event {
        Event::Message { number, bytes } => {
            assert_eq!(*next.get_or_insert(number), number);
            next = Some(number + 1);
            if let Ok(message) = Message::parse(bytes) {
                let _ = books.apply(&message);
            }
        }
        Event::Lost { first, count } => {
            assert_eq!(*next.get_or_insert(first), first);
            next = Some(first + count);
        }
        Event::SessionEnded { next: end } => assert!(next.is_none_or(|next| next == end)),
        Event::SessionStarted(_) => next = Some(1),
    };
    for input in inputs {
        now += u64::from(input.after_us) * 1000;
        let source = [Source::A, Source::B, Source::Retransmission][usize::from(input.line % 3)];
        let session = Text::new(if input.other_session { "T" } else { "S" }).unwrap();
        let mut bytes = [0; 4096];
        let built = mold::Builder::new(&mut bytes, session, input.first.into());
        let mut built = built.expect("a header fits");
        for fields in input.messages {
            let _ = built.push(&itch_message(fields));
        }
        let datagram = input.raw.unwrap_or_else(|| built.finish().to_vec());
        if let Ok(packet) = mold::Packet::parse(&datagram) {
            arbiter.receive(source, &packet, now, &mut deliver);
        }
        arbiter.poll(now, &mut deliver);
    }
    books.check().unwrap();
});
