//! Values of the command line that several parts of it have in common, and why one is refused.

use std::fmt;

use ferrocx_app_common::device::NameError;
use ferrocx_app_common::list::CoreList;
use ferrocx_app_common::option::OptionError;
use ferrocx_app_common::report::ReportError;
use ferrocx_app_common::wait::UnknownWait;
use ferrocx_net::ether::BadMac;
use thiserror::Error;

/// Longest message: what an RC or UC queue pair of the device sends at once.
pub(super) const MAX_SIZE: u64 = 1 << 30;

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
    /// The peer's MAC address.
    #[error(transparent)]
    Mac(#[from] BadMac),
    /// The report file.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// Two options that exclude each other.
    #[error("{what}; {way_out}")]
    Together {
        /// What does not go together.
        what: &'static str,
        /// What to do.
        way_out: &'static str,
    },
}

impl ConfigError {
    pub(super) fn unknown(what: &'static str, value: &str, known: &'static str) -> Self {
        OptionError::unknown(what, value, known).into()
    }

    pub(super) fn range(
        option: &'static str,
        value: impl fmt::Display,
        range: impl Into<String>,
    ) -> Self {
        OptionError::range(option, value, range).into()
    }

    pub(super) fn check(option: &'static str, value: u64, min: u64, max: u64) -> Result<(), Self> {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(Self::range(option, value, format!("{min} to {max}")))
    }
}

/// The cores of a list; none without one.
pub(super) fn cores(option: &'static str, text: Option<&str>) -> Result<Vec<usize>, ConfigError> {
    let list = text.map(str::parse::<CoreList>).transpose();
    Ok(list.map_err(|source| OptionError::List { option, source })?.unwrap_or_default().0)
}
