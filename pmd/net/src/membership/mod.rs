//! [`Memberships`]: the multicast groups that a host listens to, as its routers and switches are
//! told: IGMP for IPv4, MLD for IPv6.
//!
//! A multicast filter lets a group's frames into the port, but a switch that snoops and a router
//! send them only where somebody reported the group, and only as long as queries are answered.
//!
//! | version of the querier | a join, a leave | a query |
//! |---|---|---|
//! | IGMPv3, MLDv2 (also before any query) | changes of state, [`Config::robustness`] times | answered with state, after a random delay |
//! | IGMPv2, MLDv1 | reports, [`Config::robustness`] times; one leave or done | answered, unless another member was faster |
//! | IGMPv1 | reports; no leave | answered, unless another member was faster |
//!
//! An older querier than that of the first row is believed for as long as the RFCs say, then the
//! newest version is spoken again.
//!
//! Source: RFC 2236 (IGMPv2), RFC 3376 (IGMPv3), RFC 2710 (MLDv1), RFC 3810 (MLDv2).

mod frames;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use thiserror::Error;

use frames::{Heard, Query, Record, RecordKind};

pub use frames::{Host, MAX_FRAME_BYTES};

/// Sources that one group can be joined for; their record fits one report.
pub const MAX_SOURCES: usize = 64;
/// Times between queries and for their answers while no querier says others. Source: RFC 3376
/// sections 8.2 and 8.3, RFC 3810 sections 9.2 and 9.3.
const QUERY_INTERVAL: Duration = Duration::from_secs(125);
const QUERY_RESPONSE: Duration = Duration::from_secs(10);
/// Longest time between two reports of one change. Source: RFC 3376 section 8.11, RFC 3810
/// section 9.11; RFC 2236 section 8.10 for the versions before.
const UNSOLICITED: Duration = Duration::from_secs(1);
const UNSOLICITED_OLD: Duration = Duration::from_secs(10);

/// How groups are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Groups that are joined or being left at a time: 1 to 65536.
    pub groups: usize,
    /// How often a change is reported, against loss: 1 to 7; a querier may say another number.
    /// Source: RFC 3376 section 8.1.
    pub robustness: u8,
}

impl Default for Config {
    /// 256 groups, two reports of a change.
    fn default() -> Self {
        Self { groups: 256, robustness: 2 }
    }
}

/// Why a group cannot be joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The address is not a group's.
    #[error("{0} is not the address of a group; IPv4 groups are 224.0.0.0/4, IPv6 groups ff00::/8")]
    NotAGroup(IpAddr),
    /// The source is not one host of the group's IP version.
    #[error("{0} cannot send to {1}: give a unicast address of the same IP version")]
    NotASource(IpAddr, IpAddr),
    /// Too many groups.
    #[error("{0} groups are joined or being left already; leave one, or raise Config::groups")]
    Full(usize),
    /// Too many sources of one group.
    #[error(
        "{0} is joined for {MAX_SOURCES} sources already; leave one, or join it for any source"
    )]
    TooManySources(IpAddr),
}

/// Numbers of what was heard and said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Queries of routers and switches.
    pub queries: u64,
    /// Frames with reports, leaves or dones of ours.
    pub reports: u64,
    /// Answers that were left out because another member was faster.
    pub suppressed: u64,
}

/// Who may send to a group that is joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Source {
    ip: IpAddr,
    /// Joins that named it; without any it is being left.
    joins: u32,
    /// It came or went since the last change was reported for the last time.
    changed: bool,
}

#[derive(Debug)]
struct Group {
    ip: IpAddr,
    /// Joins for any source.
    joins: u32,
    sources: Vec<Source>,
    /// It began or ended to be joined for any source since the last change was reported for the
    /// last time.
    mode_changed: bool,
    /// Reports of the change that are left, and when the next is due.
    left: u8,
    next: Duration,
    /// When the answer to a query is due, and for which sources; for none of them, for all.
    answer: Option<(Duration, Vec<IpAddr>)>,
}

