//! Commands of I/O queues, checked: [`IoCommand`].

use super::subsystem::Offer;
use super::{Namespace, Queue, Role, Subsystem};
use crate::proto::identify;
use crate::proto::sgl::{Keyed, List, Sgl, in_capsule};
use crate::proto::sqe::{Sqe, io};
use crate::proto::status::Status;

/// Bytes of a range of Dataset Management.
pub const DSM_RANGE_BYTES: usize = 16;
/// Attribute of Dataset Management: the ranges may be deallocated.
const DEALLOCATE: u32 = 1 << 2;

/// Where the data of an I/O command are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// There are none.
    None,
    /// In the host's memory.
    Host(Keyed),
    /// In several places of the host's memory, which a list in the capsule names.
    List(List),
    /// In the capsule.
    Capsule {
        /// Where they begin, counted from behind the command.
        start: usize,
        /// Bytes.
        len: usize,
    },
}

/// What an I/O command asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of the namespace go to the host.
    Read,
    /// Bytes of the host go to the namespace.
    Write,
    /// Bytes of the host are compared with those of the namespace.
    Compare,
    /// What was written is to be on the medium.
    Flush,
    /// Bytes become zeros; they may be deallocated.
    Zero {
        /// Whether they may be deallocated.
        may_deallocate: bool,
        /// Whether they are to be written, since the store has no call for them.
        is_written: bool,
    },
    /// So many ranges need not be kept: each comes in the data.
    Deallocate {
        /// Ranges in the data, 1 to 256.
        ranges: u16,
    },
    /// Bytes are read, and go nowhere.
    Verify,
    /// Nothing is to be done.
    Nothing,
}

/// An I/O command, checked: whatever it names is inside the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoCommand {
    /// What it asks for.
    pub kind: Kind,
    /// Place of the back end.
    pub backend: usize,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Whether a write shall be on the medium before it ends.
    pub fua: bool,
    /// Where its data are.
    pub data: Data,
}

/// The namespace that a Read or a Write of a queue reached, so that the next one need not look for
/// it, and what a reservation says of both. It holds for one version of what is offered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// The versions by which the queue's host may read and write.
    read: u64,
    write: u64,
    nsid: u32,
    namespace: Namespace,
}

impl Found {
    /// Nothing was found yet.
    pub(crate) fn nothing() -> Self {
        let shape = identify::Namespace {
            blocks: 0,
            block_shift: 0,
            uuid: [0; 16],
            is_read_only: true,
            deallocates: false,
        };
        let namespace = Namespace { nsid: 0, shape, backend: usize::MAX, ana_group: 0 };
        Self { read: NO_VERSION, write: NO_VERSION, nsid: 0, namespace }
    }

    /// Place of the back end.
    #[inline(always)]
    pub(crate) fn backend(&self) -> usize {
        self.namespace.backend
    }
}

/// No offer has this version.
const NO_VERSION: u64 = u64::MAX;

impl Offer {
    /// Checks a command of an I/O queue; `received` bytes came behind it.
    ///
    /// # Errors
    ///
    /// The status to answer with.
    pub fn io(&self, queue: &Queue, sqe: &Sqe, received: usize) -> Result<IoCommand, Status> {
        let namespace = self.reachable(queue, sqe)?;
        match sqe.opcode {
            io::READ => self.transfer(namespace, sqe, Kind::Read, received),
            io::WRITE => self.transfer(namespace, sqe, Kind::Write, received),
            _ => self.other(namespace, sqe, received),
        }
    }

    /// The namespace of an I/O command, if the queue's host may carry it out now.
    #[inline(always)]
    pub(crate) fn reachable(&self, queue: &Queue, sqe: &Sqe) -> Result<&Namespace, Status> {
        check_queue(queue, sqe)?;
        let subsystem = self.subsystem(queue.subsystem);
        let nsid = sqe.nsid.get();
        let found = subsystem.and_then(|subsystem| Some((subsystem, subsystem.namespace(nsid)?)));
        let Some((subsystem, namespace)) = found else {
            // Nor is there a Flush for all of them.
            return Err(Status::INVALID_NAMESPACE.dnr());
        };
        self.ana.check(queue.local.port(), namespace.ana_group)?;
        subsystem.check_reservation(nsid, queue, sqe.opcode)?;
        Ok(namespace)
    }

