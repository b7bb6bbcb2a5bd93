//! Any operations on two pools and a list of packets, checked against plain vectors.
#![no_main]

#[path = "../../../mempool/src/oracle.rs"]
mod oracle;

use arbitrary::{Result, Unstructured};
use ferrocx_mempool::{
    Arrivals, ExternalBuffer, Mbuf, MbufFifo, OlFlags, Packet, Piece, Pool, PoolCache, PoolConfig,
    PoolKeys, RegionConfig,
};
use libfuzzer_sys::fuzz_target;
use oracle::{COUNT, Op, State};

fuzz_target!(|data: &[u8]| {
    let mut u = Unstructured::new(data);
    let mut state = State::new();
    while let Ok(op) = op(&mut u) {
        state.run(&op);
        state.check();
        if u.is_empty() {
            break;
        }
    }
    state.end();
});

fn op(u: &mut Unstructured<'_>) -> Result<Op> {
    use Op::*;
    let kind = u.int_in_range(0..=25_u8)?;
    // Packets and pools; indices are taken modulo what is there.
    let (a, b) = (usize::from(u.arbitrary::<u8>()?), usize::from(u.arbitrary::<u8>()?));
    let (p, byte) = (a % 2, u.arbitrary::<u8>()?);
    Ok(match kind {
        0 | 1 => Get(p, b % 2 == 0),
        2 => GetBulk(p, b % (COUNT + 2)),
        3 => Put(a, b % 2),
        4 => PutBulk(p, b % 6),
        5 => Drop(a),
        6 => Flush(p),
        7 => NewCache(p, b % 9),
        8 => Append(a, byte, b),
        9 => Prepend(a, byte, b % 40),
        10 => Trim(a, b),
        11 => Adj(a, b),
        12 => Chain(a, b),
        13 => TakeNext(a),
        14 | 15 => Clone(a, b % 2),
        16 => Overwrite(a, byte),
        17 if byte == 0 => DropOnThread(a),
        17 => RawRoundTrip(a),
        18 => Attach(a, if byte == 255 { 65535 + b % 2 } else { b }),
        19 => FifoPush(a),
        20 => FifoPushWhile(a % 6, b % 6),
        21 => FifoFill(a % 6),
        22 => FifoPopFilled(a % 6, b % 6),
        23 => FifoLineUp(a % 6),
        24 => FifoPopLinedUp,
        _ if byte % 2 == 0 => FifoPop,
        _ => FifoFree(b % 6, p),
    })
}
