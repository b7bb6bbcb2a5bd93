//! Command lines, and the one sentence that refuses a wrong one.

use clap::Parser;
use ferrocx_core::MacAddr;

use super::*;
use crate::measure::Limit;

fn config(line: &str) -> Result<Config, ConfigError> {
    let words = std::iter::once("perftest").chain(line.split_whitespace());
    Config::new(&Args::try_parse_from(words).unwrap())
}

fn refused(line: &str) -> String {
    config(line).unwrap_err().to_string()
}

#[test]
fn a_line_for_the_stock_tool_is_understood() {
    let line = "pingpong uc host --device 0000:02:00.0 --ip 10.1.0.2/24 -c -s 1000 -n 20 \
                --peer-mac 02:00:00:00:00:0a --mtu 4096 --port 7";
    let config = config(line).unwrap();
    let Job::PingPong(job) = config.job else { panic!("{line}") };
    assert_eq!((job.service, job.size, job.exchanges, job.verify), (QpType::Uc, 1000, 20, true));
    assert_eq!(config.net.server.as_deref(), Some("host"));
    assert_eq!(config.net.peer_mac, Some(MacAddr([2, 0, 0, 0, 0, 10])));
    assert_eq!((config.net.mtu, config.net.port), (Mtu::B4096, 7));
    let ip = Subnet { address: [10, 1, 0, 2].into(), prefix_len: 24 };
    assert_eq!(config.net.ip, Some(ip));
    assert!(!config.net.is_model());
}

#[test]
fn a_datagram_is_as_long_as_the_path_has_room_for() {
    let sizes = ["pingpong rc", "pingpong ud", "pingpong ud --mtu 4096"].map(|line| {
        let Job::PingPong(job) = config(line).unwrap().job else { panic!("{line}") };
        job.size
    });
    assert_eq!(sizes, [4096, 1024, 4096]);
}

