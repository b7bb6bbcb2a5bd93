//! Keys of four kinds that are made, used and ended, and never work afterwards.
//!
//! One end owns memory and makes keys over it; the other writes, reads and counts through them, and
//! tries them again once they have ended. A shadow says what each byte of the memory must be.

use ferrocx_model::wire::SplitMix64;
use ferrocx_verbs_lite::peer::{PeerConfig, PeerMr};
use ferrocx_verbs_lite::registrar::{Answer, KeyId, Registration};
use ferrocx_verbs_lite::*;

use crate::link::{Ends, INLINE_BYTES, Side, Traffic, Turn};
use crate::place::{ALL, KEY_PAGES, KeysPlan, PAGE, PAGES, Place, Source, text};
use crate::planted::Bug;
use crate::stage::{Stage, Violation, ensure};

/// Requests in flight, each with a part of the key's range of its own.
const SLOTS: usize = 8;
const SLOT: usize = KEY_PAGES * PAGE / SLOTS;
/// Names of requests that are no operation of a slot.
const REGISTER: u64 = 100;
const INVALIDATE: u64 = 101;
const SEND_INVALIDATE: u64 = 102;
const ATTACK: u64 = 103;
/// The peer has no such right: what a key that has ended must say. Source: reference 6.5.
const REMOTE_ACCESS: u8 = 0x13;

/// The key that is valid, if one is.
enum Held {
    None,
    Region(Mr),
    /// In the place's slot.
    FastReg,
    Peer(PeerMr),
    Pipeline(KeyId),
}

/// What happens to the key now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Make,
    Making,
    Use { left: u64 },
    Ending,
    Attack,
    Attacked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Add(u64),
    Swap(u64),
}

/// An operation in flight.
#[derive(Debug)]
struct Operation {
    kind: Kind,
    /// Offset in the key's range.
    at: usize,
    /// What is there afterwards.
    after: Vec<u8>,
    /// The key has ended since, and this is what was found then.
    is_settled: bool,
}

/// The traffic.
pub(crate) struct Keys {
    plan: KeysPlan,
    random: SplitMix64,
    ours: Option<Mr>,
    place: Option<Place>,
    /// The host whose memory it is.
    owner: usize,
    held: Held,
    step: Step,
    remote: Option<RemoteAddr>,
    /// Pages of the memory in the order in which the key has them.
    pages: Vec<usize>,
    shadow: Vec<u8>,
    operations: [Option<Operation>; SLOTS],
    done: u64,
    name: String,
}

impl Keys {
    pub(crate) fn new(plan: KeysPlan) -> Self {
        Self {
            plan,
            random: SplitMix64::new(plan.seed),
            ours: None,
            place: None,
            owner: 0,
            held: Held::None,
            step: Step::Make,
            remote: None,
            pages: (0..KEY_PAGES).collect(),
            shadow: vec![0; PAGES * PAGE],
            operations: Default::default(),
            done: 0,
            name: format!("keys of {:?}", plan.source),
        }
    }

    /// Place in the memory of an offset of the key's range.
    fn place_of(&self, offset: usize) -> usize {
        self.pages[offset / PAGE] * PAGE + offset % PAGE
    }

    /// What the shadow holds at a part of the key's range, which is inside one page.
    fn shadow_at(&mut self, at: usize, len: usize) -> &mut [u8] {
        let start = self.place_of(at);
        &mut self.shadow[start..start + len]
    }

    fn word_at(&mut self, at: usize) -> u64 {
        let bytes = self.shadow_at(at, 8);
        u64::from_le_bytes(bytes.try_into().unwrap_or_default())
    }

    fn begin_key(&mut self, remote: RemoteAddr) {
        self.remote = Some(remote);
        self.step = Step::Use { left: 1 + self.random.below(self.plan.per_key) };
    }

