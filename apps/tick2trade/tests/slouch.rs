//! OUCH 5.0 before a stranger, the crate `slouch`: every request that it makes is read as it was
//! meant, every answer that we write it reads, and optional fields go both ways.

use ferrocx_tick2trade::proto::ouch::{self, Answer, Request, Tag, answers};
use ferrocx_tick2trade::proto::{Text, ouch::Fixed};
use slouch::msg::{OuchRequest, OuchResponse, TagValue};
use slouch::types::{self, Mpid, StockSymbol, UserRefNum};

const AT_NS: u64 = 34_200_000_000_123;

fn text<const N: usize>(text: &str) -> Text<N> {
    Text::new(text).unwrap()
}

/// A reference number, which slouch takes from bytes alone.
fn number(number: u32) -> UserRefNum {
    UserRefNum::parse(&number.to_be_bytes()).unwrap().1
}

/// What slouch makes of an answer of ours.
fn theirs(answer: &impl Fixed, tags: &[(Tag, &[u8])]) -> OuchResponse {
    let mut bytes = [0; 128];
    let len = ouch::write(answer, tags, &mut bytes).unwrap();
    assert!(Answer::parse(&bytes[..len]).is_ok());
    OuchResponse::parse(&bytes[..len]).unwrap().1
}

#[test]
fn we_read_every_request_that_slouch_makes() {
    let (firm, symbol) = (Mpid::from("FIRM").unwrap(), StockSymbol::from("AAPL").unwrap());
    let replace = slouch::replace! {
        old_ref_num: number(7),
        new_ref_num: number(8),
        quantity: 250_u32,
        price: types::Price::new(1_503_400).unwrap(),
        time_in_force: types::TimeInForce::ImmediateOrCancel,
        display: types::Display::Hidden,
        intermarket_sweep: true,
        order_token: types::OrderToken::from("NAME").unwrap(),
    };
    let bytes = replace.encode();
    let Ok((Request::ReplaceOrder(read), _)) = Request::parse(&bytes) else { panic!("{bytes:?}") };
    let expected = ouch::ReplaceOrder {
        kind: ouch::ReplaceOrder::KIND,
        old_urn: 7.into(),
        urn: 8.into(),
        quantity: 250.into(),
        price: 1_503_400.into(),
        time_in_force: ouch::time_in_force::IOC,
        display: b'N',
        intermarket_sweep: b'Y',
        client_order_id: text("NAME"),
    };
    assert_eq!(*read, expected);

    let modify = slouch::modify! {
        user_ref_num: number(7), side: types::Side::SellShort, quantity: 40_u32,
    };
    let bytes = modify.encode();
    let Ok((Request::ModifyOrder(read), _)) = Request::parse(&bytes) else { panic!("{bytes:?}") };
    assert_eq!((read.urn.get(), read.side, read.quantity.get()), (7, b'T', 40));

    let cancel = slouch::mass_cancel! { user_ref_num: number(9), firm: firm, symbol: symbol };
    let bytes = cancel.encode();
    let Ok((Request::MassCancel(read), _)) = Request::parse(&bytes) else { panic!("{bytes:?}") };
    assert_eq!((read.urn.get(), read.firm, read.symbol), (9, text("FIRM"), text("AAPL")));

    let disable = slouch::disable_entry! { user_ref_num: number(10), firm: firm };
    let bytes = disable.encode();
    let Ok((Request::DisableOrderEntry(read), _)) = Request::parse(&bytes) else {
        panic!("{bytes:?}")
    };
    assert_eq!((read.urn.get(), read.firm), (10, text("FIRM")));

    let enable = slouch::enable_entry! { user_ref_num: number(11), firm: firm };
    let bytes = enable.encode();
    let Ok((Request::EnableOrderEntry(read), _)) = Request::parse(&bytes) else {
        panic!("{bytes:?}")
    };
    assert_eq!((read.urn.get(), read.firm), (11, text("FIRM")));

    let bytes = slouch::account_query!().encode();
    assert!(matches!(Request::parse(&bytes), Ok((Request::AccountQuery(_), _))), "{bytes:?}");
}

