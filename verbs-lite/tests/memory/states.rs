//! Any sequence of steps on keys and windows, against an oracle that knows which of them a peer can
//! use. A peer tries each key after each sequence, and every key that ended on the way.

#![allow(clippy::single_range_in_vec_init, reason = "lists of one piece")]

use crate::common::{Two, rts, small, syndromes, take};
use ferrocx_verbs_lite::*;
use proptest::prelude::*;

const SLOTS: usize = 3;
const LISTS: ListLayout = ListLayout::Pages { log_page: 12 };
const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
const U: SendFlags = SendFlags::empty();
const REMOTE_ACCESS: u8 = 0x13;

/// A step on a slot.
#[derive(Debug, Clone, Copy)]
enum Step {
    Register(usize),
    Bind(usize),
    /// Ends what is there by a request.
    End(usize),
    /// The peer ends it.
    EndByPeer(usize),
    Revoke(usize),
    Drop(usize),
    /// Everything posted is carried out.
    Settle,
    /// Both queue pairs fail, with whatever is in flight, and start anew.
    Fail,
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..SLOTS;
    prop_oneof![
        4 => at().prop_map(Step::Register),
        3 => at().prop_map(Step::Bind),
        3 => at().prop_map(Step::End),
        2 => at().prop_map(Step::EndByPeer),
        1 => at().prop_map(Step::Revoke),
        1 => at().prop_map(Step::Drop),
        3 => Just(Step::Settle),
        1 => Just(Step::Fail),
    ]
}

/// What is in a slot. The types allow no other step than the ones taken here.
enum Place {
    Empty,
    Mr(RegisteredMr),
    Mw(BoundMw),
    /// The queue pair has it.
    Ending,
}

struct Run {
    qa: Qp,
    qb: Qp,
    region: Mr,
    places: [Place; SLOTS],
    /// Keys that no peer may use any more.
    ended: Vec<RemoteAddr>,
    /// Keys and lists that came back.
    returned: usize,
    // Last: the models must live while the objects above are destroyed.
    two: Two,
}

impl Run {
    fn new() -> Self {
        let two = Two::new();
        let config = QpConfig { fast_reg: true, max_send_wr: 64, ..small() };
        let (qa, qb) = two.rc(&config);
        let access = ACCESS | Access::MW_BIND;
        let region = two.b.pd.reg_mr(&two.b.memory, 0..65536, access).unwrap();
        let places = [const { Place::Empty }; SLOTS];
        Self { qa, qb, region, places, ended: Vec::new(), returned: 0, two }
    }

