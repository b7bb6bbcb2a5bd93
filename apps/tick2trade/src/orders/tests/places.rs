//! Which number an order gets.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// So many orders.
    Enter(u32),
    /// Of those that stand, every so manieth goes.
    Gone(usize),
    /// So many looks.
    Watch(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..200u32).prop_map(Step::Enter),
        (1..40usize).prop_map(Step::Gone),
        (1..4usize).prop_map(Step::Watch),
    ]
}

proptest! {
    /// It is the next whose place is free, whatever was seen of the table.
    #[test]
    fn a_number_is_the_next_whose_place_is_free(
        log_capacity in 0..9u32,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let capacity = 1 << log_capacity;
        let limits = risk::Limits { rate: 1 << 14, ..risk::Limits::default() };
        let symbols = vec![Text::new("AAPL").unwrap()];
        let config = OrdersConfig { symbols, capacity, limits, ..OrdersConfig::default() };
        let mut entry = OrderEntry::new(config).unwrap();
        let (mut next, mut standing) = (1u32, BTreeSet::new());
        for step in steps {
            match step {
                Step::Enter(count) => for _ in 0..count {
                    if standing.len() == capacity {
                        prop_assert_eq!(enter(&mut entry, 1), Err(Refused::Full(capacity)));
                        break;
                    }
                    let is_free = |urn: &u32| {
                        let mut others = standing.iter().map(|other: &u32| *other as usize);
                        others.all(|other| other % capacity != *urn as usize % capacity)
                    };
                    let urn = (next..).find(is_free).unwrap();
                    prop_assert_eq!(enter(&mut entry, 1), Ok(urn));
                    entry.answer(&Answer::Accepted(&accepted(urn, 1, b'L')));
                    standing.insert(urn);
                    next = urn + 1;
                },
                Step::Gone(each) => {
                    for urn in standing.iter().copied().step_by(each).collect::<Vec<_>>() {
                        entry.answer(&Answer::Cancelled(&cancelled(urn, 1)));
                        standing.remove(&urn);
                    }
                }
                Step::Watch(looks) => for _ in 0..looks {
                    prop_assert_eq!(entry.watch(), Watched::Fine);
                },
            }
            prop_assert_eq!(entry.count(), standing.len());
        }
    }
}
