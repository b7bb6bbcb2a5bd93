//! What happens when whoever reads the program's output goes away.
#![forbid(unsafe_code)]

use std::process::{Command, Stdio};

#[test]
fn a_reader_that_goes_away_ends_the_program_without_a_word() {
    let mut pingpong = Command::new(env!("CARGO_BIN_EXE_perftest"));
    let child =
        pingpong.args(["pingpong", "rc", "-n", "16"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(141));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(!said.contains("panicked"), "{said}");
}
