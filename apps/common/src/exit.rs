//! The end of an application: one sentence for people, a code for scripts.

use std::process::ExitCode;

/// Prints `error: ` and the whole chain of causes on one line of standard error, and answers 1.
///
/// A cause whose text its parent already contains is left out, so that a sentence is not said
/// twice.
#[must_use]
pub fn report(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {}", sentence(error));
    ExitCode::FAILURE
}

/// The chain of causes as one line.
#[must_use]
pub fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string().replace('\n', " ");
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn causes_are_said_once_and_on_one_line() {
        let error = anyhow!("no\nroom").context("port 0");
        assert_eq!(sentence(&error), "port 0: no room");
        let error = anyhow!("no room").context("port 0: no room");
        assert_eq!(sentence(&error), "port 0: no room");
    }
}
