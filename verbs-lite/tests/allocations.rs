//! Nothing is allocated on the data path: posting, completing, registering, and a pipeline's turn,
//! counted in the thread that does it. The models run in another.

mod common;

use std::sync::Arc;

use ferrocx_heapcount::allocations;
use ferrocx_mempool::Mbuf;
use ferrocx_model::runner::{Runner, RunnerConfig};
use ferrocx_model::wire::link;
use ferrocx_verbs_lite::registrar::*;
use ferrocx_verbs_lite::*;

const ROUNDS: u64 = 20_000;

#[test]
fn the_data_path_allocates_nothing() {
    let (a, b) = link(1 << 20);
    let (transports, nics) = common::models(a, b);
    let runner = Runner::start(nics.into(), RunnerConfig::default()).unwrap();
    let [_, transport] = transports;
    let side = common::open(transport, 2);
    messages(&side);
    frames(&side);
    registrations(&side);
    pipeline(&side);
    drop(side);
    drop(runner);
}

/// Takes what the queue has; gives buffers, keys and lists back by `each`.
fn take<B: Buffers>(cq: &mut Cq, qp: &mut Qp<B>, mut each: impl FnMut(Wc<B>)) {
    while let Some(completion) = cq.poll() {
        qp.complete(completion, &mut each).unwrap();
    }
    std::thread::yield_now();
}

/// Into pieces of a region, into packets, and into either. Its objects end before the models do.
fn messages(side: &common::Side) {
    let mr = side.pd.get_dma_mr().unwrap().over(&side.memory).unwrap();
    writes(side, (0..4).map(|at| mr.buf(at * 64..at * 64 + 64).unwrap()).collect(), |_| ());
    let pool = common::pool("allocations");
    side.context.device().register_pool(&pool).unwrap();
    let empty = |packet: &mut Mbuf| assert!(packet.trim(packet.data_len()));
    writes(side, (0..4).map(|_| pool.get().unwrap()).collect(), empty);
    let (bufs, packets) = ((0..2).map(|_| mr.whole().unwrap().into()), 0..2);
    let both = bufs.chain(packets.map(|_| Payload::Mbuf(pool.get().unwrap())));
    writes(side, both.collect(), |payload| match payload {
        Payload::Mbuf(packet) => empty(packet),
        Payload::Buf(_) => (),
    });
}

/// Receives into these buffers, of messages to itself; each is made ready again by `renew`.
fn writes<B: Buffers>(side: &common::Side, mut bufs: Vec<B>, renew: impl Fn(&mut B)) {
    let (mut qp, mut cq) = looped_back::<B>(&side.context, &side.pd, 32).unwrap();
    let (mut posted, mut ended) = (0, 0);
    let before = allocations();
    while ended < ROUNDS / 2 {
        while let Some(buf) = bufs.pop() {
            let wr = SendWr::unsignaled(posted, SendOp::Send);
            qp.post_recv(posted, buf).unwrap();
            if qp.post_send_inline(&wr, &posted.to_ne_bytes()).is_ok() {
                posted += 1;
            }
        }
        qp.ring_doorbell_signaled();
        take(&mut cq, &mut qp, |wc| {
            assert_eq!(wc.result, Ok(()));
            if wc.opcode == WcOpcode::Recv {
                ended += 1;
            }
            bufs.extend(wc.into_buffers().map(|mut buffers| {
                renew(&mut buffers);
                buffers
            }));
        });
    }
    assert_eq!(allocations() - before, 0, "sends and receives");
}

/// Frames to an address of this port, which the device takes back in.
fn frames(side: &common::Side) {
    let config = QpConfig { qp_type: QpType::Raw, max_send_wr: 32, ..QpConfig::default() };
    let mut cq = side.context.create_cq(256).unwrap();
    let mut qp = side.pd.create_qp(&cq, &config).unwrap();
    side.start(&mut qp, 0);
    let mr = side.mr();
    side.fill(0, &side.mac().0);
    let mut bufs: Vec<Buf> = (0..16).map(|_| mr.buf(0..60).unwrap()).collect();
    let (mut posted, mut ended) = (0, 0);
    let before = allocations();
    while ended < ROUNDS / 4 {
        while let Some(buf) = bufs.pop() {
            let wr = SendWr::unsignaled(posted, SendOp::Frame).with(SendFlags::MORE);
            qp.post_send(&wr, Some(buf)).unwrap();
            posted += 1;
        }
        qp.ring_doorbell_signaled();
        take(&mut cq, &mut qp, |wc| {
            assert_eq!(wc.result, Ok(()));
            ended += 1;
            bufs.extend(wc.into_buffers());
        });
    }
    assert_eq!(allocations() - before, 0, "frames");
}

fn registrations(side: &common::Side) {
    let (mut qp, mut cq) = looped_back::<()>(&side.context, &side.pd, 64).unwrap();
    let layout = ListLayout::Pages { log_page: 12 };
    let mut mrs: Vec<_> = (0..16).map(|_| side.pd.alloc_mr(layout, 16).unwrap()).collect();
    let mut lists: Vec<_> =
        (0..16).map(|_| side.context.alloc_page_list(layout, 16).unwrap()).collect();
    let flags = SendFlags::SIGNALED | SendFlags::MORE;
    let wr = FastReg {
        wr_id: 1,
        flags,
        start: 0,
        access: Access::REMOTE_READ,
        remote_invalidate: false,
    };
    let (mut ended, pieces) = (0, [0..4096, 8192..9000]);
    let before = allocations();
    while ended < ROUNDS {
        // A list comes back before its key does.
        while !mrs.is_empty() && !lists.is_empty() {
            let (mr, mut list) = mrs.pop().zip(lists.pop()).unwrap();
            list.map(&side.memory, &pieces).unwrap();
            let bound = qp.post_fast_reg(&wr, mr, list).unwrap();
            qp.post_local_inv(2, flags, bound).unwrap();
        }
        qp.ring_doorbell();
        take(&mut cq, &mut qp, |wc| match wc.returned {
            Returned::PageList(list) => lists.push(list),
            Returned::Mr(mr) => {
                mrs.push(mr);
                ended += 1;
            }
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(allocations() - before, 0, "registrations and invalidations");
}

fn pipeline(side: &common::Side) {
    let lane = Lane::looped_back(&side.context, &side.pd, 64).unwrap();
    let memories = vec![Arc::clone(&side.memory)];
    let config = RegistrarConfig { keys: 16, ..RegistrarConfig::default() };
    let (mut client, mut worker) =
        registrar(&side.context, &side.pd, lane, memories, &config).unwrap();
    let (mut asked, mut ended) = (0, 0);
    let before = allocations();
    while ended < ROUNDS {
        let mut pieces = Pieces::new();
        pieces.push(0..4096);
        let access = Access::REMOTE_READ;
        let wanted =
            Registration { tag: asked, memory: 0, pieces, access, remote_invalidate: false };
        if asked < ROUNDS && client.register(wanted).is_ok() {
            asked += 1;
        }
        worker.turn();
        while let Some(answer) = client.poll() {
            match answer {
                Answer::Key { key, .. } => client.invalidate(key.id).unwrap(),
                Answer::Ended { .. } => ended += 1,
                other => panic!("{other:?}"),
            }
        }
        std::thread::yield_now();
    }
    assert_eq!(allocations() - before, 0, "a pipeline and its client");
    worker.drain(std::thread::yield_now);
}
