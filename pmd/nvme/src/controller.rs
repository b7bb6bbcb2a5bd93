//! [`Controller`]: a drive, from its reset to its shutdown.

use std::sync::Arc;
use std::time::{Duration, Instant};

#[expect(unsafe_code, reason = "the claim to the registers")]
mod claim {
    use ferrocx_bus::{Bar, BarClaim, Transport};
    use std::sync::Arc;

    /// The registers of a drive that this crate alone drives.
    pub(super) fn registers(transport: &dyn Transport) -> Arc<dyn Bar> {
        // SAFETY: commands lead the drive to rings and lists of a heap of this crate, which are
        // copied only, and to regions in raw use (`Memory` in parts.rs), of which nobody lends
        // bytes while the drive may reach them: they are unmapped, or the drive is off, before
        // either goes.
        transport.bar(unsafe { BarClaim::new() })
    }
}

use ferrocx_bus::sysfs::Sysfs;
use ferrocx_bus::vfio::{VfioConfig, VfioTransport};
use ferrocx_bus::{BusError, DmaHeap, Transport};
use ferrocx_mempool::Region;

use crate::admin::{Admin, pause, wait};
use crate::identify::{ControllerInfo, Namespace};
use crate::parts::heap;
use crate::queue::{IoQueue, QueueConfig};
use crate::quirks::Quirks;
use crate::registers::{CC_ENABLED, CSTS_FATAL, CSTS_READY, Cap, GONE, Registers};
use crate::shared::{ACTIVE, MAKING, QueueShared};
use crate::{Config, NvmeError};

/// The class of NVMe controllers. Source: reference 12.1.
const CLASS: u32 = 0x01_0802;
/// How long a drive that was reset may be before it answers reads of its registers.
const MUTE_PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of the admin queues and of the page that answers come in.
const ADMIN_BYTES: usize = 4 * 4096;

/// How a drive is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Ready,
    /// It is there no more, for this reason; open it again when it is.
    Gone(String),
}

/// What had to be done about a drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Commands that took too long, for which an abort was sent.
    pub aborts: u64,
    /// Resets since it was opened.
    pub resets: u64,
}

/// The way to a drive that is there.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) registers: Registers,
    pub(crate) admin: Admin,
    pub(crate) quirks: Quirks,
    /// The memory of the admin queues.
    _heap: DmaHeap,
}

/// An NVMe drive, driven by this process alone. Dropping it tells the drive to shut down; its
/// queues end what is under way then.
#[derive(Debug)]
pub struct Controller {
    pub(crate) name: String,
    pub(crate) config: Config,
    cap: Cap,
    pub(crate) info: ControllerInfo,
    /// Queue pairs that the drive grants.
    pub(crate) granted: u16,
    pub(crate) link: Option<Link>,
    pub(crate) why_gone: String,
    pub(crate) queues: Vec<Arc<QueueShared>>,
    /// The command that an abort was sent for, and when.
    pub(crate) aborting: Option<(u16, u16, Instant)>,
    pub(crate) counts: Counts,
}

/// How the NVMe drive at a PCI address is opened by VFIO.
///
/// # Errors
///
/// No such device, or one that is no NVMe drive.
pub fn vfio_config(sysfs: Sysfs, address: &str) -> Result<VfioConfig, NvmeError> {
    let found = sysfs.device(address)?;
    let identity = found.identity;
    if found.class != CLASS {
        return Err(NvmeError::NoDrive { name: identity.name, class: found.class });
    }
    let also_accept = vec![(identity.vendor, identity.device)];
    Ok(VfioConfig { address: identity.name, also_accept, sysfs, ..VfioConfig::default() })
}

/// Checks what can be known of a drive before VFIO is asked for it.
///
/// # Errors
///
/// As [`vfio_config`]; a drive without an IOMMU, or bound to another driver than vfio-pci.
pub fn check_ready(sysfs: &Sysfs, address: &str) -> Result<(), NvmeError> {
    let config = vfio_config(sysfs.clone(), address)?;
    sysfs.device(&config.address)?.check_ready(&config.also_accept)?;
    Ok(())
}

