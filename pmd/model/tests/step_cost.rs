//! What an idle step costs: a measurement, not a check.
//! `cargo test --release -p ferrocx-model --test step_cost -- --ignored --nocapture`

mod common;

use std::time::Instant;

use common::Host;

#[test]
#[ignore = "a measurement; needs a release build"]
fn an_idle_step() {
    const STEPS: u64 = 2_000_000;
    for uars in [0, 1, 4, 16] {
        let mut host = Host::up();
        (0..uars).for_each(|_| {
            host.short(0x802, 0);
        });
        let base_ns = host.now_ns;
        let start = Instant::now();
        let busy = (0..STEPS).filter(|step| host.nic.step(base_ns + step * 100)).count();
        let ns = start.elapsed().as_nanos() as f64 / STEPS as f64;
        println!("{uars} UAR pages: {ns:.1} ns per idle step ({busy} busy)");
    }
}
