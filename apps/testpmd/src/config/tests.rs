//! Each value at its limits, each refusal as a sentence.

use clap::Parser;

use super::{queues::segments, *};

fn config(line: &str) -> Result<Config, ConfigError> {
    let words = std::iter::once("testpmd").chain(line.split_whitespace());
    Config::new(&Args::try_parse_from(words).expect("clap takes it"))
}

fn refused(line: &str) -> String {
    let sentence = config(line).expect_err(line).to_string();
    assert!(!sentence.contains('\n'), "{sentence}");
    sentence
}

#[test]
fn the_default_is_one_model_port_with_a_generator() {
    let config = config("").unwrap();
    let model = PortSpec { device: DeviceName::default(), wire: WireSpec::Generator };
    assert_eq!(config.ports, [model]);
    assert_eq!(config.mode, Mode::Io);
    assert_eq!(config.load, Load { sizes: vec![64], flows: 16, rate: None });
    assert_eq!(config.stats, Some(Duration::from_secs(1)));
    assert_eq!((config.duration, config.count), (None, None));
}

#[test]
fn every_mode_is_read_by_its_name() {
    for mode in Mode::ALL {
        assert_eq!(config(&format!("--forward-mode {}", mode.name())).unwrap().mode, mode);
    }
    assert_eq!(
        refused("--forward-mode 5tswap"),
        "unknown forwarding mode `5tswap`; give io, mac, macswap, icmpecho, rxonly or txonly"
    );
}

#[test]
fn wires_go_to_ports_in_turn() {
    let ports = config("--wire tap:tap0 --wire veth:v1 --wire none --ports 4").unwrap().ports;
    let wires: Vec<_> = ports.into_iter().map(|port| port.wire).collect();
    let tap = WireSpec::Tap("tap0".into());
    let packet = WireSpec::Packet("v1".into());
    assert_eq!(wires, [tap, packet, WireSpec::Unplugged, WireSpec::Generator]);
    assert!(refused("--wire cable").contains("unknown wire `cable`"));
    for name in ["", "a/b", "a:b", "0123456789abcdef", ".."] {
        assert!(refused(&format!("--wire tap:{name}")).contains("interface name"), "{name}");
    }
    assert!(config("--wire tap:0123456789abcde").is_ok());
}

#[test]
fn a_link_needs_both_ends() {
    assert!(config("--wire link --wire link").is_ok());
    assert!(refused("--wire link").contains("its neighbour, port 1, has not"));
    assert!(refused("--wire none --wire link --wire link").contains("port 1 has --wire link"));
}

#[test]
fn devices_and_wires_must_match() {
    assert!(refused("--device eth0").contains("unknown device `eth0`"));
    assert!(refused("--device 3b:00.0 --device 3b:00.0").contains("given twice"));
    assert!(refused("--device 3b:00.0 --wire none").contains("has a real wire"));
    assert!(refused("--device model:tap=fx0").contains("leave net and tap out"));
    assert!(refused("--device 3b:00.0 --pcap /tmp/x").contains("--pcap captures wires"));
    assert!(refused("--wire none --wire none --ports 1").contains("2 devices or wires"));
    assert!(refused("--ports 0").contains("--ports is 0; it must be 1 to 16"));
    assert!(refused("--ports 17").contains("--ports is 17"));
    assert!(config("--device 3b:00.0").is_ok());
}

#[test]
fn numbers_are_checked_at_both_ends() {
    for (line, good) in [
        ("--queues 0", false),
        ("--queues 64", true),
        ("--queues 65", false),
        ("--burst 128", true),
        ("--burst 0", false),
        ("--burst 33", false),
        ("--burst 256", false),
        ("--rxd 64", true),
        ("--rxd 32", false),
        ("--rxd 32768", true),
        ("--rxd 65536", false),
        ("--txd 100", false),
        ("--mbuf-size 255", false),
        ("--mbuf-size 65535", true),
        ("--mbuf-size 65536", false),
        ("--mbuf-cache 4096", true),
        ("--mbuf-cache 4097", false),
        ("--mbufs 100", false),
        ("--mbufs 16777217", false),
        ("--mtu 67", false),
        ("--mtu 68", true),
        ("--mtu 9978", true),
        ("--mtu 9979", false),
        ("--inline 256", true),
        ("--inline 257", false),
        ("--flows 0", false),
        ("--flows 1024", true),
        ("--flows 1025", false),
        ("--count 0", false),
        ("--count 1", true),
        ("--duration 0", false),
        ("--duration 0.001", true),
        ("--duration NaN", false),
        ("--stats 0", true),
        ("--stats -1", false),
        ("--model-core 1023", true),
        ("--model-core 1024", false),
    ] {
        let line = line.replace(" -1", "=-1");
        assert_eq!(config(&line).is_ok(), good, "{line}");
    }
    assert_eq!(refused("--rxd 100"), "--rxd is 100; it must be a power of two from 64 to 32768");
}

#[test]
fn only_what_forwards_sends_first() {
    assert_eq!(config("--tx-first 8").expect("good").tx_first, 8);
    assert!(refused("--tx-first 1025").contains("0 to 1024"));
    assert_eq!(
        refused("--tx-first 8 --forward-mode rxonly"),
        "--tx-first 8 is for what forwards frames, which rxonly does not; choose io, mac or \
         macswap, or leave it out"
    );
}

