//! [`World`]: an open device, its objects, and memory; made and unmade as programs do.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::abi::*;
use super::windows::Window;
use super::{Api, Choices, Object, c};

/// Bytes that requests read and write.
pub(crate) const ARENA_BYTES: usize = 1 << 18;
/// Objects of a kind that there are at most.
pub(crate) const MOST: usize = 12;

/// Pages of the process's own.
pub(crate) struct Pages(pub(crate) *mut u8, pub(crate) usize);

// SAFETY: plain memory, which only the device and the kernel touch.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub(crate) fn new(len: usize) -> Self {
        let (rights, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let start = c!(libc::mmap(null_mut(), len, rights, flags, -1, 0));
        assert_ne!(start, libc::MAP_FAILED, "no memory");
        Self(start.cast(), len)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        c!(libc::munmap(self.0.cast(), self.1));
    }
}

pub(crate) struct Region {
    pub(crate) mr: Object<ibv_mr>,
    pub(crate) pd: Object<ibv_pd>,
    /// Pages of its own, which may be unmapped before it is deregistered.
    pub(crate) pages: Option<Pages>,
}

pub(crate) struct Channel {
    pub(crate) channel: Object<ibv_comp_channel>,
}

pub(crate) struct Queue {
    pub(crate) cq: Object<ibv_cq>,
    pub(crate) channel: Option<Object<ibv_comp_channel>>,
    /// Events that were taken and not acknowledged.
    pub(crate) taken: AtomicU32,
    pub(crate) is_ex: bool,
}

pub(crate) struct Shared {
    pub(crate) srq: Object<ibv_srq>,
    pub(crate) pd: Object<ibv_pd>,
    /// Of XRC.
    pub(crate) xrc: Option<(Object<ibv_xrcd>, Object<ibv_cq>)>,
}

pub(crate) struct Address {
    pub(crate) ah: Object<ibv_ah>,
    pub(crate) pd: Object<ibv_pd>,
}

pub(crate) struct Pair {
    pub(crate) qp: Object<ibv_qp>,
    pub(crate) pd: Object<ibv_pd>,
    pub(crate) cqs: [Object<ibv_cq>; 2],
    pub(crate) srq: Option<Object<ibv_srq>>,
    pub(crate) kind: i32,
    /// Of a target of XRC, which has no domain and no queues.
    pub(crate) xrcd: Option<Object<ibv_xrcd>>,
    pub(crate) has_batches: bool,
    /// Groups that it was attached to.
    pub(crate) groups: Mutex<Vec<[u8; 16]>>,
    /// Rules that lead frames to it.
    pub(crate) flows: Mutex<Vec<Object<ibv_flow>>>,
}

/// Everything; lists are locked in the order in which they stand here.
pub(crate) struct World<'a> {
    pub(crate) api: &'a Api,
    pub(crate) context: Object<ibv_context>,
    pub(crate) gid: [u64; 2],
    pub(crate) arena: Pages,
    /// Whether what programs get wrong is common, or rare, so that something works, too.
    pub(crate) is_wild: bool,
    /// Completions without and with an error.
    pub(crate) ended: [AtomicUsize; 2],
    pub(crate) pds: RwLock<Vec<Object<ibv_pd>>>,
    pub(crate) xrcds: RwLock<Vec<Object<ibv_xrcd>>>,
    pub(crate) regions: RwLock<Vec<Region>>,
    pub(crate) windows: RwLock<Vec<Window>>,
    pub(crate) channels: RwLock<Vec<Channel>>,
    pub(crate) queues: RwLock<Vec<Queue>>,
    pub(crate) shared: RwLock<Vec<Shared>>,
    pub(crate) addresses: RwLock<Vec<Address>>,
    pub(crate) pairs: RwLock<Vec<Pair>>,
}

pub(crate) fn read<T>(list: &RwLock<Vec<T>>) -> RwLockReadGuard<'_, Vec<T>> {
    list.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write<T>(list: &RwLock<Vec<T>>) -> RwLockWriteGuard<'_, Vec<T>> {
    list.write().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn groups(pair: &Pair) -> MutexGuard<'_, Vec<[u8; 16]>> {
    pair.groups.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn flows(pair: &Pair) -> MutexGuard<'_, Vec<Object<ibv_flow>>> {
    pair.flows.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a file give up instead of waiting.
pub(crate) fn unblock(fd: i32) {
    let flags = c!(libc::fcntl(fd, libc::F_GETFL));
    assert_eq!(c!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)), 0);
}

/// The device of this process, opened.
pub(crate) fn open(api: &Api) -> Object<ibv_context> {
    let mut count = 0;
    let context = c!({
        let list = (api.ibv_get_device_list)(&raw mut count);
        assert!(!list.is_null() && count == 1, "{count} devices");
        let context = (api.ibv_open_device)(*list);
        (api.ibv_free_device_list)(list);
        context
    });
    assert!(!context.is_null(), "no device: {}", std::io::Error::last_os_error());
    Object(context)
}

