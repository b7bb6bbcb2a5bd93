//! `cxctl run`: a stock RDMA program on the software ConnectX, or on an adapter that is bound to
//! vfio-pci, by our `libibverbs.so.1`.
//!
//! The library is preloaded. Its soname is the system library's, so it takes that one's place
//! everywhere in the program, also where the program opens it at run time. Nothing is written to
//! disk, and nothing stays behind.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use ferrocx_app_common::signal::Stop;
use ferrocx_model::wire::ImpairConfig;
use rustix::process::{Pid, Signal, kill_process};

use crate::impairment::Impairment;

/// File of the library, as cargo names it, beside this program.
const LIBRARY: &str = "libibverbs.so";
/// The device that needs no adapter.
const MODEL: &str = "model";
/// Time that the first node has to listen for connections before the second calls it anyway: not
/// every program listens, and on a machine with much to do, those that do take seconds.
const HEAD_START: Duration = Duration::from_secs(10);
/// Time that a node has to end once it was asked to.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Exit code of what a signal has ended.
const STOPPED: u8 = 130;
/// Time between looks whether it listens, or has ended.
const LOOK: Duration = Duration::from_millis(20);

/// What `run` starts, and how.
#[derive(Debug, Args)]
pub struct Options {
    /// 1 runs the program. 2 runs it as it is and then, when it listens for connections (TCP's or
    /// `rdma_cm`'s) or ten seconds later, once more with `localhost` behind its arguments: server
    /// and client, as most RDMA test programs are called.
    #[arg(short = 'n', long, default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=2))]
    pub nodes: u8,
    /// `model`, or the PCI address of an adapter that is bound to vfio-pci, for this program alone.
    /// Given several times, the program has several devices, ferrocx0, ferrocx1 and so on. Default:
    /// one model.
    #[arg(long, value_name = "PCI")]
    pub device: Vec<String>,
    /// Address of the port; of several devices, one for each, in the same order. The model's is an
    /// address of this machine, of the first node; the second node has the next ones, or with so
    /// many devices those so many further on.
    /// Default: the first free ones from 127.88.0.1 on. A link-local one of IPv6 has its interface:
    /// fe80::1%eth0. An adapter's has its subnet: 192.168.0.1/24 or fd00::1/64.
    #[arg(long)]
    pub address: Vec<String>,
    /// Address that leads out of an adapter's subnet; of several devices likewise.
    #[arg(long, value_name = "ADDRESS", requires = "device")]
    pub gateway: Vec<IpAddr>,
    /// The largest IP packet: 352 to 9978. Default: 4200 on a loopback address, 1500 on others.
    #[arg(long)]
    pub mtu: Option<u16>,
    /// Write what each process sends and receives to a pcapng file in this folder, named after its
    /// address: 127.88.0.1.pcapng.
    #[arg(long, visible_alias = "pcap", value_name = "FOLDER")]
    pub capture: Option<PathBuf>,
    /// What goes wrong on the way, in both directions, so that error paths can be tried.
    #[command(flatten)]
    pub impairment: Impairment,
    /// The library. Default: the one beside this program.
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<String>,
}

/// The library: the one that was named, or the one beside this program.
fn library(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name(LIBRARY));
    let path = match named {
        Some(path) => path.to_owned(),
        None => beside()?,
    };
    let path = path.canonicalize().with_context(|| {
        format!(
            "the library {} cannot be read; build it by `cargo build -p ferrocx-verbs-abi`, or \
             name it by --library",
            path.display()
        )
    })?;
    // Source: ld.so(8), LD_PRELOAD.
    if path.as_os_str().as_encoded_bytes().iter().any(|byte| b" \t\n:".contains(byte)) {
        bail!(
            "the library {} has a space or a colon in its path, where LD_PRELOAD ends a name; copy \
             it to a folder without one and name it by --library",
            path.display()
        );
    }
    Ok(path)
}

