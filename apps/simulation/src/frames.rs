//! Ethernet beside RDMA: two hosts send each other numbered frames through queues of the same
//! devices.
//!
//! Frames may be lost, so a frame is handed over once and never again. What arrives in a host's
//! name is what that host sent, byte for byte, once; where the plan has no fault, all of it
//! arrives, in order.

use std::error::Error;

use arrayvec::ArrayVec;
use ferrocx_core::{Device, FlowMatch};
use ferrocx_mempool::{Mbuf, PageSize, Pool, PoolConfig, RegionConfig};
use ferrocx_model::wire::SplitMix64;
use ferrocx_pmd::{Lane, LaneConfig, RxQueueConfig, TxQueueConfig};

use crate::ether::EXPERIMENTAL;
use crate::host::mac_of;
use crate::planted::Bug;
use crate::stage::{Stage, Violation, ensure};

/// Addresses, type, and the frame's number.
const HEADER_BYTES: usize = 22;
const MIN_BYTES: usize = 60;
/// Frames of a turn.
const BURST: usize = 16;
/// Pause before another attempt to have queues.
const PAUSE_NS: u64 = 500_000;
/// Simulated time without room in the ring, or without a frame, after which queues are made anew
/// where the device may have lost something.
const STALL_NS: u64 = 50_000_000;

/// Sizes and habits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FramesPlan {
    pub(crate) seed: u64,
    pub(crate) hosts: [usize; 2],
    /// Of each host.
    pub(crate) frames: u64,
    /// Longest frame.
    pub(crate) max_bytes: usize,
    pub(crate) descriptors: u32,
    pub(crate) cqe_compression: bool,
    pub(crate) multi_packet: bool,
    pub(crate) inline_bytes: u16,
}

/// What a host has while its device works. Dropped in this order.
struct Station {
    lane: Lane,
    /// Frames that found no room.
    waiting: ArrayVec<Mbuf, BURST>,
    pool: Pool,
    moved_ns: u64,
}

struct Side {
    host: usize,
    station: Option<Station>,
    /// Not to be made before.
    at_ns: u64,
    /// Frames that this host has handed over.
    sent: u64,
    /// Of each frame of the other's, whether it has arrived; and how many in all.
    has_arrived: Vec<bool>,
    arrived: u64,
}

/// The traffic.
pub(crate) struct Frames {
    plan: FramesPlan,
    sides: [Side; 2],
    is_lossless: bool,
    may_double: bool,
    bytes: Vec<u8>,
}

impl FramesPlan {
    /// The bytes of a frame of a side: each has its own, and each place in it.
    fn fill(&self, side: usize, number: u64, bytes: &mut Vec<u8>) {
        let mut random = SplitMix64::new(self.seed ^ (number << 1 | side as u64));
        let len = MIN_BYTES + random.below((self.max_bytes - MIN_BYTES + 1) as u64) as usize;
        bytes.clear();
        bytes.extend_from_slice(&mac_of(self.hosts[1 - side]));
        bytes.extend_from_slice(&mac_of(self.hosts[side]));
        bytes.extend_from_slice(&EXPERIMENTAL.to_be_bytes());
        bytes.extend_from_slice(&number.to_be_bytes());
        while bytes.len() < len {
            bytes.extend_from_slice(&random.next_u64().to_le_bytes());
        }
        bytes.truncate(len);
    }

    fn lane(&self) -> LaneConfig {
        let rx = RxQueueConfig {
            descriptors: self.descriptors,
            cqe_compression: self.cqe_compression,
            cache_size: 64,
            ..RxQueueConfig::default()
        };
        let tx = TxQueueConfig {
            descriptors: self.descriptors,
            multi_packet: self.multi_packet,
            inline_bytes: self.inline_bytes,
            ..TxQueueConfig::default()
        };
        LaneConfig { rx, tx }
    }

