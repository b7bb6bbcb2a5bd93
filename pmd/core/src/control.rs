//! The control plane behind one lock: commands, events, and the firmware's pages.
//!
//! A command may wait for the device while the device waits for memory, so the wait loop of
//! every command polls the event queue and serves page requests in the page slot.
#![expect(unsafe_code, reason = "the claim of the driver to the registers")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrocx_bus::{Bar, BarClaim, DmaBuf, Transport};
use ferrocx_prm::Layout;
use ferrocx_prm::cmd::device::{ManagePages, ManagePagesOut, manage_pages};
use ferrocx_prm::cmd::{Command, CommandOutput};
use ferrocx_prm::layout::Part;
use ferrocx_prm::syndrome::CommandStatus;

use crate::cmd::{CommandChannel, CommandError, DeadDevice, Input, Lane, Object};
use crate::eq::{EqRing, Event, PageRequest, Polled};
use crate::kept::{KeptEvents, Place};
use crate::memory::Memory;
use crate::pages::PageSupply;

/// Requests of the firmware kept until they are answered; later ones wait in the event queue.
const MAX_REQUESTS: usize = 64;
/// Pages in one MANAGE_PAGES(give).
const GIVE_AT_ONCE: usize = 4096;
/// Pages in one MANAGE_PAGES(take). Source: reference 2.5 (Linux: 768).
const TAKE_AT_ONCE: usize = 512;

/// Everything that needs the command channel.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) bar: Arc<dyn Bar>,
    pub(crate) memory: Arc<Memory>,
    /// Made by bring-up before the first command.
    pub(crate) channel: Option<CommandChannel>,
    /// The pages that the firmware has.
    pub(crate) pages: PageSupply,
    /// Pages that it may have, [`crate::DeviceConfig::max_firmware_pages`].
    max_pages: u32,
    /// Polled while it is here: taken out before it is destroyed.
    pub(crate) eq: Option<EqRing>,
    requests: VecDeque<PageRequest>,
    /// The events that are kept.
    pub(crate) events: KeptEvents,
    /// How far [`crate::Device::poll_event`] has read.
    read: Place,
    /// How the device died, if it did. Set by [`Control::set_dead`].
    pub(crate) dead: Option<DeadDevice>,
    /// Memory of objects that could not be destroyed.
    estate: Vec<Arc<DmaBuf>>,
    /// The device knows none of its objects any more, or cannot reach memory: it owns none.
    pub(crate) gone: Arc<AtomicBool>,
}

impl Control {
    pub(crate) fn new(transport: Arc<dyn Transport>, memory: Arc<Memory>, max_pages: u32) -> Self {
        // SAFETY: this crate keeps the registers to itself, and leads the device to rings,
        // mailboxes and records that it copies to and from, and to buffers while a queue or a key
        // owns them.
        let claim = unsafe { BarClaim::new() };
        Self {
            bar: transport.bar(claim),
            transport,
            memory,
            channel: None,
            pages: PageSupply::default(),
            max_pages,
            eq: None,
            requests: VecDeque::new(),
            events: KeptEvents::default(),
            read: Place::default(),
            dead: None,
            gone: Arc::default(),
            estate: Vec::new(),
        }
    }

    /// Keeps memory of an object that could not be destroyed, until the device lets go of
    /// everything.
    pub(crate) fn keep(&mut self, memory: impl IntoIterator<Item = Arc<DmaBuf>>) {
        self.estate.extend(memory);
    }

    /// Whether memory of objects is kept that could not be destroyed.
    pub(crate) fn keeps_memory(&self) -> bool {
        !self.estate.is_empty()
    }

    /// Notes how the device died, and ends its access to memory if its objects shall count as gone.
    ///
    /// No register is proof that a device has stopped: one that claims to start again, to have
    /// another command queue, or to have left the bus may still write to whatever it was given. So
    /// its objects are gone only when nothing is mapped for it any more. Otherwise they stay, no
    /// command destroys them, and their memory is kept.
    pub(crate) fn set_dead(&mut self, cause: DeadDevice) {
        if self.dead.is_some() {
            return;
        }
        self.dead = Some(cause);
        if let DeadDevice::Restarting | DeadDevice::AllOnes | DeadDevice::BusError = cause {
            match self.memory.dma.unmap_all() {
                Ok(()) => self.set_gone(),
                Err(error) => {
                    tracing::error!(%error, "the device may still reach memory, which is leaked");
                }
            }
        }
    }

