//! Once a queue is there, requests take nothing from the heap.

mod common;

use common::{Plan, World};
use ferrocx_heapcount::allocations;
use ferrocx_nvme::Op;

#[test]
fn requests_allocate_nothing() {
    for sgls in [0, 1] {
        let world = World::new(Plan { sgls, ..Plan::default() });
        let mut drive = world.open();
        let mut queue = world.queue(&mut drive);
        let mut ours = 0;
        let mut done = 0;
        for round in 0..1000_u64 {
            let before = allocations();
            for part in 0..4 {
                let to = world.piece(part * 16384, 16384);
                queue.push(round, Op::Read { lba: round, to }).unwrap();
            }
            queue.push(round, Op::Flush).unwrap();
            queue.ring();
            ours += allocations() - before;
            world.fake().step();
            let before = allocations();
            while queue.poll().is_some() {
                done += 1;
            }
            queue.ring();
            ours += allocations() - before;
        }
        // What the registers of this bus queue for the drive is not the driver's.
        assert_eq!(done, 5000);
        assert!(ours < 20, "{ours} allocations");
    }
}
