//! What the device says that nobody asked for, and who hears it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ferrocx_core::{Event, HEALTH_POLL_INTERVAL};
use ferrocx_verbs_lite::RdmaContext;

use super::lock;
use super::ring::now_ns;

/// Somebody who wants asynchronous events.
pub(crate) trait Listener: Send + Sync + std::fmt::Debug {
    /// Takes an event, if it is about an object of this listener's.
    fn hear(&self, event: &Event);

    /// Answers what a child of this process has asked, if that is about something of this
    /// listener's.
    fn answer(&self, request: &[u8], said: &mut Vec<u8>);

    /// The device is gone, or about to be taken away: nothing more comes of what was asked of it.
    fn device_failed(&self);
}

/// Asynchronous events of a device, and whether it lives.
#[derive(Debug, Default)]
pub(super) struct Events {
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
    has_failed: AtomicBool,
    next_look_ns: AtomicU64,
}

impl Events {
    /// Tells `listener` of them as long as it lives, and of a failure that was before.
    pub(super) fn listen(&self, listener: Weak<dyn Listener>) {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|listener| listener.strong_count() > 0);
        if self.has_failed.load(Ordering::Relaxed)
            && let Some(listener) = listener.upgrade()
        {
            listener.device_failed();
        }
        listeners.push(listener);
    }

    /// Hands over what came since, and looks at the device's health when that is due.
    pub(super) fn tell(&self, context: &RdmaContext) {
        context.device().serve_events();
        while let Some(event) = context.poll_async_event() {
            self.each(|listener| listener.hear(&event));
        }
        let now_ns = now_ns();
        if self.has_failed.load(Ordering::Relaxed)
            || now_ns < self.next_look_ns.load(Ordering::Relaxed)
        {
            return;
        }
        let interval_ns = u64::try_from(HEALTH_POLL_INTERVAL.as_nanos()).unwrap_or(u64::MAX);
        self.next_look_ns.store(now_ns.saturating_add(interval_ns), Ordering::Relaxed);
        let health = context.device().health();
        if health.dead.is_some() || health.notice.is_some() {
            // Under the lock: who listens from now on hears it there, and nobody twice.
            let listeners = lock(&self.listeners);
            self.has_failed.store(true, Ordering::Relaxed);
            listeners.iter().filter_map(Weak::upgrade).for_each(|told| told.device_failed());
        }
    }

    /// Has somebody answer what a child has asked; if nobody does, nothing is said.
    pub(super) fn answer(&self, request: &[u8], said: &mut Vec<u8>) {
        self.each(|listener| listener.answer(request, said));
    }

    fn each(&self, mut tell: impl FnMut(&dyn Listener)) {
        let listeners: Vec<Arc<_>> =
            lock(&self.listeners).iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| tell(listener.as_ref()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::super::Node;
    use super::*;

    #[derive(Debug, Default)]
    struct Heard(AtomicUsize);

    impl Listener for Heard {
        fn hear(&self, _: &Event) {}

        fn answer(&self, _: &[u8], _: &mut Vec<u8>) {}

        fn device_failed(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Heard {
        fn failures(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_failure_is_told_once_to_who_listens_then_and_to_who_listens_later() {
        let node = Node::open_model(0).unwrap();
        let (early, late) = (Arc::new(Heard::default()), Arc::new(Heard::default()));
        let weak = |heard: &Arc<Heard>| -> Weak<dyn Listener> {
            let heard: Weak<Heard> = Arc::downgrade(heard);
            heard
        };
        node.listen(weak(&early));
        node.tell_events();
        lock(&node.model.as_ref().unwrap().nic).side().set_gone(true);
        let look = || {
            node.events.next_look_ns.store(0, Ordering::Relaxed);
            node.tell_events();
        };
        look();
        assert_eq!((early.failures(), late.failures()), (1, 0));
        node.listen(weak(&late));
        look();
        assert_eq!((early.failures(), late.failures()), (1, 1));
        lock(&node.model.as_ref().unwrap().nic).side().set_gone(false);
    }
}
