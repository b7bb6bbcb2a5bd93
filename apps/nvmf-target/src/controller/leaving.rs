//! How queues and controllers end, and [`Leaving`]: what a controller leaves behind that has ended
//! before its I/O queues have.
//!
//! Its place is nobody else's until they have ended, because they name it. And while one of them
//! still writes to a file or a drive, its host has no new controller of the same subsystem: a write
//! of then must not land behind its repetition.

use super::state::Controller;
use super::{Queue, Role, Target};

/// What is left of a controller.
#[derive(Debug)]
pub(super) struct Leaving {
    /// Its place.
    at: usize,
    subsystem: Option<usize>,
    hostnqn: String,
    hostid: [u8; 16],
    /// The transport's names of its I/O queues, and which of them have nothing under way.
    queues: Vec<u32>,
    quiet: Vec<u32>,
}

impl Target {
    /// A queue has ended. With its admin queue, a controller ends.
    pub fn closed(&mut self, queue: &mut Queue) {
        self.account(queue);
        self.again.retain(|(id, _)| *id != queue.id);
        self.forget_fences(queue.id);
        self.forget_saves(queue.id);
        self.forget_aborts(queue.id);
        match std::mem::replace(&mut queue.role, Role::Unconnected) {
            Role::Unconnected => self.doomed.retain(|(id, _)| *id != queue.id),
            Role::Io(at) => {
                self.doomed.retain(|(id, _)| *id != queue.id);
                self.outbox.retain(|held| held.queue != queue.id);
                self.part(at, queue.id);
            }
            Role::Admin(at) => {
                self.doom(at, "its controller has ended");
                self.doomed.retain(|(id, _)| *id != queue.id);
                self.outbox.retain(|held| held.queue != queue.id);
                if let Some(mut controller) = self.controllers.get_mut(at).and_then(Option::take) {
                    controller.set_csts(0);
                    self.forget_shutdown(controller.shutdown);
                    self.leave(at, controller);
                }
            }
        }
    }

    /// The host of an I/O queue has disconnected it, and nothing is under way on it: its number is
    /// free again. It has no controller any more.
    pub fn departed(&mut self, queue: &mut Queue) {
        self.account(queue);
        if let Role::Io(at) = queue.role {
            self.forget_aborts(queue.id);
            self.part(at, queue.id);
            queue.role = Role::Unconnected;
        }
    }

    /// An I/O queue is none of its controller's any more.
    fn part(&mut self, at: usize, queue: u32) {
        if let Some(controller) = self.controller_mut(at) {
            controller.io_queues.retain(|(_, id)| *id != queue);
            controller.strangers.retain(|it| it.queue != queue);
            controller.quiet.retain(|id| *id != queue);
        }
        self.left(at, queue);
    }

    /// A queue ends; whether it has nothing under way any more that could change a namespace.
    pub fn ending(&mut self, queue: &Queue, is_quiet: bool) {
        if let Role::Admin(at) = queue.role
            && let Some(controller) = self.controller_mut(at)
        {
            controller.is_over = true;
        }
        let Role::Io(at) = queue.role else { return };
        if !is_quiet {
            return;
        }
        let quiet = match self.leaving.iter_mut().find(|it| it.at == at) {
            Some(it) => &mut it.quiet,
            None => match self.controllers.get_mut(at) {
                Some(Some(controller)) => &mut controller.quiet,
                _ => return,
            },
        };
        if !quiet.contains(&queue.id) {
            quiet.push(queue.id);
        }
    }

    /// Keeps the place of a controller that has ended for as long as it has I/O queues.
    fn leave(&mut self, at: usize, controller: Controller) {
        let queues: Vec<u32> = controller.all_io_queues().collect();
        if queues.is_empty() {
            return;
        }
        let Controller { subsystem, hostnqn, hostid, strangers, mut quiet, .. } = controller;
        // They have written nothing.
        quiet.extend(strangers.iter().map(|it| it.queue));
        self.leaving.push(Leaving { at, subsystem, hostnqn, hostid, queues, quiet });
    }

    /// An I/O queue of the controller that has, or had, this place has ended.
    fn left(&mut self, at: usize, queue: u32) {
        for it in self.leaving.iter_mut().filter(|it| it.at == at) {
            it.queues.retain(|id| *id != queue);
        }
        self.leaving.retain(|it| !it.queues.is_empty());
    }

    /// Places that queues still name of controllers that have ended.
    pub(super) fn kept(&self) -> usize {
        self.leaving.len()
    }

    /// Whether queues still name a place.
    pub(super) fn is_kept(&self, at: usize) -> bool {
        self.leaving.iter().any(|it| it.at == at)
    }

    /// Whether queues still name the place of a subsystem.
    pub(super) fn is_left_by_someone(&self, subsystem: usize) -> bool {
        self.leaving.iter().any(|it| it.subsystem == Some(subsystem))
    }

    /// Whether a queue of a controller that a host had of a subsystem may still write.
    pub(super) fn still_writes(&self, subsystem: usize, host: (&str, [u8; 16])) -> bool {
        let mut over = self.controllers.iter().flatten().filter(|it| it.is_over);
        let is_ending = over.any(|it| {
            it.subsystem == Some(subsystem)
                && (it.hostnqn.as_str(), it.hostid) == host
                && it.io_queues.iter().any(|(_, id)| !it.quiet.contains(id))
        });
        is_ending
            || self.leaving.iter().any(|it| {
                it.subsystem == Some(subsystem)
                    && (it.hostnqn.as_str(), it.hostid) == host
                    && it.queues.iter().any(|id| !it.quiet.contains(id))
            })
    }
}
