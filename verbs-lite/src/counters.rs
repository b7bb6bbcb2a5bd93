//! [`RoceCounters`]: what queue pairs repeated, missed and refused, as the device counts it.

use std::sync::{Mutex, PoisonError};

use ferrocx_core::{CommandError, CounterSet, Device};
use ferrocx_prm::cmd::port::QueryQCounterOut;

/// Declares the counters, which have the names that QUERY_Q_COUNTER gives them, and Linux after it
/// (`/sys/class/infiniband/*/ports/1/hw_counters`).
macro_rules! counters {
    ($($name:ident $doc:literal;)*) => {
        /// Events of all queue pairs of a context since it was opened. Source: reference 4.8.
        ///
        /// What a device does not count is 0: `out_of_seq_cnt`, `retransmission_q_counters` and
        /// `enhanced_error_q_counters` of its capabilities say which it has.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct RoceCounters {
            $(
                #[doc = $doc]
                pub $name: u64,
            )*
        }

        impl RoceCounters {
            /// Name and value of each, in the order of the fields.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Adds what was counted from one reading to the next. The device's 32 bits wrap.
            fn add(&mut self, before: &QueryQCounterOut, now: &QueryQCounterOut) {
                $( self.$name += u64::from(now.$name().wrapping_sub(before.$name())); )*
            }
        }
    };
}

counters! {
    rx_write_requests "RDMA WRITEs received.";
    rx_read_requests "RDMA READs received.";
    rx_atomic_requests "Atomics received.";
    out_of_buffer "Packets that found no receive posted.";
    out_of_sequence "Packets received out of order: behind lost ones, or overtaken.";
    duplicate_request "Requests received again.";
    rnr_nak_retry_err "\"Receiver not ready\" answers received.";
    packet_seq_err "Answers received that say that a packet was missing.";
    implied_nak_seq_err "Answers that skipped an earlier request.";
    local_ack_timeout_err "Acknowledgements that did not come in time: requests were repeated.";
    req_rnr_retries_exceeded "Requests given up after \"receiver not ready\".";
    req_transport_retries_exceeded "Requests given up because no acknowledgement came.";
    resp_local_length_error "Messages received that were too long for their receive.";
    req_local_length_error "Answers received that were too long for their request.";
    local_operation_error "Local operation errors.";
    resp_local_protection "Local protection errors as responder.";
    req_local_protection "Local protection errors as requester.";
    req_mw_binding "Memory window binds that failed.";
    req_bad_response "Answers that did not fit their request.";
    req_remote_invalid_request "Own requests refused as invalid.";
    resp_remote_invalid_request "Requests of others refused as invalid.";
    req_remote_access_errors "Own requests refused for lack of access rights.";
    resp_remote_access_errors "Requests of others refused for lack of access rights.";
    req_remote_operation_errors "Own requests that failed at the other end.";
    resp_cqe_error "Receives that ended with an error.";
    req_cqe_error "Sends that ended with an error.";
    resp_cqe_flush_error "Receives flushed because their queue pair was in error.";
    req_cqe_flush_error "Sends flushed because their queue pair was in error.";
    cq_overflow "Completion queues that overran.";
}

/// The set of a context, which all of its queue pairs name.
#[derive(Debug)]
pub(crate) struct Counters {
    set: CounterSet,
    /// What was read last, and the sum by then.
    seen: Mutex<(QueryQCounterOut, RoceCounters)>,
}

impl Counters {
    /// Takes a set; `None` if the device has no more.
    pub(crate) fn new(device: &Device) -> Result<Option<Self>, CommandError> {
        let set = CounterSet::new(device)?;
        let seen = Mutex::new((QueryQCounterOut::zeroed(), RoceCounters::default()));
        Ok(set.map(|set| Self { set, seen }))
    }

    /// The set, for the contexts of queue pairs and of raw receive queues.
    pub(crate) fn set(&self) -> &CounterSet {
        &self.set
    }

    pub(crate) fn read(&self) -> Result<RoceCounters, CommandError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.set.query()?;
        let (before, sum) = &mut *seen;
        sum.add(before, &now);
        *before = now;
        Ok(*sum)
    }
}