impl<'a> World<'a> {
    pub(crate) fn open(api: &'a Api, is_wild: bool) -> Self {
        let context = open(api);
        unblock(c!((*context.0).async_fd));
        let mut gid = [0_u64; 2];
        assert_eq!(c!((api.ibv_query_gid)(context.0, 1, 0, (&raw mut gid).cast())), 0);
        Self {
            api,
            context,
            gid,
            arena: Pages::new(ARENA_BYTES),
            is_wild,
            ended: Default::default(),
            pds: RwLock::default(),
            xrcds: RwLock::default(),
            regions: RwLock::default(),
            windows: RwLock::default(),
            channels: RwLock::default(),
            queues: RwLock::default(),
            shared: RwLock::default(),
            addresses: RwLock::default(),
            pairs: RwLock::default(),
        }
    }

    /// The functions in front of the context, for those that are called through it.
    pub(crate) fn extended(&self) -> *mut verbs_context {
        let face = std::mem::offset_of!(verbs_context, context);
        self.context.0.wrapping_byte_sub(face).cast()
    }

    /// Acknowledges what was taken from a queue's channel.
    pub(crate) fn acknowledge(&self, queue: &Queue) {
        let taken = queue.taken.swap(0, Ordering::AcqRel);
        if taken > 0 {
            c!((self.api.ibv_ack_cq_events)(queue.cq.0, taken));
        }
    }

    /// Takes an asynchronous event, if there is one, and acknowledges it.
    pub(crate) fn take_event(&self) -> bool {
        let mut event = ibv_async_event { element: 0, event_type: -1 };
        let found = c!((self.api.ibv_get_async_event)(self.context.0, &raw mut event)) == 0;
        if found {
            c!((self.api.ibv_event_type_str)(event.event_type));
            c!((self.api.ibv_ack_async_event)(&raw mut event));
        }
        found
    }

    /// Destroys one object of a list, unless others need it: then the library refuses.
    pub(crate) fn destroy(&self, choices: &mut Choices<'_>) {
        match choices.below(10) {
            9 => self.destroy_xrcd(choices),
            0 => self.destroy_pd(choices),
            1 => self.destroy_region(choices),
            2 => self.destroy_channel(choices),
            3 => self.destroy_queue(choices),
            4 => self.destroy_shared(choices),
            5 => self.destroy_address(choices),
            6 => self.destroy_window(choices),
            _ => self.destroy_pair(choices),
        }
    }

    fn destroy_pd(&self, choices: &mut Choices<'_>) {
        let mut pds = write(&self.pds);
        if pds.is_empty() {
            return;
        }
        let at = choices.below(pds.len());
        let pd = pds[at].0;
        let is_used = read(&self.regions).iter().any(|region| region.pd.0 == pd)
            || read(&self.windows).iter().any(|window| window.pd.0 == pd)
            || read(&self.shared).iter().any(|shared| shared.pd.0 == pd)
            || read(&self.addresses).iter().any(|address| address.pd.0 == pd)
            || read(&self.pairs).iter().any(|pair| pair.pd.0 == pd);
        let status = c!((self.api.ibv_dealloc_pd)(pd));
        assert_eq!(status, if is_used { libc::EBUSY } else { 0 }, "a domain, used: {is_used}");
        if !is_used {
            pds.swap_remove(at);
        }
    }

    fn destroy_xrcd(&self, choices: &mut Choices<'_>) {
        let mut xrcds = write(&self.xrcds);
        if xrcds.is_empty() {
            return;
        }
        let at = choices.below(xrcds.len());
        let xrcd = xrcds[at].0;
        let is_used =
            read(&self.shared).iter().any(|shared| shared.xrc.is_some_and(|(of, _)| of.0 == xrcd))
                || read(&self.pairs).iter().any(|pair| pair.xrcd.is_some_and(|of| of.0 == xrcd));
        let close = c!((*self.extended()).close_xrcd);
        let status = c!(close(xrcd));
        assert_eq!(status, if is_used { libc::EBUSY } else { 0 }, "an XRC domain: {is_used}");
        if !is_used {
            xrcds.swap_remove(at);
        }
    }

    fn destroy_region(&self, choices: &mut Choices<'_>) {
        let mut regions = write(&self.regions);
        if !regions.is_empty() {
            let at = choices.below(regions.len());
            assert_eq!(c!((self.api.ibv_dereg_mr)(regions[at].mr.0)), 0, "a region");
            regions.swap_remove(at);
        }
    }

