//! The control plane behind one lock: commands, events, and the firmware's pages.
//!
//! A command may wait for the device while the device waits for memory, so the wait loop of
//! every command polls the event queue and serves page requests in the page slot.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrocx_bus::{Bar, Transport};
use ferrocx_prm::Layout;
use ferrocx_prm::cmd::device::{ManagePages, ManagePagesOut, manage_pages};
use ferrocx_prm::cmd::{Command, CommandOutput};
use ferrocx_prm::syndrome::CommandStatus;

use crate::cmd::{CommandChannel, CommandError, DeadDevice, Lane, Object, Waiter};
use crate::eq::{EqRing, Event, PageRequest, Polled};
use crate::kept::{KeptEvents, Place};
use crate::memory::Memory;
use crate::pages::PageSupply;

/// Pages in one MANAGE_PAGES(give).
const GIVE_AT_ONCE: usize = 4096;
/// Pages in one MANAGE_PAGES(take). Source: reference 2.5 (Linux: 768).
const TAKE_AT_ONCE: usize = 512;

/// Everything that needs the command channel.
#[derive(Debug)]
pub(crate) struct Control {
    transport: Arc<dyn Transport>,
    bar: Arc<dyn Bar>,
    memory: Arc<Memory>,
    channel: Option<CommandChannel>,
    pages: PageSupply,
    eq: Option<EqRing>,
    requests: VecDeque<PageRequest>,
    events: KeptEvents,
    /// How far [`crate::Device::poll_event`] has read.
    read: Place,
    dead: Option<DeadDevice>,
    /// The device knows none of its objects any more, or cannot reach memory: it owns none.
    gone: Arc<AtomicBool>,
}

/// Waits for an ordinary command: serves page requests meanwhile.
struct Serving<'a>(&'a mut Control);

impl Waiter for Serving<'_> {
    fn channel(&mut self) -> &mut CommandChannel {
        self.0.channel_mut()
    }

    fn idle(&mut self) {
        self.0.serve();
        self.0.transport.relax();
    }
}

/// Waits for a command in the page slot: events are kept for later.
struct Collecting<'a>(&'a mut Control);

impl Waiter for Collecting<'_> {
    fn channel(&mut self) -> &mut CommandChannel {
        self.0.channel_mut()
    }

    fn idle(&mut self) {
        self.0.collect_events();
        self.0.transport.relax();
    }
}

impl Control {
    pub(crate) fn new(transport: Arc<dyn Transport>, memory: Arc<Memory>) -> Self {
        let bar = transport.bar();
        Self {
            transport,
            bar,
            memory,
            channel: None,
            pages: PageSupply::default(),
            eq: None,
            requests: VecDeque::new(),
            events: KeptEvents::default(),
            read: Place::default(),
            dead: None,
            gone: Arc::default(),
        }
    }

    pub(crate) fn bar(&self) -> &Arc<dyn Bar> {
        &self.bar
    }

    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn set_channel(&mut self, channel: CommandChannel) {
        self.channel = Some(channel);
    }

    pub(crate) fn channel(&self) -> Option<&CommandChannel> {
        self.channel.as_ref()
    }

    pub(crate) fn set_eq(&mut self, eq: EqRing) {
        self.eq = Some(eq);
    }

    /// Stops polling the event queue, before it is destroyed.
    pub(crate) fn take_eq(&mut self) -> Option<EqRing> {
        self.eq.take()
    }

    /// How the device died, if it did.
    pub(crate) fn dead(&self) -> Option<DeadDevice> {
        self.dead
    }

    /// Notes how the device died, and sees to it that it owns no memory where that can be known.
    pub(crate) fn set_dead(&mut self, cause: DeadDevice) {
        if self.dead.is_some() {
            return;
        }
        self.dead = Some(cause);
        match cause {
            // A reset ended all that it did.
            DeadDevice::Restarting => self.set_gone(),
            // It may be broken on the side of the registers only, and cannot be asked to stop.
            DeadDevice::AllOnes | DeadDevice::BusError => match self.memory.dma().unmap_all() {
                Ok(()) => self.set_gone(),
                Err(error) => {
                    tracing::error!(%error, "the device may still reach memory, which is leaked");
                }
            },
            _ => {}
        }
    }

