//! Rounds: one for each message size, with queue pairs of their own at both ends.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use ferrocx_app_common::wait::Wait;
use ferrocx_core::MacAddr;
use ferrocx_core::lcore::{Lcores, StopFlag, Worker};
use ferrocx_verbs_lite::cm::Connection;
use ferrocx_verbs_lite::{Buf, Mtu, Path, Psn, Qp, RtrAttr, RtsAttr};

use crate::cm::Peer;
use crate::end::End;
use crate::exchange::{Done, Endpoint, Hello, Lines, Offer, Ready, Verdict};
use crate::flow::{Crew, Plan};
use crate::measure::{Kind, Measure, Test};
use crate::report::Row;
use crate::requester::{self, Sent, histogram};
use crate::responder::{self, Target};

/// Where threads run and how they wait.
#[derive(Debug, Clone)]
pub struct Place {
    /// The cores that there are.
    pub lcores: Lcores,
    /// One for each thread in turn; empty for no pinning.
    pub cores: Vec<usize>,
    /// How threads wait.
    pub wait: Wait,
    /// MAC address that leads to the peer; `None` for what it says.
    pub peer_mac: Option<MacAddr>,
}

impl Place {
    /// Starts a thread, on its core if it has one.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        worker: usize,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Thread<T>> {
        let Some(core) = self.cores.get(worker % self.cores.len().max(1)) else {
            return Ok(Thread::Free(std::thread::spawn(run)));
        };
        Ok(Thread::Pinned(self.lcores.launch(*core, StopFlag::new(), move |_| run())?))
    }
}

/// A thread, pinned or not.
pub(crate) enum Thread<T> {
    Pinned(Worker<T>),
    Free(std::thread::JoinHandle<T>),
}

impl<T> Thread<T> {
    /// Waits for its end.
    pub(crate) fn join(self) -> Result<T> {
        match self {
            Self::Pinned(worker) => Ok(worker.join()?),
            Self::Free(thread) => thread.join().map_err(|_| anyhow!("a thread panicked")),
        }
    }
}

/// How queue pairs are led to those of the other end.
#[derive(Debug)]
pub enum Link {
    /// By this way: both ends have said who they are.
    Told(Path, Mtu),
    /// Through the connection manager.
    Cm(Peer),
}

impl Link {
    /// Leads a queue pair from INIT to RTS, towards `peer`; with its connection, if it has one.
    ///
    /// # Errors
    ///
    /// The device's reason, or what the connection manager says.
    pub fn join(
        &mut self,
        mut qp: Qp<Buf>,
        psn: Psn,
        peer: &Endpoint,
        timeout: u8,
    ) -> Result<(Qp<Buf>, Option<Connection>)> {
        match self {
            Self::Told(path, mtu) => {
                qp.connect(&RtrAttr::new(*path, peer.qpn(), peer.psn(), *mtu))?;
                qp.activate(&RtsAttr { timeout, ..RtsAttr::new(psn) })?;
                Ok((qp, None))
            }
            Self::Cm(peer) => {
                let (qp, connection) = peer.join(qp, timeout)?;
                Ok((qp, Some(connection)))
            }
        }
    }
}

/// Greets the other end; how queue pairs are led there, and what it said.
pub(crate) fn greet<S: Read + Write>(
    end: &End,
    place: &Place,
    measure: &Measure,
    lines: &mut Lines<S>,
    cm: Option<Peer>,
    is_client: bool,
) -> Result<(Link, Measure)> {
    let version = env!("CARGO_PKG_VERSION").to_string();
    let (gid, mac) = (end.gid.0, end.device.device().mac().0);
    let own = Hello { version, gid, mac, measure: measure.clone() };
    if is_client {
        lines.say(&own)?;
    }
    let peer: Hello = lines.hear().context("exchange")?;
    if !is_client {
        lines.say(&own)?;
    }
    if peer.version != own.version {
        bail!("the other end is version {}, this one {}; use the same", peer.version, own.version);
    }
    let (here, there) = (&own.measure, &peer.measure);
    if (here.test, here.kind) != (there.test, there.kind) {
        bail!(
            "the other end measures `{} {}`, this one `{} {}`; ask for the same",
            there.test.name(),
            there.kind.name(),
            here.test.name(),
            here.kind.name()
        );
    }
    // The client's word counts.
    let mtu = mtu_of(if is_client { here.mtu } else { there.mtu })?;
    let link = match cm {
        Some(cm) => Link::Cm(cm),
        None => Link::Told(end.path(peer.gid(), place.peer_mac.or(Some(peer.mac())))?, mtu),
    };
    Ok((link, peer.measure))
}

