//! [`ServerError`].

use ferrocx::verbs::cm::CmError;
use ferrocx::verbs::{VerbsError, WrongCompletion};
use thiserror::Error;

use super::MAX_BACKENDS;

/// Why there is no server, or not any more.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The device refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The connection manager refused.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// The system has no io_uring, or forbids it.
    #[error("io_uring: {0}; a file needs it: see kernel.io_uring_disabled")]
    Ring(#[from] std::io::Error),
    /// The system gave no thread.
    #[error("no thread for authentication: {0}; see the limit on threads")]
    Thread(std::io::Error),
    /// Reservations cannot be kept over a restart.
    #[error("{0:#}")]
    Reservations(anyhow::Error),
    /// The device gave an answer that cannot be.
    #[error(transparent)]
    Device(#[from] WrongCompletion),
    /// Too many namespaces came and went.
    #[error(
        "{MAX_BACKENDS} namespaces were added since the start, the most that can be; restart it"
    )]
    Places,
}
