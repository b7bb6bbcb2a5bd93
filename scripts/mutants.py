#!/usr/bin/env python3
"""Changes the product by one line at a time, and counts the seeds until the simulation finds it.

    scripts/mutants.py [--seeds 1000] [--seconds 600] [NUMBER...]

The changes stand in apps/simulation/mutants.toml. Each is built in a copy of the tree, below the
build folder, so that nothing of the tree itself changes. NUMBER: only those, counted from 1. The
exit status is 1 if one was not found within its seeds or its time. Not in CI: a build for each.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "mutants"


def copy_tree(to):
    """Makes `to` the committed tree and what is not committed yet."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT,
                            check=True, capture_output=True).stdout.split(b"\0")
    for name in filter(None, listed):
        source, goal = ROOT / os.fsdecode(name), to / os.fsdecode(name)
        if not source.is_file():
            continue
        text = source.read_bytes()
        # What is as it was keeps its time, so that it is not built again.
        if not goal.exists() or goal.read_bytes() != text:
            goal.parent.mkdir(parents=True, exist_ok=True)
            goal.write_bytes(text)


def simulate(tree, seeds, seconds):
    """Builds and runs the simulation; what was said, and whether a seed failed."""
    command = ["cargo", "build", "-q", "--locked", "-p", "ferrocx-simulation", "--bin",
               "simulation"]
    env = os.environ | {"CARGO_TARGET_DIR": str(TARGET / "build"), "CARGO_INCREMENTAL": "0",
                        "CARGO_PROFILE_DEV_DEBUG": "0"}
    subprocess.run(command, cwd=tree, env=env, check=True)
    program = [TARGET / "build/debug/simulation", "--seeds", f"0..{seeds}", "--out", TARGET]
    try:
        ran = subprocess.run(program, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"not found in {seconds} s", False
    count = re.search(r"^(\d+) seeds in", ran.stdout, re.MULTILINE)
    found = re.search(r"^seed \d+: (.*)", ran.stdout, re.MULTILINE)
    if found:
        return f"seed {count[1] if count else '?'}: {found[1]}", True
    if ran.returncode != 0:
        return f"the program ended: {ran.stderr.strip().splitlines()[-1:]}", True
    return f"not found in {seeds} seeds", False


def main():
    """Runs the mutants that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="seeds for each")
    parser.add_argument("--seconds", type=int, default=600, help="time for each")
    parser.add_argument("numbers", type=int, nargs="*", metavar="NUMBER")
    args = parser.parse_args()
    mutants = tomllib.loads((ROOT / "apps/simulation/mutants.toml").read_text())["mutant"]
    tree = TARGET / "tree"
    missed = 0
    for number, mutant in enumerate(mutants, 1):
        if args.numbers and number not in args.numbers:
            continue
        copy_tree(tree)
        file = tree / mutant["file"]
        text = file.read_text()
        if text.count(mutant["from"]) != 1:
            sys.exit(f"{mutant['file']}: `{mutant['from']}` does not stand there once")
        file.write_text(text.replace(mutant["from"], mutant["to"]))
        said, is_found = simulate(tree, args.seeds, args.seconds)
        missed += not is_found
        print(f"{number:>2}  {mutant['what']}: {said}", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
