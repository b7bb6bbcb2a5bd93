//! What is done about a drive that is late, mad, wanted back or gone.

use std::time::Duration;

use ferrocx_bus::{BusError, Notice};

use crate::NvmeError;
use crate::admin::{pause, wait};
use crate::controller::{Controller, Health, Link};
use crate::identify::{ControllerInfo, Namespace};
use crate::registers::{CC_ENABLED, CC_SHUTDOWN, CSTS_FATAL, CSTS_IS_SHUT, CSTS_SHUTDOWN};
use crate::shared::{ACTIVE, CLEAN, DEAD, DOWN, MAKING, QUIET, STUCK};

/// How long a shutdown may take at most, whatever the drive says.
const LONGEST_SHUTDOWN: Duration = Duration::from_secs(60);
/// How long a reset of the function may take.
const RESET_PATIENCE: Duration = Duration::from_secs(2);

/// Why a drive cannot go on as it is.
enum Trouble {
    /// The kernel wants it back, or says that the bus has failed.
    Taken(Notice),
    /// It is there no more.
    Gone(String),
    /// It is to be reset.
    Reset(String),
}

impl From<NvmeError> for Trouble {
    fn from(error: NvmeError) -> Self {
        match error {
            NvmeError::Bus(BusError::DeviceGone { .. }) => Self::Gone(error.to_string()),
            error => Self::Reset(error.to_string()),
        }
    }
}

impl Controller {
    /// Does what is due: aborts what takes too long, resets a drive that needs it, makes queues
    /// again and forgets those that were dropped. For a thread that may wait: a reset takes as long
    /// as the drive says.
    pub fn tend(&mut self) -> Health {
        match self.look() {
            Ok(()) => {}
            Err(Trouble::Reset(why)) => self.reset(&why),
            Err(Trouble::Gone(why)) => self.bury(why),
            Err(Trouble::Taken(notice)) => self.give_back(notice),
        }
        match self.link {
            Some(_) => Health::Ready,
            None => Health::Gone(self.why_gone.clone()),
        }
    }

    fn look(&mut self) -> Result<(), Trouble> {
        let Some(link) = &mut self.link else { return Ok(()) };
        if let Some(notice) = link.transport.notice() {
            return Err(Trouble::Taken(notice));
        }
        if link.status()? & CSTS_FATAL != 0 {
            return Err(Trouble::Reset("it reports a fatal status".into()));
        }
        if link.admin.is_lost() {
            return Err(Trouble::Reset("its admin queue did not answer".into()));
        }
        // One that is down may say so for as long as its core does not look.
        let mut queues = self.queues.iter().filter(|queue| queue.state() == ACTIVE);
        if let Some(queue) = queues.find(|queue| queue.is_insane()) {
            let why = format!("it completed what it was not told, on queue {}", queue.qid);
            return Err(Trouble::Reset(why));
        }
        self.abort_late()?;
        self.forget_dropped()?;
        self.make_again()
    }

