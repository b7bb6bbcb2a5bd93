//! What a member asks for.

use zerocopy::IntoBytes;

use super::{Exchange, MemberId, Output, Resting, answered};
use crate::proto::ouch::answers::{self, Accepted, Rejected, Replaced};
use crate::proto::ouch::{self, Request, time_in_force};
use crate::proto::{Side, itch};

impl Exchange {
    /// Takes a request of a member.
    pub fn request(
        &mut self,
        member: MemberId,
        request: &Request<'_>,
        now_ns: u64,
        out: &mut Output,
    ) {
        match request {
            Request::EnterOrder(enter) => self.enter(member, enter, now_ns, out),
            Request::ReplaceOrder(replace) => self.replace(member, replace, now_ns, out),
            Request::CancelOrder(cancel) => {
                let Some(reference) = self.standing(member, cancel.urn.get()) else { return };
                let Resting { shares, executed, .. } = self.orders[&reference];
                let off = shares.saturating_sub(cancel.quantity.get().saturating_sub(executed));
                if off != 0 {
                    self.cancelled(reference, off, b'U', now_ns, out);
                }
            }
            Request::MassCancel(mass) => {
                if !self.uses(member, mass.urn.get()) {
                    return;
                }
                self.cancel_all(member, mass.symbol, b'U', now_ns, out);
                let answer = answers::MassCancelAnswered {
                    kind: answers::MassCancelAnswered::KIND,
                    timestamp_ns: now_ns.into(),
                    urn: mass.urn,
                    firm: mass.firm,
                    symbol: mass.symbol,
                };
                answered(member, &answer, out);
            }
            Request::DisableOrderEntry(disable) => {
                if !self.uses(member, disable.urn.get()) {
                    return;
                }
                self.disabled.push((member, disable.firm));
                let answer = answers::DisableAnswered {
                    kind: answers::DisableAnswered::KIND,
                    timestamp_ns: now_ns.into(),
                    urn: disable.urn,
                    firm: disable.firm,
                };
                answered(member, &answer, out);
            }
            Request::EnableOrderEntry(enable) => {
                if !self.uses(member, enable.urn.get()) {
                    return;
                }
                self.disabled.retain(|&entry| entry != (member, enable.firm));
                let answer = answers::EnableAnswered {
                    kind: answers::EnableAnswered::KIND,
                    timestamp_ns: now_ns.into(),
                    urn: enable.urn,
                    firm: enable.firm,
                };
                answered(member, &answer, out);
            }
            Request::AccountQuery(_) => {
                let used = self.last_urns.get(&member);
                let answer = answers::AccountQueryAnswered {
                    kind: answers::AccountQueryAnswered::KIND,
                    timestamp_ns: now_ns.into(),
                    next_urn: used.map_or(1, |urn| urn.saturating_add(1)).into(),
                };
                answered(member, &answer, out);
            }
            Request::ModifyOrder(modify) => self.modify(member, modify, now_ns, out),
        }
    }

    /// Fewer shares, in all, than an order had; with none of them left it goes.
    fn modify(
        &mut self,
        member: MemberId,
        modify: &ouch::ModifyOrder,
        now_ns: u64,
        out: &mut Output,
    ) {
        let Some(reference) = self.standing(member, modify.urn.get()) else { return };
        let Resting { shares, executed, .. } = self.orders[&reference];
        let left = modify.quantity.get().saturating_sub(executed);
        let Some(off) = shares.checked_sub(left) else { return };
        if left == 0 {
            return self.cancelled(reference, shares, b'U', now_ns, out);
        }
        self.reduce(reference, off, now_ns, out);
        let answer = answers::Modified {
            kind: answers::Modified::KIND,
            timestamp_ns: now_ns.into(),
            urn: modify.urn,
            side: modify.side,
            quantity: left.into(),
        };
        answered(member, &answer, out);
    }