#[test]
fn each_refusal_names_value_limit_and_way_out() {
    for (line, sentence) in [
        (
            "ping rc",
            "unknown test `ping`; give send, write, read, atomic, fastreg, pingpong or target",
        ),
        ("pingpong xrc", "unknown kind of pingpong `xrc`; give rc, uc, ud or srq"),
        ("pingpong srq -n 15", "--iterations is 15; it must be 16 to 4294967295"),
        ("pingpong srq --qps 257", "--qps is 257; it must be 1 to 256"),
        ("pingpong rc -s 0", "--size is 0; it must be 1 to 1073741824"),
        ("pingpong ud -s 1025", "--size is 1025; it must be 1 to 1024"),
        ("pingpong rc -s x", "--size is x; it must be 1 to 1073741824"),
        ("pingpong rc -n 0", "--iterations is 0; it must be 1 to 4294967295"),
        ("pingpong rc --mtu 1500", "--mtu is 1500; it must be 256, 512, 1024, 2048 or 4096"),
        ("pingpong rc --ack-timeout 32", "--ack-timeout is 32; it must be 1 to 31"),
        ("pingpong rc --port 0", "--port is 0; it must be 1 to 65535"),
        ("pingpong rc --ip 10.0.0.1", "unknown address `10.0.0.1`; give an address and"),
        ("pingpong rc --ip 10.0.0.1/33", "unknown address `10.0.0.1/33`; give an address"),
        ("pingpong rc --peer-mac 2:0:0:0:0:1", "`2:0:0:0:0:1` is not an Ethernet address"),
        ("pingpong rc --peer-mac 02:00:00:00:00:+1", "`02:00:00:00:00:+1` is not"),
        ("pingpong rc --peer-mac 02:00:00:00:00", "`02:00:00:00:00` is not an Ethernet"),
        ("pingpong rc --peer-mac ff:ff:ff:ff:ff:ff", "--peer-mac is ff:ff:ff:ff:ff:ff; it must"),
        ("pingpong rc host", "both ends run on the model of this process; leave SERVER out"),
        ("pingpong rc --device model:tap=fx0", "a cable joins both ends of the model"),
        (
            "pingpong rc --device 00:02.0 --pcap x",
            "only the model's cable can be captured or bad; ",
        ),
        ("send lat --device 00:02.0 --loss 1", "only the model's cable can be captured or bad; "),
        ("send lat --loss 51", "--loss is 51; it must be 0 to 50 percent"),
        ("send lat --corrupt -1", "--corrupt is -1; it must be 0 to 50 percent"),
        ("send lat --cores 0,0", "--cores: 0 stands twice"),
        ("pingpong rc --plot x", "pingpong and target draw no plot; leave --plot out"),
        ("send lat --srq", "only pingpong takes its receives from a shared queue; leave --srq"),
        ("pingpong rc --cm", "pingpong and target exchange addresses over TCP; leave --cm out"),
        ("fastreg bw --cm", "without --verify fastreg has no other end; leave --cm out, or add"),
        ("send lat --cm --peer-mac 02:00:00:00:00:01", "--cm finds the MAC address of the peer"),
        ("send lat -R --mtu 512", "--cm takes the largest path MTU that fits the port; leave"),
        ("target uc", "unknown kind of target `uc`; give rc"),
        ("target rc", "target waits on a device for a program at the other end; name the"),
        ("target rc host --device 00:02.0", "target waits on a device for a program"),
        ("fastreg bw --qps 2", "each pipeline of fastreg has a queue pair of its own; leave"),
        ("fastreg bw --depth 1025", "--depth is 1025; it must be 1 to 1024"),
        ("fastreg bw --threads 17", "--threads is 17; it must be 1 to 16"),
        ("fastreg bw host --device 00:02.0", "without --verify nobody uses the keys; leave"),
        ("send bws", "unknown kind of test `bws`; give lat or bw"),
        ("send lat --qps 2", "lat has one message on the way; leave --qps"),
        ("send lat --depth 2", "lat has one message on the way; leave --qps"),
        ("atomic lat -s 16", "atomics work on 8 bytes; leave --size out"),
        ("send bw -s 0", "--size: 0 is out of range; give 1 to 1073741824"),
        ("send bw --all -s 4", "--all and --size name sizes twice; leave one out"),
        ("send bw -n 5 --duration 1", "--iterations and --duration end a round twice; leave"),
        ("send bw -n 0", "--iterations is 0; it must be 1 to 4294967295"),
        ("send bw --duration 0", "--duration is 0; it must be 0.001 to 86400 seconds"),
        ("send bw --depth 8193", "--depth is 8193; it must be 1 to 8192"),
        ("send bw --qps 0", "--qps is 0; it must be 1 to 16384"),
        ("send bw --threads 2", "--threads is 2; it must be 1 to 1, a queue pair for each"),
        ("send bw --inline 929", "--inline is 929; it must be 0 to 928"),
        ("send bw --depth 4 --signal-every 5", "--signal-every is 5; it must be 1 to 4, the"),
        ("send bw --depth 4 --batch 5", "--batch is 5; it must be 1 to 4, the depth"),
        ("pingpong rc --wait interrupt", "unknown wait strategy `interrupt`; give busy, spin"),
        ("pingpong rc --device eth0", "unknown device `eth0`; give `model`"),
        ("pingpong rc --json /nonexistent/x", "cannot write the report to /nonexistent/x"),
    ] {
        let said = refused(line);
        assert!(said.starts_with(sentence), "{line}: {said}");
    }
}

fn measure(line: &str) -> Measure {
    match config(line).unwrap().job {
        Job::Measure(measure) => measure,
        _ => panic!("{line}"),
    }
}

#[test]
fn what_is_left_out_has_a_default() {
    let lat = measure("write lat");
    assert_eq!((lat.sizes, lat.depth, lat.limit), (vec![64], 1, Limit::Messages(1000)));
    let bw = measure("read bw --duration 0.5 --qps 3 --threads 2");
    assert_eq!((bw.sizes, bw.depth, bw.limit), (vec![4096], 128, Limit::Milliseconds(500)));
    assert_eq!((bw.qps, bw.workers), (3, 2));
    assert_eq!(measure("atomic bw").sizes, [8]);
    let all = measure("send bw --all").sizes;
    assert_eq!((all.len(), all[0], all[20]), (21, 1, 1 << 20));
    assert_eq!(measure("send bw -s 7,64-65").sizes, [7, 64, 65]);
    // A thread for each core.
    assert_eq!(measure("send bw --cores 1,3 --qps 2").workers, 2);
}

#[test]
fn a_bad_cable_is_counted_in_parts_per_million() {
    let cable = config("send bw --loss 1 --duplicate 0.5 --reorder 0.0001").unwrap().net.cable;
    assert_eq!((cable.loss_ppm, cable.duplicate_ppm, cable.reorder_ppm), (10_000, 5_000, 1));
    assert!(is_bad(&cable) && !is_bad(&config("send bw").unwrap().net.cable));
}