/// The devices, as they were named.
fn devices(options: &Options) -> Vec<&str> {
    match options.device.as_slice() {
        [] => vec![MODEL],
        named => named.iter().map(String::as_str).collect(),
    }
}

/// The address of a device at node `index`, as the library wants it. With so many devices of a
/// node, those of the next have the addresses so much further on.
fn address_of(address: &str, device: &str, index: u8, devices: usize) -> anyhow::Result<String> {
    if device != MODEL {
        return Ok(address.to_owned());
    }
    let (ip, interface) = match address.split_once('%') {
        Some((ip, interface)) => (ip, Some(interface)),
        None => (address, None),
    };
    let first: IpAddr = ip.parse().ok().with_context(|| {
        format!(
            "--address is {address}; the model's must be an IP address of this machine without a \
             prefix length"
        )
    })?;
    let further = u32::from(index) * devices as u32;
    let own: IpAddr = match first {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits().wrapping_add(further)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits().wrapping_add(further.into())).into(),
    };
    Ok(interface.map_or_else(|| own.to_string(), |name| format!("{own}%{name}")))
}

/// That each device can have what was said of it, and what an adapter cannot do and the model can.
fn check(options: &Options) -> anyhow::Result<()> {
    let devices = devices(options);
    for (name, given) in
        [("--address", options.address.len()), ("--gateway", options.gateway.len())]
    {
        if given != 0 && given != devices.len() {
            bail!(
                "{given} of {name} for {} of --device; name it for none or for each, in order",
                devices.len()
            );
        }
    }
    let Some(pci) = devices.iter().find(|device| **device != MODEL) else { return Ok(()) };
    if options.address.is_empty() {
        bail!("the adapter {pci} has no address; give each device one by --address");
    }
    if options.nodes > 1 {
        bail!("-n 2 needs two devices, and {pci} is one: start each end by itself, with its own");
    }
    if options.capture.is_some() || options.impairment.config() != ImpairConfig::default() {
        bail!(
            "frames of the adapter {pci} cannot be captured or spoilt here: leave out --capture \
             and what goes wrong, or --device"
        );
    }
    Ok(())
}

/// The program as node `index`.
fn node(options: &Options, library: &Path, index: u8) -> anyhow::Result<Command> {
    let [program, arguments @ ..] = options.program.as_slice() else { bail!("no program") };
    let mut command = Command::new(program);
    command.args(arguments);
    if index > 0 {
        command.arg("localhost");
    }
    // What the caller preloads stays, behind ours.
    let mut preload = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    command.env("LD_PRELOAD", &preload);
    // It and what it starts find the files of the kernel's drivers, as far as the library has them.
    command.env("FERROCX_SYSFS", "1");
    // Of several devices these stand between commas.
    let devices = devices(options);
    if !options.device.is_empty() {
        command.env("FERROCX_DEVICE", devices.join(","));
    }
    let addresses = options.address.iter().zip(&devices);
    let addresses: Vec<_> = addresses
        .map(|(address, device)| address_of(address, device, index, devices.len()))
        .collect::<anyhow::Result<_>>()?;
    if !addresses.is_empty() {
        command.env("FERROCX_IP", addresses.join(","));
    }
    if !options.gateway.is_empty() {
        let gateways: Vec<_> = options.gateway.iter().map(IpAddr::to_string).collect();
        command.env("FERROCX_GATEWAY", gateways.join(","));
    }
    if let Some(mtu) = options.mtu {
        command.env("FERROCX_MTU", mtu.to_string());
    }
    if let Some(folder) = &options.capture {
        let path = folder.canonicalize();
        let path = path.with_context(|| format!("the folder {} for captures", folder.display()))?;
        command.env("FERROCX_CAPTURE", path);
    }
    let config = options.impairment.config();
    if config != ImpairConfig::default() {
        command.env("FERROCX_IMPAIR", config.to_string());
        command.env("FERROCX_SEED", options.impairment.seed.to_string());
    }
    tracing::info!(node = index, ?command, "starting");
    Ok(command)
}

