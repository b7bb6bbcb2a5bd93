//! Commands of the initiators: drawn, given, and looked at when they are answered.

use ferrocx_nvmf_target::host::{HostError, HostQueue, IN_CAPSULE_BYTES, keyed};
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Cqe, Sqe, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_verbs_lite::{Access, VerbsError};

use super::{AUDIT_BLOCKS, BLOCKS, Storage};
use crate::blocks::{BLOCK, Version};
use crate::planted::Bug;
use crate::stage::{Stage, Violation, ensure};

/// Bytes in front of and behind a command's data that nobody may touch, and what they hold: a
/// page, since a key of its own begins with one.
const GUARD: usize = 4096;
const GUARD_BYTE: u8 = 0xa5;

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Zeroes,
    /// Of bytes that are what is there, or not.
    Compare(bool),
    Flush,
    Verify,
}

impl Kind {
    fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Zeroes)
    }
}

/// A command under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Op {
    kind: Kind,
    at: usize,
    count: usize,
    version: Version,
    slot: usize,
    /// Of the target: what it kept is gone with it.
    pub(super) life: u64,
    is_audit: bool,
}

impl Storage {
    /// Bytes of a command's memory.
    fn slot_bytes(&self) -> usize {
        2 * GUARD + self.plan.most_blocks.max(AUDIT_BLOCKS) * BLOCK
    }

    /// Draws a command that none is in the way of. `None` if there is none to give.
    fn draw(&mut self) -> Option<Op> {
        let (life, is_audit) = (self.life, self.begun >= self.plan.operations);
        if is_audit {
            // Only what is at rest is looked at.
            if self.done < self.plan.operations {
                return None;
            }
            let at = self.to_audit.pop()?;
            self.blocks.take(at, AUDIT_BLOCKS, false);
            let (kind, count) = (Kind::Read, AUDIT_BLOCKS);
            return Some(Op { kind, at, count, version: 0, slot: 0, life, is_audit });
        }
        let count = 1 + self.random.below(self.plan.most_blocks as u64) as usize;
        let at = self.random.below((BLOCKS - count) as u64 + 1) as usize;
        let kind = match self.random.below(20) {
            0..8 => Kind::Read,
            8..15 => Kind::Write,
            15 => Kind::Zeroes,
            16 => Kind::Compare(true),
            17 => Kind::Compare(false),
            18 => Kind::Flush,
            _ => Kind::Verify,
        };
        let kind = match kind {
            Kind::Compare(_) if self.blocks.known(at, count).is_none() => Kind::Read,
            kind => kind,
        };
        if kind != Kind::Flush && !self.blocks.take(at, count, kind.writes()) {
            return None;
        }
        let version = if kind == Kind::Write { self.blocks.next_version() } else { 0 };
        Some(Op { kind, at, count, version, slot: 0, life, is_audit })
    }

    /// Gives one command; `false` if there is none.
    pub(super) fn give(
        &mut self,
        at: usize,
        io: &mut HostQueue,
        stage: &mut Stage,
    ) -> Result<bool, HostError> {
        let slot_bytes = self.slot_bytes();
        if self.initiators[at].data.is_none() {
            let host = &mut stage.hosts[self.initiators[at].host];
            let Some(memory) = host.plain_memory(slot_bytes * usize::from(self.plan.depth)) else {
                return Ok(false);
            };
            let memory = memory?;
            let Some(up) = &host.up else { return Ok(false) };
            let access = Access::LOCAL_WRITE | Access::REMOTE;
            let mr = up.pd.reg_mr(&memory, 0..memory.len_bytes(), access)?;
            self.initiators[at].data = Some((memory, mr));
        }
        let Some(mut op) = self.draw() else { return Ok(false) };
        let Some((memory, mr)) = self.initiators[at].data.clone() else { return Ok(false) };
        op.slot = self.initiators[at].slots.pop().unwrap_or(0);
        let start = op.slot * slot_bytes;
        let bytes = self.data_of(&op);
        let mut whole = mr.buf(start..start + slot_bytes)?;
        let filled = [vec![GUARD_BYTE; GUARD], bytes.clone()].concat();
        let rest = vec![GUARD_BYTE; slot_bytes - filled.len()];
        whole.copy_in(0, &[filled, rest].concat()).map_err(VerbsError::from)?;
        let opcode = match op.kind {
            Kind::Read => io::READ,
            Kind::Write => io::WRITE,
            Kind::Zeroes => io::WRITE_ZEROES,
            Kind::Compare(_) => io::COMPARE,
            Kind::Flush => io::FLUSH,
            Kind::Verify => io::VERIFY,
        };
        let place = (op.at as u64, op.count as u32);
        let sqe = |sgl| Sqe::blocks(opcode, 0, 1, place, sgl);
        let range = start + GUARD..start + GUARD + op.count * BLOCK;
        let given = match op.kind {
            Kind::Flush => io.submit(Sqe { nsid: 1.into(), ..Sqe::new(opcode, 0, Sgl::NONE) }),
            Kind::Zeroes | Kind::Verify => io.submit(sqe(Sgl::NONE)),
            // In the capsule, by a key of the command's own, or by one of all the memory.
            Kind::Write if bytes.len() <= IN_CAPSULE_BYTES && self.random.chance(300_000) => {
                let sgl = Sgl::InCapsule { offset: 0, len: bytes.len() as u32 };
                io.submit_with(sqe(sgl), &bytes)
            }
            _ if self.random.chance(500_000) && op.count <= self.plan.most_blocks => {
                io.submit_lent(sqe(Sgl::NONE), &memory, range)
            }
            _ => io.submit(sqe(keyed(&mr.buf(range)?))),
        };
        // Whether it left or not: nobody answers it when the queue has ended.
        self.begun += u64::from(!op.is_audit);
        match given {
            Ok(Some(cid)) => {
                self.initiators[at].ops[usize::from(cid)] = Some(op);
                Ok(true)
            }
            Ok(None) => Err(HostError::Ended("a queue with room is full".into())),
            Err(error) => {
                self.unknown(at, &op);
                Err(error)
            }
        }
    }

