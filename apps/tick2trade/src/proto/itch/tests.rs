use zerocopy::IntoBytes;

use super::*;

/// Reference 11.1.11: locate 1, 34200000000123 ns, order 1, buys 100 AAPL at 150.34.
const ADD: [u8; 36] = [
    0x41, 0x00, 0x01, 0x00, 0x00, 0x1f, 0x1a, 0xce, 0xd9, 0xf0, 0x7b, 0, 0, 0, 0, 0, 0, 0, 1, 0x42,
    0x00, 0x00, 0x00, 0x64, 0x41, 0x41, 0x50, 0x4c, 0x20, 0x20, 0x20, 0x20, 0x00, 0x16, 0xf0, 0xa8,
];

#[test]
fn the_golden_order_is_read_and_written() {
    let Message::AddOrder(add) = Message::parse(&ADD).unwrap() else { panic!() };
    assert_eq!(add.header.locate.get(), 1);
    assert_eq!(add.header.timestamp_ns(), 34_200_000_000_123);
    assert_eq!((add.reference.get(), add.side, add.shares.get()), (1, b'B', 100));
    assert_eq!((add.stock.to_string().as_str(), add.price.get()), ("AAPL", 1_503_400));
    let built = AddOrder {
        header: Header::new(AddOrder::KIND, 1, 34_200_000_000_123),
        reference: 1.into(),
        side: b'B',
        shares: 100.into(),
        stock: Text::new("AAPL").unwrap(),
        price: 1_503_400.into(),
    };
    assert_eq!(built.as_bytes(), ADD);
}

