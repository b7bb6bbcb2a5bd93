//! The end of a process. A kernel closes the files of a process that ends, and so ends its
//! connections: their peers hear of it at once, wherever they are (Linux `ucma.c`, `ucma_close`).
//!
//! Whoever ends the process may be in the middle of anything, a handler of a signal included. So it
//! takes no lock and no memory: it asks the thread of the device, and does not wait for long. A
//! process that is killed says nothing; [`Id::look_after`](super::id::Id::look_after) sees it.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::Service;
use crate::face::wait::{MOMENT, nap};
use crate::node::lock;

/// Longest that the end of a process waits.
const LONGEST: Duration = Duration::from_millis(100);
/// Moments in which the device sends what is to be said.
const MOMENTS: u32 = 3;

/// The process that has a service; 0 while there is none.
static HAS_SERVICE: AtomicU32 = AtomicU32::new(0);

/// How far the goodbye of this process is.
static GOODBYE: AtomicU32 = AtomicU32::new(NOT_ASKED);
const NOT_ASKED: u32 = 0;
const ASKED: u32 = 1;
const BEGUN: u32 = 2;
const SAID: u32 = 3;

/// Notes that this process has a service, which has something to say at its end.
pub(super) fn note_service() {
    HAS_SERVICE.store(process::id(), Ordering::Release);
}

/// The loader calls it when the process ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = ask;

/// Has peers told that this process ends. A child of a fork has nothing to say for its parent.
extern "C" fn ask() {
    if HAS_SERVICE.load(Ordering::Acquire) != process::id() {
        return;
    }
    GOODBYE.store(ASKED, Ordering::Release);
    let start = Instant::now();
    while GOODBYE.load(Ordering::Acquire) != SAID && start.elapsed() < LONGEST {
        nap(MOMENT);
    }
}

