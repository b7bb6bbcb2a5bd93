//! [`Helper`]: a thread that computes for the authentication of hosts, so that no core has to.
//!
//! A power takes some milliseconds, at 8192 bits some tens of them. There is one thread for all, it
//! serves addresses of hosts in turn, and a queue has at most one power under way, so a stranger
//! who keeps asking makes others wait for one power each time. What nobody waits for any more is
//! left out.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use ferrocx::verbs::Qp;

use super::execute::Work;
use super::session::{Link, Session, State};
use crate::auth::Power;
use crate::controller::{Action, Queue, Target};

/// The thread, and what it has to do.
#[derive(Debug)]
pub(super) struct Helper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    lanes: Mutex<Lanes>,
    more: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is to be computed, by the addresses that asked for it; the next one first.
#[derive(Debug, Default)]
struct Lanes {
    lanes: VecDeque<(IpAddr, VecDeque<Arc<Power>>)>,
    is_closed: bool,
}

impl Lanes {
    fn push(&mut self, host: IpAddr, power: Arc<Power>) {
        match self.lanes.iter_mut().find(|(it, _)| *it == host) {
            Some((_, lane)) => lane.push_back(power),
            None => self.lanes.push_back((host, VecDeque::from([power]))),
        }
    }

    /// The next one; the others of its address wait until every other address was served.
    fn pop(&mut self) -> Option<Arc<Power>> {
        let (host, mut lane) = self.lanes.pop_front()?;
        let power = lane.pop_front();
        if !lane.is_empty() {
            self.lanes.push_back((host, lane));
        }
        power
    }
}

impl Helper {
    /// Starts the thread. It is none of the polling cores': they are pinned later.
    pub(super) fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let its = shared.clone();
        let thread = thread::Builder::new().name("nvmf-auth".into()).spawn(move || work(&its))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Lets it compute a power for a host.
    pub(super) fn push(&self, host: IpAddr, power: Arc<Power>) {
        self.shared.lock().push(host, power);
        self.shared.more.notify_one();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.more.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    let mut lanes = shared.lock();
    while !lanes.is_closed {
        let Some(power) = lanes.pop() else {
            lanes = shared.more.wait(lanes).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(lanes);
        // Its queue has not ended.
        if Arc::strong_count(&power) > 1 {
            power.compute();
        }
        drop(power);
        lanes = shared.lock();
    }
}

impl super::Shared {
    /// Asks the target what is to be done on a queue, and has what it needs for that computed or
    /// brought to disk.
    pub(super) fn ask(
        &self,
        link: &mut Link,
        ask: impl FnOnce(&mut Target, &mut Queue) -> Action,
    ) -> Action {
        let mut target = self.lock();
        let done = ask(&mut target, &mut link.queue);
        while let Some(power) = target.next_power() {
            self.helper.push(link.connection.peer().ip(), power);
        }
        if let Some(keeper) = &self.keeper {
            while let Some(save) = target.next_save() {
                keeper.save(save);
            }
        }
        done
    }
}

impl Work {
    /// Carries a command out again that was held.
    #[cold]
    pub(super) fn again(&mut self, qp: &mut Qp, session: &mut Session, slot: u16) {
        let Session { link, slots } = session;
        let Some(it) = slots.get_mut(usize::from(slot)) else { return };
        if it.state != State::Held || link.ending.is_some() {
            return;
        }
        let outcome =
            if link.has_room(qp) { self.command(qp, link, it) } else { self.wait(link, it) };
        self.touched(link, outcome);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::auth::{Exponent, Group};

    fn power() -> Arc<Power> {
        Power::public(Group::Ffdhe2048, &Exponent::new([7; 64]))
    }

    #[test]
    fn addresses_take_turns() {
        let (one, two): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let all: Vec<Arc<Power>> = (0..5).map(|_| power()).collect();
        let mut lanes = Lanes::default();
        for (at, host) in [one, one, one, two, two].into_iter().enumerate() {
            lanes.push(host, all[at].clone());
        }
        let order = std::iter::from_fn(|| lanes.pop())
            .map(|it| all.iter().position(|power| Arc::ptr_eq(power, &it)).unwrap());
        assert_eq!(order.collect::<Vec<_>>(), [0, 3, 1, 4, 2]);
    }

    #[test]
    fn it_computes_what_somebody_waits_for() {
        let helper = Helper::start().unwrap();
        let (wanted, given_up) = (power(), power());
        let probe = Arc::downgrade(&given_up);
        helper.push([10, 0, 0, 1].into(), given_up);
        helper.push([10, 0, 0, 2].into(), wanted.clone());
        let start = Instant::now();
        while wanted.value().is_none() {
            assert!(start.elapsed() < Duration::from_secs(60));
            thread::yield_now();
        }
        assert!(probe.upgrade().is_none());
        drop(helper);
    }
}