    fn enter(&mut self, member: MemberId, enter: &ouch::EnterOrder, now_ns: u64, out: &mut Output) {
        let urn = enter.urn.get();
        // A number that was used is a repetition, and is passed over.
        if !self.is_new(member, urn) {
            return;
        }
        self.know(member, urn, 0);
        let mut reject = |reason: u16| {
            let rejected = Rejected {
                kind: Rejected::KIND,
                timestamp_ns: now_ns.into(),
                urn: enter.urn,
                reason: reason.into(),
                client_order_id: enter.client_order_id,
            };
            answered(member, &rejected, out);
        };
        if self.disabled.iter().any(|entry| entry.0 == member) {
            return reject(0x000c);
        }
        let Some(locate) = self.locate(enter.symbol) else { return reject(0x0017) };
        let Some(side) = Side::from_letter(enter.side) else { return reject(0x0015) };
        let shares = enter.quantity.get();
        if shares == 0 || shares > ouch::MAX_QUANTITY {
            return reject(0x0013);
        }
        let price = enter.price.get();
        if price == 0 || price > ouch::MAX_PRICE {
            return reject(0x001d);
        }
        let reference = self.number();
        let accepted = Accepted {
            kind: Accepted::KIND,
            timestamp_ns: now_ns.into(),
            urn: enter.urn,
            side: enter.side,
            quantity: enter.quantity,
            symbol: enter.symbol,
            price: enter.price,
            time_in_force: enter.time_in_force,
            display: enter.display,
            reference: reference.into(),
            capacity: enter.capacity,
            intermarket_sweep: enter.intermarket_sweep,
            cross: enter.cross,
            state: b'L',
            client_order_id: enter.client_order_id,
        };
        answered(member, &accepted, out);
        self.know(member, urn, reference);
        let owner = Some((member, urn));
        let (mark, price) = (enter.side, price as u32);
        let order = Resting { owner, locate, side, mark, price, shares, executed: 0 };
        let stands = enter.time_in_force != time_in_force::IOC;
        self.matched(reference, order, stands, now_ns, out);
    }

    fn replace(
        &mut self,
        member: MemberId,
        replace: &ouch::ReplaceOrder,
        now_ns: u64,
        out: &mut Output,
    ) {
        let Some(old) = self.standing(member, replace.old_urn.get()) else { return };
        let urn = replace.urn.get();
        if !self.is_new(member, urn) {
            return;
        }
        let order = self.orders[&old];
        let (quantity, price) = (replace.quantity.get(), replace.price.get());
        let shares = quantity.saturating_sub(order.executed);
        if shares == 0 || quantity > ouch::MAX_QUANTITY || price == 0 || price > ouch::MAX_PRICE {
            // The new details cannot be: the old order goes, and the new one never was.
            self.cancelled(old, order.shares, b'U', now_ns, out);
            return;
        }
        self.remove(old);
        let deleted = itch::Deleted {
            header: itch::Header::new(itch::Deleted::KIND, order.locate, now_ns),
            reference: old.into(),
        };
        out.feed.push(deleted.as_bytes().to_vec());
        let reference = self.number();
        self.know(member, urn, reference);
        let replaced = Replaced {
            kind: Replaced::KIND,
            timestamp_ns: now_ns.into(),
            old_urn: replace.old_urn,
            urn: replace.urn,
            side: order.mark,
            quantity: shares.into(),
            symbol: self.stock(order.locate),
            price: replace.price,
            time_in_force: replace.time_in_force,
            display: replace.display,
            reference: reference.into(),
            capacity: b'P',
            intermarket_sweep: replace.intermarket_sweep,
            cross: b'N',
            state: b'L',
            client_order_id: replace.client_order_id,
        };
        answered(member, &replaced, out);
        let owner = Some((member, urn));
        let order = Resting { owner, shares, price: price as u32, ..order };
        let stands = replace.time_in_force != time_in_force::IOC;
        self.matched(reference, order, stands, now_ns, out);
    }

    /// Uses a number up; `false` if it was used before: then it is a repetition, and passed over.
    fn uses(&mut self, member: MemberId, urn: u32) -> bool {
        let is_new = self.is_new(member, urn);
        if is_new {
            self.last_urns.insert(member, urn);
        }
        is_new
    }
}
