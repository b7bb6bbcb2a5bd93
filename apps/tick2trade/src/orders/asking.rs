//! What is asked of all orders at once: that they be cancelled, that order entry stop or open.
//!
//! A request is due until it left, and asked until it was answered. What a lost connection may have
//! swallowed is due again when the next one has heard every answer: so a kill switch that was
//! thrown on a dead line is heard of at last.

use arrayvec::ArrayVec;

use super::OrderEntry;
use super::OrderEvent;
use crate::proto::Text;
use crate::proto::ouch::{DisableOrderEntry, EnableOrderEntry, Fixed, MassCancel, write};
use crate::proto::soup::{self, PacketType};
use crate::risk::Stop;

/// The longest packet of these, header and payload.
pub const DUE_LEN: usize = soup::HEADER_LEN + MassCancel::LEN + 2;

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ask {
    /// There is none.
    #[default]
    No,
    /// It is to leave.
    Due,
    /// It left under this number.
    Sent(u32),
    /// The exchange refused it.
    Refused,
}

impl Ask {
    const fn is_open(self) -> bool {
        matches!(self, Self::Due | Self::Sent(_))
    }

    fn is(self, urn: u32) -> bool {
        self == Self::Sent(urn)
    }
}

/// The requests.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Asked {
    pub(super) mass: Ask,
    disable: Ask,
    enable: Ask,
    /// Number of a mass cancel that another followed before it was answered; 0 for none.
    mass_before: u32,
    /// The kill switch was thrown here, and not taken back here.
    is_thrown: bool,
    /// Number of the last mass cancel that was answered.
    all_cancelled_at: u32,
    /// Rounds in which a request did not leave, or had no answer; and what they were before the
    /// last one left.
    looks: u8,
    looks_before: u8,
    /// The exchange may have orders of ours that are not known here.
    has_strays: bool,
    /// Places of the table before this one were asked to be cancelled by themselves.
    left_from: usize,
    /// A connection ended since an answer is overdue.
    is_second: bool,
}

impl Asked {
    const fn all(&mut self) -> [&mut Ask; 3] {
        [&mut self.mass, &mut self.disable, &mut self.enable]
    }

    /// Orders below this number were cancelled, all of them.
    pub(super) const fn all_cancelled_at(&self) -> u32 {
        self.all_cancelled_at
    }

    /// Whether a request did not leave, or was without an answer, for so many rounds; then it has
    /// as many again.
    pub(super) fn is_silent(&mut self, rounds: u8) -> bool {
        // What follows a mass cancel's refusal has not left, either.
        let waits = self.mass == Ask::Refused || self.all().into_iter().any(|ask| ask.is_open());
        self.looks = if waits { self.looks.saturating_add(1) } else { 0 };
        let is_silent = self.looks > rounds;
        if is_silent {
            self.looks = 0;
        }
        is_silent
    }
}

impl OrderEntry {
    /// Throws the kill switch: no order passes any more, and the exchange is to cancel everything
    /// and to take nothing new: [`OrderEntry::due`]. Only [`OrderEntry::enable`] takes that back,
    /// whoever else has the exchange open order entry.
    pub fn kill(&mut self) {
        self.risk.stop(Stop::Killed);
        self.asked.is_thrown = true;
        self.ask_mass();
        self.asked.disable = Ask::Due;
        self.asked.enable = Ask::No;
    }

    /// The trader ends: no order passes any more, and the exchange is to cancel what stands.
    pub fn close(&mut self) {
        self.risk.stop(Stop::Closing);
        self.cancel_all();
    }

    /// What stands is to be cancelled, and orders pass as before.
    pub fn cancel_all(&mut self) {
        let is_open = match self.asked.mass {
            // What left behind it is not among what it cancels.
            Ask::Sent(urn) => self.standing.iter().flatten().all(|order| order.urn < urn),
            mass => mass.is_open(),
        };
        if (self.count != 0 || self.asked.has_strays) && !is_open {
            self.ask_mass();
        }
    }

    /// A mass cancel is to leave, behind one that may be on its way.
    fn ask_mass(&mut self) {
        if let Ask::Sent(urn) = self.asked.mass {
            self.asked.mass_before = urn;
        }
        self.asked.mass = Ask::Due;
    }

    /// Whether the exchange may have orders of ours that are not known here: an answer did not fit,
    /// and it has not said since that all are cancelled.
    pub const fn has_strays(&self) -> bool {
        self.asked.has_strays
    }

