//! What queues have done since their cores looked last: [`Target::account`] takes it in, so that no
//! I/O command takes the lock that all cores share, not even one that fails.

use super::{Queue, Role, Target};

impl Target {
    /// Takes in what a queue has done since the last call: a sign of its host's life, traffic, and
    /// I/O commands that failed.
    pub fn account(&mut self, queue: &mut Queue) {
        let traffic = std::mem::take(&mut queue.traffic);
        let is_alive = std::mem::take(&mut queue.is_alive);
        let now = self.now;
        let (Role::Admin(at) | Role::Io(at)) = queue.role else { return };
        self.look_after_auth(queue, at);
        // Who has not shown its key may have named somebody else's controller.
        if matches!(queue.role, Role::Io(_)) && !queue.is_authenticated() {
            return;
        }
        if let Some(controller) = self.controller_mut(at) {
            controller.traffic.add(&traffic);
            controller.take_failures(&mut queue.failures);
            if is_alive {
                controller.last_seen = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Controller;
    use super::*;
    use crate::proto::cm::Request;
    use crate::proto::sgl::Sgl;
    use crate::proto::sqe::{Sqe, io};
    use crate::proto::status::Status;

    /// However many there were, the controller counts them all and lists the newest.
    #[test]
    fn all_are_counted_and_the_newest_are_listed() {
        let (here, there) = ("192.0.2.1:4420".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let mut queue = Queue::new(7, &Request::default(), here, there);
        let host = ("nqn.2014-08.a:h", [7; 16]);
        let mut controller = Controller::new(1, Some(0), host, &queue, Duration::ZERO);
        let sqe = |at: u16| Sqe { cid: at.into(), ..Sqe::new(io::READ, 0, Sgl::NONE) };
        queue.note_failure(&sqe(0), Status::READ_ERROR);
        assert!(queue.failures.list.is_empty(), "it is no I/O queue");
        queue.role = Role::Io(0);
        for at in 0..100 {
            let is_of_medium = at % 10 == 0;
            let status = if is_of_medium { Status::READ_ERROR } else { Status::LBA_RANGE };
            queue.note_failure(&sqe(at), status);
        }
        controller.take_failures(&mut queue.failures);
        controller.note_error(&queue, &sqe(100), Status::INVALID_FIELD);
        assert_eq!((controller.error_count, controller.media_errors), (101, 10));
        let listed: Vec<_> = controller.errors.iter().map(|it| (it.count, it.cid)).collect();
        let expected: Vec<_> = (37..=100).rev().map(|cid| (u64::from(cid) + 1, cid)).collect();
        assert_eq!(listed, expected);
        controller.take_failures(&mut queue.failures);
        assert_eq!((controller.error_count, controller.media_errors), (101, 10), "once");
    }
}