/// What is known of the querier of an IP version.
#[derive(Debug, Clone, Copy)]
struct Querier {
    robustness: u8,
    interval: Duration,
    /// Until when versions 1 and 2 are spoken, because queriers of theirs were heard.
    old: [Duration; 2],
}

/// The groups of one host on one VLAN. Sans I/O: time is what has passed since some start, and
/// must not run backwards.
#[derive(Debug)]
pub struct Memberships {
    host: Host,
    config: Config,
    groups: Vec<Group>,
    /// Of IPv4 and of IPv6.
    queriers: [Querier; 2],
    random: u64,
    stats: Stats,
}

impl Memberships {
    /// A member of nothing. Delays are drawn from `seed`; hosts should have different ones.
    #[must_use]
    pub fn new(host: Host, config: Config, seed: u64) -> Self {
        let config = Config {
            groups: config.groups.clamp(1, 65536),
            robustness: config.robustness.clamp(1, 7),
        };
        let (robustness, interval) = (config.robustness, QUERY_INTERVAL);
        let queriers = [Querier { robustness, interval, old: [Duration::ZERO; 2] }; 2];
        Self { host, config, groups: Vec::new(), queriers, random: seed, stats: Stats::default() }
    }

    /// Sets the addresses that reports come from from now on.
    pub fn set_host(&mut self, host: Host) {
        self.host = host;
    }

    /// Joins a group: whatever is sent to it, or what `source` sends to it. Joins are counted.
    /// [`Memberships::next_frame`] has the report.
    ///
    /// # Errors
    ///
    /// [`JoinError`].
    pub fn join(
        &mut self,
        ip: IpAddr,
        source: Option<IpAddr>,
        now: Duration,
    ) -> Result<(), JoinError> {
        if !ip.is_multicast() {
            return Err(JoinError::NotAGroup(ip));
        }
        if let Some(source) = source
            && (source.is_multicast()
                || source.is_unspecified()
                || source.is_ipv4() != ip.is_ipv4())
        {
            return Err(JoinError::NotASource(source, ip));
        }
        let robustness = self.queriers[family(ip)].robustness;
        let at = self.groups.iter().position(|group| group.ip == ip);
        let group = match at {
            Some(at) => &mut self.groups[at],
            None if self.groups.len() >= self.config.groups => {
                return Err(JoinError::Full(self.config.groups));
            }
            None => {
                self.groups.push(Group::new(ip));
                let at = self.groups.len() - 1;
                &mut self.groups[at]
            }
        };
        if group.count(source, true)? {
            group.has_changed(robustness, now);
        }
        Ok(())
    }

    /// Takes one [`Memberships::join`] back; whether there was one.
    pub fn leave(&mut self, ip: IpAddr, source: Option<IpAddr>, now: Duration) -> bool {
        let robustness = self.queriers[family(ip)].robustness;
        let Some(group) = self.groups.iter_mut().find(|group| group.ip == ip) else { return false };
        if !group.is_joined(source) {
            return false;
        }
        if group.count(source, false) == Ok(true) {
            group.has_changed(robustness, now);
        }
        true
    }

    /// The groups that are joined.
    pub fn groups(&self) -> impl Iterator<Item = IpAddr> {
        self.groups.iter().filter(|group| group.is_member()).map(|group| group.ip)
    }

    /// The joins that were not taken back, each as often as it was made: group and source.
    #[must_use]
    pub fn joins(&self) -> Vec<(IpAddr, Option<IpAddr>)> {
        let of_group = |group: &Group| {
            let everybody = std::iter::repeat_n((group.ip, None), group.joins as usize);
            let one = |s: &Source| std::iter::repeat_n((group.ip, Some(s.ip)), s.joins as usize);
            everybody.chain(group.sources.iter().flat_map(one)).collect::<Vec<_>>()
        };
        self.groups.iter().flat_map(of_group).collect()
    }

