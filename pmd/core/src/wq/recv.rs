//! [`RecvRing`]: scatter lists of one length, in order.

use std::sync::Arc;

use ferrocx_bus::{BusError, DmaBuf, DmaWord, Ring, RingView};
use ferrocx_prm::Layout;
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::wq::CreateRq;
use ferrocx_prm::init_seg::WqDoorbellRecord;
use ferrocx_prm::wqc::{LOG_STRIDE_BYTES_BASE, LOG_STRIDES_BASE, Rqc, Wq, wq_type};
use ferrocx_prm::wqe::{DS_BYTES, LOG_DS_BYTES};

use super::{Wqe, ts_format};
use crate::counters::CounterSet;
use crate::device::Device;
use crate::error::DeviceError;
use crate::handle::Handle;
use crate::objects::{Kind, page_list};

/// How large a ring of receives is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecvSize {
    /// log2 of its entries.
    pub log_entries: u8,
    /// log2 of the units of 16 bytes of an entry: data segments, of a shared queue also a link.
    pub log_units: u8,
}

impl RecvSize {
    /// Bytes of the ring.
    #[must_use]
    pub fn bytes(self) -> usize {
        DS_BYTES << self.log_all_units()
    }

    pub(super) fn log_all_units(self) -> u8 {
        self.log_entries + self.log_units
    }
}

/// How an Ethernet receive queue is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct RqAttr<'a> {
    /// Its protection domain.
    pub pd: u32,
    /// Its entries may use the reserved L_Key.
    pub rlky: bool,
    /// VLAN tags stay in the frames.
    pub keeps_vlan: bool,
    /// The completion queue of its packets.
    pub cqn: u32,
    /// The number that its completions carry.
    pub user_index: u32,
    /// Entries, and their data segments; those of a striding queue begin with a link.
    pub size: RecvSize,
    /// Of a striding queue, whose entries are buffers for many packets each: what they look like.
    pub strides: Option<Strides>,
    /// What counts the packets that find no entry.
    pub drops: Option<&'a CounterSet>,
}

/// Entries of a striding receive queue: a packet takes whole strides, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strides {
    /// log2 of the strides of an entry, at least 9.
    pub log_count: u8,
    /// log2 of the bytes of a stride, at least 6.
    pub log_bytes: u8,
}

/// The ring of a receive queue, of Ethernet or of a queue pair.
#[derive(Debug)]
pub struct RecvRing {
    units: Ring<DS_BYTES>,
    log_segments: u8,
    record: DmaWord,
    entries: u32,
    /// Entries posted since the queue became ready, modulo 2^32.
    pub pi: u32,
    /// Entries completed since.
    pub ci: u32,
}

impl RecvRing {
    /// Views the ring at the start of a buffer; the first word of the doorbell record is its own.
    ///
    /// # Errors
    ///
    /// [`BusError::OutOfRange`] when ring or record reach past their buffers.
    ///
    /// # Safety
    /// These are ring and record of a queue of the caller's, or no queue's; beside that, the
    /// conditions of [`RecvRing::create`].
    ///
    /// ```compile_fail,E0133
    /// # use std::sync::Arc;
    /// # use ferrocx_bus::{BusError, DmaBuf};
    /// # use ferrocx_core::wq::{RecvRing, RecvSize};
    /// fn safe(buf: &Arc<DmaBuf>, size: RecvSize) -> Result<RecvRing, BusError> {
    ///     RecvRing::over(buf, size, buf)
    /// }
    /// ```
    #[expect(unsafe_code, reason = "entries tell the device where to write")]
    pub unsafe fn over(
        buf: &Arc<DmaBuf>,
        size: RecvSize,
        record: &Arc<DmaBuf>,
    ) -> Result<Self, BusError> {
        let units = Ring::new(Arc::clone(buf), 0, size.log_all_units())?;
        let record = DmaWord::new(Arc::clone(record), WqDoorbellRecord::RECV_COUNTER.offset)?;
        let (log_segments, entries) = (size.log_units, 1 << size.log_entries);
        Ok(Self { units, log_segments, record, entries, pi: 0, ci: 0 })
    }