/// The bytes that hexadecimal digits are, whatever blanks stand between.
fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|digit| !digit.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// Every message byte by byte, typed from the reference's table: no two fields of one have a value
/// in common, nor is one the other way around.
#[test]
fn every_message_has_its_golden_bytes() {
    let header = |kind| Header { tracking: 9.into(), ..Header::new(kind, 7, 34_200_000_000_123) };
    fn text<const N: usize>(text: &str) -> Text<N> {
        Text::new(text).unwrap()
    }
    let mut seen = Vec::new();
    macro_rules! golden {
        ($name:ident, $message:expr, $hex:literal) => {
            let (message, golden) = ($message, bytes($hex));
            assert_eq!(message.as_bytes(), golden, stringify!($name));
            assert_eq!(Message::parse(&golden), Ok(Message::$name(&message)));
            seen.push((golden[0], golden.len()));
        };
    }
    golden!(
        SystemEvent,
        SystemEvent { header: header(SystemEvent::KIND), event: b'Q' },
        "53 0007 0009 1f1aced9f07b 51"
    );
    golden!(
        StockDirectory,
        StockDirectory {
            header: header(StockDirectory::KIND),
            stock: text("AAPL"),
            market_category: b'Q',
            financial_status: b'N',
            round_lot_size: 100.into(),
            round_lots_only: b'Y',
            issue_classification: b'C',
            issue_subtype: text("Z"),
            authenticity: b'P',
            short_sale_threshold: b'D',
            ipo: b'I',
            luld_tier: b'1',
            etp: b'E',
            etp_leverage: 3.into(),
            inverse: b'V'
        },
        "52 0007 0009 1f1aced9f07b 4141504c20202020 51 4e 00000064 59 43 5a20 50 44 49 31 45 \
         00000003 56"
    );
    golden!(
        TradingAction,
        TradingAction {
            header: header(TradingAction::KIND),
            stock: text("AAPL"),
            state: b'P',
            reserved: b' ',
            reason: text("LUDP")
        },
        "48 0007 0009 1f1aced9f07b 4141504c20202020 50 20 4c554450"
    );
    golden!(
        RegSho,
        RegSho { header: header(RegSho::KIND), stock: text("AAPL"), action: b'2' },
        "59 0007 0009 1f1aced9f07b 4141504c20202020 32"
    );
    golden!(
        ParticipantPosition,
        ParticipantPosition {
            header: header(ParticipantPosition::KIND),
            participant: text("FRMA"),
            stock: text("AAPL"),
            primary: b'Y',
            mode: b'N',
            state: b'A'
        },
        "4c 0007 0009 1f1aced9f07b 46524d41 4141504c20202020 59 4e 41"
    );
    golden!(
        BreakerLevels,
        BreakerLevels {
            header: header(BreakerLevels::KIND),
            level_1: 0x0000_000a_d39d_b100.into(),
            level_2: 0x0000_000a_20cd_5300.into(),
            level_3: 0x0000_0009_502f_9000.into()
        },
        "56 0007 0009 1f1aced9f07b 0000000ad39db100 0000000a20cd5300 00000009502f9000"
    );
    golden!(
        BreakerStatus,
        BreakerStatus { header: header(BreakerStatus::KIND), level: b'2' },
        "57 0007 0009 1f1aced9f07b 32"
    );
    golden!(
        IpoQuoting,
        IpoQuoting {
            header: header(IpoQuoting::KIND),
            stock: text("NEWCO"),
            release_time_s: 36_000.into(),
            qualifier: b'A',
            price: 170_000.into()
        },
        "4b 0007 0009 1f1aced9f07b 4e4557434f202020 00008ca0 41 00029810"
    );
    golden!(
        AuctionCollar,
        AuctionCollar {
            header: header(AuctionCollar::KIND),
            stock: text("AAPL"),
            reference_price: 1_503_400.into(),
            upper: 1_578_500.into(),
            lower: 1_428_300.into(),
            extension: 2.into()
        },
        "4a 0007 0009 1f1aced9f07b 4141504c20202020 0016f0a8 00181604 0015cb4c 00000002"
    );
    golden!(
        OperationalHalt,
        OperationalHalt {
            header: header(OperationalHalt::KIND),
            stock: text("AAPL"),
            market: b'B',
            action: b'H'
        },
        "68 0007 0009 1f1aced9f07b 4141504c20202020 42 48"
    );
    let order = AddOrder {
        header: header(AddOrder::KIND),
        reference: 0x0102_0304_0506_0708.into(),
        side: b'S',
        shares: 300.into(),
        stock: text("AAPL"),
        price: 1_503_400.into(),
    };
    golden!(
        AddOrder,
        order,
        "41 0007 0009 1f1aced9f07b 0102030405060708 53 0000012c 4141504c20202020 0016f0a8"
    );
    golden!(
        AddAttributed,
        AddAttributed {
            order: AddOrder { header: header(b'F'), ..order },
            attribution: text("FRMA")
        },
        "46 0007 0009 1f1aced9f07b 0102030405060708 53 0000012c 4141504c20202020 0016f0a8 \
         46524d41"
    );
    golden!(
        Executed,
        Executed {
            header: header(Executed::KIND),
            reference: 0x0102_0304_0506_0708.into(),
            shares: 60.into(),
            match_number: 0x1112_1314_1516_1718.into()
        },
        "45 0007 0009 1f1aced9f07b 0102030405060708 0000003c 1112131415161718"
    );
    golden!(
        ExecutedAtPrice,
        ExecutedAtPrice {
            header: header(ExecutedAtPrice::KIND),
            reference: 0x0102_0304_0506_0708.into(),
            shares: 60.into(),
            match_number: 0x1112_1314_1516_1718.into(),
            printable: b'N',
            price: 1_503_300.into()
        },
        "43 0007 0009 1f1aced9f07b 0102030405060708 0000003c 1112131415161718 4e 0016f044"
    );
    golden!(
        Cancelled,
        Cancelled {
            header: header(Cancelled::KIND),
            reference: 0x0102_0304_0506_0708.into(),
            shares: 40.into()
        },
        "58 0007 0009 1f1aced9f07b 0102030405060708 00000028"
    );
    golden!(
        Deleted,
        Deleted { header: header(Deleted::KIND), reference: 0x0102_0304_0506_0708.into() },
        "44 0007 0009 1f1aced9f07b 0102030405060708"
    );
    golden!(
        Replaced,
        Replaced {
            header: header(Replaced::KIND),
            reference: 0x0102_0304_0506_0708.into(),
            new_reference: 0x2122_2324_2526_2728.into(),
            shares: 250.into(),
            price: 1_503_500.into()
        },
        "55 0007 0009 1f1aced9f07b 0102030405060708 2122232425262728 000000fa 0016f10c"
    );
    golden!(
        Trade,
        Trade {
            header: header(Trade::KIND),
            reference: 0x0102_0304_0506_0708.into(),
            side: b'B',
            shares: 75.into(),
            stock: text("AAPL"),
            price: 1_503_450.into(),
            match_number: 0x1112_1314_1516_1718.into()
        },
        "50 0007 0009 1f1aced9f07b 0102030405060708 42 0000004b 4141504c20202020 0016f0da \
         1112131415161718"
    );
    golden!(
        CrossTrade,
        CrossTrade {
            header: header(CrossTrade::KIND),
            shares: 0x3132_3334_3536_3738.into(),
            stock: text("AAPL"),
            price: 1_500_000.into(),
            match_number: 0x1112_1314_1516_1718.into(),
            cross: b'O'
        },
        "51 0007 0009 1f1aced9f07b 3132333435363738 4141504c20202020 0016e360 \
         1112131415161718 4f"
    );
    golden!(
        BrokenTrade,
        BrokenTrade {
            header: header(BrokenTrade::KIND),
            match_number: 0x1112_1314_1516_1718.into()
        },
        "42 0007 0009 1f1aced9f07b 1112131415161718"
    );
    golden!(
        Imbalance,
        Imbalance {
            header: header(Imbalance::KIND),
            paired: 5_000.into(),
            imbalance: 700.into(),
            direction: b'B',
            stock: text("AAPL"),
            far_price: 1_504_000.into(),
            near_price: 1_503_900.into(),
            reference_price: 1_503_800.into(),
            cross: b'C',
            variation: b'L'
        },
        "49 0007 0009 1f1aced9f07b 0000000000001388 00000000000002bc 42 4141504c20202020 \
         0016f300 0016f29c 0016f238 43 4c"
    );
    golden!(
        RetailInterest,
        RetailInterest {
            header: header(RetailInterest::KIND),
            stock: text("AAPL"),
            interest: b'A'
        },
        "4e 0007 0009 1f1aced9f07b 4141504c20202020 41"
    );
    golden!(
        DirectListing,
        DirectListing {
            header: header(DirectListing::KIND),
            stock: text("NEWCO"),
            open_eligibility: b'Y',
            minimum_price: 300_000.into(),
            maximum_price: 500_000.into(),
            near_price: 400_000.into(),
            near_time_ns: 34_200_000_000_123.into(),
            lower_collar: 350_000.into(),
            upper_collar: 450_000.into()
        },
        "4f 0007 0009 1f1aced9f07b 4e4557434f202020 59 000493e0 0007a120 00061a80 \
         00001f1aced9f07b 00055730 0006ddd0"
    );
    assert_eq!(seen, MESSAGES, "all of them");
}

