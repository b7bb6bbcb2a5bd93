"""What a packet or a message costs on PCIe, by the model's exact counts: ours beside theirs.

usage: pcie.py theirs|ours GID0 GID1   measures and keeps what it found in /run/pcie.json
       pcie.py table                   prints both side by side; ends with 1 where ours costs more

Both run in the same guest, on the same model, one after the other. A doorbell of 8 bytes is one
MMIO write, a BlueFlame copy of 64 bytes is eight. Descriptors are all that a device reads and that
is no packet or message: work requests and doorbell records; completions all that it writes and
that is none.
"""

import json
import os
import subprocess
import sys
import time

from counts import counts
from testpmd import PORTS, Failure, Testpmd

KEPT = "/run/pcie.json"
SETTLE_S = 2
MEASURE_S = 6
# Enough that both ports always have a whole burst.
FIRST_BURSTS = 8
ENOUGH = 2000

WHAT = (
    "MMIO writes",
    "descriptor bytes",
    "completion bytes",
    "data bytes",
    "DMA reads",
    "DMA writes",
)
# What the later columns are is the device's own doing, not the driver's. Doorbells lie in shared
# memory where the model looks for them, so two in quick succession are one to it: of a thousand
# it has missed six.
JUDGED = ((WHAT[0], 0.01), (WHAT[1], 0), (WHAT[2], 0))

# Modes of both testpmds.
FORWARDED = (("64 B forwarded", "io"), ("64 B with checksums", "csum"))

# Tests of perftest, with what ours calls the same.
MESSAGES = (
    ("SEND 64", "ib_send_bw", [], ["send", "bw"], []),
    ("WRITE 64", "ib_write_bw", [], ["write", "bw"], []),
    ("WRITE 64 inline", "ib_write_bw", ["-I", "64"], ["write", "bw"], ["--inline", "64"]),
)
# Perftest asks for one completion in a hundred.
SIGNAL_EVERY = 100
DEPTH = 128
# Messages that are on their way at most, of both directions.
IN_FLIGHT = 2 * DEPTH


def spent(ports):
    """Of all ports together, in the order of WHAT."""
    def total(*path):
        return sum(port["bus"][name] for port in ports for name in path)

    return (
        total("register_writes"),
        total("dma_read_bytes") - total("dma_data_read_bytes"),
        total("dma_written_bytes") - total("dma_data_written_bytes"),
        total("dma_data_read_bytes", "dma_data_written_bytes"),
        total("dma_reads"),
        total("dma_writes"),
    )


def measure(sent, idle=time.sleep):
    """Costs of each of what `sent` counts, once it goes on evenly."""
    idle(SETTLE_S)
    before = counts()
    idle(MEASURE_S)
    after = counts()
    count = sent(after) - sent(before)
    if count < ENOUGH:
        raise Failure(f"only {count} in {MEASURE_S} s")
    costs = [(b - a) / count for a, b in zip(spent(before), spent(after))]
    print(f"  {count}: {costs}", flush=True)
    return {"costs": costs, "count": count}


def packets(ports):
    """Sent by all ports."""
    return sum(port["tx"]["packets"] for port in ports)


def requests(ports):
    """Sent by the client, which is the second port; the first answers."""
    return ports[1]["tx"]["packets"]


def their_packets(mode):
    """DPDK's testpmd, as it comes."""
    options = (f"--forward-mode={mode}", "--burst=32")
    pmd = Testpmd(f"theirs-{mode}", ("", ""), options)
    if mode == "csum":
        pmd.tell("port stop all")
        for port in range(2):
            for layer in ("ip", "udp"):
                pmd.tell(f"csum set {layer} hw {port}")
        pmd.tell("port start all")
    pmd.tell(f"start tx_first {FIRST_BURSTS}")
    costs = measure(packets, pmd.listen)
    pmd.tell("stop")
    pmd.end()
    return costs


