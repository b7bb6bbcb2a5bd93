use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;

use ferrocx::model::wire::{Fcs, Received, Wire};
use ferrocx_net::ether::MacAddr;
use ferrocx_net::packet::{Headers, Packet, Transport};
use smoltcp::iface::{self, Interface, SocketHandle, SocketSet};
use smoltcp::phy::Medium;
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use zerocopy::IntoBytes;

use super::card::Card;
use super::*;
use crate::book::{Books, BooksConfig};
use crate::proto::ouch::{Answer, EnterOrder, Request};
use crate::proto::{Side, Text, itch, mold};

fn exchange(securities: usize) -> Exchange {
    let names = ["AAPL", "MSFT", "NVDA"];
    let listed = |name: &&str| ListedSecurity { stock: Text::new(name).unwrap() };
    Exchange::new(names[..securities].iter().map(listed).collect())
}

fn enter(
    exchange: &mut Exchange,
    urn: u32,
    side: Side,
    shares: u32,
    price: u64,
    tif: u8,
) -> Output {
    let order = EnterOrder {
        urn: urn.into(),
        quantity: shares.into(),
        symbol: Text::new("AAPL").unwrap(),
        price: price.into(),
        time_in_force: tif,
        ..EnterOrder::new(side)
    };
    let mut out = Output::default();
    exchange.request(0, &Request::EnterOrder(&order), 0, &mut out);
    out
}

/// Answers and messages as their letters.
fn letters(out: &Output) -> (String, String) {
    let letter = |bytes: &Vec<u8>| bytes[0] as char;
    (out.answers.iter().map(|(_, a)| letter(a)).collect(), out.feed.iter().map(letter).collect())
}

#[test]
fn orders_meet_by_price_and_then_by_time() {
    let mut exchange = exchange(1);
    let mut out = Output::default();
    let mut crowd =
        |shares, price| exchange.crowd_order(1, Side::Sell, shares, price, 0, &mut out).unwrap();
    let [late, first, second] = [crowd(10, 103), crowd(10, 101), crowd(10, 101)];
    let out = enter(&mut exchange, 1, Side::Buy, 15, 103, b'0');
    assert_eq!(letters(&out), ("AEE".into(), "EE".into()));
    assert_eq!(exchange.shares_of(first), None);
    assert_eq!((exchange.shares_of(second), exchange.shares_of(late)), (Some(5), Some(10)));
    let (Answer::Executed(trade), _) = Answer::parse(&out.answers[1].1).unwrap() else { panic!() };
    assert_eq!((trade.quantity.get(), trade.price.get(), trade.liquidity), (10, 101, b'R'));
}

#[test]
fn what_is_left_of_an_order_stands_or_is_cancelled_as_it_says() {
    let mut exchange = exchange(1);
    let out = enter(&mut exchange, 1, Side::Buy, 15, 100, b'3');
    assert_eq!(letters(&out), ("AC".into(), "".into()));
    let out = enter(&mut exchange, 2, Side::Buy, 15, 100, b'0');
    assert_eq!(letters(&out), ("A".into(), "A".into()));
    assert_eq!(exchange.best(1, Side::Buy), Some(100));
    let out = enter(&mut exchange, 2, Side::Buy, 15, 100, b'0');
    assert_eq!(letters(&out), ("".into(), "".into()), "a number that was used");
    let out = enter(&mut exchange, 3, Side::Buy, 0, 100, b'0');
    assert_eq!(letters(&out), ("J".into(), "".into()));
}

