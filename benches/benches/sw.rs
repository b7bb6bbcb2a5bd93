//! What each case costs on one core: our instructions with the device only played, and in the group
//! `model` the model's own.
#![forbid(unsafe_code)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ferrocx_benches::{Case, cases, run};

fn sw(c: &mut Criterion) {
    for (name, is_of) in [("sw", false), ("model", true)] {
        group(c, name, cases().filter(|case| case.name.starts_with("model_") == is_of));
    }
}

fn group(c: &mut Criterion, name: &str, cases: impl Iterator<Item = &'static Case>) {
    let mut group = c.benchmark_group(name);
    for case in cases {
        group.throughput(Throughput::Elements(case.elements));
        let mut work = (case.make)();
        group
            .bench_function(case.name, |b| b.iter_custom(|iterations| run(&mut *work, iterations)));
    }
    group.finish();
}

criterion_group!(benches, sw);
criterion_main!(benches);
