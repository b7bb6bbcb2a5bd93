//! The command interface: queue entries, mailbox chains, delivery, completion.
//!
//! A command is fetched, executed and completed when its doorbell bit is seen, so slots complete in
//! the order in which they were rung, and MANAGE_PAGES in one slot never waits for another, unless
//! the fault plan holds a command back.
//!
//! Source: reference 2.1 to 2.4.

mod basic;
mod congestion;
mod deliver;
mod device;
mod dispatch;
mod flow;
mod flow_counter;
mod fte;
mod qp;
mod queues;
mod registers;
mod roce;
mod transport;
mod vport;
mod work_queues;

pub(crate) use deliver::Delivered;

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::{InputHeader, Opcode, OutputHeader};
use ferrocx_prm::eqe::{EventCommand, EventType};
use ferrocx_prm::syndrome::{CommandStatus, HealthSyndrome};

use crate::datapath::DataPath;
use crate::fault::CommandFault;
use crate::log::Refusal;
use crate::nic::Ctx;

/// Log2 of the number of entries: 32, so that rdma-core's slot 31 exists. Source: reference 1.1.
pub(crate) const LOG_SIZE: u32 = 5;
/// Log2 of the bytes of an entry. Source: reference 1.1.
pub(crate) const LOG_STRIDE: u32 = 6;

/// Why a command was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: CommandStatus,
    pub(crate) field: &'static str,
    pub(crate) value: u64,
    pub(crate) why: &'static str,
}

impl Refused {
    pub(crate) fn new(
        status: CommandStatus,
        field: &'static str,
        value: impl Into<u64>,
        why: &'static str,
    ) -> Self {
        Self { status, field, value: value.into(), why }
    }

    /// BAD_PARAM: out of range, or reserved.
    pub(crate) fn param(field: &'static str, value: impl Into<u64>, why: &'static str) -> Self {
        Self::new(CommandStatus::BAD_PARAM, field, value, why)
    }

    /// BAD_RESOURCE: no object has this number.
    pub(crate) fn resource(field: &'static str, value: impl Into<u64>) -> Self {
        Self::new(CommandStatus::BAD_RESOURCE, field, value, "no object has this number")
    }

    /// RESOURCE_BUSY: another object names this one.
    pub(crate) fn busy(field: &'static str, value: impl Into<u64>) -> Self {
        Self::new(CommandStatus::RESOURCE_BUSY, field, value, "another object uses it")
    }

    /// EXCEED_LIM: no room for another object.
    pub(crate) fn full(field: &'static str) -> Self {
        Self::new(CommandStatus::EXCEED_LIM, field, 0_u64, "no object number is left")
    }
}

/// Result of a command handler.
pub(crate) type Answer<T> = Result<T, Refused>;

/// Fails with `refused` unless `ok`.
pub(crate) fn ensure(ok: bool, refused: impl FnOnce() -> Refused) -> Answer<()> {
    if ok { Ok(()) } else { Err(refused()) }
}

/// The command queue's own state.
#[derive(Debug, Default)]
pub(crate) struct CommandQueue {
    /// High half of the address, as last written.
    pub(crate) address_hi: u32,
    /// Address of the queue, once both halves were written.
    pub(crate) address: Option<u64>,
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
}

/// What a command handler works with.
pub(crate) struct Exec<'a, 'b> {
    pub(crate) ctx: &'a mut Ctx<'b>,
    pub(crate) datapath: &'a mut DataPath,
    /// Bytes of output that the driver can take.
    pub(crate) output_len: usize,
}

/// The command doorbell was rung: starts every entry named in `vector`.
pub(crate) fn doorbell(ctx: &mut Ctx<'_>, datapath: &mut DataPath, vector: u32) {
    if ctx.state.commands.address.is_none() {
        ctx.refuse_data("command_doorbell_vector", vector.into(), "no command queue was set");
        return;
    }
    for slot in (0..1 << LOG_SIZE).filter(|slot| vector >> slot & 1 != 0) {
        start(ctx, datapath, slot);
    }
}

/// Fetches one entry and runs it, unless the fault plan says otherwise.
fn start(ctx: &mut Ctx<'_>, datapath: &mut DataPath, slot: u32) {
    ctx.state.commands.fetched += 1;
    ctx.state.counters.commands += 1;
    let number = ctx.state.commands.fetched;
    match ctx.state.faults.command(number) {
        Some(CommandFault::Stuck) => {
            ctx.refuse_data("command slot", slot.into(), "held for ever by the fault plan");
        }
        Some(CommandFault::DelayNs(delay)) => {
            let until = ctx.now_ns.saturating_add(delay);
            ctx.state.commands.held.push((slot, until));
        }
        Some(CommandFault::Status(status)) => run(ctx, datapath, slot, Some(status)),
        None => run(ctx, datapath, slot, None),
    }
}

/// Runs the commands whose delay has passed. Returns whether there were any.
pub(crate) fn poll(ctx: &mut Ctx<'_>, datapath: &mut DataPath) -> bool {
    if ctx.state.commands.held.is_empty() {
        return false;
    }
    let now = ctx.now_ns;
    let (due, held) = std::mem::take(&mut ctx.state.commands.held)
        .into_iter()
        .partition::<Vec<_>, _>(|(_, until)| *until <= now);
    ctx.state.commands.held = held;
    for (slot, _) in &due {
        run(ctx, datapath, *slot, None);
    }
    !due.is_empty()
}

/// Fetches, executes and completes one command.
fn run(ctx: &mut Ctx<'_>, datapath: &mut DataPath, slot: u32, fail: Option<CommandStatus>) {
    // An EQ that this very command creates does not report it: the driver polls for it.
    let report = ctx.state.objects.eqs.iter().any(|(_, eq)| eq.wants(EventType::COMMAND));
    let address = ctx.state.commands.address.unwrap_or(0) + (u64::from(slot) << LOG_STRIDE);
    let delivered = match Delivered::fetch(ctx, address) {
        Ok(delivered) => delivered,
        Err(deliver::Fetch::NotOurs) => return,
        Err(deliver::Fetch::Unreachable) => {
            ctx.refuse_data("cmdq_phy_addr", address, "the command queue cannot be read");
            ctx.health(HealthSyndrome::ICM_FETCH_PCI_ERR);
            return;
        }
        Err(deliver::Fetch::Bad(bad)) => {
            bad.complete(ctx);
            completed(ctx, slot, report);
            return;
        }
    };
    let output = execute(ctx, datapath, &delivered, fail);
    delivered.complete(ctx, &output);
    completed(ctx, slot, report);
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
            let mut exec = Exec { ctx, datapath, output_len: delivered.output_len() };
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
