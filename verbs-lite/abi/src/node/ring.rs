//! [`Ring`]: frames from one process to another, in memory that both have mapped.
//!
//! The sender makes the memory and hands it over; nothing has a name, so nothing stays behind
//! when a process is killed. Memory that another process writes is never borrowed: it is words
//! that are loaded and stored one by one, what is read there is read once, and no length or
//! position is used before it was checked. The size is sealed, so that nobody can cut it off.
//!
//! A record is two words of header and the frame, in whole words. Positions count words and only
//! grow. Each side writes lines of the processor's cache of its own:
//!
//! | word | written by | says |
//! |---|---|---|
//! | [`TAIL`] | sender | where the records end |
//! | [`WANTS_ROOM`] | sender, cleared by the receiver | the sender sleeps until there is room |
//! | [`FORM`] | sender, once | what all of these words mean: another library's may differ |
//! | [`HEAD`] | receiver | what was taken |
//! | [`STATE`] | receiver | [`TAKEN`] when it reads the ring, [`PRIVATE`] when nobody else looks |
//! | [`SLEEPS`] | receiver, cleared by the sender | the receiver sleeps, and may be called from that time on |
//! | [`SEEN_NS`] | receiver | when somebody of the receiver's last looked, by the machine's clock; 0 when they have left |
#![expect(unsafe_code, reason = "a mapping as atomic words, the clock")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use ferrocx_bus::shared;
use ferrocx_model::wire::{Fcs, MAX_FRAME_BYTES, Train};
use memmap2::MmapRaw;
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};

/// Words of the records: what fits the cache of a core, and several long messages.
const ROOM: u64 = 32 << 10;
/// Words before them: two lines that are fetched together for each side.
const FRONT: usize = 32;
const WORDS: usize = FRONT + ROOM as usize;
const BYTES: u64 = WORDS as u64 * 8;

const TAIL: usize = 0;
const WANTS_ROOM: usize = 1;
const FORM: usize = 2;
const HEAD: usize = 16;
const STATE: usize = 17;
const SLEEPS: usize = 18;
const SEEN_NS: usize = 19;

/// The form of rings here: counts up whenever words, records or their marks change. A ring of
/// another form is not taken, and its sender goes on with datagrams.
const THIS_FORM: u64 = 1;

/// The receiver reads the ring.
const TAKEN: u64 = 1;
/// It does, and what it reads goes nowhere but into its device.
const PRIVATE: u64 = 3;

/// Words of a record's header.
const HEADER: u64 = 2;
/// Records of so many words are shown to the receiver before the burst ends, so that both work.
const EARLY: u64 = 4 << 10;
/// A receiver that nobody has looked for in so many nanoseconds has to be called. A call takes the
/// core from whoever polls there, so one who shares the core and is back soon is waited for.
const STALE_NS: u64 = 6_000;
/// How long peers do not call after one has called somebody in vain, in nanoseconds.
pub(super) const QUIET_NS: u64 = 50_000;
/// Verdicts, in the two upper bits of a length.
const BAD_FCS: u32 = 1 << 31;
const INSIDE: u32 = 1 << 30;
/// A mark beside them: there is probably more to come soon, and the two are better taken together.
const MAY_WAIT: u32 = 1 << 29;
/// How long such a record waits at most, in nanoseconds.
pub(super) const WAIT_NS: u64 = 3_000;
/// Frames that one may stand for: those of 256 bytes that fit the longest.
const MOST_FRAMES: u32 = (MAX_FRAME_BYTES / 256) as u32;

/// The mapping.
#[derive(Debug)]
enum Memory {
    File(MmapRaw),
    #[cfg(test)]
    Heap(Box<[AtomicU64]>),
}

/// The machine's clock, in nanoseconds: every process has the same.
pub(super) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a place of this function's. By libc and not by rustix, which
    // reads the vDSO by itself and ends a program under valgrind.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or(0)
}

/// The memory that two processes share.
#[derive(Debug)]
pub(super) struct Ring(Memory);

/// The other process wrote what no sender or receiver writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Broken;

