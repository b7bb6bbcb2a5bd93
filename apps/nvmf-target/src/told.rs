//! What a target tells of itself, for people and programs.

use std::path::PathBuf;

use serde::Serialize;

use crate::config::StoreKind;
use crate::controller::AnaState;

/// A subsystem, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SubsystemInfo {
    /// Its name.
    pub nqn: String,
    /// Its serial number.
    pub serial: String,
    /// Hosts that may connect; `null` for any.
    pub hosts: Option<Vec<String>>,
    /// Hosts that have to authenticate themselves.
    pub keys: Vec<KeyInfo>,
    /// Its namespaces, by number.
    pub namespaces: Vec<NamespaceInfo>,
}

/// A host that has to authenticate itself, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyInfo {
    /// Its name.
    pub host: String,
    /// Whether the target has a key of its own to show to it.
    pub is_mutual: bool,
}

/// A namespace, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NamespaceInfo {
    /// Its number.
    pub nsid: u32,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Its identifier.
    pub uuid: String,
    /// Whether hosts can only read it.
    pub read_only: bool,
    /// Whether a block of memory is read and written as one.
    pub atomic: bool,
    /// Its group, for which ports can differ.
    pub ana_group: u32,
    /// What is behind it.
    pub backend: StoreKind,
    /// The file or block device, the address of the drive, or the peer's name.
    pub path: Option<PathBuf>,
}

/// A controller that a host has, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ControllerLine {
    /// Its number.
    pub cntlid: u16,
    /// Name of the host.
    pub host: String,
    /// Name of the subsystem, or of the discovery service.
    pub nqn: String,
    /// How long the host may be silent, in ms; `null` for ever.
    pub keep_alive_ms: Option<u64>,
    /// I/O queues that it has.
    pub io_queues: usize,
    /// How the host has authenticated itself, such as `sha512, ffdhe2048, both ways`; `null` if it
    /// did not have to.
    pub authentication: Option<String>,
}

/// A port that differs from others, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AnaLine {
    /// Its number for the connection manager.
    pub port: u16,
    /// Its number in the discovery log.
    pub id: u16,
    /// Whether discovery names it: one that was removed may still have hosts.
    pub is_named: bool,
    /// What it is for each group, from 1 on.
    pub states: Vec<AnaState>,
}
