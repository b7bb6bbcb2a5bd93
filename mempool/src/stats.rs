//! Counts of a pool.

/// Counts of a pool at one moment: exact when no other thread is taking or freeing just then, else
/// each count is one that was true during the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PoolStats {
    /// Objects of the pool.
    pub count: u64,
    /// Objects that are neither in a cache nor in the shared list.
    pub in_use: u64,
    /// Free objects in the caches of cores.
    pub cached: u64,
    /// Free objects in the shared list.
    pub shared: u64,
    /// Gets, of one or in bulk, that took nothing because there were too few objects.
    pub exhausted: u64,
    /// Objects freed although the pool was complete. Such an object is dropped, not added. Debug
    /// builds panic at a double free instead.
    pub double_frees: u64,
}