    fn take(&mut self, at: usize) -> Place {
        std::mem::replace(&mut self.places[at], Place::Empty)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Register(at) if matches!(self.places[at], Place::Empty) => {
                let mr = self.two.b.pd.alloc_mr(LISTS, 8).unwrap();
                let mut list = self.two.b.context.alloc_page_list(LISTS, 8).unwrap();
                list.map(&self.two.b.memory, &[at * 4096..at * 4096 + 4096]).unwrap();
                let wr = FastReg {
                    wr_id: at as u64,
                    flags: U,
                    start: 0,
                    access: ACCESS,
                    remote_invalidate: true,
                };
                self.places[at] = Place::Mr(self.qb.post_fast_reg(&wr, mr, list).unwrap());
            }
            Step::Bind(at) if matches!(self.places[at], Place::Empty) => {
                let mw = self.two.b.pd.alloc_mw().unwrap();
                let wr = BindMw { wr_id: at as u64, flags: U, access: Access::REMOTE_WRITE };
                let range = at * 4096..at * 4096 + 4096;
                let mw = self.qb.post_bind_mw(&wr, mw, &self.region, range).unwrap();
                self.places[at] = Place::Mw(mw);
            }
            Step::End(at) => self.end(at),
            Step::EndByPeer(at) => self.end_by_peer(at),
            Step::Revoke(at) => match self.take(at) {
                Place::Mr(mr) => {
                    self.ended.push(mr.remote());
                    self.settle();
                    drop(mr.revoke().unwrap());
                }
                Place::Mw(mw) => {
                    self.ended.push(mw.remote());
                    self.settle();
                    drop(mw.revoke().unwrap());
                }
                other => self.places[at] = other,
            },
            Step::Drop(at) => match &self.places[at] {
                Place::Mr(mr) => {
                    self.ended.push(mr.remote());
                    self.settle();
                    self.take(at);
                }
                Place::Mw(mw) => {
                    self.ended.push(mw.remote());
                    self.settle();
                    self.take(at);
                }
                Place::Empty | Place::Ending => {}
            },
            Step::Settle => self.settle(),
            Step::Fail => self.fail(),
            Step::Register(_) | Step::Bind(_) => {}
        }
    }

    fn end(&mut self, at: usize) {
        let id = at as u64;
        match self.take(at) {
            Place::Mr(mr) => {
                self.ended.push(mr.remote());
                self.qb.post_local_inv(id, U, mr).unwrap();
                self.places[at] = Place::Ending;
            }
            Place::Mw(mw) => {
                self.ended.push(mw.remote());
                self.qb.post_local_inv_mw(id, U, mw).unwrap();
                self.places[at] = Place::Ending;
            }
            other => self.places[at] = other,
        }
    }

    fn end_by_peer(&mut self, at: usize) {
        // The peer can only know a key whose registration was carried out.
        self.settle();
        let rkey = match &self.places[at] {
            Place::Mr(mr) => mr.rkey(),
            Place::Mw(mw) => mw.rkey(),
            Place::Empty | Place::Ending => return,
        };
        self.qb.post_recv(99, self.region.buf(60000..60008).unwrap()).unwrap();
        let wr = SendWr::signaled(1, SendOp::SendInv(rkey));
        self.qa.post_send_inline(&wr, &[0; 8]).unwrap();
        self.two.world.settle();
        assert!(take(&mut self.two.a.cq, &mut self.qa).iter().all(|wc| wc.result.is_ok()));
        let mut proof = None;
        for wc in take(&mut self.two.b.cq, &mut self.qb) {
            proof = proof.or(wc.recv.invalidated);
        }
        let proof = proof.expect("the key was valid");
        match self.take(at) {
            Place::Mr(mr) => {
                self.ended.push(mr.remote());
                mr.invalidated_by(proof).unwrap().dealloc().unwrap();
            }
            Place::Mw(mw) => {
                self.ended.push(mw.remote());
                mw.invalidated_by(proof).unwrap().dealloc().unwrap();
            }
            Place::Empty | Place::Ending => unreachable!("looked at above"),
        }
    }

    /// Everything posted ends, which a signaled request behind it tells.
    fn settle(&mut self) {
        self.qb.ring_doorbell_signaled();
        self.two.world.settle();
        self.collect();
        assert!(!self.qb.has_outstanding() && self.qb.state() == QpState::Rts);
        for place in &self.places {
            match place {
                Place::Mr(mr) => assert_ne!(self.qb.mr_state(mr), MrState::Posted),
                Place::Mw(mw) => assert_ne!(self.qb.mw_state(mw), MrState::Posted),
                Place::Empty => {}
                Place::Ending => panic!("it did not come back"),
            }
        }
    }

    fn collect(&mut self) {
        for wc in take(&mut self.two.b.cq, &mut self.qb) {
            let at = wc.wr_id as usize;
            match wc.returned {
                Returned::PageList(_) => self.returned += 1,
                Returned::Mr(mr) => {
                    assert_eq!(wc.result, Ok(()));
                    self.places[at] = Place::Empty;
                    mr.dealloc().unwrap();
                }
                Returned::Mw(mw) => {
                    assert_eq!(wc.result, Ok(()));
                    self.places[at] = Place::Empty;
                    mw.dealloc().unwrap();
                }
                // They were to end: that they may not have is why they are revoked.
                Returned::Stale(mr) => {
                    self.places[at] = Place::Empty;
                    drop(mr.revoke().unwrap());
                }
                Returned::StaleMw(mw) => {
                    self.places[at] = Place::Empty;
                    drop(mw.revoke().unwrap());
                }
                Returned::Nothing | Returned::Buffers(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn fail(&mut self) {
        self.qa.to_error().unwrap();
        self.qb.to_error().unwrap();
        self.two.world.settle();
        let _ = take(&mut self.two.a.cq, &mut self.qa);
        self.collect();
        for at in 0..SLOTS {
            let state = match &self.places[at] {
                Place::Mr(mr) => self.qb.mr_state(mr),
                Place::Mw(mw) => self.qb.mw_state(mw),
                Place::Empty => continue,
                Place::Ending => panic!("it did not come back"),
            };
            // What is not known to be valid is ended; what is stays in use.
            if state != MrState::Valid {
                match self.take(at) {
                    Place::Mr(mr) => {
                        self.ended.push(mr.remote());
                        drop(mr.revoke().unwrap());
                    }
                    Place::Mw(mw) => {
                        self.ended.push(mw.remote());
                        drop(mw.revoke().unwrap());
                    }
                    Place::Empty | Place::Ending => {}
                }
            }
        }
        self.restart();
    }

    fn restart(&mut self) {
        self.qa.reset().unwrap();
        self.qb.reset().unwrap();
        self.two.join([&mut self.qa, &mut self.qb], [Access::REMOTE; 2], &rts(0));
    }

    /// The syndrome of a write of the peer.
    fn attempt(&mut self, remote: RemoteAddr) -> u8 {
        let wr = SendWr::signaled(1, SendOp::Write(remote));
        self.qa.post_send_inline(&wr, &[1; 8]).unwrap();
        self.two.world.settle();
        syndromes(&take(&mut self.two.a.cq, &mut self.qa))[0]
    }

    /// What the oracle says of every key, tried.
    fn verify(&mut self) {
        self.settle();
        for at in 0..SLOTS {
            let (remote, state) = match &self.places[at] {
                Place::Mr(mr) => (mr.remote(), self.qb.mr_state(mr)),
                Place::Mw(mw) => (mw.remote(), self.qb.mw_state(mw)),
                Place::Empty | Place::Ending => continue,
            };
            assert_eq!((state, self.attempt(remote)), (MrState::Valid, 0), "slot {at}");
        }
        // Each refusal costs the connection.
        for remote in std::mem::take(&mut self.ended) {
            assert_eq!(self.attempt(remote), REMOTE_ACCESS, "a key that has ended: {remote:?}");
            let _ = take(&mut self.two.b.cq, &mut self.qb);
            self.qa.to_error().unwrap();
            self.qb.to_error().unwrap();
            self.two.world.settle();
            self.restart();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn keys_work_as_long_as_the_oracle_says(steps in prop::collection::vec(step(), 1..40)) {
        let mut run = Run::new();
        for step in steps {
            run.step(step);
        }
        run.verify();
    }
}
