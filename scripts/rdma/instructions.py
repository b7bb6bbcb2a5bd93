#!/usr/bin/env python3
"""Counts what calls of libibverbs cost a program on the drop-in library, beside libmlx5.

    scripts/rdma/instructions.py [--cxctl target/release/cxctl] [CASE...]

Counted are instructions, by callgrind: they depend neither on the machine nor on what else it does.
The program is calls.c beside this file; the same calls are made to libmlx5 of rdma-core, by
benches/peers/libmlx5.c on queues in plain memory, with locks, as it comes. Both find in each poll
exactly the completions that the row says: what a poll costs that finds nothing is a row of its own.
Steps of the model, which our calls make where a card would work by itself, are left out. Where
libmlx5 cannot be built (scripts/peers.sh says why), its figures are those of rdma-core 56.1 from
the table below. Without valgrind or a compiler it is skipped; the exit status is 1 where we take
more than libmlx5.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What is counted, for each request, completion or call; its case, whose last number is the length
# of lists; and what libmlx5 of rdma-core 56.1 takes.
ROWS = [
    ("post a WRITE of one buffer", "face_post_1", 357),
    ("32 of them in a list, for each", "face_post_32", 190),
    ("post a WRITE of 8 bytes inline", "face_post_inline_1", 382),
    ("32 of them in a list, for each", "face_post_inline_32", 218),
    ("64 bytes inline, in a list of 32", "face_post_inline64_32", 217),
    ("2 pieces of 8 bytes inline, the same", "face_post_inline_2sge_32", 253),
    ("8 bytes inline and immediate data", "face_post_inline_imm_32", 220),
    ("a datagram, the same", "face_post_datagram_32", 191),
    ("a WRITE with a fence, the same", "face_post_fenced_32", 190),
    ("a WRITE of 2 buffers, the same", "face_post_2sge_32", 216),
    ("a WRITE of 4 buffers, the same", "face_post_4sge_32", 268),
    ("a WRITE with immediate data, the same", "face_post_write_imm_32", 192),
    ("a SEND, the same", "face_post_send_32", 179),
    ("a SEND with immediate data, the same", "face_post_send_imm_32", 176),
    ("a READ, the same", "face_post_read_32", 190),
    ("a FETCH_ADD, the same", "face_post_fetch_add_32", 194),
    ("the WRITE of a buffer by ibv_wr_*", "face_wr_1", 278),
    ("32 of them in a batch, for each", "face_wr_32", 130),
    ("post a receive", "face_post_recv_1", 140),
    ("32 of them in a list, for each", "face_post_recv_32", 73),
    ("poll one send", "face_poll_1", 189),
    ("16 at once, for each", "face_poll_16", 110),
    ("poll one completion for 32 sends", "face_poll_last_1", 231),
    ("poll one receive", "face_poll_recv_1", 252),
    ("16 at once, for each", "face_poll_recv_16", 173),
    ("a poll that finds nothing", "face_poll_empty_1", 93),
    ("poll one send by ibv_start_poll", "face_poll_ex_1", 211),
    ("32 by ibv_next_poll, for each", "face_poll_ex_32", 164),
    ("ibv_start_poll that finds nothing", "face_poll_ex_empty_1", 77),
]
# Rounds of the two runs of a case whose difference is what counts, and how long the device may take
# for what is posted in one, in milliseconds; the second time on a machine that had others to serve.
LOW, HIGH = 4, 12
PATIENCE_MS = (40, 400)


def of_libmlx5(cases):
    """What libmlx5 takes, by case; nothing if it cannot be built."""
    run = subprocess.run([ROOT / "scripts/peers.sh", *cases], capture_output=True, text=True,
                         check=False)
    if run.returncode not in (0, 77):
        sys.exit(f"scripts/peers.sh ended with {run.returncode}:\n{run.stdout}{run.stderr}")
    if run.returncode == 77:
        print(f"libmlx5 as recorded: {run.stdout.strip()}")
        return {}
    return {name: float(count) for name, count in map(str.split, run.stdout.splitlines())}


def collected(out):
    """Instructions in `measured_*` and what they call, and those of the model's steps in them."""
    names, total, steps = {}, 0, 0
    function = called = None
    is_call = False
    for line in Path(out).read_text(encoding="utf-8").splitlines():
        if match := re.match(r"(c?)fn=\((\d+)\)(?: (.*))?$", line):
            name = names.setdefault(match[2], match[3])
            function, called = (function, name) if match[1] else (name, called)
        elif line.startswith("calls="):
            is_call = True
        elif line[:1] in set("0123456789+-*"):
            count = int(line.split()[-1])
            is_ours = "::face::" in function
            is_step = is_ours and re.search(r"\bnode::.*\bstep(_idle)?$", called or "")
            if not is_call:
                total += count
            elif is_step:
                steps += count
            is_call = False
    return total, steps


def of_ours(cxctl, program, case):
    """What the drop-in library takes for each element of a case."""
    counts = []
    for rounds in (LOW, HIGH):
        with tempfile.NamedTemporaryFile() as out:
            run = [cxctl, "run", "--", "valgrind", "--tool=callgrind",
                   "--toggle-collect=measured_*", f"--callgrind-out-file={out.name}",
                   program, case, str(rounds)]
            for patience in PATIENCE_MS:
                done = subprocess.run([*run, str(patience)], capture_output=True, text=True,
                                      timeout=300, check=False)
                if done.returncode == 0:
                    break
            else:
                sys.exit(f"{case} ended with {done.returncode}:\n{done.stderr[-2000:]}")
            total, steps = collected(out.name)
            if steps == 0 and not re.match(r"face_(poll(_recv|_ex)?_\d|poll_last|post_recv)", case):
                sys.exit(f"{case} makes no step of the model: what is left out is not known")
            counts.append(total - steps)
    return (counts[1] - counts[0]) / (HIGH - LOW) / (1 if "_last_" in case else 128)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cxctl", default=str(ROOT / "target/release/cxctl"))
    parser.add_argument("cases", metavar="CASE", nargs="*", help="default: all of them")
    args = parser.parse_args()
    if unknown := set(args.cases) - {case for _, case, _ in ROWS}:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are "
                     f"{', '.join(case for _, case, _ in ROWS)}")
    for program in ("valgrind", "cc", args.cxctl):
        if not shutil.which(program):
            print(f"skipped: no {program}")
            sys.exit(77)
    rows = [row for row in ROWS if not args.cases or row[1] in args.cases]
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/calls"
        build = ["cc", "-O2", f"-I{ROOT}/benches/peers", f"{ROOT}/scripts/rdma/calls.c", "-o",
                 program, "-libverbs"]
        if subprocess.run(build, check=False).returncode != 0:
            print("skipped: no libibverbs-dev")
            sys.exit(77)
        peers = of_libmlx5([case for _, case, _ in rows])
        print(f"{'instructions':<40} {'ours':>6} {'libmlx5':>8}")
        worse = 0
        for text, case, recorded in rows:
            ours, peer = of_ours(args.cxctl, program, case), peers.get(case, recorded)
            worse += ours > peer
            print(f"{text:<40} {ours:>6.0f} {peer:>8.0f}", flush=True)
    sys.exit(worse > 0)


if __name__ == "__main__":
    main()