    /// Makes a key, or begins to. An error is of the library, and named.
    fn make(&mut self, owner: usize, ends: &mut Ends, stage: &mut Stage) -> Result<(), String> {
        let Some(place) = &mut self.place else { return Err("no place".into()) };
        let mut order: Vec<usize> = (0..PAGES).collect();
        for at in 0..KEY_PAGES {
            order.swap(at, at + self.random.below((PAGES - at) as u64) as usize);
        }
        order.truncate(KEY_PAGES);
        let start = self.random.below((PAGES - KEY_PAGES + 1) as u64) as usize;
        let up = stage.hosts[owner].up.as_ref().ok_or("the host is down")?;
        let pieces = || order.iter().map(|page| page * PAGE..(page + 1) * PAGE);
        match self.plan.source {
            Source::Region => {
                let memory = place.memory.as_ref().ok_or("no memory")?;
                let range = start * PAGE..(start + KEY_PAGES) * PAGE;
                let mr = up.pd.reg_mr(memory, range, ALL).map_err(text)?;
                let rkey = mr.rkey().ok_or("a key with all rights has no rkey")?;
                let remote = RemoteAddr { addr: mr.addr(), rkey };
                self.held = Held::Region(mr);
                self.pages = (start..start + KEY_PAGES).collect();
                self.begin_key(remote);
            }
            Source::Peer => {
                let peer = place.peer.as_ref().ok_or("no peer memory")?;
                let range = peer.block.range((start * PAGE) as u64, (KEY_PAGES * PAGE) as u64);
                let mr = peer.registry.reg_mr(&up.pd, range, &PeerConfig::new(ALL));
                let mr = mr.map_err(text)?;
                let rkey = mr.mr().rkey().ok_or("a key with all rights has no rkey")?;
                let remote = RemoteAddr { addr: mr.mr().addr(), rkey };
                self.held = Held::Peer(mr);
                self.pages = (start..start + KEY_PAGES).collect();
                self.begin_key(remote);
            }
            Source::FastReg => {
                let (Some(slot), Some(memory)) = (&mut place.slot, &place.memory) else {
                    return Err("no slot".into());
                };
                slot.map(memory, &pieces().collect::<Vec<_>>()).map_err(text)?;
                let wr = FastReg {
                    wr_id: REGISTER,
                    flags: SendFlags::SIGNALED,
                    start: 1 << 32,
                    access: ALL,
                    remote_invalidate: true,
                };
                let remote = slot.register(&mut ends.b.qp, &wr).map_err(text)?;
                self.held = Held::FastReg;
                self.pages = order;
                self.remote = Some(remote);
                self.step = Step::Making;
            }
            Source::Pipeline => {
                let (client, _) = place.pipeline.as_mut().ok_or("no pipeline")?;
                let wanted = Registration {
                    tag: self.done,
                    memory: 0,
                    pieces: pieces().collect(),
                    access: ALL,
                    remote_invalidate: false,
                };
                client.register(wanted).map_err(|_| "the ring of requests is full")?;
                self.pages = order;
                self.step = Step::Making;
            }
        }
        Ok(())
    }