    /// Numbers of what was heard and said.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Listens to a frame; whether it was a query or a report for this host.
    pub fn frame(&mut self, frame: &[u8], now: Duration) -> bool {
        match frames::parse(frame, self.host.vlan) {
            Some(Heard::Query(query)) => self.query(&query, now),
            Some(Heard::Report(ip)) => self.report(ip, now),
            None => return false,
        }
        true
    }

    /// Decides when a query is answered. Source: RFC 3376 sections 5.2 and 7.2, RFC 3810 sections
    /// 6.2 and 8.2.
    fn query(&mut self, query: &Query, now: Duration) {
        self.stats.queries += 1;
        let at = usize::from(query.is_ipv6);
        let newest = newest(query.is_ipv6);
        let before = self.version(query.is_ipv6, now);
        let querier = &mut self.queriers[at];
        if query.version < newest {
            let wait = querier.interval * querier.robustness.into() + QUERY_RESPONSE;
            querier.old[usize::from(query.version) - 1] = now.saturating_add(wait);
            if query.version < before {
                // Nothing that was begun in another version goes on; this query brings reports.
                for group in self.groups.iter_mut().filter(|group| family(group.ip) == at) {
                    (group.left, group.answer) = (0, None);
                }
                self.forget_the_left();
            }
        } else {
            querier.robustness = query.robustness.unwrap_or(self.config.robustness);
            querier.interval = query.interval.unwrap_or(QUERY_INTERVAL);
        }
        let asked = query.group;
        // Sources without a group mean nothing, and more than anybody joins is all of them.
        let is_short = asked.is_some() && query.sources.len() <= MAX_SOURCES;
        let asked_sources = if is_short { &query.sources[..] } else { &[] };
        // The newest versions answer for all groups at once, the old ones for each by itself.
        let is_newest = self.version(query.is_ipv6, now) == newest;
        let mut due = now.saturating_add(self.delay(query.max_response));
        for at in 0..self.groups.len() {
            let ip = self.groups[at].ip;
            let is_meant = asked.map_or(ip.is_ipv6() == query.is_ipv6, |asked| asked == ip);
            if !is_meant || !self.groups[at].is_member() {
                continue;
            }
            if !is_newest {
                due = now.saturating_add(self.delay(query.max_response));
            }
            let group = &mut self.groups[at];
            let (due, sources) = match group.answer.take() {
                // Sources are asked for beside others: one answer for them all, while it fits.
                Some((earlier, mut sources))
                    if !sources.is_empty() && !asked_sources.is_empty() =>
                {
                    let new = asked_sources.iter().filter(|ip| !sources.contains(ip));
                    let new: Vec<_> = new.copied().collect();
                    sources.extend(new);
                    let fits = sources.len() <= MAX_SOURCES;
                    (due.min(earlier), if fits { sources } else { Vec::new() })
                }
                Some((earlier, _)) => (due.min(earlier), Vec::new()),
                None => (due, asked_sources.to_vec()),
            };
            group.answer = Some((due, sources));
        }
    }

    /// Another member was faster: in the old versions one answer is enough.
    fn report(&mut self, ip: IpAddr, now: Duration) {
        if self.version(ip.is_ipv6(), now) == newest(ip.is_ipv6()) {
            return;
        }
        if let Some(group) = self.groups.iter_mut().find(|group| group.ip == ip)
            && group.is_member()
            && group.answer.take().is_some()
        {
            self.stats.suppressed += 1;
        }
    }

    /// When [`Memberships::next_frame`] has something to send, if it will.
    #[must_use]
    pub fn next_time(&self) -> Option<Duration> {
        self.groups.iter().filter_map(Group::due).min()
    }

    /// The next frame that is due, if one is. Call it until there is none.
    pub fn next_frame(&mut self, now: Duration) -> Option<Vec<u8>> {
        while let Some(at) = self.groups.iter().position(|g| g.due().is_some_and(|due| due <= now))
        {
            let is_ipv6 = self.groups[at].ip.is_ipv6();
            let version = self.version(is_ipv6, now);
            let frame = if version == newest(is_ipv6) {
                self.report_records(is_ipv6, now)
            } else {
                self.report_old(at, version, now)
            };
            self.forget_the_left();
            if frame.is_some() {
                self.stats.reports += 1;
                return frame;
            }
        }
        None
    }

