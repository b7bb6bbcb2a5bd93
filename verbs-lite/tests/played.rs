//! Send queues without a device: what stands in their rings, and completions that a test writes.
//! Only the last one rings a doorbell.

mod common;

use common::{Two, rtr, rts, small};
use ferrocx_model::played::Sender;
use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_verbs_lite::*;

const REMOTE: RemoteAddr = RemoteAddr { addr: 0x1122_3344_5566_7788, rkey: Rkey(0x99aa_bbcc) };

fn scene() -> (Two, Qp<()>) {
    let two = Two::new();
    let config = QpConfig { fast_reg: true, ..small() };
    let (qp, _) = two.rc::<()>(&config);
    (two, qp)
}

/// A block of the send ring, as the device would read it.
fn block(two: &Two, qp: &Qp<()>, at: u16) -> [u8; 64] {
    two.world.nic(0).send_block(Sender::Qp(qp.qpn().0), at)
}

/// Completes a request, as the device would.
fn complete(two: &Two, qp: &Qp<()>, at: u16) {
    two.world.nic(0).play_end(Sender::Qp(qp.qpn().0), at);
}

/// Third dword of the control segment: fence, completion, solicited. Source: reference 6.1.
fn flags(two: &Two, qp: &Qp<()>, at: u16) -> u8 {
    let control = block(two, qp, at);
    assert_eq!(control[8..11], [0, 0, 0]);
    control[11]
}

