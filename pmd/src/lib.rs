//! Polled-mode user-space driver for ConnectX network adapters.
