//! [`OptionError`]: what can be wrong with one option of a command line.

use thiserror::Error;

use crate::list::ListError;

/// Why an option's value cannot be used. One sentence: value, limit, way out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OptionError {
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
}

impl OptionError {
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
}
