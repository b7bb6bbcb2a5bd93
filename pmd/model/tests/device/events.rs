//! Event queues: entries, ownership, arming, interrupts, overrun. Reference 6.10, 2.4, 1.3.

use crate::common;
use crate::common::objects::{create_cq, create_eq};
use crate::common::{HEALTH_SYND, Host, be32, input, words};
use ferrocx_bus::{DmaAccess, DmaBuf, Transport};

const EQ_ARM: u64 = 0x40;
const EQ_CI: u64 = 0x48;

/// An event queue and the driver's view of it.
struct TestEq {
    uar: u32,
    eqn: u32,
    ring: DmaBuf,
    log_size: u32,
    ci: u32,
}

impl TestEq {
    fn new(host: &mut Host, log_size: u32, vector: u32, events: u32) -> Self {
        let uar = host.short(0x802, 0);
        Self::on(host, uar, log_size, vector, events)
    }

    fn on(host: &mut Host, uar: u32, log_size: u32, vector: u32, events: u32) -> Self {
        let ring = host.heap.alloc(64 << log_size, 4096).expect("room");
        // The driver starts with owner 1 in every entry.
        for entry in 0..1 << log_size {
            ring.copy_in(entry * 64 + 63, &[1]);
        }
        let eqn = host.ok(&create_eq(uar, log_size, vector, events, ring.iova()), 0x10).word(8);
        Self { uar, eqn, ring, log_size, ci: 0 }
    }

    /// The next entry, if it is the driver's.
    fn poll(&mut self) -> Option<[u8; 64]> {
        let mut entry = [0; 64];
        let index = self.ci & ((1 << self.log_size) - 1);
        self.ring.copy_out(index as usize * 64, &mut entry);
        if u32::from(entry[63] & 1) != self.ci >> self.log_size & 1 {
            return None;
        }
        self.ci += 1;
        Some(entry)
    }

    fn bell(&self, host: &mut Host, register: u64) {
        let value = self.eqn << 24 | self.ci & 0xff_ffff;
        host.bar.write_be32(u64::from(self.uar) * 4096 + register, value);
        host.step();
    }
}

fn link_events(host: &mut Host, count: usize) {
    for _ in 0..count {
        let is_up = host.nic.state().port.carrier;
        host.nic.set_carrier(!is_up);
    }
}

fn fired(fd: &std::os::fd::OwnedFd) -> bool {
    let mut buf = [0; 8];
    rustix::io::read(fd, &mut buf).is_ok()
}

const PORT_CHANGE: u32 = 1 << 9;
const COMMAND: u32 = 1 << 10;
const PAGE_REQUEST: u32 = 1 << 11;

#[test]
fn an_entry_has_the_bytes_of_the_manual() {
    let mut host = Host::up();
    let mut eq = TestEq::new(&mut host, 4, 0, PORT_CHANGE);
    host.nic.set_carrier(false);
    let entry = eq.poll().expect("an event");
    let mut expected = [0; 64];
    expected[1] = 9; // port change
    expected[3] = 1; // down
    expected[0x28] = 0x10; // port 1
    assert_eq!(entry, expected);
    host.nic.set_carrier(true);
    assert_eq!(eq.poll().expect("an event")[..4], [0, 9, 0, 4]);
    assert_eq!(eq.poll(), None);
}

#[test]
fn the_owner_bit_toggles_at_each_lap() {
    let mut host = Host::up();
    let mut eq = TestEq::new(&mut host, 2, 0, PORT_CHANGE);
    for lap in 0..5 {
        for _ in 0..4 {
            link_events(&mut host, 1);
            let entry = eq.poll().expect("an event");
            assert_eq!(entry[63], lap & 1, "lap {lap}");
            assert_eq!(eq.poll(), None, "only what was written is ours");
            eq.bell(&mut host, EQ_CI);
        }
    }
}