#[test]
fn we_read_the_optional_fields_that_slouch_adds() {
    let mut request: OuchRequest = slouch::replace! {
        old_ref_num: number(7),
        new_ref_num: number(8),
        quantity: 250_u32,
        price: types::Price::new(1_503_400).unwrap(),
        time_in_force: types::TimeInForce::Day,
        display: types::Display::Visible,
        intermarket_sweep: false,
        order_token: types::OrderToken::from("NAME").unwrap(),
    };
    for option in [TagValue::MinQty(100), TagValue::MaxFloor(200), TagValue::UserRefIndex(5)] {
        request.add_option(option).unwrap();
    }
    let bytes = request.encode();
    let (_, appendage) = Request::parse(&bytes).unwrap();
    let expected: [(Tag, &[u8]); 3] = [
        (Tag::MINIMUM_QUANTITY, &[0, 0, 0, 100]),
        (Tag::MAX_FLOOR, &[0, 0, 0, 200]),
        (Tag::USER_REF_INDEX, &[5]),
    ];
    for (tag, value) in expected {
        assert_eq!(appendage.get(tag), Some(value), "{tag:?}");
    }
    assert_eq!(appendage.iter().count(), expected.len());
}

#[test]
fn slouch_reads_the_optional_fields_that_we_add() {
    let executed = answers::Executed {
        kind: answers::Executed::KIND,
        timestamp_ns: AT_NS.into(),
        urn: 7.into(),
        quantity: 60.into(),
        price: 1_503_400.into(),
        liquidity: b'R',
        match_number: 9.into(),
    };
    // One at a time: slouch 0.0.3 stops behind the first.
    let fields: [(Tag, &[u8], TagValue); 2] = [
        (Tag::SECONDARY_REFERENCE, &[0, 0, 0, 0, 0, 0, 0, 77], TagValue::SecondaryOrdRefNum(77)),
        (Tag::USER_REF_INDEX, &[5], TagValue::UserRefIndex(5)),
    ];
    for (tag, value, expected) in fields {
        let OuchResponse::OrderExecuted(read) = theirs(&executed, &[(tag, value)]) else {
            panic!("{tag:?}")
        };
        assert_eq!(read.options()[..], [expected]);
    }
}

#[test]
fn slouch_reads_what_became_of_an_order() {
    let (timestamp_ns, urn) = (AT_NS.into(), 7.into());
    let replaced = answers::Replaced {
        kind: answers::Replaced::KIND,
        timestamp_ns,
        old_urn: urn,
        urn: 8.into(),
        side: b'S',
        quantity: 100.into(),
        symbol: text("AAPL"),
        price: 1_503_400.into(),
        time_in_force: b'0',
        display: b'Y',
        reference: 77.into(),
        capacity: b'P',
        intermarket_sweep: b'N',
        cross: b'N',
        state: b'D',
        client_order_id: text("NAME"),
    };
    let OuchResponse::OrderReplaced(read) = theirs(&replaced, &[]) else { panic!() };
    assert_eq!((read.old_ref_num(), read.new_ref_num()), (number(7), number(8)));
    assert_eq!((read.side(), read.quantity()), (types::Side::Sell, 100));
    assert_eq!((read.order_ref_num(), read.order_state()), (77, types::OrderState::Dead));
    assert_eq!(read.price(), types::Price::new(1_503_400).unwrap());

    let prevented = answers::SelfMatchCancelled {
        kind: answers::SelfMatchCancelled::KIND,
        timestamp_ns,
        urn,
        quantity: 40.into(),
        reason: b'Q',
        prevented: 30.into(),
        price: 1_503_400.into(),
        liquidity: b'A',
        strategy: b'O',
    };
    let OuchResponse::AiqCanceled(read) = theirs(&prevented, &[]) else { panic!() };
    assert_eq!((read.user_ref_num(), read.decrement_shares()), (number(7), 40));
    assert_eq!((read.quantity_prevented(), read.liquidity()), (30, types::Liquidity::Added));

    let reason = b'E';
    let (kind, match_number, client_order_id) = (answers::Broken::KIND, 9.into(), text("NAME"));
    let broken = answers::Broken { kind, timestamp_ns, urn, match_number, reason, client_order_id };
    let OuchResponse::BrokenTrade(read) = theirs(&broken, &[]) else { panic!() };
    assert_eq!((read.user_ref_num(), read.match_number()), (number(7), 9));
    assert_eq!(read.reason(), types::BrokenReason::Erroneous);

    let (kind, reason) = (answers::Rejected::KIND, 0x1d.into());
    let rejected = answers::Rejected { kind, timestamp_ns, urn, reason, client_order_id };
    let OuchResponse::OrderRejected(read) = theirs(&rejected, &[]) else { panic!() };
    assert_eq!(read.user_ref_num(), number(7));

    let pending = answers::CancelPending { kind: answers::CancelPending::KIND, timestamp_ns, urn };
    let OuchResponse::CancelPending(read) = theirs(&pending, &[]) else { panic!() };
    assert_eq!(read.user_ref_num(), number(7));

    let refused =
        answers::CancelRejected { kind: answers::CancelRejected::KIND, timestamp_ns, urn };
    let OuchResponse::CancelRejected(read) = theirs(&refused, &[]) else { panic!() };
    assert_eq!(read.user_ref_num(), number(7));
}

