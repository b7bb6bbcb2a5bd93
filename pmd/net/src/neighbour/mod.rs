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
//! entry, so a stranger cannot fill the cache.

mod frames;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::time::Duration;

use thiserror::Error;

pub use frames::{Frame, MAX_FRAME_BYTES, solicited_node};

use crate::ether::Mac;

/// Times that an address of ours is announced, [`Config::interval`] apart. Source: RFC 5227
/// section 2.3, RFC 4861 section 10.
const ANNOUNCEMENTS: u8 = 2;
/// Least time between two defences of an address. Source: RFC 5227 section 1.1,
/// `DEFEND_INTERVAL`.
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// How neighbours are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Neighbours known or asked for at a time: 1 to 65536.
    pub entries: usize,
    /// Questions before giving up: 1 to 255.
    pub attempts: u8,
    /// Time between two questions.
    pub interval: Duration,
    /// How long an answer is believed.
    pub lifetime: Duration,
}

impl Default for Config {
    /// 1024 entries, five questions half a second apart, one minute.
    fn default() -> Self {
        Self {
            entries: 1024,
            attempts: 5,
            interval: Duration::from_millis(500),
            lifetime: Duration::from_secs(60),
        }
    }
}

/// An address of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own {
    /// The address.
    pub ip: IpAddr,
    /// The MAC address that it is reached by.
    pub mac: Mac,
    /// The VLAN that it is on.
    pub vlan: Option<u16>,
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
    pub mac: Mac,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// `sent` questions were asked; the next one, or the end, is at `next`.
    Asking { sent: u8, next: Duration },
    /// Believed until then; `asked` again, and when next.
    Known { mac: Mac, until: Duration, refresh: Option<(u8, Duration)> },
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    target: IpAddr,
    /// The address that asks.
    own: Own,
    state: State,
}

impl Entry {
    fn is(&self, target: IpAddr, vlan: Option<u16>) -> bool {
        self.target == target && self.own.vlan == vlan
    }
}

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
    entries: Vec<Entry>,
}

impl Neighbours {
    /// Knows nobody.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let entries = config.entries.clamp(1, 65536);
        let config = Config { entries, attempts: config.attempts.max(1), ..config };
        Self { config, stations: Vec::new(), entries: Vec::with_capacity(entries.min(64)) }
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
    ) -> Result<Option<Mac>, Unresolved> {
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
        let asking = State::Asking { sent: 0, next: now };
        let at = self.entries.iter().position(|entry| entry.is(target, own.vlan));
        let Some(at) = at else {
            self.insert(Entry { target, own: *own, state: asking })?;
            return Ok(None);
        };
        let entry = &mut self.entries[at];
        match &mut entry.state {
            State::Known { mac, until, refresh } if now < *until => {
                if refresh.is_none() && now >= *until - self.config.lifetime / 4 {
                    *refresh = Some((0, now));
                    entry.own = *own;
                }
                Ok(Some(*mac))
            }
            State::Known { .. } => {
                *entry = Entry { target, own: *own, state: asking };
                Ok(None)
            }
            State::Asking { sent, next } => {
                let attempts = *sent;
                if attempts < self.config.attempts || now < *next {
                    return Ok(None);
                }
                self.entries.swap_remove(at);
                Err(Unresolved::NoAnswer { target, attempts })
            }
        }
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
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.is(ip, heard.vlan)) {
            let differs = matches!(entry.state, State::Known { mac: old, .. } if old != mac);
            if !differs || heard.overrides {
                entry.state = known;
            }
        } else if let Some(at) = asked
            && is_host(ip)
        {
            // Who asks will be spoken to. A full cache can do without.
            let own = self.stations[at].own;
            let _ = self.insert(Entry { target: ip, own, state: known });
        }
        None
    }

    /// Somebody says that an address of ours is at `mac`.
    fn claimed(&mut self, at: usize, mac: Mac, now: Duration) -> Option<Conflict> {
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
        for entry in &mut self.entries {
            let to = match &mut entry.state {
                State::Asking { sent, next } if *sent < self.config.attempts && now >= *next => {
                    *sent += 1;
                    *next = now.saturating_add(interval);
                    None
                }
                State::Known { mac, refresh: Some((sent, next)), .. }
                    if *sent < self.config.attempts && now >= *next =>
                {
                    *sent += 1;
                    *next = now.saturating_add(interval);
                    Some(*mac)
                }
                _ => continue,
            };
            return Some(frames::question(&entry.own, entry.target, to));
        }
        None
    }

    /// Forgets a neighbour, for example because it does not answer at what is known of it.
    pub fn forget(&mut self, target: IpAddr, vlan: Option<u16>) {
        self.entries.retain(|entry| !entry.is(target, vlan));
    }

    /// Adds an entry; the one that ends first makes room, but none that is asked for.
    fn insert(&mut self, entry: Entry) -> Result<(), Unresolved> {
        let entries = self.config.entries;
        if self.entries.len() >= entries {
            let end = |entry: &Entry| match entry.state {
                State::Known { until, .. } => Some(until),
                State::Asking { .. } => None,
            };
            let ends = self.entries.iter().enumerate().filter_map(|(at, e)| Some((end(e)?, at)));
            let (_, at) = ends.min().ok_or(Unresolved::Full { entries })?;
            self.entries.swap_remove(at);
        }
        self.entries.push(entry);
        Ok(())
    }
}

/// Whether an address can be that of one host.
fn is_host(ip: IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !ip.is_multicast() && !ip.is_unspecified() && !is_broadcast
}
