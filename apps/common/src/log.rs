//! Log set-up: control plane only, to standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Sends log records to standard error: warnings, or what `RUST_LOG` asks for.
///
/// `verbose` is how often `-v` was given: 1 adds `info`, 2 `debug`, 3 and more `trace`. `RUST_LOG`
/// wins over it. A second call changes nothing.
pub fn init(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    // An error only says that a subscriber is installed already, which then serves as well.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_second_call_is_harmless() {
        super::init(0);
        super::init(3);
    }
}
