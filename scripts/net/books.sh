#!/usr/bin/env bash
# Our order books against itch-book's, and our ITCH messages against itchfeed's.
set -euo pipefail

usage() {
    cat <<'USAGE'
books.sh: a synthetic day, read by strangers.

  scripts/net/books.sh [--messages N]

tick2trade writes a day of N messages (default 10000000) of every kind, and what our books say after
each. itch-book builds its own books from the same file: every change of a best price, its shares
and its orders must be the same. itchfeed reads the first 200000 messages and writes each again:
the same bytes. Then itchfeed writes a day of its own, of 100000 messages of every kind: itch5 (a
crate, by a test) finds in each the numbers that we find, and our engine trades on it three times
with the same orders. Both come from PyPI, into a folder that is removed. Needs about 40 bytes of
disk for each message. Exit status: 0 passed, 1 something differs, 77 skipped.
USAGE
}

# shellcheck source=scripts/net/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

messages=10000000
while [ $# -gt 0 ]; do
    case "$1" in
    --messages) messages=${2:?--messages needs a number}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
    esac
    shift
done

have python3 || skip "python3 is not installed"
start_work
need_rust
cd "$net_root"
tick2trade=''
program tick2trade release ferrocx-tick2trade bin tick2trade
python3 -m venv "$work/venv" 2>/dev/null || skip "python3 makes no venv (python3-venv)"
"$work/venv/bin/pip" install -q itch-book==0.2.1 itchfeed==1.6.4 2>/dev/null ||
    skip "itch-book 0.2.1 and itchfeed 1.6.4 cannot be had from PyPI"

mkfifo "$work/bests"
"$tick2trade" day --messages "$messages" --file "$work/day.itch" --bests "$work/bests" &
writer=$!
cat "$work/bests" >"$work/bests.bin"
wait "$writer" || die "the day was not written"

echo "== result"
"$work/venv/bin/python" - "$work/day.itch" "$work/bests.bin" <<'PYTHON'
import datetime
import sys

import itch_book
import numpy as np
from itch.parser import MessageParser

day, bests = sys.argv[1:]
ours = np.fromfile(bests, dtype="<i8").reshape(-1, 8)
columns = ("seq", "locate", "bid_px", "bid_sz", "bid_ct", "ask_px", "ask_sz", "ask_ct")
feed = itch_book.Feed(day, date=datetime.date(2026, 11, 20), price_type="fixed")
at, last = 0, {}
for batch in feed.batches(tables=("bbo",), rows=1_000_000):
    theirs = np.stack([np.asarray(batch.bbo[name], dtype="i8") for name in columns], axis=1)
    mine = ours[at : at + len(theirs)]
    if mine.shape != theirs.shape or not (mine == theirs).all():
        if mine.shape == theirs.shape:
            row = int(np.argmax((mine != theirs).any(axis=1)))
            sys.exit(f"row {at + row}: ours {mine[row]}, itch-book's {theirs[row]}")
        sys.exit(f"itch-book has more changes than our {len(ours)}")
    at += len(theirs)
if at != len(ours):
    sys.exit(f"{len(ours)} changes of ours, {at} of itch-book's")
print(f"itch-book: {at} changes of the best prices, each as ours; {feed.stats}")

read = 0
with open(day, "rb") as file:
    parser = MessageParser()
    while read < 200_000 and (length := file.read(2)):
        bytes_ = file.read(int.from_bytes(length, "big"))
        again = parser.get_message_type(bytes_).to_bytes()
        if again != bytes_:
            sys.exit(f"itchfeed writes {again!r} for our {bytes_!r}")
        read += 1
print(f"itchfeed: {read} messages read and written again, each the same bytes")
PYTHON

"$work/venv/bin/python" - "$work/stranger.itch" <<'PYTHON'
import random
import sys

from itch.messages import create_message, messages

chance = random.Random(1)
common = {"stock_locate": 1, "tracking_number": 0, "stock": b"STRANGER"}
standing, reference, now, worth = {}, 0, 34_200_000_000_000, 1_500_000
books = b"AFECXDU"


def encoded(kind, **fields):
    return create_message(kind, timestamp=now, **common, **fields).to_bytes()


def any_bytes(kind):
    """A message whose fields mean nothing: the security's number is not one that has a book."""
    body = bytes(chance.randrange(48, 58) for _ in range(messages[kind].message_size - 1))
    return messages[kind](kind + body).to_bytes()


def flow():
    """What changes a book: mostly orders around a price that wanders."""
    global reference, worth
    worth += chance.choice((-100, 0, 0, 0, 100))
    kinds = b"A" if len(standing) < 20 else b"AAAAFECXDU" if len(standing) < 500 else b"ECXDU"
    kind = chance.choice(kinds)
    if kind in b"AF":
        reference += 1
        side = chance.choice((b"B", b"S"))
        away = 100 * chance.randrange(1, 12)
        price = worth - away if side == b"B" else worth + away
        shares = standing[reference] = chance.randrange(100, 1000)
        owner = {"attribution": b"FXCX"} if kind == b"F"[0] else {}
        return encoded(
            bytes([kind]), order_reference_number=reference, buy_sell_indicator=side,
            shares=shares, price=price, **owner,
        )
    old = chance.choice(list(standing))
    if kind == b"D"[0]:
        del standing[old]
        return encoded(b"D", order_reference_number=old)
    if kind == b"U"[0]:
        reference += 1
        del standing[old]
        standing[reference] = shares = chance.randrange(100, 1000)
        return encoded(
            b"U", order_reference_number=old, new_order_reference_number=reference, shares=shares,
            price=worth - 100 * chance.randrange(1, 12),
        )
    taken = chance.randrange(1, standing[old] + 1)
    standing[old] -= taken
    if standing[old] == 0:
        del standing[old]
    if kind == b"X"[0]:
        return encoded(b"X", order_reference_number=old, cancelled_shares=taken)
    fields = {"order_reference_number": old, "executed_shares": taken, "match_number": reference}
    if kind == b"C"[0]:
        fields |= {"printable": b"Y", "execution_price": worth}
    return encoded(bytes([kind]), **fields)


others = [kind for kind in messages if kind not in [bytes([book]) for book in books]]
with open(sys.argv[1], "wb") as file:
    listed = bytearray(any_bytes(b"R"))
    listed[1:3], listed[11:19] = (1).to_bytes(2, "big"), b"STRANGER"
    # Who is in no trading action before the opening counts as halted.
    trading = encoded(b"H", trading_state=b"T", reserved=b" ", reason=b"    ")
    for message in (messages[b"R"](bytes(listed)).to_bytes(), trading):
        file.write(len(message).to_bytes(2, "big") + message)
    for count in range(100_000):
        now += 2_000
        message = any_bytes(others[count // 50 % len(others)]) if count % 50 == 0 else flow()
        file.write(len(message).to_bytes(2, "big") + message)
PYTHON
FERROCX_ITCH_DAY=$work/stranger.itch cargo test -q --locked -p ferrocx-tick2trade --test strangers \
    itch5_reads_a_strangers_day -- --nocapture | grep '^itch5:'
for strategy in taker quoter; do
    "$tick2trade" replay --runs 3 --symbol STRANGER --strategy "$strategy" --json "$work/played" \
        "$work/stranger.itch" | tail -n 1
    grep -q '"refused": 0,' "$work/played" || die "we refuse what itchfeed wrote"
    ! grep -q '"orders": 0,' "$work/played" || die "no order"
done