impl Controller {
    /// Opens the drive at a PCI address, which is bound to vfio-pci, by VFIO.
    ///
    /// # Errors
    ///
    /// Those of [`vfio_config`], of VFIO and of [`Controller::open`].
    pub fn open_vfio(address: &str, config: &Config) -> Result<Self, NvmeError> {
        let transport = VfioTransport::open(&vfio_config(Sysfs::default(), address)?)?;
        Self::open(transport, config)
    }

    /// Resets a drive and identifies it.
    ///
    /// # Errors
    ///
    /// [`NvmeError`]: a drive that has gone, is too slow, says what cannot be, or is none that this
    /// driver can use; a value of `config` outside its range. The drive is off then.
    pub fn open(transport: Arc<dyn Transport>, config: &Config) -> Result<Self, NvmeError> {
        config.check()?;
        let name = transport.identity().name.clone();
        let registers = Registers::new(claim::registers(&*transport))?;
        // VFIO has just reset it.
        let quirks = Quirks::of(transport.identity());
        pause(&*transport, quirks.after_reset);
        let answers = || Ok(registers.cap().0 != u64::MAX);
        let _ = wait(&*transport, "answer", MUTE_PATIENCE, answers);
        let cap = registers.cap();
        check_cap(&name, cap)?;
        let heap = heap(&*transport, ADMIN_BYTES)?;
        let admin = Admin::new(&heap, registers.doorbells(0, cap)?)?;
        let mut link = Link { transport, registers, admin, quirks, _heap: heap };
        link.stop(cap)?;
        let begun = link.start(&name, cap, config);
        let (info, granted) = match begun {
            Ok(found) => found,
            Err(error) => {
                // Whether it reaches the queues of a drive that did not even stop is not known.
                if link.stop(cap).is_err() && link.transport.dma().unmap_all().is_err() {
                    std::mem::forget(link);
                }
                return Err(error);
            }
        };
        Ok(Self {
            name,
            config: config.clone(),
            cap,
            info,
            granted,
            link: Some(link),
            why_gone: String::new(),
            queues: Vec::new(),
            aborting: None,
            counts: Counts::default(),
        })
    }

    /// What the drive says of itself.
    #[must_use]
    pub fn info(&self) -> &ControllerInfo {
        &self.info
    }

    /// Its PCI address.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What had to be done about it.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn cap(&self) -> Cap {
        self.cap
    }

    pub(crate) fn gone(&self) -> NvmeError {
        NvmeError::Gone { name: self.name.clone(), why: self.why_gone.clone() }
    }

    /// What a namespace is.
    ///
    /// # Errors
    ///
    /// None of that number, or one that this driver cannot use; a drive that has gone.
    pub fn namespace(&mut self, nsid: u32) -> Result<Namespace, NvmeError> {
        let most = self.info.namespaces;
        if !(1..=most).contains(&nsid) {
            return Err(NvmeError::NoNamespace { name: self.name.clone(), nsid, most });
        }
        let Some(link) = &mut self.link else { return Err(self.gone()) };
        let page = link.admin.identify_namespace(&*link.transport, &self.config, nsid)?;
        Namespace::parse(&self.name, (nsid, most), &page)
    }

    /// Makes a queue pair for a namespace, whose data will be in these regions: they are mapped for
    /// the drive until the queue has gone, and no pool can lie over them.
    ///
    /// # Errors
    ///
    /// As [`Controller::namespace`]; no queue left; memory that cannot be mapped. Nothing stays
    /// then.
    pub fn queue(&mut self, nsid: u32, memory: &[Arc<Region>]) -> Result<IoQueue, NvmeError> {
        let namespace = self.namespace(nsid)?;
        let is_free = |qid: &u16| self.queues.iter().all(|queue| queue.qid != *qid);
        let most = self.granted;
        let no_queue = || NvmeError::NoQueue { name: self.name.clone(), most };
        let qid = (1..=most).find(is_free).ok_or_else(no_queue)?;
        let Some(link) = &mut self.link else { return Err(self.gone()) };
        let doorbells = link.registers.doorbells(qid, self.cap)?;
        let largest = 1_u32 << self.cap.max_entries().ilog2();
        let config = QueueConfig {
            qid,
            entries: u32::from(self.config.entries).min(largest),
            namespace,
            info: self.info.clone(),
            use_sgl: self.config.use_sgl && self.info.has_sgl && !link.quirks.no_sgl,
            timeout: self.config.timeout,
        };
        let queue = IoQueue::new(&*link.transport, config, doorbells, memory)?;
        let shared = Arc::clone(queue.shared());
        self.queues.push(Arc::clone(&shared));
        // From now on the drive may know it, so that it is deleted before its memory goes.
        shared.set(MAKING);
        if let Err(error) = link.admin.create(&*link.transport, &self.config, &shared) {
            drop(queue);
            self.tend();
            return Err(error);
        }
        shared.set(ACTIVE);
        Ok(queue)
    }
}

