use super::*;
use crate::proto::Side;

const ID: [u8; 14] = *b"ID            ";

/// The bytes that hexadecimal digits stand for; `/` is a client order id.
fn hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in text.split(' ') {
        match word {
            "/" => bytes.extend(ID),
            word => {
                bytes.extend((0..word.len()).step_by(2).map(|at| {
                    u8::from_str_radix(&word[at..at + 2], 16).expect("hexadecimal digits")
                }))
            }
        }
    }
    bytes
}

fn built<T: Fixed>(message: &T, tags: &[(Tag, &[u8])]) -> Vec<u8> {
    let mut bytes = [0xa5; 128];
    let len = write(message, tags, &mut bytes).unwrap();
    bytes[..len].to_vec()
}

/// Reference 11.1.11, every row.
#[test]
fn golden_bytes_both_ways() {
    let golden = hex("4F 00000001 42 00000064 4141504C20202020 000000000016F0A8 30 59 41 4E 4E / \
                      0003 021C05");
    let (Request::EnterOrder(order), appendage) = Request::parse(&golden).unwrap() else {
        panic!()
    };
    assert_eq!((order.urn.get(), order.side, order.quantity.get()), (1, b'B', 100));
    assert_eq!((order.symbol, order.price.get()), (Text::new("AAPL").unwrap(), 1_503_400));
    assert_eq!((order.time_in_force, order.capacity), (time_in_force::DAY, b'A'));
    assert_eq!(appendage.iter().collect::<Vec<_>>(), [(Tag::USER_REF_INDEX, &[5][..])]);
    let made = EnterOrder {
        urn: 1.into(),
        quantity: 100.into(),
        symbol: Text::new("AAPL").unwrap(),
        price: 1_503_400.into(),
        capacity: b'A',
        client_order_id: Text(ID),
        ..EnterOrder::new(Side::Buy)
    };
    assert_eq!(built(&made, &[(Tag::USER_REF_INDEX, &[5])]), golden);

    let golden = hex("41 00001F1ACED9F07B 00000001 42 00000064 4141504C20202020 000000000016F0A8 \
                      30 59 000000000000004D 41 4E 4E 4C / 0000");
    let (Answer::Accepted(accepted), appendage) = Answer::parse(&golden).unwrap() else { panic!() };
    assert_eq!(accepted.timestamp_ns.get(), 34_200_000_000_123);
    assert_eq!((accepted.reference.get(), accepted.state), (77, b'L'));
    assert!(appendage.is_empty());
    assert_eq!(built(accepted, &[]), golden);

    let golden = hex("45 00001F1ACED9F07C 00000001 0000003C 000000000016F0A8 41 0000000000000009 \
                      0000");
    let (Answer::Executed(executed), _) = Answer::parse(&golden).unwrap() else { panic!() };
    assert_eq!((executed.quantity.get(), executed.price.get()), (60, 1_503_400));
    assert_eq!((executed.liquidity, executed.match_number.get()), (b'A', 9));
    assert_eq!(built(executed, &[]), golden);

    let golden = hex("43 00001F1ACED9F07D 00000001 00000028 55");
    let (Answer::Cancelled(cancelled), _) = Answer::parse(&golden).unwrap() else { panic!() };
    assert_eq!((cancelled.quantity.get(), cancelled.reason), (40, b'U'));
    assert_eq!(built(cancelled, &[]), golden);

    let golden = hex("4A 00001F1ACED9F07E 00000002 001D /");
    let (Answer::Rejected(rejected), _) = Answer::parse(&golden).unwrap() else { panic!() };
    assert_eq!((rejected.urn.get(), reject_reason(rejected.reason.get())), (2, Some("price")));
    assert_eq!(built(rejected, &[]), golden);
}

