//! A queue that ends while its core stands still, so that nobody sees its last completions in time.

mod by_hand;

use std::thread;
use std::time::Duration;

use by_hand::rig::What;
use by_hand::{ByHand, DRIVE};

#[test]
fn buffers_of_answers_that_nobody_saw_end_come_back() {
    let mut it = ByHand::start(4).unwrap();
    it.rig.submit(What::Read, DRIVE, 4).unwrap();
    it.rig.settle();
    // The commands go to the drive, their data to the host; the models stand still.
    it.step().unwrap();
    it.rig.server.poll().unwrap();
    assert_eq!(it.rig.server.held_buffers(), 4);
    it.rig.send_away().unwrap();
    assert_eq!(it.rig.server.held_buffers(), 4, "the models moved");
    // The core stands still while the port ends all that was posted.
    thread::sleep(Duration::from_millis(2200));
    it.rig.settle();
    it.rig.pass_time().unwrap();
    assert_eq!(it.rig.server.stats().queues, 0);
    assert_eq!(it.rig.server.held_buffers(), 0);
}