    /// Sends an abort for a command that takes too long; one at a time.
    fn abort_late(&mut self) -> Result<(), Trouble> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let now = link.transport.now();
        // Every abort that was sent has been answered.
        self.queues.iter().filter(|it| it.state() == ACTIVE).for_each(|it| it.see_late());
        if let Some((qid, cid, since)) = self.aborting {
            let queue = self.queues.iter().find(|queue| queue.qid == qid);
            let is_late = queue.is_some_and(|it| it.state() == ACTIVE && it.late() == Some(cid));
            if is_late && now.saturating_duration_since(since) > self.config.patience {
                let why = format!("command {cid} of queue {qid} was aborted, and did not end");
                return Err(Trouble::Reset(why));
            }
            if is_late {
                return Ok(());
            }
            self.aborting = None;
        }
        let mut queues = self.queues.iter().filter(|queue| queue.state() == ACTIVE);
        let Some((qid, cid)) = queues.find_map(|queue| Some((queue.qid, queue.late()?))) else {
            return Ok(());
        };
        tracing::warn!(drive = self.name, qid, cid, "a command takes too long and is aborted");
        self.counts.aborts += 1;
        link.admin.abort(&*link.transport, &self.config, (qid, cid))?;
        self.aborting = Some((qid, cid, now));
        Ok(())
    }

    /// Deletes queues that nobody has any more, and lets go of their memory.
    fn forget_dropped(&mut self) -> Result<(), Trouble> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let mut at = 0;
        while let Some(queue) = self.queues.get(at) {
            if !queue.left().is_dropped {
                at += 1;
                continue;
            }
            if queue.is_known() {
                link.admin.delete(&*link.transport, &self.config, queue.qid)?;
            }
            drop(self.queues.remove(at).left().parts.take());
        }
        Ok(())
    }

    /// Makes queues again that a reset took down, and whose cores have ended what was under way,
    /// if their namespaces are what they were.
    fn make_again(&mut self) -> Result<(), Trouble> {
        let Some(link) = &mut self.link else { return Ok(()) };
        for queue in self.queues.iter().filter(|queue| queue.state() == CLEAN) {
            // One that has just been reset does not get better by another reset.
            let gone = |error: NvmeError| Trouble::Gone(error.to_string());
            let (transport, config, before) = (&*link.transport, &self.config, queue.namespace);
            let page = link.admin.identify_namespace(transport, config, before.nsid);
            let most = self.info.namespaces;
            let parse = |page| Namespace::parse(&self.name, (before.nsid, most), &page);
            let now = page.and_then(parse).map_err(gone)?;
            if now != before {
                return Err(Trouble::Gone(format!(
                    "namespace {} has {} blocks of {} bytes after a reset, it had {} of {}; open \
                     the drive again",
                    now.nsid,
                    now.blocks,
                    1 << now.block_shift,
                    before.blocks,
                    1 << before.block_shift,
                )));
            }
            queue.set(MAKING);
            link.admin.create(transport, config, queue).map_err(gone)?;
            queue.set(ACTIVE);
        }
        Ok(())
    }

    /// Resets the drive: everything under way ends, and queues are made again when that is done.
    /// What does not stop, or does not come back, has its function reset and one more try.
    fn reset(&mut self, why: &str) {
        tracing::warn!(drive = self.name, why, "drive is reset");
        self.counts.resets += 1;
        self.aborting = None;
        let begun = self.restart().or_else(|error| {
            tracing::warn!(drive = self.name, %error, "its function is reset");
            if let Some(link) = &self.link {
                link.reset_function()?;
            }
            self.restart()
        });
        match begun {
            Ok((info, granted)) if info.does_for(&self.info) && granted >= self.granted => {
                if info.firmware != self.info.firmware {
                    let firmware = &info.firmware;
                    tracing::warn!(drive = self.name, firmware, "it came back with other firmware");
                }
                self.info = info;
            }
            Ok(_) => self.bury("it came back from a reset as another".into()),
            Err(error) => self.bury(error.to_string()),
        }
    }

    /// Switches the drive off, which takes its queues down, and on; what it is, and its queue
    /// pairs.
    fn restart(&mut self) -> Result<(ControllerInfo, u16), NvmeError> {
        let cap = self.cap();
        self.quiesce();
        let Some(link) = &mut self.link else { return Err(self.gone()) };
        link.stop(cap)?;
        for queue in self.queues.iter().filter(|queue| queue.is_known()) {
            queue.set(DOWN);
        }
        link.start(&self.name, cap, &self.config)
    }

    /// Has cores tell the drive of nothing new, which is about to be switched off. Who was about to
    /// ring may still do so.
    fn quiesce(&self) {
        for queue in self.queues.iter().filter(|queue| queue.state() == ACTIVE) {
            queue.set(QUIET);
        }
    }

    /// Gives the drive back, off.
    fn give_back(&mut self, notice: Notice) {
        let why = notice.to_string();
        tracing::warn!(drive = self.name, why, "drive is given back");
        match self.switch_off() {
            Ok(()) => self.let_go(DEAD, why),
            Err(error) => self.bury(format!("{why}; {error}")),
        }
    }

    /// Tells the drive to shut down, waits for that, and switches it off.
    pub(crate) fn switch_off(&mut self) -> Result<(), NvmeError> {
        let cap = self.cap();
        let says = Duration::from_micros(self.info.shutdown_us.into());
        let limit = says.min(LONGEST_SHUTDOWN).max(self.config.shutdown);
        let Some(link) = &self.link else { return Ok(()) };
        // One that has gone is not waited for.
        link.status()?;
        self.quiesce();
        if link.registers.cc() & 1 == 1 {
            link.registers.set_cc(CC_ENABLED | CC_SHUTDOWN);
            let shut = wait(&*link.transport, "end of its shutdown", limit, || {
                Ok(link.status()? & CSTS_SHUTDOWN == CSTS_IS_SHUT)
            });
            if let Err(error) = shut {
                tracing::warn!(drive = self.name, %error, "switched off without it");
            }
        }
        link.stop(cap)
    }

    /// Ends the access of a drive that does not answer, without its help.
    fn bury(&mut self, why: String) {
        let Some(link) = &self.link else { return };
        tracing::error!(drive = self.name, why, "drive has gone");
        let state = match link.transport.dma().unmap_all() {
            Ok(()) => DEAD,
            Err(error) => {
                tracing::error!(drive = self.name, %error, "it may reach memory still: leaked");
                STUCK
            }
        };
        self.let_go(state, why);
    }

    /// Lets go of everything: queues end what is under way, unless the drive may still reach it.
    fn let_go(&mut self, state: u8, why: String) {
        self.why_gone = why;
        for queue in self.queues.drain(..) {
            queue.set(state);
            let parts = queue.left().parts.take();
            if state == STUCK { std::mem::forget(parts) } else { drop(parts) }
        }
        let link = self.link.take();
        if state == STUCK {
            std::mem::forget(link);
        }
    }
}

impl Link {
    fn reset_function(&self) -> Result<(), NvmeError> {
        self.transport.reset()?;
        let transport = &*self.transport;
        wait(transport, "end of its reset", RESET_PATIENCE, || Ok(transport.reset_complete()))?;
        pause(transport, self.quirks.after_reset);
        Ok(())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        match self.switch_off() {
            Ok(()) => self.let_go(DEAD, "it was closed".into()),
            Err(error) => self.bury(error.to_string()),
        }
    }
}
