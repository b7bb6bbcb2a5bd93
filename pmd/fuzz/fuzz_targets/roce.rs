//! Any RoCE packets into live queue pairs, and any work requests out of them: nothing panics or
//! hangs, and no work request completes twice.
#![no_main]

#[path = "../../model/tests/common/mod.rs"]
mod common;

use arbitrary::{Result, Unstructured};
use common::roce::{Peer, RC, Target, TestQp, UC, UD, Work};
use ferrocx_fuzz::{REACHED_BYTES, word};
use ferrocx_model::roce::bth::Header;
use ferrocx_model::roce::packet::{IpPair, Path, seal};
use ferrocx_model::roce::psn::Psn;
use ferrocx_model::wire::{Fcs, Link, Wire, link};
use libfuzzer_sys::fuzz_target;

/// First PSN in both directions.
const PSN: u32 = 0xff_fffe;

fuzz_target!(|data: &[u8]| {
    // Running out of input ends the sequence.
    let _ = sequence(&mut Unstructured::new(data));
});

fn sequence(u: &mut Unstructured<'_>) -> Result<()> {
    let (near, mut far) = link(1 << 18);
    let mut peer = Peer::new(1, near);
    peer.memory = peer.host.heap.alloc(REACHED_BYTES, 4096).expect("room");
    let mut qps = [RC, UC, UD].map(|service| {
        let qp = peer.create_qp(service);
        let to = Target {
            qpn: 0x12,
            mac: [2, 0, 0, 0, 0, 2],
            ip: [192, 168, 0, 2],
            send_psn: PSN,
            receive_psn: PSN,
            retry: 1,
            rnr_retry: 1,
        };
        peer.connect(&qp, service, &to, 1);
        qp
    });
    let (mut posted, mut completed) = (0, 0);
    while !u.is_empty() {
        let qp = &mut qps[u.choose_index(3)?];
        match u.int_in_range(0..=3)? {
            0 if posted < completed + 16 => {
                peer.post_receive(qp, u.int_in_range(0..=0x1000)?, u.int_in_range(0..=2000)?);
                posted += 1;
            }
            1 if posted < completed + 16 => {
                send(u, &mut peer, qp)?;
                posted += 1;
            }
            _ => {
                let frame = packet(u, &peer, qp)?;
                deliver(&mut far, peer.host.now_ns, &frame);
            }
        }
        for _ in 0..u.int_in_range(1..=8)? {
            peer.host.step();
        }
        while far.receive(peer.host.now_ns).is_some() {}
        completed += peer.polled().len();
        assert!(completed <= posted, "{completed} completions of {posted} requests");
    }
    Ok(())
}

/// A work request of one block whose address and key are often right.
fn send(u: &mut Unstructured<'_>, peer: &mut Peer, qp: &mut TestQp) -> Result<()> {
    let opcode = *u.choose(&[0x0a, 0x0b, 0x08, 0x09, 0x10, 0x11, 0x12, 0x01, 0x25, 0x00])?;
    let work = Work {
        opcode,
        imm: word(u)?,
        fence: u.int_in_range(0..=7)?,
        completion: u.int_in_range(0..=3)?,
        solicited: u.arbitrary()?,
    };
    let mut rest = Vec::new();
    while rest.len() < 48 && u.ratio(3, 4)? {
        let (offset, len) = (u.int_in_range(0..=0x2000)?, u.int_in_range(0..=0x400)?);
        rest.extend(match u.int_in_range(0..=3)? {
            0 | 1 => peer.sge(offset, len),
            2 => Peer::raddr(peer, offset, peer.key),
            _ => u.arbitrary::<[u8; 16]>()?.to_vec(),
        });
    }
    peer.post_send(qp, &work, &rest);
    Ok(())
}

/// A frame to a queue pair with any opcode, a PSN close to what is expected, and headers that are
/// often right.
fn packet(u: &mut Unstructured<'_>, peer: &Peer, qp: &TestQp) -> Result<Vec<u8>> {
    let mut noise = [0; 128];
    u.fill_buffer(&mut noise)?;
    noise[1] &= 0xf0;
    let Some((mut header, _)) = Header::parse(&noise) else { return Ok(noise.to_vec()) };
    header.dest_qpn = if u.ratio(15, 16)? { qp.qpn } else { word(u)? };
    header.psn = Psn::new(PSN.wrapping_add(u.int_in_range(0..=16)?).wrapping_sub(4));
    if u.ratio(7, 8)? {
        header.pkey = 0xffff;
        header.deth.qkey = common::roce::QKEY;
        let va = peer.memory.iova() + u.int_in_range(0..=0x1_0000_u64)?;
        (header.reth.va, header.reth.rkey) = (va, peer.key);
        (header.atomic.va, header.atomic.rkey) = (va & !7, peer.key);
        header.reth.len = u.int_in_range(0..=1024)?;
    }
    let path = Path {
        dmac: peer.mac,
        smac: [2, 0, 0, 0, 0, 2],
        vlan: None,
        ip: IpPair::V4 { src: [192, 168, 0, 2], dst: peer.ip },
        tos: u.arbitrary()?,
        ttl: 64,
        flow_label: 0,
        sport: 0xc000,
    };
    let len = *u.choose(&[0, 256, 255, 1, 4, 257, 512, 1024])?;
    let mut frame = vec![0; path.frame_bytes(&header, len)];
    let payload = path.write(&header, len, &mut frame);
    seal(&path, &mut frame, payload);
    Ok(frame)
}

fn deliver(far: &mut Link, now_ns: u64, frame: &[u8]) {
    if let Some(room) = far.reserve(frame.len()) {
        room.copy_from_slice(frame);
        far.commit(now_ns, Fcs::Good);
        far.flush(now_ns);
    }
}
