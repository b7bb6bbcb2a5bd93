//! Every way a work request can fail, provoked: the code of the completion, which side has it, and
//! what the error says.

use crate::common;
use crate::common::{MEMORY_BYTES, Two, small, syndromes, take};
use ferrocx_model::roce::icrc::icrc;
use ferrocx_model::wire::{Fcs, Received, Wire, link};
use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_verbs_lite::*;

/// Codes of the table that no RoCE packet can cause: "remote aborted" is of reliable datagrams.
const NOT_ON_ROCE: [u8; 1] = [0x22];

/// Where the BTH of a RoCEv2 packet over IPv4 starts: Ethernet, IP, UDP.
const BTH: usize = 14 + 20 + 8;
/// BTH opcodes of RC. Source: reference 7.2.
const READ_RESPONSE_ONLY: u8 = 0x10;
const READ_RESPONSE_FIRST: u8 = 0x0d;

/// A wire on which answers to READs of one packet become the first of several.
#[derive(Debug)]
struct Forge<W> {
    inner: W,
    frame: Vec<u8>,
}

impl<W: Wire> Wire for Forge<W> {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.frame.resize(len, 0);
        Some(&mut self.frame)
    }

    fn commit(&mut self, now_ns: u64, fcs: Fcs) {
        if self.frame.len() > BTH && self.frame[BTH] == READ_RESPONSE_ONLY {
            self.frame[BTH] = READ_RESPONSE_FIRST;
            let end = self.frame.len() - 4;
            let sum = icrc(&self.frame[14..end]);
            self.frame[end..].copy_from_slice(&sum.to_le_bytes());
        }
        let room = self.inner.reserve(self.frame.len()).expect("room on the wire");
        room.copy_from_slice(&self.frame);
        self.inner.commit(now_ns, fcs);
    }

    fn flush(&mut self, now_ns: u64) -> bool {
        self.inner.flush(now_ns)
    }

    fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        self.inner.receive(now_ns)
    }
}

/// A connection, and keys over both memories.
struct Scene {
    qa: Qp,
    qb: Qp,
    ma: Mr,
    mb: Mr,
    // Last: the models must live while the objects above are destroyed.
    two: Two,
}

impl Scene {
    fn over(two: Two) -> Self {
        let (qa, qb) = two.rc(&QpConfig { fast_reg: true, ..small() });
        let (ma, mb) = (two.a.mr(), two.b.mr());
        Self { qa, qb, ma, mb, two }
    }

    fn new() -> Self {
        Self::over(Two::new())
    }

    fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.mb.addr(), rkey: self.mb.rkey().unwrap() }
    }

    /// Posts at `a` with eight bytes of buffer, lets much time pass, and gives what both sides say.
    fn post(&mut self, op: SendOp<'_>) -> (Vec<u8>, Vec<u8>) {
        let buf = self.ma.buf(0..8).unwrap();
        self.qa.post_send(&SendWr::signaled(1, op), Some(buf)).unwrap();
        self.finish()
    }

    fn finish(&mut self) -> (Vec<u8>, Vec<u8>) {
        self.two.world.wait_us(20_000);
        let a = take(&mut self.two.a.cq, &mut self.qa);
        let b = take(&mut self.two.b.cq, &mut self.qb);
        (syndromes(&a), syndromes(&b))
    }

    fn receive(&mut self, len: usize) {
        self.qb.post_recv(2, self.mb.buf(0..len).unwrap()).unwrap();
    }
}

