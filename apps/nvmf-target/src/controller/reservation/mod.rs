//! Reservations of namespaces: which hosts may read and write one. [`Reservation`] is the state of
//! one namespace, `commands` what hosts change it by, and [`Fence`] waits for what the preempted
//! had begun. Where hosts ask for that (PTPL) and the target has a folder for it, a reservation
//! outlives the target: [`Save`] is a change that is made when it is on disk, `text` what stands
//! there.
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

mod commands;
mod fence;
mod persist;
#[cfg(test)]
mod tests;
mod text;

pub use fence::Fence;
pub(super) use persist::Pending;
pub use persist::Save;
pub use text::MAX_TEXT_BYTES;
use zerocopy::TryFromBytes;

use crate::auth::Hash;
use crate::proto::sqe::io;
use crate::proto::status::Status;

/// Hosts that may be registered with a namespace.
pub const MAX_REGISTRANTS: usize = 32;

/// The action of Reservation Acquire that also ends what the preempted had begun.
const PREEMPT_AND_ABORT: u32 = 2;

/// A host, as reservations know it: its identifier, which it says of itself, and its name if that
/// is proved. So nobody with a key of his own has the rights of another whose identifier he gives,
/// and no host is kept out because somebody gave its own first. All paths of a host are one: they
/// have its name and its identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostId {
    /// The identifier.
    pub id: [u8; 16],
    /// A digest of the name, of a host that has to show a key.
    pub name: Option<[u8; 16]>,
}

impl HostId {
    /// A host without a key: whoever gives the identifier.
    #[must_use]
    pub const fn nameless(id: [u8; 16]) -> Self {
        Self { id, name: None }
    }

    /// A host that has to show the key of this name.
    #[must_use]
    pub fn named(id: [u8; 16], hostnqn: &str) -> Self {
        let digest = Hash::Sha256.of_bytes(hostnqn.as_bytes());
        Self { id, name: digest.first_chunk().copied() }
    }
}

/// Kinds of reservations: the RTYPE field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
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
        Self::try_read_from_bytes(&[field]).map_err(|_| Status::INVALID_FIELD.dnr())
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
    /// Who it is.
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
    /// The kind, and who holds it, always a registrant: of kinds that all registrants hold,
    /// whoever acquired it, or who has it from there since that one has gone.
    held: Option<(Kind, HostId)>,
    /// It outlives the target.
    persists: bool,
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

    /// Whether it outlives the target.
    #[must_use]
    pub fn persists(&self) -> bool {
        self.persists
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

    /// Reservation Register. That there is a place for what is to outlive the target is the
    /// caller's to know.
    ///
    /// # Errors
    ///
    /// The status to answer with; nothing has changed then.
    pub fn register(
        &mut self,
        hostid: &HostId,
        cdw10: u32,
        keys: (u64, u64),
    ) -> Result<Told, Status> {
        // CPTPL.
        let persists = match cdw10 >> 30 {
            0 => self.persists,
            2 => false,
            3 => true,
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        let told = self.change_key(hostid, cdw10, keys)?;
        self.persists = persists;
        Ok(told)
    }

    fn change_key(
        &mut self,
        hostid: &HostId,
        cdw10: u32,
        (current, new): (u64, u64),
    ) -> Result<Told, Status> {
        let ignores_key = cdw10 & 1 << 3 != 0;
        match cdw10 & 7 {
            0 => match self.key_of(hostid) {
                Some(key) if key == new => return Ok(Vec::new()),
                Some(_) => return Err(CONFLICT.dnr()),
                None if self.registrants.len() >= MAX_REGISTRANTS => {
                    return Err(Status::INTERNAL.dnr());
                }
                None => self.registrants.push(Registrant { hostid: *hostid, key: new }),
            },
            action @ (1 | 2) => {
                let mut mine = self.registrants.iter_mut();
                let mine = mine.find(|it| it.hostid == *hostid).ok_or(CONFLICT.dnr())?;
                if !ignores_key && mine.key != current {
                    return Err(CONFLICT.dnr());
                }
                if action == 1 {
                    self.generation = self.generation.wrapping_add(1);
                    return Ok(self.unregister(hostid));
                }
                mine.key = new;
            }
            _ => return Err(Status::INVALID_FIELD.dnr()),
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(Vec::new())
    }

    /// Takes a registrant away, and with it what it holds alone.
    fn unregister(&mut self, hostid: &HostId) -> Told {
        self.registrants.retain(|it| it.hostid != *hostid);
        match self.held {
            Some((kind, _)) if kind.is_of_all() => {
                self.hand_on();
                Vec::new()
            }
            Some((kind, holder)) if holder == *hostid => self.end(kind, hostid),
            _ => Vec::new(),
        }
    }

    /// Names another holder of what all registrants hold, if the one that is named is none any
    /// more: all others still hold it.
    fn hand_on(&mut self) {
        if let Some((kind, holder)) = self.held
            && kind.is_of_all()
            && self.key_of(&holder).is_none()
        {
            self.held = self.registrants.first().map(|next| (kind, next.hostid));
        }
    }

    /// Ends the reservation, which is of a kind that all registrants rely on, or of one that they
    /// do not.
    fn end(&mut self, kind: Kind, by: &HostId) -> Told {
        self.held = None;
        if kind.is_of_registrants() { self.others(by, Notice::Released) } else { Vec::new() }
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
            // What the preempted had begun is waited for: see `fence`.
            1 | PREEMPT_AND_ABORT => self.preempt(hostid, kind, preempted),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    fn preempt(&mut self, hostid: &HostId, kind: Kind, key: u64) -> Result<Told, Status> {
        let takes_all = matches!(self.held, Some((held, _)) if held.is_of_all() && key == 0);
        // Key 0 names all, where all hold it.
        let is_of_one = matches!(self.held, Some((held, _)) if !held.is_of_all());
        if key == 0 && is_of_one && self.registrants.iter().all(|it| it.key != 0) {
            return Err(Status::INVALID_FIELD.dnr());
        }
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
        self.hand_on();
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
                Ok(self.end(held, hostid))
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
                page.extend_from_slice(&it.hostid.id);
                page.resize(page.len() + 32, 0);
            }
        }
        page[5..7].copy_from_slice(&count.to_le_bytes());
        page[9] = self.persists.into(); // PTPLS
        page
    }
}
