//! Send queues without a device: what stands in their rings, and completions that a test writes.
//! Only the last one rings a doorbell.

use crate::common::{Two, rtr, rts, small};
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

/// Bytes of the ring from a block on.
fn ring(two: &Two, qp: &Qp<()>, at: u16, blocks: u16) -> Vec<u8> {
    (0..blocks).flat_map(|ahead| block(two, qp, at.wrapping_add(ahead))).collect()
}

#[test]
fn inline_data_of_every_length_stand_in_the_request_wherever_that_is() {
    let mut two = Two::new();
    let most = QpConfig::MAX_INLINE_BYTES;
    let (mut qp, _) = two.rc::<()>(&QpConfig { max_inline_bytes: most, ..small() });
    let data: Vec<u8> = (0..most).map(|at| (at * 7 + 1) as u8).collect();
    let mut at = 0;
    for len in 1..=most as usize {
        // Lengths by turns, so that the ring ends within each kind of them.
        for (op, header, opcode) in
            [(SendOp::Send, 16, 0x0a), (SendOp::Write(REMOTE), 32, 0x08), (SendOp::Send, 16, 0x0a)]
        {
            let wr = SendWr::signaled(at.into(), op).with(SendFlags::MORE);
            qp.post_send_inline(&wr, &data[..len]).unwrap();
            let ds = header / 16 + (4 + len).div_ceil(16);
            let blocks = ds.div_ceil(4) as u16;
            let bytes = ring(&two, &qp, at, blocks);
            assert_eq!((bytes[3], bytes[7]), (opcode, ds as u8), "{len} bytes");
            assert_eq!(bytes[header..header + 4], (1 << 31 | len as u32).to_be_bytes());
            assert_eq!(bytes[header + 4..header + 4 + len], data[..len], "at {at}");
            complete(&two, &qp, at);
            assert_eq!(take(&mut two, &mut qp), Ok(vec![at.into()]));
            at = at.wrapping_add(blocks);
        }
    }
    let wr = SendWr::signaled(0, SendOp::Send).with(SendFlags::MORE);
    assert_eq!(qp.post_send_inline(&wr, &[0; 929]), Err(PostError::InlineTooLong));
    qp.post_send_inline(&wr, &[]).unwrap();
    assert_eq!(block(&two, &qp, at)[7], 1, "nothing stands behind the control segment");
}

#[test]
fn every_operation_stands_in_its_request_with_its_operands_and_its_list() {
    let two = Two::new();
    let config = QpConfig { max_send_sge: 3, ..small() };
    let (mut qp, _) = two.rc::<[Buf; 3]>(&config);
    let (mut one, _) = two.rc::<Buf>(&config);
    let (mr, lkey) = (two.a.mr(), |bytes: &[u8]| bytes[4..8].to_vec());
    let word = |bytes: &[u8]| u64::from_be_bytes(bytes[..8].try_into().unwrap());
    let sender = |number: Qpn| Sender::Qp(number.0);
    // A fence, and a list of which the last entry starts the second block.
    let list = [0..10, 100..120, 200..230].map(|range| mr.buf(range).unwrap());
    let wr = SendWr::signaled(0, SendOp::WriteImm(REMOTE, 5)).with(SendFlags::FENCE);
    qp.post_send(&wr.with(SendFlags::MORE), Some(list)).unwrap();
    let blocks = [0, 1].map(|at| two.world.nic(0).send_block(sender(qp.qpn()), at));
    let bytes = blocks.concat();
    assert_eq!((bytes[3], bytes[7], bytes[11]), (0x09, 5, 2 << 5 | 2 << 2));
    assert_eq!((&bytes[12..16], word(&bytes[16..])), (&[0, 0, 0, 5][..], REMOTE.addr));
    for (at, len) in [(32, 10), (48, 20), (64, 30)] {
        assert_eq!(bytes[at..at + 4], [0, 0, 0, len]);
        assert_eq!(lkey(&bytes[at..]), lkey(&bytes[32..]));
    }
    assert_eq!(word(&bytes[72..]) - word(&bytes[40..]), 200);
    // Atomics: what is put or added first.
    let swap = SendOp::CompareSwap { remote: REMOTE, compare: 6, swap: 7 };
    let add = SendOp::FetchAdd { remote: REMOTE, add: 8 };
    for (at, op, opcode, operands) in [(0, swap, 0x11, [7, 6]), (1, add, 0x12, [8, 0])] {
        let wr = SendWr::signaled(1, op).with(SendFlags::MORE);
        one.post_send(&wr, Some(mr.buf(64..72).unwrap())).unwrap();
        let bytes = two.world.nic(0).send_block(sender(one.qpn()), at);
        assert_eq!((bytes[3], bytes[7]), (opcode, 4));
        assert_eq!(
            [16, 32, 40].map(|at| word(&bytes[at..])),
            [REMOTE.addr, operands[0], operands[1]]
        );
        assert_eq!(bytes[48..52], [0, 0, 0, 8]);
        let refused = one.post_send(&wr, Some(mr.buf(64..76).unwrap())).unwrap_err();
        assert_eq!(refused.cause, PostError::AtomicBuffer);
    }
    // Nothing at all.
    let wr = SendWr::signaled(2, SendOp::WriteImm(REMOTE, 5)).with(SendFlags::MORE);
    one.post_send(&wr, None).unwrap();
    let bytes = two.world.nic(0).send_block(sender(one.qpn()), 2);
    assert_eq!((bytes[3], bytes[7], word(&bytes[16..])), (0x09, 2, REMOTE.addr));
}
