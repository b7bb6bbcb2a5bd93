//! Receives one multicast group on a queue of its own, and answers each quote below a limit with an
//! order that was built beforehand. Run as it is, two ports of the model play market and trader.
//!
//! ```text
//! cargo run --release -p ferrocx --example feed_handler
//! ```

use std::error::Error;
use std::net::SocketAddrV4;

use ferrocx::net::ip;
use ferrocx::{Burst, FlowMatch, Ipv4Match, Lane, MacAddr, Port};

/// Where the payload of UDP over IPv4 starts: behind 14, 20 and 8 bytes of headers.
const PAYLOAD: usize = 42;

/// A queue that sees one group, and the order to send.
pub struct FeedHandler {
    feed: Lane,
    /// A whole frame; the price stands in the last four bytes.
    order: Vec<u8>,
    limit: u32,
}

impl FeedHandler {
    /// Leads datagrams to `group` to a queue of their own.
    pub fn new(
        port: &Port,
        group: SocketAddrV4,
        order: Vec<u8>,
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
        Ok(Self { feed, order, limit })
    }

    /// Takes the quotes that have come, and sends an order for each below the limit; returns how
    /// many.
    pub fn poll(&mut self) -> usize {
        let (mut quotes, mut orders) = (Burst::<32>::new(), Burst::<32>::new());
        self.feed.rx_burst(&mut quotes);
        for quote in &quotes {
            let price = quote.data().get(PAYLOAD..PAYLOAD + 4);
            let price =
                price.map_or(u32::MAX, |be| u32::from_be_bytes([be[0], be[1], be[2], be[3]]));
            if price < self.limit
                && let Some(mut order) = self.feed.alloc_copy(&self.order)
            {
                if let Some(place) = order.data_mut().and_then(<[u8]>::last_chunk_mut) {
                    *place = price.to_be_bytes();
                }
                orders.push(order);
            }
        }
        self.feed.tx_burst(&mut orders)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let group = "239.1.2.3:26400".parse()?;
    let [market, trader] = Port::open_all(["model", "model"])?;
    let order = datagram(&trader, market.device().mac(), "192.0.2.1:9000".parse()?, 0);
    let mut handler = FeedHandler::new(&trader, group, order, 100)?;
    let mut exchange = market.lane()?;

    let to = MacAddr::of_group((*group.ip()).into()).ok_or("not a multicast group")?;
    let mut quotes = Burst::<32>::new();
    for price in [150, 99, 42, 100] {
        let quote = exchange.alloc_copy(&datagram(&market, to, group, price));
        quotes.push(quote.ok_or("the pool is empty")?);
    }
    exchange.tx_burst(&mut quotes);

    let (mut sent, mut orders) = (0, Burst::<32>::new());
    while orders.len() < 2 {
        sent += handler.poll();
        exchange.rx_burst(&mut orders);
    }
    println!("4 quotes, {sent} orders");
    for order in &orders {
        println!("order at {:?}", &order.data()[PAYLOAD..PAYLOAD + 4]);
    }
    Ok(())
}

/// A frame with a datagram of four bytes, a price. UDP over IPv4 may go without a checksum.
pub fn datagram(from: &Port, mac: MacAddr, to: SocketAddrV4, price: u32) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 32, 0, 0, 0x40, 0, 16, ip::UDP, 0, 0, 192, 0, 2, 2];
    ip.extend(to.ip().octets());
    let checksum = ferrocx::net::checksum::finish(ferrocx::net::checksum::sum(&ip));
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = [&mac.0[..], &from.device().mac().0, &[0x08, 0x00], &ip].concat();
    frame.extend([0x27, 0x10].iter().chain(&to.port().to_be_bytes()).chain(&[0, 12, 0, 0]));
    frame.extend(price.to_be_bytes());
    frame
}