/// The threads' queue pairs of a round, connected.
fn crews<S: Read + Write>(
    end: &End,
    plan: &Plan,
    link: &mut Link,
    lines: &mut Lines<S>,
    prepares: impl Fn(&mut Crew) -> Result<()>,
) -> Result<Vec<Crew>> {
    let make = |worker| Crew::new(end, plan, worker);
    let mut crews = (0..plan.measure.workers).map(make).collect::<Result<Vec<_>>>()?;
    crews.iter_mut().try_for_each(prepares)?;
    let endpoints: Vec<Endpoint> = crews.iter().flat_map(Crew::endpoints).collect();
    lines.say(&Offer { size: plan.size, endpoints })?;
    let mut peers = lines.hear::<Offer>()?.endpoints;
    for crew in &mut crews {
        if peers.len() < crew.flows.len() {
            bail!("the other end has too few queue pairs");
        }
        let rest = peers.split_off(crew.flows.len());
        crew.connect(link, &peers)?;
        peers = rest;
    }
    Ok(crews)
}

/// The path MTU of so many bytes, or the refusal that there is none.
fn mtu_of(bytes: u32) -> Result<Mtu> {
    let all = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    let found = all.into_iter().find(|mtu| mtu.bytes() == bytes);
    found.ok_or_else(|| anyhow!("{bytes} is no path MTU"))
}

/// The measuring end: all rounds.
///
/// # Errors
///
/// One sentence about the first thing that went wrong, here or at the other end.
pub fn client<S: Read + Write>(
    end: &End,
    place: &Place,
    measure: &Measure,
    stream: S,
    cm: Option<Peer>,
) -> Result<Vec<Row>> {
    let mut lines = Lines::new(stream);
    let (mut link, _) = greet(end, place, measure, &mut lines, cm, true)?;
    let mut rows = Vec::new();
    for &size in &measure.sizes {
        let plan = Plan::new(measure, size, place.wait);
        let pings = measure.kind == Kind::Lat && measure.test == Test::Send;
        let prepares = |crew: &mut Crew| if pings { responder::prepare(crew) } else { Ok(()) };
        let crews = crews(end, &plan, &mut link, &mut lines, prepares)?;
        lines.say(&Ready {})?;
        lines.hear::<Ready>()?;
        let (crews, sent) = all_threads(place, crews, |_, crew| requester::run(crew))?;
        let messages: Vec<u64> = sent.iter().flat_map(|sent| sent.messages.clone()).collect();
        lines.say(&Done { messages })?;
        let verdict: Verdict = lines.hear().context("the other end failed")?;
        if let Some(error) = verdict.error {
            bail!("the other end: {error}");
        }
        drop(crews);
        rows.push(row(&plan, &sent, verdict.checked)?);
    }
    Ok(rows)
}