impl Ring {
    /// An empty ring, and the file to hand over.
    pub(super) fn new() -> io::Result<(Arc<Self>, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("ferrocx-ring", flags)?;
        ftruncate(&file, BYTES)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let ring = Self(Memory::File(MmapRaw::map_raw(&file)?));
        ring.word(FORM).store(THIS_FORM, Relaxed);
        Ok((Arc::new(ring), file))
    }

    /// The ring of a file that somebody handed over.
    pub(super) fn open(file: impl AsFd) -> io::Result<Arc<Self>> {
        let file = file.as_fd();
        let is_sealed = fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
        if !is_sealed || u64::try_from(fstat(file)?.st_size) != Ok(BYTES) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let ring = Self(Memory::File(MmapRaw::map_raw(&file)?));
        if ring.word(FORM).load(Relaxed) != THIS_FORM {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Arc::new(ring))
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        match &self.0 {
            // SAFETY: (1) the mapping has BYTES bytes, for reading and writing, as long as `self`
            // lives, and the seal keeps the file as long as the mapping; (2) it starts at a page,
            // so words are aligned; (3) any bytes are an AtomicU64, and this process accesses them
            // only as such; another one can do no more than store other values.
            Memory::File(map) => unsafe {
                std::slice::from_raw_parts(map.as_mut_ptr().cast::<AtomicU64>(), WORDS)
            },
            #[cfg(test)]
            Memory::Heap(words) => words,
        }
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words()[index]
    }

    /// Where `count` words at a position stand: the part to the end, and the part at the start.
    fn parts(&self, position: u64, count: usize) -> (&[AtomicU64], &[AtomicU64]) {
        let records = &self.words()[FRONT..];
        let start = (position % ROOM) as usize;
        let first = count.min(records.len() - start);
        (&records[start..start + first], &records[..count - first])
    }

    fn write(&self, position: u64, bytes: &[u8]) {
        let (first, second) = self.parts(position, bytes.len().div_ceil(8));
        let (to_first, to_second) = bytes.split_at(bytes.len().min(first.len() * 8));
        shared::copy_in(first, to_first);
        shared::copy_in(second, to_second);
    }

    fn read(&self, position: u64, bytes: &mut [u8]) {
        let (first, second) = self.parts(position, bytes.len().div_ceil(8));
        let (from_first, from_second) = bytes.split_at_mut(bytes.len().min(first.len() * 8));
        shared::copy_out(first, from_first);
        shared::copy_out(second, from_second);
    }

    /// The receiver is about to sleep, and wants to be called from a time on, or at once for 0.
    /// Whether there is something to read, so that it must not sleep.
    pub(super) fn sleeps(&self, from_ns: u64) -> bool {
        if from_ns == 0 {
            self.word(SLEEPS).store(1, Relaxed);
        } else {
            // Somebody else may want to be called earlier.
            let _ = self.word(SLEEPS).compare_exchange(0, from_ns, Relaxed, Relaxed);
        }
        // Pairs with the fence of `must_call`: the sender sees the wish, or this its records.
        fence(SeqCst);
        self.has_records()
    }

    /// Nobody of the receiver's looks any more.
    pub(super) fn leave(&self) {
        self.word(SEEN_NS).store(0, Relaxed);
    }

    /// Whether there is something to read.
    pub(super) fn has_records(&self) -> bool {
        self.word(TAIL).load(Acquire) != self.word(HEAD).load(Relaxed)
    }

    /// The sender is about to sleep. Whether it has something to wait for, and room already.
    pub(super) fn wants_room(&self) -> bool {
        let is_half_full = || {
            let taken = self.word(HEAD).load(Acquire);
            self.word(TAIL).load(Relaxed).wrapping_sub(taken) > ROOM / 2
        };
        if !is_half_full() {
            return false;
        }
        self.word(WANTS_ROOM).store(1, Relaxed);
        // Pairs with the fence of `Receiver::show`.
        fence(SeqCst);
        !is_half_full()
    }
}

/// The header of a record.
fn header(len: usize, fcs: Fcs) -> [u64; 2] {
    let word = len as u32;
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    match fcs {
        Fcs::Good => [pair(word, 0), 0],
        Fcs::Bad => [pair(word | BAD_FCS, 0), 0],
        Fcs::Inside(Train { frames, bytes, longest }) => {
            [pair(word | INSIDE, frames), pair(bytes, longest)]
        }
    }
}

