//! A connection between two hosts that is made, breaks, and is made again, and what uses it.

use ferrocx_verbs_lite::cm::{CmListener, ConnParams, Connected, Connecting, Connection};
use ferrocx_verbs_lite::*;

use crate::host::Up;
use crate::planted::Bug;
use crate::stage::{Stage, Violation, ensure};

/// Requests of each queue.
pub(crate) const DEPTH: u32 = 64;
/// Bytes that a request may hold itself.
pub(crate) const INLINE_BYTES: usize = 64;
/// Simulated time in which a connection must be made, or given up.
const OPENING_NS: u64 = 3_000_000_000;
/// Simulated time in which everything that was posted must come back after a failure.
const DRAINING_NS: u64 = 200_000_000;
/// Simulated time without a completion after which a program that was lied to gives up.
const STALL_NS: u64 = 500_000_000;
/// Pause before another attempt.
const PAUSE_NS: u64 = 200_000;

/// Which end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The one that calls.
    A,
    /// The one that is called.
    B,
}

/// What a turn of traffic came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Turn {
    /// Something was posted or taken.
    pub(crate) moved: bool,
    /// The connection cannot go on.
    pub(crate) broken: bool,
}

/// One end of a connection. Dropped in this order.
pub(crate) struct End {
    _connection: Connection,
    pub(crate) qp: Qp,
    cq: Cq,
}

/// Both ends.
pub(crate) struct Ends {
    pub(crate) a: End,
    pub(crate) b: End,
}

/// What uses a connection, and knows what may happen on it.
pub(crate) trait Traffic {
    /// Its name in the timeline.
    fn name(&self) -> &str;

    /// A connection was made. `false` if it cannot be used because a host lacks something.
    fn began(&mut self, hosts: [usize; 2], ends: &mut Ends, stage: &mut Stage) -> bool;

    /// Posts what there is to post.
    fn turn(&mut self, ends: &mut Ends, stage: &mut Stage) -> Result<Turn, Violation>;

    /// Takes the end of a request.
    fn ended(&mut self, side: Side, wc: Wc<Buf>, stage: &mut Stage) -> Result<(), Violation>;

    /// The connection is over. With `is_whole`, every request of both ends has ended, and both
    /// hosts live.
    fn settled(&mut self, is_whole: bool, stage: &mut Stage) -> Result<(), Violation>;

    /// Lets go of everything of a host: its device is gone.
    fn forget(&mut self, side: Side);

    /// Units of work that were done, and those that are wanted.
    fn progress(&self) -> (u64, u64);
}

/// A connection that is being made.
struct Opening {
    since_ns: u64,
    attempt: u32,
    active: Option<Connecting>,
    passive: Option<Connecting>,
    made: [Option<Connected>; 2],
    cq_a: Option<Cq>,
    cq_b: Option<Cq>,
    listener: CmListener,
}

enum Phase {
    Down { at_ns: u64 },
    Opening(Box<Opening>),
    Up(Box<Ends>),
    Draining { ends: Box<Ends>, since_ns: u64, is_flushed: [bool; 2] },
}

/// A connection and what uses it.
pub(crate) struct Link {
    pub(crate) hosts: [usize; 2],
    port: u16,
    attempt: u32,
    /// Losses of both hosts before its queue pairs were made.
    losses: [usize; 2],
    /// When something was last posted or taken.
    moved_ns: u64,
    /// Attempts since the last connection that came to nothing.
    pub(crate) failures: u32,
    pub(crate) traffic: Box<dyn Traffic>,
    phase: Phase,
}

/// A queue pair in INIT and its completion queue.
fn queue_pair(up: &Up) -> Result<(Cq, Qp), VerbsError> {
    let cq = up.context.create_cq(2 * DEPTH)?;
    let config = QpConfig {
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        max_inline_bytes: INLINE_BYTES as u32,
        fast_reg: true,
        ..QpConfig::default()
    };
    let mut qp = up.pd.create_qp(&cq, &config)?;
    qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 })?;
    Ok((cq, qp))
}

