//! The cases.

mod model;
mod one;
mod pool;
mod queues;
mod ring;
mod rx;
mod tick;
mod tx;
mod verbs;

/// One question about the cost of our code.
pub struct Case {
    /// Name, as the scripts and the criterion groups print it.
    pub name: &'static str,
    /// Elements (packets, buffers) that one run handles.
    pub elements: u64,
    /// Sets up.
    pub make: fn() -> Box<dyn Work>,
}

/// What is measured, and what plays the world around it.
pub trait Work {
    /// What the device or another core would do before a run. Not measured.
    fn prepare(&mut self) {}
    /// The code in question.
    fn run(&mut self);
    /// Fails if the work was not done. Not measured.
    fn verify(&mut self);
}

/// Every case.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    rx::CASES
        .iter()
        .chain(&tx::CASES)
        .chain(&one::CASES)
        .chain(&tick::CASES)
        .chain(CASES)
        .chain(verbs::CASES.iter().copied().flatten())
}

const CASES: &[Case] =
    &[queues::FORWARD_BURST, pool::MBUF_GET_PUT_32, ring::SPSC_32, model::FORWARD];
