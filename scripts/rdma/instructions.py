#!/usr/bin/env python3
"""Counts what ibv_post_send and ibv_poll_cq cost a stock program on the drop-in library.

    scripts/rdma/instructions.py [--cxctl target/release/cxctl] [--requests 5120]

Counted are instructions, by callgrind: they do not depend on the machine. Steps of the model, which
these calls make where a card would work by itself, are left out. The program is perftest, requests
of 8 bytes out of a buffer: it uses inline requests of known adapters only. Peers are libmlx5's, of
rdma-core 56.1 for the same work, counted as scripts/peers.sh does and with locks as it comes, which
are about 10 for each call. Polls are divided by the completions
that they brought; those that found none are in the figure, and libmlx5's is of as many calls, as if
each had found something, which is the least. Without valgrind or perftest it is skipped;
the exit status is 1 where we take more than libmlx5.
"""

import argparse
import collections
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# libmlx5's poll: of a call, and of each completion that it brings. One by one it takes 189, and 32
# of them 107.7 each; a call that finds nothing takes 93.
POLL = (84, 105)
# What to count, how perftest is told to do it, the function, what of it is the model's, requests
# for each completion, and what libmlx5 takes.
ROWS = [
    ("post a WRITE of one buffer", "ib_write_bw -t 32", "post_send", "step", 1, 357),
    ("the same, one at a time", "ib_write_lat", "post_send", "step", 1, 357),
    ("32 of them in a list, for each", "ib_write_bw -t 64 -l 32", "post_send", "step", 1, 190),
    ("poll, 16 at once, for each completion", "ib_send_bw -t 32 -Q 1", "poll_cq", "turn", 1, POLL),
    ("the same, one completion for 32 sends", "ib_send_bw -t 64 -Q 32", "poll_cq", "turn", 32, POLL),
]
PORT = 18515
SERVER, CLIENT = "127.88.0.201", "127.88.0.202"


def is_listening():
    """Whether somebody listens at the port that perftest uses."""
    states = [Path(f"/proc/net/{kind}").read_text(encoding="ascii") for kind in ("tcp", "tcp6")]
    return any(re.search(rf":{PORT:04X} \S+ 0A ", state) for state in states)


def pair(cxctl, program, requests, out):
    """Runs server and client; the client is counted."""
    name, *options = program.split()
    perftest = [name, "-F", "-s", "8", "-n", str(requests), *options]
    run = [cxctl, "run", "--address"]
    server = subprocess.Popen([*run, SERVER, "--", *perftest], stdout=subprocess.DEVNULL)
    try:
        while not is_listening():
            if server.poll() is not None:
                sys.exit(f"{name}, the server, ended with {server.returncode}")
            time.sleep(0.1)
        counted = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
        client = [*run, CLIENT, "--", *counted, *perftest, SERVER]
        done = subprocess.run(client, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            sys.exit(f"{name}, the client, ended with {done.returncode}:\n{done.stdout[-2000:]}")
    finally:
        server.kill()
        server.wait()


def costs(out):
    """By function: instructions of its own, calls of it, and of what it calls those."""
    names, own, calls = {}, collections.Counter(), collections.Counter()
    below = collections.defaultdict(collections.Counter)
    function = called = None
    is_call = False
    for line in Path(out).read_text(encoding="utf-8").splitlines():
        if match := re.match(r"(c?)fn=\((\d+)\)(?: (.*))?$", line):
            name = names.setdefault(match[2], match[3])
            function, called = (function, name) if match[1] else (name, called)
        elif line.startswith("calls="):
            calls[called] += int(line[6:].split()[0])
            is_call = True
        elif line[:1] in set("0123456789+-*"):
            count = int(line.split()[-1])
            if is_call:
                below[function][called] += count
            else:
                own[function] += count
            is_call = False
    return own, calls, below


def of_call(cxctl, row, requests):
    """Instructions of a row, for each element, and libmlx5's."""
    _, program, function, models, each, peer = row
    if "_lat" in program:
        # Each waits for the peer.
        requests //= 10
    with tempfile.NamedTemporaryFile() as out:
        pair(cxctl, program, requests, out.name)
        own, calls, below = costs(out.name)
    names = [name for name in own if re.search(rf"\bface::\w+::{function}$", name)]
    if len(names) != 1:
        sys.exit(f"{function} is not one function but {names}: is the library stripped?")
    parts = below[names[0]]
    theirs = sum(count for part, count in parts.items() if re.search(rf"::{models}$", part))
    if theirs == 0:
        sys.exit(f"{names[0]} never calls the model's {models}: what is left out is not known")
    if peer is POLL:
        per_call, per_completion = POLL
        peer = per_call * calls[names[0]] * each / requests + per_completion
    return (own[names[0]] + sum(parts.values()) - theirs) * each / requests, peer


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = Path(__file__).resolve().parents[2]
    parser.add_argument("--cxctl", default=str(root / "target/release/cxctl"))
    parser.add_argument("--requests", type=int, default=5120)
    args = parser.parse_args()
    for program in ("valgrind", "ib_send_bw", args.cxctl):
        if not shutil.which(program):
            print(f"skipped: no {program}")
            sys.exit(77)
    print(f"{'instructions':<42} {'ours':>6} {'libmlx5':>8}")
    worse = 0
    for row in ROWS:
        ours, peer = of_call(args.cxctl, row, args.requests)
        worse += ours > peer
        print(f"{row[0]:<42} {ours:>6.0f} {peer:>8.0f}", flush=True)
    sys.exit(worse > 0)


if __name__ == "__main__":
    main()