    /// Posts an operation in every free slot, as long as the key shall be used.
    fn operate(&mut self, ends: &mut Ends) -> bool {
        let (Some(remote), Some(mr)) = (self.remote, self.ours.clone()) else { return false };
        let mut moved = false;
        for slot in 0..SLOTS {
            let Step::Use { left } = self.step else { break };
            if left == 0 || self.operations[slot].is_some() || ends.a.qp.free_wr() < 4 {
                continue;
            }
            let (kind, len) = match self.random.below(8) {
                0..=3 => (Kind::Write, 1 + self.random.below(SLOT as u64) as usize),
                4 | 5 => (Kind::Read, 1 + self.random.below(SLOT as u64) as usize),
                6 => (Kind::Add(self.random.next_u64()), 8),
                _ => (Kind::Swap(self.random.next_u64()), 8),
            };
            let room = (SLOT - len) as u64;
            let at = slot * SLOT + (self.random.below(room + 1) as usize) / 8 * 8;
            let before = self.word_at(at);
            let shadow = self.shadow_at(at, len).to_vec();
            let after = match kind {
                Kind::Write => {
                    let start = self.random.next_u64();
                    (0..len)
                        .map(|at| (start.rotate_left(at as u32 % 61) as u8) ^ at as u8)
                        .collect()
                }
                Kind::Read => shadow,
                Kind::Add(add) => before.wrapping_add(add).to_le_bytes().to_vec(),
                Kind::Swap(swap) => swap.to_le_bytes().to_vec(),
            };
            let there = remote.at(at as u64);
            let op = match kind {
                Kind::Write => SendOp::Write(there),
                Kind::Read => SendOp::Read(there),
                Kind::Add(add) => SendOp::FetchAdd { remote: there, add },
                Kind::Swap(swap) => SendOp::CompareSwap { remote: there, compare: before, swap },
            };
            let wr = SendWr::signaled(slot as u64, op);
            let is_inline = kind == Kind::Write && len <= INLINE_BYTES;
            let is_posted = if is_inline {
                ends.a.qp.post_send_inline(&wr, &after).is_ok()
            } else {
                let Ok(mut buf) = mr.buf(slot * SLOT..slot * SLOT + len) else { continue };
                (kind != Kind::Write || buf.copy_in(0, &after).is_ok())
                    && ends.a.qp.post_send(&wr, Some(buf)).is_ok()
            };
            if !is_posted {
                break;
            }
            self.operations[slot] = Some(Operation { kind, at, after, is_settled: false });
            self.step = Step::Use { left: left - 1 };
            moved = true;
        }
        moved
    }

    /// Ends the key, or begins to.
    fn end(&mut self, ends: &mut Ends, stage: &mut Stage) -> Result<(), String> {
        let Some(place) = &mut self.place else { return Err("no place".into()) };
        match std::mem::replace(&mut self.held, Held::None) {
            Held::None => {}
            Held::Region(mr) => {
                if stage.planted.is(Bug::ImmortalKey) {
                    stage.kept.push(Box::new(mr));
                } else if let Err(error) = mr.dereg() {
                    self.held = Held::Region(mr);
                    return Err(text(error));
                }
                self.step = Step::Attack;
            }
            Held::Peer(mr) => {
                let peer = place.peer.as_ref().ok_or("no peer memory")?;
                let ended = peer.block.invalidate();
                if ended.is_err() && mr.is_live() {
                    self.held = Held::Peer(mr);
                    return ended.map_err(text);
                }
                self.step = Step::Attack;
            }
            Held::FastReg => {
                self.held = Held::FastReg;
                let slot = place.slot.as_mut().ok_or("no slot")?;
                let idle = self.operations.iter().all(Option::is_none);
                if idle && self.random.below(3) == 0 {
                    let rkey = slot.remote().ok_or("a valid key has no address")?.rkey;
                    let buf = place.receive.whole().map_err(text)?;
                    let posted = ends.b.qp.post_recv(SEND_INVALIDATE, buf);
                    posted.map_err(|refused| refused.cause.to_string())?;
                    let wr = SendWr::signaled(SEND_INVALIDATE, SendOp::SendInv(rkey));
                    ends.a.qp.post_send_inline(&wr, &[0x77; 8]).map_err(text)?;
                } else {
                    let flags = SendFlags::SIGNALED;
                    slot.invalidate(&mut ends.b.qp, INVALIDATE, flags).map_err(text)?;
                }
                self.step = Step::Ending;
            }
            Held::Pipeline(id) => {
                let (client, _) = place.pipeline.as_mut().ok_or("no pipeline")?;
                if let Err(id) = client.invalidate(id) {
                    self.held = Held::Pipeline(id);
                    return Err("the ring of endings is full".into());
                }
                self.step = Step::Ending;
            }
        }
        if self.step == Step::Attack {
            self.ended_for_good(stage).map_err(|violation| violation.0)?;
        }
        Ok(())
    }

