//! Reservations of namespaces: which hosts may read and write one. [`Reservation`] is the state of
//! one namespace; nothing of it outlives the target, and hosts are told so (PTPL is 0).
//!
//! Source: NVM Express base 1.4, "Reservations"; reference 10.1.10.
//!
//! | type | the holder | other registrants | other hosts |
//! |---|---|---|---|
//! | none | all | all | all |
//! | write exclusive | all | read | read |
//! | exclusive access | all | – | – |
//! | write exclusive, registrants only; all registrants | all | all | read |
//! | exclusive access, registrants only; all registrants | all | all | – |

use crate::proto::sqe::io;
use crate::proto::status::Status;

/// Hosts that may be registered with a namespace.
pub const MAX_REGISTRANTS: usize = 32;

/// Identifier of a host.
pub type HostId = [u8; 16];

/// Kinds of reservations: the RTYPE field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Others read.
    WriteExclusive = 1,
    /// Others do nothing.
    ExclusiveAccess = 2,
    /// Those that are not registered read.
    WriteExclusiveRegistrants = 3,
    /// Those that are not registered do nothing.
    ExclusiveAccessRegistrants = 4,
    /// Those that are not registered read; every registrant is a holder.
    WriteExclusiveAll = 5,
    /// Those that are not registered do nothing; every registrant is a holder.
    ExclusiveAccessAll = 6,
}

impl Kind {
    fn parse(field: u8) -> Result<Self, Status> {
        Ok(match field {
            1 => Self::WriteExclusive,
            2 => Self::ExclusiveAccess,
            3 => Self::WriteExclusiveRegistrants,
            4 => Self::ExclusiveAccessRegistrants,
            5 => Self::WriteExclusiveAll,
            6 => Self::ExclusiveAccessAll,
            _ => return Err(Status::INVALID_FIELD.dnr()),
        })
    }

    /// Whether every registrant is a holder.
    fn is_of_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }

    /// Whether all registrants may do what the holder may.
    fn is_of_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Whether hosts without any right may read.
    fn lets_read(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive | Self::WriteExclusiveRegistrants | Self::WriteExclusiveAll
        )
    }
}

/// A host that is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registrant {
    /// Its identifier.
    pub hostid: HostId,
    /// Its key.
    pub key: u64,
}

/// What a registrant is told of, in the log of reservation notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Its registration was taken away.
    RegistrationPreempted = 1,
    /// The reservation was released.
    Released = 2,
    /// The reservation was taken away.
    Preempted = 3,
}

/// Registrants of a namespace, and the reservation that one of them holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reservation {
    generation: u32,
    registrants: Vec<Registrant>,
    /// The kind, and who holds it: of kinds that all registrants hold, whoever acquired it.
    held: Option<(Kind, HostId)>,
}

/// Who is told of a change.
pub type Told = Vec<(HostId, Notice)>;

/// A refusal for a right or a key.
const CONFLICT: Status = Status::RESERVATION_CONFLICT;