/// Length and verdict of a record, if any sender would have written them.
fn read_header([first, second]: [u64; 2]) -> Result<(usize, Fcs), Broken> {
    let (word, frames) = (first as u32, (first >> 32) as u32);
    let len = (word & !(BAD_FCS | INSIDE | MAY_WAIT)) as usize;
    if !(1..=MAX_FRAME_BYTES).contains(&len) {
        return Err(Broken);
    }
    if word & INSIDE == 0 {
        return Ok((len, if word & BAD_FCS == 0 { Fcs::Good } else { Fcs::Bad }));
    }
    let (bytes, longest) = (second as u32, (second >> 32) as u32);
    // All frames have headers of their own, and none is longer than the longest.
    let is_possible = (1..=MOST_FRAMES).contains(&frames)
        && longest as usize <= MAX_FRAME_BYTES
        && bytes <= frames * longest;
    if is_possible { Ok((len, Fcs::Inside(Train { frames, bytes, longest }))) } else { Err(Broken) }
}

/// The sending end.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) ring: Arc<Ring>,
    /// Where the next record goes, and up to where the receiver was told.
    tail: u64,
    shown: u64,
    /// What the receiver had taken when this last looked.
    head: u64,
    /// The receiver may not know yet that there is something.
    is_uncalled: bool,
}

impl Sender {
    pub(super) fn new(ring: Arc<Ring>) -> Self {
        Self { ring, tail: 0, shown: 0, head: 0, is_uncalled: false }
    }

    /// Whether the receiver reads the ring.
    pub(super) fn is_taken(&self) -> bool {
        self.ring.word(STATE).load(Acquire) & TAKEN != 0
    }

    /// Whether the receiver's device is the only one that looks.
    #[inline]
    pub(super) fn is_private(&self) -> bool {
        self.ring.word(STATE).load(Acquire) == PRIVATE
    }

    /// Looks at what the receiver has taken.
    fn look(&mut self) -> Result<(), Broken> {
        let head = self.ring.word(HEAD).load(Acquire);
        if self.tail.wrapping_sub(head) > ROOM {
            return Err(Broken);
        }
        self.head = head;
        Ok(())
    }

    /// Adds a frame; `false` when there is no room. `may_wait` says that there will probably be
    /// another one soon, with which the receiver may take it.
    pub(super) fn push(&mut self, frame: &[u8], fcs: Fcs, may_wait: bool) -> Result<bool, Broken> {
        let words = HEADER + frame.len().div_ceil(8) as u64;
        if self.tail.wrapping_sub(self.head) + words > ROOM {
            self.look()?;
            if self.tail.wrapping_sub(self.head) + words > ROOM {
                return Ok(false);
            }
        }
        let [mut first, second] = header(frame.len(), fcs);
        if may_wait {
            first |= u64::from(MAY_WAIT);
        }
        let mut head = [0; 16];
        head[..8].copy_from_slice(&first.to_ne_bytes());
        head[8..].copy_from_slice(&second.to_ne_bytes());
        self.ring.write(self.tail, &head);
        self.ring.write(self.tail.wrapping_add(HEADER), frame);
        self.tail = self.tail.wrapping_add(words);
        if self.tail.wrapping_sub(self.shown) >= EARLY {
            self.show();
        }
        Ok(true)
    }

    /// Shows the receiver what was added; whether there was something.
    pub(super) fn show(&mut self) -> bool {
        if self.tail == self.shown {
            return false;
        }
        self.ring.word(TAIL).store(self.tail, Release);
        self.shown = self.tail;
        self.is_uncalled = true;
        true
    }

    /// Whether everything that was shown is taken.
    pub(super) fn is_drained(&self) -> bool {
        self.ring.word(HEAD).load(Acquire) == self.shown
    }

    /// Whether a call is put off: the receiver sleeps perhaps, and was not called.
    #[inline]
    pub(super) fn is_put_off(&self) -> bool {
        self.is_uncalled
    }

