//! The trader as a program: what its file says, on a device, until the day is over.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use core_affinity::CoreId;
use ferrocx::Port;
use ferrocx_app_common::cores::{self, Costs, Setting};
use ferrocx_app_common::signal::Stop;

use crate::cli;
use crate::config::{Config, EXAMPLE, Traded};
use crate::gateway::GatewayState;
use crate::proto::soup::Ended;
use crate::strategy::{Quoter, Strategy, Taker};
use crate::trader::Trader;

/// The file that the command line names, or the example, with what the command line says instead.
///
/// # Errors
/// One sentence: the file, or a value in it.
pub fn load(args: &cli::Trade) -> Result<Config> {
    let mut config = match &args.config {
        None => Config::parse(EXAMPLE)?,
        Some(path) => read(path).with_context(|| path.display().to_string())?,
    };
    if let Some(device) = &args.device {
        config.device.clone_from(device);
    }
    config.core = args.core.or(config.core);
    if args.late {
        ensure!(
            config.trader.snapshots.is_some(),
            "--late, and the file names no server of snapshots; give `snapshots` there"
        );
        config.trader.joins_late = true;
    }
    Ok(config)
}

fn read(path: &Path) -> Result<Config> {
    let config = Config::parse(&fs::read_to_string(path)?)?;
    let mode = fs::metadata(path)?.permissions().mode() & 0o777;
    let has_password = !config.trader.password.is_blank();
    ensure!(
        !has_password || mode & 0o077 == 0,
        "a password is written in it, and others can get at it, its mode is {mode:04o}; chmod 600 \
         it"
    );
    Ok(config)
}

/// Trades on a device until the exchange says that the day is over, or until Ctrl-C, and prints
/// what it has then.
///
/// # Errors
/// One sentence: the file, the device, the exchange or a group cannot be had.
pub fn trade(args: &cli::Trade) -> Result<()> {
    let config = load(args)?;
    if args.check {
        println!("the file is right: {}", config.summary());
        return Ok(());
    }
    let stop = Stop::on_signals()?;
    match config.strategy {
        Traded::Taker { security, at_most, shares } => {
            run(&config, Taker::new(security, at_most, shares), &stop)
        }
        Traded::Quoter { security, shares, spread } => {
            run(&config, Quoter::new(security, shares, spread), &stop)
        }
    }
}

/// What of a core's settings will cost time, a line each.
pub(crate) fn warn_of(core: usize) {
    for Setting { check, is, costs } in cores::settings(Path::new("/"), core) {
        if let Some(Costs { why, mend }) = costs {
            eprintln!("core {core}: {check} is {is}: {why}; mend: {mend}");
        }
    }
}

/// Keeps this thread on a core.
///
/// # Errors
/// One sentence: it is not one of this process's.
pub(crate) fn take_core(core: usize) -> Result<()> {
    let known = core_affinity::get_core_ids().unwrap_or_default();
    let core = CoreId { id: core };
    if !known.contains(&core) || !core_affinity::set_for_current(core) {
        bail!("core {} is not one that this process may use; give one of {}", core.id, {
            known.iter().map(|core| core.id.to_string()).collect::<Vec<_>>().join(", ")
        });
    }
    Ok(())
}

fn run<S: Strategy>(config: &Config, strategy: S, stop: &Stop) -> Result<()> {
    let port = Port::open(&config.device).with_context(|| config.device.clone())?;
    let mut trader = Trader::new(&port, &config.trader, strategy)?;
    // Not before: threads that are made inherit the core.
    match config.core {
        Some(core) => {
            take_core(core)?;
            warn_of(core);
        }
        None => eprintln!("no core is given: the system moves this thread about, and others in"),
    }
    let mut is_open = false;
    while !stop.is_raised() {
        if !trader.poll() {
            port.device().relax();
        }
        match trader.gateway().state() {
            GatewayState::Open if !is_open => {
                is_open = true;
                let next = trader.engine().orders().next_urn();
                println!("order entry is open, the next order is {next}");
            }
            GatewayState::Done(why @ Ended::Rejected(_)) => bail!("no order entry: {why}"),
            GatewayState::Done(why) => {
                println!("{why}");
                break;
            }
            _ => {}
        }
        if let Some(GatewayState::Done(why @ Ended::Rejected(_))) = trader.joining() {
            bail!("no snapshot to join by: {why}");
        }
    }
    let orders = trader.engine().orders();
    let position = orders.risk().exposure(0).map_or(0, |exposure| exposure.position);
    println!(
        "{} messages, {} lost; next order {}, {} stand, {} answers that do not fit; {position} \
         shares",
        trader.engine().arbiter().next().saturating_sub(1),
        trader.engine().arbiter().stats().lost,
        orders.next_urn(),
        orders.count(),
        orders.mismatches(),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn args(config: Option<PathBuf>) -> cli::Trade {
        cli::Trade { config, device: None, core: None, late: false, check: true }
    }

    #[test]
    fn a_password_is_not_for_others_to_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trade.toml");
        fs::write(&path, EXAMPLE.replace("password = \"\"", "password = \"secret\"")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = format!("{:#}", load(&args(Some(path.clone()))).unwrap_err());
        assert!(error.ends_with("its mode is 0640; chmod 600 it"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let config = load(&args(Some(path.clone()))).unwrap();
        assert_eq!(config.trader.password.trimmed(), b"secret");
        // A line that cannot be read is not shown.
        fs::write(&path, EXAMPLE.replace("password = \"\"", "password = \"secret")).unwrap();
        let error = format!("{:#}", load(&args(Some(path))).unwrap_err());
        assert!(error.contains("line ") && !error.contains("secret"), "{error}");
        let error = load(&args(Some("/no/such".into()))).unwrap_err();
        assert!(format!("{error:#}").starts_with("/no/such: "));
    }

    #[test]
    fn the_command_line_goes_before_the_file() {
        let mut args = args(None);
        args.device = Some("model:tap=x".into());
        (args.core, args.late) = (Some(1), true);
        let config = load(&args).unwrap();
        assert_eq!((config.device.as_str(), config.core), ("model:tap=x", Some(1)));
        assert!(config.trader.joins_late);
    }
}
