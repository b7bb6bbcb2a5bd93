//! Delivery of commands: entries, mailbox chains, slots. Reference 2.1, 2.2.

use crate::common::{CMDQ_HI, CMDQ_LO, HEALTH_SYND, Host, be32, input, words};
use ferrocx_model::NicConfig;
use ferrocx_model::caps::CLOCK_KHZ;

const NOP: [u32; 4] = [0x080d_0000, 0, 0, 0];

fn host() -> Host {
    let mut host = Host::new(NicConfig::default());
    host.set_queue();
    host
}

/// Posts a NOP-like command, lets `spoil` change it, and returns its delivery status.
#[track_caller]
fn spoiled(input: &[u8], output_len: usize, spoil: impl FnOnce(&mut Host)) -> u8 {
    let mut host = host();
    host.post(0, input, output_len);
    spoil(&mut host);
    host.ring_bell(1);
    host.step();
    let done = host.take(0, 16).expect("the entry comes back");
    assert_eq!(host.nic.log().total(), 1, "one refusal: {:?}", host.nic.log().last());
    assert_eq!(done.output[..16], [0xa5; 16], "an undelivered command has no output");
    done.delivery
}

#[test]
fn registers_read_as_the_manual_says() {
    let host = Host::new(NicConfig::default());
    assert_eq!(host.bar.read_be32(0x0), 35 << 16 | 16, "firmware 16.35");
    assert_eq!(host.bar.read_be32(0x4), 5 << 16 | 2000, "interface revision 5");
    assert_eq!(host.bar.read_be32(0x14), 0x56, "32 entries of 64 bytes");
    assert_eq!(host.bar.read_be32(0x1fc), 0, "not initializing");
    assert_eq!(host.bar.read_be32(0xff8), 1 << 29 | 60, "60 seconds");
    assert_eq!(host.bar.read_be32(0xffc), 1 << 29 | 2, "2 seconds");
    assert_eq!(host.bar.read_be32(0x230), 16 << 16 | 35);
    assert_eq!(host.bar.read_be32(HEALTH_SYND), 0, "healthy");
}

#[test]
fn the_queue_address_is_read_back_with_size_and_state() {
    let mut host = host();
    let at = host.queue.iova();
    assert_eq!(host.bar.read_be32(CMDQ_HI), (at >> 32) as u32);
    assert_eq!(host.bar.read_be32(CMDQ_LO), at as u32 | 0x56);
    host.bar.write_be32(CMDQ_LO, at as u32 | 1 << 8);
    host.step();
    assert_eq!(host.bar.read_be32(CMDQ_LO) >> 8 & 7, 1, "disabled");
    host.post(0, &words(&NOP), 16);
    host.ring_bell(1);
    host.step();
    assert_eq!(host.take(0, 16), None, "a disabled interface runs no command");
    host.set_queue();
    host.ok(&words(&NOP), 16);
}

#[test]
fn health_counter_and_clock_run_with_device_time() {
    let mut host = host();
    // 156.25 MHz, as the capability page says and completions count: 5 ticks in 32 ns.
    assert_eq!(CLOCK_KHZ, 156_250);
    let now_ns = 0x1_2345_6784 / 5 * 32;
    host.nic.step(now_ns);
    assert_eq!((host.bar.read_be32(0x1000), host.bar.read_be32(0x1004)), (1, 0x2345_6784));
    let first = host.bar.read_be32(0x1010);
    host.nic.step(now_ns + 1_000_000_000);
    assert_ne!(host.bar.read_be32(0x1010), first);
    assert_ne!(first, 0);
}

#[test]
fn a_command_without_output_room_for_more_than_the_header_works() {
    let mut host = host();
    let done = host.command(&words(&NOP), 8);
    assert_eq!((done.delivery, done.status()), (0, 0));
    let done = host.command(&words(&NOP[..2]), 0x10);
    assert_eq!((done.delivery, done.status()), (0, 0), "eight bytes of input are enough");
}

#[test]
fn entries_keep_their_bytes_and_lose_ownership_last() {
    let mut host = host();
    host.post(3, &words(&NOP), 0x10);
    host.poke_entry(3, 61, &[0x77]);
    host.ring_bell(1 << 3);
    host.step();
    let mut entry = [0; 64];
    host.queue.copy_out(3 * 64, &mut entry);
    assert_eq!(entry[..4], [7, 0, 0, 0]);
    assert_eq!(be32(&entry, 56), 0x10);
    assert_eq!(entry[61], 0x77, "the signature is not checked");
    assert_eq!(entry[63], 0);
}

#[test]
fn every_slot_works_and_one_bell_starts_many() {
    let mut host = host();
    for slot in 0..32 {
        host.post(slot, &words(&NOP), 0x10);
    }
    host.ring_bell(0xffff_ffff);
    host.step();
    assert!((0..32).all(|slot| host.take(slot, 0x10).is_some_and(|done| done.status() == 0)));
}

#[test]
fn wrong_command_type_is_0x10() {
    assert_eq!(spoiled(&words(&NOP), 16, |host| host.poke_entry(0, 0, &[6])), 0x10);
}

#[test]
fn reserved_entry_bits_are_0x09() {
    assert_eq!(spoiled(&words(&NOP), 16, |host| host.poke_entry(0, 3, &[1])), 0x09);
}

