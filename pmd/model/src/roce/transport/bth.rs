//! Transport headers: BTH and what extends it.
//!
//! Source: reference 7.1 and 7.2; IBTA vol. 1, chapter 9.
//!
//! Long file: every header of one chapter, each with its bytes.

use super::atomic::{Operands, Size};
use super::psn::Psn;

/// Bytes of a base transport header.
pub const BTH_BYTES: usize = 12;
/// Bytes of the longest set of headers: BTH and the operands of a masked atomic.
pub const MAX_HEADER_BYTES: usize = BTH_BYTES + MASKED_ATOMIC_BYTES;
/// Bytes of the header of a masked atomic: address, key, size, four operands.
const MASKED_ATOMIC_BYTES: usize = 8 + 4 + 4 + 4 * 8;
/// The P_Key that RoCE sends. Source: reference 7.8.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// The transport service, bits 7:5 of the opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection: the packet names the shared receive queue.
    Xrc,
    /// Notification of congestion.
    Cnp,
}

impl Transport {
    /// The upper three bits of an opcode, in place.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
            Self::Xrc => 0xa0,
            Self::Cnp => 0x80,
        }
    }

    /// Decodes the upper three bits of an opcode. Source: reference 7.2; for the manufacturer's
    /// range see [`Op`].
    #[must_use]
    pub const fn from_opcode(opcode: u8) -> Option<Self> {
        match opcode & 0xe0 {
            0x00 => Some(Self::Rc),
            0x20 => Some(Self::Uc),
            0x60 => Some(Self::Ud),
            0x80 => Some(Self::Cnp),
            0xa0 => Some(Self::Xrc),
            // The manufacturer's own are all of reliable connections.
            0xc0 => Some(Self::Rc),
            _ => None,
        }
    }
}

/// Operation of a packet, bits 4:0 of the opcode.
///
/// # Masked atomics
///
/// No public source tells how this vendor's devices put them on the wire, only that the answer is
/// the one of the standard atomics. The model has them under two opcodes of the range that IBTA
/// vol. 1, 9.2.1 leaves to manufacturers, with a header of its own: address (8 bytes), key (4),
/// size in bytes (4), value, comparand, mask of the swap, mask of the comparison (8 each). Two
/// models understand each other; nobody else can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the specification's own")]
pub enum Op {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImm = 0x03,
    SendOnly = 0x04,
    SendOnlyImm = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImm = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImm = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
    MaskedCompareSwap = 0xd3,
    MaskedFetchAdd = 0xd4,
    Notification = 0x81,
}

