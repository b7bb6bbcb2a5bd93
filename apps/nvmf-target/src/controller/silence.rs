//! Time passes: controllers end whose hosts are silent.
//!
//! A target may stand still itself, with its machine or its thread, while hosts go on sending. What
//! they sent is not yet taken in when the clock is looked at again.

use std::time::Duration;

use super::Target;
use super::state::Controller;

/// Time between two looks at the clock that may be a host's silence: behind a longer one nobody had
/// listened. Keep-alive times are a second at least, and a core looks every 20 ms.
const MAX_UNHEARD: Duration = Duration::from_millis(500);

impl Target {
    /// A core looks at the clock, which comes before [`Target::tick`]. The time in which it did not
    /// listen to its hosts, if it stood still: that is no host's silence.
    pub fn look(&mut self, core: usize, now: Duration) -> Duration {
        if core >= self.looks.len() {
            self.looks.resize(core + 1, now);
        }
        // What the core takes in of its queues from here on was there until now.
        self.now = self.now.max(now);
        let before = std::mem::replace(&mut self.looks[core], now);
        let unheard = now.saturating_sub(before);
        if unheard <= MAX_UNHEARD {
            return Duration::ZERO;
        }
        // What another core has stood still, too, counts once.
        let more = now.saturating_sub(before.max(self.unheard_until));
        self.unheard_until = now;
        for controller in self.controllers.iter_mut().flatten() {
            controller.last_seen = now.min(controller.last_seen + more);
        }
        unheard
    }

    /// Tells the target what time it is, and ends controllers whose hosts are silent: not while a
    /// core stands still that they may speak to.
    pub fn tick(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if self.looks.iter().any(|look| now.saturating_sub(*look) > MAX_UNHEARD) {
            return;
        }
        let silence = self.settings.silence;
        let expired = |controller: &Controller| controller.is_expired(now, silence);
        for at in 0..self.controllers.len() {
            if let Some(controller) = self.controller_mut(at)
                && expired(controller)
            {
                controller.fail();
                let why = match controller.keep_alive {
                    Some(_) => "its keep-alive time is over",
                    None => "its host was silent for too long",
                };
                self.doom(at, why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::{Action, Queue, Role, Settings};
    use crate::proto::cm::Request;
    use crate::proto::property;
    use crate::proto::sgl::Sgl;
    use crate::proto::sqe::{Sqe, admin};
    use crate::proto::status::Status;

    /// A target with a controller whose host may be silent for five seconds.
    fn target() -> Target {
        let mut target = Target::new(Settings::default());
        let queue = queue();
        let host = ("nqn.2014-08.a:h", [7; 16]);
        let mut controller = Controller::new(1, Some(0), host, &queue, Duration::ZERO);
        controller.set_keep_alive(5000);
        target.controllers.push(Some(controller));
        target
    }

    /// The admin queue of that controller.
    fn queue() -> Queue {
        let (here, there) = ("192.0.2.1:4420".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let mut queue = Queue::new(7, &Request::default(), here, there);
        queue.role = Role::Admin(0);
        queue
    }

    /// These cores look every 20 ms, and the first judges; whether somebody is doomed.
    fn run(target: &mut Target, cores: &[usize], ms: std::ops::Range<u64>) -> bool {
        for now in ms.step_by(20).map(Duration::from_millis) {
            for core in cores {
                target.look(*core, now);
            }
            target.tick(now);
        }
        target.next_doomed(|_| true).is_some()
    }

    #[test]
    fn a_target_that_stood_still_blames_no_host_for_it() {
        let mut target = target();
        assert!(!run(&mut target, &[0, 1], 0..3000));
        let hour = 3_600_000;
        assert!(!run(&mut target, &[0, 1], hour..hour + 1900), "its time is not over");
        assert!(run(&mut target, &[0, 1], hour + 1900..hour + 2100), "five seconds that count");
    }

    #[test]
    fn a_host_that_spoke_before_the_target_stood_still_is_not_blamed_for_it_either() {
        let (mut target, mut queue) = (target(), queue());
        assert!(!run(&mut target, &[0], 0..3000));
        // What had come before is taken in behind it, by the first core that looks again.
        queue.fetched();
        let hour = Duration::from_secs(3600);
        target.look(0, hour);
        target.account(&mut queue);
        target.tick(hour);
        assert!(target.next_doomed(|_| true).is_none(), "its time has just begun");
        let ms = hour.as_millis() as u64;
        assert!(!run(&mut target, &[0], ms + 20..ms + 4980), "its time is not over");
        assert!(run(&mut target, &[0], ms + 4980..ms + 5100), "five seconds that count");
    }

    #[test]
    fn nobody_is_judged_while_a_core_stands_still() {
        let mut target = target();
        assert!(!run(&mut target, &[0, 1], 0..3000));
        assert!(!run(&mut target, &[0], 3000..60_000), "it may have spoken to the other");
        // That one looks again, and takes in what has come a round later.
        assert!(!run(&mut target, &[0, 1], 60_000..61_900), "its time is not over");
        assert!(run(&mut target, &[0, 1], 61_900..62_100), "five seconds that count");
    }

    #[test]
    fn a_shorter_keep_alive_time_begins_when_it_is_set() {
        let (mut target, mut queue) = (target(), queue());
        let controller = target.controller_mut(0).unwrap();
        controller.set_csts(property::CSTS_RDY);
        assert!(!run(&mut target, &[0], 0..4000));
        let (cdw10, cdw11) = (0x0f.into(), 1000.into());
        let set = Sqe { cdw10, cdw11, ..Sqe::new(admin::SET_FEATURES, 0, Sgl::NONE) };
        let done = target.command(&mut queue, 0, &set, &[], &mut Vec::new());
        assert!(matches!(done, Action::Answer(cqe) if cqe.status() == Status::SUCCESS));
        // Its core, the other, takes the command in behind the first one's look.
        assert!(!run(&mut target, &[0], 4000..4900), "its time has just begun");
        assert!(run(&mut target, &[0], 4900..5100), "a second that counts");
    }

    #[test]
    fn a_slow_look_at_the_clock_counts() {
        let (mut target, ms) = (target(), Duration::from_millis);
        assert_eq!(target.look(0, ms(1000)), Duration::ZERO, "the first");
        assert_eq!(target.look(0, ms(1500)), Duration::ZERO);
        assert_eq!(target.look(0, ms(2001)), ms(501));
        assert_eq!(target.look(0, ms(2000)), Duration::ZERO);
    }
}
