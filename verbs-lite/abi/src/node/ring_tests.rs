//! The ring alone: order, wrapping, a full ring, and what a hostile process may write.

use super::*;

fn heap() -> Arc<Ring> {
    Arc::new(Ring(Memory::Heap((0..WORDS).map(|_| AtomicU64::new(0)).collect())))
}

fn ends() -> (Sender, Receiver) {
    let ring = heap();
    (Sender::new(Arc::clone(&ring)), Receiver::new(ring, true))
}

/// A frame that says its number, of a length that follows from it.
fn frame(number: u32) -> Vec<u8> {
    let len = 5 + (number as usize * 2654) % 9000;
    (0..len).map(|at| (at as u32 ^ number) as u8).collect()
}

#[test]
fn frames_arrive_once_whole_and_in_order_whatever_the_ring_can_hold() {
    let (mut sender, mut receiver) = ends();
    let mut inbox = vec![0; MAX_FRAME_BYTES];
    let (mut sent, mut got) = (0, 0);
    let rounds = if cfg!(miri) { 60 } else { 1000 };
    while got < rounds {
        while sent < rounds && sender.push(&frame(sent), Fcs::Good, false) == Ok(true) {
            sent += 1;
        }
        sender.show();
        for _ in 0..=got % 7 {
            let Some((len, fcs)) = receiver.pop(&mut inbox).unwrap() else { break };
            assert_eq!((&inbox[..len], fcs), (&frame(got)[..], Fcs::Good));
            receiver.show();
            got += 1;
        }
    }
    assert_eq!((receiver.pop(&mut inbox), sent), (Ok(None), rounds));
    assert!(sender.is_drained());
}

