//! Requests that get past the checks of keys: registrations of pages and of pieces, blocks that
//! repeat, keys over keys, and what undoes them. Memory of user contexts, and large flow tables.

use crate::common::objects::{create_direct_tir, create_flow_group, create_flow_table, set_fte};
use crate::common::roce::data;
use crate::common::{input, words};
use crate::{Guest, KLM, MTT};

/// Bits of `mkey_mask`: what a registration sets, and what an invalidation does.
const REGISTRATION: u64 = 1 | 2 | 1 << 6 | 1 << 8 | 1 << 13 | 0xf << 17 | 1 << 23 | 1 << 29;
const FREE: u64 = 1 << 29;
/// Flags: the list stands in the request; the key must be free.
const INLINE: u32 = 1 << 31;
const CHECK_FREE: u32 = 1 << 29;
/// Rights of a bound key, and that requests may change it.
const BOUND: u32 = 0xf << 10 | 1 << 15;
/// In the place of a key: a block that repeats.
const REPEAT: u32 = 0x400;
/// Where in the BAR memory of the device is shown.
const MEMORY: u32 = 31 << 20;
/// Entries of its flow table.
const LARGE_TABLE: u32 = 10_000;
/// First address of bound keys.
pub(crate) const START: u64 = 0x7000_0000_0000;

impl Guest {
    /// Keys that requests bind and free, two of pages and four of pieces, even each other's.
    pub(crate) fn furnish_keys(&mut self) {
        for mode in [MTT, MTT, KLM, KLM, KLM, KLM] {
            let room = if mode == KLM { 1 << 12 } else { 64 };
            let set = [
                (0, 0x0200_0000),
                (0x10, 1 << 30 | 1 << 15 | mode << 8 | 1 << 10),
                (0x14, 0xffff_ff00),
                (0x1c, self.peer.pd),
                (0x44, room),
                (0x48, 12),
            ];
            let create = input(0x110, &set);
            let index = self.peer.host.ok(&create, 0x10).word(8);
            self.templates.push(create);
            self.bindable.push((mode, index));
        }
    }

    /// Memory of the device, and a key over it.
    pub(crate) fn furnish_memory(&mut self) {
        let alloc = words(&[0x0205_0000, 0, 0, 0, 0, MEMORY, 8192, 4096 + 64]);
        self.peer.host.ok(&alloc, 0x10);
        let free = words(&[0x0206_0000, 0, 0, 0, 0, MEMORY, 4096 + 64, 0]);
        let set = [
            (0, 0x0200_0000),
            (0x10, 1 << 26 | 1 << 8 | 0x1f << 10),
            (0x14, 0xffff_ff33),
            (0x1c, self.peer.pd),
            (0x24, MEMORY),
            (0x2c, 4096 + 64),
        ];
        let create = input(0x110, &set);
        self.memory_key = self.peer.host.ok(&create, 0x10).word(8) << 8 | 0x33;
        let many = words(&[0x0205_0000, 0, 0, 6, 0, MEMORY + 0x1_0000, 0x1_0000, 0x1_0000]);
        self.templates.extend([alloc, free, create, many]);
    }

    /// A trapped access to the part of the BAR that shows memory of the device.
    pub(crate) fn touch_memory(&mut self) {
        let offset = u64::from(MEMORY) + (self.below(1 << 15) & !7);
        let side = self.peer.host.nic.side().clone();
        if self.chance(2) {
            side.bar_write(offset, &self.rng.next_u64().to_ne_bytes()).expect("aligned");
        } else {
            side.bar_read(offset, &mut [0; 64]);
        }
        self.step();
    }

    /// A user context, its memory, and keys over that.
    pub(crate) fn furnish_users(&mut self) {
        let uid = self.peer.host.ok(&input(0x40, &[(0, 0x0a04_0000)]), 0x10).word(8);
        let page = self.arena.iova();
        for owner in [0, uid] {
            // Small pages, and one of 2 GiB that keys cut into small ones.
            for (log_page_size, at, len) in [(0, page, 4096), (19, 0, 1 << 20)] {
                let fields = [(0, 0x0a08_0000 | owner), (0x20, log_page_size), (0x2c, 1)];
                let mut umem = input(0x30, &fields);
                umem.extend((at | 3).to_be_bytes());
                let umem_id = self.peer.host.ok(&umem, 0x10).word(8);
                let pd = self.peer.host.ok(&words(&[0x0800_0000 | owner, 0, 0, 0]), 0x10).word(8);
                let key = input(
                    0x110,
                    &[
                        (0, 0x0200_0000 | owner),
                        (0x0c, 1 << 30),
                        (0x10, 3 << 10 | MTT << 8),
                        (0x14, 0xffff_ff00),
                        (0x1c, pd),
                        (0x2c, len),
                        (0x48, 12),
                        (0x64, umem_id),
                    ],
                );
                self.peer.host.ok(&key, 0x10);
                self.templates.extend([umem, key]);
                self.numbers.splice(14..14, [umem_id, pd]);
            }
        }
        self.numbers.insert(14, uid);
    }

