//! [`CudaError`]: why the CUDA driver, or this provider, refused.

use thiserror::Error;

use crate::peer::mapped::BlockError;
use crate::peer::provider::PeerRange;

/// An error of the CUDA provider.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver library.
    #[error("{path} cannot be loaded: {source}; install NVIDIA's driver")]
    Library {
        /// Its name or path.
        path: String,
        /// Reason of the loader.
        #[source]
        source: libloading::Error,
    },
    /// The library is too old.
    #[error("the CUDA driver has no {symbol}; version 11.7 or later has: {source}")]
    Symbol {
        /// The function.
        symbol: &'static str,
        /// Reason of the loader.
        #[source]
        source: libloading::Error,
    },
    /// A call failed.
    #[error("{call} failed with {code}: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// Its `CUresult`.
        code: i32,
        /// The driver's own text.
        reason: String,
    },
    /// The GPU's memory cannot leave it.
    #[error(
        "{0} does not export its memory as a dma-buf; use NVIDIA's open kernel modules on \
         Linux 5.12 or later, or CudaProvider::alloc_mapped"
    )]
    NoDmaBuf(String),
    /// The GPU's memory cannot be mapped.
    #[error(
        "the dma-buf of the GPU's memory cannot be mapped ({0}), and VFIO's type 1 IOMMU \
         takes mapped memory only; use CudaProvider::alloc_mapped"
    )]
    NotMappable(#[source] BlockError),
    /// An address that is not the GPU's.
    #[error("{0} is not memory of the GPU; pass what cuMemAlloc returned")]
    NotDevice(PeerRange),
    /// Mapped memory cannot be offered.
    #[error(transparent)]
    Block(#[from] BlockError),
}
