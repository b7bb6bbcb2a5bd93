//! What must not be there twice.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, ensure};
use uuid::Uuid;

use super::{NamespaceConfig, SubsystemConfig};

/// Checks the ports of the connection manager.
pub(super) fn check_services(services: &[u16]) -> Result<()> {
    ensure!(!services.is_empty(), "no services; give at least one port, such as 4420");
    for (at, port) in services.iter().enumerate() {
        ensure!(*port > 0, "a port of services is 0; give 1 to 65535");
        ensure!(!services[..at].contains(port), "port {port} is listed twice; leave one out");
    }
    Ok(())
}

/// Hosts take namespaces of one identifier for ways to the same blocks.
pub(super) fn check_uuids(subsystems: &[SubsystemConfig]) -> Result<()> {
    let mut known = BTreeMap::new();
    for subsystem in subsystems {
        for NamespaceConfig { nsid, uuid, .. } in &subsystem.namespaces {
            if let Some(before) = known.insert(uuid, (subsystem.nqn.as_str(), *nsid)) {
                let place = || format!("namespace {nsid} of subsystem `{}`", subsystem.nqn);
                return Err(taken_uuid(*uuid, before)).with_context(place);
            }
        }
    }
    Ok(())
}

/// An identifier is another namespace's already.
pub(crate) fn taken_uuid(uuid: [u8; 16], (nqn, nsid): (&str, u32)) -> anyhow::Error {
    let uuid = Uuid::from_bytes(uuid);
    anyhow!("uuid `{uuid}` is namespace {nsid}'s of {nqn}, too; give another, or leave it out")
}
