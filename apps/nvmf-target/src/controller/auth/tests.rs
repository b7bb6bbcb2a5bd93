//! Hosts that know their key, hosts that do not, and hosts that send anything.

use proptest::prelude::*;

use super::*;
use crate::auth::Secret;
use crate::auth::key::tests::{KEY_32, KEY_48, KEY_64};
use crate::host::{AuthError, HostKeys, Prover};

const NAMES: Names<'static> = Names { hostnqn: "nqn.2014-08.a:h", subnqn: "nqn.2014-08.a:s" };
const BOTH: (&str, &str) = (NAMES.hostnqn, NAMES.subnqn);
const START: Duration = Duration::from_secs(100);

fn key(groups: &[Group], hashes: &[Hash]) -> Arc<HostKey> {
    Arc::new(HostKey {
        secret: Secret::parse(KEY_48).unwrap(),
        controller: Some(Secret::parse(KEY_64).unwrap()),
        hashes: hashes.to_vec(),
        groups: groups.to_vec(),
    })
}

fn auth(groups: &[Group], hashes: &[Hash]) -> Auth {
    *Auth::new(key(groups, hashes), START, None)
}

fn keys() -> HostKeys {
    HostKeys::new(Secret::parse(KEY_48).unwrap()).with_null_group()
}

/// Sends a message, and computes what is asked for.
fn send(auth: &mut Auth, bytes: &[u8], now: Duration) {
    if let Some(power) = auth.send(bytes, None, Random::new().unwrap(), now).unwrap() {
        assert_eq!(auth.receive(NAMES, now), Received::Later);
        auth.held = Some(3);
        assert_eq!(auth.take_slot(), None);
        power.compute();
        assert_eq!(auth.take_slot(), Some(3));
    }
}

fn receive(auth: &mut Auth, now: Duration) -> Vec<u8> {
    match auth.receive(NAMES, now) {
        Received::Message(mut bytes) => {
            // Hosts lend more than a message needs.
            bytes.resize(4096, 0);
            bytes
        }
        Received::Later => panic!("a power is missing"),
    }
}

/// All of it; how it ended for the host.
fn talk(auth: &mut Auth, keys: &HostKeys, now: Duration) -> Result<(), AuthError> {
    let mut prover = Prover::new(keys, BOTH, 0x1234);
    send(auth, &prover.negotiate(), now);
    let reply = prover.reply(&receive(auth, now))?;
    send(auth, &reply, now);
    let last = prover.conclude(&receive(auth, now));
    match &last {
        Ok(Some(message)) => send(auth, message, now),
        Ok(None) => {}
        Err(AuthError::Wrong(why)) => send(auth, &prover.give_up(*why), now),
        Err(_) => {}
    }
    last.map(drop)
}

fn refused(why: Explanation) -> Result<(), AuthError> {
    Err(AuthError::Refused(why))
}

#[test]
fn whoever_knows_the_key_is_let_in() {
    for hash in Hash::ALL {
        for group in [Group::Null, Group::Ffdhe2048, Group::Ffdhe3072] {
            for controller in [None, Some(Secret::parse(KEY_64).unwrap())] {
                let mut auth = auth(&[group], &[hash]);
                let keys = HostKeys { controller, ..keys() };
                assert_eq!(talk(&mut auth, &keys, START), Ok(()));
                assert!(auth.is_authenticated());
                let is_mutual = keys.controller.is_some();
                assert_eq!(auth.proof, Some(Proof { hash, group, is_mutual }));
                assert_eq!(auth.take_end(START * 2), None, "it stays");
            }
        }
    }
}

#[test]
fn the_best_of_what_both_have_is_taken() {
    let mut auth = auth(&[Group::Ffdhe3072, Group::Ffdhe2048], &[Hash::Sha384, Hash::Sha256]);
    let few = HostKeys {
        hashes: vec![Hash::Sha256, Hash::Sha512],
        groups: vec![Group::Null, Group::Ffdhe2048],
        ..keys()
    };
    assert_eq!(talk(&mut auth, &few, START), Ok(()));
    let proof = auth.proof.unwrap();
    assert_eq!((proof.hash, proof.group), (Hash::Sha256, Group::Ffdhe2048));
    assert_eq!(proof.to_string(), "sha256, ffdhe2048");
}

