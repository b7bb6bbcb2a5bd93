//! Code written by others reads what we write, and writes what we read: crates `itch5` (ITCH 5.0,
//! every message) and `slouch` (OUCH 5.0).

use std::fmt::Debug;
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
    &[u8]: |bytes| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    Text<4>: |text| text.0.as_slice().number();
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

/// Letters that itch5 has names for, and keeps as they are where it has none. Three of its types
/// cannot be printed: authenticity, mode of a market maker, reason of a trading state.
fn same_letters<L, T: From<L> + Debug>(theirs: T, ours: L, field: &str) {
    assert_eq!(format!("{theirs:?}"), format!("{:?}", T::from(ours)), "{field}");
}

macro_rules! compare {
    ($($on:ident: $theirs:ident.$locate:ident = $ours:ident {
        $($getter:ident = $field:ident)* $(; $($letters:ident = $letter:ident $(.$inner:tt)?)*)?
    })*) => {
        impl MessageHandler for Compare<'_> { $(
            fn $on(&mut self, message: &theirs::$theirs) -> ControlFlow<()> {
                let Ok(itch::Message::$ours(ours)) = itch::Message::parse(self.bytes) else {
                    panic!("{:?} is not ours", self.bytes)
                };
                let header = itch::Header::ref_from_prefix(self.bytes).expect("a header").0;
                assert_eq!(header.locate.get(), message.$locate());
                assert_eq!(header.tracking.get(), message.tracking_number());
                assert_eq!(header.timestamp_ns(), message.timestamp().to_u64());
                $(assert_eq!(
                    ours.$field.number(), message.$getter().number(),
                    concat!(stringify!($ours.$field)),
                );)*
                $($(same_letters(
                    message.$letters(), ours.$letter $(.$inner)?,
                    concat!(stringify!($ours.$letter)),
                );)*)?
                let _ = ours;
                self.seen += 1;
                ControlFlow::Continue(())
            }
        )* }
    };
}

