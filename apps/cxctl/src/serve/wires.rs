//! What the ports are plugged into, from the command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use ferrocx_model::wire::{
    Capture, CaptureFile, Impair, ImpairConfig, Link, PacketWire, SplitMix64, Switch, TapWire,
    Unplugged, Wire, link,
};

use crate::impairment::Impairment;

/// Bytes that can be on a cable in each direction; a sender waits while it is full.
const CABLE_BYTES: usize = 1 << 20;

/// Where a port leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WireSpec {
    /// To the neighbour: port 0 and 1, 2 and 3, and so on.
    Link,
    /// To a switch in memory, with all other ports that lead there.
    Switch,
    /// To a TAP interface of this host, created if need be.
    Tap(String),
    /// To an existing interface of this host, such as one end of a veth pair.
    Packet(String),
    /// Nowhere: no carrier.
    None,
}

impl FromStr for WireSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "link" => Ok(Self::Link),
            None if text == "switch" => Ok(Self::Switch),
            None if text == "none" => Ok(Self::None),
            Some(("tap", name)) if !name.is_empty() => Ok(Self::Tap(name.into())),
            Some(("packet", name)) if !name.is_empty() => Ok(Self::Packet(name.into())),
            _ => Err(format!(
                "`{text}` is no wire; give link, switch, tap:NAME, packet:NAME or none"
            )),
        }
    }
}

/// Wires, and what goes wrong on them.
#[derive(Debug, Default, Args)]
pub struct WireOptions {
    /// Link partner of a port, once for each port: link (to the neighbour port), switch (to all
    /// ports that say so), tap:NAME, packet:INTERFACE or none [default: link]
    #[arg(long = "wire", value_name = "WIRE")]
    wires: Vec<WireSpec>,
    /// Write every frame on the wires to a pcapng file, for looking: it has no limit, and the ports
    /// wait for each other there.
    #[arg(long, visible_alias = "pcap", value_name = "FILE")]
    capture: Option<PathBuf>,
    #[command(flatten)]
    impairment: Impairment,
}

impl WireOptions {
    /// Makes one wire for each port, given by its name and its MAC address, which nobody else at
    /// the switch may send from.
    ///
    /// # Errors
    ///
    /// More wires than ports, half a link, an interface or a file that cannot be opened.
    pub(super) fn build(&self, ports: &[(String, [u8; 6])]) -> anyhow::Result<Wires> {
        let given = self.wires.len();
        anyhow::ensure!(given <= ports.len(), "{given} wires for {} ports", ports.len());
        let capture = self.capture.as_deref().map(CaptureFile::create).transpose()?;
        let mut wires: Vec<Option<Box<dyn Wire>>> = Vec::new();
        let mut far_end: Option<Link> = None;
        let switch = Switch::new(CABLE_BYTES);
        let mut neighbours = vec![Vec::new(); ports.len()];
        for (index, (name, mac)) in ports.iter().enumerate() {
            // The odd one out among the defaults has a carrier and no neighbour.
            let spec = self.wires.get(index);
            if index % 2 == 0 {
                far_end = None;
            }
            // One end of a cable sees what passes in both directions. What passes a switch is seen
            // on each cable it takes.
            let mut file = capture.as_ref();
            let wire: Box<dyn Wire> = match spec.unwrap_or(&WireSpec::Link) {
                WireSpec::Link => match far_end.take() {
                    Some(end) => {
                        file = None;
                        neighbours[index].push(index - 1);
                        neighbours[index - 1].push(index);
                        self.impair(end, index)
                    }
                    None if index % 2 == 0 && self.is_link(index + 1, ports.len()) => {
                        let (near, far) = link(CABLE_BYTES);
                        far_end = Some(far);
                        self.impair(near, index)
                    }
                    None if spec.is_some() => {
                        anyhow::bail!("{name} is to be linked, but has no neighbour that is, too")
                    }
                    None => {
                        wires.push(None);
                        continue;
                    }
                },
                WireSpec::Switch => {
                    let others = self.wires.iter().enumerate();
                    let joined =
                        others.filter(|(at, spec)| **spec == WireSpec::Switch && *at != index);
                    neighbours[index].extend(joined.map(|(at, _)| at));
                    self.impair(switch.port_of(*mac), index)
                }
                WireSpec::Tap(tap) => self.impair(TapWire::open(tap)?, index),
                WireSpec::Packet(interface) => self.impair(PacketWire::open(interface)?, index),
                WireSpec::None => Box::new(Unplugged::default()),
            };
            wires.push(Some(match file {
                Some(file) => Box::new(Capture::new(wire, file, name)?),
                None => wire,
            }));
        }
        Ok(Wires { wires, neighbours, capture })
    }