impl Service {
    /// Ends all connections if the process is about to end, and has the device send that.
    pub(super) fn say_goodbye(&self) {
        let order = Ordering::AcqRel;
        if GOODBYE.compare_exchange(ASKED, BEGUN, order, Ordering::Relaxed).is_err() {
            return;
        }
        // They end under another lock.
        let ended = std::mem::take(&mut lock(&self.table).ids);
        let is_any = !ended.is_empty();
        drop(ended);
        for _ in 0..if is_any { MOMENTS } else { 0 } {
            for rail in &self.rails {
                while rail.manager.poll() | rail.node.step() {}
            }
            nap(MOMENT);
        }
        GOODBYE.store(SAID, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::net::SocketAddr;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::mpsc::{self, RecvTimeoutError};
    use std::{env, thread};

    use ferrocx_verbs_lite::Qpn;
    use ferrocx_verbs_lite::cm::{ConnId, ConnParams, State};
    use zerocopy::{Immutable, IntoBytes};

    use super::super::Channel;
    use super::super::id::{Id, Life, Parting, about};
    use super::super::kernel::*;
    use super::*;
    use crate::files;
    use crate::node::{Turn as _, WHILE};

    const TCP: u16 = 0x106;
    /// The address that a child is to connect to.
    const PEER: &str = "FERROCX_TEST_PEER";

    /// Runs a test in a process of its own: a port has one connection manager. `true` there.
    fn is_alone(test: &str) -> bool {
        const ALONE: &str = "FERROCX_TEST_ALONE";
        if env::var_os(ALONE).is_some() {
            return true;
        }
        assert!(again(test).env(ALONE, "1").status().unwrap().success());
        false
    }

    /// This program, for one of the tests.
    fn again(test: &str) -> Command {
        let mut command = Command::new(env::current_exe().unwrap());
        let module = module_path!().split_once("::").unwrap().1;
        command.args([&format!("{module}::{test}"), "--exact", "--nocapture"]);
        command
    }

    /// Writes a command to a channel.
    fn write(
        (service, fd): (&Service, i32),
        number: u32,
        command: &(impl IntoBytes + Immutable),
    ) -> Result<(), i32> {
        let input = size_of_val(command) as u16;
        let header = rdma_ucm_cmd_hdr { cmd: number, input, output: 0 };
        let all = [header.as_bytes(), command.as_bytes()].concat();
        service.command(fd, &all).map_err(|errno| errno.0)
    }

    /// Lets `service` work until there is something.
    fn until<T>(service: &Service, what: &str, mut find: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            service.turn();
            if let Some(found) = find() {
                return found;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{what}: nothing");
            nap(MOMENT);
        }
    }

    /// A connection of a service that is asked for.
    fn ask_for(service: &Service, to: SocketAddr) -> ConnId {
        let manager = &service.rails[0].manager;
        manager.ask(Qpn(0x77), to, None, &ConnParams::default()).unwrap()
    }

    /// A listener, and the next event of its channel.
    struct Listener {
        service: &'static Service,
        file: OwnedFd,
        at: SocketAddr,
    }

    impl Listener {
        const NUMBER: u32 = 0xf000;

        fn new(service: &'static Service) -> Self {
            let file = service.open_channel().unwrap();
            rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::NONBLOCK).unwrap();
            let fd = file.as_raw_fd();
            let id = Id::new(0x1111, fd, TCP, false);
            lock(&service.table).ids.insert(Self::NUMBER, id);
            let at = SocketAddr::new(service.rails[0].local(), service.take_port(0));
            let addr = Address::of(Some(at));
            let bind = rdma_ucm_bind_ip { response: 0, addr, id: Self::NUMBER };
            write((service, fd), cmd::BIND_IP, &bind).unwrap();
            let listen = rdma_ucm_listen { id: Self::NUMBER, backlog: 0 };
            write((service, fd), cmd::LISTEN, &listen).unwrap();
            Self { service, file, at }
        }

        fn event(&self) -> Option<rdma_ucm_event_resp> {
            self.service.next_event(self.file.as_raw_fd()).ok()
        }

        fn next(&self, kind: u32) -> rdma_ucm_event_resp {
            let event = until(self.service, "an event", || self.event());
            assert_eq!(event.event, kind);
            event
        }

        fn accept(&self, id: u32) -> Result<(), i32> {
            let conn_param = rdma_ucm_conn_param { qp_num: 0x88, valid: 1, ..Default::default() };
            let accept = rdma_ucm_accept { uid: 0x2222, conn_param, id, ..Default::default() };
            write((self.service, self.file.as_raw_fd()), cmd::ACCEPT, &accept)
        }
    }

    impl Drop for Listener {
        fn drop(&mut self) {
            self.service.close_channel(self.file.as_raw_fd());
        }
    }

    /// Connects, and ends as programs do.
    fn connect_and_exit(to: SocketAddr) {
        let service = Service::get().unwrap();
        let conn = ask_for(service, to);
        until(service, "an answer", || (conn.state() == State::RepRcvd).then_some(()));
        assert!(conn.establish());
        let id = Id { life: Life::Conn(conn), ..Id::new(1, -1, TCP, false) };
        lock(&service.table).ids.insert(1, id);
        process::exit(0);
    }

    #[test]
    fn peers_of_a_process_that_ends_are_told() {
        const NAME: &str = "peers_of_a_process_that_ends_are_told";
        if let Ok(to) = env::var(PEER) {
            return connect_and_exit(to.parse().unwrap());
        }
        if !is_alone(NAME) {
            return;
        }
        let listener = Listener::new(Service::get().unwrap());
        let mut child = again(NAME).env(PEER, listener.at.to_string()).spawn().unwrap();
        let id = listener.next(event::CONNECT_REQUEST).id;
        listener.accept(id).unwrap();
        listener.next(event::ESTABLISHED);
        listener.next(event::DISCONNECTED);
        let is_told = matches!(lock(&listener.service.table).ids[&id].parting, Parting::None);
        assert!(child.wait().unwrap().success());
        assert!(is_told, "it was seen that the process is gone, by looking");
    }

    #[test]
    fn a_request_that_ends_before_it_is_accepted_makes_no_event() {
        if !is_alone("a_request_that_ends_before_it_is_accepted_makes_no_event") {
            return;
        }
        let listener = Listener::new(Service::get().unwrap());
        let asked = ask_for(listener.service, listener.at);
        let id = listener.next(event::CONNECT_REQUEST).id;
        drop(asked);
        until(listener.service, "the end", || {
            let table = lock(&listener.service.table);
            (table.ids[&id].told != State::ReqRcvd).then_some(())
        });
        assert!(listener.event().is_none(), "about an id that the program does not have");
        assert_eq!(listener.accept(id), Err(libc::EINVAL));
        assert_eq!(lock(&listener.service.table).ids[&id].uid, 0, "nothing was accepted");
        listener.service.turn();
        assert!(listener.event().is_none(), "about an id that the program does not have");
    }

    #[test]
    fn who_waits_for_an_event_of_a_channel_that_is_closed_waits_on() {
        const NAME: &str = "who_waits_for_an_event_of_a_channel_that_is_closed_waits_on";
        if !is_alone(NAME) {
            return;
        }
        let service = Service::get().unwrap();
        let file = service.open_channel().unwrap();
        let fd = file.as_raw_fd();
        let (told, hears) = mpsc::channel();
        let next = move || service.next_event(fd).map(|told| told.event).map_err(|errno| errno.0);
        thread::spawn(move || told.send(next()));
        let is_quiet = || hears.recv_timeout(4 * WHILE) == Err(RecvTimeoutError::Timeout);
        assert!(is_quiet(), "there is no event");
        service.close_channel(fd);
        assert!(is_quiet(), "in a kernel it goes on waiting");
        assert_eq!(next(), Err(libc::EBADF));
        // Its number may be given out again. An event of the new channel is not the old one's.
        let mut new = Channel { file: Arc::new(files::new().unwrap()), events: VecDeque::new() };
        new.push(about(1, event::ESTABLISHED));
        lock(&service.table).channels.insert(fd, new);
        assert!(is_quiet(), "it was given the event of another channel");
        assert_eq!(next(), Ok(event::ESTABLISHED));
    }
}
