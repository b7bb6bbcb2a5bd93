//! Receives one multicast group on a queue of its own, and answers each quote below a limit with an
//! order that was built beforehand. Run as it is, two ports of the model play market and trader.
//!
//! ```text
//! cargo run --release -p ferrocx --example feed_handler
//! ```

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddrV4};

use ferrocx::net::ip;
use ferrocx::net::packet::{Headers, HeadersError, Packet, Transport};
use ferrocx::{Field, FlowMatch, Ipv4Match, Lane, MacAddr, Port, PrebuiltFrame};

/// Where the payload of UDP over IPv4 starts: behind 14, 20 and 8 bytes of headers.
const PAYLOAD: usize = 42;

/// A datagram of four bytes, a price, with its headers.
pub type Message = PrebuiltFrame<{ PAYLOAD + 4 }>;

/// A queue that sees one group, and the order to send.
pub struct FeedHandler {
    feed: Lane,
    order: Message,
    price: Field<4>,
    limit: u32,
}

impl FeedHandler {
    /// Leads datagrams to `group` to a queue of their own.
    pub fn new(
        port: &Port,
        group: SocketAddrV4,
        order: Message,
        limit: u32,
    ) -> Result<Self, Box<dyn Error>> {
        let mac = MacAddr::of_group((*group.ip()).into()).ok_or("not a multicast group")?;
        port.device().join_multicast(mac)?;
        let destination = Some((*group.ip()).into());
        let feed = port.lane_matching(FlowMatch {
            ipv4: Some(Ipv4Match { source: None, destination }),
            ip_protocol: Some(ip::UDP),
            destination_port: Some(group.port().into()),
            ..FlowMatch::default()
        })?;
        Ok(Self { feed, price: order.field(PAYLOAD)?, order, limit })
    }

    /// Takes the next quote, if one has come, and sends an order if it is below the limit; returns
    /// whether it did.
    pub fn poll(&mut self) -> bool {
        let Some(quote) = self.feed.rx_one() else {
            self.feed.tx().warm_up(&self.order);
            return false;
        };
        let Some(price) = price_of(quote.data()).filter(|price| *price < self.limit) else {
            return false;
        };
        self.order.set(self.price, price.to_be_bytes());
        self.feed.send_one(&self.order)
    }
}

/// The price in a quote or an order.
pub fn price_of(frame: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(*Packet::parse(frame).ok()?.payload().first_chunk()?))
}

/// A message from a port to a station, or to a group, with a price in it.
pub fn message(
    from: &Port,
    station: MacAddr,
    to: SocketAddrV4,
    price: u32,
) -> Result<Message, HeadersError> {
    let headers = Headers {
        destination_mac: station,
        source_mac: from.device().mac(),
        vlan_tci: None,
        source: SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 2), 10_000).into(),
        destination: to.into(),
        hop_limit: 16,
        traffic_class: 0,
        transport: Transport::Udp,
    };
    let mut frame = [0; PAYLOAD + 4];
    frame[PAYLOAD..].copy_from_slice(&price.to_be_bytes());
    headers.write(&mut frame)?;
    Ok(PrebuiltFrame::new(&frame))
}

fn main() -> Result<(), Box<dyn Error>> {
    let group = "239.1.2.3:26400".parse()?;
    let [market, trader] = Port::open_all(["model", "model"])?;
    let order = message(&trader, market.device().mac(), "192.0.2.1:9000".parse()?, 0)?;
    let mut handler = FeedHandler::new(&trader, group, order, 100)?;
    let mut exchange = market.lane()?;

    let to = MacAddr::of_group((*group.ip()).into()).ok_or("not a multicast group")?;
    for price in [150, 99, 42, 100] {
        exchange.send_one(&message(&market, to, group, price)?);
    }

    let (mut sent, mut received) = (0, 0);
    while received < 2 {
        sent += u32::from(handler.poll());
        while let Some(order) = exchange.rx_one() {
            println!("an order at {:?}", price_of(order.data()));
            received += 1;
        }
    }
    println!("4 quotes, {sent} orders");
    Ok(())
}
