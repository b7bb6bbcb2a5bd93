//! Buffers cut into packets, over heap memory; all of it runs under Miri.

use std::ops::Range;

use crate::{Mbuf, Pool, PoolCache, PoolConfig, RegionConfig, Sliced};

/// Bytes of a buffer that is cut up.
const ROOM: u32 = 1024;

fn pool(name: &str, count: usize, data_room_bytes: usize) -> Pool {
    Pool::new(&PoolConfig {
        name: name.into(),
        count,
        data_room_bytes,
        headroom_bytes: 0,
        cache_size: 8,
        region: RegionConfig::heap(1),
    })
    .unwrap()
}

struct Fixture {
    buffers: Pool,
    headers: Pool,
    cache: PoolCache,
}

impl Fixture {
    fn new() -> Self {
        let headers = pool("headers", 16, 256);
        let cache = headers.cache();
        Self { buffers: pool("buffers", 2, ROOM as usize), headers, cache }
    }

    /// A buffer whose byte `n` is `n / 4`.
    fn sliced(&self, slices: u16) -> Sliced {
        let mut buffer = self.buffers.get().unwrap();
        let bytes: Vec<u8> = (0..ROOM).map(|at| (at / 4) as u8).collect();
        assert!(buffer.extend_from_slice(&bytes));
        Sliced::new(buffer, slices).unwrap()
    }

    fn packet(&mut self) -> Mbuf {
        self.cache.get().unwrap()
    }

    fn assert_home(self) {
        drop(self.cache);
        assert_eq!((self.headers.stats().in_use, self.buffers.stats().in_use), (0, 0));
        // Each header has its own room back.
        let all: Vec<_> = (0..16).map(|_| self.headers.get().unwrap()).collect();
        assert!(all.iter().all(|mbuf| mbuf.room_bytes() == 256));
    }
}

#[test]
fn packets_have_parts_of_their_own_and_the_last_takes_the_buffer_home() {
    for keep in 0..3 {
        let mut f = Fixture::new();
        let mut sliced = f.sliced(3);
        let mut packets: Vec<_> = (0..3).map(|_| f.packet()).collect();
        for (at, packet) in packets.iter_mut().enumerate() {
            let at = at as u32;
            assert!(sliced.cut(packet, at * 128, 128, 100 + at));
            assert_eq!(
                packet.data(),
                (0..100 + at).map(|n| ((n + at * 128) / 4) as u8).collect::<Vec<_>>()
            );
            let shape = (packet.headroom(), packet.tailroom(), packet.ref_count());
            assert_eq!(shape, (0, 28 - at as usize, 1));
            packet.data_mut().expect("nobody else has this part").fill(7);
        }
        assert!(packets[1].append(30).is_none(), "27 bytes are its own");
        let kept = packets.swap_remove(keep);
        drop(packets);
        assert!(sliced.into_buffer().is_none(), "a packet has a part of it");
        assert_eq!(f.buffers.stats().in_use, 1);
        let clone = kept.clone_ref(&mut f.cache).unwrap();
        drop(kept);
        assert_eq!(clone.data()[99], 7);
        std::thread::spawn(move || drop(clone)).join().unwrap();
        f.assert_home();
    }
}

#[test]
fn copies_leave_the_buffer_to_be_used_again() {
    let mut f = Fixture::new();
    let mut sliced = f.sliced(0);
    for (at, room, len) in
        [(0, 64, 60), (64, 128, 65), (192, 64, 0), (256, 256, 224), (1000, 24, 24)]
    {
        let mut packet = f.packet();
        assert!(packet.reset_rx(32, len) && sliced.copy(&mut packet, at, room), "{at}");
        assert_eq!(packet.data(), (at..at + len).map(|n| (n / 4) as u8).collect::<Vec<_>>());
        assert_eq!((packet.headroom(), packet.pkt_len()), (32, len as usize));
    }
    let buffer = sliced.into_buffer().expect("nobody has a part of it");
    assert!(buffer.is_simple_of(&f.buffers));
    assert!(Sliced::new(buffer, Sliced::MAX_SLICES).is_ok());
    f.assert_home();
}