/// The end that is measured against: rounds until the client hangs up; messages checked.
///
/// # Errors
///
/// One sentence about the first thing that went wrong.
pub fn server<S: Read + Write>(
    end: &End,
    place: &Place,
    measure: &Measure,
    stream: S,
    cm: Option<Peer>,
) -> Result<u64> {
    let mut lines = Lines::new(stream);
    let (mut link, measure) = greet(end, place, measure, &mut lines, cm, false)?;
    let mut total = 0;
    for &size in &measure.sizes {
        let plan = Plan::new(&measure, size, place.wait);
        let crews = crews(end, &plan, &mut link, &mut lines, responder::prepare)?;
        lines.hear::<Ready>()?;
        let targets: Vec<Arc<Target>> = crews.iter().map(|_| Arc::default()).collect();
        let threads = start_all(place, crews, |worker| {
            let target = Arc::clone(&targets[worker]);
            move |crew: &mut Crew| responder::run(crew, &target)
        })?;
        lines.say(&Ready {})?;
        let done = lines.hear::<Done>();
        let messages = done.as_ref().map_or(&[][..], |done| &done.messages);
        let mut counts = messages.iter().copied();
        for (worker, target) in targets.iter().enumerate() {
            target.set(counts.by_ref().take(measure.qps_of(worker)).sum());
        }
        let answered = join_all(threads).and_then(|(mut crews, _)| {
            let mut counts = messages.iter().copied();
            for flow in crews.iter_mut().flat_map(|crew| &mut crew.flows) {
                flow.side.check_places(&plan, counts.next().unwrap_or(0))?;
            }
            Ok(crews)
        });
        // The client's failure comes first: this end's may follow from it.
        done.context("the client failed")?;
        let checked = |crews: &Vec<Crew>| {
            crews.iter().flat_map(|crew| &crew.flows).map(|flow| flow.side.checked).sum()
        };
        let error = answered.as_ref().err().map(ferrocx_app_common::exit::sentence);
        let verdict = Verdict { checked: answered.as_ref().map_or(0, checked), error };
        lines.say(&verdict)?;
        total += verdict.checked;
        drop(answered?);
    }
    Ok(total)
}

type Started<T> = Vec<Thread<(Crew, Result<T>)>>;

fn start_all<T: Send + 'static, F: FnOnce(&mut Crew) -> Result<T> + Send + 'static>(
    place: &Place,
    crews: Vec<Crew>,
    run: impl Fn(usize) -> F,
) -> Result<Started<T>> {
    let mut threads = Vec::new();
    for (worker, mut crew) in crews.into_iter().enumerate() {
        let run = run(worker);
        threads.push(place.start(worker, move || {
            let result = run(&mut crew);
            (crew, result)
        })?);
    }
    Ok(threads)
}

fn join_all<T>(threads: Started<T>) -> Result<(Vec<Crew>, Vec<T>)> {
    let (mut crews, mut results) = (Vec::new(), Vec::new());
    for thread in threads {
        let (crew, result) = thread.join()?;
        crews.push(crew);
        results.push(result);
    }
    Ok((crews, results.into_iter().collect::<Result<Vec<T>>>()?))
}

fn all_threads<T: Send + 'static>(
    place: &Place,
    crews: Vec<Crew>,
    run: impl Fn(usize, &mut Crew) -> Result<T> + Copy + Send + 'static,
) -> Result<(Vec<Crew>, Vec<T>)> {
    join_all(start_all(place, crews, |worker| move |crew: &mut Crew| run(worker, crew))?)
}

fn row(plan: &Plan, sent: &[Sent], checked_there: u64) -> Result<Row> {
    let mut times = histogram()?;
    sent.iter().try_for_each(|sent| times.add(&sent.times))?;
    let first = sent.iter().map(|sent| sent.time.0).min().unwrap_or_else(Instant::now);
    let last = sent.iter().map(|sent| sent.time.1).max().unwrap_or(first);
    let messages = sent.iter().flat_map(|sent| &sent.messages).sum();
    let checked_here: u64 = sent.iter().map(|sent| sent.checked).sum();
    Ok(Row {
        size: plan.size,
        on_the_way: plan.slots,
        messages,
        seconds: (last - first).as_secs_f64(),
        doorbells: sent.iter().map(|sent| sent.doorbells).sum(),
        checked: checked_here + checked_there,
        times,
    })
}
