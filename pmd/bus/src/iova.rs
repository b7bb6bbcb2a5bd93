//! Which I/O addresses are free.

use std::ops::RangeInclusive;

use ferrocx_mempool::{Backing, Region};

use crate::BusError;

/// Hands out ranges of I/O addresses; a freed range is used again as late as possible.
///
/// The search goes on where the last one ended (next fit), starting at a point that the seed
/// chooses. So an address from before an unmap keeps failing for long, instead of hitting the next
/// mapping.
///
/// # Limits
///
/// A list of free ranges, searched in order: meant for hundreds of mappings, not millions.
#[derive(Debug)]
pub struct IovaAllocator {
    /// Free ranges `[start, end)`, ascending, disjoint and never adjacent.
    free: Vec<(u64, u64)>,
    /// Address at which the next search starts.
    next: u64,
    /// Bytes left unused after each allocation, so that an overrun faults.
    guard_bytes: u64,
}

impl IovaAllocator {
    /// Takes the usable ranges and a seed for the first address.
    ///
    /// `guard_bytes` stay free behind each range that is handed out (0 for none).
    ///
    /// Address 0 and the last address of the space are never handed out.
    #[must_use]
    pub fn new(ranges: &[RangeInclusive<u64>], guard_bytes: u64, seed: u64) -> Self {
        let mut free: Vec<(u64, u64)> = ranges
            .iter()
            .map(|range| ((*range.start()).max(1), range.end().saturating_add(1)))
            .filter(|(start, end)| start < end)
            .collect();
        free.sort_unstable();
        free.dedup_by(|next, kept| {
            let joins = next.0 <= kept.1;
            if joins {
                kept.1 = kept.1.max(next.1);
            }
            joins
        });
        let next = start_point(&free, seed);
        Self { free, next, guard_bytes }
    }

    /// Takes a range of `len_bytes` placed as asked that does not start at `avoid`.
    ///
    /// # Errors
    ///
    /// [`BusError::IovaExhausted`] when no free range fits.
    ///
    /// # Panics
    ///
    /// When `len_bytes` is 0 or the alignment is not a power of two.
    pub fn alloc(&mut self, len_bytes: u64, place: IovaPlace, avoid: u64) -> Result<u64, BusError> {
        let align_bytes = place.align_bytes;
        assert!(len_bytes != 0 && align_bytes.is_power_of_two());
        let exhausted = BusError::IovaExhausted { len_bytes, align_bytes };
        let Some(len) = len_bytes.checked_add(self.guard_bytes) else { return Err(exhausted) };
        let found = self.find(self.next, len, place, avoid);
        let Some(start) = found.or_else(|| self.find(0, len, place, avoid)) else {
            return Err(exhausted);
        };
        self.take(start, start + len);
        self.next = start + len;
        Ok(start)
    }

    /// Gives back a range that [`IovaAllocator::alloc`] returned for the same length.
    ///
    /// # Panics
    ///
    /// When part of the range is free already.
    pub fn free(&mut self, start: u64, len_bytes: u64) {
        let end = start + len_bytes + self.guard_bytes;
        let at = self.free.partition_point(|run| run.1 < start);
        let mut merged = (start, end);
        let mut last = at;
        while last < self.free.len() && self.free[last].0 <= end {
            let run = self.free[last];
            assert!(run.1 <= start || run.0 >= end, "I/O addresses {start:#x} freed twice");
            merged = (merged.0.min(run.0), merged.1.max(run.1));
            last += 1;
        }
        self.free.splice(at..last, [merged]);
    }

    /// Leaves only what lies in `ranges` free; they are ascending and disjoint.
    pub fn restrict(&mut self, ranges: &[RangeInclusive<u64>]) {
        let free = self.free.drain(..).collect::<Vec<_>>();
        self.free = free
            .into_iter()
            .flat_map(|(start, end)| {
                ranges.iter().map(move |range| {
                    (start.max(*range.start()), end.min(range.end().saturating_add(1)))
                })
            })
            .filter(|(start, end)| start < end)
            .collect();
    }

    /// The lowest fit at or after `from`.
    fn find(&self, from: u64, len: u64, place: IovaPlace, avoid: u64) -> Option<u64> {
        let align = place.align_bytes;
        self.free.iter().filter(|run| run.1 > from).find_map(|&(start, end)| {
            let first = start.max(from);
            let behind = first.wrapping_sub(place.phase) % align;
            let mut at = if behind == 0 { first } else { first.checked_add(align - behind)? };
            if at == avoid {
                at = at.checked_add(align)?;
            }
            (at.checked_add(len)? <= end).then_some(at)
        })
    }

    /// Removes `[start, end)` from the free range that contains it.
    fn take(&mut self, start: u64, end: u64) {
        let at = self.free.partition_point(|run| run.1 < end);
        let run = self.free[at];
        debug_assert!(run.0 <= start && end <= run.1);
        let left = (run.0 < start).then_some((run.0, start));
        let right = (end < run.1).then_some((end, run.1));
        self.free.splice(at..=at, left.into_iter().chain(right));
    }
}

/// Where a range of I/O addresses may start: so many bytes behind a multiple of the alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IovaPlace {
    /// A power of two.
    pub align_bytes: u64,
    /// Below it, or a whole address, of which the rest counts.
    pub phase: u64,
}

impl IovaPlace {
    /// At a multiple.
    #[must_use]
    pub const fn aligned(align_bytes: u64) -> Self {
        Self { align_bytes, phase: 0 }
    }
}

/// Largest alignment that a mapping is given for its size: the largest page of an IOMMU.
const MAX_ALIGN: u64 = 1 << 30;

