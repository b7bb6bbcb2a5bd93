//! The vfio-user server of one port: regions, interrupts, and clients one after another.
//!
//! # What a hostile client can do
//!
//! A guest talks through its QEMU and sends well-formed messages only. Against a client that does
//! not, [`Function`] checks what it is given, and a panic in the crate `vfio_user` 0.1.7 costs the
//! client its connection. That crate allocates what the length of a message says, up to 4 GiB,
//! before anyone can look at it. Whoever takes the process over has one that can open and start
//! nothing ([`super::confine`]). Left to such a client:
//!
//! - It takes as much memory as it sends, 4 GiB at most for each port; where the system does not
//!   even promise that much, the process ends.
//! - It keeps its port from the next client, by staying or by not reading the answers.
//! - Having handed over an eventfd, it makes it blocking and fills it: its own port waits.
//! - It punches holes into its memory, and the next access of ours finds no page: the process ends.
//!   On hugetlbfs where no huge page is free; elsewhere where the system overcommits no memory
//!   (`vm.overcommit_memory=2`) and all is promised.

use std::cell::RefCell;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use vfio_bindings::bindings::vfio as abi;
use vfio_user::{IrqInfo, Server, ServerRegion};

use super::function::Function;
use super::pci::{BAR0_BYTES, BAR2_BYTES, CONFIG_BYTES, MSIX_VECTORS};

/// Opens the socket. It exists when this returns, so a client may connect.
///
/// # Errors
///
/// The path exists already, or the system's reason for refusing it.
pub(super) fn listen(path: &Path) -> Result<Server, vfio_user::Error> {
    Server::new(path, true, interrupts(), regions())
}

/// How long a socket that accepts nobody is left alone.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Clients of a socket that is not a port's, for ever; one that cannot be accepted is left waiting
/// for a while.
pub(super) fn clients(listener: &UnixListener) -> impl Iterator<Item = UnixStream> {
    listener
        .incoming()
        .filter_map(|client| client.inspect_err(|_| std::thread::sleep(ACCEPT_AGAIN)).ok())
}

/// Serves clients one after another, for ever. Nothing of one is left for the next.
pub(super) fn serve(server: &Server, port: &str, mut function: Function) {
    loop {
        // A message that is not even well-formed makes the crate panic; the port survives it.
        let end = caught(|| server.run(&mut function));
        // No descriptor is free, most likely, and one may be later.
        if matches!(end, Ok(Err(vfio_user::Error::SocketAccept(_)))) {
            std::thread::sleep(ACCEPT_AGAIN);
        }
        say(port, &function, end);
        function.forget_client();
    }
}

/// Says why a client is gone, unless enough was said in this second.
fn say(port: &str, function: &Function, end: Result<Result<(), vfio_user::Error>, String>) {
    if !function.may_say() {
        return;
    }
    match end {
        Ok(Ok(())) => tracing::info!(port, "client left"),
        Ok(Err(error)) => tracing::warn!(port, %error, "client lost"),
        Err(panic) => tracing::error!(port, panic, "client lost: its message was malformed"),
    }
}

thread_local! {
    /// While a panic of this thread is caught: what it says.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Catches a panic and returns what it says, which nobody prints: a client can cause any number.
fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |info| {
            let is_caught = SAID.with_borrow(Option::is_some);
            if is_caught { SAID.set(Some(info.to_string())) } else { usual(info) }
        }));
    });
    SAID.set(Some(String::new()));
    let result = catch_unwind(AssertUnwindSafe(run));
    let said = SAID.take().unwrap_or_default();
    result.map_err(|_| said)
}

/// BAR 0, BAR 2 and configuration space, all trapped: each access is a message.
fn regions() -> Vec<ServerRegion> {
    (0..abi::VFIO_PCI_NUM_REGIONS)
        .map(|index| {
            let size = match index {
                abi::VFIO_PCI_BAR0_REGION_INDEX => BAR0_BYTES,
                abi::VFIO_PCI_BAR2_REGION_INDEX => BAR2_BYTES,
                abi::VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_BYTES as u64,
                _ => 0,
            };
            let access = abi::VFIO_REGION_INFO_FLAG_READ | abi::VFIO_REGION_INFO_FLAG_WRITE;
            let region_info = abi::vfio_region_info {
                argsz: size_of::<abi::vfio_region_info>() as u32,
                index,
                size,
                flags: if size == 0 { 0 } else { access },
                ..Default::default()
            };
            ServerRegion { region_info, sparse_areas: Vec::new(), mmap_fd: None }
        })
        .collect()
}

/// MSI-X and nothing else.
fn interrupts() -> Vec<IrqInfo> {
    (0..abi::VFIO_PCI_NUM_IRQS)
        .map(|index| match index {
            abi::VFIO_PCI_MSIX_IRQ_INDEX => IrqInfo {
                index,
                // Not "no resize": with it a client takes all vectors away to add one.
                flags: abi::VFIO_IRQ_INFO_EVENTFD,
                count: u32::from(MSIX_VECTORS),
            },
            _ => IrqInfo { index, flags: 0, count: 0 },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Instant;

    use ferrocx_bus::local::{LocalConfig, pair};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::super::lines::LINES_PER_SECOND;
    use super::super::tests::function;
    use super::*;

    #[test]
    fn every_region_and_interrupt_answers_under_its_own_index() {
        assert_eq!(regions().len(), 9);
        assert!((0..).zip(regions()).all(|(i, r)| r.region_info.index == i));
        assert_eq!(interrupts().len(), 5);
        assert!((0..).zip(interrupts()).all(|(i, irq)| irq.index == i));
    }

    /// Counts the records of its thread.
    struct Counter(Arc<AtomicU64>);

    impl Subscriber for Counter {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn clients_that_come_and_go_do_not_fill_the_log() {
        let (_driver, device) = pair(LocalConfig::default()).expect("a device");
        let (_engine, function) = function(&device, &Arc::default());
        let said = Arc::new(AtomicU64::new(0));
        tracing::subscriber::with_default(Counter(Arc::clone(&said)), || {
            let end = |at| match at % 3 {
                0 => Ok(Ok(())),
                1 => Ok(Err(vfio_user::Error::SocketPathExists)),
                _ => Err("a panic".into()),
            };
            // Another test's thread may come first, and have it noted that nobody wants to know.
            (0..3).for_each(|at| say("test", &function, end(at)));
            tracing::callsite::rebuild_interest_cache();
            let begun = Instant::now();
            (0..20_000).for_each(|at| say("test", &function, end(at)));
            let most = (begun.elapsed().as_secs() + 2) * (LINES_PER_SECOND + 1);
            let said = said.load(Relaxed);
            assert!((LINES_PER_SECOND..=most).contains(&said), "{said} lines");
        });
    }

    #[test]
    fn a_panic_that_is_caught_is_kept_and_not_printed() {
        assert_eq!(caught(|| 7), Ok(7));
        let said = caught(|| assert_eq!(1, 2, "never so")).expect_err("a panic");
        assert!(said.contains("socket.rs") && said.contains("never so"), "{said}");
        assert_eq!(SAID.take(), None);
    }

    #[test]
    fn a_path_in_use_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("port0");
        let first = listen(&path).expect("a fresh path");
        assert!(matches!(listen(&path), Err(vfio_user::Error::SocketPathExists)));
        drop(first);
        assert!(!path.exists());
    }
}
