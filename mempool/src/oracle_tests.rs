//! Random sequences of operations on two pools, checked step by step against plain vectors.

use proptest::prelude::*;

use crate::oracle::{COUNT, Op, State};

/// Operations in a sequence, less one. Miri is slow.
const MAX_OPS: usize = if cfg!(miri) { 15 } else { 121 };

/// Lengths of external buffers; the longest that is taken, which is too long for Miri.
const MAX_LEN: usize = if cfg!(miri) { 30 } else { 300 };
const LONGEST: usize = if cfg!(miri) { 30 } else { 65535 };

fn op() -> impl Strategy<Value = Op> {
    use Op::*;
    let i = || 0..64_usize;
    let p = || 0..2_usize;
    prop_oneof![
        4 => (p(), any::<bool>()).prop_map(|(p, c)| Get(p, c)),
        2 => (p(), 0..=COUNT + 1).prop_map(|(p, n)| GetBulk(p, n)),
        2 => (i(), p()).prop_map(|(a, p)| Put(a, p)),
        1 => (p(), 0..6_usize).prop_map(|(p, n)| PutBulk(p, n)),
        2 => i().prop_map(Drop),
        1 => p().prop_map(Flush),
        1 => (p(), 0..9_usize).prop_map(|(p, n)| NewCache(p, n)),
        3 => (i(), any::<u8>(), 0..120_usize).prop_map(|(a, b, n)| Append(a, b, n)),
        2 => (i(), any::<u8>(), 0..40_usize).prop_map(|(a, b, n)| Prepend(a, b, n)),
        1 => (i(), 0..60_usize).prop_map(|(a, n)| Trim(a, n)),
        1 => (i(), 0..60_usize).prop_map(|(a, n)| Adj(a, n)),
        2 => (i(), i()).prop_map(|(a, b)| Chain(a, b)),
        1 => i().prop_map(TakeNext),
        3 => (i(), p()).prop_map(|(a, p)| Clone(a, p)),
        2 => (i(), any::<u8>()).prop_map(|(a, b)| Overwrite(a, b)),
        1 => i().prop_map(RawRoundTrip),
        1 => i().prop_map(DropOnThread),
        2 => (i(), prop_oneof![9 => 1..MAX_LEN, 1 => Just(0), 1 => LONGEST..LONGEST + 2])
            .prop_map(|(a, n)| Attach(a, n)),
        3 => i().prop_map(FifoPush),
        2 => (0..6_usize, 0..6_usize).prop_map(|(n, most)| FifoPushWhile(n, most)),
        2 => (0..6_usize).prop_map(FifoFill),
        2 => Just(FifoPop),
        2 => (0..6_usize, 0..6_usize).prop_map(|(n, pass)| FifoPopFilled(n, pass)),
        2 => (0..6_usize).prop_map(FifoLineUp),
        4 => Just(FifoPopLinedUp),
        2 => (0..6_usize, p()).prop_map(|(n, p)| FifoFree(n, p)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_sequence_does_what_plain_vectors_do(ops in prop::collection::vec(op(), 1..MAX_OPS)) {
        let mut state = State::new();
        for op in &ops {
            state.run(op);
            state.check();
        }
        state.end();
    }
}