/// Letters and lengths, typed once more from the reference's table.
#[test]
fn every_message_has_its_letter_and_length() {
    let table = "S12 R39 H25 Y20 L26 V35 W12 K28 J35 h21 A36 F40 E31 C36 X23 D19 U35 P44 Q40 \
                 B19 I50 N20 O48";
    let ours: Vec<_> =
        MESSAGES.iter().map(|(kind, len)| format!("{}{len}", *kind as char)).collect();
    assert_eq!(ours.join(" "), table);
}

/// A byte at each field's first place is read from that field and from no other.
#[test]
fn fields_lie_where_the_table_says() {
    let mut bytes = [0; 50];
    for (at, byte) in (0_u8..).zip(&mut bytes) {
        *byte = at;
    }
    macro_rules! places {
        ($($name:ident { $($field:ident: $at:literal)* })*) => { $(
            let message = $name::read_from_bytes(&bytes[..$name::LEN]).unwrap();
            $(assert_eq!(
                message.$field.as_bytes()[0], $at, concat!(stringify!($name.$field)),
            );)*
        )* };
    }
    places! {
        Executed { reference: 11 shares: 19 match_number: 23 }
        ExecutedAtPrice { reference: 11 shares: 19 match_number: 23 printable: 31 price: 32 }
        Cancelled { reference: 11 shares: 19 }
        Replaced { reference: 11 new_reference: 19 shares: 27 price: 31 }
        Trade { reference: 11 side: 19 shares: 20 stock: 24 price: 32 match_number: 36 }
        CrossTrade { shares: 11 stock: 19 price: 27 match_number: 31 cross: 39 }
        Imbalance { paired: 11 imbalance: 19 direction: 27 stock: 28 far_price: 36
            near_price: 40 reference_price: 44 cross: 48 variation: 49 }
        AddAttributed { attribution: 36 }
        DirectListing { open_eligibility: 19 minimum_price: 20 maximum_price: 24 near_price: 28
            near_time_ns: 32 lower_collar: 40 upper_collar: 44 }
    }
}

#[test]
fn a_known_message_of_another_length_is_refused_and_an_unknown_one_is_not() {
    for &(kind, len) in MESSAGES {
        let mut bytes = vec![0; len + 1];
        bytes[0] = kind;
        assert!(Message::parse(&bytes[..len]).is_ok());
        for wrong in [&bytes[..len - 1], &bytes[..]] {
            let expected = Malformed::Length { kind, got: wrong.len(), expected: len };
            if wrong.len() >= HEADER_LEN {
                assert_eq!(Message::parse(wrong), Err(expected));
            }
        }
    }
    let Ok(Message::Unknown(header)) = Message::parse(&[b'z'; 70]) else { panic!() };
    assert_eq!(header.kind, b'z');
    assert_eq!(Message::parse(&[b'z'; 10]), Err(Malformed::NoHeader(10)));
    assert_eq!(
        Malformed::Length { kind: b'A', got: 35, expected: 36 }.to_string(),
        "message 'A' has 35 bytes, and 36 are right"
    );
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        let _ = Message::parse(&bytes);
    }
}
