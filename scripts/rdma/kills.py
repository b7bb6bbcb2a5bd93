#!/usr/bin/env python3
"""Starts stock RDMA programs in pairs on the drop-in library, kills one end of each at a random
moment, and sees that the other end gets its error, and that nothing stays behind.

    scripts/rdma/kills.py --cxctl target/release/cxctl [--kills 200] [--at-once 24] [--seed 1]

A pair is ibv_rc_pingpong, ib_write_bw or rping. The victim is its server or its client, by chance;
the moment is up to two seconds after the start, of three pairs in four the client's, so that kills
fall into the start, the exchange of addresses and the transfer. The other end has 60 seconds:
retries of a queue pair take 8 of them, those of rdma_cm 17, as many more if the peer had asked for
time, and here many programs share few processors. Two kinds have nothing that could time out, and
are ended: a server whose client was killed before it connected waits for the next one, and a
pingpong whose own message was answered waits for the next, for ever, as on an adapter. Of the
pingpongs that were killed, those must be fewer than nine in ten. Counted are: other ends that outlived their time,
those that a signal ended, and Unix sockets, shared memory, UDP ports and files that are there
afterwards and were not before. As root, all this happens in a network namespace of its own, where
no other program's sockets can be mistaken for those.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 60
QUIET_S = 20
FIRST_PORT = 20000
PORTS = 10000


def pairs(port):
    """Each kind of pair: arguments of the server, and what the client has besides."""
    pingpong = ["ibv_rc_pingpong", "-g", "0", "-n", "100000000", "-p", str(port)]
    write = ["ib_write_bw", "-F", "-D", "600", "-p", str(port)]
    address = ["-a", "127.0.0.1", "-p", str(port)]
    return [
        (pingpong, pingpong + ["localhost"]),
        (write, write + ["localhost"]),
        (["rping", "-s", "-V", *address], ["rping", "-c", "-V", *address]),
    ]


def sockets():
    """Names and addresses that belong to the library."""
    unix = Path("/proc/net/unix").read_text().splitlines()
    names = {line.split()[-1] for line in unix if "@ferrocx-" in line}
    udp = Path("/proc/net/udp").read_text().splitlines()[1:]
    return names | {line.split()[1] for line in udp if line.split()[1].endswith(":12B7")}


def listens(pid, port):
    """Whether a process listens by TCP, or by rdma_cm, on a port."""
    tcp = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    at = f":{port:04X} "
    if any(at in line and " 0A " in line for line in tcp.splitlines()):
        return True
    return f"/{port}/" in Path("/proc/net/unix").read_text()


def is_waiting(process, log):
    """Whether a server waits for its first client: in accept, or for a request of rdma_cm's."""
    try:
        call = Path(f"/proc/{process.pid}/syscall").read_text().split()[0]
    except OSError:
        return False
    if process.args[-1].isdigit() and "rping" in process.args:
        return call in ("202", "230", "0", "7", "271") and log.stat().st_size == 0
    return call in ("43", "288")


