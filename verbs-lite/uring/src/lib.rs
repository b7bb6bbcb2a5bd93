//! Files read and written by io_uring, from and to memory that a port shares: a [`Buf`] moves into
//! a request, and comes back with its end.
//!
//! # Architecture
//!
//! - [`Ring`] has the files and the requests under way. [`Ring::push`] takes a request,
//!   [`Ring::submit`] tells the kernel of all of them by one system call, [`Ring::poll`] gives back
//!   what has ended without any.
//! - What a request holds stays in the ring until the kernel has ended it, whoever forgets what.
//! - The kernel is given files and memory once, where it takes them ([`Ring::register`]), and then
//!   need not look up a descriptor and pages for each request.
//!
//! # What it does not do
//!
//! No polling by the kernel, no vectors. Linux 5.6 and later; 5.19 and later for a table of files.
//!
//! # Limits
//!
//! Requests under way: what [`Ring::new`] was told, 1 to 4096. Files that the kernel has in its
//! table: [`TABLE_FILES`]; those beyond, and all where it has none, go by their descriptors.
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "the kernel reads and writes where these entries say")]
mod queue;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use ferrocx_verbs_lite::{Buf, Memory};
use queue::{Queue, Target};

/// Files of a [`Ring`] that the kernel looks up in a table of the ring's.
pub const TABLE_FILES: usize = 64;

/// A file of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId(usize);

/// What is to be done with a file.
#[derive(Debug)]
pub enum Request {
    /// Fills the memory with the bytes at the offset.
    Read {
        /// Where they go.
        to: Buf,
        /// Where they are.
        offset: u64,
    },
    /// Writes the memory to the offset.
    Write {
        /// What is written.
        from: Buf,
        /// Where it goes.
        offset: u64,
        /// Whether it shall be on the medium before this ends.
        is_durable: bool,
    },
    /// What was written is to be on the medium.
    Flush,
    /// Bytes become zeros; the file keeps its room for them.
    Zero {
        /// The first.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// Bytes become zeros; the file may give their room back.
    Punch {
        /// The first.
        offset: u64,
        /// How many.
        len: u64,
    },
}

/// A request that has ended.
#[derive(Debug)]
pub struct Done {
    /// The caller's name of it.
    pub token: u64,
    /// The memory that it held.
    pub buf: Option<Buf>,
    /// How it ended. A read of fewer bytes than were asked for is an error. Of a write that the
    /// kernel cuts short it is told the rest, and what it says of that is how the write ended.
    pub result: io::Result<()>,
}

/// A file, and how many requests are under way on it.
#[derive(Debug)]
struct Opened {
    /// `None` once it was removed and has nothing under way: its place is free.
    file: Option<File>,
    under_way: usize,
    is_leaving: bool,
    /// It has the place of its number in the kernel's table of files.
    is_in_table: bool,
}

/// A request under way.
#[derive(Debug)]
struct Held {
    token: u64,
    file: usize,
    request: Request,
    /// Bytes that were moved: of a write that was cut short.
    moved: u32,
}

impl Request {
    /// Bytes that must be moved.
    fn len(&self) -> u32 {
        match self {
            Self::Read { to: buf, .. } | Self::Write { from: buf, .. } => buf.len() as u32,
            Self::Flush | Self::Zero { .. } | Self::Punch { .. } => 0,
        }
    }

    /// The memory that it holds.
    fn into_buf(self) -> Option<Buf> {
        match self {
            Self::Read { to: buf, .. } | Self::Write { from: buf, .. } => Some(buf),
            Self::Flush | Self::Zero { .. } | Self::Punch { .. } => None,
        }
    }
}

/// Files, and the requests under way. Belongs to one core at a time.
#[derive(Debug)]
pub struct Ring {
    // Ended before what it holds goes: see `drop`.
    queue: Queue,
    held: Vec<Option<Held>>,
    free: Vec<usize>,
    files: Vec<Opened>,
    under_way: usize,
    /// Places of requests that the kernel was not told of, in order.
    unsubmitted: VecDeque<usize>,
    /// What the kernel said when it refused to be told anything.
    broken: Option<i32>,
}

impl Ring {
    /// A ring for so many requests.
    ///
    /// # Errors
    ///
    /// What the kernel says: it has no io_uring, or forbids it.
    pub fn new(requests: u32) -> io::Result<Self> {
        let requests = requests.clamp(1, 4096);
        let count = requests as usize;
        let queue = Queue::new(requests)?;
        // Without a table it takes no file into one: see `add`.
        let _ = queue.keep_files(TABLE_FILES as u32);
        Ok(Self {
            queue,
            held: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
            files: Vec::new(),
            under_way: 0,
            unsubmitted: VecDeque::with_capacity(count),
            broken: None,
        })
    }

