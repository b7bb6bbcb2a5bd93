//! [`Neighbours`]: the MAC addresses of others, asked for, remembered, and forgotten in time.
//!
//! | state of an entry | next | why |
//! |---|---|---|
//! | asking | known | its owner answered, or asked us |
//! | asking | gone | [`Config::attempts`] questions had no answer: [`Unresolved::NoAnswer`] |
//! | known | known, asked for again | wanted in the last quarter of its life: its owner alone is asked |
//! | known | asking | wanted after [`Config::lifetime`] |
//!
//! A MAC address is taken from answers and announcements for entries that exist, and from
//! questions for addresses of ours (RFC 826; RFC 4861 section 7.2). What nobody asked for makes no
//! entry.
//!
//! Strangers are those that nobody here wants to reach of himself: who asked us, and who is to be
//! answered ([`Neighbours::resolve_stranger`]). At most [`Config::strangers`] are known, and as
//! many asked for, so that answers to invented addresses cause few questions. Who is to speak to us
//! asks for us first, and so is mostly known. Strangers never push out a neighbour that somebody
//! wanted.

mod frames;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use thiserror::Error;

pub use frames::{Frame, MAX_FRAME_BYTES, Own, solicited_node};

use crate::ether::MacAddr;

/// Times that an address of ours is announced, [`Config::interval`] apart. Source: RFC 5227
/// section 2.3, RFC 4861 section 10.
const ANNOUNCEMENTS: u8 = 2;
/// Least time between two defences of an address. Source: RFC 5227 section 1.1,
/// `DEFEND_INTERVAL`.
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// How neighbours are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Neighbours that somebody here wants, known or asked for at a time: 1 to 65536.
    pub entries: usize,
    /// Strangers known at a time, and as many more asked for: 1 to 65536.
    pub strangers: usize,
    /// Questions before giving up: 1 to 255.
    pub attempts: u8,
    /// Time between two questions.
    pub interval: Duration,
    /// How long an answer is believed.
    pub lifetime: Duration,
}

impl Default for Config {
    /// 1024 entries, twice 256 strangers, five questions half a second apart, one minute.
    fn default() -> Self {
        Self {
            entries: 1024,
            strangers: 256,
            attempts: 5,
            interval: Duration::from_millis(500),
            lifetime: Duration::from_secs(60),
        }
    }
}

/// Why the MAC address of a neighbour is not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unresolved {
    /// Nobody answered.
    #[error(
        "{target} did not answer {attempts} questions for its MAC address; is it up, on this \
         link, and does it own the address?"
    )]
    NoAnswer {
        /// Who was asked for.
        target: IpAddr,
        /// How often.
        attempts: u8,
    },
    /// The address is not one of a host.
    #[error("{target} is not the address of one host; give a unicast address")]
    NotAHost {
        /// The address.
        target: IpAddr,
    },
    /// Source and target are of different IP versions.
    #[error("{target} cannot be asked for from {own}: one is IPv4, the other IPv6")]
    OtherFamily {
        /// Who was asked for.
        target: IpAddr,
        /// From which address.
        own: IpAddr,
    },
    /// Too many neighbours are being asked for.
    #[error("{entries} neighbours are being asked for already; wait, or raise Config::entries")]
    Full {
        /// Entries of the cache.
        entries: usize,
    },
}

/// Somebody else claims an address of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{mac} claims {ip}, which is ours; give one of the two another address")]
pub struct Conflict {
    /// The address.
    pub ip: IpAddr,
    /// Who claims it.
    pub mac: MacAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Asked for `since` then; `sent` questions were asked; the next one, or the end, is at `next`.
    Asking { since: Duration, sent: u8, next: Duration },
    /// Believed until then; `asked` again, and when next.
    Known { mac: MacAddr, until: Duration, refresh: Option<(u8, Duration)> },
}

/// A neighbour and its VLAN.
type Key = (IpAddr, Option<u16>);

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The address that asks.
    own: Own,
    state: State,
    is_stranger: bool,
}

impl Entry {
    /// Where it stands in [`Neighbours::orders`]: of which kind, and how old.
    fn order(&self) -> (usize, Duration) {
        let kind = if self.is_stranger { STRANGER } else { 0 };
        match self.state {
            State::Known { until, .. } => (kind, until),
            State::Asking { since, .. } => (kind + ASKING, since),
        }
    }

    /// When its owner is asked next; `None` if that was done often enough.
    fn due(&self, attempts: u8) -> Option<Duration> {
        let (sent, next) = match self.state {
            State::Asking { sent, next, .. } => (sent, next),
            State::Known { refresh, .. } => refresh?,
        };
        (sent < attempts).then_some(next)
    }
}

/// What is added for the place of a kind in [`Neighbours::orders`].
const ASKING: usize = 1;
const STRANGER: usize = 2;

/// An address of ours, and what is still to be said of it.
#[derive(Debug, Clone, Copy)]
struct Station {
    own: Own,
    /// Announcements to send, and when the next is due.
    left: u8,
    next: Duration,
    defended: Option<Duration>,
}

