//! [`Gsi`]: the port's queue pair 1, which management datagrams go through.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ferrocx_mempool::{PageSize, RegionConfig};
use ferrocx_prm::cqe::l3_hdr_type;
use ferrocx_prm::mad::{GSI_QKEY, GSI_QPN, MAD_BYTES};

use super::message::Mad;
use crate::context::RdmaContext;
use crate::cq::Cq;
use crate::error::VerbsError;
use crate::gid::Path;
use crate::mr::{Buf, Memory};
use crate::qp::{InitAttr, Qp, QpConfig, QpState, RtsAttr};
use crate::types::{Access, Psn, Qpn};
use crate::watch::Watch;
use crate::wr::{AddressHandle, SendOp, SendWr};

/// Datagrams that wait for us to read them.
const RECEIVES: usize = 64;
/// Datagrams under way.
const SENDS: u32 = 64;
/// Bytes of the IP header in front of a datagram.
const GRH_BYTES: usize = 40;
/// Where an IPv4 header starts in them. Source: reference 7.8.
const IPV4_AT: usize = 20;
/// Bytes of a receive buffer, rounded up.
const SLOT_BYTES: usize = 512;

/// A datagram that arrived.
#[derive(Debug)]
pub(super) struct Received {
    /// Who sent it, and to which address of ours.
    pub(super) remote: IpAddr,
    pub(super) local: IpAddr,
    pub(super) mad: Mad,
}

/// The queue pair of now, and where it completes.
#[derive(Debug)]
struct Queue {
    qp: Qp,
    cq: Cq,
}

/// The queue pair, made anew when the device loses it.
#[derive(Debug)]
pub(super) struct Gsi {
    context: RdmaContext,
    page: PageSize,
    watch: Watch,
    /// `None` when another could not be had yet.
    queue: Option<Queue>,
    /// Datagrams that were not for the connection manager, or malformed.
    pub(super) ignored: u64,
    /// Times that it was made anew.
    pub(super) restarts: u64,
}

impl Queue {
    fn open(context: &RdmaContext, page: PageSize) -> Result<Self, VerbsError> {
        let pd = context.alloc_pd()?;
        let len_bytes = RECEIVES * SLOT_BYTES;
        let memory =
            Memory::alloc(context, &RegionConfig { len_bytes, page, ..Default::default() })?;
        let mr = pd.reg_mr(&memory, 0..len_bytes, Access::LOCAL_WRITE)?;
        let config = QpConfig {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES as u32,
            max_inline_bytes: MAD_BYTES as u32,
            ..QpConfig::default()
        };
        let cq = context.create_cq(SENDS + RECEIVES as u32)?;
        let mut qp = Qp::new_gsi(&pd, &cq, &config)?;
        qp.init(&InitAttr { access: Access::empty(), qkey: GSI_QKEY })?;
        for slot in 0..RECEIVES {
            let at = slot * SLOT_BYTES;
            let buf = mr.buf(at..at + GRH_BYTES + MAD_BYTES)?;
            // The ring has room for all of them.
            let posted = qp.post_recv(slot as u64, buf);
            debug_assert!(posted.is_ok(), "the ring has room for {RECEIVES} receives");
        }
        qp.receive()?;
        qp.activate(&RtsAttr::new(Psn(0)))?;
        Ok(Self { qp, cq })
    }
}

impl Gsi {
    pub(super) fn open(context: &RdmaContext, page: PageSize) -> Result<Self, VerbsError> {
        Ok(Self {
            // What comes from now on is of the queue pair that is made next.
            watch: Watch::new(context.device()),
            queue: Some(Queue::open(context, page)?),
            context: context.clone(),
            page,
            ignored: 0,
            restarts: 0,
        })
    }

    /// Makes the queue pair anew if it is lost. Messages that were under way are repeated.
    pub(super) fn tend(&mut self, now: Duration) {
        if !self.watch.finds_lost(now, self.queue.as_ref().map(|queue| &queue.qp)) {
            return;
        }
        let was_there = self.queue.take().is_some();
        match Queue::open(&self.context, self.page) {
            Ok(queue) => {
                tracing::warn!("general services queue pair was lost, and is made anew");
                self.queue = Some(queue);
                self.restarts += 1;
            }
            Err(error) => {
                self.watch.wait(now);
                if was_there {
                    let what = "general services queue pair is lost; it is tried again";
                    tracing::error!(%error, "{what}");
                }
            }
        }
    }