compare! {
    on_system_event: SystemEvent.stock_locate = SystemEvent {
        ; event_code = event
    }
    on_stock_directory: StockDirectory.stock_locate = StockDirectory {
        stock = stock round_lot_size = round_lot_size etp_leverage_factor = etp_leverage
        ; market_category = market_category financial_status_indicator = financial_status
        round_lots_only = round_lots_only issue_classification = issue_classification
        issue_sub_type = issue_subtype.0
        short_sale_threshold_indicator = short_sale_threshold ipo_flag = ipo
        luld_reference_price_tier = luld_tier etp_flag = etp inverse_indicator = inverse
    }
    on_stock_trading_action: StockTradingAction.stock_locate = TradingAction {
        stock = stock reserved = reserved
        ; trading_state = state
    }
    on_reg_sho_restriction: RegSHORestriction.locate_code = RegSho {
        stock = stock
        ; reg_sho_action = action
    }
    on_market_participant_position: MarketParticipantPosition.stock_locate = ParticipantPosition {
        mpid = participant stock = stock
        ; primary_market_maker = primary market_participant_state = state
    }
    on_mwcb_decline_level: MWCBDeclineLevel.stock_locate = BreakerLevels {
        level_1 = level_1 level_2 = level_2 level_3 = level_3
    }
    on_mwcb_status: MWCBStatus.stock_locate = BreakerStatus {
        ; breached_level = level
    }
    on_quoting_period_update: QuotingPeriodUpdate.stock_locate = IpoQuoting {
        stock = stock ipo_quotation_release_time = release_time_s ipo_price = price
        ; ipo_quotation_release_qualifier = qualifier
    }
    on_luld_auction_collar: LULDAuctionCollar.stock_locate = AuctionCollar {
        stock = stock auction_collar_reference_price = reference_price
        upper_auction_collar_price = upper lower_auction_collar_price = lower
        auction_collar_extension = extension
    }
    on_operational_halt: OperationalHalt.stock_locate = OperationalHalt {
        stock = stock
        ; market_code = market operational_halt_action = action
    }
    on_add_order_no_mpid_attribution: AddOrderNoMPIDAttribution.stock_locate = AddOrder {
        order_reference_number = reference shares = shares stock = stock price = price
        ; buy_sell_indicator = side
    }
    on_order_executed: OrderExecuted.stock_locate = Executed {
        order_reference_number = reference executed_shares = shares match_number = match_number
    }
    on_order_executed_with_price: OrderExecutedWithPrice.stock_locate = ExecutedAtPrice {
        order_reference_number = reference executed_shares = shares match_number = match_number
        execution_price = price
        ; printable = printable
    }
    on_order_cancel: OrderCancel.stock_locate = Cancelled {
        order_reference_number = reference cancelled_shares = shares
    }
    on_order_delete: OrderDelete.stock_locate = Deleted {
        order_reference_number = reference
    }
    on_order_replace: OrderReplace.stock_locate = Replaced {
        original_order_reference_number = reference new_order_reference_number = new_reference
        shares = shares price = price
    }
    on_trade: Trade.stock_locate = Trade {
        order_reference_number = reference shares = shares stock = stock price = price
        match_number = match_number
        ; buy_sell_indicator = side
    }
    on_cross_trade: CrossTrade.stock_locate = CrossTrade {
        shares = shares stock = stock cross_price = price match_number = match_number
        ; cross_type = cross
    }
    on_broken_trade: BrokenTrade.stock_locate = BrokenTrade {
        match_number = match_number
    }
    on_net_order_imbalance_indicator: NetOrderImbalanceIndicator.stock_locate = Imbalance {
        paired_shares = paired imbalance_shares = imbalance stock = stock far_price = far_price
        near_price = near_price current_reference_price = reference_price
        ; imbalance_direction = direction cross_type = cross price_variation_indicator = variation
    }
    on_retail_price_improvement_indicator:
        RetailPriceImprovementIndicator.stock_locate = RetailInterest {
        stock = stock
        ; interest_flag = interest
    }
    on_direct_listing_with_capital_raise_price_discovery:
        DirectListingwithCapitalRaisePriceDiscovery.stock_locate = DirectListing {
        stock = stock minimum_allowable_price = minimum_price
        maximum_allowable_price = maximum_price near_execution_price = near_price
        near_execution_time = near_time_ns lower_price_range_collar = lower_collar
        upper_price_range_collar = upper_collar
        ; open_eligibility_status = open_eligibility
    }
}

/// itch5 takes a message of any kind but `F`, and finds in it the numbers and letters that we find.
fn compare_with_itch5(body: &[u8]) {
    let framed = [&(body.len() as u16).to_be_bytes()[..], body].concat();
    let mut compare = Compare { bytes: body, seen: 0 };
    Parser::new(&framed).parse_stream(&mut compare).expect("itch5 takes it");
    assert_eq!(compare.seen, 1);
}

/// The same of an `F`.
fn compare_attributed_with_itch5(body: &[u8]) {
    struct Attributed(Option<[u64; 5]>, Option<theirs::BuySellIndicator>);
    impl MessageHandler for Attributed {
        fn on_add_order_with_mpid_attribution(
            &mut self,
            message: &theirs::AddOrderWithMPIDAttribution,
        ) -> ControlFlow<()> {
            let reference = message.order_reference_number();
            let price = message.price().number();
            let locate = message.stock_locate().into();
            let attribution = message.attribution().number();
            self.0 = Some([locate, reference, message.shares().into(), price, attribution]);
            self.1 = Some(message.buy_sell_indicator());
            ControlFlow::Continue(())
        }
    }
    let mut seen = Attributed(None, None);
    let framed = [&[0, 40][..], body].concat();
    Parser::new(&framed).parse_stream(&mut seen).expect("itch5 takes it");
    let Ok(itch::Message::AddAttributed(ours)) = itch::Message::parse(body) else { panic!() };
    let order = &ours.order;
    let (locate, shares) = (order.header.locate.get(), order.shares.get());
    let numbers = [locate.into(), order.reference.get(), shares.into(), order.price.get().into()];
    let attribution = ours.attribution.number();
    assert_eq!(seen.0, Some([numbers[0], numbers[1], numbers[2], numbers[3], attribution]));
    same_letters(seen.1.expect("a side"), order.side, "side");
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
