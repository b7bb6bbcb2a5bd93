//! A port beside the hostile one: its messages take the turns that they take when it is alone.

use crate::common::roce::{RC, TestQp, Two, inline, work};

const SEND: u32 = 0x0a;

/// Two peers on a cable of their own.
pub(crate) struct Bystander {
    two: Two,
    qa: TestQp,
    qb: TestQp,
    /// Turns of one message while nobody else has any.
    idle_turns: u32,
}

impl Bystander {
    pub(crate) fn new() -> Self {
        let mut two = Two::new();
        let (qa, qb) = two.connected(RC);
        let mut bystander = Self { two, qa, qb, idle_turns: 0 };
        bystander.idle_turns = bystander.message(|| {});
        bystander
    }

    /// One message, and between two turns of its peers one of the neighbour.
    pub(crate) fn ping(&mut self, neighbour: impl FnMut()) {
        let turns = self.message(neighbour);
        assert_eq!(turns, self.idle_turns, "turns of a message beside a hostile neighbour");
    }

    /// Sends and receives one message; returns the turns that it took.
    fn message(&mut self, mut neighbour: impl FnMut()) -> u32 {
        self.two.b.post_receive(&mut self.qb, 0, 64);
        self.two.a.post_send(&mut self.qa, &work(SEND), &inline(b"hello"));
        let (mut done, mut turns) = (0, 0);
        while done < 2 {
            self.two.a.host.step();
            self.two.b.host.step();
            neighbour();
            done += self.two.a.polled().len() + self.two.b.polled().len();
            turns += 1;
            assert!(turns < 1000, "the message never arrived");
        }
        assert_eq!(self.two.b.read(0, 5), b"hello");
        turns
    }
}
