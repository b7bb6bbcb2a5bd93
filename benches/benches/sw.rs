//! What each case costs on one core: our instructions, with the device only played.
#![forbid(unsafe_code)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ferrocx_benches::{cases, run};

fn sw(c: &mut Criterion) {
    let mut group = c.benchmark_group("sw");
    for case in cases() {
        group.throughput(Throughput::Elements(case.elements));
        let mut work = (case.make)();
        group
            .bench_function(case.name, |b| b.iter_custom(|iterations| run(&mut *work, iterations)));
    }
    group.finish();
}

criterion_group!(benches, sw);
criterion_main!(benches);