    /// The key has ended: what the memory holds now, it holds for good.
    fn ended_for_good(&mut self, stage: &mut Stage) -> Result<(), Violation> {
        self.held = Held::None;
        self.step = Step::Attack;
        stage.counts.keys += 1;
        self.adopt()?;
        let memory = self.place.as_ref().and_then(|place| place.memory.as_ref());
        if let (Some(memory), true) = (memory, stage.planted.is(Bug::LateWrite)) {
            let at = memory.iova() + self.random.below((PAGES * PAGE - 8) as u64);
            let nic = stage.world.nic(self.owner);
            let _ = nic.side().memory().write(at, &[0x1a; 8]);
        }
        Ok(())
    }

    /// Takes over what the operations in flight have left in the memory, and looks at all of it.
    fn adopt(&mut self) -> Result<(), Violation> {
        let Some(place) = &self.place else { return Ok(()) };
        let now = place.bytes();
        let mut operations = std::mem::take(&mut self.operations);
        for operation in operations.iter_mut().flatten().filter(|one| !one.is_settled) {
            operation.is_settled = true;
            let (start, len) = (self.place_of(operation.at), operation.after.len());
            let found = &now[start..start + len];
            let (before, after) = (&self.shadow[start..start + len], &operation.after[..]);
            // A write may have come in part; eight bytes of an atomic come at once.
            let is_possible = match operation.kind {
                Kind::Read => found == before,
                Kind::Write => (0..len).all(|at| found[at] == before[at] || found[at] == after[at]),
                Kind::Add(_) | Kind::Swap(_) => found == before || found == after,
            };
            ensure(is_possible, || {
                format!("{}: {:?} left bytes of nobody", self.name, operation.kind)
            })?;
            self.shadow[start..start + len].copy_from_slice(found);
        }
        self.operations = operations;
        ensure(now == self.shadow, || {
            let wrong = now.iter().zip(&self.shadow).position(|(now, shadow)| now != shadow);
            format!("{}: byte {wrong:?} of the memory was changed by nobody", self.name)
        })
    }

    /// Tries a key that has ended.
    fn attack(&mut self, ends: &mut Ends, stage: &mut Stage) -> bool {
        let remote = self.remote.take();
        self.step = Step::Make;
        let (Some(remote), true) = (remote, self.random.below(4) == 0) else { return false };
        let there = remote.at(self.random.below((KEY_PAGES * PAGE - 8) as u64));
        let posted = match (self.random.below(2), &self.ours) {
            (0, Some(mr)) => mr.buf(0..8).is_ok_and(|buf| {
                let wr = SendWr::signaled(ATTACK, SendOp::Read(there));
                ends.a.qp.post_send(&wr, Some(buf)).is_ok()
            }),
            _ => {
                let wr = SendWr::signaled(ATTACK, SendOp::Write(there));
                ends.a.qp.post_send_inline(&wr, &[0xa7; 8]).is_ok()
            }
        };
        if posted {
            stage.counts.attacks += 1;
            self.step = Step::Attacked;
        }
        posted
    }

    /// Lets the pipeline work, and takes its answers.
    fn pipeline(&mut self, stage: &mut Stage) -> Result<bool, Violation> {
        let pipeline = self.place.as_mut().and_then(|place| place.pipeline.as_mut());
        let Some((client, worker)) = pipeline else { return Ok(false) };
        let mut moved = worker.turn();
        let mut is_broken = worker.has_failed();
        while let Some(answer) = client.poll() {
            moved = true;
            match (answer, self.step) {
                (Answer::Key { key, .. }, Step::Making) => {
                    self.held = Held::Pipeline(key.id);
                    self.remote = Some(key.remote);
                    self.step = Step::Use { left: 1 + self.random.below(self.plan.per_key) };
                }
                (Answer::Ended { .. }, Step::Ending) => {
                    return self.ended_for_good(stage).map(|()| true);
                }
                (Answer::Failed { cause, .. }, _) => {
                    stage.named("pipeline", &format!("{cause:?}"));
                    is_broken = true;
                }
                (answer, step) => return Err(Violation(format!("{answer:?} while {step:?}"))),
            }
        }
        if is_broken {
            self.forget(Side::B);
        }
        Ok(moved)
    }

