//! Back ends of a core, which come and go.

use std::sync::Arc;

use ferrocx::verbs::Memory;
use ferrocx_nvme::IoQueue;
use ferrocx_uring::Ring;

use super::execute::{Rare, Store};
use super::{MAX_BACKENDS, RING_REQUESTS, Ready, Server, ServerError};
use crate::backend::{self, Backend, OpenFile, Outside};
use crate::proto::log::Traffic;
use crate::stats::NamespaceStats;
use crate::whole::{Locks, Whole};

impl Server {
    /// Adds a back end of `len_bytes` of RAM, all zeros; its place.
    ///
    /// # Errors
    ///
    /// The system has no such memory.
    pub fn add_ram(&mut self, len_bytes: usize) -> Result<usize, ServerError> {
        let memory = backend::memory(&self.context, len_bytes, self.config.page)?;
        self.add_memory(&memory)
    }

    /// Adds a back end of RAM whose blocks of `1 << block_shift` bytes are read and written as one;
    /// its place.
    ///
    /// # Errors
    ///
    /// The system has no such memory.
    pub fn add_whole_ram(
        &mut self,
        len_bytes: usize,
        block_shift: u8,
    ) -> Result<usize, ServerError> {
        let memory = backend::memory(&self.context, len_bytes, self.config.page)?;
        let ram = Backend::ram(&self.pd, &memory)?;
        self.add(Ready::Whole(Whole::new(ram, block_shift, &Locks::default())))
    }

    /// Adds a back end over memory that is there already; its place.
    ///
    /// # Errors
    ///
    /// The memory is another device's.
    pub fn add_memory(&mut self, memory: &Arc<Memory>) -> Result<usize, ServerError> {
        let backend = Backend::ram(&self.pd, memory)?;
        self.add(Ready::Direct(backend))
    }

    /// Adds a back end that keeps nothing; its place.
    ///
    /// # Errors
    ///
    /// The system has no memory.
    pub fn add_null(&mut self) -> Result<usize, ServerError> {
        let len = self.work.settings.max_transfer() as usize;
        let memory = backend::memory(&self.context, len, self.config.page)?;
        let backend = Backend::null(&self.pd, &memory)?;
        self.add(Ready::Direct(backend))
    }

    /// Adds a back end that is a file or a block device, open for what hosts may do; its place.
    ///
    /// # Errors
    ///
    /// [`ServerError::Ring`].
    pub fn add_file(&mut self, file: std::fs::File) -> Result<usize, ServerError> {
        self.add(Ready::File(OpenFile::new(file)))
    }

    /// Adds a back end that is an NVMe drive, by a queue pair made for [`Server::buffers`]; its
    /// place.
    ///
    /// # Errors
    ///
    /// [`ServerError::Places`].
    pub fn add_drive(&mut self, queue: IoQueue) -> Result<usize, ServerError> {
        self.add(Ready::Drive(Box::new(queue)))
    }

    fn add(&mut self, ready: Ready) -> Result<usize, ServerError> {
        let place = self.next_place();
        self.put_backend(place, ready, ("", 0))?;
        Ok(place)
    }

    /// A place where no back end was ever put.
    #[must_use]
    pub fn next_place(&self) -> usize {
        self.work.backends.len()
    }

    /// Puts a back end at a place, which is the same on all cores, for a namespace of a subsystem.
    ///
    /// # Errors
    ///
    /// [`ServerError::Ring`], [`ServerError::Places`].
    pub fn put_backend(
        &mut self,
        place: usize,
        ready: Ready,
        (nqn, nsid): (&str, u32),
    ) -> Result<(), ServerError> {
        if place >= MAX_BACKENDS {
            return Err(ServerError::Places);
        }
        let mut rare = Box::<Rare>::default();
        let backend = match ready {
            Ready::Direct(backend) => backend,
            Ready::File(it) => {
                rare.losses = it.losses;
                let mut ring = match self.work.ring.take() {
                    Some(ring) => ring,
                    None => self.ring()?,
                };
                let file = ring.add(it.file);
                self.work.ring = Some(ring);
                Backend::Outside(Outside::File(file))
            }
            Ready::Whole(memory) => {
                rare.whole = Some(memory);
                Backend::Outside(Outside::Whole)
            }
            Ready::Drive(queue) => Backend::Outside(Outside::Drive(self.work.drives.add(*queue))),
        };
        let stats = Arc::new(NamespaceStats::new(nqn, nsid));
        self.shared.registry.add_namespace(&stats);
        let store = Store { backend, moved: Traffic::default(), stats, gate: None, rare };
        if place >= self.work.backends.len() {
            self.work.backends.resize_with(place + 1, || None);
        }
        self.work.backends[place] = Some(store);
        Ok(())
    }

    /// A ring that has the buffers of this core, if the kernel takes them.
    fn ring(&self) -> Result<Ring, ServerError> {
        let mut ring = Ring::new(RING_REQUESTS)?;
        if let Err(error) = ring.register(&[&self.pool]) {
            tracing::warn!(
                bytes = self.pool.len_bytes(),
                %error,
                "io_uring does not keep the buffers of a core, so each request has their pages \
                 looked up; ENOMEM: raise `ulimit -l` or LimitMEMLOCK="
            );
        }
        Ok(ring)
    }

    /// Takes a back end away that no namespace names any more. What is under way on it ends first.
    pub fn drop_backend(&mut self, place: usize) {
        self.work.look_at_offer();
        let Some(store) = self.work.backends.get_mut(place).and_then(Option::take) else { return };
        self.shared.registry.remove_namespace(&store.stats);
        self.shared.gates().forget(place);
        match (&store.backend, &mut self.work.ring) {
            (Backend::Outside(Outside::File(file)), Some(ring)) => ring.remove(*file),
            (Backend::Outside(Outside::Drive(drive)), _) => self.work.drives.remove(*drive),
            _ => {}
        }
    }
}
