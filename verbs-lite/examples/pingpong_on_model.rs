//! Two model ports on a cable, each with its driver, in one thread: a message there and back, then
//! a key that is registered by a work request, written through, and ended.
//!
//! `cargo run -p ferrocx-verbs-lite --example pingpong_on_model`

mod support;

use ferrocx_verbs_lite::*;
use support::{Result, connected, two_ports, wait};

fn main() -> Result<()> {
    let (mut a, mut b, step) = two_ports()?;
    let (mut qa, mut qb) = connected(&a, &b)?;

    // A message there. The buffer goes with the request and comes back with its completion.
    qb.post_recv(1, b.mr.buf(0..64)?)?;
    let mut ping = a.mr.buf(0..4)?;
    ping.copy_in(0, b"ping")?;
    qa.post_send(&SendWr::signaled(2, SendOp::Send), Some(ping))?;
    wait(&mut a.cq, &mut qa, 1, &step)?;
    let received = wait(&mut b.cq, &mut qb, 1, &step)?.remove(0);
    let len = received.byte_len as usize;
    let bytes = received.into_buffers().ok_or("no buffer")?.to_vec();
    println!("b received {:?}", String::from_utf8_lossy(&bytes[..len]));

    // A key over two pages that lie apart, bound by a work request, for writing only.
    let layout = ListLayout::Pages { log_page: 12 };
    let mut list = b.context.alloc_page_list(layout, 8)?;
    list.map(&b.memory, &[8192..12288, 4096..4200])?;
    let key = b.pd.alloc_mr(layout, 8)?;
    let wr = FastReg {
        wr_id: 3,
        flags: SendFlags::SIGNALED,
        start: 0,
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        remote_invalidate: false,
    };
    let key = qb.post_fast_reg(&wr, key, list)?;
    wait(&mut b.cq, &mut qb, 1, &step)?;
    println!("b registered {} bytes as {:?}", key.len_bytes(), key.rkey());

    let wr = SendWr::signaled(4, SendOp::Write(key.remote().at(4092)));
    qa.post_send_inline(&wr, b"across the pages")?;
    wait(&mut a.cq, &mut qa, 1, &step)?;
    let (front, back) = (b.mr.buf(12284..12288)?, b.mr.buf(4096..4108)?);
    let text = [front.to_vec(), back.to_vec()].concat();
    println!("a wrote {:?}", String::from_utf8_lossy(&text));

    // Ended: nobody can use it any more.
    let remote = key.remote();
    qb.post_local_inv(5, SendFlags::SIGNALED, key)?;
    wait(&mut b.cq, &mut qb, 1, &step)?;
    qa.post_send_inline(&SendWr::signaled(6, SendOp::Write(remote)), b"too late")?;
    let refused = wait(&mut a.cq, &mut qa, 1, &step).expect_err("the key has ended");
    println!("a tried again: {refused}");
    Ok(())
}
