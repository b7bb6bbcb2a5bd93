//! The vfio-user server of one port: regions, interrupts, and clients one after another.
//!
//! # What a hostile client can do
//!
//! A guest talks through its QEMU and sends well-formed messages only. Against a client that does
//! not, [`Function`] checks what it is given, and a panic in the crate `vfio_user` 0.1.7 costs the
//! client its connection. That crate allocates what the length of a message says, up to 4 GiB,
//! before anyone can look at it. Whoever takes the process over has one that can open and start
//! nothing ([`super::confine`]). Left to such a client:
//!
//! - It takes as much memory as it sends, 4 GiB at most for each port; where the system does not
//!   even promise that much, the process ends.
//! - It keeps its port from the next client, by staying or by not reading the answers.
//! - Having handed over an eventfd, it makes it blocking and fills it: its own port waits.
//! - Its memory is on hugetlbfs and it punches holes where no huge page is free: the process ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use vfio_bindings::bindings::vfio as abi;
use vfio_user::{IrqInfo, Server, ServerRegion};

use super::function::Function;
use super::pci::{BAR0_BYTES, BAR2_BYTES, CONFIG_BYTES, MSIX_VECTORS};

/// Opens the socket. It exists when this returns, so a client may connect.
///
/// # Errors
///
/// The path exists already, or the system's reason for refusing it.
pub(super) fn listen(path: &Path) -> Result<Server, vfio_user::Error> {
    Server::new(path, true, interrupts(), regions())
}

/// Serves clients one after another, for ever. Nothing of one is left for the next.
pub(super) fn serve(server: &Server, port: &str, mut function: Function) {
    loop {
        // A message that is not even well-formed makes the crate panic; the port survives it.
        match catch_unwind(AssertUnwindSafe(|| server.run(&mut function))) {
            Ok(Ok(())) => tracing::info!(port, "client left"),
            Ok(Err(vfio_user::Error::SocketAccept(error))) => {
                tracing::error!(port, %error, "the socket accepts no more clients");
                return;
            }
            Ok(Err(error)) => tracing::warn!(port, %error, "client lost"),
            Err(_) => tracing::error!(port, "client lost: its message was malformed"),
        }
        function.forget_client();
    }
}

/// BAR 0, BAR 2 and configuration space, all trapped: each access is a message.
fn regions() -> Vec<ServerRegion> {
    (0..abi::VFIO_PCI_NUM_REGIONS)
        .map(|index| {
            let size = match index {
                abi::VFIO_PCI_BAR0_REGION_INDEX => BAR0_BYTES,
                abi::VFIO_PCI_BAR2_REGION_INDEX => BAR2_BYTES,
                abi::VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_BYTES as u64,
                _ => 0,
            };
            let access = abi::VFIO_REGION_INFO_FLAG_READ | abi::VFIO_REGION_INFO_FLAG_WRITE;
            let region_info = abi::vfio_region_info {
                argsz: size_of::<abi::vfio_region_info>() as u32,
                index,
                size,
                flags: if size == 0 { 0 } else { access },
                ..Default::default()
            };
            ServerRegion { region_info, sparse_areas: Vec::new(), mmap_fd: None }
        })
        .collect()
}

/// MSI-X and nothing else.
fn interrupts() -> Vec<IrqInfo> {
    (0..abi::VFIO_PCI_NUM_IRQS)
        .map(|index| match index {
            abi::VFIO_PCI_MSIX_IRQ_INDEX => IrqInfo {
                index,
                // Not "no resize": with it a client takes all vectors away to add one.
                flags: abi::VFIO_IRQ_INFO_EVENTFD,
                count: u32::from(MSIX_VECTORS),
            },
            _ => IrqInfo { index, flags: 0, count: 0 },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_region_and_interrupt_answers_under_its_own_index() {
        assert_eq!(regions().len(), 9);
        assert!((0..).zip(regions()).all(|(i, r)| r.region_info.index == i));
        assert_eq!(interrupts().len(), 5);
        assert!((0..).zip(interrupts()).all(|(i, irq)| irq.index == i));
    }

    #[test]
    fn a_path_in_use_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("port0");
        let first = listen(&path).expect("a fresh path");
        assert!(matches!(listen(&path), Err(vfio_user::Error::SocketPathExists)));
        drop(first);
        assert!(!path.exists());
    }
}