    /// Makes an Ethernet receive queue in reset, with the memory of its ring. The handle destroys
    /// it.
    ///
    /// # Errors
    ///
    /// What the device refused.
    ///
    /// # Safety
    /// The device writes to whatever memory an entry names that [`RecvRing::begin`] wrote and
    /// [`RecvRing::tell`] showed. Until that entry has completed, or the handle's object is gone,
    /// the memory stays mapped, and nothing else reads or writes it.
    ///
    /// ```compile_fail,E0133
    /// # use ferrocx_core::{Device, DeviceError, Handle};
    /// # use ferrocx_core::wq::{RecvRing, RqAttr};
    /// fn safe(device: &Device, attr: &RqAttr<'_>) -> Result<(RecvRing, Handle), DeviceError> {
    ///     RecvRing::create(device, attr)
    /// }
    /// ```
    #[expect(unsafe_code, reason = "entries tell the device where to write")]
    pub unsafe fn create(
        device: &Device,
        attr: &RqAttr<'_>,
    ) -> Result<(Self, Handle), DeviceError> {
        let buf = Arc::new(device.alloc_dma(attr.size.bytes(), 4096)?);
        let record = Arc::new(device.alloc_dma(WqDoorbellRecord::SIZE_BYTES, 64)?);
        let wq = Wq::zeroed()
            .with_pd(attr.pd)
            .with_dbr_addr(record.iova())
            .with_log_wq_stride(LOG_DS_BYTES + u32::from(attr.size.log_units))
            .with_log_wq_sz(attr.size.log_entries.into());
        let wq = match attr.strides {
            None => wq.with_wq_type(wq_type::CYCLIC),
            Some(Strides { log_count, log_bytes }) => wq
                .with_wq_type(wq_type::CYCLIC_STRIDING)
                .with_log_wqe_num_of_strides(u32::from(log_count) - LOG_STRIDES_BASE)
                .with_log_wqe_stride_size(u32::from(log_bytes) - LOG_STRIDE_BYTES_BASE),
        };
        let rqc = Rqc::zeroed()
            .with_rlky(attr.rlky)
            .with_vsd(attr.keeps_vlan)
            .with_flush_in_error_en(true)
            .with_ts_format(ts_format(device.hca_cap().rq_ts_format()))
            .with_user_index(attr.user_index)
            .with_cqn(attr.cqn)
            // Without one: set 0, which counts for whoever took it, as for every driver.
            .with_counter_set_id(attr.drops.map_or(0, CounterSet::number))
            .with_wq(wq);
        let input = CreateRq::input().with_ctx(rqc);
        let rqn = device.execute::<CreateRq>(&input, &page_list(&buf), &mut [])?.rqn();
        // SAFETY: the queue was just made, with this ring and record; the rest is the caller's.
        let ring = unsafe { Self::over(&buf, attr.size, &record)? };
        let handle = Handle::new(device, Kind::Rq, rqn, vec![buf, record]);
        Ok((ring, attr.drops.iter().fold(handle, |queue, drops| drops.needed_by(queue))))
    }

    /// Entries of the ring.
    #[inline(always)]
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// log2 of the data segments of an entry.
    #[inline(always)]
    #[must_use]
    pub fn log_segments(&self) -> u8 {
        self.log_segments
    }

    /// Entries that are posted and not completed.
    #[inline(always)]
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.pi.wrapping_sub(self.ci)
    }

    /// Entries that can be posted.
    #[inline(always)]
    #[must_use]
    pub fn missing(&self) -> u32 {
        self.entries - self.outstanding()
    }

    /// The data segments of the ring; those of entry `pi` start at `pi << log_segments`.
    #[inline(always)]
    #[must_use]
    pub fn view(&self) -> RingView<'_, DS_BYTES> {
        self.units.view()
    }

    /// Starts the scatter list of the next entry. The caller made sure that one is missing.
    #[inline(always)]
    #[must_use]
    pub fn begin(&self) -> Wqe<'_> {
        Wqe::new(self.view(), self.pi << self.log_segments, 0)
    }

    /// Tells the device how many entries are posted.
    #[inline(always)]
    pub fn tell(&self) {
        self.record.store_release_be32(u32::from(self.pi as u16));
    }

    /// Starts again at the beginning of the ring: the queue was reset, and all has ended.
    pub fn restart(&mut self) {
        (self.pi, self.ci) = (0, 0);
        self.tell();
    }
}