    /// Whether the receiver has to be called: it sleeps, and nobody of its process looks. Who is
    /// told so calls.
    #[inline]
    pub(super) fn must_call(&mut self, now_ns: u64) -> bool {
        if !self.is_uncalled {
            return false;
        }
        // Pairs with the fence of `Ring::sleeps`.
        fence(SeqCst);
        if self.is_drained() {
            self.is_uncalled = false;
            return false;
        }
        let seen_ns = self.ring.word(SEEN_NS).load(Relaxed);
        if now_ns.saturating_sub(seen_ns) < STALE_NS {
            return false;
        }
        let from_ns = self.ring.word(SLEEPS).load(Relaxed);
        if now_ns < from_ns {
            return false;
        }
        // One that is awake looks before it sleeps.
        self.is_uncalled = false;
        from_ns != 0 && self.ring.word(SLEEPS).swap(0, Relaxed) != 0
    }
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) ring: Arc<Ring>,
    /// Where the next record starts, and up to where the sender was told.
    head: u64,
    shown: u64,
    /// Where the records ended when this last looked.
    tail: u64,
    /// When this last looked, and until when the next record waits for one behind it; 0 when it
    /// does not yet.
    now_ns: u64,
    until_ns: u64,
}

impl Receiver {
    /// Takes a ring; `is_private` says that what arrives goes nowhere but into the device.
    pub(super) fn new(ring: Arc<Ring>, is_private: bool) -> Self {
        // A ring that was read before goes on where it was.
        let head = ring.word(HEAD).load(Relaxed);
        ring.word(STATE).store(if is_private { PRIVATE } else { TAKEN }, Release);
        Self { ring, head, shown: head, tail: head, now_ns: 0, until_ns: 0 }
    }

    /// Says that somebody looks.
    #[inline]
    pub(super) fn see(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.ring.word(SEEN_NS).store(now_ns, Relaxed);
    }

    /// Looks where the records end.
    fn look(&mut self) -> Result<(), Broken> {
        let tail = self.ring.word(TAIL).load(Acquire);
        if tail.wrapping_sub(self.head) > ROOM {
            return Err(Broken);
        }
        self.tail = tail;
        Ok(())
    }

    /// Whether the next record, of so many words, goes on waiting for one behind it.
    fn waits(&mut self, words: u64) -> Result<bool, Broken> {
        self.look()?;
        if self.tail.wrapping_sub(self.head) < words {
            return Err(Broken);
        }
        if self.until_ns == 0 {
            self.until_ns = self.now_ns + WAIT_NS;
        }
        let waits = self.tail == self.head.wrapping_add(words) && self.now_ns < self.until_ns;
        if !waits {
            self.until_ns = 0;
        }
        Ok(waits)
    }

    /// Takes the next frame; its bytes and verdict.
    #[inline]
    pub(super) fn pop(&mut self, frame: &mut [u8]) -> Result<Option<(usize, Fcs)>, Broken> {
        if self.head == self.tail {
            self.look()?;
            if self.head == self.tail {
                return Ok(None);
            }
        }
        let left = self.tail.wrapping_sub(self.head);
        let mut head = [0; 16];
        self.ring.read(self.head, &mut head);
        let ([first, second], _) = head.as_chunks::<8>() else { return Err(Broken) };
        let (first, second) = (u64::from_ne_bytes(*first), u64::from_ne_bytes(*second));
        let (len, fcs) = read_header([first, second])?;
        let words = HEADER + len.div_ceil(8) as u64;
        let room = frame.get_mut(..len).filter(|_| words <= left).ok_or(Broken)?;
        if first as u32 & MAY_WAIT != 0 && words == left && self.waits(words)? {
            return Ok(None);
        }
        self.ring.read(self.head.wrapping_add(HEADER), room);
        self.head = self.head.wrapping_add(words);
        Ok(Some((len, fcs)))
    }

    /// Shows the sender what was taken, when that is worth a line of the cache or nothing is left;
    /// whether the sender sleeps until then, and must be called.
    pub(super) fn show(&mut self) -> bool {
        let taken = self.head.wrapping_sub(self.shown);
        if taken == 0 || (taken < ROOM / 8 && self.head != self.tail) {
            return false;
        }
        self.ring.word(HEAD).store(self.head, Release);
        self.shown = self.head;
        // Pairs with the fence of `Ring::wants_room`.
        fence(SeqCst);
        self.ring.word(WANTS_ROOM).load(Relaxed) != 0
            && self.ring.word(WANTS_ROOM).swap(0, Relaxed) != 0
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
