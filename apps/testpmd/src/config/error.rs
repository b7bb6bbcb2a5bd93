//! Why a command line is refused.

use ferrocx_app_common::{
    device::NameError, option::OptionError, privileges::BadUser, report::ReportError,
    wait::UnknownWait,
};
use thiserror::Error;

use crate::ether::BadMac;

/// Why the command line cannot be carried out. One sentence: value, limit, way out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An option's value.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The device.
    #[error(transparent)]
    Device(#[from] NameError),
    /// The wait strategy.
    #[error(transparent)]
    Wait(#[from] UnknownWait),
    /// The peer's address.
    #[error(transparent)]
    Mac(#[from] BadMac),
    /// The user to become.
    #[error("--user: {0}")]
    User(#[from] BadUser),
    /// The report.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// Options that contradict each other.
    #[error("{0}")]
    Conflict(String),
}

impl ConfigError {
    pub(super) fn unknown(what: &'static str, value: &str, known: &'static str) -> Self {
        OptionError::unknown(what, value, known).into()
    }

    pub(super) fn range(
        option: &'static str,
        value: impl ToString,
        range: impl Into<String>,
    ) -> Self {
        OptionError::range(option, value, range).into()
    }
}
