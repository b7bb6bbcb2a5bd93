//! [`QpTable`]: queue pairs that are found by their completions.

use arrayvec::ArrayVec;

use super::complete::Reports;
use super::{Qp, WrongCompletion};
use crate::cq::{Completion, Cq};
use crate::mr::{Buf, Buffers};
use crate::wc::Wc;

/// Completions that are taken from the completion queue at a time.
const BATCH: usize = 32;

/// A queue pair of a table, and what the program keeps beside it.
#[derive(Debug)]
struct Entry<T, B: Buffers> {
    qp: Qp<B>,
    data: T,
}

/// Queue pairs of one completion queue, each with what the program keeps beside it, found by their
/// completions: the place of a queue pair is its [`QpConfig::user_index`](crate::QpConfig). Each
/// has receives of its own: completions of one whose receives come from a shared queue are for
/// [`Qp::complete_shared`].
///
/// ```
/// use ferrocx_verbs_lite::*;
///
/// /// Makes a queue pair that answers to `name`.
/// fn add(table: &mut QpTable<String>, pd: &Pd, cq: &Cq, name: &str) -> Result<u32, VerbsError> {
///     let user_index = table.reserve();
///     let config = QpConfig { user_index, ..QpConfig::default() };
///     // A place that is not filled is given back.
///     let qp = pd.create_qp(cq, &config).inspect_err(|_| drop(table.remove(user_index)))?;
///     table.insert(qp, name.to_owned());
///     Ok(user_index)
/// }
///
/// /// Takes what has ended, of all of them.
/// fn serve(table: &mut QpTable<String>, cq: &mut Cq) -> Result<(), WrongCompletion> {
///     while let Some(Ended { qp, data: name, wc }) = table.poll(cq)? {
///         match wc.result {
///             // The queue pair is at hand: a full receive queue drops the buffer.
///             Ok(()) => drop(wc.into_buffers().map(|buf| qp.post_recv(0, buf))),
///             Err(failure) => eprintln!("{name}: {failure}"),
///         }
///     }
///     Ok(())
/// }
/// ```
///
/// Completions of queue pairs that are in the table no more are dropped. Those of a place that is
/// [reserved](QpTable::reserve) wait for its queue pair: a peer may send before the connection that
/// is being accepted is handed out.
#[derive(Debug)]
pub struct QpTable<T, B: Buffers = Buf> {
    entries: Vec<Option<Entry<T, B>>>,
    /// Places that were given out and not filled yet.
    reserved: Vec<u32>,
    /// Completions that were taken from the queue, and how many of them were given out.
    taken: ArrayVec<Completion, BATCH>,
    given: usize,
    reports: Reports,
    /// Completions of places that were reserved when they came, the oldest first.
    early: Vec<Completion>,
    /// Completions that were dropped.
    dropped: u64,
}

/// A request of a queue pair in a [`QpTable`] that has ended.
#[derive(Debug)]
pub struct Ended<'a, T, B: Buffers = Buf> {
    /// The queue pair.
    pub qp: &'a mut Qp<B>,
    /// What the program keeps beside it.
    pub data: &'a mut T,
    /// The request.
    pub wc: Wc<B>,
}

impl<T, B: Buffers> Default for QpTable<T, B> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            reserved: Vec::new(),
            taken: ArrayVec::new(),
            given: 0,
            reports: Reports::All,
            early: Vec::new(),
            dropped: 0,
        }
    }
}

impl<T, B: Buffers> QpTable<T, B> {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The table, which gives out what asked for it: requests without
    /// [`SendFlags::SIGNALED`](crate::SendFlags::SIGNALED) that went well are not, and the buffers
    /// that they took are dropped. Failures, receives, and what brings a key or a page list back
    /// are given out as always.
    #[must_use]
    pub fn only_signaled(self) -> Self {
        Self { reports: Reports::Signaled, ..self }
    }

