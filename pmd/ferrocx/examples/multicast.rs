//! Joins multicast groups as lines on standard input say, and counts their datagrams on queues of
//! their own: behind a switch that snoops, a feed arrives only while somebody reports the group.
//!
//! ```text
//! cargo run --release -p ferrocx --example multicast -- model:tap=fx0 198.18.0.2 26400
//! watch 239.1.2.3
//! count
//! join 239.1.2.3
//! count
//! leave 239.1.2.3
//! ```

use std::error::Error;
use std::io::BufRead;
use std::net::IpAddr;
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant};

use ferrocx::net::ip;
use ferrocx::verbs::net::{NetConfig, Network};
use ferrocx::verbs::{GidConfig, RdmaContext};
use ferrocx::{Burst, FlowMatch, Ipv4Match, Ipv6Match, Lane, Port};

/// How long `count` goes on listening.
const LAST_CALL: Duration = Duration::from_millis(300);

struct Listener {
    network: Network,
    port: Port,
    udp_port: u16,
    /// A queue for each group that is watched.
    lanes: Vec<Lane>,
    count: usize,
}

impl Listener {
    fn open(device: &str, address: IpAddr, udp_port: u16) -> Result<Self, Box<dyn Error>> {
        let port = Port::open(device)?;
        let context = RdmaContext::open(port.device())?;
        let prefix_len = if address.is_ipv4() { 24 } else { 64 };
        context.add_gid(GidConfig { address, prefix_len, gateway: None, vlan: None })?;
        let network = Network::open(&context, &NetConfig::default())?;
        Ok(Self { network, port, udp_port, lanes: Vec::new(), count: 0 })
    }

    /// Leads the group's datagrams to a queue. Nobody is told; if they come, somebody floods.
    fn watch(&mut self, group: IpAddr) -> Result<(), Box<dyn Error>> {
        let (mut ipv4, mut ipv6) = (None, None);
        match group {
            IpAddr::V4(ip) => ipv4 = Some(Ipv4Match { source: None, destination: Some(ip.into()) }),
            IpAddr::V6(ip) => ipv6 = Some(Ipv6Match { source: None, destination: Some(ip.into()) }),
        }
        let lane = self.port.lane_matching(FlowMatch {
            ipv4,
            ipv6,
            ip_protocol: Some(ip::UDP),
            destination_port: Some(self.udp_port.into()),
            ..FlowMatch::default()
        })?;
        // What the switch sends gets in, joined or not.
        self.port.device().set_all_multicast(true)?;
        self.lanes.push(lane);
        Ok(())
    }

    fn poll(&mut self) {
        self.network.poll();
        let mut burst = Burst::<32>::new();
        for lane in &mut self.lanes {
            self.count += lane.rx_burst(&mut burst);
            burst.clear();
        }
    }

    /// Does what a line says; the answer to print.
    fn command(&mut self, line: &str) -> Result<String, Box<dyn Error>> {
        let (verb, group) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "watch" => self.watch(group.parse()?)?,
            "join" => self.network.join(group.parse::<IpAddr>()?)?,
            "leave" => _ = self.network.leave(group.parse::<IpAddr>()?)?,
            "count" => {
                let end = Instant::now() + LAST_CALL;
                while Instant::now() < end {
                    self.poll();
                }
                return Ok(format!("{} datagrams", std::mem::take(&mut self.count)));
            }
            _ => return Err(format!("`{line}` is no command: watch, join, leave, count").into()),
        }
        Ok(line.to_owned())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(device), Some(address), Some(udp_port)) = (args.next(), args.next(), args.next())
    else {
        return Err("usage: multicast DEVICE ADDRESS UDP-PORT; see the head of the source".into());
    };
    let mut listener = Listener::open(&device, address.parse()?, udp_port.parse()?)?;
    let (to_main, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = to_main.send(line);
        }
    });
    println!("ready");
    loop {
        match lines.try_recv() {
            Ok(line) => match listener.command(line.trim()) {
                Ok(answer) => println!("{answer}"),
                Err(error) => println!("{error}"),
            },
            Err(TryRecvError::Disconnected) => return Ok(()),
            Err(TryRecvError::Empty) => {}
        }
        listener.poll();
    }
}
