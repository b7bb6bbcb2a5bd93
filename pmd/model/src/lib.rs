//! A software ConnectX: deterministic, strict, bit-exact.