fn start(command: &mut Command) -> anyhow::Result<Child> {
    let program = command.get_program().to_owned();
    command.spawn().with_context(|| format!("{} cannot be started", program.display()))
}

/// A process and those that it started, theirs included.
fn family(process: u32) -> Vec<u32> {
    let mut family = vec![process];
    let mut next = 0;
    while let Some(parent) = family.get(next) {
        let children = format!("/proc/{parent}/task/{parent}/children");
        let children = std::fs::read_to_string(children).unwrap_or_default();
        family.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        next += 1;
    }
    family
}

/// Whether a table of the system's TCP sockets has one that listens behind one of `links`, which
/// are what a process's descriptors lead to.
fn has_listener(table: &str, links: &[PathBuf]) -> bool {
    table.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        // The fourth word is the state, 0A for LISTEN, the tenth the inode.
        let [_, _, _, "0A", _, _, _, _, _, inode, ..] = words[..] else { return false };
        links.contains(&PathBuf::from(format!("socket:[{inode}]")))
    })
}

/// Whether a table of the system's Unix sockets has one behind one of `links` that says that its
/// process listens by `rdma_cm`.
fn has_place(table: &str, links: &[PathBuf]) -> bool {
    table.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [.., inode, name] = words[..] else { return false };
        name.starts_with("@ferrocx-cm/") && links.contains(&format!("socket:[{inode}]").into())
    })
}

/// Whether a process, or one that it started, listens for connections: TCP's, or `rdma_cm`'s.
fn listens(process: u32) -> bool {
    let folders = family(process).into_iter().map(|process| format!("/proc/{process}/fd"));
    let entries = folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let links: Vec<_> = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    type Look = fn(&str, &[PathBuf]) -> bool;
    let tables: [(&str, Look); 3] = [
        ("/proc/net/tcp", has_listener),
        ("/proc/net/tcp6", has_listener),
        ("/proc/net/unix", has_place),
    ];
    tables
        .iter()
        .any(|(path, look)| std::fs::read_to_string(path).is_ok_and(|table| look(&table, &links)))
}