impl Reservation {
    /// Whether nobody is registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.registrants.is_empty()
    }

    /// Changes of the registrants.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The registrants.
    #[must_use]
    pub fn registrants(&self) -> &[Registrant] {
        &self.registrants
    }

    /// The kind of the reservation, if there is one.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        self.held.map(|(kind, _)| kind)
    }

    /// Whether a registrant holds the reservation.
    #[must_use]
    pub fn holds(&self, hostid: &HostId) -> bool {
        self.held.is_some_and(|(kind, holder)| {
            holder == *hostid || kind.is_of_all() && self.key_of(hostid).is_some()
        })
    }

    fn key_of(&self, hostid: &HostId) -> Option<u64> {
        self.registrants.iter().find(|it| it.hostid == *hostid).map(|it| it.key)
    }

    /// Whether a host may carry an I/O command out.
    ///
    /// # Errors
    ///
    /// [`Status::RESERVATION_CONFLICT`].
    pub fn check(&self, hostid: &HostId, opcode: u8) -> Result<(), Status> {
        let Some((kind, holder)) = self.held else { return Ok(()) };
        let has_right =
            holder == *hostid || kind.is_of_registrants() && self.key_of(hostid).is_some();
        let reads = matches!(opcode, io::READ | io::COMPARE | io::VERIFY);
        if has_right || reads && kind.lets_read() { Ok(()) } else { Err(CONFLICT.dnr()) }
    }

    /// The host must be registered by this key.
    fn check_key(&self, hostid: &HostId, key: u64) -> Result<(), Status> {
        if self.key_of(hostid) == Some(key) { Ok(()) } else { Err(CONFLICT.dnr()) }
    }

    /// Reservation Register.
    ///
    /// # Errors
    ///
    /// The status to answer with; nothing has changed then.
    pub fn register(
        &mut self,
        hostid: &HostId,
        cdw10: u32,
        (current, new): (u64, u64),
    ) -> Result<Told, Status> {
        let ignores_key = cdw10 & 1 << 3 != 0;
        // Registrations do not outlive the target.
        if cdw10 >> 30 == 3 || cdw10 >> 30 == 1 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        match cdw10 & 7 {
            0 => match self.key_of(hostid) {
                Some(key) if key == new => return Ok(Vec::new()),
                Some(_) => return Err(CONFLICT.dnr()),
                None if self.registrants.len() >= MAX_REGISTRANTS => {
                    return Err(Status::INTERNAL.dnr());
                }
                None => self.registrants.push(Registrant { hostid: *hostid, key: new }),
            },
            1 => {
                let key = self.key_of(hostid).ok_or(CONFLICT.dnr())?;
                if !ignores_key && key != current {
                    return Err(CONFLICT.dnr());
                }
                self.generation = self.generation.wrapping_add(1);
                return Ok(self.unregister(hostid));
            }
            2 => {
                let key = self.key_of(hostid).ok_or(CONFLICT.dnr())?;
                if !ignores_key && key != current {
                    return Err(CONFLICT.dnr());
                }
                let mut mine = self.registrants.iter_mut().filter(|it| it.hostid == *hostid);
                if let Some(it) = mine.next() {
                    it.key = new;
                }
            }
            _ => return Err(Status::INVALID_FIELD.dnr()),
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(Vec::new())
    }

    /// Takes a registrant away, and with it what it holds alone.
    fn unregister(&mut self, hostid: &HostId) -> Told {
        self.registrants.retain(|it| it.hostid != *hostid);
        let Some((kind, holder)) = self.held else { return Vec::new() };
        if kind.is_of_all() {
            match self.registrants.first() {
                // All others still hold it.
                Some(next) => self.held = Some((kind, next.hostid)),
                None => self.held = None,
            }
            return Vec::new();
        }
        if holder != *hostid {
            return Vec::new();
        }
        self.held = None;
        let is_told = kind.is_of_registrants();
        if is_told { self.others(hostid, Notice::Released) } else { Vec::new() }
    }

    /// All registrants but one are told something.
    fn others(&self, hostid: &HostId, notice: Notice) -> Told {
        let others = self.registrants.iter().filter(|it| it.hostid != *hostid);
        others.map(|it| (it.hostid, notice)).collect()
    }

    /// Reservation Acquire.
    ///
    /// # Errors
    ///
    /// The status to answer with; nothing has changed then.
    pub fn acquire(
        &mut self,
        hostid: &HostId,
        cdw10: u32,
        (current, preempted): (u64, u64),
    ) -> Result<Told, Status> {
        if cdw10 & 1 << 3 != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let kind = Kind::parse((cdw10 >> 8) as u8)?;
        self.check_key(hostid, current)?;
        match cdw10 & 7 {
            0 => match self.held {
                None => {
                    self.held = Some((kind, *hostid));
                    Ok(Vec::new())
                }
                Some((held, _)) if self.holds(hostid) && held == kind => Ok(Vec::new()),
                Some(_) => Err(CONFLICT.dnr()),
            },
            // Commands of the preempted are not aborted: those that come are refused.
            1 | 2 => self.preempt(hostid, kind, preempted),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    fn preempt(&mut self, hostid: &HostId, kind: Kind, key: u64) -> Result<Told, Status> {
        let takes_all = matches!(self.held, Some((held, _)) if held.is_of_all() && key == 0);
        let takes_held = match self.held {
            Some((held, _)) if held.is_of_all() => takes_all,
            Some((_, holder)) => self.key_of(&holder) == Some(key),
            None => false,
        };
        let is_hit = |it: &Registrant| it.hostid != *hostid && (takes_all || it.key == key);
        let hit: Vec<HostId> =
            self.registrants.iter().filter(|it| is_hit(it)).map(|it| it.hostid).collect();
        if hit.is_empty() && !takes_held {
            return Err(CONFLICT.dnr());
        }
        let before = self.held;
        self.registrants.retain(|it| !is_hit(it));
        self.generation = self.generation.wrapping_add(1);
        let mut told: Told = hit.iter().map(|it| (*it, Notice::RegistrationPreempted)).collect();
        if takes_held {
            self.held = Some((kind, *hostid));
            // Those that stay are told when what they relied on is another kind now.
            let is_told = before.is_some_and(|(held, _)| held != kind && held.is_of_registrants());
            if is_told {
                told.extend(self.others(hostid, Notice::Released));
            }
        }
        Ok(told)
    }

    /// Reservation Release.
    ///
    /// # Errors
    ///
    /// The status to answer with; nothing has changed then.
    pub fn release(&mut self, hostid: &HostId, cdw10: u32, current: u64) -> Result<Told, Status> {
        if cdw10 & 1 << 3 != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        self.check_key(hostid, current)?;
        match cdw10 & 7 {
            0 => {
                let Some((held, _)) = self.held else { return Ok(Vec::new()) };
                if !self.holds(hostid) {
                    return Ok(Vec::new());
                }
                if Kind::parse((cdw10 >> 8) as u8)? != held {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                self.held = None;
                let is_told = held.is_of_registrants();
                Ok(if is_told { self.others(hostid, Notice::Released) } else { Vec::new() })
            }
            1 => {
                let told = self.others(hostid, Notice::Preempted);
                self.registrants.clear();
                self.held = None;
                self.generation = self.generation.wrapping_add(1);
                Ok(told)
            }
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    /// The page of Reservation Report, extended: `cntlids` of a host are the controllers that it
    /// has of the subsystem.
    #[must_use]
    pub fn report(&self, cntlids: impl Fn(&HostId) -> Vec<u16>) -> Vec<u8> {
        const HEADER: usize = 64;
        let mut page = vec![0; HEADER];
        page[..4].copy_from_slice(&self.generation.to_le_bytes());
        page[4] = self.kind().map_or(0, |kind| kind as u8);
        let mut count = 0u16;
        for it in &self.registrants {
            let all = cntlids(&it.hostid);
            // A host without a controller has an entry all the same.
            let all = if all.is_empty() { vec![0xffff] } else { all };
            for cntlid in all {
                count = count.saturating_add(1);
                page.extend_from_slice(&cntlid.to_le_bytes());
                page.extend_from_slice(&[self.holds(&it.hostid).into(), 0, 0, 0, 0, 0]);
                page.extend_from_slice(&it.key.to_le_bytes());
                page.extend_from_slice(&it.hostid);
                page.resize(page.len() + 32, 0);
            }
        }
        page[5..7].copy_from_slice(&count.to_le_bytes());
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HostId = [1; 16];
    const B: HostId = [2; 16];
    const C: HostId = [3; 16];
    const STATUS: Status = CONFLICT.dnr();

    fn registered(hosts: &[HostId]) -> Reservation {
        let mut it = Reservation::default();
        for host in hosts {
            assert_eq!(it.register(host, 0, (0, u64::from(host[0]))), Ok(Vec::new()));
        }
        it
    }

    fn acquire(it: &mut Reservation, host: &HostId, kind: Kind) -> Result<Told, Status> {
        it.acquire(host, (kind as u32) << 8, (u64::from(host[0]), 0))
    }

    /// The table of the specification, row by row: holder, registrant, other; write and read.
    #[test]
    fn rights_are_those_of_the_table() {
        use Kind::*;
        for (kind, expected) in [
            (WriteExclusive, [true, true, false, true, false, true]),
            (ExclusiveAccess, [true, true, false, false, false, false]),
            (WriteExclusiveRegistrants, [true, true, true, true, false, true]),
            (ExclusiveAccessRegistrants, [true, true, true, true, false, false]),
            (WriteExclusiveAll, [true, true, true, true, false, true]),
            (ExclusiveAccessAll, [true, true, true, true, false, false]),
        ] {
            let mut it = registered(&[A, B]);
            acquire(&mut it, &A, kind).unwrap();
            let rights = [A, B, C].map(|host| {
                let may = |opcode| it.check(&host, opcode).is_ok();
                assert_eq!(may(io::WRITE), may(io::FLUSH));
                assert_eq!(may(io::WRITE), may(io::DSM));
                assert_eq!(may(io::READ), may(io::VERIFY));
                [may(io::WRITE), may(io::READ)]
            });
            assert_eq!(rights.concat(), expected, "{kind:?}");
            assert_eq!(it.holds(&B), kind.is_of_all());
        }
        assert_eq!(Reservation::default().check(&C, io::WRITE), Ok(()));
    }

    #[test]
    fn keys_are_asked_for() {
        let mut it = registered(&[A]);
        assert_eq!(it.register(&A, 0, (0, 1)), Ok(Vec::new()), "the same once more");
        assert_eq!(it.register(&A, 0, (0, 9)), Err(STATUS));
        assert_eq!(it.register(&A, 2, (7, 9)), Err(STATUS));
        assert_eq!(it.register(&B, 2, (0, 9)), Err(STATUS), "not registered");
        assert_eq!(it.register(&A, 2, (1, 9)), Ok(Vec::new()));
        assert_eq!(it.register(&A, 2 | 1 << 3, (0, 1)), Ok(Vec::new()), "whatever the key");
        assert_eq!(it.register(&A, 3, (1, 9)), Err(Status::INVALID_FIELD.dnr()));
        assert_eq!(it.register(&A, 3 << 30, (0, 1)), Err(Status::INVALID_FIELD.dnr()));
        assert_eq!(it.acquire(&A, 1 << 8, (2, 0)), Err(STATUS));
        assert_eq!(it.acquire(&A, 0, (1, 0)), Err(Status::INVALID_FIELD.dnr()), "no kind");
        assert_eq!(it.acquire(&A, 7 << 8, (1, 0)), Err(Status::INVALID_FIELD.dnr()));
        assert_eq!(it.release(&B, 1 << 8, 0), Err(STATUS));
        assert_eq!(it.register(&A, 1, (2, 0)), Err(STATUS));
        assert_eq!(it.register(&A, 1, (1, 0)), Ok(Vec::new()));
        assert!(it.is_empty());
        assert_eq!(it.generation(), 4);
    }

    #[test]
    fn a_reservation_is_acquired_once_and_released_by_its_holder() {
        let mut it = registered(&[A, B]);
        let kind = Kind::WriteExclusiveRegistrants;
        acquire(&mut it, &A, kind).unwrap();
        acquire(&mut it, &A, kind).unwrap();
        assert_eq!(acquire(&mut it, &A, Kind::WriteExclusive), Err(STATUS));
        assert_eq!(acquire(&mut it, &B, kind), Err(STATUS));
        assert_eq!(it.release(&B, (kind as u32) << 8, 2), Ok(Vec::new()), "it holds nothing");
        assert!(it.holds(&A));
        assert_eq!(it.release(&A, 1 << 8, 1), Err(Status::INVALID_FIELD.dnr()), "another kind");
        let told = it.release(&A, (kind as u32) << 8, 1).unwrap();
        assert_eq!(told, [(B, Notice::Released)]);
        assert_eq!(it.kind(), None);
        // Clear takes the registrants away, too.
        acquire(&mut it, &B, Kind::ExclusiveAccess).unwrap();
        assert_eq!(it.release(&A, 1, 1).unwrap(), [(B, Notice::Preempted)]);
        assert!(it.is_empty() && it.kind().is_none());
    }

    #[test]
    fn whoever_unregisters_lets_go_what_it_holds_alone() {
        let mut it = registered(&[A, B]);
        acquire(&mut it, &A, Kind::ExclusiveAccessRegistrants).unwrap();
        assert_eq!(it.register(&A, 1, (1, 0)).unwrap(), [(B, Notice::Released)]);
        assert_eq!(it.kind(), None);
        let mut it = registered(&[A, B]);
        acquire(&mut it, &A, Kind::WriteExclusiveAll).unwrap();
        it.register(&A, 1, (1, 0)).unwrap();
        assert!(it.holds(&B) && it.check(&A, io::WRITE).is_err());
        it.register(&B, 1, (2, 0)).unwrap();
        assert_eq!(it.kind(), None, "nobody is left");
    }

    #[test]
    fn a_reservation_is_preempted_by_its_key() {
        let exclusive = (Kind::ExclusiveAccess as u32) << 8;
        let mut it = registered(&[A, B, C]);
        acquire(&mut it, &A, Kind::WriteExclusive).unwrap();
        assert_eq!(it.acquire(&B, exclusive | 1, (2, 9)), Err(STATUS), "nobody's key");
        // A registrant that holds nothing only loses its registration.
        let told = it.acquire(&B, exclusive | 1, (2, 3)).unwrap();
        assert_eq!(told, [(C, Notice::RegistrationPreempted)]);
        assert!(it.holds(&A));
        let told = it.acquire(&B, exclusive | 2, (2, 1)).unwrap();
        assert_eq!(told, [(A, Notice::RegistrationPreempted)]);
        assert!(it.holds(&B) && it.kind() == Some(Kind::ExclusiveAccess));
        assert_eq!(it.registrants().len(), 1);
        // The holder changes the kind of its own.
        it.acquire(&B, (Kind::WriteExclusive as u32) << 8 | 1, (2, 2)).unwrap();
        assert_eq!(it.kind(), Some(Kind::WriteExclusive));
        // What all hold is preempted by the key 0.
        let mut it = registered(&[A, B]);
        acquire(&mut it, &A, Kind::WriteExclusiveAll).unwrap();
        it.acquire(&B, exclusive | 1, (2, 0)).unwrap();
        assert!(it.holds(&B) && it.registrants().len() == 1);
    }

    #[test]
    fn the_report_has_the_bytes_of_the_table() {
        let mut it = registered(&[A, B]);
        acquire(&mut it, &B, Kind::ExclusiveAccess).unwrap();
        let page = it.report(|host| if *host == A { vec![] } else { vec![0x0102, 7] });
        assert_eq!(page.len(), 64 * 4);
        assert_eq!(page[..10], [2, 0, 0, 0, 2, 3, 0, 0, 0, 0]);
        assert_eq!(page[64..80], [0xff, 0xff, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(page[80..96], A);
        assert_eq!(page[128..144], [2, 1, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(page[192..194], [7, 0]);
    }
}