    /// Sends a datagram; `false` if there is no room right now.
    pub(super) fn send(&mut self, path: &Path, mad: &Mad) -> bool {
        let Some(queue) = &mut self.queue else { return false };
        let to = AddressHandle::new(path, Qpn(GSI_QPN), GSI_QKEY);
        let wr = SendWr::signaled(0, SendOp::Datagram { to: &to, imm: None });
        queue.qp.post_send_inline(&wr, &mad.to_bytes()).is_ok()
    }

    /// Takes a completion, if there is one, and with it the message that arrived, if one did.
    pub(super) fn receive(&mut self) -> Option<Option<Received>> {
        let Queue { qp, cq } = self.queue.as_mut()?;
        let completion = cq.poll()?;
        let mut arrived = None;
        let taken = qp.complete(completion, |wc| {
            if wc.opcode == crate::wr::WcOpcode::Recv {
                let len = wc.byte_len as usize;
                let is_good = wc.result.is_ok() && wc.recv.has_grh;
                let (len, header) =
                    (if is_good { len } else { 0 }, wc.recv.network_hdr_type.into());
                arrived = wc.into_buffers().map(|buf| (buf, len, header));
            } else if let Err(failure) = wc.result {
                tracing::warn!(%failure, "management datagram not sent");
            }
        });
        if let Err(error) = taken {
            tracing::error!(%error, "general services queue pair");
        }
        if qp.state() == QpState::SqError {
            match qp.resume() {
                // The rest of what was posted comes back first.
                Ok(()) | Err(VerbsError::StillPosted { .. }) => {}
                Err(error) => tracing::error!(%error, "general services do not send any more"),
            }
        }
        let Some((buf, len, header)) = arrived else { return Some(None) };
        let received = read(&buf, len, header);
        // One that has failed takes none.
        if qp.post_recv(0, buf).is_err() && qp.state() != QpState::Error {
            tracing::error!("general services queue pair lost a receive");
        }
        self.ignored += u64::from(received.is_none());
        Some(received)
    }
}

/// Reads the IP header, of the type that its completion says, and the datagram behind it.
fn read(buf: &Buf, len: usize, header_type: u32) -> Option<Received> {
    let mut bytes = [0; GRH_BYTES + MAD_BYTES];
    if len != bytes.len() {
        return None;
    }
    buf.copy_out(0, &mut bytes).ok()?;
    let (header, body) = bytes.split_at(GRH_BYTES);
    let (remote, local) = addresses(header.first_chunk()?, header_type)?;
    match Mad::parse(body) {
        Ok(mad) => Some(Received { remote, local, mad }),
        Err(reason) => {
            tracing::debug!(%reason, %remote, "management datagram ignored");
            None
        }
    }
}

/// Source and destination of the IP header in front of a datagram. In front of one of IPv4 may
/// stand what the buffer had before, so its bytes do not say which one it is.
fn addresses(header: &[u8; GRH_BYTES], header_type: u32) -> Option<(IpAddr, IpAddr)> {
    if header_type == l3_hdr_type::IPV6 && header[0] >> 4 == 6 {
        let v6 = |at: usize| {
            let octets: [u8; 16] = *header.get(at..)?.first_chunk()?;
            Some(Ipv6Addr::from(octets).to_canonical())
        };
        return Some((v6(8)?, v6(24)?));
    }
    if header_type == l3_hdr_type::IPV4 && header[IPV4_AT] >> 4 == 4 {
        let v4 = |at: usize| {
            let octets: [u8; 4] = *header.get(IPV4_AT + at..)?.first_chunk()?;
            Some(IpAddr::V4(Ipv4Addr::from(octets)))
        };
        return Some((v4(12)?, v4(16)?));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_either_header() {
        let mut header = [0; GRH_BYTES];
        header[20] = 0x45;
        header[32..40].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        // Of an earlier datagram in the same buffer.
        header[0] = 0x60;
        let v4 = |last| IpAddr::from([10, 0, 0, last]);
        let (ipv4, ipv6) = (l3_hdr_type::IPV4, l3_hdr_type::IPV6);
        assert_eq!(addresses(&header, ipv4), Some((v4(1), v4(2))));
        let mut header = [0; GRH_BYTES];
        header[0] = 0x60;
        (header[8], header[23], header[24], header[39]) = (0xfd, 1, 0xfd, 2);
        let v6 = |text: &str| text.parse().unwrap();
        assert_eq!(addresses(&header, ipv6), Some((v6("fd00::1"), v6("fd00::2"))));
        assert_eq!(addresses(&header, ipv4), None);
        assert_eq!(addresses(&[0; GRH_BYTES], ipv6), None);
    }
}
