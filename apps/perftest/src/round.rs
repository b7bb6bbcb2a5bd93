//! Rounds: one for each message size, with queue pairs of their own at both ends.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::cm::CmPeer;
use crate::connector::{Connector, greet};
use crate::end::End;
use crate::exchange::{Done, Endpoint, Lines, Offer, Ready, Role, Verdict};
use crate::measure::{Kind, Measure, Test};
use crate::placement::{Placement, Thread};
use crate::plan::Plan;
use crate::queue_pair::QpGroup;
use crate::report::{Row, histogram};
use crate::requester::{self, Sent};
use crate::responder::{self, Expected};

/// The threads' queue pairs of a round, connected.
fn groups<S: Read + Write>(
    end: &End,
    plan: &Plan,
    connector: &mut Connector,
    lines: &mut Lines<S>,
    prepares: impl Fn(&mut QpGroup) -> Result<()>,
) -> Result<Vec<QpGroup>> {
    let make = |worker| QpGroup::new(end, plan, worker);
    let mut groups = (0..plan.measure.workers).map(make).collect::<Result<Vec<_>>>()?;
    groups.iter_mut().try_for_each(prepares)?;
    let endpoints: Vec<Endpoint> = groups.iter().flat_map(QpGroup::endpoints).collect();
    lines.say(&Offer { size: plan.size, endpoints })?;
    let mut peers = lines.hear::<Offer>()?.endpoints;
    for group in &mut groups {
        if peers.len() < group.pairs.len() {
            bail!("the other end has too few queue pairs");
        }
        let rest = peers.split_off(group.pairs.len());
        group.connect(connector, &peers)?;
        peers = rest;
    }
    Ok(groups)
}

/// The measuring end: all rounds.
///
/// # Errors
///
/// One sentence about the first thing that went wrong, here or at the other end.
pub fn client<S: Read + Write>(
    end: &End,
    placement: &Placement,
    measure: &Measure,
    stream: S,
    cm: Option<CmPeer>,
) -> Result<Vec<Row>> {
    let mut lines = Lines::new(stream);
    let (mut connector, _) = greet(end, placement, measure, &mut lines, cm, Role::Client)?;
    let mut rows = Vec::new();
    for &size in &measure.sizes {
        let plan = Plan::new(measure, size, placement);
        let pings = measure.kind == Kind::Lat && measure.test == Test::Send;
        let prepares = |group: &mut QpGroup| if pings { responder::prepare(group) } else { Ok(()) };
        let groups = groups(end, &plan, &mut connector, &mut lines, prepares)?;
        lines.say(&Ready {})?;
        lines.hear::<Ready>()?;
        let (groups, sent) = all_threads(placement, groups, |_, group| requester::run(group))?;
        let messages: Vec<u64> = sent.iter().flat_map(|sent| sent.messages.clone()).collect();
        lines.say(&Done { messages })?;
        let verdict: Verdict = lines.hear().context("the other end failed")?;
        if let Some(error) = verdict.error {
            bail!("the other end: {error}");
        }
        drop(groups);
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
    placement: &Placement,
    measure: &Measure,
    stream: S,
    cm: Option<CmPeer>,
) -> Result<u64> {
    let mut lines = Lines::new(stream);
    let (mut connector, measure) = greet(end, placement, measure, &mut lines, cm, Role::Server)?;
    let mut total = 0;
    for &size in &measure.sizes {
        let plan = Plan::new(&measure, size, placement);
        let groups = groups(end, &plan, &mut connector, &mut lines, responder::prepare)?;
        lines.hear::<Ready>()?;
        let expected: Vec<Arc<Expected>> = groups.iter().map(|_| Arc::default()).collect();
        let threads = start_all(placement, groups, |worker| {
            let count = Arc::clone(&expected[worker]);
            move |group: &mut QpGroup| responder::run(group, &count)
        })?;
        lines.say(&Ready {})?;
        let done = lines.hear::<Done>();
        let messages = done.as_ref().map_or(&[][..], |done| &done.messages);
        let mut counts = messages.iter().copied();
        for (worker, count) in expected.iter().enumerate() {
            count.set(counts.by_ref().take(measure.qps_of(worker)).sum());
        }
        let answered = join_all(threads).and_then(|(mut groups, _)| {
            let mut counts = messages.iter().copied();
            for pair in groups.iter_mut().flat_map(|group| &mut group.pairs) {
                pair.messages.check_places(&plan, counts.next().unwrap_or(0))?;
            }
            Ok(groups)
        });
        // The client's failure comes first: this end's may follow from it.
        done.context("the client failed")?;
        let checked = |groups: &Vec<QpGroup>| {
            groups.iter().flat_map(|group| &group.pairs).map(|pair| pair.messages.checked).sum()
        };
        let error = answered.as_ref().err().map(ferrocx_app_common::exit::sentence);
        let verdict = Verdict { checked: answered.as_ref().map_or(0, checked), error };
        lines.say(&verdict)?;
        total += verdict.checked;
        drop(answered?);
    }
    Ok(total)
}

type Started<T> = Vec<Thread<(QpGroup, Result<T>)>>;

fn start_all<T: Send + 'static, F: FnOnce(&mut QpGroup) -> Result<T> + Send + 'static>(
    placement: &Placement,
    groups: Vec<QpGroup>,
    run: impl Fn(usize) -> F,
) -> Result<Started<T>> {
    let mut threads = Vec::new();
    for (worker, mut group) in groups.into_iter().enumerate() {
        let run = run(worker);
        threads.push(placement.start(worker, move || {
            let result = run(&mut group);
            (group, result)
        })?);
    }
    Ok(threads)
}

fn join_all<T>(threads: Started<T>) -> Result<(Vec<QpGroup>, Vec<T>)> {
    let (mut groups, mut results) = (Vec::new(), Vec::new());
    for thread in threads {
        let (group, result) = thread.join()?;
        groups.push(group);
        results.push(result);
    }
    Ok((groups, results.into_iter().collect::<Result<Vec<T>>>()?))
}

fn all_threads<T: Send + 'static>(
    placement: &Placement,
    groups: Vec<QpGroup>,
    run: impl Fn(usize, &mut QpGroup) -> Result<T> + Copy + Send + 'static,
) -> Result<(Vec<QpGroup>, Vec<T>)> {
    join_all(start_all(placement, groups, |worker| move |group: &mut QpGroup| run(worker, group))?)
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
