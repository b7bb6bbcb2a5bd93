//! [`Routes`]: where the traffic goes that no rule of a user's leads elsewhere.

use super::traffic::TrafficType;
use crate::device::{Device, lock};
use crate::error::DeviceError;
use crate::handle::Handle;
use crate::objects::Kind;

/// Leads each type of traffic to a TIR, until it is dropped.
#[derive(Debug)]
pub struct Routes {
    entries: Vec<Handle>,
    device: Device,
}

impl Routes {
    /// Writes the entries: `tirns` are numbers of TIRs in the order of [`TrafficType::ALL`], which
    /// must outlive them.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`](crate::ConfigError::Conflict) while other routes of the device
    /// live; or what the device refused.
    pub fn new(
        device: &Device,
        tirns: &[u32; TrafficType::ALL.len()],
    ) -> Result<Self, DeviceError> {
        let inner = device.inner();
        let port = lock(&inner.port);
        let mut control = inner.control();
        let mut steering = lock(&inner.steering);
        let places = steering.route(&mut control, inner.table_setup(), &port, tirns)?;
        let entry =
            |(table, index)| Handle::new(device, Kind::FlowEntry { table }, index, Vec::new());
        Ok(Self { entries: places.into_iter().map(entry).collect(), device: device.clone() })
    }

    /// Removes the entries and says how that went.
    ///
    /// # Errors
    /// The first entry that could not be removed; the others are dropped all the same.
    pub fn destroy(mut self) -> Result<(), DeviceError> {
        for entry in &mut self.entries {
            entry.destroy()?;
        }
        Ok(())
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        self.entries.clear();
        lock(&self.device.inner().steering).routed = false;
    }
}
