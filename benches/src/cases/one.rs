//! Sending one frame, from the change of its fields to the doorbell.

use ferrocx_bus::DoorbellKind;
use ferrocx_model::played::PlayedTx;
use ferrocx_net::ether::MacAddr;
use ferrocx_net::packet::{Headers, Packet, Transport};
use ferrocx_pmd::{Field, PrebuiltFrame, TxQueue, TxQueueConfig};

use super::queues::Bench;
use super::{Case, Work};

/// Frames of one run.
const RUN: u64 = 128;
/// Blocks of the ring.
const RING: u32 = 2048;
/// Bytes of the frame, an order of a length that exchanges use.
const FRAME_BYTES: usize = 128;

/// Every case.
pub(super) const CASES: [Case; 3] = [
    // Eight bytes of the payload and the checksum change, the frame is copied into its request, the
    // doorbell rings.
    Case {
        name: "send_one_128",
        elements: RUN,
        make: || Box::new(One::new(&Bench::new(), TxQueueConfig::default(), send_one)),
    },
    // The same, with the moment of sending to be noted.
    Case {
        name: "send_one_128_stamped",
        elements: RUN,
        make: || {
            let config = TxQueueConfig { timestamps: RUN as u32, ..TxQueueConfig::default() };
            Box::new(One::new(&Bench::new(), config, send_one_stamped))
        },
    },
    // The same as the first, with the request copied into a BlueFlame register besides.
    Case {
        name: "send_one_128_blueflame",
        elements: RUN,
        make: || {
            let one = One::new(&Bench::with_blueflame(), TxQueueConfig::default(), send_one);
            assert_eq!(one.queue.doorbell_kind(), DoorbellKind::WriteCombining);
            Box::new(one)
        },
    },
];

/// What sends the frame with a price in its field.
type Send = fn(&mut TxQueue, &mut PrebuiltFrame<FRAME_BYTES>, Field<8>, u64) -> bool;

struct One {
    queue: TxQueue,
    played: PlayedTx,
    frame: PrebuiltFrame<FRAME_BYTES>,
    price: Field<8>,
    send: Send,
    sent: u64,
    runs: u64,
}

impl One {
    fn new(bench: &Bench, config: TxQueueConfig, send: Send) -> Self {
        let (queue, played) = bench.tx(&TxQueueConfig { descriptors: RING, ..config });
        let headers = Headers {
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            vlan_tci: None,
            source: "192.0.2.1:4000".parse().expect("an address"),
            destination: "192.0.2.2:5000".parse().expect("an address"),
            hop_limit: 64,
            traffic_class: 0,
            transport: Transport::Udp,
        };
        let mut bytes = [0x5a; FRAME_BYTES];
        headers.write(&mut bytes).expect("a frame");
        let frame = PrebuiltFrame::new(&bytes);
        let price = frame.field(headers.len_bytes() + 8).expect("in the payload");
        Self { queue, played, frame, price, send, sent: 0, runs: 0 }
    }
}

/// What a program does with an order. A call of its own, as in an application: what surrounds it
/// then does not change its code.
#[inline(never)]
fn send_one(
    queue: &mut TxQueue,
    frame: &mut PrebuiltFrame<FRAME_BYTES>,
    field: Field<8>,
    price: u64,
) -> bool {
    frame.set(field, price.to_be_bytes());
    queue.send_one(frame)
}

/// As [`send_one`].
#[inline(never)]
fn send_one_stamped(
    queue: &mut TxQueue,
    frame: &mut PrebuiltFrame<FRAME_BYTES>,
    field: Field<8>,
    price: u64,
) -> bool {
    frame.set(field, price.to_be_bytes());
    queue.send_one_stamped(frame, price)
}

impl Work for One {
    fn prepare(&mut self) {
        while self.queue.next_timestamp().is_some() {}
        self.played.complete();
        self.runs += 1;
    }

    fn run(&mut self) {
        for price in 0..RUN {
            self.sent +=
                u64::from((self.send)(&mut self.queue, &mut self.frame, self.price, price));
        }
    }

    fn verify(&mut self) {
        let stats = self.queue.stats();
        assert_eq!(
            (self.sent, stats.packets, stats.doorbells),
            (self.runs * RUN, self.sent, self.sent)
        );
        assert_eq!((stats.dropped, stats.full, stats.fault), (0, 0, None));
        assert_eq!(stats.timestamps_lost, 0);
        let packet = Packet::parse(self.frame.bytes()).expect("a datagram");
        assert!(packet.is_intact() && packet.payload()[8..16] == (RUN - 1).to_be_bytes());
    }
}