#[test]
fn lengths_below_eight_or_beyond_reason_are_0x07_and_0x08() {
    let input_len =
        |len: u32| spoiled(&words(&NOP), 16, |host| host.poke_entry(0, 4, &len.to_be_bytes()));
    assert_eq!((input_len(7), input_len(0), input_len(u32::MAX)), (7, 7, 7));
    let output_len =
        |len: u32| spoiled(&words(&NOP), 16, |host| host.poke_entry(0, 56, &len.to_be_bytes()));
    assert_eq!((output_len(7), output_len(u32::MAX)), (8, 8));
}

#[test]
fn misaligned_null_and_unmapped_input_pointers_are_0x05() {
    let long = words(&[0x080d_0000, 0, 0, 0, 0]);
    let pointer =
        |at: u64| spoiled(&long, 16, move |host| host.poke_entry(0, 8, &at.to_be_bytes()));
    assert_eq!((pointer(0), pointer(0x200), pointer(0x4000_0000_0000)), (5, 5, 5));
}

#[test]
fn misaligned_null_and_unmapped_output_pointers_are_0x04() {
    let pointer =
        |at: u64| spoiled(&words(&NOP), 17, move |host| host.poke_entry(0, 48, &at.to_be_bytes()));
    assert_eq!((pointer(0), pointer(0x201), pointer(0x4000_0000_0000)), (4, 4, 4));
}

#[test]
fn a_foreign_token_in_a_block_is_0x02() {
    let long = words(&[0x080d_0000, 0, 0, 0, 0]);
    assert_eq!(spoiled(&long, 16, |host| host.poke_input(0, 0x23d, &[0xee])), 2);
    assert_eq!(spoiled(&words(&NOP), 17, |host| host.poke_output(0, 0x23d, &[0xee])), 2);
}

#[test]
fn a_wrong_block_number_is_0x03() {
    let long = input(16 + 513, &[(0, 0x080d_0000)]);
    assert_eq!(spoiled(&long, 16, |host| host.poke_input(1, 0x238, &[0, 0, 0, 2])), 3);
    assert_eq!(spoiled(&long, 16, |host| host.poke_input(0, 0x238, &[0, 0, 0, 1])), 3);
}

#[test]
fn reserved_block_bytes_are_0x09() {
    let long = words(&[0x080d_0000, 0, 0, 0, 0]);
    assert_eq!(spoiled(&long, 16, |host| host.poke_input(0, 0x200, &[1])), 9);
}

#[test]
fn chains_end_by_length_not_by_null() {
    let mut host = host();
    // The host leaves a next pointer behind the last block of every chain: 1, 2 and 3 blocks.
    for len in [17, 16 + 512, 16 + 513, 16 + 1024, 16 + 1025] {
        host.ok(&input(len, &[(0, 0x080d_0000)]), 0x10);
    }
    let long = host.ok(&words(&[0x0104_0000, 0, 0, 0]), 0x10);
    assert_eq!(long.word(0), 0);
    // A capability page is nine blocks of output.
    let page = host.ok(&words(&[0x0100_0000, 1, 0, 0]), 0x1010);
    assert_eq!(page.word(0x10 + 0x34) & 0xff, 1, "num_ports");
}

#[test]
fn short_output_is_truncated() {
    let mut host = host();
    host.ok(&words(&[0x0104_0000, 0, 0, 0]), 0xc);
    let page = host.ok(&words(&[0x0100_0000, 1, 0, 0]), 0x10 + 0x38);
    assert_eq!(page.word(0x10 + 0x34) & 0xff, 1);
}

#[test]
fn a_bell_for_an_entry_that_software_owns_does_nothing() {
    let mut host = host();
    host.ring_bell(1 << 5);
    host.step();
    assert_eq!(host.nic.log().last().map(|refusal| refusal.field), Some("ownership"));
}

#[test]
fn a_bell_without_a_queue_does_nothing() {
    let mut host = Host::new(NicConfig::default());
    host.ring_bell(1);
    host.step();
    assert_eq!(host.nic.log().last().map(|r| r.field), Some("command_doorbell_vector"));
}

#[test]
fn a_queue_that_cannot_be_read_makes_the_device_ill() {
    let mut host = Host::new(NicConfig::default());
    host.bar.write_be32(CMDQ_HI, 0x7000);
    host.bar.write_be32(CMDQ_LO, 0);
    host.ring_bell(1);
    host.step();
    assert_eq!(host.bar.read_be32(HEALTH_SYND) >> 16, 0x0a, "ICM fetch error");
}

#[test]
fn unknown_opcodes_and_op_mods_are_bad_op() {
    let mut host = host();
    assert_eq!(host.refused(&words(&[0x0fff_0000, 0, 0, 0]), 2), "opcode");
    assert_eq!(host.refused(&words(&[0x080d_0000, 1, 0, 0]), 2), "op_mod");
}

#[test]
fn users_and_reserved_bits_are_bad_param() {
    let mut host = host();
    assert_eq!(host.refused(&words(&[0x080d_0001, 0, 0, 0]), 3), "uid");
    assert_eq!(
        host.refused(&words(&[0x080d_0000, 0x1_0000, 0, 0]), 3),
        "reserved bits (offset, bits)"
    );
    assert_eq!(host.refused(&words(&[0x080d_0000, 0, 1, 0]), 3), "reserved bits (offset, bits)");
    assert_eq!(host.refused(&words(&[0x080d_0000, 0, 0, 0, 1]), 3), "input tail");
}

#[test]
fn writes_to_other_registers_are_refused() {
    let mut host = host();
    for (offset, field) in
        [(0x0, "register offset"), (0x1000, "register offset"), (0x8800, "uar page")]
    {
        host.bar.write_be32(offset, 1);
        host.step();
        assert_eq!(host.nic.log().last().map(|refusal| refusal.field), Some(field));
    }
}
