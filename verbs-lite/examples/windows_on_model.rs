//! A memory window: a peer reaches part of a region, then no longer.
//!
//! `cargo run -p ferrocx-verbs-lite --example windows_on_model`

mod support;

use ferrocx_verbs_lite::*;
use support::{Result, connected, two_ports, wait};

fn main() -> Result<()> {
    let (mut a, mut b, step) = two_ports()?;
    let (mut qa, mut qb) = connected(&a, &b)?;

    // 100 bytes of the region, for writing, by the peer of this queue pair alone.
    let wr = BindMw { wr_id: 1, flags: SendFlags::SIGNALED, access: Access::REMOTE_WRITE };
    let window = b.pd.alloc_mw()?;
    let window = qb.post_bind_mw(&wr, window, &b.mr, 500..600)?;
    wait(&mut b.cq, &mut qb, 1, &step)?;
    println!("b bound {} bytes as {:?}", window.len_bytes(), window.rkey());

    let remote = window.remote();
    qa.post_send_inline(&SendWr::signaled(2, SendOp::Write(remote)), b"let in")?;
    wait(&mut a.cq, &mut qa, 1, &step)?;
    println!("a wrote {:?}", String::from_utf8_lossy(&b.mr.buf(500..506)?.to_vec()));

    println!("b cannot end the region now: {}", b.mr.dereg().expect_err("a window is bound"));
    qb.post_local_inv_mw(3, SendFlags::SIGNALED, window)?;
    wait(&mut b.cq, &mut qb, 1, &step)?;
    qa.post_send_inline(&SendWr::signaled(4, SendOp::Write(remote)), b"too late")?;
    let refused = wait(&mut a.cq, &mut qa, 1, &step).expect_err("the window has ended");
    println!("a tried again: {refused}");
    Ok(())
}
