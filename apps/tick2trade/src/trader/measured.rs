//! What a trader notes of time: stages, stamps of frames and orders, and a capture of both.

use ferrocx::{Mbuf, TimeBase};

use super::Trader;
use crate::capture::Recorder;
use crate::order_line::OrderLine;
use crate::strategy::Strategy;
use crate::timed::Stages;

/// A frame came: its recorder, if there is one, has it before anything follows.
#[inline]
pub(super) fn note_came(line: &mut OrderLine, mbuf: &Mbuf, now: u64, base: Option<TimeBase>) {
    if let Some(recorder) = line.recorder() {
        let stamp = mbuf.rx_timestamp().zip(base);
        recorder.came(mbuf.data(), now, stamp.map(|(ticks, base)| base.to_ns(ticks)));
    }
}

impl<S: Strategy> Trader<S> {
    /// Has every frame that comes and goes recorded from now on, but for ARP and the reports to
    /// groups. Times are the device's where [`TraderConfig`](super::TraderConfig) has it stamp.
    pub fn record(&mut self, [orders, snapshots]: [Recorder; 2]) {
        self.gateway.line().set_recorder(orders);
        if let Some((_, session)) = &mut self.snapshot {
            session.line().set_recorder(snapshots);
        }
    }

    /// Takes the device's stamps of orders that left; returns whether there was one.
    pub(super) fn take_stamps(&mut self) -> bool {
        let Self { flights: Some(flights), stages: Some(stages), time_base: Some(base), .. } = self
        else {
            return false;
        };
        let mut is_one = false;
        while let Some(left) = self.gateway.line().tx().next_timestamp() {
            is_one = true;
            let left_ns = base.to_ns(left.ticks);
            if let Some(recorder) = self.gateway.line().recorder() {
                recorder.stamped(left.id, left_ns);
            }
            if let Some(came_ticks) = flights.take(left.id) {
                let took_ns = left_ns.saturating_sub(base.to_ns(came_ticks));
                stages.wire_to_wire.saturating_record(took_ns);
            }
        }
        is_one
    }

    /// How far time stamps may be off, ns: what the last comparison of the device's clock with ours
    /// is good for. `None` if nothing is measured.
    pub fn stamp_error_ns(&self) -> Option<u64> {
        self.clock.as_ref().map(|clock| clock.stats().width_ns.div_ceil(2))
    }

    /// Where the time went, if it was to be measured.
    pub const fn stages(&self) -> Option<&Stages> {
        self.stages.as_ref()
    }

    /// Forgets the times so far.
    pub fn forget_times(&mut self) {
        if let Some(stages) = &mut self.stages {
            stages.forget();
        }
    }
}
