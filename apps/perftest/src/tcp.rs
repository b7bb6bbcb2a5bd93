//! The stream over which two ends on different machines agree.

use std::net::{TcpListener, TcpStream, ToSocketAddrs};

use anyhow::{Context, Result};

/// Connects to an end that waits.
///
/// # Errors
///
/// The system's reason, with the host and port.
pub fn connect(host: &str, port: u16) -> Result<TcpStream> {
    let place = || format!("cannot connect to {host}:{port}; does the other end wait there?");
    let found = (host, port).to_socket_addrs().with_context(place)?;
    let addresses: Vec<_> = found.collect();
    TcpStream::connect(addresses.as_slice()).with_context(place)
}

/// Lets the other end connect from now on: both can prepare themselves at the same time.
///
/// # Errors
///
/// The system's reason, with the port.
pub fn listen(port: u16) -> Result<TcpListener> {
    let place = || format!("cannot wait at TCP port {port}; choose another with --port");
    // An IPv6 socket takes both families, where there is IPv6.
    TcpListener::bind(("::", port))
        .or_else(|_| TcpListener::bind(("0.0.0.0", port)))
        .with_context(place)
}

/// Waits for the other end.
///
/// # Errors
///
/// The system's reason.
pub fn accept(listener: &TcpListener) -> Result<TcpStream> {
    let (stream, _) = listener.accept().context("cannot wait for the other end")?;
    Ok(stream)
}