#[test]
fn what_is_given_away_or_not_there_is_refused() {
    let mut f = Fixture::new();
    let mut sliced = f.sliced(1);
    let (mut one, mut two) = (f.packet(), f.packet());
    for (at, room, len) in
        [(0, 64, 65), (1000, 25, 1), (1025, 0, 0), (u32::MAX, 64, 1), (8, u32::MAX, 1)]
    {
        assert!(!sliced.cut(&mut one, at, room, len), "{at} {room} {len}");
        assert!(one.reset_rx(0, len) && !sliced.copy(&mut one, at, room), "{at} {room} {len}");
    }
    assert!(sliced.cut(&mut one, 64, 64, 64));
    for (at, room) in [(0, 64), (64, 64), (127, 64), (0, 1024)] {
        assert!(two.reset_rx(0, 1) && !sliced.copy(&mut two, at, room), "{at}: given away");
    }
    assert!(!sliced.cut(&mut one, 128, 64, 64), "has a part already");
    assert!(!sliced.cut(&mut two, 128, 64, 64), "the only slice is cut");
    assert!(two.reset_rx(0, 64) && sliced.copy(&mut two, 128, 64));
    // Neither a slice nor a clone nor a chain can be sliced.
    let one = Sliced::new(one, 1).expect_err("a part of another buffer");
    let clone = two.clone_ref(&mut f.cache).unwrap();
    let two = Sliced::new(two, 1).expect_err("shared");
    drop((clone, one, sliced));
    assert!(Sliced::new(two, Sliced::MAX_SLICES + 1).is_err());
    f.assert_home();
}

#[test]
fn a_copier_goes_through_its_bytes_once() {
    let mut f = Fixture::new();
    let mut sliced = f.sliced(1);
    let mut cut = f.packet();
    assert!(sliced.cut(&mut cut, 0, 64, 64));
    for bytes in [(0, 128), (64, 1025), (128, 64)].map(|(start, end)| Range { start, end }) {
        assert!(sliced.copier(&f.headers, bytes.clone()).is_none(), "{bytes:?}");
    }
    let mut copier = sliced.copier(&f.headers, 64..512).expect("not given away");
    assert!(copier.next_part(0).is_none() && copier.next_part(449).is_none());
    assert_eq!(copier.at(), 64);
    for (headroom, room, len) in [(32, 64, 60), (200, 64, 50), (32, 128, 128), (0, 192, 130)] {
        let (mut packet, at) = (f.cache.get().unwrap(), copier.at());
        let part = copier.next_part(room).expect("so many are left");
        assert!(packet.reset_rx(headroom, len) && copier.copy(part, &mut packet), "{at}");
        assert_eq!(packet.data(), (at..at + len).map(|n| (n / 4) as u8).collect::<Vec<_>>());
        assert_eq!(copier.at(), at + room);
    }
    assert!(copier.next_part(1).is_none(), "none is left");
    drop(copier);
    assert!(sliced.copier(&f.headers, 511..600).is_none(), "given away");
    let mut copier = sliced.copier(&f.headers, 512..1024).unwrap();
    let part = copier.next_part(64).unwrap();
    // What is shared, attached, of another pool, or too long is left alone; what was shared is not.
    let mut packet = f.cache.get().unwrap();
    assert!(packet.reset_rx(0, 65) && !copier.copy(part, &mut packet));
    assert!(packet.reset_rx(0, 64));
    let clone = packet.clone_ref(&mut f.cache).unwrap();
    assert!(!copier.copy(part, &mut packet) && !copier.copy(part, &mut cut));
    let mut other = f.buffers.get().unwrap();
    assert!(other.reset_rx(0, 1) && !copier.copy(part, &mut other));
    drop((clone, other));
    assert!(copier.copy(part, &mut packet) && packet.data()[0] == 128);
    drop((cut, packet, copier));
    drop(sliced);
    f.assert_home();
}
