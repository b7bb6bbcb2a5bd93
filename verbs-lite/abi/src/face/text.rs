//! Names and rates.

use std::ffi::{CStr, c_char, c_int};

/// The name at a place of a list.
fn name_at(names: &[&'static CStr], at: c_int) -> *const c_char {
    let name = usize::try_from(at).ok().and_then(|at| names.get(at));
    name.unwrap_or(&c"unknown").as_ptr()
}

pub(crate) extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name_at(&NAMES, node_type)
}

pub(crate) extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    const NAMES: [&CStr; 6] =
        [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    name_at(&NAMES, state)
}

pub(crate) extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory bind operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"tag matching error",
        c"tag matching rendezvous incomplete",
    ];
    name_at(&NAMES, status)
}

/// Rates: number in the interface, multiple of 2.5 Gbit/s or -1, Mbit/s on the wire.
/// Source: IBTA vol. 1, 9.11.1, and the rates of lanes; the multiples are those that rdma-core has,
/// `ibv_rate_to_mult`: of rates that no lane of 2.5 Gbit/s makes, the later ones are rounded.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2500),
    (5, 2, 5000),
    (3, 4, 10000),
    (6, 8, 20000),
    (4, 12, 30000),
    (7, 16, 40000),
    (8, 24, 60000),
    (9, 32, 80000),
    (10, 48, 120_000),
    (11, -1, 14062),
    (12, -1, 56250),
    (13, -1, 112_500),
    (14, -1, 168_750),
    (15, -1, 25781),
    (16, -1, 103_125),
    (17, -1, 206_250),
    (18, -1, 309_375),
    (19, 11, 28125),
    (20, 20, 53125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

pub(crate) extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|known| known.0 == rate).map_or(-1, |known| known.1)
}

pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES.iter().find(|known| known.1 == mult && mult > 0).map_or(0, |known| known.0)
}

pub(crate) extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|known| known.0 == rate).map_or(-1, |known| known.2)
}

pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|known| known.2 == mbps).map_or(0, |known| known.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_the_multiples_of_the_stock_library() {
        // `IBV_RATE_14_GBPS` to `_300_GBPS` have none.
        for rate in 11..=18 {
            assert_eq!(ibv_rate_to_mult(rate), -1, "{rate}");
        }
        let later = [(19, 11), (20, 20), (21, 160), (22, 240), (23, 320), (24, 480)];
        for (rate, mult) in [(2, 1), (5, 2), (10, 48)].into_iter().chain(later) {
            assert_eq!((ibv_rate_to_mult(rate), mult_to_ibv_rate(mult)), (mult, rate));
        }
        assert_eq!([-1, 0, 3].map(|mult| mult_to_ibv_rate(mult)), [0; 3]);
    }
}
