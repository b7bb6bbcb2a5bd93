//! Requests of people and programs to a running target: JSON-RPC 2.0 on a Unix socket, one request
//! and one answer a line.
//!
//! ```console
//! $ nvmf-target rpc --socket /run/nvmf.sock namespace.resize \
//!       '{"nqn": "nqn.2026-11.org.ferrocx:ram", "nsid": 1, "size": "32MiB"}'
//! ```
//!
//! | method | parameters | does |
//! |---|---|---|
//! | `target.show` | – | version, device, address, cores |
//! | `subsystem.list` | – | subsystems with their hosts and namespaces |
//! | `subsystem.add` | those of `[[subsystem]]` in the file | offers one, with its namespaces |
//! | `subsystem.remove` | `nqn` | disconnects its hosts, and takes it away |
//! | `namespace.add` | `nqn`, `namespace`: `[[subsystem.namespace]]` with `nsid` | offers one |
//! | `namespace.resize` | `nqn`, `nsid`, `size` | gives it another size |
//! | `namespace.remove` | `nqn`, `nsid` | takes it away |
//! | `host.allow`, `host.disallow` | `nqn`, `host` | puts a host on the list, or takes it off |
//! | `host.allow_any` | `nqn`, `any` | lets any host connect, or nobody |
//! | `key.set` | `nqn`, `key`: `[[subsystem.key]]` | a host has to authenticate itself |
//! | `key.remove` | `nqn`, `host` | and has not to any more |
//! | `port.list` | – | ports of the connection manager |
//! | `port.add` | `port`, perhaps `state` | listens on one; with a state, discovery names it |
//! | `port.remove` | `port` | listens on it no more, and names it no more |
//! | `ana.list` | – | ports that differ, and what each is for the groups of namespaces |
//! | `ana.set` | `port`, `state`, perhaps `group` | changes that; the port's hosts are told |
//! | `controller.list` | – | what hosts have |
//! | `controller.remove` | `cntlid` | disconnects a host, which may come back |
//! | `stats` | `format`: `json`, `text` or `prometheus` | what was moved, and how fast |
//! | `stop` | – | ends the target in good order |
//!
//! Changes hold until the target ends: the file is the user's. Hosts are told of namespaces that
//! come, change and go, and of subsystems if they stay connected to the discovery service.
//!
//! # Limits
//!
//! [`MAX_CLIENTS`] clients at a time, [`MAX_BYTES`] of a request, [`PATIENCE`] without one. Several
//! requests in an array are refused. The socket belongs to the target's user, mode 0600.

pub mod client;
mod rates;
mod service;
mod wire;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use ferrocx_app_common::signal::Stop;
use serde::Deserialize;
use serde_json::{Value, json};
pub use service::Service;
pub use wire::{Answer, Failure, Request};

use crate::config::{self, KeyFile, NamespaceFile, SubsystemFile, bytes_of};
use crate::control::Control;
use crate::controller::AnaState;

