//! Raw packets: a queue pair that answers ARP, neighbour discovery and ping.
//!
//! `cargo run -p ferrocx-verbs-lite --example raw_on_model`: another queue pair asks.
//!
//! `cargo run -p ferrocx-verbs-lite --example raw_on_model TAP`: the port stands at the far end of
//! a TAP interface, and the kernel may ask, for any address, until the program is killed:
//! `scripts/net/raw.sh`.

mod support;

use ferrocx_core::FlowMatch;
use ferrocx_model::wire::TapWire;
use ferrocx_net::ether::{self, MacAddr};
use ferrocx_net::icmpecho::{Station, Tail, Verdict, reply};
use ferrocx_verbs_lite::*;
use support::{Port, Result, one_port, two_ports, wait};

/// Receives, and bytes of each: a whole frame.
const RECEIVES: u64 = 32;
const SLOT: usize = 2048;

fn queue_pair(port: &Port, flow: &FlowMatch) -> Result<Qp> {
    let config = QpConfig { qp_type: QpType::Raw, ..QpConfig::default() };
    let mut qp = port.pd.create_qp(&port.cq, &config)?;
    qp.init(&InitAttr::default())?;
    qp.receive()?;
    qp.activate(&RtsAttr::new(Psn(0)))?;
    qp.create_flow(flow)?;
    Ok(qp)
}

/// The memory of a receive, or its first bytes.
fn slot(mr: &Mr, id: u64, len: usize) -> Result<Buf> {
    let at = id as usize * SLOT;
    Ok(mr.buf(at..at + len)?)
}

/// Answers what has arrived; returns how many answers went out.
fn serve(port: &mut Port, qp: &mut Qp, station: &Station) -> Result<u64> {
    let mut answers = 0;
    while let Some(mut completion) = port.cq.poll() {
        while let Some(wc) = qp.next_wc(&mut completion)? {
            wc.result?;
            let (id, len) = (wc.wr_id, wc.byte_len as usize);
            if wc.opcode == WcOpcode::Recv {
                let mut frame = vec![0; len];
                let mut buf = slot(&port.mr, id, len)?;
                buf.copy_out(0, &mut frame)?;
                if let Verdict::Reply { len_bytes } = reply(&mut frame, Tail::NONE, station) {
                    buf.copy_in(0, &frame[..len_bytes])?;
                    let wr = SendWr::signaled(id, SendOp::Frame);
                    qp.post_send(&wr, Some(slot(&port.mr, id, len_bytes)?))?;
                    answers += 1;
                    continue;
                }
            }
            // The slot is free: the answer is out, or there is none.
            qp.post_recv(id, slot(&port.mr, id, SLOT)?)?;
        }
    }
    Ok(answers)
}

fn start(port: &Port, addresses: Vec<std::net::IpAddr>) -> Result<(Qp, Station)> {
    // Neighbour discovery asks groups.
    port.context.device().set_all_multicast(true)?;
    let mut qp = queue_pair(port, &FlowMatch::default())?;
    for id in 0..RECEIVES {
        qp.post_recv(id, slot(&port.mr, id, SLOT)?)?;
    }
    Ok((qp, Station { mac: port.context.device().mac(), addresses }))
}

/// Who has `address`? Source: RFC 826.
fn who_has(address: [u8; 4], own: MacAddr) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &own.0, &ether::ARP.to_be_bytes()].concat();
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(own.0);
    frame.extend([192, 168, 0, 1]);
    frame.extend([0; 6]);
    frame.extend(address);
    frame
}

fn main() -> Result<()> {
    if let Some(tap) = std::env::args().nth(1) {
        let (mut port, step) = one_port(TapWire::open(&tap)?)?;
        let (mut qp, station) = start(&port, Vec::new())?;
        println!("{} answers on {tap}", station.mac);
        loop {
            step();
            serve(&mut port, &mut qp, &station)?;
        }
    }
    let (mut a, mut b, step) = two_ports()?;
    let address = [192, 168, 0, 77];
    let (mut server, station) = start(&b, vec![address.into()])?;
    let own = a.context.device().mac();
    let to_us = FlowMatch { destination_mac: Some(own.into()), ..FlowMatch::default() };
    let mut client = queue_pair(&a, &to_us)?;
    client.post_recv(1, slot(&a.mr, 0, SLOT)?)?;
    client.post_send_inline(&SendWr::signaled(2, SendOp::Frame), &who_has(address, own))?;
    wait(&mut a.cq, &mut client, 1, &step)?;
    while serve(&mut b, &mut server, &station)? == 0 {
        step();
    }
    let answer = wait(&mut a.cq, &mut client, 1, &step)?.remove(0);
    println!("the answer has {} bytes", answer.byte_len);
    let bytes = answer.into_buffers().ok_or("no buffer")?.to_vec();
    let sender = ether::mac_at(&bytes, 22).ok_or("a short answer")?;
    println!("{} is at {sender}", std::net::Ipv4Addr::from(address));
    assert_eq!(sender, station.mac);
    Ok(())
}
