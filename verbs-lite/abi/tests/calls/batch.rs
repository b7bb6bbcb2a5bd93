//! Requests built by functions, and data that stand in requests: what the peer has then.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use super::abi::*;
use super::c;
use super::world::{Pages, World};

/// `IBV_SEND_*`.
const FENCE: u32 = 1;
const SIGNALED: u32 = 1 << 1;
const INLINE: u32 = 1 << 3;
/// What the queue pair takes.
const CAP: ibv_qp_cap = ibv_qp_cap {
    max_send_wr: 16,
    max_recv_wr: 1,
    max_send_sge: 7,
    max_recv_sge: 1,
    max_inline_data: 128,
};
/// Where data come from, where they are written to, and where they are read to.
const FROM: usize = 0;
const TO: usize = 1024;
const BACK: usize = 2048;

/// A queue pair that is its own peer, and memory that it reaches.
struct Loop<'a> {
    world: &'a World<'a>,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    mr: *mut ibv_mr,
    pages: Pages,
}

impl<'a> Loop<'a> {
    fn new(world: &'a World<'a>) -> Self {
        const WRITE_SEND_READ: u64 = 1 | 1 << 2 | 1 << 4;
        let (api, pages) = (world.api, Pages::new(4096));
        let pd = c!((api.ibv_alloc_pd)(world.context.0));
        let cq = c!((api.ibv_create_cq)(world.context.0, 32, null_mut(), null_mut(), 0));
        let qp = world.connection_of((pd, cq, null_mut()), CAP, false, WRITE_SEND_READ);
        world.join(qp, qp);
        // Everything but windows.
        let mr = c!((api.ibv_reg_mr)(pd, pages.0.cast(), 4096, 0xf));
        for at in 0..TO {
            c!(pages.0.add(at).write_volatile(at as u8 ^ 0x5a));
        }
        Self { world, pd, cq, qp, mr, pages }
    }

    fn face(&self) -> *mut ibv_qp_ex {
        self.qp.cast()
    }

    /// Says the number and the flags of the next request of a batch.
    fn begin(&self, wr_id: u64, wr_flags: u32) {
        c!(((*self.face()).wr_id, (*self.face()).wr_flags) = (wr_id, wr_flags));
    }

    fn write(&self, wr_id: u64, wr_flags: u32, to: usize) {
        self.begin(wr_id, wr_flags);
        c!(((*self.face()).wr_rdma_write)(self.face(), (*self.mr).rkey, self.at(to)));
    }

    fn set(&self, from: usize, length: u32) {
        let (addr, lkey) = (self.at(from), c!((*self.mr).lkey));
        c!(((*self.face()).wr_set_sge)(self.face(), lkey, addr, length));
    }

    fn at(&self, place: usize) -> u64 {
        self.pages.0.wrapping_add(place).addr() as u64
    }

    fn piece(&self, place: usize, length: u32) -> ibv_sge {
        ibv_sge { addr: self.at(place), length, lkey: c!((*self.mr).lkey) }
    }

    fn bytes(&self, place: usize, len: usize) -> Vec<u8> {
        (place..place + len).map(|at| c!(self.pages.0.add(at).read_volatile())).collect()
    }

    /// Waits for so many completions; their numbers and statuses.
    fn take(&self, count: usize) -> Vec<(u64, i32)> {
        let (mut ended, start) = (Vec::new(), Instant::now());
        while ended.len() < count {
            assert!(start.elapsed() < Duration::from_secs(20), "{ended:?} is all");
            ended.extend(self.world.take_ended(self.cq));
        }
        ended
    }

    fn end(self) {
        let api = self.world.api;
        c!({
            assert_eq!((api.ibv_destroy_qp)(self.qp), 0);
            assert_eq!((api.ibv_destroy_cq)(self.cq), 0);
            assert_eq!((api.ibv_dereg_mr)(self.mr), 0);
            assert_eq!((api.ibv_dealloc_pd)(self.pd), 0);
        });
    }
}

