//! Memory whose blocks are read and written as one, beside memory that the port itself reads and
//! writes, where a part of one may be seen.

mod by_hand;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use by_hand::rig::{Rig, What};
use ferrocx::model::wire::{Impair, ImpairConfig, Link, SplitMix64, Wire};
use ferrocx::verbs::Memory;
use ferrocx_nvmf_target::backend::Backend;
use ferrocx_nvmf_target::transport::Ready;
use ferrocx_nvmf_target::whole::{Locks, Whole};

const SHIFT: u8 = 12;
/// Four packets.
const BLOCK: usize = 1 << SHIFT;
const COUNT: usize = 31;
const NSID: u32 = 2;

/// An end of a cable on which each packet takes its own time, so that steps end within blocks.
fn uneven(link: Link) -> Box<dyn Wire> {
    let config = ImpairConfig { jitter_ns: 5_000_000, ..ImpairConfig::default() };
    Impair::new(link, config, SplitMix64::new(7)).boxed()
}

/// How many blocks are not of one value.
fn torn(bytes: &[u8]) -> usize {
    bytes.chunks(BLOCK).filter(|block| block.iter().any(|byte| *byte != block[0])).count()
}

fn stored(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; COUNT * BLOCK];
    memory.region().copy_out(0, &mut bytes).unwrap();
    bytes
}

/// A namespace of memory, and the memory as another core has it, with a piece to write from.
struct Offered {
    rig: Rig,
    memory: Arc<Memory>,
    other: Whole,
}

impl Offered {
    fn new(is_atomic: bool) -> Self {
        let mut rig = Rig::start_on(uneven, COUNT).unwrap();
        rig.block_shift = SHIFT;
        let memory = rig.memory(COUNT * BLOCK).unwrap();
        let (ram, locks) = (|| Backend::ram(rig.server.pd(), &memory).unwrap(), Locks::default());
        let other = Whole::new(ram(), SHIFT, &locks);
        let ready = match is_atomic {
            true => Ready::Whole(Whole::new(ram(), SHIFT, &locks)),
            false => Ready::Direct(ram()),
        };
        let place = rig.server.next_place();
        rig.server.put_backend(place, ready, ("", 0)).unwrap();
        rig.offer(NSID, COUNT as u64, place).unwrap();
        Self { rig, memory, other }
    }

    /// The host's memory has this value.
    fn fill(&self, value: u8) {
        self.rig.mr.buf(0..COUNT * BLOCK).unwrap().copy_in(0, &[value; COUNT * BLOCK]).unwrap();
    }

    /// Commands for all blocks, in small steps, with something done between them.
    fn run(&mut self, what: What, mut between: impl FnMut(&Self)) {
        self.rig.submit(what, NSID, COUNT).unwrap();
        let mut answered = 0;
        while answered < COUNT {
            self.rig.nudge();
            between(self);
            self.rig.server.poll().unwrap();
            between(self);
            answered += self.rig.answered().unwrap();
        }
    }
}

/// Runs something that counts parts of blocks which were seen: without a copy until there are some,
/// and with one again and again.
fn seen_unless_copied(mut run: impl FnMut(&mut Offered) -> usize) {
    let mut it = Offered::new(false);
    assert!((0..100).any(|_| run(&mut it) > 0), "nothing was seen that a copy could mend");
    let mut it = Offered::new(true);
    assert_eq!((0..10).map(|_| run(&mut it)).sum::<usize>(), 0);
}

#[test]
fn a_block_is_written_as_one() {
    let mut value = 0;
    seen_unless_copied(|it| {
        value += 1;
        it.fill(value);
        let mut seen = 0;
        it.run(What::Write, |it| seen += torn(&stored(&it.memory)));
        assert!(stored(&it.memory) == [value; COUNT * BLOCK]);
        seen
    });
}

#[test]
fn a_block_is_read_as_one() {
    seen_unless_copied(|it| {
        let value = it.rig.memory(COUNT * BLOCK).unwrap();
        let all = it.rig.server.pd().get_dma_mr().unwrap().over(&value).unwrap();
        let mut now = 0_u8;
        // Another core writes blocks, each as one, between any two steps.
        it.run(What::Read, |it| {
            now = now.wrapping_add(1);
            value.region().copy_in(0, &[now; COUNT * BLOCK]).unwrap();
            let all = all.buf(0..COUNT * BLOCK).unwrap();
            it.other.write((&all, 0), (0, (COUNT * BLOCK) as u64)).unwrap();
        });
        torn(&it.rig.mr.buf(0..COUNT * BLOCK).unwrap().to_vec())
    });
}

/// Cores that read and write a block at the same time.
#[test]
fn cores_take_turns_at_a_block() {
    const TURNS: usize = 2000;
    let it = Offered::new(true);
    let pieces = it.rig.memory(2 * BLOCK).unwrap();
    let pieces = it.rig.server.pd().get_dma_mr().unwrap().over(&pieces).unwrap();
    let (mut from, mut to) = (pieces.buf(0..BLOCK).unwrap(), pieces.buf(BLOCK..2 * BLOCK).unwrap());
    let stop = AtomicBool::new(false);
    let (mut turns, mut last, begun) = (0, 0, Instant::now());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                value = value.wrapping_add(1);
                from.copy_in(0, &[value; BLOCK]).unwrap();
                it.other.write((&from, 0), (BLOCK as u64, BLOCK as u64)).unwrap();
            }
        });
        let mut seen = 0;
        while turns < TURNS && seen == 0 && begun.elapsed() < Duration::from_secs(60) {
            it.other.read(&mut to, BLOCK as u64).unwrap();
            let bytes = to.to_vec();
            seen = torn(&bytes);
            turns += usize::from(bytes[0] != last);
            last = bytes[0];
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!((seen, turns), (0, TURNS));
    });
}
