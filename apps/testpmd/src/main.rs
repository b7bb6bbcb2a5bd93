//! Entry point of testpmd.
fn main() {}
