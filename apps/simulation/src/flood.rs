//! A flood of messages from peers that do not exist, through a card, while an honest peer connects.

use std::collections::VecDeque;
use std::fmt;

use ferrocx_mempool::PageSize;
use ferrocx_verbs_lite::cm::{
    CmConfig, CmLimits, CmStats, ConnParams, ConnRequest, Connected, Connecting,
};
use ferrocx_verbs_lite::net::NetConfig;
use ferrocx_verbs_lite::*;

use crate::intruder;
use crate::plan::Plan;
use crate::run::{Options, stage_of};
use crate::stage::{Stage, Violation, ensure};

/// Simulated time between two hostile messages: 10^6 in a minute.
const GAP_NS: u64 = 60_000;
/// Simulated time between two calls of the honest peer, and in which one must be answered.
const CALL_NS: u64 = 1_000_000_000;
const ANSWER_NS: u64 = 2_000_000_000;
/// Turns of the models for a turn of the connection managers.
const STEPS: u32 = 8;
/// Simulated time that the program takes to refuse a stranger: it asks somebody else about it.
const REFUSAL_NS: u64 = 1_000_000_000;
const PORT: u16 = 7_174;
/// By which the program knows who may connect.
const PASSWORD: &[u8] = b"honest peer";
/// Requests that wait for a program. Source: `ConnectionManager::listen`.
const BACKLOG: usize = 128;
const CALLER: usize = 0;
const SERVER: usize = 1;

/// How a flood went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flood {
    /// Messages of strangers.
    pub messages: u64,
    /// Connections of the honest peer.
    pub connections: u64,
    /// The longest that one of them took, in simulated nanoseconds.
    pub slowest_ns: u64,
    /// Most connections that the server remembered at a time.
    pub most_remembered: usize,
    /// Counters of the server's connection manager.
    pub stats: CmStats,
}

impl fmt::Display for Flood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { messages, connections, slowest_ns, most_remembered, stats } = self;
        let slowest_ms = *slowest_ns as f64 / 1e6;
        write!(
            f,
            "{messages} hostile messages, {connections} honest connections, the slowest in \
             {slowest_ms:.3} simulated ms, at most {most_remembered} remembered; {stats:?}"
        )
    }
}

/// A connection that the honest peer makes.
struct Call {
    since_ns: u64,
    active: Option<Connecting>,
    passive: Option<Connecting>,
    made: [Option<Connected>; 2],
    _cqs: [Cq; 2],
    /// What the server accepts with.
    spare: Option<Qp>,
}

fn queue_pair(stage: &Stage, host: usize) -> Result<(Cq, Qp), Violation> {
    let wrong = |error: VerbsError| Violation(error.to_string());
    let up = stage.hosts[host].up.as_ref().ok_or_else(|| Violation("a host is down".into()))?;
    let cq = up.context.create_cq(8).map_err(wrong)?;
    let config = QpConfig { max_send_wr: 4, max_recv_wr: 4, ..QpConfig::default() };
    let mut qp = up.pd.create_qp(&cq, &config).map_err(wrong)?;
    qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 }).map_err(wrong)?;
    Ok((cq, qp))
}

fn call(stage: &Stage) -> Result<Call, Violation> {
    let (cq_a, qp) = queue_pair(stage, CALLER)?;
    let (cq_b, spare) = queue_pair(stage, SERVER)?;
    let up = stage.hosts[CALLER].up.as_ref().ok_or_else(|| Violation("a host is down".into()))?;
    let params = ConnParams { ack_timeout: 8, private_data: PASSWORD, ..ConnParams::default() };
    let active = up.cm.connect(qp, stage.hosts[SERVER].address(PORT), &params);
    let active = active.map_err(|refused| Violation(refused.cause.to_string()))?;
    let (since_ns, made) = (stage.now_ns(), [None, None]);
    let (active, spare) = (Some(active), Some(spare));
    Ok(Call { since_ns, active, passive: None, made, _cqs: [cq_a, cq_b], spare })
}

