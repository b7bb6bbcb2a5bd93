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
the same bytes. Both come from PyPI, into a folder that is removed. Needs about 40 bytes of disk for
each message. Exit status: 0 passed, 1 something differs, 77 skipped.
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