/// Where a region's I/O addresses may start: at a multiple of its pages. BARs and the like say
/// nothing about theirs, and may be huge: as much as their length allows, so that IOMMU and keys
/// need few entries for them. Memory of a program is registered by its addresses there, so that
/// these and the I/O addresses have to agree as far, wherever it starts.
pub(crate) fn place(region: &Region, least_bytes: u64) -> IovaPlace {
    if region.backing() != Backing::Foreign {
        return IovaPlace::aligned(least_bytes.max(region.page_size_bytes() as u64));
    }
    let align_bytes = least_bytes.max((1 << region.len_bytes().ilog2()).min(MAX_ALIGN));
    let address = region.as_ptr().addr() as u64;
    IovaPlace { align_bytes, phase: if region.is_adopted() { address % align_bytes } else { 0 } }
}

/// A point in the lower half of the largest range, chosen by the seed, so that there is room after.
fn start_point(free: &[(u64, u64)], seed: u64) -> u64 {
    let Some(&(start, end)) = free.iter().max_by_key(|run| run.1 - run.0) else { return 0 };
    start + mix(seed) % ((end - start) / 2).max(1)
}

/// Spreads a seed over 64 bits.
///
/// # Source
///
/// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
/// OOPSLA 2014).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The parts of `ranges` that no hole (first and last address) covers, ascending in each range.
pub(crate) fn subtract(
    ranges: &[RangeInclusive<u64>],
    holes: &[(u64, u64)],
) -> Vec<RangeInclusive<u64>> {
    let mut left = ranges.to_vec();
    for &(first, last) in holes {
        left = left
            .into_iter()
            .flat_map(|range| {
                let (start, end) = range.into_inner();
                if last < start || first > end {
                    return [Some(start..=end), None];
                }
                let below = (start < first).then(|| start..=first - 1);
                let above = (last < end).then(|| last + 1..=end);
                [below, above]
            })
            .flatten()
            .collect();
    }
    left
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_second_device_leaves_less() {
        let mut iovas = IovaAllocator::new(&[0x1000..=0x8fff], 0, 0);
        let taken = iovas.alloc(0x1000, IovaPlace::aligned(0x1000), 0).unwrap();
        iovas.restrict(&[0x3000..=0x4fff, 0x7000..=u64::MAX]);
        let mut left: Vec<u64> =
            std::iter::from_fn(|| iovas.alloc(0x1000, IovaPlace::aligned(0x1000), 0).ok())
                .collect();
        left.sort_unstable();
        let all = [0x3000, 0x4000, 0x7000, 0x8000];
        assert_eq!(left, all.into_iter().filter(|at| *at != taken).collect::<Vec<_>>());
        iovas.free(0x4000, 0x1000);
        iovas.restrict(&[]);
        assert!(iovas.alloc(0x1000, IovaPlace::aligned(0x1000), 0).is_err());
    }

    #[test]
    fn holes_cut_split_and_remove_ranges() {
        let ranges = [10..=19, 30..=39];
        assert_eq!(subtract(&ranges, &[]), ranges);
        assert_eq!(subtract(&ranges, &[(0, 9), (20, 29), (40, u64::MAX)]), ranges);
        assert_eq!(subtract(&ranges, &[(10, 10), (39, 39)]), [11..=19, 30..=38]);
        assert_eq!(subtract(&ranges, &[(15, 34)]), [10..=14, 35..=39]);
        assert_eq!(subtract(&ranges, &[(12, 13)]), [10..=11, 14..=19, 30..=39]);
        assert_eq!(subtract(&ranges, &[(0, u64::MAX)]), []);
        assert_eq!(subtract(&ranges, &[(10, 19)]), [30..=39]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn foreign_memory_is_aligned_as_far_as_its_length_allows() {
        let own = Region::alloc(&ferrocx_mempool::RegionConfig::heap(1 << 20)).expect("memory");
        assert_eq!(place(&own, 1), IovaPlace::aligned(4096));
        assert_eq!(place(&own, 1 << 16), IovaPlace::aligned(1 << 16));
        let file = tempfile::tempfile().expect("a file");
        file.set_len(3 << 30).expect("a hole");
        for (len, wanted) in
            [(4096, 4096), (3 << 12, 2 << 12), (16 << 20, 16 << 20), (3 << 30, 1 << 30)]
        {
            let region = Region::map_file(&file, 0, len).expect("mapped");
            assert_eq!(place(&region, 1), IovaPlace::aligned(wanted), "{len:#x}");
        }
    }

    #[test]
    #[expect(unsafe_code, reason = "a region over another one's memory")]
    fn memory_of_a_program_is_placed_as_it_lies_there() {
        let own = Region::alloc(&ferrocx_mempool::RegionConfig::heap(64 << 10)).expect("memory");
        let base = own.base();
        for (skipped, len, align_bytes) in [(4096, 8192, 8192), (0, 36 << 10, 32 << 10)] {
            // SAFETY: a part of the other region, which the owner keeps, and which nobody accesses.
            let part = unsafe { base.add(skipped) };
            // SAFETY: as above.
            let part = unsafe { Region::adopt(part, len, Box::new(Arc::clone(&own))) };
            let phase = (base.addr().get() + skipped) as u64 % align_bytes;
            let wanted = IovaPlace { align_bytes, phase };
            assert_eq!(place(&part.expect("whole pages"), 4096), wanted);
        }
        let mut iovas = IovaAllocator::new(&[0x1000..=0xf_ffff], 0, 3);
        for phase in [0, 0x1000, 0x7f3e_0003_3000] {
            let place = IovaPlace { align_bytes: 0x4_0000, phase };
            let at = iovas.alloc(0x1000, place, 0).expect("room");
            assert_eq!(at % 0x4_0000, phase % 0x4_0000);
        }
    }
}
