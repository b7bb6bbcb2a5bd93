//! What stock programs rely on besides what each call promises: signals that come while they wait,
//! and objects that they leave behind.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::abi::*;
use super::world::{Pages, World, unblock};
use super::{Api, Object, c};

/// Signals that were handled.
static HANDLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn handle(_: c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// Handles a signal, with or without `SA_RESTART`.
fn install(flags: c_int) {
    c!({
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, null_mut()), 0);
    });
}

/// Sends signals to a thread until it has handled so many.
fn disturb(thread: libc::pthread_t, count: u32) {
    let (before, start) = (HANDLED.load(Ordering::Relaxed), Instant::now());
    while HANDLED.load(Ordering::Relaxed) - before < count {
        assert!(start.elapsed() < Duration::from_secs(60), "no signal is handled");
        assert_eq!(c!(libc::pthread_kill(thread, libc::SIGUSR1)), 0);
        thread::sleep(Duration::from_millis(3));
    }
}

/// Waits until a thread of this process sleeps.
fn until_asleep(thread: libc::pid_t) {
    let (path, start) = (format!("/proc/self/task/{thread}/stat"), Instant::now());
    loop {
        // Behind its name in brackets.
        let stat = std::fs::read_to_string(&path).unwrap();
        if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it does not wait: {stat}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Regions that a test has left to their device.
static LEFT: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// A call that waits for an event of an object.
struct Wait {
    call: unsafe extern "C-unwind" fn(*mut c_void, *mut u64, *mut u64) -> c_int,
    object: *mut c_void,
    out: [u64; 4],
}

/// Waits. A thread that is cancelled is unwound through this.
extern "C-unwind" fn wait(of: *mut c_void) -> *mut c_void {
    c!({
        let of = of.cast::<Wait>();
        let out = (&raw mut (*of).out).cast::<u64>();
        ((*of).call)((*of).object, out, out.add(2));
    });
    null_mut()
}

/// Cancels a thread that waits; what who joins it is told.
fn cancel(mut of: Wait) -> usize {
    c!({
        let (mut thread, mut result) = (0, null_mut());
        let start: extern "C" fn(*mut c_void) -> *mut c_void =
            std::mem::transmute(wait as extern "C-unwind" fn(*mut c_void) -> *mut c_void);
        let of = (&raw mut of).cast();
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), start, of), 0);
        thread::sleep(Duration::from_millis(70));
        assert_eq!(libc::pthread_cancel(thread), 0);
        assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
        result.addr()
    })
}

/// What a handler of `exit` ends.
struct Open {
    api: &'static Api,
    context: Object<ibv_context>,
    pd: Object<ibv_pd>,
    channel: Object<ibv_comp_channel>,
    cq: Object<ibv_cq>,
    qp: Object<ibv_qp>,
}

static OPEN: Mutex<Option<Open>> = Mutex::new(None);

/// Ends the process with 7 if everything can be ended.
extern "C" fn end_in_exit() {
    let Open { api, context, pd, channel, cq, qp } = OPEN.lock().unwrap().take().unwrap();
    c!({
        (api.ibv_ack_cq_events)(cq.0, 1);
        assert_eq!((api.ibv_destroy_qp)(qp.0), 0);
        assert_eq!((api.ibv_destroy_cq)(cq.0), 0);
        assert_eq!((api.ibv_destroy_comp_channel)(channel.0), 0);
        assert_eq!((api.ibv_dealloc_pd)(pd.0), 0);
        assert_eq!((api.ibv_close_device)(context.0), 0);
        libc::_exit(7);
    });
}

impl World<'_> {
    /// A domain, a channel, a queue of it, and a queue pair in error: what is posted is flushed.
    fn failed(&self) -> (*mut ibv_pd, *mut ibv_comp_channel, *mut ibv_cq, *mut ibv_qp) {
        let (api, context) = (self.api, self.context);
        let pd = c!((api.ibv_alloc_pd)(context.0));
        let channel = c!((api.ibv_create_comp_channel)(context.0));
        let cq = c!((api.ibv_create_cq)(context.0, 32, null_mut(), channel, 0));
        let qp = self.connection(pd, cq, null_mut());
        self.join(qp, qp);
        self.fail(qp);
        (pd, channel, cq, qp)
    }
}

