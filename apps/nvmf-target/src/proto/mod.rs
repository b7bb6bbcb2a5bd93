//! Layouts of NVMe and of NVMe over Fabrics: what stands in capsules, in the connection manager's
//! private data, and in the pages that commands bring.
//!
//! | module | has |
//! |---|---|
//! | [`sqe`] | commands and completions, 64 and 16 bytes |
//! | [`sgl`] | where a command's data are |
//! | [`status`] | the codes of completions |
//! | [`connect`] | the data of Connect, and names of hosts and subsystems |
//! | [`auth`] | messages of an authentication |
//! | [`cm`] | private data of the RDMA connection manager |
//! | [`property`] | registers of a controller, as Property Get and Set name them |
//! | [`identify`] | pages of Identify |
//! | [`log`] | log pages, discovery's among them |
//!
//! Everything is little-endian. Nothing here panics, whatever the bytes are. Sources are those of
//! reference 10: the NVM Express base specification, its fabrics chapters and the RDMA transport.

pub mod auth;
pub mod cm;
pub mod connect;
pub mod identify;
pub mod log;
pub mod property;
pub mod sgl;
pub mod sqe;
pub mod status;

/// Writes bytes into a page at the offset that a table of the specification names. Offsets are
/// constants of this module's tables, inside the page.
fn put(page: &mut [u8], at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Writes text into a field of `len` bytes, filled up with `fill` and cut where it is longer.
fn put_text(page: &mut [u8], at: usize, len: usize, text: &str, fill: u8) {
    let field = &mut page[at..at + len];
    field.fill(fill);
    let len = text.len().min(len);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
}
