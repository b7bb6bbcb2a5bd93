//! The command queue: which entries were rung, fetched, held back and completed.

use arrayvec::ArrayVec;
use ferrocx_prm::Layout;
use ferrocx_prm::cmd::{InputHeader, Opcode, OutputHeader};
use ferrocx_prm::eqe::{EventCommand, EventType};
use ferrocx_prm::syndrome::{CommandStatus, HealthSyndrome};

use super::deliver::{Delivered, Fetch};
use super::dispatch;
use super::handler::Exec;
use crate::datapath::DataPath;
use crate::device::fault::CommandFault;
use crate::device::log::Refusal;
use crate::device::refused::Refused;
use crate::device::state::Ctx;

/// Log2 of the number of entries: 32, so that rdma-core's slot 31 exists. Source: reference 1.1.
pub(crate) const LOG_SIZE: u32 = 5;
/// Log2 of the bytes of an entry. Source: reference 1.1.
pub(crate) const LOG_STRIDE: u32 = 6;

/// The queue of commands, in host memory.
#[derive(Debug, Default)]
pub(crate) struct CommandQueue {
    /// Address of the queue, once both halves were written.
    pub(crate) address: Option<u64>,
    /// Entries that were rung and not started yet, in that order: a step does so much and no more.
    rung: ArrayVec<u32, { 1 << LOG_SIZE }>,
    /// Entries that the fault plan holds back, and until when.
    held: Vec<(u32, u64)>,
    /// Commands fetched so far: the fault plan counts by it.
    fetched: u64,
}

impl CommandQueue {
    /// Forgets everything: a reset.
    pub(crate) fn reset(&mut self) {
        *self = Self { fetched: self.fetched, ..Self::default() };
    }

    /// The command doorbell was rung: starts every entry named in `vector`, now or, when this step
    /// has done enough, in a later one.
    pub(crate) fn doorbell(&mut self, ctx: &mut Ctx<'_>, datapath: &mut DataPath, vector: u32) {
        if self.address.is_none() {
            ctx.refuse_data("command_doorbell_vector", vector.into(), "no command queue was set");
            return;
        }
        for slot in (0..1 << LOG_SIZE).filter(|slot| vector >> slot & 1 != 0) {
            if !self.rung.contains(&slot) {
                self.rung.push(slot);
            }
        }
        self.start_rung(ctx, datapath);
    }

    /// Starts what was rung, until this step has done enough.
    fn start_rung(&mut self, ctx: &mut Ctx<'_>, datapath: &mut DataPath) {
        while !self.rung.is_empty() && !ctx.is_turn_over() {
            let slot = self.rung.remove(0);
            self.start(ctx, datapath, slot);
        }
    }

    /// Fetches one entry and runs it, unless the fault plan says otherwise.
    fn start(&mut self, ctx: &mut Ctx<'_>, datapath: &mut DataPath, slot: u32) {
        self.fetched += 1;
        ctx.state.counters.commands += 1;
        match ctx.state.faults.command(self.fetched) {
            Some(CommandFault::Stuck) => {
                ctx.refuse_data("command slot", slot.into(), "held for ever by the fault plan");
            }
            Some(CommandFault::DelayNs(delay)) => {
                self.held.push((slot, ctx.now_ns.saturating_add(delay)));
            }
            Some(CommandFault::Status(status)) => self.run(ctx, datapath, slot, Some(status)),
            None => self.run(ctx, datapath, slot, None),
        }
    }

    /// Runs the commands that an earlier step left, and those whose delay has passed. Returns
    /// whether there were any.
    pub(crate) fn poll(&mut self, ctx: &mut Ctx<'_>, datapath: &mut DataPath) -> bool {
        let was_rung = !self.rung.is_empty();
        self.start_rung(ctx, datapath);
        if self.held.is_empty() {
            return was_rung;
        }
        let now = ctx.now_ns;
        let (due, held) = std::mem::take(&mut self.held)
            .into_iter()
            .partition::<Vec<_>, _>(|(_, until)| *until <= now);
        self.held = held;
        for (slot, _) in &due {
            self.run(ctx, datapath, *slot, None);
        }
        was_rung || !due.is_empty()
    }

    /// Fetches, executes and completes one command.
    fn run(
        &self,
        ctx: &mut Ctx<'_>,
        datapath: &mut DataPath,
        slot: u32,
        fail: Option<CommandStatus>,
    ) {
        // An EQ that this very command creates does not report it: the driver polls for it.
        let report = ctx.state.objects.eqs.iter().any(|(_, eq)| eq.wants(EventType::COMMAND));
        let address = self.address.unwrap_or(0) + (u64::from(slot) << LOG_STRIDE);
        let delivered = match Delivered::fetch(ctx, address) {
            Ok(delivered) => delivered,
            Err(Fetch::NotOurs) => return,
            Err(Fetch::Unreachable) => {
                ctx.refuse_data("cmdq_phy_addr", address, "the command queue cannot be read");
                ctx.health(HealthSyndrome::ICM_FETCH_PCI_ERR);
                return;
            }
            Err(Fetch::Bad(bad)) => {
                bad.complete(ctx);
                completed(ctx, slot, report);
                return;
            }
        };
        let output = execute(ctx, datapath, &delivered, fail);
        delivered.complete(ctx, &output);
        completed(ctx, slot, report);
    }
}

/// Raises the command completion event. Source: reference 2.4.
fn completed(ctx: &mut Ctx<'_>, slot: u32, report: bool) {
    if report {
        let data = EventCommand::zeroed().with_vector(1 << slot);
        ctx.raise_event(EventType::COMMAND, 0, data.0);
    }
}

/// Executes one command; the output starts with its status.
fn execute(
    ctx: &mut Ctx<'_>,
    datapath: &mut DataPath,
    delivered: &Delivered,
    fail: Option<CommandStatus>,
) -> Vec<u8> {
    let header = InputHeader::read_from(&delivered.input).unwrap_or_default();
    #[expect(clippy::cast_possible_truncation, reason = "a field of 16 bits")]
    let opcode = Opcode(header.opcode() as u16);
    let answer = match fail {
        Some(status) => Err(Refused::new(status, "fault plan", 0_u64, "the plan says so")),
        None => {
            let output_len = delivered.output_len();
            let mut exec = Exec { ctx, datapath, output_len, run: dispatch::run };
            dispatch::dispatch(&mut exec, opcode, &header, &delivered.input)
        }
    };
    tracing::trace!(%opcode, input = delivered.input.len(), ok = answer.is_ok(), "command");
    match answer {
        Ok(output) => output,
        Err(refused) => {
            let Refused { status, field, value, why } = refused;
            ctx.state.log.push(Refusal { command: Some(opcode), field, value, why });
            let syndrome = refusal_syndrome(opcode, field);
            let header = OutputHeader::zeroed().with_status(status.0.into());
            let mut output = header.with_syndrome(syndrome).0.to_vec();
            output.resize(0x10, 0);
            output
        }
    }
}

/// A diagnostic code: the same refusal always has the same one, and it is never 0.
fn refusal_syndrome(opcode: Opcode, field: &str) -> u32 {
    let hash = crc32fast::hash(field.as_bytes());
    (u32::from(opcode.0) << 16 | (hash & 0xffff)) | 1
}
