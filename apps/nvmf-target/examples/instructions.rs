//! What a command costs the target: run under callgrind, which counts `measured` alone.
//!
//! ```text
//! instructions [atomic-]read|write|write-in-capsule BATCH ROUNDS
//! ```
//!
//! With `atomic-` the namespace is RAM whose blocks are read and written as one.
//!
//! Target and host are on two models of this process, which stand still while the target is polled
//! and do everything that they have before it is polled again: a batch is there as a whole, no
//! round finds nothing, and timers are due in every 64th round. ROUNDS that nobody counts come
//! first, then `warmed` is called, then come as many that count: of a whole multiple of 64 they
//! cost the same whenever and wherever, free of what a start costs:
//!
//! ```text
//! cargo build --release -p ferrocx-nvmf-target --example instructions
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null \
//!     --toggle-collect='instructions::measured*' --zero-before='instructions::warmed*' \
//!     target/release/examples/instructions read 32 64
//! ```
//!
//! What is counted: everything from completions on, verbs and doorbells included, and a share of
//! the timers: a turn and a tick in 64 rounds, far more than a core has of them that polls as fast
//! as it can. What is not: the model, and the host.

mod rig;

use ferrocx_nvmf_target::transport::Server;
use rig::{CLOCK_EVERY, NAMESPACE_BYTES, Result, Rig, TICK, What};

/// The namespace whose blocks are read and written as one.
const ATOMIC: u32 = 2;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, batch, rounds] = args.as_slice() else {
        return Err("give [atomic-]read, write or write-in-capsule, BATCH and ROUNDS".into());
    };
    let (nsid, what) = what.strip_prefix("atomic-").map_or((1, &**what), |what| (ATOMIC, what));
    let what: What = what.parse()?;
    let (batch, rounds): (usize, usize) = (batch.parse()?, rounds.parse()?);
    let mut rig = Rig::start(batch)?;
    if nsid == ATOMIC {
        let backend = rig.server.add_whole_ram(NAMESPACE_BYTES, rig.block_shift)?;
        rig.offer(ATOMIC, NAMESPACE_BYTES as u64 >> rig.block_shift, backend)?;
    }
    let mut polls = 0_usize;
    for round in 0..2 * rounds {
        if round == rounds {
            warmed();
        }
        rig.submit(what, nsid, batch)?;
        let mut done = 0;
        while done < batch {
            rig.settle();
            if polls.is_multiple_of(CLOCK_EVERY) {
                std::thread::sleep(TICK);
            }
            polls += 1;
            if measured(&mut rig.server)? == 0 {
                return Err("the target was polled and found nothing".into());
            }
            rig.settle();
            done += rig.answered()?;
        }
    }
    println!("{} commands, {polls} rounds of the target", 2 * batch * rounds);
    Ok(())
}

/// The measured part, under a name that callgrind can be told to count alone.
#[inline(never)]
fn measured(server: &mut Server) -> Result<usize> {
    Ok(server.poll()?)
}

/// Where counting begins, under a name that callgrind can be told.
#[inline(never)]
fn warmed() {
    std::hint::black_box(());
}