    fn is_link(&self, index: usize, ports: usize) -> bool {
        index < ports && *self.wires.get(index).unwrap_or(&WireSpec::Link) == WireSpec::Link
    }

    fn impair(&self, wire: impl Wire + 'static, index: usize) -> Box<dyn Wire> {
        let config = self.impairment.config();
        if config == ImpairConfig::default() {
            return Box::new(wire);
        }
        // Both directions of a cable go wrong at different frames.
        Box::new(Impair::new(
            wire,
            config,
            SplitMix64::new(self.impairment.seed ^ (index as u64) << 32),
        ))
    }
}

/// What [`WireOptions::build`] makes.
pub(super) struct Wires {
    /// One for each port; `None` leaves the port with a carrier and without a neighbour.
    pub(super) wires: Vec<Option<Box<dyn Wire>>>,
    /// For each port those that its frames reach in memory.
    pub(super) neighbours: Vec<Vec<usize>>,
    /// The capture, to be flushed at the end.
    pub(super) capture: Option<CaptureFile>,
}

#[cfg(test)]
mod tests {
    use ferrocx_model::wire::Fcs;

    use super::*;

    fn names(count: u8) -> Vec<(String, [u8; 6])> {
        (0..count).map(|index| (format!("port{index}"), [2, 0, 0, 0, 0, index])).collect()
    }

    fn send(wire: &mut Box<dyn Wire>, byte: u8) {
        wire.reserve(60).expect("room").fill(byte);
        wire.commit(0, Fcs::Good);
        wire.flush(0);
    }