fn write(qp: &mut Qp<()>, wr_id: u64, flags: SendFlags) {
    let wr = SendWr { wr_id, flags, op: SendOp::Write(REMOTE) }.with(SendFlags::MORE);
    qp.post_send_inline(&wr, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
}

fn register(two: &Two, qp: &mut Qp<()>, wr_id: u64) -> RegisteredMr {
    let layout = ListLayout::Pages { log_page: 12 };
    let mr = two.a.pd.alloc_mr(layout, 1).unwrap();
    let mut list = two.a.context.alloc_page_list(layout, 1).unwrap();
    list.map(&two.a.memory, std::slice::from_ref(&(0..4096))).unwrap();
    let (flags, access) = (SendFlags::MORE, Access::LOCAL_WRITE);
    let wr = FastReg { wr_id, flags, start: 0, access, remote_invalidate: false };
    qp.post_fast_reg(&wr, mr, list).unwrap()
}

/// Takes one completion; which requests it ended.
fn take(two: &mut Two, qp: &mut Qp<()>) -> Result<Vec<u64>, WrongCompletion> {
    let mut ended = Vec::new();
    let completion = two.a.cq.poll().unwrap();
    qp.complete(completion, |wc| ended.push(wc.wr_id))?;
    Ok(ended)
}

#[test]
fn a_request_is_the_same_whether_or_not_it_was_looked_at_closely() {
    let (two, mut qp) = scene();
    // The first of a queue is looked at, the others are not.
    for at in 0..3 {
        write(&mut qp, at.into(), SendFlags::empty());
        let number = qp.qpn().0.to_be_bytes();
        let bytes = block(&two, &qp, at);
        assert_eq!(bytes[..8], [0, 0, at as u8, 0x08, number[1], number[2], number[3], 3]);
        assert_eq!(bytes[8..16], [0; 8]);
        assert_eq!(bytes[16..24], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(bytes[24..32], [0x99, 0xaa, 0xbb, 0xcc, 0, 0, 0, 0]);
        assert_eq!(bytes[32..44], [0x80, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
}

#[test]
fn what_a_request_waits_for_stands_in_it() {
    let (two, mut qp) = scene();
    write(&mut qp, 0, SendFlags::empty());
    let _first = register(&two, &mut qp, 1);
    write(&mut qp, 2, SendFlags::empty());
    write(&mut qp, 3, SendFlags::empty());
    write(&mut qp, 4, SendFlags::SIGNALED | SendFlags::SOLICITED);
    write(&mut qp, 5, SendFlags::FENCE);
    let _second = register(&two, &mut qp, 6);
    write(&mut qp, 7, SendFlags::FENCE);
    // A registration takes three blocks, a WRITE one.
    assert_eq!(flags(&two, &qp, 4), 1 << 5, "behind a registration: small fence");
    assert_eq!(flags(&two, &qp, 5), 0, "once");
    assert_eq!(flags(&two, &qp, 6), 2 << 2 | 1 << 1);
    assert_eq!(flags(&two, &qp, 7), 2 << 5, "fence");
    assert_eq!(flags(&two, &qp, 11), 4 << 5, "both");
}

#[test]
fn a_run_asks_for_a_completion_by_itself() {
    let (two, mut qp) = scene();
    // Half of 16 requests may go without, whatever their length.
    for at in 0..5 {
        write(&mut qp, at, SendFlags::empty());
    }
    drop(register(&two, &mut qp, 5));
    for at in 6..16 {
        write(&mut qp, at, SendFlags::empty());
    }
    assert_eq!(qp.free_wr(), 0);
    let blocks = (0..6).chain(8..18);
    let signaled: Vec<u16> = blocks.filter(|at| flags(&two, &qp, *at) & 2 << 2 != 0).collect();
    // The ninth request: three blocks are one request.
    assert_eq!(signaled, [10]);
}

#[test]
fn a_completion_ends_the_requests_up_to_the_one_it_names() {
    let (mut two, mut qp) = scene();
    (0..5).for_each(|at| write(&mut qp, at, SendFlags::empty()));
    complete(&two, &qp, 0);
    complete(&two, &qp, 3);
    complete(&two, &qp, 4);
    assert_eq!(take(&mut two, &mut qp), Ok(vec![0]));
    assert_eq!(take(&mut two, &mut qp), Ok(vec![1, 2, 3]));
    assert_eq!(take(&mut two, &mut qp), Ok(vec![4]));
    assert!(!qp.has_outstanding());
}

#[test]
fn a_completion_of_nothing_posted_is_refused() {
    let (mut two, mut qp) = scene();
    complete(&two, &qp, 0);
    assert_eq!(take(&mut two, &mut qp).unwrap_err().wqe_counter, 0);
    (0..3).for_each(|at| write(&mut qp, at, SendFlags::empty()));
    complete(&two, &qp, 3);
    assert_eq!(take(&mut two, &mut qp).unwrap_err().wqe_counter, 3);
    assert!(qp.has_outstanding(), "nothing has ended");
    complete(&two, &qp, 2);
    assert_eq!(take(&mut two, &mut qp), Ok(vec![0, 1, 2]));
    complete(&two, &qp, 2);
    assert!(take(&mut two, &mut qp).is_err(), "a second time");
}

#[test]
fn a_counter_inside_a_request_ends_nothing_behind_it() {
    let (mut two, mut qp) = scene();
    write(&mut qp, 0, SendFlags::empty());
    let mr = register(&two, &mut qp, 1);
    write(&mut qp, 2, SendFlags::empty());
    assert_eq!(qp.mr_state(&mr), MrState::Posted);
    // Blocks 1 to 3 are the registration's.
    complete(&two, &qp, 2);
    assert_eq!(take(&mut two, &mut qp), Ok(vec![0, 1]));
    assert_eq!(qp.mr_state(&mr), MrState::Valid);
    complete(&two, &qp, 4);
    assert_eq!(take(&mut two, &mut qp), Ok(vec![2]));
}

#[test]
fn an_error_inside_a_request_fails_that_one() {
    for inside in 1..4 {
        let (mut two, mut qp) = scene();
        write(&mut qp, 0, SendFlags::empty());
        let mr = register(&two, &mut qp, 1);
        write(&mut qp, 2, SendFlags::empty());
        // Blocks 1 to 3 are the registration's.
        let of = Sender::Qp(qp.qpn().0);
        two.world.nic(0).play_failure(of, inside, CqeSyndrome::LOCAL_PROT_ERR);
        let mut ended = Vec::new();
        let end = |wc: Wc<()>| ended.push((wc.wr_id, wc.result.map_err(|error| error.syndrome)));
        qp.complete(two.a.cq.poll().unwrap(), end).unwrap();
        assert_eq!(ended, [(0, Ok(())), (1, Err(CqeSyndrome::LOCAL_PROT_ERR))], "block {inside}");
        assert_eq!(qp.mr_state(&mr), MrState::Unknown);
        assert_eq!(qp.free_wr(), 15, "the one behind has not ended");
    }
}

#[test]
fn positions_go_on_after_a_reset_and_counters_start_over() {
    let (mut two, mut qp) = scene();
    write(&mut qp, 0, SendFlags::SIGNALED);
    let mr = register(&two, &mut qp, 1);
    qp.to_error().unwrap();
    two.world.settle();
    while qp.has_outstanding() {
        take(&mut two, &mut qp).unwrap();
    }
    assert_eq!(qp.mr_state(&mr), MrState::Unknown);
    qp.reset().unwrap();
    assert_eq!(qp.mr_state(&mr), MrState::Unknown, "of the life before");
    assert_eq!(qp.free_wr(), 16);
    qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 }).unwrap();
    qp.connect(&rtr(&two.a, &two.b, Qpn(0x123), 0)).unwrap();
    qp.activate(&rts(0)).unwrap();
    write(&mut qp, 2, SendFlags::empty());
    assert_eq!(block(&two, &qp, 0)[..4], [0, 0, 0, 0x08], "the counter starts over");
    assert_eq!(flags(&two, &qp, 0), 0, "no fence of the life before");
    assert_eq!(qp.free_wr(), 15);
}