#[test]
fn slouch_reads_what_the_exchange_did_by_itself_and_what_it_says_of_the_day() {
    let (timestamp_ns, urn) = (AT_NS.into(), 7.into());
    let moved = answers::PriorityUpdate {
        kind: answers::PriorityUpdate::KIND,
        timestamp_ns,
        urn,
        price: 1_503_400.into(),
        display: b'A',
        reference: 78.into(),
    };
    let OuchResponse::OrderPriorityUpdate(read) = theirs(&moved, &[]) else { panic!() };
    assert_eq!((read.user_ref_num(), read.order_ref_num()), (number(7), 78));
    assert_eq!(read.display(), types::Display::Attributable);

    let (kind, side, quantity) = (answers::Modified::KIND, b'E', 40.into());
    let modified = answers::Modified { kind, timestamp_ns, urn, side, quantity };
    let OuchResponse::OrderModified(read) = theirs(&modified, &[]) else { panic!() };
    assert_eq!((read.side(), read.quantity()), (types::Side::SellShortExempt, 40));

    let (kind, reason) = (answers::Restated::KIND, b'P');
    let restated = answers::Restated { kind, timestamp_ns, urn, reason };
    let OuchResponse::OrderRestated(read) = theirs(&restated, &[]) else { panic!() };
    assert_eq!((read.user_ref_num(), read.reason()), (number(7), types::RestateReason::Update));

    let (kind, firm, symbol) = (answers::MassCancelAnswered::KIND, text("FIRM"), text("AAPL"));
    let answered = answers::MassCancelAnswered { kind, timestamp_ns, urn, firm, symbol };
    let OuchResponse::MassCancelResponse(read) = theirs(&answered, &[]) else { panic!() };
    assert_eq!((read.user_ref_num(), read.firm()), (number(7), Mpid::from("FIRM").unwrap()));
    assert_eq!(read.symbol(), StockSymbol::from("AAPL").unwrap());

    let kind = answers::DisableAnswered::KIND;
    let disabled = answers::DisableAnswered { kind, timestamp_ns, urn, firm };
    let OuchResponse::DisableOrderEntryResponse(read) = theirs(&disabled, &[]) else { panic!() };
    assert_eq!((read.user_ref_num(), read.firm()), (number(7), Mpid::from("FIRM").unwrap()));

    let kind = answers::EnableAnswered::KIND;
    let enabled = answers::EnableAnswered { kind, timestamp_ns, urn, firm };
    let OuchResponse::EnableOrderEntryResponse(read) = theirs(&enabled, &[]) else { panic!() };
    assert_eq!((read.user_ref_num(), read.firm()), (number(7), Mpid::from("FIRM").unwrap()));

    let known = answers::AccountQueryAnswered {
        kind: answers::AccountQueryAnswered::KIND,
        timestamp_ns,
        next_urn: 90.into(),
    };
    let OuchResponse::AccountQueryResponse(read) = theirs(&known, &[]) else { panic!() };
    assert_eq!(read.next_user_ref_num(), number(90));

    let (kind, event) = (answers::SystemEvent::KIND, b'E');
    let day = answers::SystemEvent { kind, timestamp_ns, event };
    let OuchResponse::SystemEvent(read) = theirs(&day, &[]) else { panic!() };
    assert_eq!(read.event_code(), types::EventCode::EndOfDay);
}