/// Letters and lengths, typed once more from the reference's tables, the appendage's length of two
/// bytes included where it always stands.
#[test]
fn every_message_has_its_letter_and_length() {
    let listed = |messages: &[(u8, usize)]| {
        let words = messages.iter().map(|(kind, len)| format!("{}{len}", *kind as char));
        words.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(listed(Request::MESSAGES), "O45 U38 X9 M10 C17 D9 E9 Q1");
    assert_eq!(
        listed(Answer::MESSAGES),
        "S10 A62 U66 C18 D32 E34 B36 J29 P13 I13 T30 M18 R14 X25 G17 K17 Q13"
    );
}

/// Each form of each message is read: without appendage, with an empty one, with a field in it.
#[test]
fn both_forms_of_every_message_are_read() {
    let cases = Request::MESSAGES.iter().map(|m| (true, m));
    let cases = cases.chain(Answer::MESSAGES.iter().map(|m| (false, m)));
    for (request, &(kind, len)) in cases {
        let parse =
            |bytes: &[u8]| match request {
                true => Request::parse(bytes)
                    .map(|(_, tags)| tags.get(Tag::USER_REF_INDEX) == Some(&[9])),
                false => Answer::parse(bytes)
                    .map(|(_, tags)| tags.get(Tag::USER_REF_INDEX) == Some(&[9])),
            };
        let fixed = [&[kind][..], &vec![0; len - 1]].concat();
        assert_eq!(parse(&fixed), Ok(false));
        assert_eq!(parse(&[&fixed[..], &[0, 0]].concat()), Ok(false));
        assert_eq!(parse(&[&fixed[..], &[0, 3, 2, 28, 9]].concat()), Ok(true));
        assert_eq!(
            parse(&[&fixed[..], &[0, 4, 2, 28, 9]].concat()),
            Err(Malformed::Appendage { kind })
        );
        assert_eq!(parse(&[&fixed[..], &[0, 1, 0]].concat()), Err(Malformed::Appendage { kind }));
        assert_eq!(parse(&[&fixed[..], &[0]].concat()), Err(Malformed::Appendage { kind }));
        if len > 1 {
            let short = Malformed::Short { kind, got: len - 1, expected: len };
            assert_eq!(parse(&fixed[..len - 1]), Err(short));
        }
    }
    assert_eq!(Request::parse(&[]), Err(Malformed::Empty));
    assert_eq!(Request::parse(b"A"), Err(Malformed::Unknown(b'A')));
    assert_eq!(Answer::parse(b"O"), Err(Malformed::Unknown(b'O')));
}

#[test]
fn fields_of_unknown_tags_are_passed_over_and_those_of_wrong_length_are_not_used() {
    let bytes = hex("51 000A 02C801 03FF0102 021C07");
    let (Request::AccountQuery(_), tags) = Request::parse(&bytes).unwrap() else { panic!() };
    assert_eq!(tags.get(Tag::USER_REF_INDEX), Some(&[7][..]));
    assert_eq!(tags.get(Tag(200)), Some(&[1][..]));
    assert_eq!(format!("{tags:?}"), "{Tag(200): [1], Tag(255): [1, 2], USER_REF_INDEX: [7]}");
    let wrong = hex("51 0004 031C0708");
    assert_eq!(Request::parse(&wrong).unwrap().1.get(Tag::USER_REF_INDEX), None);
}

#[test]
fn what_cannot_be_written_is_refused() {
    let order = EnterOrder::new(Side::Sell);
    assert_eq!(write(&order, &[], &mut [0; 46]), None);
    assert_eq!(write(&order, &[], &mut [0; 47]), Some(47));
    assert_eq!(write(&order, &[(Tag::FIRM, b"FIR")], &mut [0; 64]), None);
    assert_eq!(write(&order, &[(Tag::FIRM, b"FIRM")], &mut [0; 52]), None);
    assert_eq!(write(&order, &[(Tag(99), &[0; 255])], &mut [0; 512]), None);
    let event = SystemEvent { kind: b'S', timestamp_ns: 0.into(), event: b'S' };
    assert_eq!(write(&event, &[(Tag::FIRM, b"FIRM")], &mut [0; 64]), None);
    assert_eq!(write(&event, &[], &mut [0; 64]), Some(10));
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        let _ = (Request::parse(&bytes), Answer::parse(&bytes));
    }

    #[test]
    fn fields_come_back_as_they_were_written(fields: Vec<(u8, Vec<u8>)>) {
        let unknown: Vec<_> = fields
            .iter()
            .map(|(tag, value)| (Tag(tag | 0x80), &value[..value.len().min(30)]))
            .take(20)
            .collect();
        let mut bytes = [0; 1024];
        let len = write(&EnterOrder::new(Side::Buy), &unknown, &mut bytes).unwrap();
        let (_, appendage) = Request::parse(&bytes[..len]).unwrap();
        assert!(appendage.iter().eq(unknown));
    }
}