    /// Has the kernel look up the pages of memory once: requests whose [`Buf`] lies in it need no
    /// look at them any more. Others go on as before. The memory stays where it is as long as the
    /// ring.
    ///
    /// # Errors
    ///
    /// What the kernel says, and then nothing has changed: `ENOMEM` where the pages are more than
    /// the process may lock (`RLIMIT_MEMLOCK`, without `CAP_IPC_LOCK`), `EBUSY` for a second call.
    pub fn register(&mut self, memory: &[&Memory]) -> io::Result<()> {
        self.queue.register(memory.iter().map(|it| Arc::clone(it.region())).collect())
    }

    /// Adds a file, which the ring keeps open until [`Ring::remove`].
    pub fn add(&mut self, file: File) -> FileId {
        let free = self.files.iter().position(|it| it.file.is_none());
        let place = free.unwrap_or(self.files.len());
        let is_in_table = self.queue.put_file(place as u32, Some(file.as_raw_fd())).is_ok();
        let opened = Opened { file: Some(file), under_way: 0, is_leaving: false, is_in_table };
        match self.files.get_mut(place) {
            Some(free) => *free = opened,
            None => self.files.push(opened),
        }
        FileId(place)
    }

    /// Takes a file away: requests for it are refused from now on, and it is closed when those
    /// under way have ended. Its name may be another file's afterwards.
    pub fn remove(&mut self, file: FileId) {
        if let Some(opened) = self.files.get_mut(file.0) {
            opened.is_leaving = true;
            self.close_if_unused(file.0);
        }
    }

    /// The kernel has the file's number in its requests, so that must not be another's before they
    /// have ended.
    fn close_if_unused(&mut self, place: usize) {
        let Some(opened) = self.files.get_mut(place) else { return };
        if !opened.is_leaving || opened.under_way > 0 || opened.file.is_none() {
            return;
        }
        if opened.is_in_table
            && let Err(error) = self.queue.put_file(place as u32, None)
        {
            // The place is the file's for as long as the ring, so it is no other's.
            tracing::error!(%error, "io_uring keeps a file that was removed");
            return;
        }
        opened.file = None;
    }

    /// Takes a request; it is given back when all places are taken.
    ///
    /// # Errors
    ///
    /// The request.
    pub fn push(&mut self, token: u64, file: FileId, request: Request) -> Result<(), Request> {
        let Some(place) = self.free.pop() else { return Err(request) };
        let opened = self.files.get_mut(file.0);
        let Some(opened) = opened.filter(|it| !it.is_leaving && it.file.is_some()) else {
            self.free.push(place);
            return Err(request);
        };
        opened.under_way += 1;
        self.under_way += 1;
        self.put(place, Held { token, file: file.0, request, moved: 0 });
        Ok(())
    }

    /// Puts what is left of a request in: the kernel is told the next time.
    #[inline]
    fn put(&mut self, place: usize, held: Held) {
        let opened = self.files.get(held.file);
        if let Some(Opened { file: Some(opened), is_in_table, .. }) = opened
            && self.broken.is_none()
        {
            let target = match *is_in_table {
                true => Target::Place(held.file as u32),
                false => Target::Fd(opened.as_raw_fd()),
            };
            self.queue.push(target, place as u64, &held.request, held.moved);
        }
        self.held[place] = Some(held);
        self.unsubmitted.push_back(place);
    }

    /// Tells the kernel of every request that was pushed. What it cannot take now (`EAGAIN`,
    /// `EBUSY`, `EINTR`) it is told the next time. After any other error it is never told anything
    /// again: what it was not told, and each request that comes later, ends with that error.
    pub fn submit(&mut self) {
        if !self.unsubmitted.is_empty() && self.broken.is_none() {
            let told = self.queue.submit(0);
            self.told(told);
        }
    }