    /// The device owns no memory and none of its objects exists.
    pub(crate) fn set_gone(&mut self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Whether the device owns nothing any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Carries out a command; input and output are a fixed part and a tail.
    pub(crate) fn execute<C: Command>(
        &mut self,
        input: &C::In,
        tail_in: &[u8],
        tail_out: &mut [u8],
    ) -> Result<C::Out, CommandError> {
        let mut output = vec![0; C::Out::SIZE_BYTES];
        self.run::<C>(Lane::Ordinary, input, tail_in, &mut output, tail_out)
    }

    fn run<C: Command>(
        &mut self,
        lane: Lane,
        input: &C::In,
        tail_in: &[u8],
        output: &mut [u8],
        tail_out: &mut [u8],
    ) -> Result<C::Out, CommandError> {
        let (opcode, object) = (C::OPCODE, Object::of::<C>(input));
        if let Some(cause) = self.dead {
            return Err(CommandError::Dead { opcode, cause, object });
        }
        let memory = Arc::clone(&self.memory);
        let out_len = output.len() + tail_out.len();
        let posted = Input { opcode, object, head: input.as_bytes(), tail: tail_in };
        let mut pending = self.channel_mut().post(&memory, lane, &posted, out_len)?;
        let end = loop {
            if let Some(end) = self.channel_mut().look(&mut pending) {
                break end;
            }
            match lane {
                Lane::Ordinary => self.serve(),
                // What the device asks for meanwhile would need the slot that is taken.
                Lane::Pages => self.collect_events(),
            }
            self.transport.relax();
        };
        let result = self.channel_mut().finish(pending, end, output, tail_out);
        if let Err(CommandError::Dead { cause, .. }) = &result {
            self.set_dead(*cause);
        }
        result?;
        let output = C::Out::load(output);
        match output.command_status() {
            CommandStatus::OK => Ok(output),
            status => {
                let syndrome = output.command_syndrome();
                Err(CommandError::Status { opcode, status, syndrome, object })
            }
        }
    }

    pub(crate) fn channel_mut(&mut self) -> &mut CommandChannel {
        self.channel.as_mut().expect("bring-up makes the channel before the first command")
    }

    /// Polls the event queue and answers what needs an answer.
    pub(crate) fn serve(&mut self) {
        self.collect_events();
        // What is asked for meanwhile waits for the next call: however much a device asks for, this
        // one ends.
        for request in std::mem::take(&mut self.requests) {
            if let Err(error) = self.answer(request) {
                tracing::error!(?request, %error, "page request not served");
            }
        }
    }

    /// Whether the firmware asked for something that was not answered yet.
    pub(crate) fn has_requests(&mut self) -> bool {
        self.collect_events();
        !self.requests.is_empty()
    }

    /// The oldest event not yet read.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.serve();
        self.events.read(&mut self.read)
    }

    /// Events that [`Control::next_event`] missed.
    pub(crate) fn lost_events(&self) -> u64 {
        self.events.lost(&self.read)
    }

    fn collect_events(&mut self) {
        let Some(eq) = self.eq.as_mut() else { return };
        // One lap at most: a device may write events as fast as they are read.
        for _ in 0..eq.entries() {
            if self.requests.len() == MAX_REQUESTS {
                return;
            }
            let Some(polled) = eq.poll() else { return };
            match polled {
                Polled::Pages(request) => self.requests.push_back(request),
                Polled::Event(event) => {
                    tracing::debug!(?event, "event");
                    self.events.push(event);
                }
            }
        }
    }

    fn answer(&mut self, request: PageRequest) -> Result<(), CommandError> {
        tracing::debug!(?request, "page request");
        if request.release_all {
            self.pages.take_back_from(request.function_id);
            return Ok(());
        }
        let count = request.num_pages.unsigned_abs() as usize;
        if request.num_pages > 0 {
            self.give_pages(request.function_id, count)
        } else {
            let lent = self.pages.lent_to(request.function_id);
            self.take_pages(request.function_id, count.min(lent)).map(|_| ())
        }
    }