/// What both sides' completions say when it is provoked: sender, receiver.
fn provoke(code: u8) -> (Vec<u8>, Vec<u8>) {
    let mut scene = Scene::new();
    match code {
        0x01 => {
            scene.receive(7);
            scene.post(SendOp::Send)
        }
        0x02 => {
            // Datagrams from an address that was taken away.
            let side = &scene.two.a;
            scene.qa = side.datagrams(5);
            let path = common::path(&scene.two.a, &scene.two.b);
            scene.two.a.context.remove_gid(&path.route.source).unwrap();
            let to = AddressHandle::new(&path, Qpn(9), 5);
            scene.post(SendOp::Datagram { to: &to, imm: None })
        }
        0x04 => {
            let mr = scene.two.a.mr();
            let buf = mr.buf(0..8).unwrap();
            mr.dereg().unwrap();
            let wr = SendWr::signaled(1, SendOp::Write(scene.remote()));
            scene.qa.post_send(&wr, Some(buf)).unwrap();
            scene.finish()
        }
        0x05 => {
            scene.receive(8);
            scene.qb.to_error().unwrap();
            scene.finish()
        }
        0x06 => {
            // The window is ended while its local invalidate waits for the doorbell.
            let all = Access::LOCAL_WRITE | Access::MW_BIND;
            let region = scene.two.a.pd.reg_mr(&scene.two.a.memory, 0..64, all).unwrap();
            let access = Access::REMOTE_READ;
            let wr = BindMw { wr_id: 1, flags: SendFlags::empty(), access };
            let mw = scene.two.a.pd.alloc_mw().unwrap();
            let mw = scene.qa.post_bind_mw(&wr, mw, &region, 0..8).unwrap();
            scene.receive(8);
            let rkey = mw.rkey();
            scene.qb.post_send_inline(&SendWr::signaled(3, SendOp::SendInv(rkey)), &[]).unwrap();
            scene.qa.post_recv(4, scene.ma.buf(0..8).unwrap()).unwrap();
            let (_, sent) = scene.finish();
            assert_eq!(sent, [0]);
            scene.qa.post_local_inv_mw(5, SendFlags::SIGNALED, mw).unwrap();
            scene.finish()
        }
        0x10 => {
            let (a, b) = link(1 << 20);
            drop(scene);
            scene = Scene::over(Two::on(a, Forge { inner: b, frame: Vec::new() }));
            let remote = scene.remote();
            scene.post(SendOp::Read(remote))
        }
        0x11 => {
            scene.receive(8);
            scene.post(SendOp::WriteImm(RemoteAddr { rkey: Rkey(5), ..scene.remote() }, 7))
        }
        0x12 => {
            let two = &scene.two;
            let (mut qa, mut qb) = (two.a.qp(&small()), two.b.qp(&small()));
            two.join([&mut qa, &mut qb], [Access::empty(); 2], &common::rts(0));
            (scene.qa, scene.qb) = (qa, qb);
            let remote = scene.remote();
            scene.post(SendOp::Write(remote))
        }
        0x13 => scene.post(SendOp::Write(scene.remote().at(MEMORY_BYTES as u64 - 7))),
        0x14 => {
            let mr = scene.two.b.mr();
            scene.qb.post_recv(2, mr.buf(0..8).unwrap()).unwrap();
            mr.dereg().unwrap();
            scene.post(SendOp::Send)
        }
        0x15 => {
            scene.qb.to_error().unwrap();
            scene.post(SendOp::Write(scene.remote()))
        }
        0x16 => scene.post(SendOp::Send),
        _ => (Vec::new(), Vec::new()),
    }
}

#[test]
fn every_row_of_the_table_is_provoked() {
    let is_known = |code: &u8| !CqeSyndrome(*code).to_string().starts_with("unknown");
    let known: Vec<u8> = (0..=u8::MAX).filter(is_known).collect();
    let rows: [(u8, &[u8], &[u8]); 12] = [
        (0x01, &[0x12], &[0x01]),
        (0x02, &[0x02], &[]),
        (0x04, &[0x04], &[]),
        (0x05, &[], &[0x05]),
        // The binding is reported with the request behind it.
        (0x06, &[0, 0x06], &[]),
        (0x10, &[0x10], &[]),
        (0x11, &[0x13], &[0x11]),
        (0x12, &[0x12], &[]),
        (0x13, &[0x13], &[]),
        (0x14, &[0x14], &[0x04]),
        (0x15, &[0x15], &[]),
        (0x16, &[0x16], &[]),
    ];
    for (code, sender, receiver) in rows {
        let (sent, received) = provoke(code);
        assert_eq!((&sent[..], &received[..]), (sender, receiver), "{code:#04x}");
    }
    let provoked = rows.iter().map(|(code, ..)| *code).chain(NOT_ON_ROCE);
    assert_eq!(provoked.collect::<Vec<_>>(), known, "a row has no test");
}

#[test]
fn a_failure_says_what_happened_and_what_to_do() {
    let failure = |code| Failure { syndrome: CqeSyndrome(code), vendor: 0x88 };
    assert_eq!(
        failure(0x13).to_string(),
        "REMOTE_ACCESS_ERR (0x13): the peer refused the access: rkey, range or rights (vendor \
         syndrome 0x88); ask the peer for a key that is valid"
    );
    let all: Vec<&str> = (0..=u8::MAX).map(|code| failure(code).next_step()).collect();
    let mut different = all.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 13, "one for each code that RoCE has, one for the others");
}