fn params(private_data: &[u8]) -> ConnParams<'_> {
    ConnParams { ack_timeout: 8, private_data, ..ConnParams::default() }
}

impl Link {
    pub(crate) fn new(hosts: [usize; 2], port: u16, traffic: Box<dyn Traffic>) -> Self {
        Self {
            hosts,
            port,
            attempt: 0,
            losses: [0; 2],
            moved_ns: 0,
            failures: 0,
            traffic,
            phase: Phase::Down { at_ns: 0 },
        }
    }

    /// Whether all that it wants is done.
    pub(crate) fn is_done(&self) -> bool {
        let (done, wanted) = self.traffic.progress();
        done >= wanted
    }

    /// What it is doing, for whoever asks why nothing goes on.
    pub(crate) fn describe(&self) -> String {
        let phase = match &self.phase {
            Phase::Down { .. } => "down",
            Phase::Opening(_) => "opening",
            Phase::Up(_) => "up",
            Phase::Draining { .. } => "draining",
        };
        let (done, wanted) = self.traffic.progress();
        let [a, b] = self.hosts;
        format!("{} from {a} to {b}: {phase}, {done} of {wanted}", self.traffic.name())
    }

    /// Queue pairs of a host that peers talk to.
    pub(crate) fn qpns(&self, host: usize, into: &mut Vec<u32>) {
        if let Phase::Up(ends) = &self.phase {
            let ends = self.hosts.iter().zip([&ends.a, &ends.b]);
            into.extend(ends.filter(|(at, _)| **at == host).map(|(_, end)| end.qp.qpn().0));
        }
    }