    /// As many records as are due and fit one report of the newest version.
    fn report_records(&mut self, is_ipv6: bool, now: Duration) -> Option<Vec<u8>> {
        let mut records = Vec::new();
        let mut room = frames::records_room(is_ipv6);
        for at in 0..self.groups.len() {
            let delay = self.delay(UNSOLICITED);
            let group = &mut self.groups[at];
            if group.ip.is_ipv6() != is_ipv6 || group.due().is_none_or(|due| due > now) {
                continue;
            }
            let is_change = group.left > 0 && group.next <= now;
            let due = if is_change { group.changes() } else { group.state() };
            let bytes: usize = due.iter().map(Record::len_bytes).sum();
            if bytes > room {
                break;
            }
            room -= bytes;
            if is_change {
                group.was_reported(now + delay);
            } else {
                group.answer = None;
            }
            // Every host is a member of the group of all hosts, and says nothing of it.
            if !is_all_hosts(group.ip) {
                records.extend(due);
            }
        }
        (!records.is_empty()).then(|| frames::report(&self.host, is_ipv6, &records))
    }

    /// The report or leave of one group in an old version.
    fn report_old(&mut self, at: usize, version: u8, now: Duration) -> Option<Vec<u8>> {
        let delay = self.delay(UNSOLICITED_OLD);
        let group = &mut self.groups[at];
        let is_member = group.is_member();
        if group.left > 0 && group.next <= now {
            group.was_reported(now + delay);
        } else {
            group.answer = None;
        }
        if !is_member {
            // One leave is all that these versions have.
            group.left = 0;
        }
        if is_all_hosts(group.ip) {
            return None;
        }
        frames::report_old(&self.host, group.ip, version, is_member)
    }

    /// The version that is spoken now.
    fn version(&self, is_ipv6: bool, now: Duration) -> u8 {
        let until =
            |version: &u8| self.queriers[usize::from(is_ipv6)].old[usize::from(*version) - 1];
        let newest = newest(is_ipv6);
        (1..newest).find(|version| now < until(version)).unwrap_or(newest)
    }

    fn forget_the_left(&mut self) {
        self.groups.retain(|group| group.left > 0 || group.is_member());
    }

    /// A random time up to `most`, in whole microseconds. Source of the generator: Steele et al.,
    /// "Fast splittable pseudorandom number generators", SplitMix64.
    fn delay(&mut self, most: Duration) -> Duration {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        Duration::from_micros(z % (most.as_micros() as u64 + 1))
    }
}

impl Group {
    fn new(ip: IpAddr) -> Self {
        Self {
            ip,
            joins: 0,
            sources: Vec::new(),
            mode_changed: false,
            left: 0,
            next: Duration::ZERO,
            answer: None,
        }
    }

    fn is_member(&self) -> bool {
        self.joins > 0 || self.sources.iter().any(|source| source.joins > 0)
    }

    /// Whether there is a join to be taken back.
    fn is_joined(&self, source: Option<IpAddr>) -> bool {
        match source {
            None => self.joins > 0,
            Some(ip) => self.sources.iter().any(|known| known.ip == ip && known.joins > 0),
        }
    }