    /// A flow table of many entries, each a change of which the next frame has to follow.
    pub(crate) fn furnish_table(&mut self) {
        let (td, rqn) = (self.numbers[13], self.numbers[2]);
        let host = &mut self.peer.host;
        let tirn = host.ok(&create_direct_tir(td, rqn), 0x10).word(8);
        let table = host.ok(&create_flow_table(2, 14), 0x10).word(8);
        let group = host.ok(&create_flow_group(table, 0, LARGE_TABLE), 0x10).word(8);
        for index in 0..LARGE_TABLE {
            let mut entry = set_fte(table, group, index, tirn);
            entry[0x8c..0x90].copy_from_slice(&((index * 40_503) << 16).to_be_bytes());
            host.ok(&entry, 0x10);
        }
        self.templates.push(set_fte(table, group, 1, tirn));
        self.numbers.splice(14..14, [table, group, tirn]);
    }

    /// A key that requests bind, as it is now.
    pub(crate) fn bindable_key(&mut self) -> u32 {
        let keys = self.bindable.clone();
        let (_, index) = self.pick(&keys);
        self.as_it_is(index)
    }

    /// A key with its variant of this moment.
    fn as_it_is(&self, index: u32) -> u32 {
        let key = self.peer.host.nic.state().objects.mkeys.get(index);
        index << 8 | key.map_or(0, |key| u32::from(key.variant))
    }

    /// What stands behind the control segment of a request for a key, and the key.
    pub(crate) fn key_request(&mut self) -> (u32, Vec<u8>) {
        let bindable = self.bindable.clone();
        let (mode, index) = self.pick(&bindable);
        let key = self.as_it_is(index);
        let is_free = {
            let mkeys = &self.peer.host.nic.state().objects.mkeys;
            mkeys.get(index).is_none_or(|key| key.is_free)
        };
        if !is_free && !self.chance(4) {
            let mut bytes = words(&[INLINE, 0]);
            bytes.extend(FREE.to_be_bytes());
            bytes.resize(48, 0);
            bytes.extend(words(&[1 << 30]));
            bytes.resize(48 + 64, 0);
            return (key, bytes);
        }
        let list = if mode == MTT { self.page_list() } else { self.piece_list() };
        let octwords = list.len() as u32 / 16;
        let check = if self.chance(8) { 0 } else { CHECK_FREE };
        let mut bytes = words(&[INLINE | check, octwords << 16]);
        bytes.extend(REGISTRATION.to_be_bytes());
        bytes.resize(48, 0);
        let variant = self.below(256) as u32;
        bytes.extend(words(&[BOUND, 0xffff_ff00 | variant, 0, 1 << 24]));
        bytes.extend(START.to_be_bytes());
        let len = self.pick(&[1, 4096, 8192, 1 << 20, 1 << 31]);
        bytes.extend(u64::to_be_bytes(len));
        bytes.resize(48 + 0x34, 0);
        bytes.extend(words(&[octwords, 12, 0]));
        bytes.extend(list);
        (key, bytes)
    }

    /// Pages, mostly of the arena.
    fn page_list(&mut self) -> Vec<u8> {
        let mut list = Vec::new();
        for _ in 0..8 {
            let base = if self.chance(8) { self.address() } else { self.peer.memory.iova() };
            let page = base & !4095;
            list.extend((page | self.pick(&[3, 3, 3, 2, 1])).to_be_bytes());
        }
        list
    }

    /// Pieces of other keys, short and long, or a block that repeats a few of them.
    fn piece_list(&mut self) -> Vec<u8> {
        let is_block = self.chance(2);
        let mut list = Vec::new();
        if is_block {
            let often = self.pick(&[1, 64, 4096, 4096, 1 << 16, 0, u32::MAX]);
            let entries = self.pick(&[1, 1, 1, 2, 3, 0, 4]);
            list.extend(words(&[0, REPEAT, often, entries]));
        }
        let flat = self.peer.key;
        while list.len() < 64 {
            let key = if self.chance(3) { self.bindable_key() } else { flat };
            let at = if key == flat { self.peer.memory.iova() } else { START };
            let len = self.pick(&[1_u32, 1, 7, 64, 4096]);
            // In a block: stride and length, 16 bits each.
            let first = if is_block { self.pick(&[0, 1, 64]) << 16 | len } else { len };
            list.extend(words(&[first, key]));
            list.extend((at + self.below(64)).to_be_bytes());
        }
        list
    }

    /// A segment through a key that requests bind.
    pub(crate) fn bound_segment(&mut self) -> Vec<u8> {
        if self.chance(4) {
            let (len, at) = (self.pick(&[1, 64, 4096, 4160, 4161]), self.below(128));
            return data(len, self.memory_key, at);
        }
        let key = self.bindable_key();
        let len = self.pick(&[1, 60, 64, 256, 1000]);
        data(len, key, START + self.below(8))
    }
}
