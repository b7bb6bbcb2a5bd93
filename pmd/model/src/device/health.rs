//! The health buffer, where a device says that it is ill.

use ferrocx_bus::local::DeviceSide;
use ferrocx_prm::Layout;
use ferrocx_prm::init_seg::{HealthBuffer, offset};
use ferrocx_prm::syndrome::HealthSyndrome;

use super::config::Identity;

/// Writes the health buffer. Source: reference 1.2.
pub(crate) fn publish(side: &DeviceSide, identity: Identity, syndrome: HealthSyndrome) {
    let (major, minor, _) = identity.firmware();
    let buffer = HealthBuffer::zeroed()
        .with_fw_ver(u32::from(major) << 16 | u32::from(minor))
        .with_hw_id(u32::from(identity.device_id()))
        .with_synd(syndrome.0.into());
    let words = buffer.as_bytes().chunks_exact(4);
    for (at, word) in (offset::HEALTH_BUFFER..).step_by(4).zip(words) {
        side.set_be32(at, u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    }
}