    fn open(&self, device: &Device, now_ns: u64) -> Result<Station, Box<dyn Error>> {
        let region = RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() };
        let config = self.lane();
        let mut pool = PoolConfig { cache_size: 64, region, ..PoolConfig::default() };
        pool.count = config.buffers(&pool) + 2 * BURST;
        let pool = Pool::new(&pool)?;
        device.register_pool(&pool)?;
        let matches = FlowMatch { ethertype: Some(EXPERIMENTAL), ..FlowMatch::default() };
        let lane = Lane::matching(device, &pool, matches, &config)?;
        Ok(Station { lane, waiting: ArrayVec::new(), pool, moved_ns: now_ns })
    }
}

impl Frames {
    /// With `is_lossless` no frame may be lost; with `may_double` one may come twice.
    pub(crate) fn new(plan: FramesPlan, is_lossless: bool, may_double: bool) -> Self {
        let side = |host| Side {
            host,
            station: None,
            at_ns: 0,
            sent: 0,
            has_arrived: vec![false; plan.frames as usize],
            arrived: 0,
        };
        Self { plan, sides: plan.hosts.map(side), is_lossless, may_double, bytes: Vec::new() }
    }

    /// Frames that were handed over, and where none may be lost those that arrived; and all.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let counted = |side: &Side| if self.is_lossless { side.arrived } else { side.sent };
        (self.sides.iter().map(counted).sum(), 2 * self.plan.frames)
    }

    pub(crate) fn is_done(&self) -> bool {
        let (done, wanted) = self.progress();
        done >= wanted
    }

    /// What it is doing, for whoever asks why nothing goes on.
    pub(crate) fn describe(&self) -> String {
        let of = |side: &Side| {
            let state = if side.station.is_some() { "up" } else { "down" };
            format!("host {} {state}, {} sent, {} arrived", side.host, side.sent, side.arrived)
        };
        format!("frames: {}", self.sides.each_ref().map(of).join(", "))
    }

    /// One turn; whether anything moved.
    pub(crate) fn turn(&mut self, stage: &mut Stage) -> Result<bool, Violation> {
        if self.is_done() {
            return Ok(false);
        }
        match self.go_on(stage) {
            Ok(moved) => Ok(moved),
            Err(violation) => {
                stage.judged(&self.plan.hosts, Err(violation))?;
                (0..2).try_for_each(|at| self.end(at, stage))?;
                Ok(true)
            }
        }
    }

    fn go_on(&mut self, stage: &mut Stage) -> Result<bool, Violation> {
        let mut moved = false;
        for at in 0..2 {
            let now_ns = stage.now_ns();
            let side = &mut self.sides[at];
            let Some(up) = &stage.hosts[side.host].up else { continue };
            if side.station.is_none() {
                if now_ns >= side.at_ns {
                    side.at_ns = now_ns + PAUSE_NS;
                    match self.plan.open(up.context.device(), now_ns) {
                        Ok(station) => side.station = Some(station),
                        Err(error) => stage.named("no queues", &error),
                    }
                }
                continue;
            }
            let went = self.receive(at, stage)? | self.send(at);
            moved |= went;
            self.look(at, went, stage)?;
        }
        Ok(moved)
    }

    /// Takes what has arrived.
    fn receive(&mut self, at: usize, stage: &mut Stage) -> Result<bool, Violation> {
        let Self { plan, sides, is_lossless, may_double, bytes } = self;
        let sent = sides[1 - at].sent;
        let Side { station: Some(station), has_arrived, arrived, .. } = &mut sides[at] else {
            return Ok(false);
        };
        let mut burst = ArrayVec::<Mbuf, BURST>::new();
        station.lane.rx_burst(&mut burst);
        let is_lossy = stage.planted.is(Bug::KeptFrame) && stage.random.chance(10_000);
        if is_lossy && let Some(mbuf) = burst.pop() {
            stage.kept.push(Box::new(mbuf));
        }
        for mbuf in &burst {
            let data = mbuf.data();
            // Others send noise, and may hit the type.
            if data.get(6..12) != Some(&mac_of(plan.hosts[1 - at])[..]) {
                continue;
            }
            let number = data.get(HEADER_BYTES - 8..HEADER_BYTES).and_then(|it| it.try_into().ok());
            let number = number.map_or(u64::MAX, u64::from_be_bytes);
            ensure(number < sent, || format!("frame {number} arrived, and {sent} were sent"))?;
            plan.fill(1 - at, number, bytes);
            ensure(data == &bytes[..], || {
                format!("frame {number} of {} bytes is not what was sent", data.len())
            })?;
            ensure(!*is_lossless || number == *arrived, || {
                format!("frame {number} arrived where {arrived} is next")
            })?;
            let again = std::mem::replace(&mut has_arrived[number as usize], true);
            ensure(!again || *may_double, || format!("frame {number} arrived twice"))?;
            *arrived += u64::from(!again);
            stage.counts.frames += 1;
        }
        Ok(!burst.is_empty())
    }

    /// Hands over what the ring has room for.
    fn send(&mut self, at: usize) -> bool {
        let Self { plan, sides, is_lossless, bytes, .. } = self;
        let arrived = sides[1 - at].arrived;
        let Side { station: Some(station), sent, .. } = &mut sides[at] else { return false };
        // A ring that is not filled up again yet has few places.
        let most = if *is_lossless { arrived + BURST as u64 } else { u64::MAX };
        let most = most.min(plan.frames);
        while !station.waiting.is_full() && *sent < most {
            plan.fill(at, *sent, bytes);
            let Some(mbuf) = station.lane.alloc_copy(bytes) else { break };
            station.waiting.push(mbuf);
            *sent += 1;
        }
        station.lane.tx_burst(&mut station.waiting) > 0
    }

    /// Looks whether the queues work.
    fn look(&mut self, at: usize, went: bool, stage: &mut Stage) -> Result<(), Violation> {
        let side = &mut self.sides[at];
        let Some(station) = &mut side.station else { return Ok(()) };
        let ill = &stage.hosts[side.host];
        let is_ill = ill.is_tainted || ill.is_deceived || ill.doom.is_some();
        let fault = station.lane.rx().fault().or(station.lane.tx().fault());
        if let Some(fault) = fault {
            ensure(is_ill, || format!("a queue of a device that works has ended: {fault}"))?;
            stage.named("frames", &fault);
            return self.end(at, stage);
        }
        if went || station.waiting.is_empty() && side.sent == self.plan.frames {
            station.moved_ns = stage.now_ns();
        } else if is_ill && stage.now_ns() - station.moved_ns > STALL_NS {
            stage.note(|| "frames: nothing moves, so the queues are made anew".into());
            return self.end(at, stage);
        }
        Ok(())
    }

    /// Lets go of a host's queues.
    fn end(&mut self, at: usize, stage: &mut Stage) -> Result<(), Violation> {
        let side = &mut self.sides[at];
        side.at_ns = stage.now_ns() + PAUSE_NS;
        let Some(Station { lane, waiting, pool, .. }) = side.station.take() else { return Ok(()) };
        drop((lane, waiting));
        let host = &stage.hosts[side.host];
        let may_leak = host.is_tainted || host.doom.is_some();
        if let Some(up) = &host.up
            && let Err(error) = up.context.device().unregister_pool(&pool)
        {
            stage.named("not unregistered", &error);
        }
        let left = pool.stats().in_use;
        ensure(left == 0 || may_leak, || format!("{left} buffers of {} are missing", pool.count()))
    }

    /// Lets go of everything on a host whose device is gone.
    pub(crate) fn abandon(&mut self, host: usize, stage: &mut Stage) -> Result<(), Violation> {
        match self.plan.hosts.iter().position(|of| *of == host) {
            Some(at) => self.end(at, stage),
            None => Ok(()),
        }
    }

    /// Lets go of everything: the run is over.
    pub(crate) fn close(&mut self, stage: &mut Stage) -> Result<(), Violation> {
        (0..2).try_for_each(|at| self.end(at, stage))
    }
}