impl Op {
    const ALL: [Self; 26] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastImm,
        Self::SendOnly,
        Self::SendOnlyImm,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImm,
        Self::WriteOnly,
        Self::WriteOnlyImm,
        Self::ReadRequest,
        Self::ReadResponseFirst,
        Self::ReadResponseMiddle,
        Self::ReadResponseLast,
        Self::ReadResponseOnly,
        Self::Acknowledge,
        Self::AtomicAcknowledge,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::SendLastInvalidate,
        Self::SendOnlyInvalidate,
        Self::MaskedCompareSwap,
        Self::MaskedFetchAdd,
        Self::Notification,
    ];

    /// Decodes the lower five bits of an opcode; all eight of a notification and in the range of
    /// the manufacturer.
    #[must_use]
    pub fn from_opcode(opcode: u8) -> Option<Self> {
        const BY_CODE: [Option<Op>; 256] = {
            let mut table = [None; 256];
            let mut at = 0;
            while at < Op::ALL.len() {
                table[Op::ALL[at] as usize] = Some(Op::ALL[at]);
                at += 1;
            }
            table
        };
        let code = if is_whole(opcode) { opcode } else { opcode & 0x1f };
        BY_CODE[usize::from(code)]
    }

    /// The opcode with the transport service.
    #[must_use]
    pub const fn opcode(self, transport: Transport) -> u8 {
        let code = self as u8;
        if is_whole(code) { code } else { transport.raw() | code }
    }

    /// An atomic, with or without masks.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        self.has_atomic() || self.has_masked_atomic()
    }

    /// Operations of the first, middle and last of the packets that go together under this one.
    #[must_use]
    pub const fn apart(self) -> [Self; 3] {
        use Op::*;
        match self {
            SendOnly => [SendFirst, SendMiddle, SendLast],
            SendOnlyImm => [SendFirst, SendMiddle, SendLastImm],
            SendOnlyInvalidate => [SendFirst, SendMiddle, SendLastInvalidate],
            WriteOnly => [WriteFirst, WriteMiddle, WriteLast],
            WriteOnlyImm => [WriteFirst, WriteMiddle, WriteLastImm],
            ReadResponseOnly => [ReadResponseFirst, ReadResponseMiddle, ReadResponseLast],
            SendFirst => [self, SendMiddle, SendMiddle],
            WriteFirst => [self, WriteMiddle, WriteMiddle],
            ReadResponseFirst => [self, ReadResponseMiddle, ReadResponseMiddle],
            SendLast | SendLastImm | SendLastInvalidate => [SendMiddle, SendMiddle, self],
            WriteLast | WriteLastImm => [WriteMiddle, WriteMiddle, self],
            ReadResponseLast => [ReadResponseMiddle, ReadResponseMiddle, self],
            other => [other, other, other],
        }
    }

    /// Whether a responder sends it.
    #[must_use]
    pub const fn is_response(self) -> bool {
        matches!(self as u8, 0x0d..=0x12)
    }

    /// Part of a SEND.
    #[must_use]
    pub const fn is_send(self) -> bool {
        matches!(self as u8, 0x00..=0x05 | 0x16 | 0x17)
    }

    /// Part of a WRITE.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self as u8, 0x06..=0x0b)
    }

    /// The first packet of a SEND or WRITE, which may be its last too.
    #[must_use]
    pub const fn starts_message(self) -> bool {
        matches!(self as u8, 0x00 | 0x04..=0x06 | 0x0a | 0x0b | 0x17)
    }

    /// The last packet of a SEND or WRITE, which may be its first too.
    #[must_use]
    pub const fn ends_message(self) -> bool {
        matches!(self as u8, 0x02..=0x05 | 0x08..=0x0b | 0x16 | 0x17)
    }

    const fn has_imm(self) -> bool {
        matches!(self as u8, 0x03 | 0x05 | 0x09 | 0x0b)
    }

    const fn has_ieth(self) -> bool {
        matches!(self as u8, 0x16 | 0x17)
    }

    const fn has_reth(self) -> bool {
        matches!(self as u8, 0x06 | 0x0a | 0x0b | 0x0c)
    }

    const fn has_atomic(self) -> bool {
        matches!(self as u8, 0x13 | 0x14)
    }

    const fn has_masked_atomic(self) -> bool {
        matches!(self, Self::MaskedCompareSwap | Self::MaskedFetchAdd)
    }

    const fn has_aeth(self) -> bool {
        matches!(self as u8, 0x0d | 0x0f..=0x12)
    }

    /// Whether the transport knows the operation. Source: reference 7.2.
    #[must_use]
    pub const fn exists_on(self, transport: Transport) -> bool {
        match transport {
            Transport::Rc => !matches!(self, Self::Notification),
            Transport::Xrc => (self as u8) < 0x80,
            Transport::Cnp => matches!(self, Self::Notification),
            Transport::Uc => (self as u8) <= 0x0b,
            Transport::Ud => matches!(self as u8, 0x04 | 0x05),
        }
    }
}

/// RDMA extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reth {
    /// Remote address.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Bytes of the whole operation.
    pub len: u32,
}

/// Datagram extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Source queue pair.
    pub sqpn: u32,
}

/// Atomic extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AtomicEth {
    /// Remote address.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// What to do it with. Only masked atomics carry masks and another size than eight.
    pub operands: Operands,
}

/// Acknowledge extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Aeth {
    /// Acknowledgement or refusal.
    pub syndrome: AckSyndrome,
    /// Messages that the responder has completed, modulo 2^24.
    pub msn: u32,
}

/// The syndrome byte of an AETH. Source: reference 7.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AckSyndrome(pub u8);

impl AckSyndrome {
    /// Done, and no end-to-end credits are kept.
    pub const ACK: Self = Self(0x1f);
    /// The PSN was ahead of what is expected.
    pub const NAK_SEQUENCE: Self = Self(0x60);
    /// The request is wrong in itself.
    pub const NAK_INVALID_REQUEST: Self = Self(0x61);
    /// Key, range or rights do not permit it.
    pub const NAK_REMOTE_ACCESS: Self = Self(0x62);
    /// The responder failed.
    pub const NAK_REMOTE_OPERATION: Self = Self(0x63);

    /// No receive buffer: try again after the time of `timer`, 0 to 31.
    #[must_use]
    pub const fn rnr(timer: u8) -> Self {
        Self(0x20 | timer & 0x1f)
    }

    /// Meaning of the byte.
    #[must_use]
    pub const fn meaning(self) -> Meaning {
        match self.0 >> 5 {
            0 => Meaning::Ack,
            1 => Meaning::Rnr { timer: self.0 & 0x1f },
            3 => Meaning::Nak,
            _ => Meaning::Reserved,
        }
    }
}

/// Bits 7:5 of an AETH syndrome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// Everything up to this PSN is done.
    Ack,
    /// No receive buffer was posted.
    Rnr {
        /// Code of the time to wait.
        timer: u8,
    },
    /// An error, told apart by the whole byte.
    Nak,
    /// Not in use.
    Reserved,
}