#[test]
fn two_threads_pass_frames_without_a_lock() {
    let (mut sender, mut receiver) = ends();
    let rounds = if cfg!(miri) { 40 } else { 2000 };
    let other = std::thread::spawn(move || {
        let mut inbox = vec![0; MAX_FRAME_BYTES];
        for number in 0..rounds {
            let (len, _) = loop {
                match receiver.pop(&mut inbox).unwrap() {
                    Some(found) => break found,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(inbox[..len], frame(number));
            receiver.show();
        }
    });
    for number in 0..rounds {
        while sender.push(&frame(number), Fcs::Good, false) == Ok(false) {
            sender.show();
            std::thread::yield_now();
        }
        sender.show();
    }
    other.join().unwrap();
}

#[test]
fn a_frame_keeps_what_it_stands_for() {
    let (mut sender, mut receiver) = ends();
    assert!(sender.is_private());
    let train = Train { frames: 3, bytes: 3210, longest: 1078 };
    for fcs in [Fcs::Inside(train), Fcs::Bad] {
        assert_eq!(sender.push(&[7; 99], fcs, false), Ok(true));
        assert!(sender.show() && !sender.show());
        assert_eq!(receiver.pop(&mut [0; 200]), Ok(Some((99, fcs))));
    }
    let seen = heap();
    drop(Receiver::new(Arc::clone(&seen), false));
    let sender = Sender::new(seen);
    assert!(sender.is_taken() && !sender.is_private());
}

#[test]
fn a_receiver_is_called_once_when_it_sleeps_and_nobody_looks() {
    let (mut sender, mut receiver) = ends();
    let mut inbox = [0; 200];
    let send = |sender: &mut Sender| {
        assert_eq!(sender.push(&[1; 60], Fcs::Good, false), Ok(true));
        sender.show()
    };
    receiver.see(50_000);
    assert!(!receiver.ring.sleeps(0), "nothing is there");
    assert!(send(&mut sender));
    assert!(!sender.must_call(50_500), "somebody looked just now");
    assert!(sender.must_call(50_000 + STALE_NS));
    assert!(!sender.must_call(90_000), "it was called");
    assert!(receiver.ring.sleeps(0), "it must not sleep: something is there");
    assert!(receiver.pop(&mut inbox).unwrap().is_some());
    receiver.show();
    assert!(!receiver.ring.sleeps(0));
    assert!(send(&mut sender));
    assert!(receiver.pop(&mut inbox).unwrap().is_some());
    receiver.show();
    assert!(!sender.must_call(99_000), "it has taken everything");
    // One that wants to be left alone for a while is called after it.
    receiver.see(100_000);
    receiver.ring.word(SLEEPS).store(0, Relaxed);
    assert!(!receiver.ring.sleeps(150_000));
    assert!(send(&mut sender));
    assert!(!sender.must_call(149_999) && sender.must_call(150_000));
    // That does not put off who wants to be called at once.
    assert!(receiver.ring.sleeps(0) && receiver.ring.sleeps(190_000));
    assert!(send(&mut sender) && sender.must_call(160_000));
    // Who has left is called at once.
    receiver.see(200_000);
    receiver.ring.leave();
    assert!(receiver.ring.sleeps(0));
    assert!(send(&mut sender) && sender.must_call(200_001));
}

#[test]
fn a_record_that_may_wait_is_taken_with_the_next_one_or_a_little_later() {
    let (mut sender, mut receiver) = ends();
    let mut inbox = [0; 200];
    let send = |sender: &mut Sender, len: usize, may_wait| {
        assert_eq!(sender.push(&vec![1; len], Fcs::Good, may_wait), Ok(true));
        sender.show();
    };
    let mut take = |receiver: &mut Receiver, now_ns| {
        receiver.see(now_ns);
        let taken = receiver.pop(&mut inbox).unwrap();
        receiver.show();
        taken.map(|(len, fcs)| {
            assert_eq!(fcs, Fcs::Good);
            len
        })
    };
    send(&mut sender, 60, true);
    assert_eq!(take(&mut receiver, 1_000), None);
    assert!(!sender.is_drained());
    send(&mut sender, 61, false);
    assert_eq!(take(&mut receiver, 1_001), Some(60));
    assert_eq!(take(&mut receiver, 1_001), Some(61));
    // It waits from when it is seen on, each anew.
    for start_ns in [9_000, 90_000] {
        send(&mut sender, 62, true);
        assert_eq!(take(&mut receiver, start_ns), None);
        assert_eq!(take(&mut receiver, start_ns + WAIT_NS - 1), None);
        assert_eq!(take(&mut receiver, start_ns + WAIT_NS), Some(62));
    }
    // What another process makes of the end meanwhile is not believed here either.
    send(&mut sender, 63, true);
    assert_eq!(take(&mut receiver, 200_000), None);
    sender.ring.word(TAIL).store(u64::MAX / 2, Release);
    assert_eq!(receiver.pop(&mut [0; 200]), Err(Broken));
    sender.ring.word(TAIL).store(receiver.head, Release);
    assert_eq!(receiver.pop(&mut [0; 200]), Err(Broken));
}

#[test]
fn a_sender_that_sleeps_is_called_when_there_is_room() {
    let (mut sender, mut receiver) = ends();
    assert!(!sender.ring.wants_room());
    while sender.push(&[3; 8000], Fcs::Good, false) == Ok(true) {}
    sender.show();
    assert!(!sender.ring.wants_room(), "it has to wait");
    let (mut called, mut inbox) = (0, vec![0; 8000]);
    while receiver.pop(&mut inbox).unwrap().is_some() {
        called += u32::from(receiver.show());
    }
    assert_eq!(called, 1);
    assert_eq!(sender.push(&[3; 8000], Fcs::Good, false), Ok(true));
}

#[test]
fn nothing_that_another_process_writes_is_believed() {
    let inside = |frames, bytes, longest| header(60, Fcs::Inside(Train { frames, bytes, longest }));
    for words in [
        [0, 0],
        header(MAX_FRAME_BYTES + 1, Fcs::Good),
        [u64::from(u32::MAX >> 2), 0],
        inside(0, 0, 60),
        inside(MOST_FRAMES + 1, 60, 60),
        inside(1, 61, 60),
        inside(2, 60, u32::MAX),
    ] {
        assert_eq!(read_header(words), Err(Broken), "{words:x?}");
    }
    // A record that goes on behind the end of what was shown, and positions out of range.
    let (mut sender, mut receiver) = ends();
    assert_eq!(sender.push(&[1; 60], Fcs::Good, false), Ok(true));
    sender.ring.word(TAIL).store(3, Release);
    assert_eq!(receiver.pop(&mut [0; 200]), Err(Broken));
    sender.ring.word(TAIL).store(u64::MAX, Release);
    assert_eq!(ends().1.pop(&mut []), Ok(None));
    let (sender, mut receiver) = ends();
    sender.ring.word(TAIL).store(ROOM + 1, Release);
    assert_eq!(receiver.pop(&mut [0; 200]), Err(Broken));
    let (mut sender, receiver) = ends();
    receiver.ring.word(HEAD).store(1, Release);
    while sender.tail < ROOM - 2000 {
        assert_eq!(sender.push(&[1; 8000], Fcs::Good, false), Ok(true));
    }
    receiver.ring.word(HEAD).store(u64::MAX / 2, Release);
    assert!((0..4).any(|_| sender.push(&[1; 8000], Fcs::Good, false) == Err(Broken)));
}

#[test]
#[cfg_attr(miri, ignore = "maps a file")]
fn a_ring_is_handed_over_by_its_file_and_nothing_else_is_taken_for_one() {
    let (ring, file) = Ring::new().unwrap();
    let mut receiver = Receiver::new(Ring::open(&file).unwrap(), true);
    let mut sender = Sender::new(ring);
    assert_eq!(sender.push(&frame(1), Fcs::Good, false), Ok(true));
    sender.show();
    let mut inbox = vec![0; MAX_FRAME_BYTES];
    let (len, _) = receiver.pop(&mut inbox).unwrap().unwrap();
    assert_eq!(inbox[..len], frame(1));
    assert!(ftruncate(&file, 0).is_err(), "it is sealed");
    let short = memfd_create("short", MemfdFlags::ALLOW_SEALING).unwrap();
    assert!(Ring::open(&short).is_err(), "no seal");
    fcntl_add_seals(&short, SealFlags::SHRINK).unwrap();
    assert!(Ring::open(&short).is_err(), "no room");
    assert!(Ring::open(std::fs::File::open("/dev/null").unwrap()).is_err());
    // Of a library whose rings are other ones.
    sender.ring.word(FORM).store(THIS_FORM + 1, Relaxed);
    assert!(Ring::open(&file).is_err());
}