    /// The bytes of a namespace that a Read or a Write names, if the queue's host may carry it out
    /// now: at most the largest transfer. `found` is what the queue's last such command found, and
    /// becomes what this one did.
    #[inline(always)]
    pub(crate) fn bytes(
        &self,
        queue: &Queue,
        sqe: &Sqe,
        kind: Kind,
        found: &mut Found,
    ) -> Result<(u64, u64), Status> {
        check_queue(queue, sqe)?;
        let version = if kind == Kind::Write { found.write } else { found.read };
        if version != self.version || found.nsid != sqe.nsid.get() {
            self.find(queue, sqe, found)?;
        }
        let range = self.limited(&found.namespace, sqe)?;
        if kind == Kind::Write {
            check_writable(&found.namespace)?;
        }
        Ok(range)
    }

    /// Looks for the namespace of an I/O command.
    #[inline(never)]
    fn find(&self, queue: &Queue, sqe: &Sqe, found: &mut Found) -> Result<(), Status> {
        let namespace = *self.reachable(queue, sqe)?;
        let (subsystem, nsid) = (self.subsystem(queue.subsystem), sqe.nsid.get());
        let by = |opcode| {
            let lets = |it: &Subsystem| it.check_reservation(nsid, queue, opcode).is_ok();
            if subsystem.is_some_and(lets) { self.version } else { NO_VERSION }
        };
        *found = Found { read: by(io::READ), write: by(io::WRITE), nsid, namespace };
        Ok(())
    }