    /// Counts a join or a leave; whether that changes what is to be reported.
    fn count(&mut self, source: Option<IpAddr>, joins: bool) -> Result<bool, JoinError> {
        let step = |count: &mut u32| {
            *count = if joins { count.saturating_add(1) } else { count.saturating_sub(1) };
            *count == u32::from(joins)
        };
        let Some(ip) = source else {
            let has_changed = step(&mut self.joins);
            self.mode_changed |= has_changed;
            return Ok(has_changed);
        };
        let at = match self.sources.iter().position(|known| known.ip == ip) {
            Some(at) => at,
            None if self.sources.len() >= MAX_SOURCES => {
                return Err(JoinError::TooManySources(self.ip));
            }
            None => {
                self.sources.push(Source { ip, joins: 0, changed: false });
                self.sources.len() - 1
            }
        };
        let source = &mut self.sources[at];
        let has_changed = step(&mut source.joins);
        source.changed |= has_changed;
        if source.joins == 0 && self.joins > 0 && self.left == 0 {
            // Nothing is to be reported of it: whoever listens to everybody says no sources.
            self.sources.remove(at);
            return Ok(false);
        }
        // Whoever listens to everybody hears the source as well.
        Ok(has_changed && self.joins == 0)
    }

    /// A change is to be reported, at once for the first time.
    fn has_changed(&mut self, robustness: u8, now: Duration) {
        (self.left, self.next) = (robustness, now);
        if !self.is_member() {
            self.answer = None;
        }
    }

    /// A change was reported once more.
    fn was_reported(&mut self, next: Duration) {
        self.left -= 1;
        self.next = next;
        if self.left == 0 {
            self.mode_changed = false;
            self.sources.retain(|source| source.joins > 0);
            self.sources.iter_mut().for_each(|source| source.changed = false);
        }
    }

    /// When something is to be said of it.
    fn due(&self) -> Option<Duration> {
        let change = (self.left > 0).then_some(self.next);
        let answer = self.answer.as_ref().map(|(due, _)| *due);
        change.into_iter().chain(answer).min()
    }

    fn sources_with(&self, is_wanted: impl Fn(&Source) -> bool) -> Vec<IpAddr> {
        self.sources.iter().filter(|source| is_wanted(source)).map(|source| source.ip).collect()
    }

    /// Records of what has changed. Source: RFC 3376 section 5.1.
    fn changes(&self) -> Vec<Record> {
        let record = |kind, sources| Record { kind, group: self.ip, sources };
        if self.joins > 0 {
            return vec![record(RecordKind::ToExclude, Vec::new())];
        }
        if self.mode_changed {
            return vec![record(RecordKind::ToInclude, self.sources_with(|s| s.joins > 0))];
        }
        let changed = |is_joined: bool| {
            self.sources_with(|source| source.changed && (source.joins > 0) == is_joined)
        };
        let records =
            [record(RecordKind::Allow, changed(true)), record(RecordKind::Block, changed(false))];
        records.into_iter().filter(|record| !record.sources.is_empty()).collect()
    }

    /// Records of what is asked for. Source: RFC 3376 section 5.2.
    fn state(&self) -> Vec<Record> {
        let asked = self.answer.as_ref().map_or(&[][..], |(_, sources)| sources);
        let include = RecordKind::IsInclude;
        let (kind, sources) = match (self.joins > 0, asked) {
            (true, []) => (RecordKind::IsExclude, Vec::new()),
            (true, asked) => (include, asked.to_vec()),
            (false, []) => (include, self.sources_with(|source| source.joins > 0)),
            (false, asked) => {
                (include, self.sources_with(|s| s.joins > 0 && asked.contains(&s.ip)))
            }
        };
        if kind == include && sources.is_empty() {
            return Vec::new();
        }
        vec![Record { kind, group: self.ip, sources }]
    }
}

/// Place of an IP version in the table of queriers.
fn family(ip: IpAddr) -> usize {
    usize::from(ip.is_ipv6())
}

/// The newest version: IGMPv3, MLDv2.
fn newest(is_ipv6: bool) -> u8 {
    if is_ipv6 { 2 } else { 3 }
}

/// Groups that nobody reports: all hosts of the link, and IPv6 groups that leave no interface.
/// Source: RFC 3376 section 6, RFC 3810 section 6.
fn is_all_hosts(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip == Ipv4Addr::new(224, 0, 0, 1),
        IpAddr::V6(ip) => {
            let [_, scope, ..] = ip.octets();
            scope & 0xf < 2 || ip == Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)
        }
    }
}
