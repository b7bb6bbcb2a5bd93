//! Code written by others reads what we write, and writes what we read: crates `itch5` (ITCH 5.0,
//! every message) and `slouch` (OUCH 5.0).

use std::ops::ControlFlow;

use ferrocx_tick2trade::proto::ouch::{self, Answer, Request, answers};
use ferrocx_tick2trade::proto::{Side, Text, itch};
use itch5::messages::{self as theirs, Price4, Price8, Symbol};
use itch5::{MessageHandler, Parser};
use proptest::prelude::*;
use slouch::msg::{OuchRequest, OuchResponse};
use slouch::types::{self, UserRefNum};
use zerocopy::{FromBytes, IntoBytes};

/// A number as both sides give it.
trait Number {
    fn number(self) -> u64;
}

macro_rules! numbers {
    ($($type:ty: $get:expr;)*) => {
        $(impl Number for $type {
            fn number(self) -> u64 {
                let get: fn($type) -> u64 = $get;
                get(self)
            }
        })*
    };
}

numbers! {
    u8: u64::from;
    u32: u64::from;
    u64: |number| number;
    &Price4: |price| price.into_u32().into();
    &Price8: |price| price.into_u64();
    &Symbol: |symbol| symbol.to_u64();
    zerocopy::big_endian::U32: |number| number.get().into();
    zerocopy::big_endian::U64: |number| number.get();
}

impl Number for Text<8> {
    fn number(self) -> u64 {
        Symbol::read_from_bytes(&self.0).map(|symbol| symbol.to_u64()).expect("eight bytes")
    }
}

/// Compares every message that itch5 hands over with what we read from the same bytes.
struct Compare<'a> {
    bytes: &'a [u8],
    seen: usize,
}

macro_rules! compare {
    ($($on:ident: $theirs:ident = $ours:ident { $($getter:ident = $field:ident)* })*) => {
        impl MessageHandler for Compare<'_> { $(
            fn $on(&mut self, message: &theirs::$theirs) -> ControlFlow<()> {
                let Ok(itch::Message::$ours(ours)) = itch::Message::parse(self.bytes) else {
                    panic!("{:?} is not ours", self.bytes)
                };
                let header = itch::Header::ref_from_prefix(self.bytes).expect("a header").0;
                assert_eq!(header.tracking.get(), message.tracking_number());
                assert_eq!(header.timestamp_ns(), message.timestamp().to_u64());
                $(assert_eq!(
                    ours.$field.number(), message.$getter().number(),
                    concat!(stringify!($ours.$field)),
                );)*
                let _ = ours;
                self.seen += 1;
                ControlFlow::Continue(())
            }
        )* }
    };
}

compare! {
    on_system_event: SystemEvent = SystemEvent {}
    on_stock_directory: StockDirectory = StockDirectory {
        stock = stock round_lot_size = round_lot_size etp_leverage_factor = etp_leverage
    }
    on_stock_trading_action: StockTradingAction = TradingAction {
        stock = stock reserved = reserved
    }
    on_reg_sho_restriction: RegSHORestriction = RegSho { stock = stock }
    on_market_participant_position: MarketParticipantPosition = ParticipantPosition {
        stock = stock
    }
    on_mwcb_decline_level: MWCBDeclineLevel = BreakerLevels {
        level_1 = level_1 level_2 = level_2 level_3 = level_3
    }
    on_mwcb_status: MWCBStatus = BreakerStatus {}
    on_quoting_period_update: QuotingPeriodUpdate = IpoQuoting {
        stock = stock ipo_quotation_release_time = release_time_s ipo_price = price
    }
    on_luld_auction_collar: LULDAuctionCollar = AuctionCollar {
        stock = stock auction_collar_reference_price = reference_price
        upper_auction_collar_price = upper lower_auction_collar_price = lower
        auction_collar_extension = extension
    }
    on_operational_halt: OperationalHalt = OperationalHalt { stock = stock }
    on_add_order_no_mpid_attribution: AddOrderNoMPIDAttribution = AddOrder {
        order_reference_number = reference shares = shares stock = stock price = price
    }
    on_order_executed: OrderExecuted = Executed {
        order_reference_number = reference executed_shares = shares match_number = match_number
    }
    on_order_executed_with_price: OrderExecutedWithPrice = ExecutedAtPrice {
        order_reference_number = reference executed_shares = shares match_number = match_number
        execution_price = price
    }
    on_order_cancel: OrderCancel = Cancelled {
        order_reference_number = reference cancelled_shares = shares
    }
    on_order_delete: OrderDelete = Deleted { order_reference_number = reference }
    on_order_replace: OrderReplace = Replaced {
        original_order_reference_number = reference new_order_reference_number = new_reference
        shares = shares price = price
    }
    on_trade: Trade = Trade {
        order_reference_number = reference shares = shares stock = stock price = price
        match_number = match_number
    }
    on_cross_trade: CrossTrade = CrossTrade {
        shares = shares stock = stock cross_price = price match_number = match_number
    }
    on_broken_trade: BrokenTrade = BrokenTrade { match_number = match_number }
    on_net_order_imbalance_indicator: NetOrderImbalanceIndicator = Imbalance {
        paired_shares = paired imbalance_shares = imbalance stock = stock far_price = far_price
        near_price = near_price current_reference_price = reference_price
    }
    on_retail_price_improvement_indicator: RetailPriceImprovementIndicator = RetailInterest {
        stock = stock
    }
    on_direct_listing_with_capital_raise_price_discovery:
        DirectListingwithCapitalRaisePriceDiscovery = DirectListing {
        stock = stock minimum_allowable_price = minimum_price
        maximum_allowable_price = maximum_price near_execution_price = near_price
        near_execution_time = near_time_ns lower_price_range_collar = lower_collar
        upper_price_range_collar = upper_collar
    }
}

