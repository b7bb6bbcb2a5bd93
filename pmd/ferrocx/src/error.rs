//! Why a port could not be opened, and what one lacks that could.

use ferrocx_bus::BusError;
use ferrocx_core::DeviceError;
use ferrocx_mempool::{MempoolError, RegionWarning};
use thiserror::Error;

use crate::name::NameError;

/// Why a port could not be opened. Nothing of it is left behind.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name is none of a device.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The model's wire could not be had.
    #[error("the model's wire: {0}")]
    Wire(String),
    /// VFIO or the model's bus refused.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The pool's memory could not be had.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    /// Bring-up failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The system refused a thread, for the model or for housekeeping.
    #[error("no thread for the port: {0}")]
    Thread(std::io::Error),
}

/// What a port does not have although it was wanted: [`Port::warnings`](crate::Port::warnings).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenWarning {
    /// There was no link within [`PortConfig::link_wait`](crate::PortConfig::link_wait).
    #[error(
        "no link yet: frames are lost until there is one; look at the cable and at its other end"
    )]
    NoLink,
    /// The pool's memory is not as it should be: small pages instead of huge ones, or of another
    /// NUMA node than the adapter, so that each access crosses.
    #[error("the pool's memory: {0}")]
    Region(RegionWarning),
}
