//! Frames that some parser takes far, and a far end that sends back what it gets.

use ferrocx_model::roce::icrc::icrc;
use ferrocx_model::wire::{Fcs, Wire};

use crate::Guest;
use crate::bystander::addresses;
use crate::common::words;

impl Guest {
    /// A frame that some parser takes far: addresses, tag, IPv4 or IPv6, TCP, UDP or RoCE.
    pub(crate) fn packet(&mut self) -> Vec<u8> {
        let mut frame = self.peer.mac.to_vec();
        if self.chance(6) {
            frame = vec![0x01, 0, 0x5e, 1, 2, 3];
        }
        frame.extend([2, 0, 0, 0, 0, 9]);
        if self.chance(4) {
            frame.extend([0x81, 0, self.rng.next_u64() as u8, 5]);
        }
        let len = self.pick(&[0_usize, 1, 8, 12, 40, 200, 1000, 1400]);
        let payload: Vec<u8> = (0..len).map(|_| self.rng.next_u64() as u8).collect();
        let udp = |dport: u16, body: &[u8]| {
            let mut bytes = vec![0xc1, 0x23];
            bytes.extend(dport.to_be_bytes());
            bytes.extend((8 + body.len() as u16).to_be_bytes());
            bytes.extend([0, 0]);
            bytes.extend(body);
            bytes
        };
        let (protocol, body) = match self.below(4) {
            0 => {
                let flags = self.rng.next_u64() as u8;
                let mut tcp = words(&[0x1234_0050, 1, 2, 0x5000_0400 | u32::from(flags) << 16, 0]);
                tcp.extend(&payload);
                (6, tcp)
            }
            1 => (17, udp(self.word() as u16, &payload)),
            _ => {
                // BTH: any opcode, a queue pair that exists, a PSN that is near.
                let qpn = self.pick(&[1, 2, 3].map(|at| self.sqs[at].number));
                let opcode = self.rng.next_u64() as u8 & 0xbf;
                let psn = (0xff_fff0 + self.below(40) as u32) & 0xff_ffff;
                let first = u32::from(opcode) << 24 | self.pick(&[0x40_ffff, 0xc0_ffff, 0xffff]);
                let mut bth = words(&[first, qpn, self.pick(&[0, 1 << 31]) | psn]);
                bth.extend(self.address().to_be_bytes());
                bth.extend(words(&[self.peer.key, len as u32]));
                bth.extend(&payload);
                let cut = self.pick(&[12, 16, 20, 28, bth.len()]).min(bth.len());
                bth.truncate(cut & !3);
                bth.extend([0; 4]);
                (17, udp(4791, &bth))
            }
        };
        let mut ip = vec![0x45, 0];
        ip.extend((20 + body.len() as u16).to_be_bytes());
        ip.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
        ip.extend(self.peer.ip);
        ip.extend(self.peer.ip);
        frame.extend([8, 0]);
        let start = frame.len();
        frame.extend(ip);
        frame.extend(body);
        seal(&mut frame, start);
        frame
    }

    /// A frame from the wire.
    pub(crate) fn frame(&mut self) {
        let mut frame = self.packet();
        let start = 14 + 4 * usize::from(frame[12..14] == [0x81, 0]);
        for _ in 0..self.below(3) {
            let at = self.below(frame.len() as u64) as usize;
            frame[at] = self.rng.next_u64() as u8;
        }
        if self.chance(2) {
            seal(&mut frame, start);
        }
        if self.chance(10) {
            let len = self.below(frame.len() as u64) as usize;
            frame.truncate(len);
        }
        self.deliver(&frame);
        self.flood(frame);
        self.step();
    }

    /// Sends a frame to the bystanders, or to everybody; at times it claims to be one of them.
    fn flood(&mut self, mut frame: Vec<u8>) {
        let [a, b] = addresses();
        if let Some(destination) = frame.first_chunk_mut() {
            *destination = self.pick(&[a, b, [0xff; 6], *destination]);
        }
        if self.chance(8)
            && let Some(source) = frame.get_mut(6..12)
        {
            source.copy_from_slice(&self.pick(&[a, b]));
        }
        let now = self.peer.host.now_ns;
        if let Some(room) = self.uplink.reserve(frame.len().max(1)) {
            room[..frame.len()].copy_from_slice(&frame);
            self.uplink.commit(now, Fcs::Good);
            self.uplink.flush(now);
        }
    }

    pub(crate) fn deliver(&mut self, frame: &[u8]) {
        let fcs = if self.chance(50) { Fcs::Bad } else { Fcs::Good };
        if let Some(room) = self.far.reserve(frame.len().max(1)) {
            room[..frame.len()].copy_from_slice(frame);
            self.far.commit(self.peer.host.now_ns, fcs);
            self.far.flush(self.peer.host.now_ns);
        }
    }

    /// Sends back what the device sent, at times changed, lost or twice.
    pub(crate) fn mirror(&mut self) {
        let mut frames = Vec::new();
        while let Some(frame) = self.far.receive(self.peer.host.now_ns) {
            frames.push(frame.bytes.to_vec());
        }
        for mut frame in frames.into_iter().take(32) {
            if self.chance(8) {
                let at = self.below(frame.len() as u64) as usize;
                frame[at] ^= 1 << self.below(8);
                seal(&mut frame, 14);
            }
            if !self.chance(16) {
                self.deliver(&frame);
            }
            if self.chance(16) {
                self.deliver(&frame);
            }
            self.flood(frame);
        }
        // What the switch brings.
        for _ in 0..32 {
            let now = self.peer.host.now_ns;
            let Some(frame) = self.uplink.receive(now).map(|got| got.bytes.to_vec()) else { break };
            self.deliver(&frame);
        }
        self.step();
    }
}

/// Puts the right ICRC at the end of what may be a RoCE packet whose IP header starts at `start`.
fn seal(frame: &mut [u8], start: usize) {
    let end = frame.len();
    if end >= start + 20 + 8 + 12 + 4 {
        let crc = icrc(&frame[start..end - 4]);
        frame[end - 4..].copy_from_slice(&crc.to_le_bytes());
    }
}