    /// A command that is neither Read nor Write.
    #[inline(never)]
    pub(crate) fn other(
        &self,
        namespace: &Namespace,
        sqe: &Sqe,
        received: usize,
    ) -> Result<IoCommand, Status> {
        match sqe.opcode {
            io::COMPARE => self.transfer(namespace, sqe, Kind::Compare, received),
            io::FLUSH => Ok(flush(namespace)),
            io::WRITE_ZEROES => {
                let (offset, len) = self.limited(namespace, sqe)?;
                check_writable(namespace)?;
                let may_deallocate = sqe.cdw12.get() & 1 << 25 != 0;
                let kind = Kind::Zero { may_deallocate, is_written: false };
                let (backend, fua) = (namespace.backend, sqe.fua());
                Ok(IoCommand { kind, backend, offset, len, fua, ..NOTHING })
            }
            io::VERIFY => {
                let (offset, len) = self.limited(namespace, sqe)?;
                let backend = namespace.backend;
                Ok(IoCommand { kind: Kind::Verify, backend, offset, len, ..NOTHING })
            }
            io::DSM => deallocate(namespace, sqe, received),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    /// The bytes that a command names: no more than the largest transfer.
    #[inline(always)]
    fn limited(&self, namespace: &Namespace, sqe: &Sqe) -> Result<(u64, u64), Status> {
        let (slba, count) = (sqe.slba(), u64::from(sqe.block_count()));
        let (offset, len) = blocks(namespace, slba, count)?;
        let most = u64::from(self.max_transfer);
        if len > most { Err(Status::INVALID_FIELD.dnr()) } else { Ok((offset, len)) }
    }

    /// A command that moves data.
    #[inline(always)]
    pub(crate) fn transfer(
        &self,
        namespace: &Namespace,
        sqe: &Sqe,
        kind: Kind,
        received: usize,
    ) -> Result<IoCommand, Status> {
        let (offset, len) = self.limited(namespace, sqe)?;
        let data = data(sqe, kind, len, received)?;
        if kind == Kind::Write {
            check_writable(namespace)?;
        }
        Ok(IoCommand { kind, backend: namespace.backend, offset, len, fua: sqe.fua(), data })
    }

    /// A range of Dataset Management in bytes of the namespace; `bytes` are its 16.
    ///
    /// # Errors
    ///
    /// [`Status::LBA_RANGE`], or a namespace that has gone meanwhile.
    pub fn dsm_range(
        &self,
        queue: &Queue,
        sqe: &Sqe,
        bytes: &[u8; DSM_RANGE_BYTES],
    ) -> Result<(u64, u64), Status> {
        let subsystem = self.subsystem(queue.subsystem);
        let namespace = subsystem.and_then(|it| it.namespace(sqe.nsid.get()));
        let namespace = namespace.ok_or(Status::INVALID_NAMESPACE.dnr())?;
        let [_, _, _, _, a, b, c, d, rest @ ..] = bytes;
        let count = u32::from_le_bytes([*a, *b, *c, *d]);
        blocks(namespace, u64::from_le_bytes(*rest), u64::from(count))
    }
}

/// Whether a queue takes I/O commands, and the command is of a form that is taken.
#[inline(always)]
fn check_queue(queue: &Queue, sqe: &Sqe) -> Result<(), Status> {
    if !matches!(queue.role, Role::Io(_)) || !queue.is_ready() {
        return Err(queue.refusal());
    }
    sqe.check_flags()
}

/// Where the data of a command are that moves `len` bytes; `received` bytes came behind it.
#[inline(always)]
pub(crate) fn data(sqe: &Sqe, kind: Kind, len: u64, received: usize) -> Result<Data, Status> {
    match Keyed::parse(&sqe.sgl) {
        Some(keyed) if u64::from(keyed.len) == len => Ok(Data::Host(keyed)),
        Some(_) => Err(Status::DATA_LENGTH.dnr()),
        None => capsule(sqe, kind, len, received),
    }
}

/// Data of a command that are in its capsule, or that a list in it names.
fn capsule(sqe: &Sqe, kind: Kind, len: u64, received: usize) -> Result<Data, Status> {
    if let Some(list) = List::parse(&sqe.sgl, received) {
        return list.map(Data::List);
    }
    match Sgl::parse(&sqe.sgl)? {
        sgl if u64::from(sgl.len()) != len => Err(Status::DATA_LENGTH.dnr()),
        // The host has no way to be given data in its own capsule.
        Sgl::InCapsule { offset, len } if kind != Kind::Read => {
            Ok(Data::Capsule { start: in_capsule(offset, len, received)?.start, len: len as usize })
        }
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}

/// What commands without data and without a range have.
pub(crate) const NOTHING: IoCommand =
    IoCommand { kind: Kind::Nothing, backend: 0, offset: 0, len: 0, fua: false, data: Data::None };

fn flush(namespace: &Namespace) -> IoCommand {
    IoCommand { kind: Kind::Flush, backend: namespace.backend, ..NOTHING }
}

#[inline(always)]
fn check_writable(namespace: &Namespace) -> Result<(), Status> {
    if namespace.shape.is_read_only { Err(Status::WRITE_PROTECTED.dnr()) } else { Ok(()) }
}

/// Blocks as bytes, if they are all inside the namespace.
#[inline(always)]
fn blocks(namespace: &Namespace, slba: u64, count: u64) -> Result<(u64, u64), Status> {
    let shape = &namespace.shape;
    match slba.checked_add(count) {
        // The namespace's own size in bytes fits, so these do.
        Some(end) if end <= shape.blocks => {
            Ok((slba << shape.block_shift, count << shape.block_shift))
        }
        _ => Err(Status::LBA_RANGE.dnr()),
    }
}

/// Dataset Management. Linux describes a whole page whatever the number of ranges is, so that more
/// bytes than the ranges have are taken. Source: reference 10.2.10.
fn deallocate(namespace: &Namespace, sqe: &Sqe, received: usize) -> Result<IoCommand, Status> {
    let ranges = (sqe.cdw10.get() & 0xff) as u16 + 1;
    let needed = usize::from(ranges) * DSM_RANGE_BYTES;
    let data = match List::parse(&sqe.sgl, received) {
        Some(list) => Data::List(list?),
        None => match Sgl::parse(&sqe.sgl)? {
            sgl if (sgl.len() as usize) < needed => return Err(Status::DATA_LENGTH.dnr()),
            Sgl::Keyed(keyed) => Data::Host(Keyed { len: needed as u32, ..keyed }),
            Sgl::InCapsule { offset, len } => {
                Data::Capsule { start: in_capsule(offset, len, received)?.start, len: needed }
            }
        },
    };
    check_writable(namespace)?;
    let is_wanted = sqe.cdw11.get() & DEALLOCATE != 0;
    let kind = if is_wanted { Kind::Deallocate { ranges } } else { Kind::Nothing };
    let data = if is_wanted { data } else { Data::None };
    Ok(IoCommand { kind, backend: namespace.backend, data, ..NOTHING })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::super::ana::Ana;
    use super::super::reservation::{HostId, Reservation};
    use super::*;
    use crate::proto::cm::Request;

    const HOLDER: HostId = HostId::nameless([1; 16]);

    fn queue(hostid: HostId) -> Queue {
        let (here, there) = ("192.0.2.1:4420".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let mut queue = Queue::new(7, &Request::default(), here, there);
        queue.connected(Role::Io(0), 16, false);
        queue.joined(0, hostid, Arc::new(AtomicBool::new(true)));
        queue
    }

    /// Windows and clusters of VMware register with every namespace that they use.
    #[test]
    fn what_a_queue_has_found_holds_beside_reservations() {
        let shape =
            identify::Namespace { blocks: 8, block_shift: 9, ..Found::nothing().namespace.shape };
        let shape = identify::Namespace { is_read_only: false, ..shape };
        let mut subsystem = Subsystem::new("nqn.2014-08.a:s", "SN");
        subsystem.put(Namespace { nsid: 1, shape, backend: 3, ana_group: 1 });
        let mut reservation = Reservation::default();
        reservation.register(&HOLDER, 0, (0, 1)).unwrap();
        let offer = |version, reservation: &Reservation| {
            let mut subsystem = subsystem.clone();
            subsystem.reservations.insert(1, reservation.clone());
            let subsystems = vec![Some(Arc::new(subsystem))];
            Offer { version, max_transfer: 8192, ana: Ana::default(), subsystems }
        };
        let sqe = |opcode| Sqe::blocks(opcode, 0, 1, (2, 3), Sgl::NONE);
        let (read, write) = (sqe(io::READ), sqe(io::WRITE));
        let (there, conflict) = (Ok((1024, 1536)), Err(Status::RESERVATION_CONFLICT.dnr()));
        let mut found = Found::nothing();
        let other = queue(HostId::nameless([2; 16]));
        // Registered with, and nobody holds it.
        let first = offer(4, &reservation);
        assert_eq!(first.bytes(&other, &read, Kind::Read, &mut found), there);
        assert_eq!((found.read, found.write, found.backend()), (4, 4, 3));
        assert_eq!(first.bytes(&other, &write, Kind::Write, &mut found), there);
        // Held: others read.
        reservation.acquire(&HOLDER, 1 << 8, (1, 0)).unwrap();
        let held = offer(5, &reservation);
        for _ in 0..2 {
            assert_eq!(held.bytes(&other, &write, Kind::Write, &mut found), conflict);
            assert_eq!(held.bytes(&other, &read, Kind::Read, &mut found), there);
            assert_eq!((found.read, found.write), (5, NO_VERSION));
        }
        let mut his = Found::nothing();
        assert_eq!(held.bytes(&queue(HOLDER), &write, Kind::Write, &mut his), there);
        assert_eq!((his.read, his.write), (5, 5));
        // Free again.
        let last = offer(6, &Reservation::default());
        assert_eq!(last.bytes(&other, &write, Kind::Write, &mut found), there);
        assert_eq!((found.read, found.write), (6, 6));
    }
}