#[test]
fn each_failure_has_its_explanation_and_its_end() {
    let other = HostKeys::new(Secret::parse(KEY_32).unwrap());
    let sha256 = HostKeys { hashes: vec![Hash::Sha256], ..keys() };
    let null = HostKeys { groups: vec![Group::Null], ..keys() };
    let make = || auth(&[Group::Ffdhe2048], &[Hash::Sha512]);
    for (keys, why) in
        [(other, Explanation::FAILED), (sha256, Explanation::HASH), (null, Explanation::GROUP)]
    {
        let mut auth = make();
        assert_eq!(talk(&mut auth, &keys, START), refused(why));
        assert!(!auth.is_authenticated());
        assert_eq!(auth.take_end(START + FAREWELL), None, "it may fetch the reason");
        let late = START + FAREWELL * 2;
        assert_eq!(auth.take_end(late), Some("its host failed to authenticate"));
        assert_eq!(auth.take_end(late), None, "said once");
    }
    // A controller without the key that the host asks for, and one with another.
    let mut none = make();
    none.key = Arc::new(HostKey { controller: None, ..(*none.key).clone() });
    let asking = HostKeys { controller: Some(Secret::parse(KEY_64).unwrap()), ..keys() };
    assert_eq!(talk(&mut none, &asking, START), refused(Explanation::FAILED));
    let mut wrong = make();
    let asking = HostKeys { controller: Some(Secret::parse(KEY_32).unwrap()), ..keys() };
    let expected = Err(AuthError::Wrong(Explanation::FAILED));
    assert_eq!(talk(&mut wrong, &asking, START), expected);
    assert!(!wrong.is_authenticated());
    assert!(wrong.take_end(START).is_some(), "the host has said so");
}

/// What comes when it should not, and what is not as it should be.
#[test]
fn wrong_messages_end_it() {
    let failure = |auth: &mut Auth| match Message::parse(&receive(auth, START)) {
        Ok((transaction, Message::Failure1(why))) => (transaction, why),
        other => panic!("{other:?}"),
    };
    let negotiate = |secure_channel, ids| Message::Negotiate { secure_channel, ids }.encode(7);
    let all = Prover::new(&keys(), BOTH, 7).negotiate();
    let new = || auth(&[Group::Null], &[Hash::Sha256]);
    for (bytes, why) in [
        (Message::Success2.encode(7), Explanation::MESSAGE),
        (Message::Failure2(Explanation(1)).encode(7), Explanation::MESSAGE),
        (vec![9; 16], Explanation::MESSAGE),
        (vec![0; 3], Explanation::PAYLOAD),
        (negotiate(1, None), Explanation::SECURE_CHANNEL),
        (negotiate(0, None), Explanation::PROTOCOL),
        (negotiate(0, Some(Ids::default())), Explanation::HASH),
    ] {
        let mut auth = new();
        send(&mut auth, &bytes, START);
        assert_eq!(failure(&mut auth).1, why, "{bytes:x?}");
        // Nor is there another try.
        send(&mut auth, &all, START);
        assert_eq!(failure(&mut auth), (7, Explanation::MESSAGE));
        assert!(auth.take_end(START + FAREWELL * 2).is_some());
    }
    // Nothing to fetch; and a second negotiation of one that is not let in.
    let mut auth = new();
    assert_eq!(failure(&mut auth), (0, Explanation::MESSAGE));
    let mut auth = new();
    send(&mut auth, &all, START);
    send(&mut auth, &all, START);
    assert_eq!(failure(&mut auth), (7, Explanation::MESSAGE));
    let (answer, short) = ([0; 32], [0; 31]);
    for (transaction, reply) in [
        (8, Message::Reply { answer: &answer, challenge: None, public: &[] }),
        (7, Message::Reply { answer: &short, challenge: None, public: &[] }),
        (7, Message::Reply { answer: &answer, challenge: None, public: &[2] }),
        (7, Message::Reply { answer: &answer, challenge: Some((&answer, 0)), public: &[] }),
    ] {
        let mut auth = new();
        send(&mut auth, &all, START);
        receive(&mut auth, START);
        send(&mut auth, &reply.encode(transaction), START);
        assert_eq!(failure(&mut auth).1, Explanation::PAYLOAD, "{reply:?}");
    }
    // A public value that makes the shared one known.
    let mut auth = self::auth(&[Group::Ffdhe2048], &[Hash::Sha256]);
    send(&mut auth, &all, START);
    receive(&mut auth, START);
    let public = [vec![0; 255], vec![1]].concat();
    let reply = Message::Reply { answer: &answer, challenge: None, public: &public };
    send(&mut auth, &reply.encode(7), START);
    assert_eq!(failure(&mut auth).1, Explanation::PAYLOAD);
}

#[test]
fn a_host_that_takes_too_long_is_sent_away() {
    let mut auth = auth(&[Group::Null], &[Hash::Sha256]);
    assert_eq!(auth.take_end(START + PATIENCE), None);
    // Its negotiation gives it no more time.
    send(&mut auth, &Prover::new(&keys(), BOTH, 7).negotiate(), START + PATIENCE);
    let late = START + PATIENCE + FAREWELL;
    assert_eq!(auth.take_end(late), Some("its host took too long to authenticate"));
    assert_eq!(auth.take_end(late), None, "said once");
}