/// All transport headers of a packet. A field that the opcode does not call for is zero, and not
/// sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Transport service.
    pub transport: Transport,
    /// Operation.
    pub op: Op,
    /// The receiver is asked to raise an event.
    pub solicited: bool,
    /// Bytes behind the payload that make its length a multiple of four, 0 to 3.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Destination queue pair.
    pub dest_qpn: u32,
    /// An acknowledgement is asked for.
    pub ack_request: bool,
    /// Sequence number.
    pub psn: Psn,
    /// XRC: the shared receive queue.
    pub xrc_srqn: u32,
    /// Datagrams: keys and source.
    pub deth: Deth,
    /// RDMA: address, key, length.
    pub reth: Reth,
    /// Atomics: address, key, operands.
    pub atomic: AtomicEth,
    /// Responses: what happened.
    pub aeth: Aeth,
    /// Atomic acknowledge: the value before the operation.
    pub original: u64,
    /// Immediate data.
    pub imm: u32,
    /// Key to invalidate.
    pub ieth: u32,
    /// Packets that it is the header of, each with a PSN of its own. More than one only inside the
    /// process, see [`crate::wire::Train`]; it is not part of the wire format.
    pub packets: u32,
}

impl Header {
    /// A header with the default P_Key and everything else zero.
    #[must_use]
    pub const fn new(transport: Transport, op: Op, dest_qpn: u32, psn: Psn) -> Self {
        Self {
            transport,
            op,
            solicited: false,
            pad: 0,
            pkey: DEFAULT_PKEY,
            dest_qpn,
            ack_request: false,
            psn,
            xrc_srqn: 0,
            deth: Deth { qkey: 0, sqpn: 0 },
            reth: Reth { va: 0, rkey: 0, len: 0 },
            atomic: AtomicEth { va: 0, rkey: 0, operands: Operands::plain(0, 0) },
            aeth: Aeth { syndrome: AckSyndrome(0), msn: 0 },
            original: 0,
            imm: 0,
            ieth: 0,
            packets: 1,
        }
    }

    /// The sequence number of the last of its packets.
    #[must_use]
    pub fn last_psn(&self) -> Psn {
        self.psn.plus(self.packets - 1)
    }

    /// Immediate data, if the operation carries them.
    #[must_use]
    pub fn immediate(&self) -> Option<u32> {
        self.op.has_imm().then_some(self.imm)
    }

    /// Key to invalidate, if the operation carries one.
    #[must_use]
    pub fn invalidate(&self) -> Option<u32> {
        self.op.has_ieth().then_some(self.ieth)
    }

    const fn has_xrceth(&self) -> bool {
        matches!(self.transport, Transport::Xrc) && !self.op.is_response()
    }

