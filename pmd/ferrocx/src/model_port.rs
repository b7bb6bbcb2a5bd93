//! Ports of the software ConnectX: a device, its thread, and the network that it is plugged into.
//!
//! All model ports of a process that name the same network hang on one switch, which is made with
//! the first of them and forgotten with the last.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ferrocx_bus::local::{LocalConfig, pair};
use ferrocx_bus::{PciIdentity, Transport};
use ferrocx_model::runner::{Runner, RunnerConfig};
use ferrocx_model::wire::{Switch, TapWire, Wire};
use ferrocx_model::{Nic, NicConfig};

use crate::error::OpenError;
use crate::name::ModelOptions;

/// Bytes that a switch port holds for its device.
const SWITCH_BYTES: usize = 4 << 20;
/// The start of a model port's permanent address, locally administered. On a network of this
/// process the port's number follows, from 1. On a TAP interface, where other processes' ports may
/// be neighbours, the end of the host's address on that interface does: the kernel drew it at
/// random.
const MAC_PREFIX: [u8; 3] = [0x02, 0xfe, 0x0c];

/// The networks that model ports hang on, by name.
static NETWORKS: Mutex<Option<HashMap<String, Weak<Switch>>>> = Mutex::new(None);
/// Ports made so far.
static PORTS: AtomicU8 = AtomicU8::new(0);

/// The switch of a network.
fn network(name: &str) -> Arc<Switch> {
    let mut networks = NETWORKS.lock().unwrap_or_else(PoisonError::into_inner);
    let networks = networks.get_or_insert_default();
    networks.retain(|_, switch| switch.strong_count() > 0);
    if let Some(switch) = networks.get(name).and_then(Weak::upgrade) {
        return switch;
    }
    let switch = Arc::new(Switch::new(SWITCH_BYTES));
    networks.insert(name.to_owned(), Arc::downgrade(&switch));
    switch
}

/// Starts a model port.
///
/// # Errors
///
/// [`OpenError::Wire`] for a TAP that cannot be had, [`OpenError::Bus`], [`OpenError::Thread`].
pub(crate) fn start(options: &ModelOptions) -> Result<Arc<dyn Transport>, OpenError> {
    let number = PORTS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    let mac_of = |end: [u8; 3]| std::array::from_fn(|at| [MAC_PREFIX, end].as_flattened()[at]);
    let (wire, network, mac): (Box<dyn Wire>, _, _) = match &options.tap {
        Some(name) => {
            let tap = TapWire::open(name).map_err(|source| OpenError::Wire(source.to_string()))?;
            let host = tap.host_mac().map_err(|source| OpenError::Wire(source.to_string()))?;
            (Box::new(tap), None, mac_of([host[3], host[4], host[5]]))
        }
        None => {
            let (switch, mac) = (network(&options.net), mac_of([0, 0, number]));
            (Box::new(switch.port_of(mac)), Some(switch), mac)
        }
    };
    let config = NicConfig { mac, ..NicConfig::default() };
    let identity = PciIdentity {
        vendor: PciIdentity::VENDOR_MELLANOX,
        device: config.identity.device_id(),
        name: format!("model{number}"),
        numa_node: None,
    };
    let seed = options.seed.wrapping_add(number.into());
    let (local, side) = pair(LocalConfig { identity, seed, ..LocalConfig::default() })?;
    let mut nic = Nic::new(side, config);
    nic.datapath_mut().plug(wire);
    let runner = Runner::start(vec![nic], RunnerConfig::default()).map_err(OpenError::Thread)?;
    // Every object of the device holds the device, and the device holds the transport: the thread
    // answers to the last of them.
    local.keep(runner);
    local.keep(network);
    Ok(local)
}
