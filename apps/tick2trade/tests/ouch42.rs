//! OUCH 4.2 before a stranger: tshark's dissector reads every field of every message where we write
//! it. Skipped where tshark and text2pcap are not installed.

use std::fmt::Write as _;
use std::process::Command;

use ferrocx_tick2trade::proto::ouch42::{
    Answer, CancelOrder, EnterOrder, MARKET_HOURS, ModifyOrder, ReplaceOrder, Request,
    SYSTEM_HOURS, answers,
};
use ferrocx_tick2trade::proto::{Text, soup};
use zerocopy::IntoBytes;

/// Port of the exchange.
const PORT: &str = "9000";
const AT_NS: u64 = 34_200_000_000_123;

fn text<const N: usize>(text: &str) -> Text<N> {
    Text::new(text).unwrap()
}

/// Each request, and what tshark is to read in it.
fn requests() -> Vec<(Vec<u8>, &'static str)> {
    let enter = EnterOrder {
        kind: EnterOrder::KIND,
        token: text("T1"),
        side: b'B',
        shares: 100.into(),
        stock: text("AAPL"),
        price: 1_503_400.into(),
        time_in_force: MARKET_HOURS.into(),
        firm: text("FIRM"),
        display: b'Y',
        capacity: b'P',
        intermarket_sweep: b'N',
        minimum_quantity: 5.into(),
        cross: b'O',
        customer_type: b'R',
    };
    let replace = ReplaceOrder {
        kind: ReplaceOrder::KIND,
        existing: text("T1"),
        replacement: text("T2"),
        shares: 101.into(),
        price: 1_503_500.into(),
        time_in_force: SYSTEM_HOURS.into(),
        display: b'A',
        intermarket_sweep: b'Y',
        minimum_quantity: 6.into(),
    };
    let cancel = CancelOrder { kind: CancelOrder::KIND, token: text("T2"), shares: 40.into() };
    let modify =
        ModifyOrder { kind: ModifyOrder::KIND, token: text("T2"), side: b'T', shares: 41.into() };
    vec![
        (
            enter.as_bytes().to_vec(),
            "buy_sell_indicator=B capacity=P cross_type=O customer_type=R display=Y firm=FIRM \
             iso_eligible=N min_quantity=5 order_token=T1 packet_type=O price=1503400 shares=100 \
             stock=AAPL tif=99998",
        ),
        (
            replace.as_bytes().to_vec(),
            "display=A existing_order_token=T1 iso_eligible=Y min_quantity=6 packet_type=U \
             price=1503500 replacement_order_token=T2 shares=101 tif=99999",
        ),
        (cancel.as_bytes().to_vec(), "order_token=T2 packet_type=X shares=40"),
        (modify.as_bytes().to_vec(), "buy_sell_indicator=T order_token=T2 packet_type=M shares=41"),
    ]
}

/// An order as it was taken or replaced.
fn order(kind: u8, token: &str) -> answers::Order {
    answers::Order {
        kind,
        timestamp_ns: AT_NS.into(),
        token: text(token),
        side: b'S',
        shares: 100.into(),
        stock: text("AAPL"),
        price: 1_503_400.into(),
        time_in_force: MARKET_HOURS.into(),
        firm: text("FIRM"),
        display: b'Y',
        reference: 77.into(),
        capacity: b'P',
        intermarket_sweep: b'N',
        minimum_quantity: 5.into(),
        cross: b'O',
        state: b'L',
    }
}

