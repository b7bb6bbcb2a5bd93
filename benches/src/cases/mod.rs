//! The cases.

mod pool;
mod ring;

/// One question about the cost of our code.
pub struct Case {
    /// Name, as the scripts and the criterion groups print it.
    pub name: &'static str,
    /// What one element is, and how many an iteration handles.
    pub elements: u64,
    /// Sets up, and returns the loop: it runs that many iterations and verifies its work.
    pub make: fn() -> Box<dyn FnMut(u64)>,
}

/// Every case.
pub const CASES: &[Case] = &[pool::GET_PUT_32, pool::GET_PUT_1, ring::SPSC_32];