    /// Whether it waits for the connection managers.
    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Opening(_))
    }

    /// One turn; whether anything moved.
    pub(crate) fn turn(&mut self, stage: &mut Stage) -> Result<bool, Violation> {
        match self.go_on(stage) {
            Ok(moved) => Ok(moved),
            // Whoever was lied to gives up what it has and begins again.
            Err(violation) => {
                stage.judged(&self.hosts, Err(violation))?;
                self.pause(stage);
                self.traffic.forget(Side::A);
                self.traffic.forget(Side::B);
                Ok(true)
            }
        }
    }

    fn go_on(&mut self, stage: &mut Stage) -> Result<bool, Violation> {
        match std::mem::replace(&mut self.phase, Phase::Down { at_ns: 0 }) {
            Phase::Down { at_ns } => {
                if stage.now_ns() < at_ns || self.is_done() {
                    self.phase = Phase::Down { at_ns };
                    return Ok(false);
                }
                self.open(stage);
                Ok(true)
            }
            Phase::Opening(opening) => self.opening(opening, stage),
            Phase::Up(ends) => self.up(ends, stage),
            Phase::Draining { ends, since_ns, is_flushed } => {
                self.draining(ends, since_ns, is_flushed, stage)
            }
        }
    }

    fn pause(&mut self, stage: &Stage) {
        self.phase = Phase::Down { at_ns: stage.now_ns() + PAUSE_NS };
    }

    fn open(&mut self, stage: &mut Stage) {
        self.pause(stage);
        let [a, b] = self.hosts;
        self.losses = self.hosts.map(|host| stage.hosts[host].losses());
        let address = stage.hosts[b].address(self.port);
        let (Some(ours), Some(theirs)) = (&stage.hosts[a].up, &stage.hosts[b].up) else { return };
        self.attempt += 1;
        let attempt = self.attempt;
        let made = theirs.cm.listen(self.port).map_err(|error| error.to_string());
        let made = made.and_then(|listener| {
            let (cq, qp) = queue_pair(ours).map_err(|error| error.to_string())?;
            let active = ours.cm.connect(qp, address, &params(&attempt.to_be_bytes()));
            Ok((listener, cq, active.map_err(|refused| refused.cause.to_string())?))
        });
        match made {
            Ok((listener, cq_a, active)) => {
                self.phase = Phase::Opening(Box::new(Opening {
                    since_ns: stage.now_ns(),
                    attempt,
                    active: Some(active),
                    passive: None,
                    made: [None, None],
                    cq_a: Some(cq_a),
                    cq_b: None,
                    listener,
                }));
            }
            Err(error) => stage.named("not connected", &error),
        }
    }

    fn opening(&mut self, mut opening: Box<Opening>, stage: &mut Stage) -> Result<bool, Violation> {
        let failed = self.poll_opening(&mut opening, stage);
        if let Some(error) = failed {
            self.failures += 1;
            stage.named("not connected", &error);
            drop(opening);
            self.pause(stage);
            return Ok(true);
        }
        let waited = stage.now_ns() - opening.since_ns;
        ensure(waited < OPENING_NS, || {
            format!("{}: neither connected nor refused in {waited} ns", self.describe())
        })?;
        let [Some(_), Some(_)] = &opening.made else {
            self.phase = Phase::Opening(opening);
            return Ok(false);
        };
        let Opening { made: [Some(a), Some(b)], cq_a: Some(cq_a), cq_b: Some(cq_b), .. } = *opening
        else {
            return Err(Violation("a connection without its completion queue".into()));
        };
        let end = |connected: Connected, cq| End {
            _connection: connected.connection,
            qp: connected.qp,
            cq,
        };
        let mut ends = Box::new(Ends { a: end(a, cq_a), b: end(b, cq_b) });
        stage.counts.connections += 1;
        self.failures = 0;
        self.moved_ns = stage.now_ns();
        stage.note(|| format!("{}: connected", self.traffic.name()));
        if self.traffic.began(self.hosts, &mut ends, stage) {
            self.phase = Phase::Up(ends);
        } else {
            self.phase = draining(ends, stage);
        }
        Ok(true)
    }

    /// Looks at all three handles; why there will be no connection, if so.
    fn poll_opening(&self, opening: &mut Opening, stage: &mut Stage) -> Option<String> {
        if let Some(done) = opening.active.as_mut().and_then(Connecting::poll) {
            opening.active = None;
            match done {
                Ok(connected) => opening.made[0] = Some(connected),
                Err(refused) => return Some(refused.cause.to_string()),
            }
        }
        if let Some(done) = opening.passive.as_mut().and_then(Connecting::poll) {
            opening.passive = None;
            match done {
                Ok(connected) => opening.made[1] = Some(connected),
                Err(refused) => return Some(refused.cause.to_string()),
            }
        }
        let request = opening.listener.poll()?;
        // One of an attempt that was given up: its caller has gone.
        if request.private_data().get(..4) != Some(&opening.attempt.to_be_bytes()) {
            return None;
        }
        if opening.cq_b.is_some() {
            return Some("a request came twice".into());
        }
        let made = queue_pair(stage.hosts[self.hosts[1]].up.as_ref()?);
        let (cq, qp) = match made {
            Ok(made) => made,
            Err(error) => return Some(error.to_string()),
        };
        opening.cq_b = Some(cq);
        match request.accept(qp, &params(&[])) {
            Ok(passive) => opening.passive = Some(passive),
            Err(refused) => return Some(refused.cause.to_string()),
        }
        None
    }

    /// Takes completions of both ends; whether any came, and whether one failed.
    fn take(&mut self, ends: &mut Ends, stage: &mut Stage) -> Result<Turn, Violation> {
        let mut turn = Turn::default();
        for (side, end) in [(Side::A, &mut ends.a), (Side::B, &mut ends.b)] {
            while let Some(mut completion) = end.cq.poll() {
                turn.moved = true;
                if stage.planted.is(Bug::LostCompletion) && stage.random.chance(1_000) {
                    continue;
                }
                loop {
                    let wc = end.qp.next_wc(&mut completion);
                    let Some(wc) = wc.map_err(|error| Violation(error.to_string()))? else { break };
                    if let Err(failure) = &wc.result {
                        turn.broken = true;
                        if !failure.is_flush() {
                            stage.named(self.traffic.name(), failure);
                        }
                    }
                    self.traffic.ended(side, wc, stage)?;
                }
            }
        }
        Ok(turn)
    }

    fn up(&mut self, mut ends: Box<Ends>, stage: &mut Stage) -> Result<bool, Violation> {
        let taken = self.take(&mut ends, stage)?;
        let turn = match taken.broken {
            false => self.traffic.turn(&mut ends, stage)?,
            true => taken,
        };
        let [a, b] = self.hosts.map(|host| &stage.hosts[host]);
        let is_lost =
            a.has_lost(&ends.a.qp, self.losses[0]) || b.has_lost(&ends.b.qp, self.losses[1]);
        if taken.moved || turn.moved {
            self.moved_ns = stage.now_ns();
        }
        // A device that lies may hide a completion for good.
        let is_stuck = stage.now_ns() - self.moved_ns > STALL_NS && stage.are_deceived(&self.hosts);
        let turn = Turn { broken: turn.broken || is_lost || is_stuck, ..turn };
        let is_idle = !ends.a.qp.has_outstanding();
        if turn.broken || (self.is_done() && is_idle) {
            stage.counts.breaks += u64::from(turn.broken);
            stage.note(|| format!("{}: ends, broken {}", self.traffic.name(), turn.broken));
            self.phase = draining(ends, stage);
        } else {
            self.phase = Phase::Up(ends);
        }
        Ok(taken.moved || turn.moved)
    }

    fn draining(
        &mut self,
        mut ends: Box<Ends>,
        since_ns: u64,
        mut is_flushed: [bool; 2],
        stage: &mut Stage,
    ) -> Result<bool, Violation> {
        let mut moved = false;
        for (end, is_flushed) in [&mut ends.a, &mut ends.b].into_iter().zip(&mut is_flushed) {
            if *is_flushed {
                continue;
            }
            match end.qp.to_error() {
                Ok(()) => (moved, *is_flushed) = (true, true),
                Err(error) => stage.named("not flushed", &error),
            }
        }
        moved |= self.take(&mut ends, stage)?.moved;
        let is_empty = !ends.a.qp.has_outstanding() && !ends.b.qp.has_outstanding();
        if is_flushed == [true; 2] && is_empty {
            drop(ends);
            self.traffic.settled(true, stage)?;
            self.pause(stage);
            return Ok(true);
        }
        let waited = stage.now_ns() - since_ns;
        if waited < DRAINING_NS {
            self.phase = Phase::Draining { ends, since_ns, is_flushed };
            return Ok(moved);
        }
        let is_ill = |host: &usize| stage.hosts[*host].is_tainted || stage.hosts[*host].is_deceived;
        ensure(self.hosts.iter().any(is_ill), || {
            format!("{}: requests did not come back", self.traffic.name())
        })?;
        drop(ends);
        self.traffic.settled(false, stage)?;
        self.pause(stage);
        Ok(true)
    }

    /// Lets go of everything on a host whose device is gone.
    pub(crate) fn abandon(&mut self, host: usize, stage: &mut Stage) -> Result<(), Violation> {
        if !self.hosts.contains(&host) {
            return Ok(());
        }
        let was_made = matches!(self.phase, Phase::Up(_) | Phase::Draining { .. });
        self.pause(stage);
        if was_made {
            stage.counts.breaks += 1;
            let settled = self.traffic.settled(false, stage);
            stage.judged(&self.hosts, settled)?;
        }
        self.traffic.forget(if self.hosts[0] == host { Side::A } else { Side::B });
        Ok(())
    }

    /// Lets go of everything: the run is over.
    pub(crate) fn close(&mut self, stage: &mut Stage) -> Result<(), Violation> {
        for host in self.hosts {
            self.abandon(host, stage)?;
        }
        Ok(())
    }
}

fn draining(ends: Box<Ends>, stage: &Stage) -> Phase {
    Phase::Draining { ends, since_ns: stage.now_ns(), is_flushed: [false; 2] }
}