/// Answers about orders as a whole.
fn answers_about_orders() -> Vec<(Vec<u8>, &'static str)> {
    let (timestamp_ns, token) = (AT_NS.into(), text("T1"));
    let event =
        answers::SystemEvent { kind: answers::SystemEvent::KIND, timestamp_ns, event: b'E' };
    let accepted = answers::Accepted { order: order(b'A', "T1"), bbo_weight: b'2' };
    let replaced =
        answers::Replaced { order: order(b'U', "T2"), previous: token, bbo_weight: b'3' };
    let reason = b'X';
    let rejected = answers::Rejected { kind: answers::Rejected::KIND, timestamp_ns, token, reason };
    let pending =
        answers::CancelPending { kind: answers::CancelPending::KIND, timestamp_ns, token };
    let refused =
        answers::CancelRejected { kind: answers::CancelRejected::KIND, timestamp_ns, token };
    let moved = answers::PriorityUpdate {
        kind: answers::PriorityUpdate::KIND,
        timestamp_ns,
        token,
        price: 1_503_400.into(),
        display: b'Y',
        reference: 78.into(),
    };
    let modified = answers::Modified {
        kind: answers::Modified::KIND,
        timestamp_ns,
        token,
        side: b'T',
        shares: 40.into(),
    };
    vec![
        (event.as_bytes().to_vec(), "event_code=E packet_type=S"),
        (
            accepted.as_bytes().to_vec(),
            "bbo_weight_indicator=2 buy_sell_indicator=S capacity=P cross_type=O display=Y \
             firm=FIRM iso_eligible=N min_quantity=5 order_reference_number=77 order_state=L \
             order_token=T1 packet_type=A price=1503400 shares=100 stock=AAPL tif=99998",
        ),
        (
            replaced.as_bytes().to_vec(),
            "bbo_weight_indicator=3 buy_sell_indicator=S capacity=P cross_type=O display=Y \
             firm=FIRM iso_eligible=N min_quantity=5 order_reference_number=77 order_state=L \
             packet_type=U previous_order_token=T1 price=1503400 replacement_order_token=T2 \
             shares=100 stock=AAPL tif=99998",
        ),
        (rejected.as_bytes().to_vec(), "order_token=T1 packet_type=J reject_reason=X"),
        (pending.as_bytes().to_vec(), "order_token=T1 packet_type=P"),
        (refused.as_bytes().to_vec(), "order_token=T1 packet_type=I"),
        (
            moved.as_bytes().to_vec(),
            "display=Y order_reference_number=78 order_token=T1 packet_type=T price=1503400",
        ),
        (
            modified.as_bytes().to_vec(),
            "buy_sell_indicator=T order_token=T1 packet_type=M shares=40",
        ),
    ]
}

/// Answers about shares that traded or were taken off.
fn answers_about_shares() -> Vec<(Vec<u8>, &'static str)> {
    let (timestamp_ns, token, match_number) = (AT_NS.into(), text("T1"), 9.into());
    let (price, shares, liquidity) = (1_503_400.into(), 60.into(), b'A');
    let cancelled = answers::Cancelled {
        kind: answers::Cancelled::KIND,
        timestamp_ns,
        token,
        shares,
        reason: b'U',
    };
    let prevented = answers::SelfMatchCancelled {
        kind: answers::SelfMatchCancelled::KIND,
        timestamp_ns,
        token,
        shares,
        reason: b'Q',
        prevented: 30.into(),
        price,
        liquidity,
    };
    let executed = answers::Executed {
        kind: answers::Executed::KIND,
        timestamp_ns,
        token,
        shares,
        price,
        liquidity,
        match_number,
    };
    let by_reference = answers::ExecutedByReference {
        kind: answers::ExecutedByReference::KIND,
        timestamp_ns,
        token,
        shares,
        price,
        liquidity,
        match_number,
        reference_price: 1_503_300.into(),
        reference_kind: b'I',
    };
    let corrected = answers::Corrected {
        kind: answers::Corrected::KIND,
        timestamp_ns,
        token,
        shares,
        price,
        liquidity,
        match_number,
        reason: b'N',
    };
    let broken = answers::Broken {
        kind: answers::Broken::KIND,
        timestamp_ns,
        token,
        match_number,
        reason: b'E',
    };
    vec![
        (
            cancelled.as_bytes().to_vec(),
            "cancel_reason=U decrement_shares=60 order_token=T1 packet_type=C",
        ),
        (
            prevented.as_bytes().to_vec(),
            "cancel_reason=Q decrement_shares=60 execution_price=1503400 liquidity_flag=A \
             order_token=T1 packet_type=D quantity_prevented_from_trading=30",
        ),
        (
            executed.as_bytes().to_vec(),
            "executed_shares=60 execution_price=1503400 liquidity_flag=A match_number=9 \
             order_token=T1 packet_type=E",
        ),
        // tshark prints the kind of price as a number: 73 is `I`.
        (
            by_reference.as_bytes().to_vec(),
            "executed_shares=60 execution_price=1503400 liquidity_flag=A match_number=9 \
             order_token=T1 packet_type=G reference_price=1503300 reference_price_type=73",
        ),
        (
            corrected.as_bytes().to_vec(),
            "executed_shares=60 execution_price=1503400 liquidity_flag=A match_number=9 \
             order_token=T1 packet_type=F trade_correction_reason=N",
        ),
        (
            broken.as_bytes().to_vec(),
            "broken_trade_reason=E match_number=9 order_token=T1 packet_type=B",
        ),
    ]
}

