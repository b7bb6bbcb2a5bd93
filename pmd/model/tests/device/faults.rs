//! Planned faults, and that the same plan gives the same bytes.

use crate::common::{HEALTH_SYND, Host, words};
use ferrocx_bus::Transport;
use ferrocx_model::NicConfig;
use ferrocx_model::fault::{CommandFault, Fault, FaultPlan};
use ferrocx_prm::syndrome::{CommandStatus, HealthSyndrome};

const NOP: [u32; 4] = [0x080d_0000, 0, 0, 0];

fn host(faults: &[Fault]) -> Host {
    let mut host = Host::new(NicConfig::default());
    host.nic.set_faults(FaultPlan::at(faults));
    host.set_queue();
    host
}

#[test]
fn the_nth_command_fails_as_planned() {
    for status in CommandStatus::ALL.iter().filter(|status| **status != CommandStatus::OK) {
        let fault = CommandFault::Status(*status);
        let mut host = host(&[Fault::Command { nth: 2, fault }]);
        host.ok(&words(&NOP), 0x10);
        assert_eq!(host.refused(&words(&NOP), status.0), "fault plan");
        host.ok(&words(&NOP), 0x10);
    }
}

#[test]
fn a_failed_command_was_not_executed() {
    let fault = CommandFault::Status(CommandStatus::INTERNAL_ERR);
    let mut host = host(&[Fault::Command { nth: 1, fault }]);
    host.refused(&words(&[0x0104_0000, 0, 0, 0]), 1);
    assert_eq!(host.refused(&words(&[0x010a_0000, 0, 0, 0]), 4), "hca state");
}

#[test]
fn a_stuck_command_leaves_the_other_slots_alone() {
    let mut host = host(&[Fault::Command { nth: 1, fault: CommandFault::Stuck }]);
    host.post(0, &words(&NOP), 0x10);
    host.ring_bell(1);
    (0..100).for_each(|_| {
        host.step();
    });
    assert_eq!(host.take(0, 0x10), None);
    host.post(31, &words(&NOP), 0x10);
    host.ring_bell(1 << 31);
    host.step();
    assert!(host.take(31, 0x10).is_some());
    host.transport.reset().expect("reset");
    host.step();
    host.set_queue();
    host.ok(&words(&NOP), 0x10);
}

#[test]
fn a_delayed_command_completes_after_a_later_one() {
    let fault = CommandFault::DelayNs(10_000);
    let mut host = host(&[Fault::Command { nth: 1, fault }]);
    host.post(0, &words(&NOP), 0x10);
    host.post(1, &words(&NOP), 0x10);
    host.ring_bell(3);
    host.step();
    assert!(host.take(0, 0x10).is_none() && host.take(1, 0x10).is_some());
    host.nic.step(host.now_ns + 9_999);
    assert!(host.take(0, 0x10).is_none());
    host.nic.step(host.now_ns + 10_000);
    assert!(host.take(0, 0x10).is_some());
}

#[test]
fn the_link_flaps() {
    let mut host = Host::up();
    let now = host.now_ns;
    host.nic.set_faults(FaultPlan::at(&[Fault::LinkFlap { at_ns: now + 5_000, down_ns: 20_000 }]));
    let is_up = |host: &Host| host.nic.state().port.is_up();
    host.nic.step(now + 4_999);
    assert!(is_up(&host));
    host.nic.step(now + 5_000);
    assert!(!is_up(&host));
    host.nic.step(now + 24_999);
    assert!(!is_up(&host));
    host.nic.step(now + 25_000);
    assert!(is_up(&host));
}

#[test]
fn the_device_falls_ill() {
    let syndrome = HealthSyndrome::HIGH_TEMP_ERR;
    let mut host = host(&[Fault::Health { at_ns: 50_000, syndrome }]);
    host.nic.step(49_999);
    assert_eq!(host.bar.read_be32(HEALTH_SYND), 0);
    host.nic.step(50_000);
    assert_eq!(host.bar.read_be32(HEALTH_SYND), 0x10 << 16);
}

#[test]
fn the_function_is_reset_in_mid_work() {
    let mut host = Host::up();
    host.base();
    let at_ns = host.now_ns + 10_000;
    host.nic.set_faults(FaultPlan::at(&[Fault::Reset { at_ns }]));
    host.nic.step(at_ns);
    host.nic.step(at_ns + 1);
    assert!(host.nic.state().objects.is_empty());
    assert_eq!(host.nic.state().counters.resets, 1);
}

/// The bytes that a fixed list of commands leaves behind, under a drawn plan.
fn transcript(seed: u64) -> Vec<u8> {
    let mut host = Host::with_seed(NicConfig::default(), 3);
    host.nic.set_faults(FaultPlan::seeded(seed, 40));
    host.set_queue();
    let mut bytes = Vec::new();
    for round in 0..64_u32 {
        let input = match round % 4 {
            0 => [0x0104_0000, 0, 0, 0],
            1 => [0x010a_0000, 0, 0, 0],
            2 => [0x0107_0000, 1 + round % 3, 0, 0],
            _ => NOP,
        };
        host.post(0, &words(&input), 0x70);
        host.ring_bell(1);
        host.now_ns += 15_000_000;
        host.nic.step(host.now_ns);
        let mut entry = [0; 64];
        host.queue.copy_out(0, &mut entry);
        bytes.extend(entry);
        bytes.extend(host.bar.read_be32(HEALTH_SYND).to_be_bytes());
    }
    bytes.extend(format!("{:?}", host.nic.log()).bytes());
    bytes
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let first = transcript(7);
    assert_eq!(first, transcript(7));
    assert_ne!(first, transcript(8), "another seed draws another plan");
}
