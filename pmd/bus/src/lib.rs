//! BAR, DMA and doorbell access to a ConnectX device: VFIO or the software model.