    fn ended_operation(&mut self, wc: Wc<Buf>, stage: &mut Stage) -> Result<(), Violation> {
        let Some(operation) = self.operations[wc.wr_id as usize].take() else {
            return Err(Violation(format!("{}: operation {} ended twice", self.name, wc.wr_id)));
        };
        let len = operation.after.len();
        if let Err(failure) = &wc.result {
            // The key was valid when it was posted, and nothing has ended it.
            let was_refused = failure.syndrome.0 == REMOTE_ACCESS && !operation.is_settled;
            let is_valid = matches!(self.step, Step::Use { .. });
            ensure(!was_refused || !is_valid, || {
                format!("{}: {:?} was refused by a valid key", self.name, operation.kind)
            })?;
            self.operations[wc.wr_id as usize] = Some(operation);
            return Ok(());
        }
        self.done += 1;
        stage.counts.messages += 1;
        if let Kind::Read | Kind::Add(_) | Kind::Swap(_) = operation.kind {
            ensure(wc.byte_len as usize == len, || format!("{} bytes of {len}", wc.byte_len))?;
        }
        let before = self.shadow_at(operation.at, len).to_vec();
        if operation.is_settled {
            // It came before the end of the key, so that its bytes were found there.
            return ensure(operation.kind == Kind::Read || before == operation.after, || {
                format!("{}: {:?} succeeded after the key's end", self.name, operation.kind)
            });
        }
        let brought = match operation.kind {
            Kind::Write => None,
            _ => wc.into_buffers().map(|buf| buf.to_vec()),
        };
        if let Some(brought) = brought {
            ensure(brought == before, || {
                format!("{}: {:?} brought what was never there", self.name, operation.kind)
            })?;
        }
        self.shadow_at(operation.at, len).copy_from_slice(&operation.after);
        Ok(())
    }

    fn ended_key_request(&mut self, wc: Wc<Buf>, stage: &mut Stage) -> Result<(), Violation> {
        let slot = self.place.as_mut().and_then(|place| place.slot.as_mut());
        let Some(slot) = slot else { return Ok(()) };
        let id = wc.wr_id;
        let state = slot.complete(wc);
        match (id, state) {
            (REGISTER, Ok(KeyState::Valid)) if self.step == Step::Making => {
                self.step = Step::Use { left: 1 + self.random.below(self.plan.per_key) };
                Ok(())
            }
            (INVALIDATE, Ok(KeyState::Free)) if self.step == Step::Ending => {
                self.ended_for_good(stage)
            }
            (_, Err(_)) => Ok(()),
            (id, state) => Err(Violation(format!("request {id} left the key {state:?}"))),
        }
    }

    /// The peer ended the key, and the completion proves it.
    fn ended_by_peer(&mut self, wc: Wc<Buf>, stage: &mut Stage) -> Result<(), Violation> {
        if wc.result.is_err() {
            return Ok(());
        }
        let slot = self.place.as_mut().and_then(|place| place.slot.as_mut());
        let Some(slot) = slot else { return Ok(()) };
        let Some(proof) = wc.recv.invalidated else {
            return Err(Violation("a SEND that ends a key ended none".into()));
        };
        ensure(slot.invalidated_by(proof).is_ok(), || "the proof is of another key".into())?;
        self.ended_for_good(stage)
    }
}

impl Traffic for Keys {
    fn name(&self) -> &str {
        &self.name
    }