class Pair:
    """A server, a client, and who is killed when."""

    def __init__(self, cxctl, folder, port, rng):
        self.port, self.cxctl = port, cxctl
        self.server_args, self.client_args = rng.choice(pairs(port))
        self.is_pingpong = self.server_args[0] == "ibv_rc_pingpong"
        self.log = folder / f"{port}.log"
        self.server = self.start(self.server_args, self.log)
        self.client = None
        self.started = time.monotonic()
        self.delay = rng.uniform(0, 2)
        # Of one in four, before there is a client at all.
        self.is_early = rng.random() < 0.25
        self.kills_server = rng.random() < 0.5
        self.killed_at = None

    def start(self, args, log):
        """Starts one end in a session of its own."""
        with open(log, "ab") as out:
            return subprocess.Popen(
                [self.cxctl, "run", "--", *args], stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True)

    def step(self):
        """Does what is due; what became of the pair, or None while it goes on."""
        now = time.monotonic()
        if self.client is None and listens(self.server.pid, self.port):
            self.client = self.start(self.client_args, self.log.with_suffix(".client"))
            self.started = self.started if self.is_early else now
        if self.killed_at is None:
            is_due = now >= self.started + self.delay and (self.client or self.is_early)
            if not is_due and self.server.poll() is None:
                return None
            victim = self.server if self.kills_server else self.client
            if victim is None and now < self.started + LIMIT_S:
                return None
            victim = victim or self.server
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            self.victim, self.killed_at = victim, now
        ends = [end for end in (self.server, self.client) if end not in (None, self.victim)]
        if all(end.poll() is not None for end in ends):
            ended_by_signal = any(end.returncode < 0 for end in ends)
            return "crashed" if ended_by_signal else "ended"
        if now > self.killed_at + 5 and not self.kills_server:
            if is_waiting(self.server, self.log):
                self.end()
                return "waiting"
        if now > self.killed_at + QUIET_S and self.is_pingpong:
            self.end()
            return "quiet"
        if now > self.killed_at + LIMIT_S:
            self.end()
            return "stuck"
        return None

    def end(self):
        """Ends what is left."""
        for end in (self.server, self.client):
            if end is not None and end.poll() is None:
                end.kill()
                end.wait()


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cxctl", default="target/release/cxctl")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def isolate():
    """Starts this program again in a network namespace of its own, if that can be had."""
    if os.geteuid() != 0 or os.environ.get("FERROCX_ISOLATED"):
        return
    inside = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *sys.argv]
    os.environ["FERROCX_ISOLATED"] = "1"
    if subprocess.run(["unshare", "--net", "ip", "link", "set", "lo", "up"]).returncode == 0:
        os.execvp("unshare", ["unshare", "--net", *inside])


def main():
    """Kills, counts, and says what was left."""
    options = parse()
    isolate()
    rng = random.Random(options.seed)
    cxctl = str(Path(options.cxctl).resolve())
    folder = Path(tempfile.mkdtemp(prefix="kills."))
    home = folder / "tmp"
    home.mkdir()
    os.environ["TMPDIR"] = os.environ["XDG_RUNTIME_DIR"] = str(home)
    before, shared = sockets(), set(os.listdir("/dev/shm"))
    counts = {"ended": 0, "waiting": 0, "quiet": 0, "stuck": 0, "crashed": 0}
    running, made, longest, pingpongs = [], 0, 0.0, 0
    start = time.monotonic()
    while made < options.kills or running:
        while made < options.kills and len(running) < options.at_once:
            running.append(Pair(cxctl, folder, FIRST_PORT + made % PORTS, rng))
            made += 1
        for pair in list(running):
            outcome = pair.step()
            if outcome is None:
                continue
            running.remove(pair)
            counts[outcome] += 1
            pingpongs += pair.is_pingpong and outcome != "waiting"
            if outcome == "ended":
                longest = max(longest, time.monotonic() - pair.killed_at)
            if outcome in ("stuck", "crashed"):
                print(f"{outcome}: {' '.join(pair.server_args)}, "
                      f"{'server' if pair.kills_server else 'client'} killed after "
                      f"{pair.delay:.2f} s")
                for log in (pair.log, pair.log.with_suffix(".client")):
                    if log.exists():
                        print(log.read_text(errors="replace")[-600:])
            for log in (pair.log, pair.log.with_suffix(".client")):
                log.unlink(missing_ok=True)
        time.sleep(0.05)
    left = sorted(sockets() - before) + sorted(set(os.listdir("/dev/shm")) - shared)
    left += [str(path) for path in home.rglob("*")]
    shutil.rmtree(folder)
    print(f"{made} kills in {time.monotonic() - start:.0f} s: the other end got its error in "
          f"{counts['ended']} (the last after {longest:.1f} s), had no peer yet in "
          f"{counts['waiting']}, had nothing under way in {counts['quiet']}, was stuck in "
          f"{counts['stuck']}, crashed in {counts['crashed']}; "
          f"left behind: {len(left)}{''.join(f', {name}' for name in left)}")
    is_deaf = pingpongs >= 20 and counts["quiet"] > pingpongs * 0.9
    if is_deaf:
        print(f"of {pingpongs} pingpongs, nearly none got an error")
    return 1 if left or counts["stuck"] or counts["crashed"] or is_deaf else 0


if __name__ == "__main__":
    sys.exit(main())
