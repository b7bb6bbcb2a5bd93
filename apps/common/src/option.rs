//! [`ConfigError`]: what can be wrong with a command line.

use ferrocx::net::ether::BadMac;
use thiserror::Error;

use crate::device::NameError;
use crate::list::{CoreList, ListError};
use crate::privileges::BadUser;
use crate::report::ReportError;
use crate::wait::UnknownWait;

/// Why a command line cannot be carried out. One sentence: value, limit, way out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A word that means nothing here.
    #[error("unknown {what} `{value}`; give {known}")]
    Unknown {
        /// What it should be.
        what: &'static str,
        /// The word.
        value: String,
        /// What exists.
        known: &'static str,
    },
    /// A number outside its range.
    #[error("--{option} is {value}; it must be {range}")]
    Range {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        range: String,
    },
    /// A list.
    #[error("--{option}: {source}")]
    List {
        /// The option.
        option: &'static str,
        /// What is wrong.
        source: ListError,
    },
    /// The device.
    #[error(transparent)]
    Device(#[from] NameError),
    /// The wait strategy.
    #[error(transparent)]
    Wait(#[from] UnknownWait),
    /// A MAC address.
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
    /// A word that means nothing here.
    #[must_use]
    pub fn unknown(what: &'static str, value: &str, known: &'static str) -> Self {
        Self::Unknown { what, value: value.into(), known }
    }

    /// A number outside its range.
    #[must_use]
    pub fn range(option: &'static str, value: impl ToString, range: impl Into<String>) -> Self {
        Self::Range { option, value: value.to_string(), range: range.into() }
    }

    /// Checks that a number is in its range.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Range`] outside it.
    pub fn check(option: &'static str, value: u64, min: u64, max: u64) -> Result<(), Self> {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(Self::range(option, value, format!("{min} to {max}")))
    }

    /// Options that do not go together, and what to do about it.
    #[must_use]
    pub fn together(what: &str, way_out: &str) -> Self {
        Self::Conflict(format!("{what}; {way_out}"))
    }
}

/// The cores of a list; none without one.
///
/// # Errors
///
/// [`ConfigError::List`].
pub fn cores(option: &'static str, text: Option<&str>) -> Result<Vec<usize>, ConfigError> {
    let list = text.map(str::parse::<CoreList>).transpose();
    Ok(list.map_err(|source| ConfigError::List { option, source })?.unwrap_or_default().0)
}
