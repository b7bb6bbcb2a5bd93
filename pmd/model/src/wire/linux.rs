//! Wires into the Linux network stack: a TAP interface, an existing interface such as a veth.
//!
//! What the kernel leaves to a device's offloads is done here, so that every frame that reaches the
//! port could have come from a cable: partial checksums are completed, frames of generic
//! segmentation are cut, a VLAN tag that the kernel keeps beside the frame is put back, and
//! short frames are padded.

use ferrocx_netdev::{FrameHint, NetdevError, PacketSocket, TapDevice};

use super::{Fcs, MAX_FRAME_BYTES, Received, Wire, room};
use crate::frame::offload::{self, Tso};
use crate::frame::packet::{Lengths, MIN_FRAME_BYTES, Packet, TPID_STAG, VLAN_TAG_BYTES};

/// Longest frame that the kernel hands out before it is cut: 64 KiB of IP and headers.
const MAX_KERNEL_FRAME_BYTES: usize = (64 << 10) + 256;

/// Frames that passed between port and kernel, and those that did not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinuxWireStats {
    /// Frames given to the kernel.
    pub to_kernel: u64,
    /// Frames taken from the kernel, after cutting.
    pub from_kernel: u64,
    /// Frames that the kernel refused, for example because the interface is down.
    pub refused: u64,
    /// Frames from the kernel that could not be completed or cut.
    pub unusable: u64,
    /// Frames from the kernel that asked for segmentation.
    pub cut: u64,
}

/// A frame on its way out, kept while the kernel cannot take it.
#[derive(Debug, Default)]
struct Outbox {
    frame: Vec<u8>,
    len: usize,
    is_waiting: bool,
}

impl Outbox {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.is_waiting {
            return None;
        }
        self.len = len;
        Some(room(&mut self.frame, len))
    }

    /// Sends what was reserved or waits; `send` says whether the kernel took it.
    fn send(
        &mut self,
        stats: &mut LinuxWireStats,
        send: impl FnOnce(&[u8]) -> std::io::Result<bool>,
    ) {
        match send(&self.frame[..self.len]) {
            Ok(true) => {
                self.is_waiting = false;
                stats.to_kernel += 1;
            }
            Ok(false) => self.is_waiting = true,
            Err(_) => {
                self.is_waiting = false;
                stats.refused += 1;
            }
        }
    }
}

/// A TAP interface as a wire: what the host sends there arrives at the port, and the reverse.
#[derive(Debug)]
pub struct TapWire {
    device: TapDevice,
    outbox: Outbox,
    inbox: Vec<u8>,
    stats: LinuxWireStats,
}

impl TapWire {
    /// Opens, and creates if need be, a TAP interface. It is up to the caller to set it up.
    ///
    /// # Errors
    ///
    /// [`NetdevError`]: no such device, no privilege, a bad name; see [`TapDevice::open`].
    pub fn open(name: &str) -> Result<Self, NetdevError> {
        Ok(Self {
            device: TapDevice::open(name)?,
            outbox: Outbox::default(),
            inbox: vec![0; MAX_KERNEL_FRAME_BYTES],
            stats: LinuxWireStats::default(),
        })
    }

    /// The host's own address on the interface.
    ///
    /// # Errors
    ///
    /// As [`TapDevice::host_mac`].
    pub fn host_mac(&self) -> std::io::Result<[u8; 6]> {
        self.device.host_mac()
    }

    /// Frames that passed, and that did not, since the wire was opened.
    #[must_use]
    pub fn stats(&self) -> LinuxWireStats {
        self.stats
    }

    fn retry(&mut self) {
        if self.outbox.is_waiting {
            self.outbox.send(&mut self.stats, |frame| self.device.write(frame));
        }
    }
}

impl Wire for TapWire {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.retry();
        self.outbox.reserve(len)
    }

    fn commit(&mut self, _now_ns: u64, fcs: Fcs) {
        // The host's end checks the FCS, too: a bad frame is dropped there.
        if fcs == Fcs::Good {
            self.outbox.send(&mut self.stats, |frame| self.device.write(frame));
        }
    }

    fn flush(&mut self, _now_ns: u64) -> bool {
        self.retry();
        false
    }

    fn receive(&mut self, _now_ns: u64) -> Option<Received<'_>> {
        let len = self.device.read(&mut self.inbox).ok().flatten()?;
        self.stats.from_kernel += 1;
        let padded = pad(&mut self.inbox, len);
        Some(Received { bytes: &self.inbox[..padded], fcs: Fcs::Good })
    }
}

/// Fills up a short frame with zeros; returns its length.
fn pad(buffer: &mut [u8], len: usize) -> usize {
    if len < MIN_FRAME_BYTES {
        buffer[len..MIN_FRAME_BYTES].fill(0);
    }
    len.max(MIN_FRAME_BYTES)
}

/// An interface of this host as a wire, through a packet socket: usually one end of a veth pair.
///
/// The interface should have no address, or the host answers as well.
#[derive(Debug)]
pub struct PacketWire {
    socket: PacketSocket,
    outbox: Outbox,
    /// The frame as the kernel gave it, with room for a VLAN tag before it.
    inbox: Vec<u8>,
    cutting: Option<Cutting>,
    segment: Vec<u8>,
    stats: LinuxWireStats,
}