/// Clients at a time.
pub const MAX_CLIENTS: usize = 8;
/// Bytes of a request, its line end among them.
pub const MAX_BYTES: usize = 64 << 10;
/// How long a client may be silent.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What `nvmf-target rpc --help` says.
pub const HELP: &str = "\
Methods and their parameters:
  target.show, subsystem.list, port.list, controller.list, stop
  subsystem.add     {\"nqn\": ..., and the rest of [[subsystem]] in the file}
  subsystem.remove  {\"nqn\": ...}
  namespace.add     {\"nqn\": ..., \"namespace\": {\"nsid\": ..., \"size\": \"64MiB\", ...}}
  namespace.resize  {\"nqn\": ..., \"nsid\": ..., \"size\": \"32MiB\"}
  namespace.remove  {\"nqn\": ..., \"nsid\": ...}
  host.allow, host.disallow  {\"nqn\": ..., \"host\": ...}
  host.allow_any    {\"nqn\": ..., \"any\": true}
  key.set           {\"nqn\": ..., \"key\": {\"host\": ..., \"secret_file\": ..., ...}}
  key.remove        {\"nqn\": ..., \"host\": ...}
  port.add          {\"port\": ..., \"state\": as below, or left out for one that is not named}
  port.remove       {\"port\": ...}
  ana.list
  ana.set           {\"port\": ..., \"state\": \"optimized\", \"non-optimized\", \"inaccessible\",
                     \"persistent-loss\" or \"change\", \"group\": 1 to 8, or left out for all}
  controller.remove {\"cntlid\": ...}
  stats             {\"format\": \"json\", \"text\" or \"prometheus\"}";

/// How statistics are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// As an object.
    #[default]
    Json,
    /// For people.
    Text,
    /// For Prometheus.
    Prometheus,
}

/// Declares [`Call`], and the names of its methods in one place.
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        $name:literal $call:ident { $($(#[$more:meta])* $field:ident: $type:ty,)* }
    )*) => {
        /// What can be asked for.
        #[derive(Debug, Deserialize)]
        #[serde(tag = "method", content = "params", deny_unknown_fields)]
        #[expect(missing_docs, reason = "the fields are those of the table above")]
        pub enum Call {
            $($(#[$doc])* #[serde(rename = $name)] $call { $($(#[$more])* $field: $type,)* },)*
        }

        /// The methods that there are.
        pub const METHODS: &[&str] = &[$($name),*];
    };
}

calls! {
    /// What the target is.
    "target.show" Show {}
    /// What is offered.
    "subsystem.list" Subsystems {}
    /// Offers a subsystem with its namespaces.
    "subsystem.add" AddSubsystem { #[serde(flatten)] subsystem: SubsystemFile, }
    /// Takes a subsystem away.
    "subsystem.remove" RemoveSubsystem { nqn: String, }
    /// Offers a namespace.
    "namespace.add" AddNamespace { nqn: String, namespace: NamespaceFile, }
    /// Gives a namespace another size.
    "namespace.resize" ResizeNamespace { nqn: String, nsid: u32, size: String, }
    /// Takes a namespace away.
    "namespace.remove" RemoveNamespace { nqn: String, nsid: u32, }
    /// Puts a host on the list.
    "host.allow" Allow { nqn: String, host: String, }
    /// Takes a host off the list.
    "host.disallow" Disallow { nqn: String, host: String, }
    /// Lets any host connect, or nobody.
    "host.allow_any" AllowAny { nqn: String, any: bool, }
    /// Gives a host a key.
    "key.set" SetKey { nqn: String, key: KeyFile, }
    /// Takes a host's key away.
    "key.remove" RemoveKey { nqn: String, host: String, }
    /// The ports that the target listens on.
    "port.list" Ports {}
    /// Listens on a port.
    "port.add" AddPort { port: u16, #[serde(default)] state: Option<AnaState>, }
    /// Listens on a port no more.
    "port.remove" RemovePort { port: u16, }
    /// Ports that differ.
    "ana.list" ListAna {}
    /// Says what a port is for a group of namespaces, or for all.
    "ana.set" SetAna { port: u16, state: AnaState, #[serde(default)] group: Option<u32>, }
    /// What hosts have.
    "controller.list" Controllers {}
    /// Disconnects a host.
    "controller.remove" RemoveController { cntlid: u16, }
    /// What was moved, and how fast.
    "stats" Stats { #[serde(default)] format: Format, }
    /// Ends the target.
    "stop" Stop {}
}

/// Carries a call out; its result.
///
/// # Errors
///
/// One sentence about what cannot be done.
pub fn carry_out(call: Call, control: &mut Control, stop: &Stop) -> Result<Value> {
    match call {
        Call::Show {} => return Ok(serde_json::to_value(control.about())?),
        Call::Subsystems {} => return Ok(serde_json::to_value(control.subsystems()?)?),
        Call::Ports {} => return Ok(serde_json::to_value(control.ports()?)?),
        Call::ListAna {} => return Ok(serde_json::to_value(control.ana()?)?),
        Call::Controllers {} => return Ok(serde_json::to_value(control.controllers()?)?),
        Call::Stats { format } => {
            let snapshot = control.registry().snapshot();
            return Ok(match format {
                Format::Json => serde_json::to_value(snapshot)?,
                Format::Text => json!(snapshot.text()),
                Format::Prometheus => json!(snapshot.prometheus()),
            });
        }
        Call::AddSubsystem { subsystem } => {
            control.add_subsystem(&config::subsystem(subsystem)?)?
        }
        Call::RemoveSubsystem { nqn } => control.remove_subsystem(&nqn)?,
        Call::AddNamespace { nqn, namespace } => {
            let Some(nsid) = namespace.nsid else {
                bail!("there is no nsid; give the number of the namespace");
            };
            let checked = config::namespace(&nqn, nsid, &namespace)?;
            control.add_namespace(&nqn, &checked)?;
        }
        Call::ResizeNamespace { nqn, nsid, size } => {
            control.resize_namespace(&nqn, nsid, bytes_of(&size)?)?;
        }
        Call::RemoveNamespace { nqn, nsid } => control.remove_namespace(&nqn, nsid)?,
        Call::Allow { nqn, host } => control.allow(&nqn, &host)?,
        Call::Disallow { nqn, host } => control.disallow(&nqn, &host)?,
        Call::AllowAny { nqn, any } => control.allow_any(&nqn, any)?,
        Call::SetKey { nqn, key } => {
            let (host, key) = key.check()?;
            control.set_key(&nqn, &host, Some(key))?;
        }
        Call::RemoveKey { nqn, host } => control.set_key(&nqn, &host, None)?,
        Call::AddPort { port, state } => control.add_port(port, state)?,
        Call::RemovePort { port } => control.remove_port(port)?,
        Call::SetAna { port, state, group } => control.set_ana(port, group, state)?,
        Call::RemoveController { cntlid } => control.end_controller(cntlid)?,
        Call::Stop {} => {
            stop.raise();
        }
    }
    Ok(Value::Bool(true))
}

/// Checks that a socket's path can be one.
fn checked_path(path: &std::path::Path) -> Result<PathBuf> {
    let len = path.as_os_str().len();
    // Source: `struct sockaddr_un`.
    ensure!(len < 108, "the socket's path has {len} bytes; give one of 107 at most");
    Ok(path.to_owned())
}
