//! A drive that stands still: it does something only when the test steps it.

use ferrocx_nvme::{Config, Controller};

use crate::common::{Here, NQN, namespace};
use crate::fake::{Plan, World};

/// The drive, behind a namespace of this number.
pub(crate) fn drive(here: &Here, plan: Plan, nsid: u32) -> (World, Controller) {
    let world = World::new(plan);
    let mut drive = world.open_as(&Config::default()).unwrap();
    let buffers = here.change(|server| server.buffers());
    let io = drive.queue(1, &[buffers]).unwrap();
    here.change(move |server| {
        let backend = server.add_drive(io).unwrap();
        server.target_mut().put_namespace(NQN, namespace(nsid, 4096, backend)).unwrap();
    });
    (world, drive)
}