    /// Bytes of all headers together.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        let part = |is_here: bool, len: usize| if is_here { len } else { 0 };
        BTH_BYTES
            + part(self.has_xrceth(), 4)
            + part(matches!(self.transport, Transport::Ud), 8)
            + part(self.op.has_reth(), 16)
            + part(self.op.has_atomic(), 28)
            + part(self.op.has_masked_atomic(), MASKED_ATOMIC_BYTES)
            + part(self.op.has_aeth(), 4)
            + part(matches!(self.op, Op::AtomicAcknowledge), 8)
            + part(self.op.has_imm(), 4)
            + part(self.op.has_ieth(), 4)
    }

    /// Writes all headers to the start of `out`; returns how many bytes.
    ///
    /// # Panics
    /// If `out` is shorter than [`Self::len_bytes`].
    pub fn write_to(&self, out: &mut [u8]) -> usize {
        self.write_padded(self.pad, out)
    }

    /// As [`Self::write_to`], with another pad count.
    pub(super) fn write_padded(&self, pad: u8, out: &mut [u8]) -> usize {
        let mut out = Writer { out, at: 0 };
        let opcode = self.op.opcode(self.transport);
        // MigReq is set: the path is in its migrated (normal) state. Source: reference 7.1. Not in
        // a notification, which says BECN instead: see the source of `crate::device::congestion`.
        let is_cnp = self.op == Op::Notification;
        let flags = u8::from(self.solicited) << 7 | u8::from(!is_cnp) << 6 | (pad & 3) << 4;
        out.put(&[opcode, flags]);
        out.put(&self.pkey.to_be_bytes());
        out.put(&(u32::from(is_cnp) << 30 | self.dest_qpn & 0xff_ffff).to_be_bytes());
        out.put(&(u32::from(self.ack_request) << 31 | self.psn.raw()).to_be_bytes());
        if self.has_xrceth() {
            out.put(&(self.xrc_srqn & 0xff_ffff).to_be_bytes());
        }
        if self.transport == Transport::Ud {
            out.put(&self.deth.qkey.to_be_bytes());
            out.put(&(self.deth.sqpn & 0xff_ffff).to_be_bytes());
        }
        if self.op.has_reth() {
            out.put(&self.reth.va.to_be_bytes());
            out.put(&self.reth.rkey.to_be_bytes());
            out.put(&self.reth.len.to_be_bytes());
        }
        if self.op.has_atomic() {
            out.put(&self.atomic.va.to_be_bytes());
            out.put(&self.atomic.rkey.to_be_bytes());
            out.put(&self.atomic.operands.swap_add.to_be_bytes());
            out.put(&self.atomic.operands.compare.to_be_bytes());
        }
        if self.op.has_masked_atomic() {
            let with = &self.atomic.operands;
            out.put(&self.atomic.va.to_be_bytes());
            out.put(&self.atomic.rkey.to_be_bytes());
            out.put(&with.size.bytes().to_be_bytes());
            for value in [with.swap_add, with.compare, with.swap_mask, with.compare_mask] {
                out.put(&value.to_be_bytes());
            }
        }
        if self.op.has_aeth() {
            let word = u32::from(self.aeth.syndrome.0) << 24 | self.aeth.msn & 0xff_ffff;
            out.put(&word.to_be_bytes());
        }
        if self.op == Op::AtomicAcknowledge {
            out.put(&self.original.to_be_bytes());
        }
        if self.op.has_imm() {
            out.put(&self.imm.to_be_bytes());
        }
        if self.op.has_ieth() {
            out.put(&self.ieth.to_be_bytes());
        }
        out.at
    }

    /// Reads the headers at the start of `bytes`; returns them and how many bytes they are.
    ///
    /// `None` for an opcode that does not exist, another transport version than 0, or headers that
    /// are cut short.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let mut from = Reader { bytes, at: 0 };
        let [opcode, flags, pkey @ ..] = from.array::<4>()?;
        let transport = Transport::from_opcode(opcode)?;
        let op = Op::from_opcode(opcode).filter(|op| op.exists_on(transport))?;
        let dest_qpn = from.be32()? & 0xff_ffff;
        let word = from.be32()?;
        if flags & 0xf != 0 {
            return None;
        }
        let mut header = Self::new(transport, op, dest_qpn, Psn::new(word));
        header.solicited = flags & 0x80 != 0;
        header.pad = flags >> 4 & 3;
        header.pkey = u16::from_be_bytes(pkey);
        header.ack_request = word >> 31 != 0;
        if header.has_xrceth() {
            header.xrc_srqn = from.be32()? & 0xff_ffff;
        }
        if transport == Transport::Ud {
            header.deth = Deth { qkey: from.be32()?, sqpn: from.be32()? & 0xff_ffff };
        }
        if op.has_reth() {
            header.reth = Reth { va: from.be64()?, rkey: from.be32()?, len: from.be32()? };
        }
        if op.has_atomic() {
            let (va, rkey) = (from.be64()?, from.be32()?);
            let operands = Operands::plain(from.be64()?, from.be64()?);
            header.atomic = AtomicEth { va, rkey, operands };
        }
        if op.has_masked_atomic() {
            let (va, rkey, size) = (from.be64()?, from.be32()?, Size::of(from.be32()?)?);
            let (swap_add, compare) = (from.be64()?, from.be64()?);
            let (swap_mask, compare_mask) = (from.be64()?, from.be64()?);
            let operands = Operands { swap_add, compare, swap_mask, compare_mask, size };
            header.atomic = AtomicEth { va, rkey, operands };
        }
        if op.has_aeth() {
            let [syndrome, msn @ ..] = from.array::<4>()?;
            let msn = u32::from_be_bytes([0, msn[0], msn[1], msn[2]]);
            header.aeth = Aeth { syndrome: AckSyndrome(syndrome), msn };
        }
        if op == Op::AtomicAcknowledge {
            header.original = from.be64()?;
        }
        if op.has_imm() {
            header.imm = from.be32()?;
        }
        if op.has_ieth() {
            header.ieth = from.be32()?;
        }
        Some((header, from.at))
    }
}

/// Whether an opcode is one as a whole: that of a notification, and those of the range that is left
/// to manufacturers. Source: reference 7.2; IBTA vol. 1, 9.2.1.
const fn is_whole(opcode: u8) -> bool {
    opcode == Op::Notification as u8 || opcode >= 0xc0
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let array = *self.bytes.get(self.at..)?.first_chunk::<N>()?;
        self.at += N;
        Some(array)
    }

    fn be32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn be64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
#[path = "bth_tests.rs"]
mod tests;
