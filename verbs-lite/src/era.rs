//! Eras: which completions the requests of a queue pair can have.
//!
//! A completion names a queue pair by a number and a request by the low 16 bits of its position.
//! Both come again: numbers with other devices and with later queue pairs, positions after a reset
//! and after 65,536 blocks. A program may keep a completion for as long as it likes, and give it to
//! whom it likes; buffers must not come back by it while the device still writes to them.
//!
//! So completions are stamped when they are taken, with the *era* that it is in their completion
//! queue. No two completion queues of the process ever have the same era, and those of one queue
//! grow. A queue pair begins an era in its completion queues when it is made, when it is reset, and
//! each time that it has posted 2^14 to 2^15 blocks of send requests. It remembers which era that
//! was, and at which position ([`Belief`](crate::belief::Belief)):
//!
//! | completion | is refused because |
//! |---|---|
//! | of another device, or another completion queue | eras tell the queues apart |
//! | of an earlier queue pair of the same number, taken | its era is older than the queue pair |
//! | of the same, still in the queue | making a queue pair strikes its number out there ([`Cq::forget`]) |
//! | of an earlier life, taken | its era is older than the reset |
//! | of an earlier life, still in the queue | all were taken before `reset`; `abandon` strikes them out |
//! | of a send 65,536 blocks ago | its era is older than the request that it would end |
//! | of who had the number of a target of XRC, still in a queue of its domain | no target gets such a number ([`Names`](crate::names::Names)) |
//! | of an XRC shared queue that is gone, by the next of its index | the next began an era, and struck out what stood |
//!
//! Why the last is so: a completion ends all sends up to the one that it names, so one may be left
//! over. The completion of position p is taken before position p + 2^15 is posted, since no ring is
//! longer, and the device completes sends in order. Between that and p + 2^16 at least one era
//! began. And why a right one is always believed: it is taken after its request was posted, so in
//! the era of that time or a later one, and of three eras, which last for a whole ring, it is known
//! where they began. No receive completion is left over: each receive ends by its own only, those
//! of a ring in order, those of a shared queue by their place in it, and a completion that was
//! taken ends nothing more.
//!
//! Raw packet queue pairs are the device's send and receive queues, whose numbers may be those of
//! queue pairs. In one completion queue no two that live have the same; where a raw one has it, the
//! claim ends there that a shared queue keeps to numbers of queue pairs that are gone.
//!
//! The era stands in the 40 bits that a number leaves free in a word of 64, so that one comparison
//! checks both. It fails once for each era that somebody else began in the same completion queue;
//! what it is then is looked up.
//!
//! [`Cq::forget`]: crate::Cq

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ferrocx_prm::cqe::Cqe64;

/// Where a queue's number stands in its word, as that stands in memory.
pub(crate) const QPN_MASK_BE: u32 = Cqe64::SOP_DROP_QPN.mask().to_be();
/// The byte of that word that is not the number's.
const FREE_BYTE_AT: u32 = (!QPN_MASK_BE).trailing_zeros();
const _: () = assert!((!QPN_MASK_BE).count_ones() == u8::BITS, "40 bits are free in a word of 64");
/// Eras: with 2^14 requests in each, enough for 57 years of 10^7 requests a second.
const ERAS: u64 = 1 << 40;
/// No completion's number.
pub(crate) const NONE: u64 = u64::MAX;
/// Positions after which a queue begins another era at the earliest.
pub(crate) const MARK_EVERY: u32 = 1 << 14;

static NEXT_ERA: AtomicU64 = AtomicU64::new(1);
static NEXT_QUEUE: AtomicU32 = AtomicU32::new(1);

/// The next era, where it stands beside a number; these grow as the eras do. `NONE` after the last.
fn next_era() -> u64 {
    place(NEXT_ERA.fetch_add(1, Ordering::Relaxed))
}

/// Where an era stands.
fn place(era: u64) -> u64 {
    // One less, so that no number is `NONE`.
    if era >= ERAS - 1 {
        return NONE;
    }
    era >> u8::BITS << u32::BITS | (era & 0xff) << FREE_BYTE_AT
}

/// Which queue a completion was taken from, and of which device: numbers that no other ones in this
/// process ever have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) device: u32,
    cq: u32,
}

/// What a completion queue stamps its completions with.
#[derive(Debug)]
pub(crate) struct Stamps {
    pub(crate) source: Source,
    era: AtomicU64,
}

impl Stamps {
    /// `None` if this process has made all completion queues, or begun all eras, that it can tell
    /// apart.
    pub(crate) fn new(device: u32) -> Option<Self> {
        Self::in_era(device, next_era())
    }

    fn in_era(device: u32, era: u64) -> Option<Self> {
        // Whatever was taken in this one would be believed.
        if era == NONE {
            return None;
        }
        let next = |cq: u32| cq.checked_add(1);
        let cq = NEXT_QUEUE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(Self { source: Source { device, cq }, era: AtomicU64::new(era) })
    }

    /// What stands in the number of a completion that is taken now, of a queue pair whose number
    /// is given with its word, as that stands in memory.
    #[inline(always)]
    pub(crate) fn number(&self, qpn_word: u32) -> u64 {
        // Whoever has this completion, and begins an era later, begins a later one than this:
        // coherence is order enough.
        self.era.load(Ordering::Relaxed) | u64::from(qpn_word & QPN_MASK_BE)
    }

    /// Begins an era: completions that were taken before have an earlier one, those of requests
    /// that are posted from now on this one or a later one.
    pub(crate) fn begin(&self) -> u64 {
        loop {
            let era = next_era();
            // One that somebody else began meanwhile might be a later one, and be known already.
            if era == NONE || self.era.fetch_max(era, Ordering::AcqRel) < era {
                return era;
            }
        }
    }
}

/// The part of a completion's number that names the queue pair, as it stands in memory.
#[inline(always)]
pub(crate) fn qpn_be(number: u64) -> u32 {
    number as u32 & QPN_MASK_BE
}

/// The rest of it.
#[inline(always)]
pub(crate) fn era_of(number: u64) -> u64 {
    number & !u64::from(QPN_MASK_BE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eras_grow_beside_any_number_and_leave_it_alone() {
        let stamps = Stamps::new(1).unwrap();
        let qpn = 0x00ab_cdef_u32.to_be();
        let mut last = 0;
        for _ in 0..1000 {
            let era = stamps.begin();
            let number = stamps.number(qpn | !QPN_MASK_BE);
            assert!(era > last && qpn_be(number) == qpn && era_of(number) == era, "{era:#x}");
            last = era;
        }
        assert!(Stamps::new(1).unwrap().source != stamps.source);
    }

    #[test]
    fn there_is_no_queue_after_the_last_era() {
        assert!(Stamps::in_era(1, place(ERAS - 2)).is_some());
        assert!(Stamps::in_era(1, place(ERAS - 1)).is_none());
        assert!(place(ERAS - 2) > place(ERAS - 3) && place(ERAS - 1) == NONE);
    }
}