    /// Reserves the least index that has neither queue pair nor reservation, for the `user_index`
    /// of one that is still to be made or connected: until it is put in, or [`QpTable::remove`]
    /// gives the index back. Looks through the table, and allocates.
    #[must_use = "it stays reserved"]
    pub fn reserve(&mut self) -> u32 {
        let is_free = |at: &u32| {
            let entry = self.entries.get(*at as usize);
            entry.is_none_or(Option::is_none) && !self.reserved.contains(at)
        };
        let at = (0..).find(is_free).expect("fewer queue pairs than numbers");
        self.reserved.push(at);
        at
    }

    /// Puts a queue pair in at its [`Qp::user_index`], and gives back what stood there. The table
    /// grows up to that index: this allocates.
    pub fn insert(&mut self, qp: Qp<B>, data: T) -> Option<(Qp<B>, T)> {
        self.reserved.retain(|reserved| *reserved != qp.user_index());
        let at = qp.user_index() as usize;
        if at >= self.entries.len() {
            self.entries.resize_with(at + 1, || None);
        }
        let old = self.entries[at].replace(Entry { qp, data });
        old.map(|entry| (entry.qp, entry.data))
    }

    /// Takes a queue pair out, or gives a reserved index back. Completions of the queue pair that
    /// were not polled yet are dropped; what is posted stays with it.
    pub fn remove(&mut self, index: u32) -> Option<(Qp<B>, T)> {
        self.reserved.retain(|reserved| *reserved != index);
        let entry = self.entries.get_mut(index as usize)?.take()?;
        Some((entry.qp, entry.data))
    }