/// Waits until a node listens, has ended, or had its time, or until `stop`.
fn wait_for_listener(server: &mut Child, stop: &Stop) -> std::io::Result<()> {
    let start = Instant::now();
    while start.elapsed() < HEAD_START
        && !stop.is_raised()
        && server.try_wait()?.is_none()
        && !listens(server.id())
    {
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Waits for the end of a node; `None` if it `is_late` first.
fn wait(child: &mut Child, is_late: impl Fn() -> bool) -> std::io::Result<Option<ExitStatus>> {
    while !is_late() {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(LOOK);
    }
    Ok(None)
}

/// Asks a node to end, and ends it if it does not.
fn end(child: &mut Child) -> std::io::Result<()> {
    if let Some(process) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended by itself.
        let _ = kill_process(process, Signal::TERM);
    }
    let start = Instant::now();
    if wait(child, || start.elapsed() > LAST_WORDS)?.is_none() {
        child.kill()?;
        child.wait()?;
    }
    Ok(())
}

/// Runs the program. One node takes the place of this process; of two, the worse exit code counts,
/// and both end with `stop`.
///
/// # Errors
///
/// The library is not there, or the program cannot be started.
pub fn run(options: &Options, stop: &Stop) -> anyhow::Result<ExitCode> {
    check(options)?;
    let library = library(options.library.as_deref())?;
    let mut first = node(options, &library, 0)?;
    if options.nodes == 1 {
        let error = first.exec();
        let program = first.get_program();
        return Err(error).with_context(|| format!("{} cannot be started", program.display()));
    }
    let mut server = start(&mut first)?;
    let ended = with_client(options, &library, &mut server, stop);
    if !matches!(ended, Ok(Some(_))) {
        end(&mut server)?;
    }
    let Some(ended) = ended? else { return Ok(ExitCode::from(STOPPED)) };
    let codes = ended.map(|status| status.code().and_then(|code| u8::try_from(code).ok()));
    Ok(ExitCode::from(codes.into_iter().map(|code| code.unwrap_or(1)).max().unwrap_or(1)))
}

/// Runs the second node beside the first one; how both ended, or `None` if `stop` came first.
fn with_client(
    options: &Options,
    library: &Path,
    server: &mut Child,
    stop: &Stop,
) -> anyhow::Result<Option<[ExitStatus; 2]>> {
    wait_for_listener(server, stop)?;
    let mut client = start(&mut node(options, library, 1)?)?;
    let Some(status) = wait(&mut client, || stop.is_raised())? else {
        end(&mut client)?;
        return Ok(None);
    };
    if !status.success() {
        // It would wait for its client for ever.
        server.kill()?;
    }
    Ok(wait(server, || stop.is_raised())?.map(|first| [status, first]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(nodes: u8, program: &[&str]) -> Options {
        Options {
            nodes,
            device: Vec::new(),
            address: vec!["127.88.0.255".into()],
            gateway: Vec::new(),
            mtu: Some(1500),
            library: Some("/dev/null".into()),
            capture: Some("/".into()),
            impairment: Impairment { loss: 5, delay: 7, seed: 9, ..Impairment::default() },
            program: program.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn a_node_has_the_library_its_address_and_its_peer() {
        let options = options(2, &["ib_send_lat", "-F"]);
        let second = node(&options, Path::new("/x/libibverbs.so"), 1).unwrap();
        let arguments: Vec<_> = second.get_args().collect();
        assert_eq!(arguments, ["-F", "localhost"]);
        let value = |name: &str| {
            let found = second.get_envs().find(|(key, _)| *key == name);
            found.and_then(|(_, value)| value).unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(value("FERROCX_IP"), "127.88.1.0");
        assert_eq!(value("FERROCX_MTU"), "1500");
        assert_eq!(value("FERROCX_SYSFS"), "1");
        assert_eq!(
            (value("FERROCX_IMPAIR"), value("FERROCX_SEED")),
            ("loss=5,delay=7000".into(), "9".into())
        );
        assert_eq!(value("FERROCX_CAPTURE"), "/");
        for (first, second) in [
            ("fd00::ffff", "fd00::1:0"),
            ("fe80::1%eth0", "fe80::2%eth0"),
            ("10.0.0.1", "10.0.0.2"),
        ] {
            assert_eq!(address_of(first, MODEL, 0, 1).unwrap(), first);
            assert_eq!(address_of(first, MODEL, 1, 1).unwrap(), second);
        }
        assert!(value("LD_PRELOAD").starts_with("/x/libibverbs.so"));
    }

    #[test]
    fn an_adapter_has_its_address_and_nothing_of_the_models() {
        let adapter = |nodes| Options {
            device: vec!["0000:3b:00.0".into()],
            address: vec!["fd00::1/64".into()],
            gateway: vec!["fd00::2".parse().unwrap()],
            capture: None,
            impairment: Impairment::default(),
            ..options(nodes, &["ibv_devinfo"])
        };
        let command = node(&adapter(1), Path::new("/x/libibverbs.so"), 0).unwrap();
        let values: Vec<_> = command.get_envs().collect();
        for (name, value) in [
            ("FERROCX_DEVICE", "0000:3b:00.0"),
            ("FERROCX_IP", "fd00::1/64"),
            ("FERROCX_GATEWAY", "fd00::2"),
        ] {
            assert!(values.contains(&(name.as_ref(), Some(value.as_ref()))), "{name}");
        }
        let refused = |options| run(&options, &Stop::new()).unwrap_err().to_string();
        assert!(refused(adapter(2)).contains("-n 2"));
        let lossy = Impairment { loss: 5, ..Impairment::default() };
        assert!(refused(Options { impairment: lossy, ..adapter(1) }).contains("--device"));
        assert!(refused(Options { capture: Some("/".into()), ..adapter(1) }).contains("--device"));
        assert!(refused(Options { address: vec![], ..adapter(1) }).contains("--address"));
        let foreign = Options { address: vec!["10.0.0.1/8".into()], ..options(1, &["true"]) };
        assert!(refused(foreign).contains("10.0.0.1/8"));
    }

    #[test]
    fn several_devices_have_an_address_each() {
        let addresses: Vec<String> = vec!["127.88.1.1".into(), "127.88.1.2".into()];
        let several = || Options {
            device: vec![MODEL.into(); 2],
            address: addresses.clone(),
            ..options(2, &["ibv_devices"])
        };
        let command = node(&several(), Path::new("/x/libibverbs.so"), 1).unwrap();
        let values: Vec<_> = command.get_envs().collect();
        for (name, value) in
            [("FERROCX_DEVICE", "model,model"), ("FERROCX_IP", "127.88.1.3,127.88.1.4")]
        {
            assert!(values.contains(&(name.as_ref(), Some(value.as_ref()))), "{name}");
        }
        let refused = |options| run(&options, &Stop::new()).unwrap_err().to_string();
        let one = Options { address: addresses[..1].to_vec(), ..several() };
        assert!(refused(one).contains("1 of --address for 2"));
    }

    #[test]
    fn the_worse_end_counts_and_a_missing_library_is_named() {
        // The second is called with an argument more, and so fails.
        let code = run(&options(2, &["test", "-n"]), &Stop::new()).unwrap();
        assert_eq!(code, ExitCode::SUCCESS);
        let code = run(&options(2, &["test", "1", "-eq"]), &Stop::new());
        assert_ne!(code.unwrap(), ExitCode::SUCCESS);
        let missing = Options { library: Some("/nowhere.so".into()), ..options(1, &["true"]) };
        let error = run(&missing, &Stop::new()).unwrap_err().to_string();
        assert!(error.contains("/nowhere.so") && error.contains("--library"), "{error}");
    }

    #[test]
    fn both_ends_go_when_this_one_is_told_to() {
        let stop = Stop::new();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                stop.raise();
            });
            // Neither listens: the first would have its time, and both sleep for longer.
            let sleeps = options(2, &["sh", "-c", "exec sleep 60"]);
            assert_eq!(run(&sleeps, &stop).unwrap(), ExitCode::from(STOPPED));
        });
        assert!(begun.elapsed() < HEAD_START);
    }

    #[test]
    fn a_path_that_the_loader_would_cut_is_refused() {
        for name in ["lib ibverbs.so", "lib:ibverbs.so"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(name);
            std::fs::write(&path, []).unwrap();
            let cut = Options { library: Some(path), ..options(1, &["true"]) };
            let refused = run(&cut, &Stop::new()).unwrap_err().to_string();
            assert!(refused.contains(name) && refused.contains("--library"), "{refused}");
        }
    }

    #[test]
    fn a_process_that_listens_is_known_by_its_sockets() {
        assert!(family(std::process::id()).contains(&std::process::id()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(listens(std::process::id()));
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n\
             0: 0100007F:4853 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 77 1 0\n\
             1: 0100007F:4854 0100007F:4855 01 00000000:00000000 00:00000000 00000000 0 0 78 1 0";
        assert!(has_listener(table, &["socket:[77]".into()]));
        assert!(!has_listener(table, &["socket:[78]".into()]), "it is connected");
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0: 00000002 00000000 00000000 0002 01 79 @ferrocx-cm/106/7174/127.88.0.1\n\
             0: 00000002 00000000 00000000 0002 01 80 @ferrocx-roce/127.88.0.1";
        assert!(has_place(table, &["socket:[79]".into()]));
        assert!(!has_place(table, &["socket:[80]".into()]), "that is its wire");
        drop(listener);
    }
}