fn check_cap(name: &str, cap: Cap) -> Result<(), NvmeError> {
    let name = name.to_owned();
    if cap.0 == u64::MAX {
        return Err(BusError::DeviceGone { name }.into());
    }
    let unsupported =
        |name, what, value, needs| Err(NvmeError::Unsupported { name, what, value, needs });
    if !cap.has_nvm() {
        return unsupported(name, "CAP.CSS", cap.0 >> 37 & 0xff, "the NVM command set, bit 0");
    }
    if cap.min_page() != 0 {
        return unsupported(name, "CAP.MPSMIN", cap.min_page().into(), "0, pages of 4 KiB");
    }
    if cap.max_entries() < 2 {
        return Err(NvmeError::Lies { name, what: "CAP.MQES", value: cap.0 & 0xffff });
    }
    Ok(())
}

impl Link {
    /// CSTS of a drive that is there.
    pub(crate) fn status(&self) -> Result<u32, NvmeError> {
        match self.registers.csts() {
            GONE => {
                let name = self.transport.identity().name.clone();
                Err(BusError::DeviceGone { name }.into())
            }
            status => Ok(status),
        }
    }

    /// Waits until CSTS is so. A drive that is being reset may not answer for a while: it has gone
    /// if it does not at the end.
    ///
    /// # Source
    ///
    /// SPDK `nvme_ctrlr_process_init`, which allows for the same.
    fn wait_for(
        &self,
        what: &'static str,
        cap: Cap,
        is_so: impl Fn(u32) -> bool,
    ) -> Result<(), NvmeError> {
        let limit = Duration::from_millis(cap.ready_ms().max(500));
        let waited = wait(&*self.transport, what, limit, || {
            let status = self.registers.csts();
            Ok(status != GONE && is_so(status))
        });
        waited.or_else(|error| self.status().and(Err(error)))
    }

    /// Switches the drive off: it reaches no memory then.
    pub(crate) fn stop(&self, cap: Cap) -> Result<(), NvmeError> {
        let was_on = self.registers.cc() & 1 == 1;
        self.registers.set_cc(0);
        if was_on {
            pause(&*self.transport, self.quirks.after_stop);
        }
        self.wait_for("end of its work", cap, |status| status & CSTS_READY == 0)
    }

    /// Switches the drive on, and asks what it is; that, and its queue pairs.
    pub(crate) fn start(
        &mut self,
        name: &str,
        cap: Cap,
        config: &Config,
    ) -> Result<(ControllerInfo, u16), NvmeError> {
        self.admin.place(&self.registers);
        self.registers.set_cc(CC_ENABLED);
        // A fatal status of before may stand for a while yet, and counts at the end alone.
        let ready = self.wait_for("readiness", cap, |status| status & CSTS_READY != 0);
        ready.map_err(|error| match self.status() {
            Ok(status) if status & CSTS_FATAL != 0 => NvmeError::Fatal { name: name.to_owned() },
            _ => error,
        })?;
        let page = self.admin.identify_controller(&*self.transport, config)?;
        let mut info = ControllerInfo::parse(name, &page)?;
        if info.says_limits()
            && let Some(page) = self.admin.identify_nvm(&*self.transport, config)?
        {
            info.limit(&page);
        }
        let granted = self.admin.want_queues(&*self.transport, config)?;
        Ok((info, granted))
    }
}
