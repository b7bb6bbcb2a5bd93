//! Ends of the Linux network stack as raw frames: a TAP device, a packet socket on an interface.
//!
//! The model's wires lead here. Both ends are non-blocking and carry one frame per call.
//!
//! # What it does not do
//!
//! It changes no frame: what the kernel left to be done to one is told in a [`FrameHint`].
//!
//! # Limits
//!
//! Linux. A TAP device needs `CAP_NET_ADMIN`, a packet socket `CAP_NET_RAW`.
//!
//! # Sources
//!
//! Linux `Documentation/networking/tuntap.rst`, packet(7), netdevice(7), virtio 1.2 section 5.1.6
//! (`virtio_net_hdr`, which packet sockets use under `PACKET_VNET_HDR`).
//!
//! # Example
//!
//! ```
//! use ferrocx_netdev::PacketSocket;
//!
//! let error = PacketSocket::open("no such name").expect_err("a name with spaces");
//! assert!(error.to_string().contains("no / or space"));
//! ```
#![deny(unsafe_code)]
#![warn(clippy::cast_possible_truncation)]

mod interface;
mod packet;
mod tap;

pub use interface::{MAX_NAME_BYTES, NetdevError, set_up};
pub use packet::{FrameHint, PacketSocket};
pub use tap::TapDevice;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_names_are_refused_before_the_kernel_sees_them() {
        for name in ["", "sixteen-bytes-xx", "a/b", "a b", "a\0b"] {
            let error = TapDevice::open(name).expect_err("a bad name").to_string();
            assert!(error.contains("interface name"), "{error}");
            assert!(PacketSocket::open(name).is_err());
            assert!(set_up(name, true).is_err());
        }
    }

    /// Whoever runs it: one who may open a packet socket is told that there is no interface.
    #[test]
    fn a_refusal_tells_the_way_out() {
        let error = PacketSocket::open("no-such-one").expect_err("no interface").to_string();
        assert!(error.contains("`ip link`") || error.contains("CAP_NET_RAW"), "{error}");
        let error = TapDevice::open("lo").expect_err("another kind").to_string();
        let ways = ["give another one", "CAP_NET_ADMIN", "module tun"];
        assert!(ways.iter().any(|way| error.contains(way)), "{error}");
    }
}