    fn began(&mut self, [a, b]: [usize; 2], _: &mut Ends, stage: &mut Stage) -> bool {
        if self.ours.is_none() {
            match stage.hosts[a].memory(SLOTS * SLOT) {
                Some(Ok(mr)) => self.ours = Some(mr),
                Some(Err(error)) => stage.named("no memory", &error),
                None => {}
            }
        }
        if self.place.is_none() {
            match Place::new(self.plan.source, &mut stage.hosts[b]) {
                Ok(place) => {
                    self.shadow = place.bytes();
                    self.place = Some(place);
                    (self.held, self.step) = (Held::None, Step::Make);
                }
                Err(error) => stage.named("no keys", &error),
            }
        }
        self.owner = b;
        self.ours.is_some() && self.place.is_some()
    }

    fn turn(&mut self, ends: &mut Ends, stage: &mut Stage) -> Result<Turn, Violation> {
        let broken = ends.a.qp.state() == QpState::Error || ends.b.qp.state() == QpState::Error;
        let mut moved = self.pipeline(stage)?;
        if broken || self.place.is_none() {
            return Ok(Turn { moved, broken: true });
        }
        let result = match self.step {
            Step::Make if self.done >= self.plan.operations => Ok(()),
            Step::Make => {
                moved = true;
                self.make(self.owner, ends, stage)
            }
            Step::Use { left } => {
                moved |= self.operate(ends);
                let is_idle = self.operations.iter().all(Option::is_none);
                // Now and then a key ends while it is used.
                if left == 0 && (is_idle || self.random.below(200) == 0) {
                    moved = true;
                    self.end(ends, stage)
                } else {
                    Ok(())
                }
            }
            // Time passes while those in flight when the key ended are waited for.
            Step::Attack if self.operations.iter().any(Option::is_some) => Ok(()),
            Step::Attack => {
                moved = true;
                self.attack(ends, stage);
                Ok(())
            }
            Step::Making | Step::Ending | Step::Attacked => Ok(()),
        };
        if let Err(error) = result {
            // A command failed: the connection is made anew, and the place with it.
            stage.named(&self.name, &error);
            return Ok(Turn { moved: true, broken: true });
        }
        Ok(Turn { moved, broken: false })
    }

    fn ended(&mut self, side: Side, wc: Wc<Buf>, stage: &mut Stage) -> Result<(), Violation> {
        match (side, wc.wr_id) {
            (Side::A, ATTACK) => {
                ensure(wc.result.is_err(), || format!("{}: a key works after its end", self.name))
            }
            (Side::A, SEND_INVALIDATE) => Ok(()),
            (Side::A, _) => self.ended_operation(wc, stage),
            (Side::B, SEND_INVALIDATE) => self.ended_by_peer(wc, stage),
            (Side::B, _) => self.ended_key_request(wc, stage),
        }
    }

    fn settled(&mut self, is_whole: bool, stage: &mut Stage) -> Result<(), Violation> {
        self.adopt()?;
        self.operations = Default::default();
        if let Step::Attack | Step::Attacked = self.step {
            self.step = Step::Make;
        }
        if self.plan.source != Source::FastReg {
            return Ok(());
        }
        // Nobody knows how far the queue pair came, so the key is ended whatever it is.
        let Some(slot) = self.place.as_mut().and_then(|place| place.slot.as_mut()) else {
            return Ok(());
        };
        let state = slot.state();
        ensure(!is_whole || state != KeyState::Invalidating, || {
            "a queue pair has ended and kept a key".into()
        })?;
        (self.held, self.step) = (Held::None, Step::Make);
        let revoked = slot.revoke();
        let has_list = slot.list_mut().is_some();
        ensure(!is_whole || has_list, || "a queue pair has ended and kept a page list".into())?;
        if let Err(error) = &revoked {
            stage.named("not revoked", error);
        }
        if revoked.is_err() || !has_list {
            self.forget(Side::B);
        }
        Ok(())
    }

    fn forget(&mut self, side: Side) {
        self.operations = Default::default();
        match side {
            Side::A => self.ours = None,
            Side::B => {
                (self.held, self.step) = (Held::None, Step::Make);
                self.place = None;
            }
        }
    }

    fn progress(&self) -> (u64, u64) {
        (self.done, self.plan.operations)
    }
}
