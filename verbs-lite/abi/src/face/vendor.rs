//! The two functions of libmlx5 that programs ask of a device which may not be its own.
//!
//! Preloaded, they answer instead of the vendor's library, which knows no device here and says so
//! by an error that programs take for a broken one. Everything else of it stays the vendor's, and
//! refuses: `mlx5dv_is_supported` is false of this device.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]

use std::ffi::c_int;

use super::context::Context;
use super::{Errno, clock, number};
use crate::abi::ibv_context;
use crate::node::lock;

/// `struct mlx5dv_context` as far as it is written: what the device has beyond verbs, nothing.
#[repr(C)]
pub(crate) struct mlx5dv_context_head {
    version: u8,
    flags: u64,
    comp_mask: u64,
}

/// `struct mlx5dv_clock_info`: how ticks of the device's clock become nanoseconds.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct mlx5dv_clock_info {
    nsec: u64,
    last_cycles: u64,
    frac: u64,
    mult: u32,
    shift: u32,
    mask: u64,
}

/// Bits of a fraction of a nanosecond in `mult`: products of hours of ticks fit 64 bits.
const SHIFT: u32 = 21;
/// Ticks over which the rate is taken: milliseconds of any device's clock.
const SPAN: u64 = 1 << 22;
/// Bits of the counter that count, as `completion_timestamp_mask` says them.
const MASK: u64 = i64::MAX as u64;

/// The line through two moments of a clock.
fn line(last_cycles: u64, nsec: u64, later_ns: u64) -> mlx5dv_clock_info {
    let rate = (u128::from(later_ns - nsec) << SHIFT) / u128::from(SPAN);
    let mult = u32::try_from(rate).unwrap_or(u32::MAX);
    mlx5dv_clock_info { nsec, last_cycles, frac: 0, mult, shift: SHIFT, mask: MASK }
}

fn clock_info(context: *mut ibv_context) -> Result<mlx5dv_clock_info, Errno> {
    let shared = promised!(Context::here(context))?;
    let mut compared = lock(&shared.clock);
    clock::start(&mut compared, &shared.node)?;
    // The model's counter shows when its last step began.
    shared.node.step();
    let now = shared.node.context.device().clock_ticks();
    let [nsec, later] = [now, now + SPAN].map(|ticks| clock::to_ns(&mut compared, ticks));
    Ok(line(now, nsec, later))
}

pub(crate) unsafe extern "C" fn mlx5dv_get_clock_info(
    context: *mut ibv_context,
    out: *mut mlx5dv_clock_info,
) -> c_int {
    number(clock_info(context).map(|info| promised!(out.write(info))))
}

pub(crate) unsafe extern "C" fn mlx5dv_query_device(
    context: *mut ibv_context,
    out: *mut mlx5dv_context_head,
) -> c_int {
    let nothing = mlx5dv_context_head { version: 0, flags: 0, comp_mask: 0 };
    number(promised!(Context::here(context)).map(|_| promised!(out.write(nothing))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_both_moments() {
        // 156.25 MHz: 6.4 ns a tick.
        let later = 1_000_000 + SPAN * 64 / 10;
        let info = line(500, 1_000_000, later);
        let to_ns = |ticks: u64| info.nsec + (((ticks - 500) * u64::from(info.mult)) >> info.shift);
        assert_eq!(to_ns(500), 1_000_000);
        assert!(later.abs_diff(to_ns(500 + SPAN)) <= 2, "{}", to_ns(500 + SPAN));
        // An hour of ticks of 1 GHz does not overflow.
        assert!(line(0, 0, SPAN).mult.leading_zeros() >= 10);
    }
}
