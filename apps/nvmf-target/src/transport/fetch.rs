//! Data of Writes that go straight into a back end's memory: fetched by READs that share
//! completions.
//!
//! Writes that come in a round stand in line until the round ends. Then as many READs are posted as
//! the host serves; the last of a group of them asks for a completion, which ends all. Those for
//! which there is no READ stay in line and hold up no other command.
//!
//! | a group ends with | so that |
//! |---|---|
//! | the last READ of a round | nobody waits for READs that come later: one alone is not delayed |
//! | half of what the host serves | it has another group to serve while one is answered |
//! | [`SHARED_BYTES`] | the first of long ones does not wait for the others |

use ferrocx::verbs::{Qp, SendFlags};

use super::NO_DATA;
use super::execute::Work;
use super::session::{GONE, Link, Session, Slot, State, Why, post_read, wr};
use crate::controller::io::{IoCommand, Kind};
use crate::proto::sgl::Keyed;

/// Bytes behind which READs share a completion no more: some microseconds of a link.
const SHARED_BYTES: u64 = 64 << 10;
/// Why a queue ends whose line names what is not there.
const ASTRAY: Why = "a command in line was lost";

impl Link {
    /// Puts a Write in line whose data are to come by READ.
    #[inline(always)]
    pub(super) fn stand_in_line(&mut self, it: &mut Slot) {
        it.state = State::Reading(None);
        self.line.push(it.index);
    }
}

/// Lets a Write fail alone whose memory was taken back while it stood in line: the READ that its
/// group counts on goes to its own page, and it is refused when that has ended.
#[cold]
#[inline(never)]
fn read_nowhere(
    qp: &mut Qp,
    link: &Link,
    it: Option<&mut Slot>,
    named: (u64, SendFlags),
) -> Result<(), Why> {
    let it = it.ok_or(ASTRAY)?;
    it.version = GONE;
    let page = link.page(it, it.command.len as usize).map_err(|_| ASTRAY)?;
    post_read(qp, named, &Keyed::fields(&it.sqe.sgl), page)
}

impl Work {
    /// Posts READs for commands that stand in line, as many as the host serves.
    #[inline(never)]
    pub(super) fn fetch(&mut self, qp: &mut Qp, session: &mut Session) {
        if session.link.ending.is_some() {
            return;
        }
        if session.link.line.version != self.offer.version() {
            self.check_line(qp, session);
        }
        if let Err(why) = self.try_fetch(qp, session) {
            session.link.fail(why);
        }
    }

    #[inline(always)]
    fn try_fetch(&mut self, qp: &mut Qp, Session { link, slots }: &mut Session) -> Result<(), Why> {
        let free = link.max_reads.saturating_sub(link.reads);
        let half = (link.max_reads / 2).max(1);
        let mut count = free.min(u16::try_from(link.line.waiting()).unwrap_or(u16::MAX));
        while count > 0 {
            count -= self.fetch_group(qp, link, slots, count.min(half))?;
        }
        self.waits += u64::from(link.line.left_behind());
        Ok(())
    }

    /// Posts the READs of a group, `most` or those of [`SHARED_BYTES`]; how many they are.
    #[inline(always)]
    fn fetch_group(
        &self,
        qp: &mut Qp,
        link: &mut Link,
        slots: &mut [Slot],
        most: u16,
    ) -> Result<u16, Why> {
        let (mut count, mut bytes) = (0, 0);
        loop {
            let Some(place) = link.line.post().map(usize::from) else { return Err(ASTRAY) };
            let Some(it) = slots.get(place) else { return Err(ASTRAY) };
            let IoCommand { backend, offset, len, .. } = it.command;
            (count, bytes) = (count + 1, bytes + len);
            let is_last = count == most || bytes >= SHARED_BYTES;
            let signaled = if is_last { SendFlags::SIGNALED } else { SendFlags::empty() };
            let from = Keyed::fields(&it.sqe.sgl);
            let Some(store) = self.backend(backend) else { return Err(ASTRAY) };
            let named = (wr::READS | u64::from(count), signaled);
            if let Ok(to) = store.direct(offset, len) {
                post_read(qp, named, &from, to)?;
            } else {
                read_nowhere(qp, link, slots.get_mut(place), named)?;
            }
            if is_last {
                link.reads += count;
                link.asked_for_completion();
                return Ok(count);
            }
        }
    }

    /// Checks those once more that have stood in line since before a change of what is offered.
    #[cold]
    fn check_line(&mut self, qp: &mut Qp, Session { link, slots }: &mut Session) {
        let mut refused = Vec::new();
        link.line.retain(|place| {
            let Some(it) = slots.get_mut(usize::from(place)) else { return false };
            let checked = self.look_again(&link.queue, it);
            refused.extend(checked.err().map(|status| (place, status)));
            checked.is_ok()
        });
        link.line.version = self.offer.version();
        for (place, status) in refused {
            if let Some(it) = slots.get_mut(usize::from(place))
                && let Err(why) = self.refuse(qp, link, it, status)
            {
                link.fail(why);
            }
        }
    }

    /// The data of the next `count` Writes in line have come.
    #[inline(always)]
    pub(super) fn have_data(
        &mut self,
        qp: &mut Qp,
        Session { link, slots }: &mut Session,
        count: u16,
    ) -> Result<(), Why> {
        link.reads -= count;
        link.owed.ended(count);
        if link.ending.is_some() {
            return Ok(());
        }
        for _ in 0..count {
            let it = link.line.end().and_then(|place| slots.get_mut(usize::from(place)));
            let Some(it) = it else { return Err(ASTRAY) };
            // The namespace may have changed while the data were on their way.
            if let Err(status) = self.look_again(&link.queue, it) {
                self.refuse(qp, link, it, status)?;
                continue;
            }
            let IoCommand { backend, len, .. } = it.command;
            match self.backends.get_mut(backend) {
                Some(Some(store)) => {
                    store.moved(link, it, Kind::Write, len);
                    link.done(qp, it)?;
                }
                _ => self.refuse(qp, link, it, NO_DATA)?,
            }
        }
        Ok(())
    }
}
