//! A host of load against targets of ours on models of this process.

mod common;

use clap::Parser;
use common::{NQN, with_target};
use ferrocx_app_common::signal::Stop;
use ferrocx_nvmf_target::bench::{Pattern, Plan, drive, with_own_target};
use ferrocx_nvmf_target::cli::{Args, Ask};
use ferrocx_nvmf_target::host::{Host, HostConfig, keyed, one};
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};

/// The plan of a command line.
fn try_plan(line: &str) -> anyhow::Result<Plan> {
    let args = Args::try_parse_from(format!("nvmf-target bench {line}").split_whitespace())?;
    match args.command {
        Some(Ask::Bench(args)) => Plan::check(&args),
        other => panic!("{other:?}"),
    }
}

fn plan(line: &str) -> Plan {
    try_plan(line).unwrap()
}

#[test]
fn what_is_asked_for_is_done_on_a_target_of_its_own() {
    for line in ["--rw mixed --depth 16 --queues 2", "--rw write --lend --size 16KiB --depth 4"] {
        let plan = plan(&format!("{line} --seconds 3 --wait yield"));
        let outcome = with_own_target(&plan, &Stop::new()).unwrap();
        assert!(outcome.commands > 16, "{line}: {outcome}");
        assert_eq!(outcome.bytes, outcome.commands * plan.len_bytes);
        assert_eq!(outcome.times.len(), outcome.commands);
        assert!(outcome.took >= plan.time);
        let json = outcome.json();
        assert_eq!(json["commands"], outcome.commands);
        let us = &json["us"];
        assert!(us["p50"].as_f64() <= us["max"].as_f64(), "{json}");
    }
}

#[test]
fn everything_is_written_and_compared_by_keys_of_both_kinds() {
    with_target(|here| {
        let target = here.base.target;
        for line in ["--lend --queues 3 --depth 7", "--size 512 --span 96KiB --depth 100"] {
            let nqn = format!("{target} --nqn {NQN}");
            let plan = plan(&format!("{nqn} --rw verify --wait yield {line}"));
            let outcome = drive(&here.base, &plan, &Stop::new()).unwrap();
            let all = plan.span_bytes.unwrap_or(8 << 20);
            assert_eq!(outcome.bytes, 2 * all, "{line}");
        }
        let stop = Stop::new();
        stop.raise();
        let whole = plan(&format!("{target} --nqn {NQN} --rw verify --wait yield"));
        let stopped = drive(&here.base, &whole, &stop).unwrap_err().to_string();
        assert!(stopped.starts_with("stopped after 0 of 4096 commands"), "{stopped}");
        // One that keeps nothing.
        let plan = Plan { nsid: 3, ..plan("--rw verify --span 64KiB --wait yield") };
        let plan = Plan { host: HostConfig::new(NQN), pattern: Pattern::Verify, ..plan };
        let refused = drive(&here.base, &plan, &Stop::new()).unwrap_err();
        assert!(refused.to_string().contains("was written there"), "{refused:#}");
    });
}

#[test]
fn what_does_not_fit_is_refused_by_one_sentence() {
    for (line, why) in [
        ("--rw copy", "rw is `copy`; give read, write, mixed or verify"),
        ("--depth 0", "depth is 0; give 1 to 1023"),
        ("--queues 65", "queues is 65; give 1 to 64"),
        ("--seconds 0", "seconds is 0; give 1 to 86400"),
        ("--size 2MiB", "size is 2097152; give 512 to 1048576"),
        ("--span x", "`x` is no size; give bytes, or a number with KiB, MiB, GiB, TiB"),
        ("--host x", "`x` is no name; give one like nqn.2014-08.org.example:disk"),
    ] {
        assert_eq!(try_plan(line).unwrap_err().to_string(), why);
    }
    with_target(|here| {
        let target = here.base.target;
        for (line, why) in [
            ("--nsid 9", format!("namespace 9 is none of {NQN}")),
            ("--size 700", "size is 700, and its blocks have 512 bytes; give a multiple".into()),
            (
                "--span 1GiB",
                "span is 1073741824, and the namespace has 8388608 bytes; make span \
              smaller"
                    .into(),
            ),
            ("--span 512", "span is 512, and size is 4096; make size smaller".into()),
            ("--depth 128", "depth is 128, and a queue takes 127; give less".into()),
            ("--queues 17", "queues are 17, and the target grants 16; give less".into()),
        ] {
            let plan = plan(&format!("{target} --nqn {NQN} {line}"));
            let refused = drive(&here.base, &plan, &Stop::new()).unwrap_err();
            assert_eq!(refused.to_string(), why, "{refused:#}");
        }
        // A refused host has left nothing: the next finds the target as it was.
        here.until_queues(0);
        // A command that fails ends it, and says which.
        let host = Host::connect(&here.base, &HostConfig::new(NQN)).unwrap();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (_, mr) = host.memory(4096).unwrap();
        let sgl = keyed(&mr.buf(0..16).unwrap());
        for (opcode, cdw10) in [(io::RESERVATION_REGISTER, 0u32), (io::RESERVATION_ACQUIRE, 2 << 8)]
        {
            // No key yet and the first one; then that.
            let at = if opcode == io::RESERVATION_REGISTER { 8 } else { 0 };
            let mut keys = mr.buf(0..16).unwrap();
            keys.copy_in(0, &[0; 16]).unwrap();
            keys.copy_in(at, &1u64.to_le_bytes()).unwrap();
            let sqe = Sqe { nsid: 1.into(), cdw10: cdw10.into(), ..Sqe::new(opcode, 0, sgl) };
            assert!(one(&mut queue, sqe).unwrap().status().is_success());
        }
        let plan = plan(&format!("{target} --nqn {NQN} --rw read --depth 1"));
        let refused = drive(&here.base, &plan, &Stop::new()).unwrap_err();
        let text = refused.to_string();
        assert!(
            text.starts_with("a read of 4096 bytes at ") && text.contains("conflict"),
            "{text}"
        );
    });
}
