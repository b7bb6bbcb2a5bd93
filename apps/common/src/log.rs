//! Log set-up: control plane only, to standard error.

use std::io::IsTerminal;
use std::panic::{set_hook, take_hook};
use std::sync::Once;

use tracing_subscriber::EnvFilter;

/// Sends log records to standard error: warnings, or what `RUST_LOG` asks for.
///
/// Who reads standard output or error and goes away ends the program from here on, with the code
/// that shells have for SIGPIPE, 141, and without a word: nobody would read it.
///
/// `verbose` is how often `-v` was given: 1 adds `info`, 2 `debug`, 3 and more `trace`. `RUST_LOG`
/// wins over it. A second call changes nothing.
pub fn init(verbose: u8) {
    start(["warn", "info", "debug", "trace"], verbose);
}

/// Like [`init`], where what the library complains of is expected: nothing without `-v`, then
/// warnings, `info` and all.
pub fn init_silent(verbose: u8) {
    start(["off", "warn", "info", "trace"], verbose);
}

fn start(levels: [&str; 4], verbose: u8) {
    let level = levels[usize::from(verbose).min(levels.len() - 1)];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    end_with_reader();
    // An error only says that a subscriber is installed already, which then serves as well.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}

/// `println!` panics where nobody reads. Nothing else is told of what it could not print.
fn end_with_reader() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<String>().map_or("", String::as_str);
            if text.starts_with("failed printing to ") && text.contains("Broken pipe") {
                std::process::exit(141);
            }
            usual(info);
        }));
    });
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_second_call_is_harmless() {
        super::init(0);
        super::init(3);
    }
}
