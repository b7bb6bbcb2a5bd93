//! Hugepage regions, fixed-size object pools with per-core caches, and packet buffers.
#![deny(unsafe_code)]

mod access;
mod error;
mod hugepage;
mod mapping;
mod numa;
mod region;
#[cfg(test)]
mod region_tests;

pub use error::{AccessError, MempoolError};
pub use region::{Backing, PageSize, Region, RegionConfig, RegionWarning};