    /// An answer moved shares, or may have, that are not kept here: positions may be wrong, and
    /// orders may stand that nobody knows. No order passes for the rest of the session, and the
    /// exchange is to cancel everything.
    pub(super) fn doubt(&mut self) {
        self.risk.stop(Stop::Doubtful);
        self.asked.has_strays = true;
        self.cancel_all();
    }

    /// The exchange is to take orders again that a kill switch stopped: they pass when it says that
    /// it does.
    pub fn enable(&mut self) {
        self.asked.is_thrown = false;
        self.asked.enable = Ask::Due;
        self.asked.disable = Ask::No;
    }

    /// The next request that is to leave, as a packet for the session; no limit holds it up. It
    /// counts as sent: [`OrderEntry::due_not_sent`] takes that back.
    pub fn due(&mut self) -> Option<ArrayVec<u8, DUE_LEN>> {
        let (urn, firm, symbol) = (self.next_urn, self.firm, Text::BLANK);
        let at = self.asked.all().into_iter().position(|ask| *ask == Ask::Due)?;
        let packet = match at {
            0 => packet(&MassCancel { kind: MassCancel::KIND, urn: urn.into(), firm, symbol }),
            1 => {
                packet(&DisableOrderEntry { kind: DisableOrderEntry::KIND, urn: urn.into(), firm })
            }
            _ => packet(&EnableOrderEntry { kind: EnableOrderEntry::KIND, urn: urn.into(), firm }),
        };
        *self.asked.all()[at] = Ask::Sent(urn);
        self.asked.looks_before = std::mem::take(&mut self.asked.looks);
        self.next_urn = urn.saturating_add(1);
        Some(packet)
    }

    /// The last packet of [`OrderEntry::due`] did not leave, and is due as before.
    pub fn due_not_sent(&mut self) {
        let urn = self.next_urn.saturating_sub(1);
        let Self { asked, next_urn, .. } = self;
        for ask in asked.all() {
            if ask.is(urn) {
                *ask = Ask::Due;
                *next_urn = urn;
            }
        }
        asked.looks = asked.looks_before;
    }

    /// Whether something is to leave.
    pub fn has_due(&self) -> bool {
        let Asked { mass, disable, enable, .. } = self.asked;
        [mass, disable, enable].contains(&Ask::Due) || mass == Ask::Refused
    }

    /// Whether the exchange still has to hear, or to say, that everything is cancelled, or that it
    /// stops or opens order entry.
    pub fn is_asking(&self) -> bool {
        let Asked { mass, disable, enable, .. } = self.asked;
        [mass, disable, enable].into_iter().any(Ask::is_open)
    }

    /// Whether the exchange has said that it takes nothing new, if the kill switch was thrown here.
    pub fn is_kill_answered(&self) -> bool {
        !self.asked.is_thrown || self.asked.disable == Ask::No
    }

    /// Whether the exchange refused to stop order entry, as the kill switch asked, and whether it
    /// refused to open it again.
    pub fn entry_refusals(&self) -> [bool; 2] {
        [self.asked.disable, self.asked.enable].map(|ask| ask == Ask::Refused)
    }

    /// The next order to be cancelled by itself, because the exchange refuses to cancel all at
    /// once: each once, but for those whose cancel has no answer yet, or had none for too long. It
    /// counts as asked for: [`OrderEntry::left_not_sent`] takes that back.
    pub fn left_by_refusal(&mut self) -> Option<u32> {
        if self.asked.mass != Ask::Refused {
            return None;
        }
        let places = self.standing.iter().zip(&self.waits).enumerate().skip(self.asked.left_from);
        let mut left = places.filter_map(|(place, (order, wait))| Some((place, (*order)?, wait)));
        let (place, order, _) = left
            .find(|(_, order, wait)| !wait.is_for_cancel(order.urn) && !wait.is_lost(order.urn))?;
        self.asked.left_from = place + 1;
        Some(order.urn)
    }

    /// The cancel of the last order that [`OrderEntry::left_by_refusal`] named did not leave.
    pub fn left_not_sent(&mut self, urn: u32) {
        self.cancel_not_sent(urn);
        self.asked.left_from = self.place(urn);
    }