    fn destroy_channel(&self, choices: &mut Choices<'_>) {
        let mut channels = write(&self.channels);
        if channels.is_empty() {
            return;
        }
        let at = choices.below(channels.len());
        let channel = channels[at].channel.0;
        let is_used =
            read(&self.queues).iter().any(|queue| queue.channel.is_some_and(|of| of.0 == channel));
        let status = c!((self.api.ibv_destroy_comp_channel)(channel));
        assert_eq!(status, if is_used { libc::EBUSY } else { 0 }, "a channel, used: {is_used}");
        if !is_used {
            channels.swap_remove(at);
        }
    }

    fn destroy_queue(&self, choices: &mut Choices<'_>) {
        let mut queues = write(&self.queues);
        if queues.is_empty() {
            return;
        }
        let at = choices.below(queues.len());
        let cq = queues[at].cq.0;
        self.acknowledge(&queues[at]);
        let is_used =
            read(&self.shared).iter().any(|shared| {
                // Receives of XRC complete where their queue says.
                shared.xrc.is_some_and(|(_, of)| of.0 == cq)
            }) || read(&self.pairs).iter().any(|pair| pair.cqs.iter().any(|of| of.0 == cq));
        let status = c!((self.api.ibv_destroy_cq)(cq));
        assert_eq!(status, if is_used { libc::EBUSY } else { 0 }, "a queue, used: {is_used}");
        if !is_used {
            queues.swap_remove(at);
        }
    }

    fn destroy_shared(&self, choices: &mut Choices<'_>) {
        let mut shared = write(&self.shared);
        if shared.is_empty() {
            return;
        }
        let at = choices.below(shared.len());
        let srq = shared[at].srq.0;
        let is_used = read(&self.pairs).iter().any(|pair| pair.srq.is_some_and(|of| of.0 == srq));
        let status = c!((self.api.ibv_destroy_srq)(srq));
        assert_eq!(status, if is_used { libc::EBUSY } else { 0 }, "an SRQ, used: {is_used}");
        if !is_used {
            shared.swap_remove(at);
        }
    }

    fn destroy_address(&self, choices: &mut Choices<'_>) {
        let mut addresses = write(&self.addresses);
        if !addresses.is_empty() {
            let at = choices.below(addresses.len());
            assert_eq!(c!((self.api.ibv_destroy_ah)(addresses[at].ah.0)), 0, "an address");
            addresses.swap_remove(at);
        }
    }

    fn destroy_pair(&self, choices: &mut Choices<'_>) {
        let mut pairs = write(&self.pairs);
        if pairs.is_empty() {
            return;
        }
        let at = choices.below(pairs.len());
        let pair = &pairs[at];
        let is_held = !groups(pair).is_empty() || !flows(pair).is_empty();
        let status = c!((self.api.ibv_destroy_qp)(pair.qp.0));
        let expected = if is_held { libc::EBUSY } else { 0 };
        assert_eq!(status, expected, "a pair, in groups or with rules: {is_held}");
        if !is_held {
            pairs.swap_remove(at);
        }
    }

    /// Ends everything in the order in which a careful program does.
    pub(crate) fn close(self) {
        let mut none = Choices::new(&[]);
        let gone = |count: usize, list: &str| assert_eq!(count, 0, "{list} are left");
        for pair in read(&self.pairs).iter() {
            for group in groups(pair).drain(..) {
                assert_eq!(c!((self.api.ibv_detach_mcast)(pair.qp.0, &raw const group, 0)), 0);
            }
        }
        let destroy_flow = c!((*self.extended()).destroy_flow);
        for pair in read(&self.pairs).iter() {
            for flow in flows(pair).drain(..) {
                assert_eq!(c!(destroy_flow(flow.0)), 0, "a rule");
            }
        }
        // Each call of these ends the first of its list.
        for _ in 0..MOST {
            self.destroy_pair(&mut none);
        }
        for _ in 0..MOST {
            self.destroy_shared(&mut none);
        }
        for _ in 0..MOST {
            self.destroy_address(&mut none);
            self.destroy_queue(&mut none);
            self.destroy_window(&mut none);
            self.destroy_region(&mut none);
        }
        for _ in 0..MOST {
            self.destroy_channel(&mut none);
            self.destroy_pd(&mut none);
            self.destroy_xrcd(&mut none);
        }
        gone(read(&self.pairs).len(), "pairs");
        gone(read(&self.queues).len(), "queues");
        gone(read(&self.channels).len(), "channels");
        gone(read(&self.regions).len(), "regions");
        gone(read(&self.windows).len(), "windows");
        gone(read(&self.pds).len(), "domains");
        gone(read(&self.xrcds).len(), "XRC domains");
        while self.take_event() {}
        assert_eq!(c!((self.api.ibv_close_device)(self.context.0)), 0, "the device");
    }
}