/// itch5 takes a message of any kind but `F`, and finds in it the numbers that we find.
fn compare_with_itch5(body: &[u8]) {
    let framed = [&(body.len() as u16).to_be_bytes()[..], body].concat();
    let mut compare = Compare { bytes: body, seen: 0 };
    Parser::new(&framed).parse_stream(&mut compare).expect("itch5 takes it");
    assert_eq!(compare.seen, 1);
}

/// The same of an `F`.
fn compare_attributed_with_itch5(body: &[u8]) {
    struct Attributed(Option<[u64; 4]>);
    impl MessageHandler for Attributed {
        fn on_add_order_with_mpid_attribution(
            &mut self,
            message: &theirs::AddOrderWithMPIDAttribution,
        ) -> ControlFlow<()> {
            let reference = message.order_reference_number();
            let price = message.price().number();
            let locate = message.stock_locate().into();
            self.0 = Some([locate, reference, message.shares().into(), price]);
            ControlFlow::Continue(())
        }
    }
    let mut seen = Attributed(None);
    let framed = [&[0, 40][..], body].concat();
    Parser::new(&framed).parse_stream(&mut seen).expect("itch5 takes it");
    let Ok(itch::Message::AddAttributed(ours)) = itch::Message::parse(body) else { panic!() };
    let order = &ours.order;
    let (locate, shares) = (order.header.locate.get(), order.shares.get());
    let numbers = [locate.into(), order.reference.get(), shares.into(), order.price.get().into()];
    assert_eq!(seen.0, Some(numbers));
}

/// A day that a stranger wrote, in the file that `FERROCX_ITCH_DAY` names: `scripts/net/books.sh`
/// has itchfeed write one.
#[test]
fn itch5_reads_a_strangers_day_as_we_do() {
    let Ok(path) = std::env::var("FERROCX_ITCH_DAY") else {
        println!("skipped: FERROCX_ITCH_DAY names no day (scripts/net/books.sh does)");
        return;
    };
    let day = std::fs::read(path).unwrap();
    let (mut rest, mut read) = (&day[..], 0);
    while let Some((length, behind)) = rest.split_first_chunk() {
        let (body, behind) = behind.split_at(usize::from(u16::from_be_bytes(*length)));
        match body[0] {
            b'F' => compare_attributed_with_itch5(body),
            _ => compare_with_itch5(body),
        }
        (rest, read) = (behind, read + 1);
    }
    assert!(rest.is_empty() && read > 0);
    println!("itch5: {read} messages, in each the numbers that we find");
}

