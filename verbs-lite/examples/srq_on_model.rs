//! A shared receive queue for two connections, with a limit; and a multicast group.
//!
//! `cargo run -p ferrocx-verbs-lite --example srq_on_model`

mod support;

use std::net::{IpAddr, Ipv4Addr};

use ferrocx_verbs_lite::*;
use support::{Port, Result, two_ports, wait};

const QKEY: u32 = 0x1234;

fn datagrams(port: &Port) -> Result<Qp> {
    let config = QpConfig { qp_type: QpType::Ud, ..QpConfig::default() };
    let mut qp = port.pd.create_qp(&port.cq, &config)?;
    qp.init(&InitAttr { access: Access::empty(), qkey: QKEY })?;
    qp.receive()?;
    qp.activate(&RtsAttr::new(Psn(0)))?;
    Ok(qp)
}

fn main() -> Result<()> {
    let (mut a, mut b, step) = two_ports()?;
    let mut srq: Srq = b.pd.create_srq(&SrqConfig { max_wr: 7, max_sge: 1 })?;
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let queues = QpQueues { srq: Some(&srq), ..QpQueues::from(&b.cq) };
        let mut server = b.pd.create_qp(queues, &QpConfig::default())?;
        let mut client = a.queue_pair()?;
        a.connect(&mut client, &b, server.qpn())?;
        b.connect(&mut server, &a, client.qpn())?;
        clients.push(client);
        servers.push(server);
    }
    for id in 0..4 {
        srq.post_recv(id, b.mr.buf(id as usize * 64..id as usize * 64 + 64)?)?;
    }
    srq.arm_limit(3)?;
    for (at, client) in clients.iter_mut().enumerate() {
        let text = format!("from client {at}");
        client.post_send_inline(&SendWr::signaled(9, SendOp::Send), text.as_bytes())?;
        wait(&mut a.cq, client, 1, &step)?;
        let Some(mut completion) = b.cq.poll() else { return Err("nothing arrived".into()) };
        let server = servers.iter_mut().find(|server| server.qpn() == completion.qpn());
        let server = server.ok_or("a completion of nobody")?;
        let received = server.next_wc_shared(&mut completion, &mut srq)?.ok_or("no message")?;
        let (id, len) = (received.wr_id, received.byte_len as usize);
        let bytes = received.into_buffers().ok_or("no buffer")?.to_vec();
        println!("receive {id}: {:?}", String::from_utf8_lossy(&bytes[..len]));
    }
    println!("fewer than 3 are left: {:?}", b.context.poll_async_event());

    let group = Gid::from(IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3)));
    let (mut sender, mut member) = (datagrams(&a)?, datagrams(&b)?);
    member.attach_multicast(group)?;
    member.post_recv(1, b.mr.buf(1024..2048)?)?;
    let to = AddressHandle::new(&a.context.multicast_path(group)?, Qpn::MULTICAST, QKEY);
    let wr = SendWr::signaled(2, SendOp::Datagram { to: &to, imm: None });
    sender.post_send_inline(&wr, b"to all members")?;
    let received = wait(&mut b.cq, &mut member, 1, &step)?.remove(0);
    let text = b.mr.buf(1064..1024 + received.byte_len as usize)?.to_vec();
    println!("a member of {group} received {:?}", String::from_utf8_lossy(&text));
    Ok(())
}
