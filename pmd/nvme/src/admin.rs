//! [`Admin`]: the administration queues, one command at a time.

use std::sync::Arc;
use std::time::Duration;

use ferrocx_bus::{BusError, DmaBuf, DmaHeap, Ring, Transport};
use zerocopy::little_endian::{U16, U32, U64};

use crate::command::{Sqe, Status, admin};
use crate::identify::IDENTIFY_BYTES;
use crate::registers::{Doorbells, Registers};
use crate::shared::QueueShared;
use crate::{Config, NvmeError};

/// log2 of the entries of both queues.
const LOG_ENTRIES: u8 = 4;
/// What Identify is asked for. Source: reference 12.4.
const CNS_NAMESPACE: u32 = 0;
const CNS_CONTROLLER: u32 = 1;
const CNS_NVM_CONTROLLER: u32 = 6;
/// The feature that is the number of queues. Source: reference 12.3.
const FEATURE_QUEUES: u32 = 0x07;
/// There is no queue of that number: type 1, code 1. Source: reference 12.2.
const NO_QUEUE: Status = Status(0x101);
/// In dword 11 of both commands that make a queue: its memory is in one piece.
const IS_CONTIGUOUS: u32 = 1;

/// The administration queues of a drive.
#[derive(Debug)]
pub(crate) struct Admin {
    sq: Ring<64>,
    cq: Ring<16>,
    /// What Identify answers.
    page: DmaBuf,
    doorbells: Doorbells,
    posted: u32,
    /// A command was not answered, or wrongly: nobody knows what the next answer is to.
    is_lost: bool,
}

impl Admin {
    pub(crate) fn new(heap: &DmaHeap, doorbells: Doorbells) -> Result<Self, BusError> {
        let ring = || Ok::<_, BusError>(Arc::new(heap.alloc(4096, 4096)?));
        Ok(Self {
            sq: Ring::new(ring()?, 0, LOG_ENTRIES)?,
            cq: Ring::new(ring()?, 0, LOG_ENTRIES)?,
            page: heap.alloc(IDENTIFY_BYTES, 4096)?,
            doorbells,
            posted: 0,
            is_lost: false,
        })
    }

    /// Says where the queues are, empty, to a drive that is off.
    pub(crate) fn place(&mut self, registers: &Registers) {
        self.sq.buf().fill(0);
        self.cq.buf().fill(0);
        (self.posted, self.is_lost) = (0, false);
        registers.set_admin(self.sq.entries(), self.sq.iova(), self.cq.iova());
    }

    /// Whether it is of no use before the drive is reset.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Carries a command out; dword 0 of its completion.
    fn command(
        &mut self,
        transport: &dyn Transport,
        config: &Config,
        command: &'static str,
        sqe: Sqe,
    ) -> Result<u32, NvmeError> {
        if self.is_lost {
            let name = transport.identity().name.clone();
            let limit_ms = config.admin_timeout.as_millis();
            return Err(NvmeError::TimedOut { name, what: command, limit_ms });
        }
        let done = self.try_command(transport, config, command, sqe);
        self.is_lost = matches!(done, Err(NvmeError::TimedOut { .. } | NvmeError::Lies { .. }));
        done
    }

    fn try_command(
        &mut self,
        transport: &dyn Transport,
        config: &Config,
        command: &'static str,
        mut sqe: Sqe,
    ) -> Result<u32, NvmeError> {
        let name = || transport.identity().name.clone();
        let (entries, at) = (self.sq.entries(), self.posted);
        // Never a number that the drive may complete late.
        let [low, high, ..] = at.to_le_bytes();
        let cid = u16::from_le_bytes([low, high]);
        sqe.cid = U16::new(cid);
        self.sq.at(at).store(&sqe.bytes());
        self.posted = at.wrapping_add(1);
        self.doorbells.submit(self.posted % entries);
        let completion = self.cq.at(at);
        let phase = (at / entries).is_multiple_of(2);
        let begun = transport.now();
        let word = loop {
            let word = u32::from_le(completion.load_acquire_raw32::<0x0c>());
            if (word >> 16 & 1 != 0) == phase {
                break word;
            }
            if transport.now().saturating_duration_since(begun) > config.admin_timeout {
                let limit_ms = config.admin_timeout.as_millis();
                return Err(NvmeError::TimedOut { name: name(), what: command, limit_ms });
            }
            transport.relax();
        };
        let ids = u32::from_le(completion.load_raw32::<0x08>());
        let result = u32::from_le(completion.load_raw32::<0x00>());
        self.doorbells.consumed(self.posted % entries);
        for (what, value, is_right) in [
            ("the command of a completion", word & 0xffff, word & 0xffff == u32::from(cid)),
            ("the queue of a completion", ids >> 16, ids >> 16 == 0),
            ("the head of the admin queue", ids & 0xffff, ids & 0xffff < entries),
        ] {
            if !is_right {
                return Err(NvmeError::Lies { name: name(), what, value: value.into() });
            }
        }
        match Status((word >> 17) as u16) {
            Status(0) => Ok(result),
            status => Err(NvmeError::Command { name: name(), command, status }),
        }
    }

