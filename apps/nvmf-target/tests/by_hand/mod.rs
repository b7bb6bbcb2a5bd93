//! A target, its host, their models and a drive, all of which this thread has to move.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

#[path = "../../../../pmd/nvme/tests/common/mod.rs"]
pub mod fake;
#[path = "../../examples/rig/mod.rs"]
pub mod rig;

use fake::{Plan, World};
use ferrocx_nvme::{Config, Controller};
use rig::{Result, Rig, What};

/// Namespaces of the target.
pub const RAM: u32 = 1;
pub const DRIVE: u32 = 2;

/// The drive goes on by [`World::fake`] alone.
pub struct ByHand {
    pub rig: Rig,
    pub world: World,
    _controller: Controller,
}

impl ByHand {
    /// A host that gives so many commands at a time.
    pub fn start(batch: usize) -> Result<Self> {
        let mut rig = Rig::start(batch)?;
        let plan = Plan::default();
        let blocks = plan.blocks;
        let world = World::new(plan);
        let mut controller = world.open_as(&Config::default())?;
        let queue = controller.queue(1, &[rig.server.buffers()])?;
        let backend = rig.server.add_drive(queue)?;
        rig.offer(DRIVE, blocks, backend)?;
        Ok(Self { rig, world, _controller: controller })
    }

    /// The target goes on, and the drive with what it was told.
    pub fn step(&mut self) -> Result<()> {
        self.rig.server.poll()?;
        let mut fake = self.world.fake();
        fake.step();
        // What it notes of each command would take memory for ever.
        fake.seen.clear();
        Ok(())
    }

    /// A batch of commands, from the host and back.
    pub fn batch(&mut self, (what, nsid, count): (What, u32, usize)) -> Result<()> {
        self.rig.submit(what, nsid, count)?;
        let mut answered = 0;
        while answered < count {
            self.rig.settle();
            self.step()?;
            self.rig.settle();
            answered += self.rig.answered()?;
        }
        Ok(())
    }
}
