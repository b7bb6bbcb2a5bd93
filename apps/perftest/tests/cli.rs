//! The program as users start it: what it says, how it ends.

use std::process::{Command, Output};

fn run(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_perftest"))
        .args(line.split_whitespace())
        .env_remove("RUST_LOG")
        .output()
        .expect("perftest starts")
}

/// A run that must end well: what it printed.
fn said(line: &str) -> String {
    let output = run(line);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {error}");
    assert!(error.is_empty(), "{line}: {error}");
    String::from_utf8(output.stdout).expect("text")
}

/// A run that must be refused: its one sentence.
fn refused(line: &str) -> String {
    let output = run(line);
    let error = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{line}: {error}");
    assert!(output.stdout.is_empty(), "{line}");
    assert_eq!(error.lines().count(), 1, "{line}: {error}");
    error.trim_end().strip_prefix("error: ").expect("one error").to_string()
}

#[test]
fn both_ends_play_with_every_service_and_address() {
    for line in [
        "pingpong rc -c -n 20 -s 1",
        "pingpong rc -c -n 2 -s 70001 --mtu 4096 --ip 10.0.0.1/24 --wait sleep",
        "pingpong uc -c -n 20 -s 4097 --mtu 256 --ip fd00::1/64",
        "pingpong ud -c -n 20 -s 1024",
        "pingpong srq -c -n 100 -s 5000",
        "pingpong srq -c -n 7 -s 1 --qps 7 --ip 10.0.0.1/24",
        "pingpong rc -c -n 20 -s 5000 --srq",
        "pingpong uc -c -n 20 -s 5000 --srq",
        "pingpong ud -c -n 20 -s 100 --srq",
    ] {
        assert!(said(line).contains("every byte was right"), "{line}");
    }
}