#[test]
fn sizes_fit_the_mtu() {
    assert!(config("--size 64,1514").is_ok());
    assert_eq!(
        refused("--size 64,1515"),
        "a generated frame of 1515 bytes does not fit --mtu 1500; give --mtu 1501 or smaller frames"
    );
    assert!(config("--size 9014 --mtu 9000").is_ok());
    assert!(refused("--size 59").contains("--size: 59 is out of range"));
}

#[test]
fn buffers_are_enough_for_every_queue() {
    assert_eq!(segments(1518, 2176, None), 1);
    assert_eq!(segments(2048, 2176, None), 1);
    assert_eq!(segments(2049, 2176, None), 2);
    assert_eq!(segments(2048 + 2176, 2176, None), 2);
    assert_eq!(segments(2048 + 2176 + 1, 2176, None), 4);
    assert_eq!(segments(9018, 2176, None), 8);
    let of = |line: &str| config(line).unwrap().queues.mbufs;
    assert_eq!(of(""), 512 + 1024 + 128 + 1536);
    assert_eq!(of("--queues 2"), 2 * of(""));
    assert_eq!(of("--mtu 9000"), 8 * (512 + 1024 + 128) + 1536);
    assert_eq!(of("--mbufs 4000"), 4000);
    assert!(refused("--mbufs 3199").contains("--mbufs is 3199; it must be 3200 to 16777216"));
    let sentence = refused("--mtu 9000 --mbuf-size 1024");
    assert!(sentence.contains("--mtu 9000 needs 16 buffers of --mbuf-size 1024"), "{sentence}");
}

#[test]
fn words_are_checked() {
    assert!(refused("--wait nap").contains("busy, spin, yield, sleep or interrupt"));
    assert!(refused("--rss l3").contains("ip or l4"));
    assert!(refused("--key-mode fast").contains("reserved, physical or translated"));
    assert!(refused("--ip 10.0.0").contains("address of a host"));
    assert!(refused("--ip ff02::1").contains("address of a host"));
    assert!(refused("--peer 1:2").contains("not an Ethernet address"));
    assert!(refused("--cores 1,x").starts_with("--cores: `x`"));
    assert!(refused("--cores 1-2 --model-core 2").contains("core 2 is in --cores"));
    assert!(refused("--json /nonexistent/x").contains("/nonexistent/x"));
}

#[test]
fn lent_files_and_the_user_to_become_are_checked() {
    let config = config("--device 3b:00.0 --vfio-files 10,11 --user 1000:33").unwrap();
    assert_eq!(config.lenders, [Lender::Inherited(10, 11)]);
    assert_eq!(config.user, Some(User { uid: 1000, gid: 33 }));
    assert_eq!((config.interface, config.one_address_space), (Interface::Auto, false));
    let config = self::config("--device 3b:00.0 --vfio-launcher /run/x --vfio-interface device");
    let config = config.unwrap();
    assert_eq!(config.lenders, [Lender::Launcher("/run/x".into())]);
    assert_eq!(config.interface, Interface::Device);
    for wrong in ["10", "10,x", "2,3", "10,", "-1,5"] {
        let sentence = refused(&format!("--device 3b:00.0 --vfio-files={wrong}"));
        assert!(sentence.contains("give two numbers of open files above 2"), "{sentence}");
    }
    assert_eq!(
        refused("--vfio-files 10,11"),
        "files of 1 devices are lent for 0 ports with a PCI address; give them once for each"
    );
    assert_eq!(
        refused("--device 3b:00.0 --device model --one-address-space"),
        "--one-address-space is for ports with a PCI address, of which there are 1; leave it out \
         below 2"
    );
    let config = self::config("--device 3b:00.0 --device 3b:00.1 --one-address-space");
    assert!(config.unwrap().one_address_space);
    assert!(refused("--device 3b:00.0 --user 0").starts_with("--user: \"0\" is no ordinary user"));
    assert_eq!(
        refused("--device 3b:00.0 --vfio-interface legacy"),
        "unknown --vfio-interface value `legacy`; give auto, group or device"
    );
}

#[test]
fn split_packets_have_two_buffers_at_least() {
    assert_eq!(config("").unwrap().queues.split, None);
    let queues = config("--payload pci:3b:00.0/2 --split 64").unwrap().queues;
    let Some(Split { header_bytes: 64, payload }) = queues.split else { panic!("{queues:?}") };
    assert_eq!(payload.to_string(), "pci:0000:3b:00.0/2");
    assert_eq!(segments(1518, 2176, queues.split), 2);
    assert_eq!(segments(60, 2176, queues.split), 2);
    assert_eq!(segments(64 + 2 * 2176, 2176, queues.split), 4);
    assert!(queues.mbufs > config("").unwrap().queues.mbufs);
    for (line, good) in [("64", true), ("63", false), ("2048", true), ("2049", false)] {
        assert_eq!(config(&format!("--payload host --split {line}")).is_ok(), good, "{line}");
    }
}