    fn identify(
        &mut self,
        transport: &dyn Transport,
        config: &Config,
        cns: u32,
        nsid: u32,
    ) -> Result<[u8; IDENTIFY_BYTES], NvmeError> {
        let mut sqe = Sqe::new(admin::IDENTIFY);
        sqe.nsid = U32::new(nsid);
        sqe.data[0] = U64::new(self.page.iova());
        sqe.cdw10 = U32::new(cns);
        self.page.fill(0);
        self.command(transport, config, "Identify", sqe)?;
        let mut page = [0; IDENTIFY_BYTES];
        self.page.copy_out(0, &mut page);
        Ok(page)
    }

    pub(crate) fn identify_controller(
        &mut self,
        transport: &dyn Transport,
        config: &Config,
    ) -> Result<[u8; IDENTIFY_BYTES], NvmeError> {
        self.identify(transport, config, CNS_CONTROLLER, 0)
    }

    /// What the NVM command set says of the drive; `None` if the drive says nothing.
    pub(crate) fn identify_nvm(
        &mut self,
        transport: &dyn Transport,
        config: &Config,
    ) -> Result<Option<[u8; IDENTIFY_BYTES]>, NvmeError> {
        match self.identify(transport, config, CNS_NVM_CONTROLLER, 0) {
            Ok(page) => Ok(Some(page)),
            Err(NvmeError::Command { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn identify_namespace(
        &mut self,
        transport: &dyn Transport,
        config: &Config,
        nsid: u32,
    ) -> Result<[u8; IDENTIFY_BYTES], NvmeError> {
        self.identify(transport, config, CNS_NAMESPACE, nsid)
    }

    /// Asks for queue pairs; how many there are.
    pub(crate) fn want_queues(
        &mut self,
        transport: &dyn Transport,
        config: &Config,
    ) -> Result<u16, NvmeError> {
        let mut sqe = Sqe::new(admin::SET_FEATURES);
        sqe.cdw10 = U32::new(FEATURE_QUEUES);
        let wanted = u32::from(config.queues - 1);
        sqe.cdw11 = U32::new(wanted << 16 | wanted);
        let granted = self.command(transport, config, "Set Features (queues)", sqe)?;
        let [a, b, c, d] = granted.to_le_bytes();
        let least = u16::from_le_bytes([a, b]).min(u16::from_le_bytes([c, d]));
        Ok(least.saturating_add(1).min(config.queues))
    }

    /// Makes a queue pair on the drive.
    pub(crate) fn create(
        &mut self,
        transport: &dyn Transport,
        config: &Config,
        queue: &QueueShared,
    ) -> Result<(), NvmeError> {
        let qid = u32::from(queue.qid);
        let mut sqe = Sqe::new(admin::CREATE_CQ);
        sqe.data[0] = U64::new(queue.cq_iova);
        sqe.cdw10 = U32::new((queue.entries - 1) << 16 | qid);
        sqe.cdw11 = U32::new(IS_CONTIGUOUS);
        self.command(transport, config, "Create I/O Completion Queue", sqe)?;
        sqe.opcode = admin::CREATE_SQ;
        sqe.data[0] = U64::new(queue.sq_iova);
        sqe.cdw11 = U32::new(qid << 16 | IS_CONTIGUOUS);
        self.command(transport, config, "Create I/O Submission Queue", sqe).map(drop)
    }

    /// Deletes a queue pair; one that is not there is no error. After any other the drive may have
    /// it still.
    pub(crate) fn delete(
        &mut self,
        transport: &dyn Transport,
        config: &Config,
        qid: u16,
    ) -> Result<(), NvmeError> {
        for (opcode, what) in [
            (admin::DELETE_SQ, "Delete I/O Submission Queue"),
            (admin::DELETE_CQ, "Delete I/O Completion Queue"),
        ] {
            let mut sqe = Sqe::new(opcode);
            sqe.cdw10 = U32::new(qid.into());
            match self.command(transport, config, what, sqe) {
                Ok(_) => {}
                Err(NvmeError::Command { status, .. }) if status.code() == NO_QUEUE => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Asks for a command to be aborted. Whether it was is seen by its completion.
    pub(crate) fn abort(
        &mut self,
        transport: &dyn Transport,
        config: &Config,
        (qid, cid): (u16, u16),
    ) -> Result<(), NvmeError> {
        let mut sqe = Sqe::new(admin::ABORT);
        sqe.cdw10 = U32::new(u32::from(cid) << 16 | u32::from(qid));
        // A drive that cannot is reset later, and one that does not even answer soon.
        let admin_timeout = config.patience.min(config.admin_timeout);
        let config = Config { admin_timeout, ..config.clone() };
        match self.command(transport, &config, "Abort", sqe) {
            Ok(_) | Err(NvmeError::Command { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Lets a time pass.
pub(crate) fn pause(transport: &dyn Transport, time: Duration) {
    let begun = transport.now();
    while transport.now().saturating_duration_since(begun) < time {
        transport.relax();
    }
}

/// Waits until something is so.
pub(crate) fn wait(
    transport: &dyn Transport,
    what: &'static str,
    limit: Duration,
    mut is_so: impl FnMut() -> Result<bool, NvmeError>,
) -> Result<(), NvmeError> {
    let begun = transport.now();
    while !is_so()? {
        if transport.now().saturating_duration_since(begun) > limit {
            let name = transport.identity().name.clone();
            return Err(NvmeError::TimedOut { name, what, limit_ms: limit.as_millis() });
        }
        transport.relax();
    }
    Ok(())
}