/// Reference 11.1.4: what a member asks for counts what traded. An order of 100, of which 40 have,
/// is replaced, cancelled and modified by its total.
#[test]
fn quantities_of_replace_cancel_and_modify_count_what_traded() {
    use crate::proto::ouch::{CancelOrder, ModifyOrder, ReplaceOrder};
    let replace = |quantity: u32| ReplaceOrder {
        kind: ReplaceOrder::KIND,
        old_urn: 1.into(),
        urn: 2.into(),
        quantity: quantity.into(),
        price: 100.into(),
        time_in_force: b'0',
        display: b'Y',
        intermarket_sweep: b'N',
        client_order_id: Text::BLANK,
    };
    let cancel = |quantity: u32| CancelOrder {
        kind: CancelOrder::KIND,
        urn: 1.into(),
        quantity: quantity.into(),
    };
    let modify = |quantity: u32| ModifyOrder {
        kind: ModifyOrder::KIND,
        urn: 1.into(),
        side: b'B',
        quantity: quantity.into(),
    };
    let after = |request: &Request<'_>| {
        let mut exchange = exchange(1);
        enter(&mut exchange, 1, Side::Buy, 100, 100, b'0');
        exchange.crowd_order(1, Side::Sell, 40, 100, 0, &mut Output::default());
        let mut out = Output::default();
        exchange.request(0, request, 0, &mut out);
        let said = out.answers.first().map(|(_, answer)| match Answer::parse(answer).unwrap().0 {
            Answer::Replaced(replaced) => ('U', replaced.quantity.get()),
            Answer::Cancelled(off) => ('C', off.quantity.get()),
            Answer::Modified(modified) => ('M', modified.quantity.get()),
            other => panic!("{other:?}"),
        });
        let stands = exchange.levels(1, Side::Buy).first().map_or(0, |level| level.1);
        (said, stands)
    };
    assert_eq!(after(&Request::ReplaceOrder(&replace(120))), (Some(('U', 80)), 80));
    assert_eq!(after(&Request::ReplaceOrder(&replace(41))), (Some(('U', 1)), 1));
    assert_eq!(
        after(&Request::ReplaceOrder(&replace(40))),
        (Some(('C', 60)), 0),
        "nothing is left"
    );
    assert_eq!(after(&Request::CancelOrder(&cancel(90))), (Some(('C', 10)), 50));
    assert_eq!(after(&Request::CancelOrder(&cancel(30))), (Some(('C', 60)), 0));
    assert_eq!(after(&Request::CancelOrder(&cancel(0))), (Some(('C', 60)), 0));
    assert_eq!(after(&Request::CancelOrder(&cancel(100))), (None, 60), "as many as before");
    assert_eq!(after(&Request::ModifyOrder(&modify(90))), (Some(('M', 50)), 50));
    assert_eq!(after(&Request::ModifyOrder(&modify(40))), (Some(('C', 60)), 0));
    assert_eq!(after(&Request::ModifyOrder(&modify(101))), (None, 60), "never more");
}

/// What the feed says of a crowd's day is what the exchange has.
#[test]
fn books_built_from_the_feed_are_the_exchanges() {
    let mut exchange = exchange(3);
    let mut crowd = Crowd::new(CrowdConfig::default(), 3);
    let mut books = Books::new(BooksConfig::default()).unwrap();
    let mut kinds = std::collections::BTreeSet::new();
    let mut out = Output::default();
    exchange.open(0, 0, &mut out);
    for step in 0..20_000 {
        for message in out.feed.drain(..) {
            kinds.insert(message[0] as char);
            books.apply(&itch::Message::parse(&message).unwrap()).unwrap();
        }
        for locate in 1..=3 {
            for side in [Side::Buy, Side::Sell] {
                let best = books.get(locate).and_then(|book| book.best(side));
                assert_eq!(best.map(|level| level.price), exchange.best(locate, side));
            }
            assert!(books.get(locate).is_none_or(|book| !book.is_crossed()));
        }
        crowd.step(&mut exchange, step, &mut out);
    }
    books.check().unwrap();
    let kinds: String = kinds.into_iter().collect();
    assert_eq!(kinds, "ADEHRSUX", "messages of all kinds that it has");
}

#[test]
fn a_publisher_answers_for_what_it_sent_and_nothing_else() {
    let session = Text::new("S").unwrap();
    let mut publisher = Publisher::new(session, 100, 0);
    for number in 0..5_u8 {
        publisher.push(&[number; 30]);
    }
    let first = publisher.next_packet(10).unwrap();
    assert_eq!(mold::Packet::parse(&first).unwrap().count(), 2, "no more fit 100 bytes");
    let answer = |first, count| {
        let answer = publisher.answer(&mold::request(session, first, count))?;
        let packet = mold::Packet::parse(&answer).unwrap();
        Some((packet.sequence(), packet.count()))
    };
    assert_eq!(answer(1, 9), Some((1, 2)));
    assert_eq!(answer(2, 1), Some((2, 1)));
    assert_eq!(answer(3, 1), None, "not sent yet");
    assert_eq!(answer(0, 1), None);
    assert_eq!(answer(u64::MAX, 1), None);
    let other = mold::request(Text::new("T").unwrap(), 1, 1);
    assert_eq!(publisher.answer(&other), None);
}

/// Frames that arrive, and when those left that went out.
#[derive(Debug, Default)]
struct Wires {
    arrive: VecDeque<Vec<u8>>,
    taken: Vec<u8>,
    room: Vec<u8>,
    left: Vec<(u64, Vec<u8>)>,
}

impl Wire for Wires {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.room.resize(len, 0);
        Some(&mut self.room)
    }

    fn commit(&mut self, now_ns: u64, _: Fcs) {
        self.left.push((now_ns, self.room.clone()));
    }

    fn receive(&mut self, _: u64) -> Option<Received<'_>> {
        self.taken = self.arrive.pop_front()?;
        Some(Received { bytes: &self.taken, fcs: Fcs::Good })
    }
}