#[test]
fn events_go_to_the_queue_that_wants_them() {
    let mut host = Host::up();
    let mut pages = TestEq::new(&mut host, 4, 0, PAGE_REQUEST);
    let mut ports = TestEq::new(&mut host, 4, 0, PORT_CHANGE);
    host.nic.request_pages(3);
    let entry = pages.poll().expect("a page request");
    assert_eq!((entry[1], be32(&entry, 0x20), be32(&entry, 0x24)), (0x0b, 0, 3));
    host.nic.request_pages(-2);
    assert_eq!(be32(&pages.poll().expect("a page offer"), 0x24), -2_i32 as u32);
    assert_eq!(ports.poll(), None);
    link_events(&mut host, 1);
    assert!(ports.poll().is_some() && pages.poll().is_none());
}

#[test]
fn regular_pages_are_asked_for_once_somebody_listens() {
    let config = ferrocx_model::NicConfig { regular_pages: 9, ..Default::default() };
    let mut host = Host::up_with(config);
    let mut eq = TestEq::new(&mut host, 4, 0, PAGE_REQUEST);
    assert_eq!(be32(&eq.poll().expect("a page request"), 0x24), 9);
    let mut other = TestEq::new(&mut host, 4, 0, PAGE_REQUEST);
    assert!(eq.poll().is_none() && other.poll().is_none(), "only once");
    host.give_pages(9);
    assert_eq!(host.nic.state().pages.len(), 79);
}

#[test]
fn an_armed_queue_interrupts_once() {
    let mut host = Host::up();
    host.transport.interrupts().enable(8).expect("vectors");
    let fd = host.transport.interrupts().eventfd(5).expect("eventfd");
    let mut eq = TestEq::new(&mut host, 4, 5, PORT_CHANGE);
    link_events(&mut host, 1);
    assert!(!fired(&fd), "not armed");
    assert!(eq.poll().is_some());
    eq.bell(&mut host, EQ_CI);
    link_events(&mut host, 1);
    assert!(!fired(&fd), "a consumer index alone does not arm");
    assert!(eq.poll().is_some());
    eq.bell(&mut host, EQ_ARM);
    assert!(!fired(&fd), "armed, nothing happened yet");
    link_events(&mut host, 2);
    assert!(fired(&fd));
    assert!(!fired(&fd), "the second event found the queue no longer armed");
}

#[test]
fn arming_with_unseen_events_interrupts_at_once() {
    let mut host = Host::up();
    host.transport.interrupts().enable(8).expect("vectors");
    let fd = host.transport.interrupts().eventfd(0).expect("eventfd");
    let mut eq = TestEq::new(&mut host, 4, 0, PORT_CHANGE);
    link_events(&mut host, 2);
    eq.poll();
    eq.bell(&mut host, EQ_ARM);
    assert!(fired(&fd));
}

#[test]
fn a_full_queue_makes_the_device_ill() {
    let mut host = Host::up();
    let mut eq = TestEq::new(&mut host, 2, 0, PORT_CHANGE);
    link_events(&mut host, 4);
    assert_eq!(host.bar.read_be32(HEALTH_SYND), 0, "full, and nothing lost");
    link_events(&mut host, 1);
    assert_eq!(host.bar.read_be32(HEALTH_SYND) >> 16, 0x0c, "EQ overrun");
    assert_eq!((0..5).filter(|_| eq.poll().is_some()).count(), 4);
    let query = host.ok(&words(&[0x0303_0000, 0, eq.eqn, 0]), 0x110);
    assert_eq!(query.word(0x10) >> 28, 0xa);
}

#[test]
fn overrun_may_be_ignored() {
    let mut host = Host::up();
    let uar = host.short(0x802, 0);
    let page = host.ring(4096);
    let mut create = create_eq(uar, 2, 0, PORT_CHANGE, page);
    create[0x11] |= 2; // oi
    host.ok(&create, 0x10);
    link_events(&mut host, 9);
    assert_eq!(host.bar.read_be32(HEALTH_SYND), 0);
}