    /// Each order was asked to be cancelled by itself. While an answer is overdue, each of them is
    /// owed one: this connection may have lost it, and on the next one its lack is a mismatch.
    pub fn refusal_heeded(&mut self) {
        if self.asked.mass != Ask::Refused {
            return;
        }
        self.asked.mass = Ask::No;
        if self.risk.is_stopped_by(Stop::Overdue) {
            self.wait_anew();
            if self.asked.is_second {
                self.asked.all_cancelled_at = self.next_urn;
            }
        }
    }

    /// The exchange has said what was overdue, or that all is cancelled.
    pub(super) const fn not_overdue(&mut self) {
        self.risk.end_stop(Stop::Overdue);
        self.asked.is_second = false;
    }

    /// A connection was lost: what it was asked, and did not answer, is due again. Cancels of
    /// strategies are not, and nobody owes an answer to them; who let no order pass any more wanted
    /// every order cancelled.
    pub(super) fn ask_again(&mut self) {
        for ask in self.asked.all() {
            if ask.is_open() {
                *ask = Ask::Due;
            }
        }
        (self.asked.left_from, self.asked.looks) = (0, 0);
        self.wait_anew();
        self.forget_cancels();
        self.asked.is_second = self.risk.is_stopped_by(Stop::Overdue);
        let stops = [Stop::Killed, Stop::Closing, Stop::Doubtful, Stop::Overdue];
        if stops.into_iter().any(|stop| self.risk.is_stopped_by(stop)) {
            self.cancel_all();
        }
    }

    /// A mass cancel was answered, ours or one of before a restart.
    pub(super) fn all_cancelled(&mut self, urn: u32) -> OrderEvent {
        self.use_up(urn);
        self.asked.all_cancelled_at = self.asked.all_cancelled_at.max(urn);
        if self.asked.mass.is(urn) {
            self.asked.mass = Ask::No;
            self.asked.has_strays = false;
            self.not_overdue();
            self.wait_anew();
        }
        OrderEvent::AllCancelled
    }

    /// Whether an answer is about our firm: who named none has the one that the exchange knows.
    fn is_ours(&self, firm: Text<4>) -> bool {
        self.firm == Text::BLANK || self.firm == firm
    }

    /// The exchange takes no orders of a firm, whoever asked for that.
    pub(super) fn entry_stopped(&mut self, urn: u32, firm: Text<4>) -> OrderEvent {
        self.use_up(urn);
        if !self.is_ours(firm) {
            return OrderEvent::Other;
        }
        self.risk.stop(Stop::Killed);
        if self.asked.disable.is(urn) {
            self.asked.disable = Ask::No;
        }
        OrderEvent::EntryStopped
    }

    /// The exchange takes orders of a firm again, whoever asked for that. A kill switch that was
    /// thrown here stays so.
    pub(super) fn entry_enabled(&mut self, urn: u32, firm: Text<4>) -> OrderEvent {
        self.use_up(urn);
        if !self.is_ours(firm) {
            return OrderEvent::Other;
        }
        if self.asked.enable.is(urn) {
            self.asked.enable = Ask::No;
        }
        if !self.asked.is_thrown {
            self.risk.end_stop(Stop::Killed);
        }
        OrderEvent::EntryEnabled
    }

    /// Whether a request, and no order, is what was refused under this number.
    pub(super) fn is_asked_refused(&mut self, urn: u32) -> bool {
        if urn != 0 && urn == self.asked.mass_before {
            // The one behind it is answered, too.
            self.asked.mass_before = 0;
            return true;
        }
        let Some(ask) = self.asked.all().into_iter().find(|ask| ask.is(urn)) else { return false };
        *ask = Ask::Refused;
        self.asked.left_from = 0;
        true
    }

    fn use_up(&mut self, urn: u32) {
        self.next_urn = self.next_urn.max(urn.saturating_add(1));
    }
}

fn packet<T: Fixed>(message: &T) -> ArrayVec<u8, DUE_LEN> {
    let mut bytes = [0; DUE_LEN];
    // The longest of them fits, whose length the array has.
    let len = write(message, &[], &mut bytes[soup::HEADER_LEN..]).unwrap_or(0);
    let header = (len as u16 + 1).to_be_bytes();
    [bytes[0], bytes[1], bytes[2]] = [header[0], header[1], PacketType::UNSEQUENCED.0];
    let mut packet = ArrayVec::from(bytes);
    packet.truncate(soup::HEADER_LEN + len);
    packet
}