/// A frame of generic segmentation, and how far it is cut.
#[derive(Debug)]
struct Cutting {
    tso: Tso,
    /// Where the frame stands in the inbox, and where its payload starts in the frame.
    start: usize,
    header_bytes: usize,
    next: usize,
}

impl PacketWire {
    /// Binds to an interface.
    ///
    /// # Errors
    ///
    /// [`NetdevError`]: no such interface, or no privilege; see [`PacketSocket::open`].
    pub fn open(name: &str) -> Result<Self, NetdevError> {
        Ok(Self {
            socket: PacketSocket::open(name)?,
            outbox: Outbox::default(),
            inbox: vec![0; VLAN_TAG_BYTES + MAX_KERNEL_FRAME_BYTES],
            cutting: None,
            segment: vec![0; MAX_FRAME_BYTES],
            stats: LinuxWireStats::default(),
        })
    }

    /// Frames that passed, and that did not, since the wire was opened.
    #[must_use]
    pub fn stats(&self) -> LinuxWireStats {
        self.stats
    }

    fn retry(&mut self) {
        if self.outbox.is_waiting {
            self.outbox.send(&mut self.stats, |frame| self.socket.write(frame));
        }
    }

    /// The next segment of the frame that is being cut: its length in `segment`.
    fn next_segment(&mut self) -> Option<usize> {
        let cutting = self.cutting.as_mut()?;
        let index = cutting.next;
        cutting.next += 1;
        let len = cutting.tso.frame_bytes(index);
        let frame = &self.inbox[cutting.start..];
        let (offset, bytes) = cutting.tso.payload_of(index);
        let segment = &mut self.segment[..len];
        segment[..cutting.header_bytes].copy_from_slice(&frame[..cutting.header_bytes]);
        let payload = cutting.header_bytes + offset;
        segment[cutting.header_bytes..].copy_from_slice(&frame[payload..payload + bytes]);
        cutting.tso.finish(segment, index, (true, true));
        if cutting.next == cutting.tso.segments() {
            self.cutting = None;
        }
        Some(pad(&mut self.segment, len))
    }

    /// Makes a whole frame of what the kernel gave: its place in the inbox.
    fn complete(&mut self, len: usize, hint: FrameHint) -> Option<(usize, usize)> {
        let mut start = VLAN_TAG_BYTES;
        let end = start + len;
        if let Some((offset, field)) = hint.partial_checksum
            && hint.segment_bytes == 0
        {
            let frame = &mut self.inbox[start..end];
            let (offset, field) = (usize::from(offset), usize::from(offset) + usize::from(field));
            if offset >= len || field + 2 > len {
                return None;
            }
            // The field holds the sum of the pseudo header, which is part of what is summed.
            let sum = !offload::sum16(&frame[offset..]);
            let sum = if sum == 0 { 0xffff } else { sum };
            frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        }
        if let Some((tpid, tci)) = hint.vlan {
            offload::insert_vlan(&mut self.inbox[..end], tpid == TPID_STAG, tci);
            start = 0;
        }
        Some((start, end))
    }

    /// Starts to cut the frame at `start..end` into segments.
    fn cut(&mut self, (start, end): (usize, usize), mss: u16) -> Option<()> {
        let frame = &self.inbox[start..end];
        let header_bytes = Packet::parse_with(frame, Lengths::HeadersOnly).payload_offset;
        let (header, payload) = frame.split_at_checked(header_bytes)?;
        let tso = Tso::new(header, mss.into(), payload.len()).ok()?;
        if tso.frame_bytes(0) > MAX_FRAME_BYTES {
            return None;
        }
        self.cutting = Some(Cutting { tso, start, header_bytes, next: 0 });
        self.stats.cut += 1;
        Some(())
    }
}

impl Wire for PacketWire {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.retry();
        self.outbox.reserve(len)
    }

    fn commit(&mut self, _now_ns: u64, fcs: Fcs) {
        if fcs == Fcs::Good {
            self.outbox.send(&mut self.stats, |frame| self.socket.write(frame));
        }
    }

    fn flush(&mut self, _now_ns: u64) -> bool {
        self.retry();
        false
    }

    fn receive(&mut self, _now_ns: u64) -> Option<Received<'_>> {
        if self.cutting.is_none() {
            let room = &mut self.inbox[VLAN_TAG_BYTES..];
            let (len, hint) = self.socket.read(room).ok().flatten()?;
            let Some(place) = self.complete(len, hint) else {
                self.stats.unusable += 1;
                return None;
            };
            if hint.segment_bytes == 0 {
                self.stats.from_kernel += 1;
                let (start, end) = place;
                let len = pad(&mut self.inbox[start..], end - start);
                let bytes = &self.inbox[start..start + len];
                return Some(Received { bytes, fcs: Fcs::Good });
            }
            if self.cut(place, hint.segment_bytes).is_none() {
                self.stats.unusable += 1;
                return None;
            }
        }
        let len = self.next_segment()?;
        self.stats.from_kernel += 1;
        Some(Received { bytes: &self.segment[..len], fcs: Fcs::Good })
    }
}
