//! A device that lies: a model that carries commands out, behind a transport that changes what the
//! driver reads of it. It can say anything in registers, outputs and events.

#![allow(unreachable_pub, reason = "a module of tests")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrocx_bus::local::{LocalConfig, LocalTransport, pair};
use ferrocx_bus::{
    Bar, BarClaim, BarMemory, BusError, DmaAccess, DmaLimits, DmaMapping, DmaSpace, Doorbell,
    Interrupts, PciIdentity, Transport,
};
use ferrocx_mempool::Region;
use ferrocx_model::fault::{CommandFault, Fault, FaultPlan};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_prm::Layout;
use ferrocx_prm::cmd::{CommandEntry, InputHeader, Opcode};
use ferrocx_prm::eqe::Eqe;
use ferrocx_prm::init_seg::{EqDoorbell, offset, uar};

/// Time of one step, for the device and for its driver: whoever waits in vain for 50 ms looks fifty
/// times, however fast the machine is.
const STEP_NS: u64 = 1_000_000;

/// Changes the first 16 bytes of a command's output: status, syndrome, and what follows.
type Output = Box<dyn FnMut(Opcode, &mut [u8; 16]) + Send>;

/// What is said instead of the truth.
#[derive(Default)]
struct Lies {
    /// Words of registers, by offset.
    registers: BTreeMap<u64, u32>,
    output: Option<Output>,
    /// The event that stands in every entry of the event queue, whatever the driver consumes.
    flood: Option<Eqe>,
    /// Events consumed so far, as the driver said last.
    consumer: u32,
    /// The same when the queue was last filled with the event, if it was.
    filled_at: Option<u32>,
    /// Where the driver put the command queue: its high half, then all of it.
    queue_high: u32,
    queue: u64,
    /// Slots whose commands are not answered yet.
    posted: Vec<u32>,
}

/// The device and the transport to it, in the driver's thread.
pub struct Liar {
    local: Arc<LocalTransport>,
    nic: Arc<Mutex<Nic>>,
    epoch: Instant,
    now_ns: AtomicU64,
    lies: Arc<Mutex<Lies>>,
    /// The system does not unmap everything, as while other devices use the address space.
    refuses_unmap: Arc<AtomicBool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Liar {
    /// One that does not lie yet.
    pub fn new() -> Arc<Self> {
        Self::with(NicConfig::default())
    }

    /// The same, of a device of any kind.
    pub fn with(config: NicConfig) -> Arc<Self> {
        let (local, side) = pair(LocalConfig::default()).unwrap();
        let nic = Arc::new(Mutex::new(Nic::new(side, config)));
        let (now_ns, lies, refuses_unmap) = Default::default();
        Arc::new(Self { local, nic, epoch: Instant::now(), now_ns, lies, refuses_unmap })
    }

    /// The register at `at` reads as `word` from now on.
    pub fn lie_in_register(&self, at: u64, word: u32) {
        lock(&self.lies).registers.insert(at, word);
    }

    /// Registers tell the truth again.
    pub fn registers_are_true(&self) {
        lock(&self.lies).registers.clear();
    }

    /// Outputs of commands pass through `change` from now on.
    pub fn lie_in_outputs(&self, change: impl FnMut(Opcode, &mut [u8; 16]) + Send + 'static) {
        lock(&self.lies).output = Some(Box::new(change));
    }

    /// Outputs tell the truth again.
    pub fn outputs_are_true(&self) {
        lock(&self.lies).output = None;
    }

    /// However many events the driver consumes, there is another, until `None` ends it.
    pub fn flood(&self, event: Option<Eqe>) {
        let mut lies = lock(&self.lies);
        (lies.flood, lies.filled_at) = (event, None);
        drop(lies);
        self.refill();
    }

    /// Commands that it was given so far.
    pub fn commands(&self) -> u64 {
        lock(&self.nic).state().counters.commands
    }

    /// The next command is never answered.
    pub fn ignore_the_next_command(&self) {
        let mut nic = lock(&self.nic);
        let nth = nic.state().counters.commands + 1;
        nic.set_faults(FaultPlan::at(&[Fault::Command { nth, fault: CommandFault::Stuck }]));
    }

    /// Lets the system refuse to unmap everything, or not any more.
    pub fn refuse_unmap(&self, refuse: bool) {
        self.refuses_unmap.store(refuse, Ordering::Relaxed);
    }

    /// Writes to memory as the device, past all that the driver asked for; whether that is mapped.
    pub fn scribbles(&self, iova: u64, len_bytes: usize) -> bool {
        lock(&self.nic).side().memory().write(iova, &vec![0xee; len_bytes]).is_ok()
    }

    /// Mappings that the device reaches.
    pub fn mappings(&self) -> usize {
        lock(&self.nic).side().dma_mappings()
    }

    /// Fills the event queue from the driver's place on, as far as that was not done before.
    fn refill(&self) {
        let mut lies = lock(&self.lies);
        let Lies { flood: Some(event), consumer, filled_at, .. } = &mut *lies else { return };
        let nic = lock(&self.nic);
        let memory = nic.side().memory();
        for (_, eq) in nic.state().objects.eqs.iter() {
            let size = 1 << eq.log_size;
            let first = filled_at.map_or(*consumer, |before| (before + size).max(*consumer));
            for index in first..*consumer + size {
                let eqe = event.with_owner(index >> eq.log_size & 1 != 0);
                let at = u64::from(index & (size - 1)) * Eqe::SIZE_BYTES as u64;
                let _ = memory.write(eq.memory.locate(at), &eqe.0);
            }
        }
        *filled_at = Some(*consumer);
    }

    /// Changes the outputs that have come.
    fn falsify(&self) {
        let Lies { output: Some(change), queue, posted, .. } = &mut *lock(&self.lies) else {
            return;
        };
        let nic = lock(&self.nic);
        let memory = nic.side().memory();
        posted.retain(|slot| {
            let at = *queue + u64::from(*slot) * CommandEntry::SIZE_BYTES as u64;
            let mut entry = CommandEntry::zeroed();
            memory.read(at, &mut entry.0).unwrap();
            if entry.ownership() {
                return true;
            }
            let header = InputHeader::read_from(&entry.command_input_inline_data()).unwrap();
            let mut output = entry.command_output_inline_data();
            change(Opcode(header.opcode() as u16), &mut output);
            let range = CommandEntry::COMMAND_OUTPUT_INLINE_DATA.range();
            memory.write(at + range.start as u64, &output).unwrap();
            false
        });
    }
}

impl std::fmt::Debug for Liar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Liar")
    }
}