proptest! {
    /// Messages of every kind and of random bytes: itch5 takes each by its length, and finds in it
    /// the numbers that we find.
    #[test]
    fn itch5_reads_every_message_as_we_do(random in prop::collection::vec(any::<u8>(), 64)) {
        for &(kind, len) in itch::MESSAGES.iter().filter(|message| message.0 != b'F') {
            compare_with_itch5(&[&[kind][..], &random[1..len]].concat());
        }
    }

    /// The attributed order, whose fields lie one level deeper with us.
    #[test]
    fn itch5_reads_an_attributed_order_as_we_do(random in prop::collection::vec(any::<u8>(), 39)) {
        compare_attributed_with_itch5(&[&[b'F'][..], &random].concat());
    }
}

#[test]
fn slouch_encodes_the_orders_that_we_build() {
    let enter = slouch::enter! {
        user_ref_num: UserRefNum::new(),
        side: types::Side::Sell,
        quantity: 69_u32,
        symbol: types::StockSymbol::from("STONKS").expect("a symbol"),
        price: types::Price::new(35_001).expect("a price"),
        time_in_force: types::TimeInForce::Day,
        display: types::Display::Visible,
        capacity: types::Capacity::Agency,
        intermarket_sweep: false,
        cross_type: types::CrossType::ContinuousMarket,
        order_token: types::OrderToken::from("NAME").expect("a token"),
    };
    let ours = ouch::EnterOrder {
        urn: 1.into(),
        quantity: 69.into(),
        symbol: Text::new("STONKS").expect("a symbol"),
        price: 35_001.into(),
        capacity: b'A',
        client_order_id: Text::new("NAME").expect("a token"),
        ..ouch::EnterOrder::new(Side::Sell)
    };
    let mut bytes = [0; 64];
    let len = ouch::write(&ours, &[], &mut bytes).expect("room");
    assert_eq!(enter.encode(), &bytes[..len]);
    let read = Request::parse(&bytes[..len]).expect("an order").0;
    assert_eq!(read, Request::EnterOrder(&ours));

    let cancel: OuchRequest = slouch::cancel! { user_ref_num: UserRefNum::new(), quantity: 5_u32 };
    let encoded = cancel.encode();
    let Ok((Request::CancelOrder(read), _)) = Request::parse(&encoded) else { panic!() };
    assert_eq!((read.urn.get(), read.quantity.get()), (1, 5));
}

fn theirs(answer: &impl ouch::Fixed) -> OuchResponse {
    let mut bytes = [0; 128];
    let len = ouch::write(answer, &[], &mut bytes).expect("room");
    assert!(Answer::parse(&bytes[..len]).is_ok());
    OuchResponse::parse(&bytes[..len]).expect("slouch takes it").1
}

#[test]
fn slouch_reads_the_answers_that_we_write() {
    let executed = answers::Executed {
        kind: answers::Executed::KIND,
        timestamp_ns: 34_200_000_000_123.into(),
        urn: 7.into(),
        quantity: 60.into(),
        price: 1_503_400.into(),
        liquidity: b'R',
        match_number: 9.into(),
    };
    let OuchResponse::OrderExecuted(read) = theirs(&executed) else { panic!() };
    assert_eq!((read.user_ref_num().val(), read.quantity(), read.match_number()), (7, 60, 9));

    let cancelled = answers::Cancelled {
        kind: answers::Cancelled::KIND,
        timestamp_ns: 34_200_000_000_124.into(),
        urn: 7.into(),
        quantity: 40.into(),
        reason: b'U',
    };
    let OuchResponse::OrderCanceled(read) = theirs(&cancelled) else { panic!() };
    assert_eq!((read.user_ref_num().val(), read.quantity()), (7, 40));

    let mut accepted = answers::Accepted::read_from_bytes(&[b' '; 62]).expect("62 bytes");
    accepted = answers::Accepted {
        kind: answers::Accepted::KIND,
        timestamp_ns: 34_200_000_000_125.into(),
        urn: 8.into(),
        side: b'B',
        quantity: 100.into(),
        symbol: Text::new("AAPL").expect("a symbol"),
        price: 1_503_400.into(),
        time_in_force: b'0',
        display: b'Y',
        reference: 77.into(),
        capacity: b'A',
        intermarket_sweep: b'N',
        cross: b'N',
        state: b'L',
        ..accepted
    };
    let OuchResponse::OrderAccepted(read) = theirs(&accepted) else { panic!() };
    assert_eq!((read.user_ref_num().val(), read.quantity()), (8, 100));
    assert_eq!(accepted.as_bytes().len(), 62);
}
