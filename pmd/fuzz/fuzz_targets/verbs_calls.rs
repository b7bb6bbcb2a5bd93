//! Any calls of the C interface of libibverbs, one after the other, as a program may make them that
//! keeps the interface's contract: no panic, no hang, refusals that the interface knows, and an end
//! that leaves nothing. The test `calls` of the crate does the same by several threads.
#![no_main]

#[path = "../../../verbs-lite/abi/tests/calls/mod.rs"]
mod calls;

use std::sync::OnceLock;

use calls::{Api, Choices, World};
use libfuzzer_sys::fuzz_target;

/// The functions of the library, which is linked into this program.
fn api() -> &'static Api {
    static API: OnceLock<Api> = OnceLock::new();
    // SAFETY: the library's own table.
    API.get_or_init(|| unsafe { Api::load(ibverbs::function) })
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let world = World::open(api(), choices.rarely(2));
    world.furnish(&mut choices);
    while !choices.is_empty() {
        world.act(&mut choices);
    }
    world.close();
});