    #[test]
    fn wires_are_read_and_nonsense_is_named() {
        assert_eq!("link".parse(), Ok(WireSpec::Link));
        assert_eq!("switch".parse(), Ok(WireSpec::Switch));
        assert_eq!("tap:cx0".parse(), Ok(WireSpec::Tap("cx0".into())));
        assert_eq!("packet:veth1".parse(), Ok(WireSpec::Packet("veth1".into())));
        assert_eq!("none".parse(), Ok(WireSpec::None));
        for text in ["", "tap:", "packet", "cable", "link:1"] {
            let error = text.parse::<WireSpec>().expect_err("no wire");
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn ports_are_joined_two_by_two() {
        let mut built = WireOptions::default().build(&names(5)).expect("wires");
        let wires = &mut built.wires;
        assert!(wires[4].is_none(), "the odd one has no neighbour");
        assert_eq!(built.neighbours, [vec![1], vec![0], vec![3], vec![2], vec![]]);
        for (from, to) in [(0, 1), (1, 0), (2, 3), (3, 2)] {
            send(wires[from].as_mut().expect("a cable"), 7);
            let far = wires[to].as_mut().expect("a cable");
            assert_eq!(far.receive(0).expect("the frame").bytes, [7; 60]);
        }
    }

    #[test]
    fn any_number_of_ports_meets_at_the_switch() {
        let wires = [WireSpec::Switch, WireSpec::None, WireSpec::Switch, WireSpec::Switch];
        let options = WireOptions { wires: wires.to_vec(), ..Default::default() };
        let mut built = options.build(&names(4)).expect("wires");
        assert_eq!(built.neighbours, [vec![2, 3], vec![], vec![0, 3], vec![0, 2]]);
        send(built.wires[2].as_mut().expect("a cable"), 0xff);
        for (index, count) in [(0, 1), (1, 0), (2, 0), (3, 1)] {
            let wire = built.wires[index].as_mut().expect("a cable");
            assert_eq!(usize::from(wire.receive(0).is_some()), count, "port {index}");
        }
    }

    #[test]
    fn a_port_at_the_switch_keeps_its_address() {
        let options = WireOptions { wires: vec![WireSpec::Switch; 3], ..Default::default() };
        let mut built = options.build(&names(3)).expect("wires");
        let [mut owner, mut other, mut thief] =
            [0, 1, 2].map(|at| built.wires[at].take().expect("a cable"));
        let send = |wire: &mut Box<dyn Wire>, to: [u8; 6], from: [u8; 6]| {
            let room = wire.reserve(60).expect("room");
            room.fill(0);
            room[..12].copy_from_slice([to, from].as_flattened());
            wire.commit(0, Fcs::Good);
            wire.flush(0);
        };
        let [address, of_other] = [[2, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 1]];
        // The address is taken before its owner sent anything, and frames are sent in its name.
        send(&mut thief, [0xff; 6], address);
        send(&mut thief, of_other, address);
        assert!(other.receive(0).is_none(), "a frame in another's name arrives");
        send(&mut other, address, of_other);
        assert!(thief.receive(0).is_none(), "a frame for another arrives");
        assert!(owner.receive(0).is_some(), "a frame for its owner does not");
    }

    #[test]
    fn half_a_link_and_too_many_wires_are_refused() {
        let options =
            |wires: &[WireSpec]| WireOptions { wires: wires.to_vec(), ..Default::default() };
        let refused = |wires: &[WireSpec], ports| match options(wires).build(&names(ports)) {
            Ok(_) => panic!("accepted"),
            Err(error) => error.to_string(),
        };
        let text = refused(&[WireSpec::Link, WireSpec::None], 2);
        assert_eq!(text, "port0 is to be linked, but has no neighbour that is, too");
        let text = refused(&[WireSpec::None, WireSpec::Link], 2);
        assert_eq!(text, "port1 is to be linked, but has no neighbour that is, too");
        assert_eq!(refused(&[WireSpec::None, WireSpec::None], 1), "2 wires for 1 ports");
    }

    #[test]
    fn unplugged_ports_have_no_carrier() {
        let options = WireOptions { wires: vec![WireSpec::None], ..Default::default() };
        let built = options.build(&names(1)).expect("a wire");
        assert!(!built.wires[0].as_ref().expect("a wire").carrier());
    }

    #[test]
    fn what_passes_is_captured_and_can_be_lost() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("wire.pcapng");
        let impairment = Impairment { loss: 1_000_000, ..Default::default() };
        let options = WireOptions { capture: Some(path.clone()), impairment, ..Default::default() };
        let mut built = options.build(&names(2)).expect("wires");
        send(built.wires[0].as_mut().expect("a cable"), 7);
        assert!(built.wires[1].as_mut().expect("a cable").receive(0).is_none(), "all is lost");
        let capture = built.capture.expect("a capture");
        assert_eq!(capture.frames(), 1, "what was sent is in the file");
        send(built.wires[1].as_mut().expect("a cable"), 8);
        assert!(built.wires[0].as_mut().expect("a cable").receive(0).is_none(), "lost, too");
        assert_eq!(capture.frames(), 1, "the other end is captured as it arrives");
        capture.flush().expect("room");
        let bytes = std::fs::read(path).expect("the file");
        assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
        assert!(bytes.windows(60).any(|window| window == [7; 60]));
    }
}
