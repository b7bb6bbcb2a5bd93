//! Hugepage regions, fixed-size object pools with per-core caches, and packet buffers.
