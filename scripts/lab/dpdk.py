"""Stock DPDK between both ports: its ways to receive and to send, offloads, RSS, flow rules."""

import os
import re
import socket
import sys
import time

from testpmd import PORTS, Failure, Testpmd

# A queue that counts its completions in 16 bits comes round after 65,536 of them, one for each 32
# packets.
LAPPED = 65536 * 32 + 100_000
ENOUGH = 100_000
SETTLE_S = 30

# Name; device arguments of port 0 and of port 1; packets each port has to send; options.
VARIANTS = (
    # Vector receive of compressed completions, in a ring that it walks through linearly.
    ("compressed", "rxq_cqe_comp_en=1", "rxq_cqe_comp_en=1", LAPPED, "--rxd=256 --txpkts=64"),
    ("vector", "rxq_cqe_comp_en=0,txq_mpw_en=1,txq_inline_max=0", "rxq_cqe_comp_en=0,txq_mpw_en=0",
     ENOUGH, "--txpkts=300"),
    ("scalar", "rx_vec_en=0,txq_mpw_en=0,txq_inline_max=512", "rx_vec_en=0,rxq_cqe_comp_en=0",
     ENOUGH, "--txpkts=200"),
    ("striding", "mprq_en=1,rxqs_min_mprq=1", "mprq_en=1,rxqs_min_mprq=1,rx_vec_en=0",
     ENOUGH, "--txpkts=1000"),
)


def expect(what, value, wanted):
    """Fails unless they are equal."""
    print(f"  {what}: {value}", flush=True)
    if value != wanted:
        raise Failure(f"{what}: {value} instead of {wanted}")


def expect_good_checksums(said):
    """testpmd counted the bad checksums that it received, and there were none."""
    found = re.findall(r"Bad-(\S+)csum: (\d+)", said)
    if not found:
        raise Failure(f"testpmd says nothing of bad checksums: {said}")
    expect("bad checksums", [line for line in found if line[1] != "0"], [])


def agree(pmd):
    """Both ends tell the same of the cable; what a receiver had no buffer for it says itself."""
    # Takes what the forwarding left in the rings.
    pmd.tell("set fwd rxonly")
    pmd.tell("start")
    pmd.listen(0.5)
    pmd.tell("stop")
    end = time.monotonic() + SETTLE_S
    while True:
        ports = [pmd.counts(port) for port in range(2)]
        ways = [
            (ports[a]["TX-packets"], ports[b]["RX-packets"], ports[b]["rx_out_of_buffer"])
            for a, b in ((0, 1), (1, 0))
        ]
        if all(sent == got + lost for sent, got, lost in ways):
            break
        if time.monotonic() > end:
            raise Failure(f"sent, received and missed do not add up: {ways}")
        time.sleep(0.2)
    for sent, got, lost in ways:
        print(f"  {sent} sent, {got} received, {lost} without a buffer")
        # A queue that stands still has no buffers either.
        if got < sent // 100:
            raise Failure(f"only {got} of {sent} packets were received")
    for number, port in enumerate(ports):
        # Missed packets are those without a buffer.
        wrong = {
            name: value
            for name, value in port.items()
            if name.endswith("errors") and name != "rx_missed_errors" and value
        }
        expect(f"errors of port {number}", wrong, {})
    return ports


def variant(name, first, second, packets, options):
    """Both ports send as fast as they can until each has sent so many."""
    pmd = Testpmd(name, (first, second), ("--forward-mode=flowgen", *options.split()))
    begun = time.monotonic()
    pmd.tell("start")
    while min(pmd.counts(port)["TX-packets"] for port in range(2)) < packets:
        if time.monotonic() > begun + 120 + packets / 20_000:
            raise Failure(f"{packets} packets take too long")
        time.sleep(0.5)
    pmd.tell("stop")
    took = time.monotonic() - begun
    ports = agree(pmd)
    rate = sum(port["RX-packets"] for port in ports) / took
    print(f"  {rate:.0f} packets a second", flush=True)
    pmd.end()


def burst(pmd):
    """Each port sends 32 packets from each queue; what the ports counted of it."""
    pmd.tell("clear port stats all")
    pmd.tell("clear port xstats all")
    said = pmd.tell("start tx_first") + pmd.listen(1) + pmd.tell("stop")
    return [pmd.counts(port) for port in range(2)], said


def queues(port):
    """Packets by receive queue."""
    return [port[f"rx_q{queue}_packets"] for queue in range(4)]