    /// The kernel was told of requests, and took so many of them.
    fn told(&mut self, taken: io::Result<usize>) {
        match taken {
            Ok(taken) => drop(self.unsubmitted.drain(..taken.min(self.unsubmitted.len()))),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => {}
                code => {
                    tracing::error!(%error, "io_uring takes no more requests");
                    self.broken = Some(code.unwrap_or(libc::EIO));
                }
            },
        }
    }

    /// Requests under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// The next request that has ended. A write that the kernel cut short has not: it goes on with
    /// the next [`Ring::submit`].
    pub fn poll(&mut self) -> Option<Done> {
        if self.under_way == 0 {
            return None;
        }
        let (place, held, result) = loop {
            let (place, result) = match self.broken {
                Some(code) if !self.unsubmitted.is_empty() => {
                    (self.unsubmitted.pop_front()?, code.wrapping_neg())
                }
                _ => {
                    let (place, result) = self.queue.next()?;
                    (usize::try_from(place).ok()?, result)
                }
            };
            let held = self.held.get_mut(place)?.take()?;
            let left = held.request.len() - held.moved;
            match u32::try_from(result) {
                // Why it was cut short, such as by a full file system, only the rest brings out.
                Ok(moved @ 1..)
                    if moved < left && matches!(held.request, Request::Write { .. }) =>
                {
                    self.put(place, Held { moved: held.moved + moved, ..held });
                }
                Ok(moved) if moved >= left => break (place, held, Ok(())),
                Ok(_) => break (place, held, Err(io::ErrorKind::UnexpectedEof.into())),
                Err(_) => {
                    let error = io::Error::from_raw_os_error(result.wrapping_neg());
                    break (place, held, Err(error));
                }
            }
        };
        let Held { token, file, request, .. } = held;
        if let Some(opened) = self.files.get_mut(file) {
            opened.under_way -= 1;
            if opened.is_leaving {
                self.close_if_unused(file);
            }
        }
        self.free.push(place);
        self.under_way -= 1;
        Some(Done { token, buf: request.into_buf(), result })
    }
}

impl Drop for Ring {
    /// Waits for the kernel: it writes to memory that would otherwise be somebody else's.
    fn drop(&mut self) {
        while self.under_way > 0 {
            if self.poll().is_some() {
                continue;
            }
            // What it was not told is in its ring still, and no more ours to be told.
            let told = match self.broken {
                Some(code) => Err(io::Error::from_raw_os_error(code)),
                None => self.queue.submit(1),
            };
            if let Err(error) = told
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "io_uring does not end its requests, their memory leaked");
                std::mem::forget(std::mem::take(&mut self.held));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_cannot_take_waits_and_what_it_refuses_fails() {
        let mut ring = match Ring::new(4) {
            Ok(ring) => ring,
            Err(error) => {
                println!("skipped: no io_uring here: {error}");
                return;
            }
        };
        let file = ring.add(tempfile::tempfile().unwrap());
        ring.push(1, file, Request::Flush).unwrap();
        for code in [libc::EAGAIN, libc::EBUSY, libc::EINTR] {
            ring.told(Err(io::Error::from_raw_os_error(code)));
            assert!(ring.poll().is_none(), "it waits after {code}");
        }
        ring.submit();
        let done = std::iter::from_fn(|| Some(ring.poll())).flatten().next().unwrap();
        assert!(done.token == 1 && done.result.is_ok());
        ring.push(2, file, Request::Flush).unwrap();
        ring.push(3, file, Request::Flush).unwrap();
        ring.told(Err(io::Error::from_raw_os_error(libc::EBADF)));
        ring.push(4, file, Request::Flush).unwrap();
        ring.submit();
        for token in 2..5 {
            let done = ring.poll().unwrap();
            let code = done.result.unwrap_err().raw_os_error();
            assert_eq!((done.token, code), (token, Some(libc::EBADF)));
        }
        assert!(ring.poll().is_none() && ring.under_way() == 0);
    }
}
