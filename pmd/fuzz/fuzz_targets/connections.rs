//! The connection manager's protocol: two engines that exchange messages, with any others between
//! them, from each other's addresses and from strangers', and calls in any order. What strangers
//! make them remember and wait for stays within the limits.
#![no_main]

use std::net::IpAddr;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use ferrocx_fuzz::word;
use ferrocx_verbs_lite::cm::engine::{Engine, EngineConfig};
use ferrocx_verbs_lite::cm::message::Mad;
use ferrocx_verbs_lite::cm::{
    Answer, CmConfig, CmLimits, ConnParams, Ends, RejectReason, Request, State, service_id,
};
use libfuzzer_sys::fuzz_target;

const PORT: u16 = 7174;
const BACKLOG: usize = 2;
const LIMITS: CmLimits = CmLimits {
    patience: Duration::from_millis(50),
    time_wait: Duration::from_millis(20),
    half_open: 4,
    half_open_per_peer: 2,
    ending: 4,
    ending_per_peer: 3,
    unsent: 4,
};

fuzz_target!(|data: &[u8]| {
    if let Ok(mad) = Mad::parse(data) {
        assert_eq!(Mad::parse(&mad.to_bytes()), Ok(mad));
    }
    let _ = run(&mut Unstructured::new(data));
});

fn engine(guid: u64) -> Engine {
    let (response_timeout, max_retries) = (8, 3);
    let (service_timeout, limits) = (10, LIMITS);
    let cm =
        CmConfig { response_timeout, max_retries, service_timeout, limits, ..CmConfig::default() };
    let first_id = guid as u32 * 100;
    let mut engine = Engine::new(EngineConfig { cm, guid, max_mtu: 3, first_id });
    engine.listen(service_id(PORT), BACKLOG);
    engine
}

fn ends(side: usize) -> Ends {
    let ip = |last| IpAddr::from([10, 0, 0, last]);
    if side == 0 {
        Ends { local: ip(1), remote: ip(2) }
    } else {
        Ends { local: ip(2), remote: ip(1) }
    }
}

/// What a program wishes, ranges or not.
fn params<'a>(u: &mut Unstructured<'_>, private_data: &'a [u8]) -> Result<ConnParams<'a>> {
    Ok(ConnParams {
        responder_resources: u.arbitrary()?,
        initiator_depth: u.arbitrary()?,
        retry_count: u.arbitrary()?,
        rnr_retry_count: u.arbitrary()?,
        ack_timeout: u.int_in_range(0..=10)?,
        private_data,
    })
}

fn request<'a>(u: &mut Unstructured<'_>, side: usize, told: &'a [u8]) -> Result<Request<'a>> {
    Ok(Request {
        ends: ends(side),
        port: if u.ratio(7, 8)? { PORT } else { u.arbitrary()? },
        source_port: u.arbitrary()?,
        qpn: u.int_in_range(0..=3)?,
        psn: word(u)?,
        mtu: u.int_in_range(0..=6)?,
        hop_limit: u.arbitrary()?,
        traffic_class: u.arbitrary()?,
        params: params(u, told)?,
    })
}

/// A message of any content about numbers that are often in use.
fn strange(u: &mut Unstructured<'_>) -> Result<Option<Mad>> {
    let mut bytes = [0; 256];
    u.fill_buffer(&mut bytes)?;
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    (bytes[16], bytes[17]) = (0, u.int_in_range(0x10..=0x18)?);
    for at in [24, 28] {
        let any = word(u)?;
        let id: u32 = *u.choose(&[0, 100, 101, 200, 201, any])?;
        bytes[at..at + 4].copy_from_slice(&id.to_be_bytes());
    }
    Ok(Mad::parse(&bytes).ok())
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let mut sides = [engine(1), engine(2)];
    let mut ids = [Vec::new(), Vec::new()];
    let mut now = Duration::ZERO;
    while !u.is_empty() {
        let side = u.int_in_range(0..=1)?;
        let engine = &mut sides[side];
        let id = match ids[side].is_empty() {
            true => word(u)?,
            false => *u.choose(&ids[side])?,
        };
        match u.int_in_range(0..=9)? {
            0 => {
                let told = ferrocx_fuzz::bytes(u, 100)?;
                ids[side].push(engine.connect(&request(u, side, &told)?, now));
            }
            1 => ids[side].extend(engine.take_request(service_id(PORT))),
            2 => {
                let told = ferrocx_fuzz::bytes(u, 250)?;
                let qpn = u.int_in_range(0..=3)?;
                let answer = Answer { qpn, psn: word(u)?, params: params(u, &told)? };
                if engine.prepare(id, &answer) && u.ratio(7, 8)? {
                    engine.accept(id, now);
                }
            }
            3 => engine.reject(id, RejectReason(u.arbitrary()?), &[1; 200], now),
            4 => {
                engine.establish(id);
            }
            5 => engine.disconnect(id, &[2; 230], now),
            6 => {
                engine.forget(id, now);
                ids[side].retain(|known| *known != id);
            }
            7 => {
                now += Duration::from_micros(u.int_in_range(0..=5000)?);
                sides.iter_mut().for_each(|engine| engine.poll(now));
            }
            8 => {
                if let Some(mad) = strange(u)? {
                    let mut ends = ends(side);
                    if u.arbitrary()? {
                        ends.remote = IpAddr::from([10, 1, 0, u.int_in_range(0..=20)?]);
                    }
                    engine.receive(ends, &mad, now);
                }
            }
            _ => {
                if let Some(out) = engine.next_out()
                    && u.ratio(7, 8)?
                {
                    assert_eq!(Mad::parse(&out.mad.to_bytes()), Ok(out.mad));
                    sides[1 - side].receive(ends(1 - side), &out.mad, now);
                }
            }
        }
        for (engine, ids) in sides.iter().zip(&ids) {
            // Requests that wait may be accepted by their number, and established so.
            let unheld = LIMITS.half_open + LIMITS.ending + BACKLOG;
            assert!(engine.len() <= ids.len() + unheld, "{} are remembered", engine.len());
        }
    }
    // Everybody lets go: nothing is left once all timers have run out.
    for (engine, ids) in sides.iter_mut().zip(ids) {
        engine.unlisten(service_id(PORT), now);
        ids.into_iter().for_each(|id| engine.forget(id, now));
        let mut left = 10_000;
        while let Some(at) = engine.next_deadline() {
            engine.poll(at);
            left -= 1;
            assert!(left > 0, "timers for ever");
            let most = 2 * LIMITS.patience + LIMITS.time_wait;
            assert!(at <= now + most, "waits for {:?}", at - now);
        }
        assert!(engine.is_empty(), "{} connections are left", engine.len());
        assert_eq!(engine.state(1), State::Ended);
    }
    Ok(())
}