impl World<'static> {
    /// Ends the process in a thread that has waited for events. What it used ends in a handler, as
    /// programs and the destructors of libraries have it.
    pub(crate) fn ends_in_exit(&self) {
        let (api, context) = (self.api, self.context);
        let (pd, channel, cq, qp) = self.failed();
        assert_eq!(c!(((*context.0).ops.req_notify_cq)(cq, 0)), 0);
        self.post(qp, self.message());
        let (pd, channel) = (Object(pd), Object(channel));
        let (cq, qp) = (Object(cq), Object(qp));
        *OPEN.lock().unwrap() = Some(Open { api, context, pd, channel, cq, qp });
        assert_eq!(c!(libc::atexit(end_in_exit)), 0);
        // It does nothing but wait: debug builds of ferrocx-bus note in each thread what it borrows
        // of the model's memory, and one that has cannot do so in handlers of `exit`.
        thread::scope(|scope| {
            scope.spawn(|| {
                self.wait_for_event({ cq }.0, { channel }.0);
                while self.take_event() {}
                std::process::exit(0);
            });
        });
    }
}

impl World<'_> {
    /// Cancels threads that wait for events, after which what they waited for can be ended.
    #[allow(clippy::missing_transmute_annotations, reason = "the types are those of the field")]
    pub(crate) fn ends_after_cancelled_waiters(self) {
        /// `PTHREAD_CANCELED`.
        const CANCELED: usize = usize::MAX;
        let (api, context, out) = (self.api, self.context.0, [0; 4]);
        let channel = c!((api.ibv_create_comp_channel)(context));
        assert_eq!(c!(libc::fcntl((*context).async_fd, libc::F_SETFL, 0)), 0);
        let call = c!(std::mem::transmute(api.ibv_get_cq_event));
        assert_eq!(cancel(Wait { call, object: channel.cast(), out }), CANCELED);
        let call = c!(std::mem::transmute(api.ibv_get_async_event));
        assert_eq!(cancel(Wait { call, object: context.cast(), out }), CANCELED);
        assert_eq!(c!((api.ibv_destroy_comp_channel)(channel)), 0);
        assert_eq!(c!((api.ibv_close_device)(context)), 0);
    }

    /// Lets threads wait for events, and signals come meanwhile. Handlers of the whole process are
    /// changed.
    pub(crate) fn is_disturbed(&self) {
        let (api, context) = (self.api, self.context);
        let pd = c!((api.ibv_alloc_pd)(context.0));
        let channel = Object(c!((api.ibv_create_comp_channel)(context.0)));
        let cq = c!((api.ibv_create_cq)(context.0, 32, null_mut(), channel.0, 0));
        let qp = self.connection(pd, cq, null_mut());
        self.join(qp, qp);
        self.fail(qp);
        // The file of events blocks again.
        while self.take_event() {}
        assert_eq!(c!(libc::fcntl((*context.0).async_fd, libc::F_SETFL, 0)), 0);
        let for_completion = || {
            let (mut cq, mut of) = (null_mut(), null_mut());
            c!((api.ibv_get_cq_event)({ channel }.0, &raw mut cq, &raw mut of))
        };
        let for_event = || {
            let mut event = ibv_async_event { element: 0, event_type: -1 };
            c!((api.ibv_get_async_event)({ context }.0, &raw mut event))
        };
        let waits: [&(dyn Fn() -> c_int + Sync); 2] = [&for_completion, &for_event];
        for wait in waits {
            install(libc::SA_RESTART);
            thread::scope(|scope| {
                let (told, got) = mpsc::channel();
                let waiter = scope.spawn(move || {
                    told.send(c!(libc::pthread_self())).unwrap();
                    (wait(), std::io::Error::last_os_error().raw_os_error())
                });
                let thread = got.recv().unwrap();
                disturb(thread, 10);
                assert!(!waiter.is_finished(), "the handler asks for the wait to go on");
                install(0);
                // One may come while the thread is not waiting.
                let start = Instant::now();
                while !waiter.is_finished() {
                    assert!(start.elapsed() < Duration::from_secs(60), "no signal ends the wait");
                    // It may end in between, and handle no more.
                    c!(libc::pthread_kill(thread, libc::SIGUSR1));
                    thread::sleep(Duration::from_millis(3));
                }
                assert_eq!(waiter.join().unwrap(), (-1, Some(libc::EINTR)));
            });
        }
        // What comes after signals is not missed.
        install(libc::SA_RESTART);
        thread::scope(|scope| {
            let (told, got) = mpsc::channel();
            assert_eq!(c!(((*context.0).ops.req_notify_cq)(cq, 0)), 0);
            let waiter = scope.spawn(move || {
                told.send(c!(libc::pthread_self())).unwrap();
                for_completion()
            });
            disturb(got.recv().unwrap(), 3);
            self.post(qp, self.message());
            assert_eq!(waiter.join().unwrap(), 0);
        });
        unblock(c!((*context.0).async_fd));
        c!({
            (api.ibv_ack_cq_events)(cq, 1);
            // UCX's tests look there.
            assert_eq!((*cq).comp_events_completed.load(Ordering::Relaxed), 1);
            assert_eq!((api.ibv_destroy_qp)(qp), 0);
            assert_eq!((api.ibv_destroy_cq)(cq), 0);
            assert_eq!((api.ibv_destroy_comp_channel)(channel.0), 0);
            assert_eq!((api.ibv_dealloc_pd)(pd), 0);
        });
    }

    /// Makes other calls with a queue between the start and the end of polling it by functions. In
    /// another thread asks for an event, which comes behind the end, and polls, which waits for it.
    pub(crate) fn calls_between_polls(&self) {
        let (api, context) = (self.api, self.context);
        let (pd, channel, cq, qp) = self.failed();
        for wr_id in 1..=4 {
            self.post(qp, ibv_send_wr { wr_id, ..self.message() });
        }
        let (ex, arm) = (cq.cast::<ibv_cq_ex>(), c!((*context.0).ops.req_notify_cq));
        let face = c!(&*ex);
        let start = Instant::now();
        while c!((face.start_poll)(ex, null_mut())) != 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "nothing is flushed");
        }
        assert_eq!(c!((*ex).wr_id), 1);
        // All of them are in the queue by now: the next calls take them from the device.
        thread::sleep(Duration::from_millis(50));
        let other = self.connection(pd, cq, null_mut());
        assert_eq!(c!((api.ibv_destroy_qp)(other)), 0);
        assert_eq!(c!((api.ibv_resize_cq)(cq, 100)), 0);
        assert_eq!(c!((face.next_poll)(ex)), 0);
        assert_eq!(c!(((*ex).wr_id, (face.read_qp_num)(ex), (*qp).qp_num)), {
            let number = c!((*qp).qp_num);
            (2, number, number)
        });
        let cq = Object(cq);
        thread::scope(|scope| {
            let armed = scope.spawn(move || c!(arm({ cq }.0, 0)));
            assert_eq!(armed.join().unwrap(), 0, "nobody waits to ask for an event");
            let poller = scope.spawn(move || self.take_ended({ cq }.0));
            thread::sleep(Duration::from_millis(50));
            assert!(!poller.is_finished(), "the queue is this thread's");
            assert_eq!(c!((face.next_poll)(ex)), 0);
            assert_eq!(c!((*ex).wr_id), 3);
            c!((face.end_poll)(ex));
            assert_eq!(poller.join().unwrap(), [(4, 5)]);
        });
        self.wait_for_event(cq.0, channel);
        // The library made that event. Those of the device come behind it.
        for wr_id in 5..=6 {
            assert_eq!(c!(arm(cq.0, 0)), 0);
            self.post(qp, ibv_send_wr { wr_id, ..self.message() });
            self.wait_for_event(cq.0, channel);
            assert_eq!(self.take_ended(cq.0), [(wr_id, 5)]);
        }
        // Of what is there already an event comes at once: UCX arms, and sleeps without a look.
        self.post(qp, ibv_send_wr { wr_id: 7, ..self.message() });
        thread::sleep(Duration::from_millis(50));
        assert_eq!(c!(arm(cq.0, 0)), 0);
        self.wait_for_event(cq.0, channel);
        // Also where the library has taken it from the device: to resize does.
        assert_eq!(c!((api.ibv_resize_cq)(cq.0, 120)), 0);
        assert_eq!(c!(arm(cq.0, 0)), 0);
        self.wait_for_event(cq.0, channel);
        assert_eq!(self.take_ended(cq.0), [(7, 5)]);
        c!((api.ibv_ack_cq_events)(cq.0, 5));
        // Nothing is there, and nothing stays locked.
        assert_eq!(c!((face.start_poll)(ex, null_mut())), libc::ENOENT);
        assert!(self.take_ended(cq.0).is_empty());
        c!({
            assert_eq!((api.ibv_destroy_qp)(qp), 0);
            assert_eq!((api.ibv_destroy_cq)(cq.0), 0);
            assert_eq!((api.ibv_destroy_comp_channel)(channel), 0);
            assert_eq!((api.ibv_dealloc_pd)(pd), 0);
        });
    }

    /// Ends a channel and closes the device while threads wait for their events.
    pub(crate) fn ends_under_waiters(self) {
        let (api, context) = (self.api, self.context);
        let channel = Object(c!((api.ibv_create_comp_channel)(context.0)));
        assert_eq!(c!(libc::fcntl((*context.0).async_fd, libc::F_SETFL, 0)), 0);
        let errno = || std::io::Error::last_os_error().raw_os_error();
        thread::scope(|scope| {
            let (told, got) = mpsc::channel();
            let tell = told.clone();
            let completions = scope.spawn(move || {
                let (mut cq, mut of) = (null_mut(), null_mut());
                told.send(c!(libc::gettid())).unwrap();
                (c!((api.ibv_get_cq_event)({ channel }.0, &raw mut cq, &raw mut of)), errno())
            });
            let events = scope.spawn(move || {
                let (of, mut event) = (context, ibv_async_event { element: 0, event_type: -1 });
                tell.send(c!(libc::gettid())).unwrap();
                (c!((api.ibv_get_async_event)(of.0, &raw mut event)), errno())
            });
            // Who calls only after the end has nothing that it may name.
            got.iter().take(2).for_each(until_asleep);
            assert!(!completions.is_finished() && !events.is_finished());
            assert_eq!(c!((api.ibv_destroy_comp_channel)(channel.0)), 0);
            assert_eq!(completions.join().unwrap(), (-1, Some(libc::EBADF)));
            assert_eq!(c!((api.ibv_close_device)(context.0)), 0);
            assert_eq!(events.join().unwrap(), (-1, Some(libc::EBADF)));
        });
    }

    /// Writes into memory of `other`, before and after that closes its device and leaves everything
    /// as it is; gives the statuses.
    pub(crate) fn write_to_left(&self, other: &World<'_>) -> Vec<i32> {
        let api = self.api;
        let pages = [(); 2].map(|()| Pages::new(4096));
        let ends = [self, other].map(|of| {
            let pd = c!((api.ibv_alloc_pd)(of.context.0));
            let cq = c!((api.ibv_create_cq)(of.context.0, 8, null_mut(), null_mut(), 0));
            (pd, cq, of.connection(pd, cq, null_mut()))
        });
        let [(pd, cq, qp), (_, _, left)] = ends;
        // Once more, for a thread that did not step the other's device in time.
        self.join_trying(qp, left, 1);
        let [from, to] = [0, 1].map(|at| {
            let (pages, (pd, ..)): (&Pages, _) = (&pages[at], ends[at]);
            c!((api.ibv_reg_mr)(pd, pages.0.cast(), 4096, 7))
        });
        let rkey = c!((*to).rkey);
        // What a program leaves stays its memory, and is no leak that anybody is to look for.
        LEFT.lock().unwrap().push(to.expose_provenance());
        let mut statuses = Vec::new();
        for value in [7, 9] {
            c!(pages[0].0.write_volatile(value));
            let mut data =
                ibv_sge { addr: pages[0].0.addr() as u64, length: 1, lkey: c!((*from).lkey) };
            let remote_addr = pages[1].0.addr() as u64;
            let wr = wr_of { rdma: wr_rdma { remote_addr, rkey } };
            let (sg_list, num_sge) = (&raw mut data, 1);
            self.post(qp, ibv_send_wr { opcode: 0, sg_list, num_sge, wr, ..self.message() });
            let ended = loop {
                if let [(_, status)] = self.take_ended(cq)[..] {
                    break status;
                }
            };
            statuses.push(ended);
            if value == 7 {
                assert_eq!(c!(pages[1].0.read_volatile()), 7);
                assert_eq!(c!((api.ibv_close_device)(other.context.0)), 0);
            }
        }
        assert_eq!(c!(pages[1].0.read_volatile()), 7, "memory that nobody has registered");
        c!({
            let (mut attr, mut init) = (ibv_qp_attr::default(), zeroed());
            assert_eq!((*qp).state, 3, "as the program has set it");
            assert_eq!((api.ibv_query_qp)(qp, &raw mut attr, 0, &raw mut init), 0);
            assert_eq!((*qp).state, 3, "nobody asked");
            assert_eq!((api.ibv_query_qp)(qp, &raw mut attr, 1, &raw mut init), 0);
            assert_eq!(((*qp).state, attr.qp_state), (6, 6), "as it is");
            assert_eq!((api.ibv_destroy_qp)(qp), 0);
            assert_eq!((api.ibv_destroy_cq)(cq), 0);
            assert_eq!((api.ibv_dereg_mr)(from), 0);
            assert_eq!((api.ibv_dealloc_pd)(pd), 0);
        });
        statuses
    }
}