/// Three frames lie there when it looks: each has the time at which its turn comes, not that of the
/// look, by which orders would have arrived before they did.
#[test]
fn a_frame_has_the_time_at_which_it_is_taken() {
    let config = VenueConfig::default();
    let to = SocketAddr::from((config.address, config.requests_port));
    let headers = Headers {
        destination_mac: config.mac,
        source_mac: MacAddr([2, 0, 0, 0, 0, 7]),
        vlan_tci: None,
        source: "198.18.0.2:26500".parse().unwrap(),
        destination: to,
        hop_limit: 64,
        traffic_class: 0,
        transport: Transport::Udp,
    };
    let mut request = vec![0; headers.len_bytes()];
    request.extend(mold::request(config.session, 1, 1).as_bytes());
    headers.write(&mut request).unwrap();
    let wire = Wires { arrive: vec![request; 3].into(), ..Wires::default() };
    let mut venue = Venue::new(config, wire, 0);
    // Whoever looks at this clock takes 5 us.
    let clock = Cell::new(1_000_000);
    assert!(venue.poll(|| clock.replace(clock.get() + 5_000)));
    let is_answer = |frame: &[u8]| Packet::parse(frame).is_ok_and(|packet| packet.source() == to);
    let answers = venue.wire().left.iter().filter(|(at_ns, frame)| *at_ns != 0 && is_answer(frame));
    let times: Vec<_> = answers.map(|&(at_ns, _)| at_ns).collect();
    assert_eq!(times, [1_005_000, 1_010_000, 1_015_000]);
}

/// A member at the other end of a wire without delay: refused once, it comes again at once.
struct Member {
    card: Card,
    interface: Interface,
    sockets: SocketSet<'static>,
    /// Its connections, in their order.
    tries: [SocketHandle; 2],
    has_asked: bool,
    came: VecDeque<Vec<u8>>,
    taken: Vec<u8>,
    room: Vec<u8>,
}

impl Member {
    const ADDRESS: IpAddress = IpAddress::v4(198, 18, 0, 2);

    fn new() -> Self {
        let station = HardwareAddress::Ethernet(EthernetAddress([2, 0, 0, 0, 0, 7]));
        let mut card = Card::new(Medium::Ethernet);
        let mut interface = Interface::new(iface::Config::new(station), &mut card, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(Self::ADDRESS, 24)).unwrap();
        });
        let mut sockets = SocketSet::new(Vec::new());
        let tries = [(); 2].map(|()| {
            let buffer = || tcp::SocketBuffer::new(vec![0; 1 << 16]);
            sockets.add(tcp::Socket::new(buffer(), buffer()))
        });
        let (has_asked, came, taken, room) = Default::default();
        let mut member = Self { card, interface, sockets, tries, has_asked, came, taken, room };
        member.connect(0);
        member
    }

    fn connect(&mut self, which: u16) {
        let config = VenueConfig::default();
        let to = (config.address, config.orders_port);
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.tries[usize::from(which)]);
        socket.connect(self.interface.context(), to, 50_000 + which).unwrap();
    }

    fn state(&self, which: usize) -> tcp::State {
        self.sockets.get::<tcp::Socket<'_>>(self.tries[which]).state()
    }

    /// Takes what arrived, and does what comes next.
    fn turn(&mut self, now_ns: u64) {
        let now = Instant::from_micros((now_ns / 1_000) as i64);
        // It acknowledges with its end, as Linux does, and not before.
        self.interface.poll_ingress_single(now, &mut self.card, &mut self.sockets);
        let first = self.sockets.get_mut::<tcp::Socket<'_>>(self.tries[0]);
        if first.state() == tcp::State::Established && !self.has_asked {
            self.has_asked = true;
            let login = format!("\0/L{:6}{:10}{:10}{:>20}", "ferro", "wrong", "", 1);
            first.send_slice(login.as_bytes()).unwrap();
        }
        if first.can_recv() {
            first.recv(|bytes| (bytes.len(), assert_eq!(bytes, b"\0\x02JA"))).unwrap();
            first.close();
            self.connect(1);
        }
        self.interface.poll(now, &mut self.card, &mut self.sockets);
        self.came.extend(self.card.sent.drain(..));
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").finish_non_exhaustive()
    }
}

impl Wire for Member {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.room.resize(len, 0);
        Some(&mut self.room)
    }

    fn commit(&mut self, now_ns: u64, _: Fcs) {
        self.card.arrived = Some(self.room.clone());
        self.turn(now_ns);
    }

    fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        self.turn(now_ns);
        self.taken = self.came.pop_front()?;
        Some(Received { bytes: &self.taken, fcs: Fcs::Good })
    }
}

/// The end of its first connection and the start of the next arrive in the look in which the
/// exchange refused it.
#[test]
fn who_was_refused_and_comes_again_at_once_is_heard() {
    let mut venue = Venue::new(VenueConfig::default(), Member::new(), 0);
    for turn in 1..20 {
        venue.poll(|| turn * 1_000_000);
    }
    assert_eq!(venue.wire().state(1), tcp::State::Established);
}