#[test]
fn an_event_queue_that_cannot_be_written_makes_the_device_ill() {
    let mut host = Host::up();
    let uar = host.short(0x802, 0);
    let read_only = common::map(&*host.transport.dma(), 4096, DmaAccess::Read);
    host.ok(&create_eq(uar, 4, 0, PORT_CHANGE, read_only.iova()), 0x10);
    link_events(&mut host, 1);
    assert_eq!(host.bar.read_be32(HEALTH_SYND) >> 16, 0x0d, "EQ error");
    assert_eq!(host.nic.log().last().map(|refusal| refusal.field), Some("eq pas"));
}

#[test]
fn bells_of_others_and_from_the_future_are_refused() {
    let mut host = Host::up();
    let mut eq = TestEq::new(&mut host, 4, 0, PORT_CHANGE);
    let other = host.short(0x802, 0);
    host.bar.write_be32(u64::from(other) * 4096 + EQ_ARM, eq.eqn << 24);
    host.step();
    assert_eq!(host.nic.log().last().map(|refusal| refusal.field), Some("eqn"));
    eq.ci = 1;
    eq.bell(&mut host, EQ_CI);
    assert_eq!(host.nic.log().last().map(|refusal| refusal.field), Some("eq ci"));
}

#[test]
fn commands_are_reported_once_a_queue_for_them_exists() {
    let mut host = Host::up();
    let mut eq = TestEq::new(&mut host, 4, 0, COMMAND);
    assert_eq!(eq.poll(), None, "its own creation is polled for");
    host.post(7, &words(&[0x080d_0000, 0, 0, 0]), 0x10);
    host.ring_bell(1 << 7);
    host.step();
    let entry = eq.poll().expect("a command event");
    assert_eq!((entry[1], be32(&entry, 0x20)), (0x0a, 1 << 7));
    assert!(host.take(7, 0x10).is_some());
    // Refused and undelivered commands complete as well.
    host.command(&words(&[0x0fff_0000, 0, 0, 0]), 0x10);
    assert_eq!(be32(&eq.poll().expect("a command event"), 0x20), 1);
    host.command(&words(&[0x080d_0000, 0, 0, 0]), 7);
    assert_eq!(be32(&eq.poll().expect("a command event"), 0x20), 1);
    // Its own destruction is polled for.
    host.short(0x302, eq.eqn);
    assert_eq!(eq.poll(), None);
}

#[test]
fn doorbells_as_two_words_ring_at_the_second() {
    let mut host = Host::up();
    let uar = host.short(0x802, 0);
    let page = host.ring(4096);
    let eqn = host.ok(&create_eq(uar, 4, 0, 0, page), 0x10).word(8);
    let (record, page) = (host.ring(64), host.ring(4096));
    let cqn = host.ok(&create_cq(uar, eqn, 4, record, page), 0x10).word(8);
    let at = u64::from(uar) * 4096 + 0x20;
    host.bar.write_be32(at, 0);
    host.step();
    assert_eq!(host.nic.state().counters.cq_doorbells, 0);
    host.bar.write_be32(at + 4, cqn);
    host.step();
    assert_eq!(host.nic.state().counters.cq_doorbells, 1);
    host.bar.write_be32(at + 4, cqn);
    host.step();
    assert_eq!(host.nic.log().last().map(|refusal| refusal.field), Some("uar register"));
}

#[test]
fn doorbells_behind_a_forced_teardown_reach_nothing_and_are_no_fault() {
    const CQ_ARM: u64 = 0x20;
    for (profile, is_forced) in [(1, true), (0, false)] {
        let mut host = Host::up();
        let uar = host.short(0x802, 0);
        host.ok(&words(&[0x0103_0000, 0, profile, 0]), 0x10);
        let refusals = host.nic.log().total();
        for register in [CQ_ARM, CQ_ARM + 4, EQ_ARM] {
            host.bar.write_be32(u64::from(uar) * 4096 + register, 1);
            host.step();
        }
        assert_eq!(host.nic.log().total() == refusals, is_forced, "profile {profile}");
        // The next driver has to ring its own pages.
        host.ok(&input(0x20, &[(0, 0x0102_0000)]), 0x10);
        host.bar.write_be32(u64::from(uar) * 4096 + EQ_ARM, 1);
        host.step();
        assert_eq!(host.nic.log().last().map(|refusal| refusal.field), Some("uar page"));
    }
}