def rules(name, devargs):
    """RSS and flow rules, by the queues that packets reach."""
    options = ("--rxq=4", "--txq=4", "--rxd=256", "--txonly-multi-flow", "--rss-udp")
    pmd = Testpmd(name, (devargs, devargs), options)
    pmd.tell("set fwd rxonly")
    sent = 4 * 32

    def rule(pattern, actions):
        said = pmd.tell(f"flow create 1 ingress pattern {pattern} / end actions {actions} / end")
        if "created" not in said:
            raise Failure(f"flow rule {pattern}, {actions}: {said}")

    def arrived():
        ports, said = burst(pmd)
        expect("sent", ports[0]["TX-packets"], sent)
        return queues(ports[1]), said

    got, _ = arrived()
    expect("RSS", (sum(got), min(got) > 0), (sent, True))
    rule("eth / ipv4 / udp", "queue index 2")
    expect("queue", arrived()[0], [0, 0, sent, 0])
    pmd.tell("flow flush 1")
    rule("eth / ipv4 / udp dst is 9", "drop")
    expect("drop", arrived()[0], [0, 0, 0, 0])
    pmd.tell("flow flush 1")
    rule("eth / ipv4 / udp dst is 10", "drop")
    expect("another port's drop", sum(arrived()[0]), sent)
    pmd.tell("flow flush 1")
    rule("eth / ipv4 / udp", "rss queues 1 3 end types ipv4-udp end")
    got, _ = arrived()
    expect("rss", (got[0], got[2], got[1] + got[3], min(got[1], got[3]) > 0), (0, 0, sent, True))
    pmd.tell("flow flush 1")
    rule("eth / ipv4 / udp", "mark id 42 / queue index 1")
    pmd.tell("set verbose 1")
    got, said = arrived()
    pmd.tell("set verbose 0")
    expect("mark", (got[1], said.count("FDIR matched ID=0x2a")), (sent, sent))
    pmd.tell("flow flush 1")
    rule("eth / ipv4 / udp", "count / queue index 0")
    expect("count", arrived()[0], [sent, 0, 0, 0])
    said = pmd.tell("flow query 1 0 count")
    expect("hits", re.findall(r"hits: (\d+)", said), [str(sent)])
    pmd.tell("flow flush 1")
    pmd.tell("port stop 0")
    pmd.tell("tx_vlan set 0 5")
    pmd.tell("port start 0")
    rule("eth / vlan vid is 5", "queue index 3")
    rule("eth / vlan vid is 6", "drop")
    expect("VLAN 5", arrived()[0], [0, 0, 0, sent])
    pmd.tell("flow flush 1")
    rule("eth / vlan vid is 5", "drop")
    expect("VLAN 5 dropped", arrived()[0], [0, 0, 0, 0])
    pmd.end()


SEGMENT = 500


def tcp_frame(payload_len):
    """A TCP segment in its frame, from one made-up host to another."""
    ethernet = bytes.fromhex("020000000002" "020000000001" "0800")
    total = (40 + payload_len).to_bytes(2, "big")
    ip = b"\x45\0" + total + b"\0\1\x40\0\x40\x06\0\0" + bytes([10, 9, 0, 1, 10, 9, 0, 2])
    tcp = b"\x12\x34\x56\x78" + bytes(8) + b"\x50\x18\xff\xff" + bytes(4)
    return ethernet + ip + tcp + bytes(payload_len)


def offloads(name):
    """Checksums on both sides, and large segments that the port cuts."""
    pmd = Testpmd(name, ("", ""), ("--enable-rx-cksum", "--forward-mode=csum"))
    pmd.tell("port stop all")
    for port in range(2):
        for layer in ("ip", "udp", "tcp"):
            pmd.tell(f"csum set {layer} hw {port}")
        pmd.tell(f"tso set {SEGMENT} {port}")
    pmd.tell("port start all")
    # What a port receives goes back over the same cable from its neighbour, and so on.
    ports, said = burst(pmd)
    expect_good_checksums(said)
    print(f"  {ports[0]['RX-packets']} packets with checksums of the port")
    agree(pmd)
    pmd.tell("set fwd csum")
    pmd.tell("set verbose 1")
    pmd.tell("start")
    netdev = os.listdir(f"/sys/bus/pci/devices/{PORTS[0]}/net")[0]
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as kernel:
        kernel.bind((netdev, 0))
        kernel.send(tcp_frame(1400))
    said = pmd.listen(0.3) + pmd.tell("stop")
    pmd.tell("set verbose 0")
    lengths = set(re.findall(r"length=(\d+)", said))
    header = 14 + 20 + 20
    wanted = {1400 + header, SEGMENT + header, 1400 - 2 * SEGMENT + header}
    expect("lengths of TCP frames", {int(length) for length in lengths}, wanted)
    expect_good_checksums(said)
    pmd.end()


def main():
    packets = int(sys.argv[1])
    failed = 0
    jobs = [(variant, *row) for row in VARIANTS]
    jobs += [(rules, "rules", "dv_flow_en=1"), (rules, "verbs-rules", "dv_flow_en=0")]
    jobs += [(offloads, "offloads")]
    if packets:
        jobs = [(variant, "soak", "", "", packets, "--rxd=256 --txpkts=64")]
    for job, name, *arguments in jobs:
        begun = time.monotonic()
        try:
            job(name, *arguments)
            print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
        except Failure as failure:
            print(f"{name}: FAILED: {failure}", flush=True)
            with open("/host/reason", "a") as reason:
                print(f"{name}: {failure}", file=reason)
            failed += 1
            Testpmd.kill()
    sys.exit(failed != 0)


main()
