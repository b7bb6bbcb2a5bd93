//! Why a port could not be opened.

use ferrocx_bus::BusError;
use ferrocx_core::DeviceError;
use ferrocx_mempool::MempoolError;
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
