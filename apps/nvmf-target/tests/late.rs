//! A core that does not answer in time: what it was asked for is done with its answer or not at
//! all, and nothing stays half done.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

use ferrocx::{Port, PortConfig};
use ferrocx_nvmf_target::config::{Config, SubsystemConfig};
use ferrocx_nvmf_target::control::{About, Control};
use ferrocx_nvmf_target::controller::{Settings, Target};
use ferrocx_nvmf_target::transport::{Server, ServerConfig};

const NQN: &str = "nqn.2026-11.org.ferrocx:late";

/// A core that can be stopped between two rounds.
#[derive(Default)]
struct Core {
    is_over: AtomicBool,
    /// Held for a round, and by whoever wants none.
    round: Mutex<()>,
}

impl Core {
    fn run(&self, server: &mut Server) {
        while !self.is_over.load(Ordering::Acquire) {
            let round = self.round.lock().unwrap();
            server.poll().unwrap();
            drop(round);
            let nap = Duration::from_micros(100);
            thread::sleep(nap);
            server.napped(nap);
        }
    }
}

/// Ends the cores even when the test fails.
struct End<'a>(&'a [Core; 2]);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|core| core.is_over.store(true, Ordering::Release));
    }
}

/// Runs a test against a target of two cores that offers nothing yet, with a subsystem that it may
/// offer.
fn with_control(store: &str, test: impl FnOnce(&mut Control, &[Core; 2], &SubsystemConfig)) {
    static NUMBER: AtomicU16 = AtomicU16::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("model:net=late{}-{number},seed=1", std::process::id());
    let port = Port::open_with(&name, PortConfig::default()).unwrap();
    let context = port.rdma().unwrap();
    let config = ServerConfig { services: Vec::new(), ..ServerConfig::default() };
    let target = Target::new(Settings::default());
    let mut first = Server::new(&context, target, &config).unwrap();
    let other = first.another().unwrap();
    let mut servers = [first, other];
    let address = [10, 9, 0, 1].into();
    let about = About { version: "", device: name, address, cores: Vec::new() };
    let mut control = Control::new(&mut servers, &context, about);
    let text = format!(
        "address = \"10.9.0.1/24\"\n[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nsize = \"1MiB\"\n{store}"
    );
    let config = Config::parse(&text).unwrap();
    let cores = [Core::default(), Core::default()];
    thread::scope(|scope| {
        let end = End(&cores);
        for (core, server) in cores.iter().zip(&mut servers) {
            scope.spawn(|| core.run(server));
        }
        test(&mut control, &cores, &config.subsystems[0]);
        drop(end);
    });
}

#[test]
fn what_comes_too_late_is_not_done() {
    with_control("", |control, [core, _], subsystem| {
        control.add_subsystem(subsystem).unwrap();
        control.set_patience(Duration::from_millis(200));
        let paused = core.round.lock().unwrap();
        control.allow(NQN, "nqn.2014-08.a:h").unwrap_err();
        drop(paused);
        control.set_patience(Duration::from_secs(10));
        assert_eq!(control.subsystems().unwrap()[0].hosts, None, "as nothing had been asked");
    });
}

#[test]
fn a_file_is_free_again_whose_core_was_late() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("backend = \"file\"\npath = \"{}\"", folder.path().join("f").display());
    with_control(&store, |control, [_, core], subsystem| {
        if let Err(error) = control.add_subsystem(subsystem) {
            println!("skipped: {error:#}");
            return;
        }
        control.set_patience(Duration::from_millis(200));
        let paused = core.round.lock().unwrap();
        control.remove_namespace(NQN, 1).unwrap();
        control.add_namespace(NQN, &subsystem.namespaces[0]).unwrap_err();
        drop(paused);
        control.set_patience(Duration::from_secs(10));
        control.add_namespace(NQN, &subsystem.namespaces[0]).unwrap();
        assert_eq!(control.subsystems().unwrap()[0].namespaces.len(), 1);
    });
}
