//! What users hold of datagram services: a listener, a peer's question, a question of ours.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::conn::Ends;
use super::manager::{CmError, ConnectionManager};
use super::sidr::{Asked, DatagramAnswer, REFUSED};
use crate::error::VerbsError;
use crate::gid::Path;
use crate::types::{Gid, Qpn};

/// Bytes that a question carries for the peer's program, and an answer.
const QUESTION_BYTES: u64 = 180;
const ANSWER_BYTES: u64 = 136;

/// Takes questions for a datagram service, until it is dropped.
#[derive(Debug)]
pub struct DatagramListener {
    manager: ConnectionManager,
    port: u16,
}

/// A question for the queue pair behind an address and port. Dropping it takes no answer.
#[derive(Debug)]
pub struct DatagramQuestion {
    manager: ConnectionManager,
    id: u32,
    ends: Ends,
}

/// A peer asks for the queue pair of a datagram service. Dropped without an answer, it is rejected.
#[derive(Debug)]
pub struct DatagramRequest {
    manager: ConnectionManager,
    asked: Asked,
    is_answered: AtomicBool,
}

impl ConnectionManager {
    /// Takes questions for the queue pair of a datagram service, at every address, from now on. Up
    /// to 128 wait; one more is asked again by its peer.
    ///
    /// # Errors
    ///
    /// [`CmError::PortInUse`]; [`CmError::Verbs`] for port 0.
    #[doc(alias = "rdma_listen")]
    pub fn listen_datagrams(&self, port: u16) -> Result<DatagramListener, CmError> {
        VerbsError::range("port", port.into(), 1, u16::MAX.into())?;
        if !self.lock().sidr.listen(port) {
            return Err(CmError::PortInUse(port));
        }
        Ok(DatagramListener { manager: self.clone(), port })
    }

    /// Asks a peer for the queue pair of its datagram service, with at most 180 bytes for its
    /// program.
    ///
    /// # Errors
    ///
    /// [`CmError::Verbs`] for more bytes, port 0, and a peer without route.
    #[doc(alias = "rdma_connect")]
    pub fn ask_datagrams(
        &self,
        peer: SocketAddr,
        source_port: u16,
        private_data: &[u8],
    ) -> Result<DatagramQuestion, CmError> {
        VerbsError::range("port", peer.port().into(), 1, u16::MAX.into())?;
        let len = private_data.len() as u64;
        VerbsError::range("bytes of private data", len, 0, QUESTION_BYTES)?;
        let remote = peer.ip().to_canonical();
        let local = self.context().route(Gid::from(remote))?.source.gid.ip();
        let ends = Ends { local, remote };
        let mut inner = self.lock();
        let now = inner.now();
        let id = inner.sidr.ask(ends, (source_port, peer.port()), private_data, now);
        inner.progress();
        drop(inner);
        Ok(DatagramQuestion { manager: self.clone(), id, ends })
    }
}

impl DatagramListener {
    /// The oldest question that waits, if one does.
    pub fn poll(&mut self) -> Option<DatagramRequest> {
        let mut inner = self.manager.lock();
        inner.progress();
        let asked = inner.sidr.take(self.port)?;
        drop(inner);
        let is_answered = AtomicBool::new(false);
        Some(DatagramRequest { manager: self.manager.clone(), asked, is_answered })
    }
}

impl Drop for DatagramListener {
    fn drop(&mut self) {
        self.manager.lock().sidr.unlisten(self.port);
    }
}

impl DatagramRequest {
    /// Who asks.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.asked.peer()
    }

    /// What its program says: 180 bytes, filled up with zeros.
    #[must_use]
    pub fn private_data(&self) -> Vec<u8> {
        self.asked.private_data()
    }

    /// Answers with a queue pair and the key of its datagrams, and at most 136 bytes for the peer's
    /// program; more are left out.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, qpn: Qpn, qkey: u32, private_data: &[u8]) {
        self.reply((0, qpn.0, qkey), private_data);
    }

    /// Says no, with at most 136 bytes for the peer's program; more are left out.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, private_data: &[u8]) {
        self.reply((REFUSED, 0, 0), private_data);
    }

    fn reply(&self, answer: (u32, u32, u32), private_data: &[u8]) {
        let said = &private_data[..private_data.len().min(ANSWER_BYTES as usize)];
        self.is_answered.store(true, Ordering::Relaxed);
        let mut inner = self.manager.lock();
        inner.sidr.reply(&self.asked, answer, said);
        inner.progress();
    }
}

impl Drop for DatagramRequest {
    fn drop(&mut self) {
        // Open questions are counted, and their peers ask again and again.
        if !*self.is_answered.get_mut() {
            self.reject(&[]);
        }
    }
}

impl DatagramQuestion {
    /// What was answered, once something was.
    #[must_use]
    pub fn poll(&self) -> Option<DatagramAnswer> {
        let mut inner = self.manager.lock();
        inner.progress();
        inner.sidr.answer_of(self.id).cloned()
    }

    /// The way to the peer; `None` while its MAC address is asked for.
    ///
    /// # Errors
    ///
    /// [`CmError::Net`] when it cannot be reached.
    pub fn path(&self) -> Result<Option<Path>, CmError> {
        Ok(self.manager.lock().way(self.ends)?)
    }
}

impl Drop for DatagramQuestion {
    fn drop(&mut self) {
        self.manager.lock().sidr.forget(self.id);
    }
}