#[test]
fn a_report_and_a_capture_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let (json, pcap) = (folder.path().join("r.json"), folder.path().join("w.pcapng"));
    let line = format!("pingpong rc -n 5 --json {} --pcap {}", json.display(), pcap.display());
    assert!(said(&line).starts_with("rc 4096 bytes, 5 exchanges in "));
    let report = std::fs::read_to_string(json).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["exchanges"], 5);
    assert_eq!(report["device"], "model:seed=1");
    // The first block of a pcapng file. Source: its specification, section header block.
    assert_eq!(std::fs::read(pcap).expect("a capture")[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
}

#[test]
fn what_cannot_be_done_is_refused_in_one_sentence() {
    let sentence = refused("pingpong rc --device ffff:ff:1f.7");
    assert!(sentence.starts_with("device ffff:ff:1f.7: "), "{sentence}");
    assert!(refused("pingpong tcp").starts_with("unknown kind of pingpong `tcp`"));
}

/// A measurement that must end well: its rounds.
fn rounds(line: &str) -> Vec<serde_json::Value> {
    let output = run(&format!("{line} --verify --json -"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
    assert!(said.contains("every byte was right"), "{line}: {said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(report["group"].as_str().is_some_and(|group| group.starts_with("model/")), "{report}");
    let rounds = report["rounds"].as_array().expect("rounds").clone();
    let checks = |round: &serde_json::Value| {
        round["messages_checked"].as_u64() >= round["messages"].as_u64()
    };
    assert!(rounds.iter().all(checks), "{report}");
    rounds
}

#[test]
fn every_operation_is_measured_and_verified() {
    for test in ["send", "write", "read"] {
        let line = format!("{test} bw -n 50 -s 1,4097,70000 --depth 16 --mtu 256");
        assert_eq!(rounds(&line).len(), 3, "{line}");
        let all = rounds(&format!("{test} lat -n 30 -s 1,300"));
        assert!(all.iter().all(|round| round["microseconds"]["max"].as_f64() > Some(0.0)));
    }
    assert_eq!(rounds("atomic bw -n 600 --depth 40")[0]["messages"], 600);
    assert_eq!(rounds("atomic lat -n 20")[0]["messages"], 20);
}

#[test]
fn batches_and_unsignaled_runs_save_doorbells() {
    for test in ["send", "write"] {
        let line = format!("{test} bw -n 300 -s 64 --depth 32 --signal-every 7 --batch 8");
        for inline in [0, 64] {
            let round = &rounds(&format!("{line} --inline {inline} --qps 3 --threads 2"))[0];
            assert_eq!(round["messages"], 900, "{line}");
            assert!(round["doorbells"].as_u64() < Some(450), "{round}");
        }
    }
    assert!(rounds("read bw --duration 1 --signal-every 5 -s 8")[0]["messages"].as_u64() > Some(0));
}

#[test]
fn a_bad_cable_changes_no_byte() {
    let cable = "--loss 1 --reorder 1 --duplicate 1 --corrupt 0.5 --ack-timeout 10 --mtu 256";
    for test in ["send", "write", "read"] {
        rounds(&format!("{test} bw -n 200 -s 2000 --depth 16 {cable}"));
    }
    rounds(&format!("atomic bw -n 400 --depth 16 {cable}"));
    // An acknowledgement that is lost holds nothing up.
    for test in ["send", "write"] {
        rounds(&format!("{test} lat -n 200 -s 100 --loss 5 --ack-timeout 10"));
    }
}

#[test]
fn the_connection_manager_brings_both_ends_together() {
    // Many rounds, queue pairs and threads; both families; without and with an address given.
    for line in [
        "send bw --cm -n 50 -s 1,4097,70000 --depth 16 --qps 5 --threads 2",
        "write bw -R -n 50 -s 8,5000 --depth 16 --ip 10.0.0.1/24 --mtu 4096",
        "send lat --rdma_cm -n 20 -s 1,300 --ip fd00::1/64",
        "atomic bw --cm -n 60 --qps 3",
        "fastreg bw --cm -n 100 --depth 8 --threads 2 -s 1,3000",
    ] {
        assert!(!rounds(line).is_empty(), "{line}");
    }
    // What the manager says is repeated until it arrives.
    let cable = "--loss 3 --reorder 1 --duplicate 1 --ack-timeout 10";
    rounds(&format!("send bw --cm -n 100 -s 2000 --depth 16 --qps 4 {cable}"));
}

#[test]
fn a_plot_holds_the_data_of_each_size() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("p.gp");
    said(&format!("send lat -n 20 -s 8,9 --plot {}", path.display()));
    let plot = std::fs::read_to_string(&path).expect("a plot");
    assert!(plot.contains("$times1 << EOD\n") && plot.contains("title '9 bytes'"), "{plot}");
    said(&format!("write bw -n 20 -s 8 --plot {}", path.display()));
    let plot = std::fs::read_to_string(&path).expect("a plot");
    assert!(plot.contains("$rates << EOD\n8 "), "{plot}");
}

#[test]
fn pipelines_register_and_the_other_end_writes_through_every_key() {
    let alone = said("fastreg bw -n 500 --depth 8 --threads 2");
    assert!(alone.starts_with("model/fastreg_bw "), "{alone}");
    said("fastreg lat -n 50");
    let round = &rounds("fastreg bw -n 200 --depth 8 --threads 2 -s 5000")[0];
    assert_eq!((&round["messages"], &round["messages_checked"]), (&400.into(), &400.into()));
    let cable = "--loss 1 --reorder 1 --duplicate 1 --ack-timeout 10";
    assert_eq!(rounds(&format!("fastreg bw -n 200 --depth 16 -s 1,3000 {cable}")).len(), 2);
}

#[test]
fn messages_lie_in_an_inherited_file() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(4 << 20).expect("room");
    let mut command = Command::new("sh");
    // A shell opens the file as number 5.
    command.args(["-c", "exec 5<>\"$0\"; exec \"$@\""]).arg(file.path());
    command.arg(env!("CARGO_BIN_EXE_perftest"));
    let line = "write bw --peer dmabuf:5 --verify -n 20 -s 10000 --depth 16 --wait sleep";
    let output = command.args(line.split_whitespace()).output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && (said + error.clone()).contains("every byte was right"),
        "{error}"
    );
    // Each end has its half of the file.
    let bytes = std::fs::read(file.path()).expect("the messages");
    for half in bytes.chunks(2 << 20) {
        assert!(half.iter().any(|byte| *byte != 0));
    }
    let sentence = refused("write bw --peer dmabuf:99");
    assert!(sentence.contains("inherited file 99"), "{sentence}");
}
