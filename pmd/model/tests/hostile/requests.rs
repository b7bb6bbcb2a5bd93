//! Descriptors that are nearly right, and the doorbells behind them.

use ferrocx_model::objects::{QpState, QueueState};

use crate::Guest;
use crate::common::objects::modify_queue;
use crate::common::roce::{av, data};
use crate::common::{be32, words};

/// Opcodes of send WQEs: of an Ethernet queue, of a queue pair, and of neither.
const ETHERNET_OPCODES: [u8; 4] = [0x00, 0x0a, 0x0e, 0x29];
const PAIR_OPCODES: [u8; 11] = [0x00, 0x01, 0x08, 0x09, 0x0a, 0x0b, 0x10, 0x11, 0x12, 0x14, 0x25];
const OTHER_OPCODES: [u8; 4] = [0x0c, 0x15, 0x20, 0x77];
impl Guest {
    pub(crate) fn segment(&mut self) -> Vec<u8> {
        if self.chance(6) {
            return self.bound_segment();
        }
        let keys = [self.peer.key, self.numbers[self.numbers.len() - 2], 0x100];
        let key = if self.chance(5) { self.word() } else { self.pick(&keys) };
        let len = self.pick(&[0, 1, 14, 60, 64, 256, 1000, 1500, 4096, 9000, 1 << 20, 1 << 31]);
        let address = self.address();
        data(len, key, address)
    }

    /// A send WQE that is nearly right, on one of the send queues.
    pub(crate) fn send_request(&mut self) {
        let at = self.below(self.sqs.len() as u64) as usize;
        let number = self.sqs[at].number;
        let counter = self.sqs[at].posted;
        let opcode = match self.below(12) {
            0 => self.pick(&OTHER_OPCODES),
            _ if at == 0 => self.pick(&ETHERNET_OPCODES),
            _ => self.pick(&PAIR_OPCODES),
        };
        let mut rest = Vec::new();
        let mut immediate = self.word();
        // What changes a key is a request by itself.
        let is_umr = at > 0 && opcode == 0x25 && !self.chance(8);
        if is_umr {
            (immediate, rest) = self.key_request();
        } else if at == 0 {
            // Ethernet: checksum flags, segment size, inline header.
            let mss = self.pick(&[0, 0, 1, 536, 1460, 0xffff]);
            let inline = self.pick(&[0_u32, 14, 18, 54, 66, 0x3ff]);
            rest.extend(words(&[0, self.pick(&[0, 0xc0]) << 24 | mss, 0, inline << 16]));
            rest.extend(self.packet().into_iter().skip(2).take(62));
        } else {
            if at == 3 {
                rest.extend(av(0x1122_3344, number, self.peer.mac, self.peer.ip));
            }
            if opcode == 0x25 {
                rest.extend((0..32).flat_map(|_| self.word().to_be_bytes()));
            }
            if self.chance(2) {
                rest.extend(self.address().to_be_bytes());
                let key = if self.chance(3) { self.word() } else { self.peer.key };
                rest.extend(words(&[key, 0]));
            }
            if matches!(opcode, 0x11 | 0x12 | 0x14 | 0x15) {
                rest.extend((0..16).map(|_| self.rng.next_u64() as u8));
            }
        }
        rest.resize(rest.len().next_multiple_of(16), 0);
        for _ in 0..if is_umr { 0 } else { self.below(4) } {
            rest.extend(self.segment());
        }
        let ds = if self.chance(20) { self.word() & 0x3f } else { 1 + rest.len() as u32 / 16 };
        let any = self.below(256) as u32;
        let flags = self.pick(&[8, 8, 8, 8, 8, 0, 0xa, 0x28, 0x68, any]);
        let index = if self.chance(30) { self.word() & 0xffff } else { counter };
        let mut wqe = words(&[index << 8 | u32::from(opcode), number << 8 | ds, flags, immediate]);
        wqe.extend(rest);
        if self.chance(4) {
            let byte = self.below(wqe.len() as u64) as usize;
            wqe[byte] = self.rng.next_u64() as u8;
        }
        wqe.resize(wqe.len().next_multiple_of(64), 0);
        let (ring, blocks) = (self.sqs[at].ring, self.sqs[at].blocks);
        for (block, bytes) in wqe.chunks(64).enumerate() {
            self.put(ring + (u64::from(counter) + block as u64) % blocks * 64, bytes);
        }
        let posted = counter.wrapping_add(wqe.len() as u32 / 64) & 0xffff;
        self.sqs[at].posted = posted;
        self.put(self.sqs[at].record, &posted.to_be_bytes());
        let bell = u64::from(be32(&wqe, 0)) << 32 | u64::from(be32(&wqe, 4));
        let uar = u64::from(self.peer.uar) * 4096;
        self.peer.host.bar.write_be64(uar + 0x800, bell);
        self.step();
        let _ = self.peer.polled();
        if self.is_stuck(at) && !self.chance(4) {
            self.restart(at);
        }
    }

    /// Whether a send queue does not work any more.
    pub(crate) fn is_stuck(&self, at: usize) -> bool {
        let (objects, number) = (&self.peer.host.nic.state().objects, self.sqs[at].number);
        if at == 0 {
            return objects.sqs.get(number).is_none_or(|sq| sq.state != QueueState::Ready);
        }
        objects.qps.get(number).is_none_or(|qp| qp.state != QpState::Rts)
    }

    /// Brings a queue back that a bad WQE has put into the error state.
    pub(crate) fn restart(&mut self, at: usize) {
        let number = self.sqs[at].number;
        let commands: Vec<Vec<u8>> = if at == 0 {
            vec![modify_queue(0x905, number, 3, 0), modify_queue(0x905, number, 0, 1)]
        } else {
            let own = |input: &&Vec<u8>| {
                matches!(input[1], 0x02..=0x04) && input[0] == 5 && be32(input, 8) == number
            };
            let reset = words(&[0x050a_0000, 0, number, 0]);
            std::iter::once(reset).chain(self.templates.iter().filter(own).cloned()).collect()
        };
        for input in commands {
            self.peer.host.post(0, &input, 0x10);
            self.peer.host.ring_bell(1);
            self.step();
        }
        self.sqs[at].posted = 0;
        self.put(self.sqs[at].record, &[0; 4]);
        if at > 0 {
            self.rqs[at].posted = 0;
            self.put(self.rqs[at].record, &[0; 4]);
        }
    }

    pub(crate) fn receive_request(&mut self) {
        let at = self.below(self.rqs.len() as u64) as usize;
        let stride = if at == 0 { 16 } else { 64 };
        for _ in 0..1 + self.below(4) {
            let mut wqe = self.segment();
            if stride == 64 {
                wqe.extend(self.segment());
                wqe.extend(data(0, 0x100, 0));
            }
            wqe.resize(stride, 0);
            let queue = &mut self.rqs[at];
            let place = queue.ring + u64::from(queue.posted) % queue.blocks * stride as u64;
            queue.posted = queue.posted.wrapping_add(1) & 0xffff;
            let (record, posted) = (queue.record, queue.posted);
            self.put(place, &wqe);
            self.put(record, &posted.to_be_bytes());
        }
        self.step();
    }
}