#[test]
fn the_time_that_a_power_takes_is_not_the_hosts() {
    let mut auth = auth(&[Group::Ffdhe2048], &[Hash::Sha256]);
    let negotiate = Prover::new(&keys(), BOTH, 7).negotiate();
    let power = auth.send(&negotiate, None, Random::new().unwrap(), START).unwrap().unwrap();
    let late = START + PATIENCE * 2;
    assert_eq!(auth.take_end(late), None);
    power.compute();
    assert_eq!(auth.take_end(late + PATIENCE), None);
    assert!(auth.take_end(late + PATIENCE + FAREWELL).is_some());
}

#[test]
fn nor_is_the_time_in_which_nobody_heard_it() {
    let mut auth = auth(&[], &[Hash::Sha256]);
    let hour = Duration::from_secs(3600);
    auth.was_unheard(hour, START + hour + PATIENCE / 2);
    assert_eq!(auth.take_end(START + hour + PATIENCE), None);
    assert!(auth.take_end(START + hour + PATIENCE * 2).is_some());
    // One that came late was not there all of that time.
    let mut auth = Auth::new(key(&[], &[Hash::Sha256]), START + hour, None);
    auth.was_unheard(hour, START + hour);
    assert!(auth.take_end(START + hour + PATIENCE * 2).is_some());
}

#[test]
fn it_can_be_done_again_and_a_failure_then_counts() {
    let mut auth = auth(&[Group::Null], &[Hash::Sha256]);
    assert_eq!(talk(&mut auth, &keys(), START), Ok(()));
    let bytes = Prover::new(&keys(), BOTH, 7).negotiate();
    let soon = auth.send(&bytes, None, Random::new().unwrap(), START + PAUSE / 2);
    assert_eq!(soon.unwrap_err(), Status::INTERRUPTED);
    let later = START + PAUSE;
    assert_eq!(talk(&mut auth, &keys(), later), Ok(()));
    // Another key since.
    let new = HostKey { secret: Secret::parse(KEY_32).unwrap(), ..(*auth.key).clone() };
    let then = later + PAUSE;
    auth.send(&bytes, Some(Arc::new(new)), Random::new().unwrap(), then).unwrap();
    let keys = keys();
    let mut prover = Prover::new(&keys, BOTH, 7);
    let reply = prover.reply(&receive(&mut auth, then)).unwrap();
    send(&mut auth, &reply, then);
    assert_eq!(
        prover.conclude(&receive(&mut auth, then)),
        Err(AuthError::Refused(Explanation::FAILED))
    );
    assert!(auth.is_authenticated(), "until its end");
    assert!(auth.take_end(then + FAREWELL * 2).is_some());
}

#[test]
fn numbers_are_not_used_twice() {
    let all: Vec<u32> = (0..100).map(|_| sequence().unwrap()).collect();
    assert!(!all.contains(&0) && all.windows(2).all(|two| two[0] != two[1]));
    let challenge = || {
        let mut auth = auth(&[Group::Null], &[Hash::Sha256]);
        send(&mut auth, &Prover::new(&keys(), BOTH, 7).negotiate(), START);
        match Message::parse(&receive(&mut auth, START)) {
            Ok((7, Message::Challenge { value, sequence, .. })) => (value.to_vec(), sequence),
            other => panic!("{other:?}"),
        }
    };
    let (one, two) = (challenge(), challenge());
    assert!(one.0 != two.0 && one.1 != two.1);
}

proptest! {
    /// Whatever comes in whatever order, nobody is let in without the key.
    #[test]
    fn nothing_lets_a_stranger_in(
        steps in proptest::collection::vec(
            (0u8..8, proptest::collection::vec(any::<u8>(), 0..120)), 0..12
        ),
    ) {
        let mut auth = auth(&[Group::Null], &[Hash::Sha256]);
        let mut now = START;
        for (kind, bytes) in steps {
            let message = match kind {
                0 => Prover::new(&keys(), BOTH, 7).negotiate(),
                1 if bytes.len() >= 64 => {
                    let (answer, value) = (&bytes[..32], &bytes[32..64]);
                    let challenge = (bytes[0] & 1 != 0).then_some((value, 9));
                    Message::Reply { answer, challenge, public: &[] }.encode(7)
                }
                2 => Message::Success2.encode(7),
                3 => Message::Failure2(Explanation(1)).encode(7),
                4 | 5 => bytes,
                _ => {
                    let _ = auth.receive(NAMES, now);
                    continue;
                }
            };
            let _ = auth.send(&message, None, Random::new().unwrap(), now);
            now += Duration::from_millis(1500);
            let _ = auth.take_end(now);
            prop_assert!(!auth.is_authenticated());
        }
    }
}