    /// The device owns no memory and none of its objects exists.
    pub(crate) fn set_gone(&mut self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Set when the device owns nothing any more.
    pub(crate) fn gone(&self) -> &Arc<AtomicBool> {
        &self.gone
    }

    /// Pages that the firmware has.
    pub(crate) fn lent_pages(&self) -> usize {
        self.pages.lent()
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
        let (opcode, head) = (C::OPCODE, input.as_bytes());
        let object = Object::of(opcode, head);
        let dead = |cause| CommandError::Dead { opcode, cause, object };
        if let Some(cause) = self.dead {
            return Err(dead(cause));
        }
        let memory = Arc::clone(&self.memory);
        let out_len = output.len() + tail_out.len();
        let pending = self.channel_mut().post(&memory, lane, head, tail_in, out_len)?;
        let waiter: &mut dyn Waiter = match lane {
            Lane::Ordinary => &mut Serving(self),
            Lane::Pages => &mut Collecting(self),
        };
        let result = CommandChannel::wait(waiter, pending, output, tail_out);
        if let Err(CommandError::Dead { cause, .. }) = &result {
            self.set_dead(*cause);
        }
        result?;
        let Some(output) = C::Out::read_from(output) else {
            unreachable!("the buffer has the output's size")
        };
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
        while let Some(request) = self.requests.pop_front() {
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

    /// The events that are kept.
    pub(crate) fn events(&self) -> &KeptEvents {
        &self.events
    }

    fn collect_events(&mut self) {
        let Some(eq) = self.eq.as_mut() else { return };
        while let Some(polled) = eq.poll() {
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
            self.pages.take_all_back();
            return Ok(());
        }
        let count = request.num_pages.unsigned_abs() as usize;
        if request.num_pages > 0 {
            self.give_pages(request.function_id, count)
        } else {
            self.take_pages(request.function_id, count.min(self.pages.lent())).map(|_| ())
        }
    }

    /// Lends `count` pages to the firmware; tells it if there is no memory.
    ///
    /// Zero pages are given too, with an empty list, as Linux does (reference 2.5).
    pub(crate) fn give_pages(&mut self, function: u16, count: usize) -> Result<(), CommandError> {
        let mut left = count;
        loop {
            let part = left.min(GIVE_AT_ONCE);
            self.give_some(function, part)?;
            left -= part;
            if left == 0 {
                return Ok(());
            }
        }
    }

    fn give_some(&mut self, function: u16, count: usize) -> Result<(), CommandError> {
        let memory = Arc::clone(&self.memory);
        let pages = match self.pages.lend(&memory, count) {
            Ok(pages) => pages,
            Err(source) => {
                tracing::error!(count, %source, "no memory for the firmware");
                let input = pages_input(manage_pages::CANNOT_GIVE, function, 0);
                self.manage(&input, &[], &mut [])?;
                return Err(CommandError::Memory { opcode: ManagePages::OPCODE, source });
            }
        };
        let tail: Vec<u8> = pages.iter().flat_map(|page| page.to_be_bytes()).collect();
        let input = pages_input(manage_pages::GIVE, function, pages.len() as u32);
        let result = self.manage(&input, &tail, &mut []);
        if result.as_ref().is_err_and(|error| !error.device_may_own_memory()) {
            self.pages.take_back(&pages);
        }
        result.map(|_| ())
    }

    /// Asks the firmware for up to `count` pages; returns how many came back.
    fn take_pages(&mut self, function: u16, count: usize) -> Result<usize, CommandError> {
        let count = count.min(TAKE_AT_ONCE);
        let mut tail = vec![0; count * 8];
        let input = pages_input(manage_pages::TAKE, function, count as u32);
        let output = self.manage(&input, &[], &mut tail)?;
        let came = (output.output_num_entries() as usize).min(count);
        let pages: Vec<u64> = tail
            .chunks_exact(8)
            .take(came)
            .map(|bytes| u64::from_be_bytes(bytes.try_into().expect("eight bytes")))
            .collect();
        let unknown = self.pages.take_back(&pages);
        if unknown > 0 {
            tracing::error!(unknown, "the firmware gave back pages that it never had");
        }
        Ok(came - unknown)
    }

    fn manage(
        &mut self,
        input: &ferrocx_prm::cmd::device::ManagePagesIn,
        tail_in: &[u8],
        tail_out: &mut [u8],
    ) -> Result<ManagePagesOut, CommandError> {
        let mut output = [0; ManagePagesOut::SIZE_BYTES];
        self.run::<ManagePages>(Lane::Pages, input, tail_in, &mut output, tail_out)
    }

    /// Takes back every page, as long as the firmware makes progress.
    ///
    /// Returns how many it kept after `patience` without progress.
    pub(crate) fn reclaim_pages(&mut self, patience: Duration) -> Result<usize, CommandError> {
        let mut progress = Instant::now();
        while self.pages.lent() > 0 {
            if self.take_pages(0, self.pages.lent())? > 0 {
                progress = Instant::now();
            } else if progress.elapsed() >= patience {
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
    }

    /// Keeps what the device may still own allocated for ever.
    pub(crate) fn leak_memory(&mut self) {
        self.pages.leak();
        if let Some(channel) = self.channel.take() {
            channel.leak();
        }
    }
}

/// Builds the fixed part of MANAGE_PAGES.
fn pages_input(
    op_mod: u32,
    function: u16,
    entries: u32,
) -> ferrocx_prm::cmd::device::ManagePagesIn {
    ManagePages::input()
        .with_op_mod(op_mod)
        .with_function_id(u32::from(function))
        .with_input_num_entries(entries)
}