impl World<'_> {
    /// Builds batches of requests that are alike and that are not.
    pub(crate) fn batches(&self) {
        let of = Loop::new(self);
        let face = of.face();
        let call = c!(&*face);
        let (start, complete) = (|| c!((call.wr_start)(face)), || c!((call.wr_complete)(face)));
        start();
        for at in [0, 8] {
            of.write(at, 0, TO + at as usize);
            of.set(at as usize, 8);
        }
        of.write(1, SIGNALED, TO + 16);
        of.set(16, 8);
        // Who sets data that do not stand in the request has the last word.
        of.write(2, SIGNALED | INLINE, TO + 24);
        of.set(24, 8);
        let mut own = [0x77_u8; 8];
        of.write(3, SIGNALED, TO + 32);
        c!((call.wr_set_inline_data)(face, own.as_ptr(), own.len()));
        own.fill(0);
        of.write(4, SIGNALED, TO + 40);
        c!((call.wr_set_sge_list)(face, 2, [of.piece(40, 3), of.piece(43, 5)].as_ptr()));
        of.begin(5, SIGNALED | FENCE);
        c!((call.wr_rdma_read)(face, (*of.mr).rkey, of.at(TO)));
        of.set(BACK, 48);
        of.write(6, SIGNALED, TO + 48);
        of.set(48, 8);
        assert_eq!(complete(), 0);
        assert_eq!(of.take(6), [1, 2, 3, 4, 5, 6].map(|wr_id| (wr_id, 0)));
        let mut expected = of.bytes(FROM, 56);
        expected[32..40].fill(0x77);
        assert_eq!(of.bytes(TO, 56), expected);
        assert_eq!(of.bytes(BACK, 48), expected[..48]);
        // One too many is none at all; nor is a batch that is given up.
        for count in [CAP.max_send_wr + 1, 1] {
            start();
            for _ in 0..count {
                of.write(9, SIGNALED, TO);
                of.set(8, 8);
            }
            match count {
                1 => c!((call.wr_abort)(face)),
                _ => assert_eq!(complete(), libc::ENOMEM),
            }
        }
        start();
        of.set(8, 8);
        assert_eq!(complete(), libc::EINVAL, "the data of no request");
        assert_eq!(of.bytes(TO, 56), expected);
        // As many as there is room for, alike.
        start();
        for at in 0..u64::from(CAP.max_send_wr) {
            of.write(at, SIGNALED, TO + 8 * at as usize);
            of.set(8 * at as usize, 8);
        }
        assert_eq!(complete(), 0);
        let all = (0..u64::from(CAP.max_send_wr)).map(|wr_id| (wr_id, 0));
        assert_eq!(of.take(CAP.max_send_wr as usize), all.collect::<Vec<_>>());
        assert_eq!(of.bytes(TO, 128), of.bytes(FROM, 128));
        of.end();
    }

    /// Builds batches of a good request and one that is refused for what it says: nothing of them
    /// is carried out.
    pub(crate) fn refused_batches(&self) {
        let of = Loop::new(self);
        let face = of.face();
        let call = c!(&*face);
        let rkey = c!((*of.mr).rkey);
        let add = |wr_id| {
            of.begin(wr_id, SIGNALED);
            c!((call.wr_atomic_fetch_add)(face, rkey, of.at(BACK), 1));
        };
        let bad: [(&str, &dyn Fn()); 6] = [
            ("an atomic of four bytes", &|| {
                add(9);
                of.set(FROM, 4);
            }),
            ("an atomic of two pieces", &|| {
                add(9);
                let list = [of.piece(FROM, 8), of.piece(FROM, 8)];
                c!((call.wr_set_sge_list)(face, 2, list.as_ptr()));
            }),
            ("an atomic without a place", &|| add(9)),
            ("an answer into the request", &|| {
                of.begin(9, SIGNALED);
                c!((call.wr_rdma_read)(face, rkey, of.at(FROM)));
                c!((call.wr_set_inline_data)(face, [0_u8; 8].as_ptr(), 8));
            }),
            ("a binding of no window", &|| {
                let bind_info =
                    ibv_mw_bind_info { mr: of.mr, addr: of.at(TO), length: 8, mw_access_flags: 2 };
                of.begin(9, SIGNALED);
                c!((call.wr_bind_mw)(face, null_mut(), 1, &raw const bind_info));
            }),
            ("more bytes than a request has room for", &|| {
                of.begin(9, SIGNALED);
                c!((call.wr_send)(face));
                c!((call.wr_set_inline_data)(face, [0_u8; 960].as_ptr(), 960));
            }),
        ];
        for (what, add_bad) in bad {
            let before = of.bytes(TO, 16);
            for is_first in [true, false] {
                c!((call.wr_start)(face));
                if is_first {
                    add_bad();
                }
                of.write(1, SIGNALED, TO);
                of.set(8, 8);
                if !is_first {
                    add_bad();
                }
                assert_eq!(c!((call.wr_complete)(face)), libc::EINVAL, "{what}");
                // Behind one that is good, nothing of the batch comes any more.
                c!((call.wr_start)(face));
                of.write(2, SIGNALED, BACK);
                of.set(8, 8);
                assert_eq!(c!((call.wr_complete)(face)), 0, "{what}");
                assert_eq!(of.take(1), [(2, 0)], "{what}");
                assert_eq!(of.bytes(TO, 16), before, "{what}: the good one was carried out");
            }
        }
        // Of those that are right, each is.
        c!((call.wr_start)(face));
        add(3);
        of.set(TO + 64, 8);
        add(4);
        let list = [of.piece(TO, 0), of.piece(TO + 72, 8)];
        c!((call.wr_set_sge_list)(face, 2, list.as_ptr()));
        of.write(5, SIGNALED, TO);
        of.set(8, 8);
        assert_eq!(c!((call.wr_complete)(face)), 0);
        assert_eq!(of.take(3), [3, 4, 5].map(|wr_id| (wr_id, 0)));
        assert_eq!(of.bytes(TO, 8), of.bytes(8, 8));
        of.end();
    }

    /// Posts data that stand in the request, in pieces of many lengths.
    pub(crate) fn pieces(&self) {
        let of = Loop::new(self);
        let lists: [&[u32]; 6] =
            [&[1, 7, 8, 9, 15, 16, 17], &[8, 8], &[16, 0, 3], &[5], &[64, 64], &[2, 2]];
        for lengths in lists {
            c!(of.pages.0.add(TO).write_bytes(0, 256));
            // Each piece stands apart from the one in front.
            let (mut place, mut expected) = (FROM, Vec::new());
            let mut list: Vec<_> = (lengths.iter())
                .map(|length| {
                    let piece = of.piece(place, *length);
                    expected.extend(of.bytes(place, *length as usize));
                    place += *length as usize + 3;
                    piece
                })
                .collect();
            let remote_addr = of.at(TO);
            let wr = wr_of { rdma: wr_rdma { remote_addr, rkey: c!((*of.mr).rkey) } };
            let (sg_list, num_sge) = (list.as_mut_ptr(), list.len() as i32);
            let send_flags = SIGNALED | INLINE;
            let request =
                ibv_send_wr { opcode: 0, send_flags, sg_list, num_sge, wr, ..self.message() };
            self.post(of.qp, request);
            assert_eq!(of.take(1), [(0, 0)]);
            expected.resize(256, 0);
            assert_eq!(of.bytes(TO, 256), expected, "{lengths:?}");
        }
        of.end();
    }
}