    /// What a command's memory holds when it begins.
    fn data_of(&self, op: &Op) -> Vec<u8> {
        let mut bytes = vec![GUARD_BYTE; op.count * BLOCK];
        let versions = match op.kind {
            Kind::Write => vec![op.version; op.count],
            Kind::Compare(_) => self.blocks.known(op.at, op.count).unwrap_or_default(),
            _ => return bytes,
        };
        for ((block, version), bytes) in (op.at..).zip(versions).zip(bytes.chunks_mut(BLOCK)) {
            self.blocks.fill(block, version, bytes);
        }
        if op.kind == Kind::Compare(false)
            && let Some(last) = bytes.last_mut()
        {
            *last = !*last;
        }
        bytes
    }

    /// Looks at an answer, and at the memory of its command.
    pub(super) fn answered(
        &mut self,
        at: usize,
        cqe: &Cqe,
        stage: &mut Stage,
    ) -> Result<(), Violation> {
        let slot_bytes = self.slot_bytes();
        let cid = usize::from(cqe.cid.get());
        let op = self.initiators[at].ops.get_mut(cid).and_then(Option::take);
        let Some(op) = op else {
            return Err(Violation(format!("an answer to {cid}, which is not under way")));
        };
        let status = cqe.status();
        let start = op.slot * slot_bytes;
        let memory = match &self.initiators[at].data {
            Some((_, mr)) => mr.buf(start..start + slot_bytes).map(|buf| buf.to_vec()),
            None => return Err(Violation("an answer without memory".into())),
        };
        let memory = memory.map_err(|error| Violation(error.to_string()))?;
        let end = GUARD + op.count * BLOCK;
        let is_whole = memory[..GUARD].iter().chain(&memory[end..]).all(|it| *it == GUARD_BYTE);
        ensure(is_whole, || format!("{:?}: memory beside its data was written", op.kind))?;
        // Of a target that is no more: what it kept is gone, and may have been anything.
        if op.life != self.life {
            self.begun -= u64::from(!op.is_audit);
            self.let_go(at, &op);
            return Ok(());
        }
        let wanted = match op.kind {
            Kind::Compare(false) => Status::COMPARE_FAILURE,
            _ => Status::SUCCESS,
        };
        ensure(status.code() == wanted, || {
            format!("{:?} of {} blocks at {}: {status}", op.kind, op.count, op.at)
        })?;
        let data = &memory[GUARD..end];
        if op.kind == Kind::Read {
            self.blocks.read(op.at, data)?;
        } else {
            ensure(data == self.data_of(&op), || format!("{:?}: its data changed", op.kind))?;
        }
        if op.kind.writes() {
            self.blocks.wrote(op.at, op.count, op.version);
        }
        if op.kind == Kind::Write
            && stage.planted.is(Bug::ForgottenWrite)
            && stage.random.chance(50_000)
            && let Some(served) = &self.served
        {
            let mut buf = served.ram.buf(op.at * BLOCK..(op.at + 1) * BLOCK);
            let _ = buf.as_mut().map(|buf| buf.copy_in(0, &[0; BLOCK]));
        }
        stage.counts.storage += 1;
        if op.is_audit {
            self.audited += 1
        } else {
            self.done += 1
        }
        self.blocks_back(&op);
        self.initiators[at].slots.push(op.slot);
        Ok(())
    }

    fn blocks_back(&mut self, op: &Op) {
        if op.kind != Kind::Flush {
            self.blocks.give_back(op.at, op.count, op.kind.writes());
        }
    }

    /// A command of a target that is no more: it is given again.
    fn let_go(&mut self, at: usize, op: &Op) {
        if op.is_audit {
            self.to_audit.push(op.at);
        }
        self.initiators[at].slots.push(op.slot);
    }

    /// Nobody will say how a command ended.
    pub(super) fn unknown(&mut self, at: usize, op: &Op) {
        self.begun -= u64::from(!op.is_audit);
        if op.life == self.life {
            if op.kind.writes() {
                self.blocks.may_have_written(op.at, op.count, op.version);
            }
            self.blocks_back(op);
        }
        self.let_go(at, op);
    }
}
