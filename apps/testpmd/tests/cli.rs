//! The program as users start it: what it says, how it ends, and that its totals add up.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Output, Stdio},
};

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use serde_json::Value;

/// testpmd with these words; quiet, and kind to the other tests on this machine.
fn command(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_testpmd"));
    command.args(line.split_whitespace()).env_remove("RUST_LOG");
    command
}

fn run(line: &str) -> Output {
    let wait = if line.contains("--wait") { "" } else { "--wait sleep" };
    command(&format!("{line} {wait} --stats 0")).output().expect("testpmd starts")
}

/// A run that must end well: its report.
fn report(line: &str) -> Value {
    let output = run(&format!("{line} --json -"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(report["balanced"], true, "{report}");
    for port in report["ports"].as_array().expect("ports") {
        assert_eq!(port["model_refusals"], 0, "the model refused something: {said}");
        assert_eq!(port["buffers_missing"], 0, "{report}");
    }
    report
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// A run that must be refused: its one sentence.
fn refused(line: &str) -> String {
    let output = run(line);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{line}: {said}");
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{line}: {said}");
    assert!(said.ends_with(&format!("{}\n", errors[0])), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    assert!(output.stdout.is_empty(), "{line}");
    errors[0]["error: ".len()..].to_string()
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    let sentence = refused("--device eth0");
    assert!(sentence.starts_with("unknown device `eth0`; give `model`"), "{sentence}");
    let sentence = refused("--device ffff:ff:1f.7");
    assert!(sentence.contains("ffff:ff:1f.7"), "{sentence}");
}

#[test]
fn a_pci_device_of_another_kind_is_refused() {
    let devices = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let other = devices.map(|entry| entry.path()).find(|path| {
        fs::read_to_string(path.join("vendor")).is_ok_and(|vendor| vendor.trim() != "0x15b3")
    });
    let Some(path) = other else {
        println!("skipped: this machine has no PCI device");
        return;
    };
    let address = path.file_name().expect("a name").to_string_lossy();
    let sentence = refused(&format!("--device {address}"));
    assert!(sentence.contains(&*address) && sentence.contains("ConnectX"), "{sentence}");
}

#[test]
fn numbers_out_of_range_name_value_limit_and_option() {
    for (line, parts) in [
        ("--rxd 100", ["--rxd is 100", "power of two from 64 to 32768"]),
        ("--txd 65536", ["--txd is 65536", "32768"]),
        ("--queues 65", ["--queues is 65", "1 to 64"]),
        ("--queues 0", ["--queues is 0", "1 to 64"]),
        ("--burst 33", ["--burst is 33", "1, 2, 4, 8, 16, 32, 64 or 128"]),
        ("--mbufs 10", ["--mbufs is 10", "it must be"]),
        ("--mtu 67", ["--mtu is 67", "68 to 9978"]),
        ("--mtu 9979", ["--mtu is 9979", "68 to 9978"]),
        ("--mtu 9978 --size 60", ["MTU is 9978", "68 to 9956"]),
        ("--cores 1023", ["core 1023", "may use"]),
        ("--model-core 1023", ["core 1023", "may use"]),
        ("--forward-mode fast", ["forwarding mode `fast`", "io, mac"]),
        ("--rss l3", ["`l3`", "ip or l4"]),
        ("--size 20", ["20 is out of range", "60"]),
    ] {
        let sentence = refused(line);
        assert!(parts.iter().all(|part| sentence.contains(part)), "{line}: {sentence}");
    }
}

#[test]
fn files_and_interfaces_that_cannot_be_had_are_named() {
    let sentence = refused("--json /nonexistent/report.json");
    assert!(sentence.contains("/nonexistent/report.json"), "{sentence}");
    let sentence = refused("--pcap /nonexistent/x.pcapng");
    assert!(sentence.contains("/nonexistent/x.pcapng"), "{sentence}");
    let sentence = refused("--wire packet:fx-none");
    assert!(sentence.contains("fx-none"), "{sentence}");
}

#[test]
fn a_malformed_capture_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pcap");
    fs::write(&path, b"this is not a capture, whatever its name says").unwrap();
    let sentence = refused(&format!("--wire replay:{}", path.display()));
    assert!(sentence.contains("not a pcap or pcapng file"), "{sentence}");
    assert!(sentence.contains(&path.display().to_string()), "{sentence}");
}

#[test]
fn wrong_words_end_with_the_code_of_usage() {
    let output = run("--no-such-option");
    assert_eq!(output.status.code(), Some(2));
    let output = command("--help").output().unwrap();
    assert!(output.status.success());
}

#[test]
fn every_forwarding_mode_sends_every_frame_back() {
    for mode in ["io", "mac", "macswap"] {
        let report = report(&format!("--forward-mode {mode} --count 3000 --size 60,64,1514"));
        let generator = &report["ports"][0]["generator"];
        assert_eq!(number(&generator["sent"]), 3000, "{mode}");
        assert_eq!(number(&generator["returned"]), 3000, "{mode}");
        assert_eq!((number(&generator["lost"]), number(&generator["damaged"])), (0, 0), "{mode}");
        assert_eq!(number(&report["totals"]["forwarded"]["frames"]), 3000, "{mode}");
        assert_eq!(number(&report["totals"]["received"]["bytes"]), 1000 * (60 + 64 + 1514));
    }
}

#[test]
fn rxonly_counts_what_it_frees() {
    let report = report("--forward-mode rxonly --count 500 --rate 20000");
    let totals = &report["totals"];
    assert_eq!(number(&totals["received"]["frames"]), 500);
    assert_eq!(number(&totals["dropped"]["consumed"]), 500);
}

#[test]
fn txonly_sends_its_count_through_all_queues() {
    let report = report("--forward-mode txonly --count 1001 --queues 3 --size 64,1514");
    assert_eq!(number(&report["totals"]["generated"]["frames"]), 1001);
    assert_eq!(number(&report["ports"][0]["generator"]["foreign"]), 1001);
}

#[test]
fn a_core_that_waits_for_interrupts_polls_little_and_loses_nothing() {
    let report = report("--wait interrupt --rate 1000 --count 1000 --queues 2 --rxd 2048");
    let totals = &report["totals"];
    assert_eq!(number(&totals["forwarded"]["frames"]), 1000);
    // At most 1,000 rounds over two queues behind each frame; a core that never sleeps makes ten
    // million and more.
    assert!(number(&totals["polls"]) < 2 * 1100 * (1000 + 100), "{totals}");
}

#[test]
fn two_ports_exchange_their_frames() {
    let report = report("--ports 2 --count 2000 --queues 2 --flows 64");
    for port in report["ports"].as_array().unwrap() {
        assert_eq!(number(&port["counts"]["received"]["frames"]), 2000);
        // What one generator sends comes back to the other.
        assert_eq!(number(&port["generator"]["returned"]), 2000);
        assert_eq!(number(&port["generator"]["lost"]), 0);
    }
}

#[test]
fn linked_ports_receive_what_the_other_sends() {
    let report = report(
        "--wire link --wire link --forward-mode txonly --count 1000 --promiscuous --rate 50000 \
         --duration 60",
    );
    let totals = &report["totals"];
    assert_eq!(number(&totals["generated"]["frames"]), 1000);
    assert_eq!(totals["dropped"]["consumed"], totals["received"]["frames"]);
}

#[test]
fn jumbo_frames_cross_in_chains() {
    let report = report("--mtu 9000 --size 2048,2049,4225,9014 --count 400 --rxd 128 --txd 128");
    assert_eq!(number(&report["ports"][0]["generator"]["returned"]), 400);
}

#[test]
fn the_device_rewrites_checksums_that_were_zeroed() {
    let report = report("--checksum --count 1000 --size 64,1514");
    assert_eq!(number(&report["ports"][0]["generator"]["returned"]), 1000);
    assert_eq!(number(&report["ports"][0]["generator"]["damaged"]), 0);
}

#[test]
fn a_capture_has_each_frame_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pcapng");
    report(&format!("--count 100 --pcap {}", path.display()));
    let file = fs::File::open(&path).unwrap();
    let mut reader = pcap_file::pcapng::PcapNgReader::new(file).unwrap();
    let mut frames = 0;
    while let Some(block) = reader.next_block() {
        frames += u32::from(matches!(block.unwrap(), pcap_file::pcapng::Block::EnhancedPacket(_)));
    }
    assert_eq!(frames, 200);
}

/// Frames that are wrong in every way that one changed byte can make them: each is answered or has
/// its reason, and the queue lives on.
#[test]
fn malformed_frames_are_counted_by_reason() {
    let mut good = Vec::new();
    let builder =
        etherparse::PacketBuilder::ethernet2([0x02, 0xa2, 0, 0, 0, 1], [2, 0xfe, 12, 0, 0, 1]);
    let builder = builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).icmpv4_echo_request(1, 1);
    builder.write(&mut good, &[0x5a; 18]).unwrap();
    let mut frames = Vec::new();
    for at in 0..good.len() {
        for value in [0x00, 0xff, good[at] ^ 0x01, good[at] ^ 0x80] {
            let mut frame = good.clone();
            frame[at] = value;
            frames.push(frame);
        }
    }
    frames.push(good);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("malformed.pcap");
    write_pcap(&path, &frames);
    let line = format!("--wire replay:{} --forward-mode icmpecho --promiscuous", path.display());
    let count = frames.len() as u64;
    let report = report(&format!("{line} --rxd 1024 --count {count} --duration 300"));
    let totals = &report["totals"];
    assert_eq!(number(&totals["received"]["frames"]), count);
    for reason in
        ["other_station", "ipv4_checksum", "ipv4_malformed", "icmp_checksum", "bad_source"]
    {
        assert!(number(&totals["dropped"][reason]) > 0, "{reason}: {totals}");
    }
    assert!(number(&totals["forwarded"]["frames"]) > 0, "the good one was answered");
}

fn write_pcap(path: &Path, frames: &[Vec<u8>]) {
    let file = fs::File::create(path).unwrap();
    let mut writer = PcapWriter::with_header(file, PcapHeader::default()).unwrap();
    for frame in frames {
        let len = u32::try_from(frame.len()).unwrap();
        writer.write_packet(&PcapPacket::new(std::time::Duration::ZERO, len, frame)).unwrap();
    }
}

#[test]
fn ctrl_c_ends_a_run_cleanly_with_totals_that_add_up() {
    let mut child = command("--wait sleep --stats 0.05")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("testpmd starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    // Statistics say that frames move.
    while !line.contains(" in ") || line.contains(" in       0pps") {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "it ended early");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    let total =
        rest.lines().find_map(|line| line.strip_prefix("total: received ")).expect("totals");
    let numbers: Vec<u64> =
        total.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers[0], numbers[1] + numbers[2], "{total}");
    assert!(numbers[0] > 0, "{total}");
}

#[test]
fn rights_are_dropped_before_a_worker_runs() {
    if !rustix::process::geteuid().is_root() {
        let own = rustix::process::geteuid().as_raw() + 1;
        let sentence = refused(&format!("--user {own} --duration 1"));
        assert!(sentence.contains("start as root for that"), "{sentence}");
        println!("skipped: only root can become another user");
        return;
    }
    let mut child = command("--user 65534:65533 --wait sleep --stats 0.1 --duration 120")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("testpmd starts");
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    out.read_line(&mut line).expect("statistics");
    let threads = fs::read_dir(format!("/proc/{}/task", child.id())).expect("threads");
    let (mut seen, mut bound) = (0, 0);
    for thread in threads.flatten() {
        let status = fs::read_to_string(thread.path().join("status")).expect("a status");
        for line in [
            "Uid:\t65534\t65534\t65534\t65534\n",
            "Gid:\t65533\t65533\t65533\t65533\n",
            "Groups:\t \n",
            "CapPrm:\t0000000000000000\n",
            "CapEff:\t0000000000000000\n",
        ] {
            assert!(status.contains(line), "{line:?} in {status}");
        }
        bound += usize::from(status.contains("NoNewPrivs:\t1\n"));
        seen += 1;
    }
    // The model's thread started before, when nothing was bound yet.
    assert!(seen >= 3 && bound >= 2, "{bound} of {seen}: main and the worker, not the model");
    child.kill().expect("killed");
    child.wait().expect("ended");
}

/// A run with an open file as number 5, which a shell opens for it.
fn report_with_file(file: &Path, line: &str) -> Value {
    let mut command = Command::new("sh");
    command.args(["-c", "exec 5<>\"$0\"; exec \"$@\""]).arg(file);
    command.arg(env!("CARGO_BIN_EXE_testpmd")).args(line.split_whitespace());
    command.args(["--wait", "sleep", "--stats", "0", "--json", "-"]).env_remove("RUST_LOG");
    let output = command.output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
    serde_json::from_slice(&output.stdout).expect("a report")
}

#[test]
fn payloads_lie_in_the_memory_that_was_named() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(4 << 20).expect("room");
    let small = "--rxd 64 --txd 64 --mbuf-cache 64 --size 64,65,594,1514 --count 2000";
    for line in [
        "--split 64",
        "--split 200 --inline 256 --single-packet",
        "--forward-mode macswap --checksum --split 100",
    ] {
        let report = report_with_file(file.path(), &format!("--payload dmabuf:5 {small} {line}"));
        let port = &report["ports"][0];
        let generator = &port["generator"];
        assert_eq!((number(&generator["lost"]), number(&generator["damaged"])), (0, 0), "{line}");
        assert_eq!((number(&port["buffers_missing"]), number(&port["model_refusals"])), (0, 0));
    }
    let bytes = fs::read(file.path()).expect("the payloads");
    let pages = bytes.chunks(4096).filter(|page| page.iter().any(|byte| *byte != 0)).count();
    assert!(pages >= 100, "{pages} pages were written");
    let host = report(&format!("--payload host {small}"));
    assert_eq!(number(&host["ports"][0]["generator"]["damaged"]), 0);
}

#[test]
fn payloads_that_cannot_be_are_refused() {
    for (line, words) in [
        ("--payload gpu", "unknown peer memory `gpu`; give host, pci:ADDRESS/BAR"),
        ("--payload host --split 63", "--split is 63; it must be 64 to 2048"),
        ("--payload dmabuf:99", "inherited file 99: Bad file descriptor"),
        ("--payload pci:ffff:ff:1f.7/2", "ffff:ff:1f.7/resource: No such file"),
    ] {
        let sentence = refused(line);
        assert!(sentence.contains(words), "{sentence}");
    }
}
