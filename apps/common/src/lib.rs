//! What the ferrocx applications share: device selection, cores, reports.
