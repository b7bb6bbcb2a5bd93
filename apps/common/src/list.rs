//! Lists on the command line: cores `0,2-4` and sizes `64,128,1518`.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// Highest core number accepted. The affinity mask of `core_affinity` holds 1024 cores, and a
/// number past it would abort the process.
pub const MAX_CORE: usize = 1023;

/// Most values in one list.
pub const MAX_VALUES: usize = 1024;

/// Why a list was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ListError {
    /// Not a number or a range of numbers.
    #[error("`{part}` in list `{text}` is not a number or a range; write it like 0,2-4")]
    Syntax {
        /// The part.
        part: String,
        /// The whole list.
        text: String,
    },
    /// A range that runs backwards.
    #[error("range {first}-{last} runs backwards; write {last}-{first}")]
    Backwards {
        /// First number.
        first: usize,
        /// Last number.
        last: usize,
    },
    /// A number past the limit.
    #[error("{value} is out of range; give {min} to {max}")]
    Range {
        /// The number.
        value: usize,
        /// Smallest allowed.
        min: usize,
        /// Largest allowed.
        max: usize,
    },
    /// A number that occurs twice.
    #[error("{value} stands twice in list `{text}`; name each core once")]
    Twice {
        /// The number.
        value: usize,
        /// The whole list.
        text: String,
    },
    /// More numbers than a list holds.
    #[error("list `{text}` has more than {MAX_VALUES} values; shorten it")]
    TooLong {
        /// The whole list.
        text: String,
    },
}

/// Reads numbers and ranges in the order given; each between `min` and `max`, both included.
///
/// # Errors
/// [`ListError`], except [`ListError::Twice`]: here a number may repeat.
pub fn numbers(text: &str, min: usize, max: usize) -> Result<Vec<usize>, ListError> {
    let mut values = Vec::new();
    for part in text.split(',') {
        let syntax = || ListError::Syntax { part: part.into(), text: text.into() };
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.trim().parse().map_err(|_| syntax())?;
        let last: usize = last.trim().parse().map_err(|_| syntax())?;
        if first > last {
            return Err(ListError::Backwards { first, last });
        }
        for value in [first, last] {
            if !(min..=max).contains(&value) {
                return Err(ListError::Range { value, min, max });
            }
        }
        if last - first >= MAX_VALUES - values.len() {
            return Err(ListError::TooLong { text: text.into() });
        }
        values.extend(first..=last);
    }
    Ok(values)
}

/// Cores in the order given, each at most once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CoreList(pub Vec<usize>);

impl FromStr for CoreList {
    type Err = ListError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let cores = numbers(text, 0, MAX_CORE)?;
        for (at, core) in cores.iter().enumerate() {
            if cores[..at].contains(core) {
                return Err(ListError::Twice { value: *core, text: text.into() });
            }
        }
        Ok(Self(cores))
    }
}

impl fmt::Display for CoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, core) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            write!(f, "{core}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_and_ranges_keep_their_order() {
        assert_eq!("0".parse(), Ok(CoreList(vec![0])));
        assert_eq!("3,0-2,1023".parse(), Ok(CoreList(vec![3, 0, 1, 2, 1023])));
        assert_eq!(numbers("64,64,1518", 60, 9000), Ok(vec![64, 64, 1518]));
        assert_eq!(CoreList(vec![3, 0]).to_string(), "3,0");
    }

    #[test]
    fn each_refusal_names_the_value() {
        let refused = |text: &str| text.parse::<CoreList>().unwrap_err().to_string();
        assert_eq!(refused("1024"), "1024 is out of range; give 0 to 1023");
        assert_eq!(refused("0-1024"), "1024 is out of range; give 0 to 1023");
        assert_eq!(refused("3-1"), "range 3-1 runs backwards; write 1-3");
        assert_eq!(refused("1,1"), "1 stands twice in list `1,1`; name each core once");
        for wrong in ["", ",", "1,", "a", "1-", "-1", "1-2-3", "0x1"] {
            assert!(refused(wrong).contains("is not a number or a range"), "{wrong}");
        }
    }

    #[test]
    fn a_list_holds_max_values_and_no_more() {
        assert_eq!("0-1023".parse::<CoreList>().unwrap().0.len(), MAX_VALUES);
        assert!(matches!(numbers("0-1023,0", 0, 1023), Err(ListError::TooLong { .. })));
        let max = usize::MAX;
        let all = format!("0-{max}");
        assert!(matches!(numbers(&all, 0, max), Err(ListError::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9,\\-a ]{0,40}") {
            let _ = text.parse::<CoreList>();
        }
    }
}