/// The neighbours of a port. Sans I/O: time is what has passed since some start, and must not run
/// backwards.
#[derive(Debug)]
pub struct Neighbours {
    config: Config,
    stations: Vec<Station>,
    entries: BTreeMap<Key, Entry>,
    /// The entries that are wanted and known, wanted and asked for, strangers known, strangers
    /// asked for: the oldest first.
    orders: [BTreeSet<(Duration, Key)>; 4],
    /// When who is asked next.
    due: BTreeSet<(Duration, Key)>,
    pushed_out: u64,
}

impl Neighbours {
    /// Knows nobody.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let (entries, strangers) =
            (config.entries.clamp(1, 65536), config.strangers.clamp(1, 65536));
        let attempts = config.attempts.max(1);
        Self {
            config: Config { entries, strangers, attempts, ..config },
            stations: Vec::new(),
            entries: BTreeMap::new(),
            orders: Default::default(),
            due: BTreeSet::new(),
            pushed_out: 0,
        }
    }

    /// Neighbours known or asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How often a neighbour made room for another one so far.
    #[must_use]
    pub fn pushed_out(&self) -> u64 {
        self.pushed_out
    }

    /// Sets the addresses of ours; those that are new are announced.
    pub fn set_own(&mut self, own: impl IntoIterator<Item = Own>, now: Duration) {
        let before = std::mem::take(&mut self.stations);
        let station = |own| {
            let known = before.iter().find(|station| station.own == own).copied();
            known.unwrap_or(Station { own, left: ANNOUNCEMENTS, next: now, defended: None })
        };
        self.stations = own.into_iter().map(station).collect();
    }

    /// The MAC address of `target` as seen from `own`; `None` while it is asked for. Ask again
    /// after [`Neighbours::frame`] and [`Neighbours::next_frame`] had something to do.
    ///
    /// # Errors
    ///
    /// [`Unresolved`]. After [`Unresolved::NoAnswer`] the next call asks from the start.
    pub fn resolve(
        &mut self,
        target: IpAddr,
        own: &Own,
        now: Duration,
    ) -> Result<Option<MacAddr>, Unresolved> {
        self.resolve_as(target, own, now, false)
    }

    /// The MAC address of a stranger who is to be answered, like [`Neighbours::resolve`]. No
    /// neighbour that somebody wanted makes room for it.
    ///
    /// # Errors
    ///
    /// Those of [`Neighbours::resolve`]; [`Unresolved::Full`] when enough strangers are asked for.
    pub fn resolve_stranger(
        &mut self,
        target: IpAddr,
        own: &Own,
        now: Duration,
    ) -> Result<Option<MacAddr>, Unresolved> {
        self.resolve_as(target, own, now, true)
    }

    fn resolve_as(
        &mut self,
        target: IpAddr,
        own: &Own,
        now: Duration,
        is_stranger: bool,
    ) -> Result<Option<MacAddr>, Unresolved> {
        if !is_host(target) {
            return Err(Unresolved::NotAHost { target });
        }
        if target.is_ipv4() != own.ip.is_ipv4() {
            return Err(Unresolved::OtherFamily { target, own: own.ip });
        }
        let is_own = |station: &&Station| station.own.ip == target && station.own.vlan == own.vlan;
        if let Some(station) = self.stations.iter().find(is_own) {
            return Ok(Some(station.own.mac));
        }
        let key = (target, own.vlan);
        let asking = State::Asking { since: now, sent: 0, next: now };
        let anew = Entry { own: *own, state: asking, is_stranger };
        let Some(known) = self.entries.get(&key).copied() else {
            self.insert(key, anew, now)?;
            return Ok(None);
        };
        // Wanted once is wanted.
        let mut entry = Entry { is_stranger: is_stranger && known.is_stranger, ..known };
        let found = match &mut entry.state {
            State::Known { mac, until, refresh } if now < *until => {
                if refresh.is_none() && now >= *until - self.config.lifetime / 4 {
                    *refresh = Some((0, now));
                    entry.own = *own;
                }
                Some(*mac)
            }
            State::Known { .. } => {
                entry = Entry { is_stranger: entry.is_stranger, ..anew };
                None
            }
            State::Asking { sent, next, .. } => {
                let attempts = *sent;
                if attempts >= self.config.attempts && now >= *next {
                    self.take(key);
                    return Err(Unresolved::NoAnswer { target, attempts });
                }
                None
            }
        };
        if (entry.state, entry.is_stranger) != (known.state, known.is_stranger) {
            self.take(key);
            if let Err(full) = self.insert(key, entry, now) {
                // Where there is no place among the wanted, a stranger that is known stays one.
                self.put(key, known);
                return found.map(Some).ok_or(full);
            }
        }
        Ok(found)
    }

    /// Learns from a frame; says so if somebody claims an address of ours.
    pub fn frame(&mut self, frame: &[u8], now: Duration) -> Option<Conflict> {
        let heard = frames::parse(frame)?;
        let ours = |ip: IpAddr| {
            self.stations.iter().position(|s| s.own.ip == ip && s.own.vlan == heard.vlan)
        };
        let asked = heard.asks.and_then(ours);
        let Some((ip, mac)) = heard.tells else {
            // Somebody wants to know whether the address is free. ARP is answered in place.
            if let Some(at) = asked.filter(|_| heard.asks.is_some_and(|ip| ip.is_ipv6())) {
                let station = &mut self.stations[at];
                (station.left, station.next) = (station.left.max(1), now);
            }
            return None;
        };
        if let Some(at) = ours(ip) {
            return self.claimed(at, mac, now);
        }
        let until = now.saturating_add(self.config.lifetime);
        let known = State::Known { mac, until, refresh: None };
        let key = (ip, heard.vlan);
        let learned = if let Some(entry) = self.entries.get(&key).copied() {
            let differs = matches!(entry.state, State::Known { mac: old, .. } if old != mac);
            (!differs || heard.overrides).then_some(Entry { state: known, ..entry })
        } else {
            // Who asks will be spoken to.
            let own = asked.filter(|_| is_host(ip)).map(|at| self.stations[at].own);
            own.map(|own| Entry { own, state: known, is_stranger: true })
        };
        if let Some(entry) = learned {
            self.take(key);
            // A full cache can do without.
            let _ = self.insert(key, entry, now);
        }
        None
    }

    /// Somebody says that an address of ours is at `mac`.
    fn claimed(&mut self, at: usize, mac: MacAddr, now: Duration) -> Option<Conflict> {
        let station = &mut self.stations[at];
        if mac == station.own.mac {
            return None;
        }
        if station.defended.is_none_or(|last| now >= last.saturating_add(DEFEND_INTERVAL)) {
            station.defended = Some(now);
            (station.left, station.next) = (station.left.max(1), now);
        }
        Some(Conflict { ip: station.own.ip, mac })
    }

    /// The next frame that is due, if one is. Call it until there is none.
    pub fn next_frame(&mut self, now: Duration) -> Option<Frame> {
        let interval = self.config.interval;
        for station in &mut self.stations {
            if station.left > 0 && now >= station.next {
                station.left -= 1;
                station.next = now.saturating_add(interval);
                return Some(frames::announcement(&station.own));
            }
        }
        let key = self.due.first().filter(|(at, _)| *at <= now)?.1;
        let mut entry = self.take(key)?;
        let (sent, next, to) = match &mut entry.state {
            State::Asking { sent, next, .. } => (sent, next, None),
            State::Known { mac, refresh, .. } => {
                let (sent, next) = refresh.as_mut()?;
                (sent, next, Some(*mac))
            }
        };
        *sent += 1;
        *next = now.saturating_add(interval);
        self.put(key, entry);
        Some(frames::question(&entry.own, key.0, to))
    }

    /// Forgets a neighbour, for example because it does not answer at what is known of it.
    pub fn forget(&mut self, target: IpAddr, vlan: Option<u16>) {
        self.take((target, vlan));
    }

    /// Adds an entry. Where there are enough, the oldest makes room that was asked for in vain, or
    /// else that is known: of strangers only a stranger for another one that is known. Strangers
    /// that are asked for wait for each other.
    fn insert(&mut self, key: Key, entry: Entry, now: Duration) -> Result<(), Unresolved> {
        let (kind, _) = entry.order();
        let [known, asking, ..] = &self.orders;
        let (len, limit) = match entry.is_stranger {
            true => (self.orders[kind].len(), self.config.strangers),
            false => (known.len() + asking.len(), self.config.entries),
        };
        if len >= limit {
            let kinds: &[usize] = match kind {
                0 | ASKING => &[ASKING, 0],
                kind => &[kind],
            };
            let oldest = kinds.iter().filter_map(|kind| self.orders[*kind].first());
            let mut spare = oldest.map(|(_, key)| *key).filter(|key| {
                let state = self.entries.get(key).map(|entry| entry.state);
                match state {
                    Some(State::Asking { sent, next, .. }) => {
                        sent >= self.config.attempts && now >= next
                    }
                    _ => true,
                }
            });
            let oldest = spare.next().ok_or(Unresolved::Full { entries: limit })?;
            self.take(oldest);
            self.pushed_out += 1;
        }
        self.put(key, entry);
        Ok(())
    }

    fn put(&mut self, key: Key, entry: Entry) {
        let (kind, age) = entry.order();
        self.orders[kind].insert((age, key));
        self.due.extend(entry.due(self.config.attempts).map(|at| (at, key)));
        self.entries.insert(key, entry);
    }

    fn take(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        let (kind, age) = entry.order();
        self.orders[kind].remove(&(age, key));
        if let Some(at) = entry.due(self.config.attempts) {
            self.due.remove(&(at, key));
        }
        Some(entry)
    }
}

/// Whether an address can be that of one host.
fn is_host(ip: IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !ip.is_multicast() && !ip.is_unspecified() && !is_broadcast
}