    /// A queue pair and what stands beside it.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, index: u32) -> Option<(&mut Qp<B>, &mut T)> {
        let entry = self.entries.get_mut(index as usize)?.as_mut()?;
        Some((&mut entry.qp, &mut entry.data))
    }

    /// Every queue pair and what stands beside it, by index.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&mut Qp<B>, &mut T)> {
        self.entries.iter_mut().flatten().map(|entry| (&mut entry.qp, &mut entry.data))
    }

    /// Completions that were dropped because their queue pair is in the table no more.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The next request that has ended, of any queue pair; `None` when the completion queue is
    /// empty and everything was given out.
    ///
    /// Takes no lock, makes no system call, and allocates nothing, unless a completion has to wait
    /// for the queue pair of a reserved place.
    #[inline]
    pub fn poll(&mut self, cq: &mut Cq) -> Result<Option<Ended<'_, T, B>>, WrongCompletion> {
        let next = self.next(cq)?;
        Ok(self.ended(next))
    }

    /// Gives `each` the requests that have ended, of any queue pair, like [`QpTable::poll`] and at
    /// less cost: until `most` were given out, or the completion queue is empty. A completion that
    /// ends several gives them all. Returns how many they were.
    ///
    /// ```
    /// use ferrocx_verbs_lite::*;
    ///
    /// /// Posts every receive again that a message has filled, and counts the bytes.
    /// fn drain(table: &mut QpTable<u64>, cq: &mut Cq) -> Result<usize, WrongCompletion> {
    ///     table.poll_each(cq, 64, |qp, bytes, wc| {
    ///         *bytes += u64::from(wc.byte_len);
    ///         drop(wc.into_buffers().map(|buf| qp.post_recv(0, buf)));
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WrongCompletion`]; what was given out until then has ended.
    #[inline]
    pub fn poll_each(
        &mut self,
        cq: &mut Cq,
        most: usize,
        mut each: impl FnMut(&mut Qp<B>, &mut T, Wc<B>),
    ) -> Result<usize, WrongCompletion> {
        let mut count = 0;
        while count < most {
            // Straight out of the queue, as long as nothing was taken that `poll` has left.
            if self.early.is_empty() && self.given == self.taken.len() {
                let strange = loop {
                    if count >= most {
                        return Ok(count);
                    }
                    let Some(completion) = cq.poll() else { return Ok(count) };
                    let index = completion.user_index() as usize;
                    match self.entries.get_mut(index) {
                        Some(Some(Entry { qp, data })) if qp.is_named_by(&completion) => {
                            count += qp.give(&completion, self.reports, data, &mut each)?;
                        }
                        _ => break completion.copied(),
                    }
                };
                self.taken.clear();
                self.given = 0;
                self.taken.push(strange);
            }
            // Completions of queue pairs that are not there, or were not when they came.
            let next = self.next(cq)?;
            let Some(Ended { qp, data, wc }) = self.ended(next) else { break };
            each(qp, data, wc);
            count += 1;
        }
        Ok(count)
    }

    /// Takes completions from the queue when all were given out; whether there were any.
    #[inline(always)]
    fn refill(&mut self, cq: &mut Cq) -> bool {
        self.taken.clear();
        self.given = 0;
        cq.poll_batch(&mut self.taken) > 0
    }

    #[inline(always)]
    fn ended(&mut self, next: Option<(usize, Wc<B>)>) -> Option<Ended<'_, T, B>> {
        let (index, wc) = next?;
        let Entry { qp, data } = self.entries.get_mut(index)?.as_mut()?;
        Some(Ended { qp, data, wc })
    }

    /// The next request that has ended, and the index of its queue pair.
    #[inline(always)]
    fn next(&mut self, cq: &mut Cq) -> Result<Option<(usize, Wc<B>)>, WrongCompletion> {
        if !self.early.is_empty()
            && let Some(found) = self.next_early()?
        {
            return Ok(Some(found));
        }
        let mut refilled = 0;
        loop {
            let Some(completion) = self.taken.get_mut(self.given) else {
                // A device that lies may have completions of nobody without end.
                if refilled >= cq.entries() || !self.refill(cq) {
                    return Ok(None);
                }
                refilled += self.taken.len() as u32;
                continue;
            };
            let index = completion.user_index();
            let entry = self.entries.get_mut(index as usize).and_then(Option::as_mut);
            if entry.is_none() && self.reserved.contains(&index) {
                let early = self.taken.remove(self.given);
                // More than the queue holds were never asked for.
                if self.early.len() < cq.entries() as usize {
                    self.early.push(early);
                } else {
                    self.dropped += 1;
                }
                continue;
            }
            match end(entry, completion, self.reports, &mut self.dropped) {
                Ok(Some(wc)) => return Ok(Some((index as usize, wc))),
                Ok(None) => self.given += 1,
                Err(wrong) => {
                    self.given += 1;
                    return Err(wrong);
                }
            }
        }
    }

    /// What [`QpTable::next`] gives of completions that came before their queue pair.
    #[cold]
    #[inline(never)]
    fn next_early(&mut self) -> Result<Option<(usize, Wc<B>)>, WrongCompletion> {
        let mut at = 0;
        while let Some(completion) = self.early.get_mut(at) {
            let index = completion.user_index();
            if self.reserved.contains(&index) {
                at += 1;
                continue;
            }
            let entry = self.entries.get_mut(index as usize).and_then(Option::as_mut);
            let ended = end(entry, completion, self.reports, &mut self.dropped);
            if let Ok(Some(wc)) = ended {
                return Ok(Some((index as usize, wc)));
            }
            drop(self.early.remove(at));
            ended?;
        }
        Ok(None)
    }
}

/// The next request that a completion ends at its queue pair; it is dropped if that is gone.
#[inline(always)]
fn end<T, B: Buffers>(
    entry: Option<&mut Entry<T, B>>,
    completion: &mut Completion,
    reports: Reports,
    dropped: &mut u64,
) -> Result<Option<Wc<B>>, WrongCompletion> {
    match entry {
        Some(Entry { qp, .. }) if qp.is_named_by(completion) => qp.next_of(completion, reports),
        _ => {
            *dropped += 1;
            Ok(None)
        }
    }
}