impl Transport for LyingTransport {
    fn bar(&self, claim: BarClaim) -> Arc<dyn Bar> {
        Arc::new(LyingBar { truth: self.0.local.bar(claim), liar: Arc::clone(&self.0) })
    }

    fn dma(&self) -> Arc<dyn DmaSpace> {
        let refuses = Arc::clone(&self.0.refuses_unmap);
        Arc::new(LyingSpace { truth: self.0.local.dma(), refuses })
    }

    fn interrupts(&self) -> Arc<dyn Interrupts> {
        self.0.local.interrupts()
    }

    fn identity(&self) -> &PciIdentity {
        self.0.local.identity()
    }

    fn name(&self) -> &'static str {
        "liar"
    }

    fn reset(&self) -> Result<(), BusError> {
        lock(&self.0.lies).posted.clear();
        self.0.local.reset()
    }

    fn reset_complete(&self) -> bool {
        self.0.local.reset_complete()
    }

    fn relax(&self) {
        lock(&self.0.nic).step(self.0.now_ns.fetch_add(STEP_NS, Ordering::Relaxed));
        self.0.falsify();
    }

    fn now(&self) -> Instant {
        self.0.epoch + Duration::from_nanos(self.0.now_ns.load(Ordering::Relaxed))
    }
}

/// The transport to a [`Liar`].
#[derive(Debug)]
pub struct LyingTransport(pub Arc<Liar>);

/// Its registers.
#[derive(Debug)]
struct LyingBar {
    truth: Arc<dyn Bar>,
    liar: Arc<Liar>,
}

impl Bar for LyingBar {
    fn len_bytes(&self) -> u64 {
        self.truth.len_bytes()
    }

    fn read_be32(&self, offset: u64) -> u32 {
        let lie = lock(&self.liar.lies).registers.get(&offset).copied();
        lie.unwrap_or_else(|| self.truth.read_be32(offset))
    }

    fn write_be32(&self, at: u64, value: u32) {
        let mut lies = lock(&self.liar.lies);
        match at {
            offset::CMDQ_ADDR_HI => lies.queue_high = value,
            offset::CMDQ_ADDR_LO => {
                lies.queue = u64::from(lies.queue_high) << 32 | u64::from(value & !0xfff);
            }
            offset::COMMAND_DOORBELL => lies.posted.push(value.trailing_zeros()),
            _ => {}
        }
        drop(lies);
        self.truth.write_be32(at, value);
        if at >= uar::PAGE_BYTES && at % uar::PAGE_BYTES == uar::EQ_CI {
            let mut lies = lock(&self.liar.lies);
            let consumer = value & EqDoorbell::CI.mask();
            if consumer < lies.consumer {
                // The counter has come round.
                lies.filled_at = None;
            }
            lies.consumer = consumer;
            drop(lies);
            self.liar.refill();
        }
    }

    fn write_be64(&self, offset: u64, value: u64) {
        self.truth.write_be64(offset, value);
    }

    fn doorbell(&self, offset: u64) -> Result<Doorbell, BusError> {
        self.truth.doorbell(offset)
    }

    fn memory(&self, offset: u64, len_bytes: u64) -> Result<BarMemory, BusError> {
        self.truth.memory(offset, len_bytes)
    }
}

/// Its address space.
#[derive(Debug)]
struct LyingSpace {
    truth: Arc<dyn DmaSpace>,
    refuses: Arc<AtomicBool>,
}

impl DmaSpace for LyingSpace {
    fn map(&self, region: Arc<Region>, access: DmaAccess) -> Result<Arc<DmaMapping>, BusError> {
        self.truth.map(region, access)
    }

    fn unmap_all(&self) -> Result<(), BusError> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(BusError::NotMapped { iova: 0, len_bytes: 0 });
        }
        self.truth.unmap_all()
    }

    fn limits(&self) -> DmaLimits {
        self.truth.limits()
    }
}