/// Sends `messages` to a server, 10^6 in a simulated minute, while an honest peer connects to it
/// once a simulated second.
///
/// # Errors
///
/// A connection that took longer than two simulated seconds, or was refused; more remembered
/// connections than the limits allow.
pub fn flood(messages: u64, seed: u64) -> Result<Flood, Violation> {
    let mut stage = stage_of(&Plan::quiet(seed), &Options::default())?;
    // The times and limits that users get.
    let page = PageSize::Base4K;
    let net = NetConfig { page, ..NetConfig::default() };
    for host in [CALLER, SERVER] {
        stage.hosts[host].cm = CmConfig { net, page, ..CmConfig::default() };
        stage.hosts[host].open().map_err(|error| Violation(error.to_string()))?;
    }
    let done = under_water(messages, &mut stage)?;
    for host in [CALLER, SERVER] {
        stage.hosts[host].close().map_err(|error| Violation(error.to_string()))?;
        let objects = stage.world.nic(host).state().objects.len();
        ensure(objects == 0, || format!("host {host}: {objects} objects of the device live"))?;
    }
    Ok(done)
}

fn under_water(messages: u64, stage: &mut Stage) -> Result<Flood, Violation> {
    let missing = || Violation("a host is down".into());
    let caller = stage.hosts[CALLER].up.as_ref().ok_or_else(missing)?.cm.clone();
    let server = stage.hosts[SERVER].up.as_ref().ok_or_else(missing)?.cm.clone();
    let listener = server.listen(PORT);
    let mut listener = listener.map_err(|error| Violation(error.to_string()))?;
    let limits = CmLimits::default();
    let bound = limits.half_open + limits.ending + BACKLOG + 2;
    let mut flood = Flood {
        messages,
        connections: 0,
        slowest_ns: 0,
        most_remembered: 0,
        stats: server.stats(),
    };
    let (mut due_ns, mut call_ns, mut current) = (stage.now_ns(), stage.now_ns(), None::<Call>);
    let (mut sent, mut strangers) = (0, VecDeque::<(u64, ConnRequest)>::new());
    while sent < messages || current.is_some() {
        while sent < messages && due_ns <= stage.now_ns() {
            let frame = intruder::cm(SERVER, PORT, &mut stage.random);
            stage.ether.inject(due_ns, &frame);
            (due_ns, sent) = (due_ns + GAP_NS, sent + 1);
        }
        for _ in 0..STEPS {
            stage.world.step();
        }
        caller.poll();
        server.poll();
        if current.is_none() && sent < messages && stage.now_ns() >= call_ns {
            call_ns = stage.now_ns() + CALL_NS;
            current = Some(call(stage)?);
        }
        // The program looks who it is. Who is dropped is refused.
        while let Some(request) = listener.poll() {
            let is_honest = request.private_data().starts_with(PASSWORD);
            let spare = current.as_mut().filter(|_| is_honest).and_then(|call| call.spare.take());
            let (Some(qp), Some(call)) = (spare, &mut current) else {
                strangers.push_back((stage.now_ns() + REFUSAL_NS, request));
                continue;
            };
            let passive = request.accept(qp, &ConnParams::default());
            call.passive = Some(passive.map_err(|refused| Violation(refused.cause.to_string()))?);
        }
        while strangers.front().is_some_and(|(due_ns, _)| *due_ns <= stage.now_ns()) {
            strangers.pop_front();
        }
        if let Some(call) = &mut current {
            let waited = stage.now_ns() - call.since_ns;
            ensure(waited < ANSWER_NS, || format!("no connection in {waited} simulated ns"))?;
            for (at, end) in [&mut call.active, &mut call.passive].into_iter().enumerate() {
                if let Some(done) = end.as_mut().and_then(Connecting::poll) {
                    let made = done.map_err(|refused| Violation(refused.cause.to_string()))?;
                    (call.made[at], *end) = (Some(made), None);
                }
            }
            if call.made.iter().all(Option::is_some) {
                flood.slowest_ns = flood.slowest_ns.max(waited);
                flood.connections += 1;
                current = None;
            }
        }
        let stats = server.stats();
        flood.most_remembered = flood.most_remembered.max(stats.connections);
        ensure(stats.connections <= bound, || {
            format!("{} connections are remembered, not {bound}", stats.connections)
        })?;
        flood.stats = stats;
    }
    Ok(flood)
}
