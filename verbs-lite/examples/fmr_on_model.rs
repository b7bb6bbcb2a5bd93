//! A pool of FMRs: the same pages are found mapped, and a strict pool shuts the peer out at unmap.
//!
//! `cargo run -p ferrocx-verbs-lite --example fmr_on_model`

mod support;

use ferrocx_verbs_lite::*;
use support::{Result, connected, two_ports, wait};

fn main() -> Result<()> {
    let (mut a, b, step) = two_ports()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    for mode in [FmrMode::Lazy, FmrMode::Strict] {
        let (mut qa, _qb) = connected(&a, &b)?;
        let fmr = FmrAttr { max_pages: 8, log_page: 12, access };
        let config = FmrPoolConfig { fmr, pool_size: 4, dirty_watermark: 4, cache: true, mode };
        let mut pool = FmrPool::new(&b.context, &b.pd, &config)?;
        let mapped = pool.map_phys(&b.memory, &[8192, 0], 0)?;
        let again = pool.map_phys(&b.memory, &[8192, 0], 0)?;
        println!("{mode:?}: two users, {} registration", pool.stats().misses);

        let key = mapped.key();
        pool.unmap(mapped)?;
        pool.unmap(again)?;
        let remote = RemoteAddr { addr: key.addr, rkey: key.rkey };
        qa.post_send_inline(&SendWr::signaled(1, SendOp::Write(remote)), b"after unmap")?;
        match wait(&mut a.cq, &mut qa, 1, &step) {
            Ok(_) => println!("{mode:?}: a still reaches it, {} await a flush", pool.stats().dirty),
            Err(error) => println!("{mode:?}: a is shut out: {error}"),
        }
    }
    Ok(())
}