/// What a program printed; `None` if it is not installed.
fn run(program: &str, args: &[&str]) -> Option<String> {
    let output = match Command::new(program).args(args).output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: {program} does not run here: {error}");
            return None;
        }
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {said}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Names of all fields that tshark's dissector knows, but for the time of day.
fn fields() -> Option<Vec<String>> {
    let listed = run("tshark", &["-G", "fields"])?;
    let names = listed.lines().filter_map(|line| line.split('\t').nth(2));
    let ours = names.filter(|name| name.starts_with("ouch.") && *name != "ouch.timestamp");
    Some(ours.map(str::to_owned).collect())
}

#[test]
fn tshark_reads_every_field_of_every_message() {
    let answers = || answers_about_orders().into_iter().chain(answers_about_shares());
    let kinds = |messages: &[(u8, usize)]| {
        let mut messages = messages.to_vec();
        messages.sort_unstable();
        messages
    };
    let seen = |messages: Vec<(Vec<u8>, &str)>| {
        kinds(&messages.iter().map(|(bytes, _)| (bytes[0], bytes.len())).collect::<Vec<_>>())
    };
    assert_eq!(seen(requests()), kinds(Request::MESSAGES));
    assert_eq!(seen(answers().collect()), kinds(Answer::MESSAGES));

    let Some(fields) = fields() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (dump, capture) = (path("dump.txt"), path("capture.pcap"));
    let requests = requests().into_iter().map(|it| ("O", soup::PacketType::UNSEQUENCED, it));
    let answers = answers().map(|it| ("I", soup::PacketType::SEQUENCED, it));
    let (mut text, mut expected) = (String::new(), Vec::new());
    for (direction, kind, (message, read)) in requests.chain(answers) {
        let mut packet = Vec::new();
        soup::push(&mut packet, kind, &message);
        write!(text, "{direction}\n000000").unwrap();
        packet.iter().for_each(|byte| write!(text, " {byte:02x}").unwrap());
        text.push_str("\n\n");
        expected.push(read.to_owned());
    }
    std::fs::write(&dump, text).unwrap();
    let ports = format!("40000,{PORT}");
    if run("text2pcap", &["-q", "-D", "-T", &ports, &dump, &capture]).is_none() {
        return;
    }
    let decode = format!("tcp.port=={PORT},soupbintcp");
    let mut args = vec!["-r", &capture, "-d", &decode, "-T", "fields", "-E", "separator=|"];
    fields.iter().for_each(|field| args.extend(["-e", field]));
    let Some(said) = run("tshark", &args) else { return };
    let read = said.lines().map(|line| {
        let values = line.split('|').map(|value| value.trim().trim_matches('\''));
        let named = fields.iter().zip(values).filter(|(_, value)| !value.is_empty());
        let mut named: Vec<_> =
            named.map(|(name, value)| format!("{}={value}", &name["ouch.".len()..])).collect();
        named.sort_unstable();
        named.join(" ")
    });
    assert_eq!(read.collect::<Vec<_>>(), expected);
}