def our_packets(mode):
    """Ours, with as many packets on the cable."""
    command = ["/run/testpmd", "--forward-mode", "io", "--promiscuous", "--stats", "0"]
    # DPDK compresses completions unless it is told not to.
    command += ["--tx-first", str(FIRST_BURSTS), "--cqe-compression", "--cores", "1"]
    command += [word for port in PORTS for word in ("--device", port)]
    command += ["--checksum"] if mode == "csum" else []
    print(" ".join(command), flush=True)
    with open(f"/host/ours-{mode}.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    # It brings up two ports first.
    end, begun = time.monotonic() + 60, packets(counts())
    while packets(counts()) < begun + ENOUGH:
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise Failure(f"our testpmd forwards nothing; see ours-{mode}.log")
        time.sleep(0.2)
    costs = measure(packets)
    process.terminate()
    process.wait(30)
    return costs


def messages(name, server, client):
    """Two processes that talk for a while."""
    print(f"{' '.join(server)}\n{' '.join(client)}", flush=True)
    log = open(f"/host/{name.replace(' ', '-')}.log", "w")
    processes = [subprocess.Popen(server, stdout=log, stderr=log)]
    time.sleep(2)
    processes.append(subprocess.Popen(client, stdout=log, stderr=log))
    try:
        end, begun = time.monotonic() + 60, requests(counts())
        while requests(counts()) < begun + ENOUGH // 10:
            if processes[1].poll() is not None or time.monotonic() > end:
                raise Failure(f"{name}: no messages; see its log")
            time.sleep(0.2)
        costs = measure(requests)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return costs


def their_messages(name, tool, options, gids):
    """perftest on libmlx5; it says how many it sends at a time by default."""
    line = [tool, "-F", "-s", "64", "-D", "120", "-t", str(DEPTH), "-Q", str(SIGNAL_EVERY)]
    ends = [[*line, *options, "-d", f"mlx5_{end}", "-x", gids[end]] for end in range(2)]
    return messages(f"theirs {name}", ends[0], [*ends[1], "localhost"])


def our_messages(name, test, options):
    """Ours, told the same."""
    line = ["/run/perftest", *test, "-s", "64", "--duration", "120", "--depth", str(DEPTH)]
    line += ["--signal-every", str(SIGNAL_EVERY), *options]
    ends = [[*line, "--device", PORTS[end]] for end in range(2)]
    return messages(f"ours {name}", ends[0], [*ends[1], "localhost"])


def side(of, gids):
    """All that one side does, by name."""
    packets_of = their_packets if of == "theirs" else our_packets
    rows = {name: packets_of(mode) for name, mode in FORWARDED}
    for name, tool, options, test, our_options in MESSAGES:
        rows[name] = (
            their_messages(name, tool, options, gids)
            if of == "theirs"
            else our_messages(name, test, our_options)
        )
    kept = {}
    if os.path.exists(KEPT):
        with open(KEPT) as file:
            kept = json.load(file)
    kept[of] = rows
    with open(KEPT, "w") as file:
        json.dump(kept, file)


def table():
    """Both sides; whether ours costs at most what theirs does wherever a driver decides."""
    with open(KEPT) as file:
        kept = json.load(file)
    print(f"{'':22}" + "".join(f"{what:>20}" for what in WHAT))
    print(f"{'':22}" + f"{'ours':>10}{'theirs':>10}" * len(WHAT))
    worse = []
    for row, theirs in kept["theirs"].items():
        ours = kept["ours"][row]
        pairs = list(zip(ours["costs"], theirs["costs"]))
        print(f"{row:22}" + "".join(f"{a:10.3f}{b:10.3f}" for a, b in pairs))
        # A count cuts through what is on its way as it begins and as it ends.
        cut = IN_FLIGHT * (1 / ours["count"] + 1 / theirs["count"])
        for (what, unseen), (mine, other) in zip(JUDGED, pairs):
            if mine > other * (1 + cut + unseen):
                worse.append(f"{row}: {mine:.3f} {what}, theirs {other:.3f}")
    for line in worse:
        print(f"ours costs more: {line}")
    return not worse


def main():
    what, *gids = sys.argv[1:]
    try:
        if what == "table":
            sys.exit(not table())
        side(what, gids)
    except Failure as failure:
        print(f"FAILED: {failure}", flush=True)
        with open("/host/reason", "a") as reason:
            print(failure, file=reason)
        sys.exit(1)


main()