    /// Lends `count` pages to the firmware; tells it if there is no memory, or if it may not have
    /// so many.
    ///
    /// Zero pages are given too, with an empty list, as Linux does (reference 2.5).
    pub(crate) fn give_pages(
        &mut self,
        function: u16,
        mut count: usize,
    ) -> Result<(), CommandError> {
        let (lent, max) = (self.pages.lent(), self.max_pages);
        if count > (max as usize).saturating_sub(lent) {
            self.manage(manage_pages::CANNOT_GIVE, function, 0, &[], &mut [])?;
            let opcode = ManagePages::OPCODE;
            return Err(CommandError::TooManyPages { opcode, count, lent, max });
        }
        loop {
            let part = count.min(GIVE_AT_ONCE);
            self.give_some(function, part)?;
            count -= part;
            if count == 0 {
                return Ok(());
            }
        }
    }

    fn give_some(&mut self, function: u16, count: usize) -> Result<(), CommandError> {
        let memory = Arc::clone(&self.memory);
        let pages = match self.pages.lend(&memory, function, count) {
            Ok(pages) => pages,
            Err(source) => {
                tracing::error!(count, %source, "no memory for the firmware");
                self.manage(manage_pages::CANNOT_GIVE, function, 0, &[], &mut [])?;
                return Err(CommandError::Memory { opcode: ManagePages::OPCODE, source });
            }
        };
        let tail: Vec<u8> = pages.iter().flat_map(|page| page.to_be_bytes()).collect();
        let result = self.manage(manage_pages::GIVE, function, count, &tail, &mut []);
        if result.as_ref().is_err_and(|error| !error.device_may_own_memory()) {
            self.pages.take_back(&pages);
        }
        result.map(|_| ())
    }

    /// Asks the firmware for up to `count` pages; returns how many came back.
    fn take_pages(&mut self, function: u16, count: usize) -> Result<usize, CommandError> {
        let count = count.min(TAKE_AT_ONCE);
        let mut tail = vec![0; count * 8];
        let output = self.manage(manage_pages::TAKE, function, count, &[], &mut tail)?;
        let came = (output.output_num_entries() as usize).min(count);
        let pages: Vec<u64> = tail.chunks_exact(8).take(came).map(u64::load).collect();
        let unknown = self.pages.take_back(&pages);
        if unknown > 0 {
            tracing::error!(unknown, "the firmware gave back pages that it never had");
        }
        Ok(came - unknown)
    }

    /// Carries out MANAGE_PAGES about `count` pages of `function`, in the page slot.
    fn manage(
        &mut self,
        op_mod: u32,
        function: u16,
        count: usize,
        tail_in: &[u8],
        tail_out: &mut [u8],
    ) -> Result<ManagePagesOut, CommandError> {
        let input = ManagePages::input()
            .with_op_mod(op_mod)
            .with_function_id(u32::from(function))
            .with_input_num_entries(count as u32);
        let mut output = [0; ManagePagesOut::SIZE_BYTES];
        self.run::<ManagePages>(Lane::Pages, &input, tail_in, &mut output, tail_out)
    }

    /// Takes back every page, of every function, as long as the firmware makes progress.
    ///
    /// Returns how many it kept after `patience` without progress.
    pub(crate) fn reclaim_pages(&mut self, patience: Duration) -> Result<usize, CommandError> {
        let mut progress = self.transport.now();
        while self.pages.lent() > 0 {
            let mut came = 0;
            for (function, lent) in self.pages.holders() {
                came += self.take_pages(function, lent)?;
            }
            if came > 0 {
                progress = self.transport.now();
            } else if self.transport.now() - progress >= patience {
                break;
            } else {
                self.transport.relax();
            }
        }
        Ok(self.pages.lent())
    }

    /// Lets go of all memory: the device owns none of it any more.
    pub(crate) fn release_memory(&mut self) {
        self.pages.take_all_back();
        if let Some(channel) = &mut self.channel {
            channel.forget_stuck();
        }
        self.estate.clear();
    }

    /// Keeps what the device may still own allocated for ever.
    pub(crate) fn leak_memory(&mut self) {
        self.pages.leak();
        for buf in self.estate.drain(..) {
            tracing::error!(iova = format_args!("{:#x}", buf.iova()), "queue memory leaked");
            std::mem::forget(buf);
        }
        if let Some(channel) = self.channel.take() {
            channel.leak();
        }
    }
}
