"""Stock DPDK between both ports: its ways to receive and to send, offloads, RSS, flow rules."""

import os
import random
import re
import socket
import sys
import time

from counts import counts
from testpmd import PORTS, Failure, Testpmd

# A queue that counts its completions in 16 bits comes round after 65,536 of them, one for each 32
# packets.
LAPPED = 65536 * 32 + 100_000
ENOUGH = 100_000
SETTLE_S = 30

# Of asm/socket.h.
SO_RCVBUFFORCE = 33
# Where testpmd's `flowgen` sends to, and what it takes off the length that it is given.
FLOWGEN, FCS_BYTES = bytes.fromhex("0001 0203 0401"), 4

# How a port receives and how it sends, in the driver's words, and whether completions are
# compressed.
VECTOR, SCALAR = "Vector SSE", "Scalar"
STRIDES, VECTOR_STRIDES = "Multi-Packet RQ", "MPRQ Vector SSE"
MANY, MANY_INLINE = "Enhanced MPW", "Enhanced MPW + INLINE"
ONE, ONE_INLINE = "No MPW", "No MPW + INLINE"

# Name; for port 0 and port 1 device arguments and what they stand for; packets each port has to
# send; options. Data stand in requests only if at least so many queues send: 8 unless it is told.
# A buffer has 512 strides, and the driver takes none for a ring of no more.
VARIANTS = (
    # Vector receive of compressed completions, in a ring that it walks through linearly.
    ("compressed",
     ("rxq_cqe_comp_en=1", VECTOR, True, MANY),
     ("rxq_cqe_comp_en=1", VECTOR, True, MANY),
     LAPPED, "--rxd=256 --txpkts=64"),
    ("vector",
     ("rxq_cqe_comp_en=0,txq_mpw_en=1,txq_inline_max=0", VECTOR, False, MANY),
     ("rxq_cqe_comp_en=0,txq_mpw_en=0", VECTOR, False, ONE),
     ENOUGH, "--txpkts=300"),
    ("scalar",
     ("rx_vec_en=0,txq_mpw_en=0,txq_inline_max=512,txqs_min_inline=1", SCALAR, True, ONE_INLINE),
     ("rx_vec_en=0,rxq_cqe_comp_en=0,txq_inline_mpw=256,txqs_min_inline=1",
      SCALAR, False, MANY_INLINE),
     ENOUGH, "--txpkts=200"),
    ("striding",
     ("mprq_en=1,rxqs_min_mprq=1", VECTOR_STRIDES, True, MANY),
     ("mprq_en=1,rxqs_min_mprq=1,mprq_log_stride_size=8,rx_vec_en=0,rxq_cqe_comp_en=0",
      STRIDES, False, MANY),
     ENOUGH, "--rxd=2048 --txpkts=1000"),
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


def agree(pmd, least=1):
    """Both ends tell the same of the cable; what a receiver had no buffer for it says itself, and
    at least such a part it had one for."""
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
        if got < sent * least:
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


# Frames of a type for experiments, to an address that nobody has.
ETHERTYPE, TO_DPDK = 0x88B5, bytes.fromhex("0200 0000 aa00")
# So many find room in every ring, part of which is yet to be filled again or to be cleared.
FRAMES = 128


def netdev(port):
    """The kernel's own interface on the port, and its address."""
    name = os.listdir(f"/sys/bus/pci/devices/{PORTS[port]}/net")[0]
    with open(f"/sys/class/net/{name}/address") as address:
        return name, bytes.fromhex(address.read().replace(":", ""))


def kernel_end(port):
    """A socket of the kernel's own interface on the port, for all such frames that reach it."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
    end.bind((netdev(port)[0], ETHERTYPE))
    end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 23)
    return end


def frames(port):
    """What the kernel sends by the port: frames of all lengths with bytes of their own, the same at
    each run. With their addresses swapped they are for the kernel, behind the other port."""
    rng = random.Random(port)
    header = TO_DPDK + netdev(1 - port)[1] + ETHERTYPE.to_bytes(2, "big")
    return [header + bytes([number]) + rng.randbytes(rng.randrange(45, 1500))
            for number in range(FRAMES)]


def swapped(frame):
    """The frame that testpmd's `macswap` makes of it."""
    return frame[6:12] + frame[:6] + frame[12:]


def circulate(pmd, ports, packets):
    """Frames of the kernel go round, in by one port and out by the other, until each has sent so
    many; then the kernel gets them back, and none is missing or has changed."""
    ends = [kernel_end(port) for port in range(2)]
    given = [frames(port) for port in range(2)]
    pmd.tell("set fwd io")
    pmd.tell("start")
    before = counts()
    for end, ring in zip(ends, given):
        for frame in ring:
            end.send(frame)
    begun = time.monotonic()
    while min(pmd.counts(port)["TX-packets"] for port in range(2)) < packets:
        if time.monotonic() > begun + 120 + packets / 20_000:
            raise Failure(f"{packets} packets take too long, or were lost")
        pmd.listen(0.5)
    pmd.tell("stop")
    after = counts()
    for number, (port, a, b) in enumerate(zip(ports, before, after)):
        expect_cost(number, port, a, b)
    pmd.tell("set fwd macswap")
    pmd.tell("start")
    got = [[], []]
    until = time.monotonic() + SETTLE_S
    while min(map(len, got)) < FRAMES and time.monotonic() < until:
        pmd.listen(0.2)
        for end, ring in zip(ends, got):
            try:
                while True:
                    ring.append(end.recv(2048, socket.MSG_DONTWAIT))
            except BlockingIOError:
                pass
    pmd.tell("stop")
    for port in range(2):
        # What the kernel sends by one port comes in by the other, and leaves by the one again.
        sent = {swapped(frame) for frame in given[port]}
        expect(f"frames back at port {1 - port}", len(got[1 - port]), FRAMES)
        expect("of them as they were", len(sent & set(got[1 - port])), FRAMES)
        ends[port].close()


def expect_cost(number, port, before, after):
    """What the port read and wrote beside packets is that of the way that it is told to work."""
    _, receives, compressed, sends = port

    def more(group, name):
        return after[group][name] - before[group][name]

    sent, received = more("tx", "packets"), more("rx", "packets")
    data = more("bus", "dma_data_read_bytes")
    requests = (more("bus", "dma_read_bytes") - data) / sent
    written = more("bus", "dma_written_bytes") - more("bus", "dma_data_written_bytes")
    completions, fetched = written / received, data / more("tx", "bytes")
    print(f"  port {number}: {sent} sent, {received} received, {requests:.1f} B of requests and "
          f"{completions:.1f} B of completions a packet, {fetched:.2f} of the data fetched")
    # A completion of its own has 64 bytes, a compressed one 8 and its part of a title.
    expect("compressed", completions < 32, compressed)
    expect("data in requests", fetched < 0.99, "INLINE" in sends)
    # A request for each packet has 64 bytes, a packet's part of one for many 16 and little more;
    # so has a buffer of its own, of a packet that takes strides none.
    if "INLINE" not in sends:
        expect("many packets a request", requests < 64, sends == MANY)
    if receives in (STRIDES, VECTOR_STRIDES):
        expect("many packets a buffer", requests < 32, True)


def variant(name, first, second, packets, options):
    """Each port sends so many packets: half of them frames that go round, every byte of which is
    looked at, then flows as fast as it can."""
    ports = (first, second)
    options = ("--no-flush-rx", "--flow-isolate-all", *options.split())
    pmd = Testpmd(name, [port[0] for port in ports], ("--forward-mode=flowgen", *options))
    for number, (_, receives, _, sends) in enumerate(ports):
        expect(f"ways of port {number}", pmd.modes(number), [receives, sends])
        for address in (TO_DPDK, FLOWGEN):
            rule(pmd, number, f"eth dst is {address.hex(':')}", "queue index 0")
    circulate(pmd, ports, packets // 2)
    pmd.tell("clear port stats all")
    pmd.tell("clear port xstats all")
    pmd.tell("set fwd flowgen")
    begun = time.monotonic()
    pmd.tell("start")
    while min(pmd.counts(port)["TX-packets"] for port in range(2)) < packets // 2:
        if time.monotonic() > begun + 120 + packets / 20_000:
            raise Failure(f"{packets // 2} packets take too long")
        time.sleep(0.5)
    pmd.tell("stop")
    took = time.monotonic() - begun
    # It sends bursts of 32 and takes some that are shorter, so its rings are overrun; but a queue
    # that stands still has no buffers either.
    told = agree(pmd, 0.2)
    length = int(re.search(r"--txpkts=(\d+)", " ".join(options))[1]) - FCS_BYTES
    for number, port in enumerate(told):
        for way in ("TX", "RX"):
            expect(f"bytes of port {number}, {way}",
                   port[f"{way}-bytes"], port[f"{way}-packets"] * length)
    rate = sum(port["RX-packets"] for port in told) / took
    print(f"  {rate:.0f} packets a second", flush=True)
    pmd.end()


def rule(pmd, port, pattern, actions):
    """A flow rule of the port."""
    said = pmd.tell(f"flow create {port} ingress pattern {pattern} / end actions {actions} / end")
    if "created" not in said:
        raise Failure(f"flow rule {pattern}, {actions}: {said}")


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

    def arrived():
        ports, said = burst(pmd)
        expect("sent", ports[0]["TX-packets"], sent)
        return queues(ports[1]), said

    got, _ = arrived()
    expect("RSS", (sum(got), min(got) > 0), (sent, True))
    rule(pmd, 1, "eth / ipv4 / udp", "queue index 2")
    expect("queue", arrived()[0], [0, 0, sent, 0])
    pmd.tell("flow flush 1")
    rule(pmd, 1, "eth / ipv4 / udp dst is 9", "drop")
    expect("drop", arrived()[0], [0, 0, 0, 0])
    pmd.tell("flow flush 1")
    rule(pmd, 1, "eth / ipv4 / udp dst is 10", "drop")
    expect("another port's drop", sum(arrived()[0]), sent)
    pmd.tell("flow flush 1")
    rule(pmd, 1, "eth / ipv4 / udp", "rss queues 1 3 end types ipv4-udp end")
    got, _ = arrived()
    expect("rss", (got[0], got[2], got[1] + got[3], min(got[1], got[3]) > 0), (0, 0, sent, True))
    pmd.tell("flow flush 1")
    rule(pmd, 1, "eth / ipv4 / udp", "mark id 42 / queue index 1")
    pmd.tell("set verbose 1")
    got, said = arrived()
    pmd.tell("set verbose 0")
    expect("mark", (got[1], said.count("FDIR matched ID=0x2a")), (sent, sent))
    pmd.tell("flow flush 1")
    rule(pmd, 1, "eth / ipv4 / udp", "count / queue index 0")
    expect("count", arrived()[0], [sent, 0, 0, 0])
    said = pmd.tell("flow query 1 0 count")
    expect("hits", re.findall(r"hits: (\d+)", said), [str(sent)])
    pmd.tell("flow flush 1")
    pmd.tell("port stop 0")
    pmd.tell("tx_vlan set 0 5")
    pmd.tell("port start 0")
    rule(pmd, 1, "eth / vlan vid is 5", "queue index 3")
    rule(pmd, 1, "eth / vlan vid is 6", "drop")
    expect("VLAN 5", arrived()[0], [0, 0, 0, sent])
    pmd.tell("flow flush 1")
    rule(pmd, 1, "eth / vlan vid is 5", "drop")
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
    said = pmd.tell("show port 0 tx_offload capabilities")
    expect("offers of tunnels", re.findall(r"\w*TNL\w*", said), [])
    # What a port receives goes back over the same cable from its neighbour, and so on.
    ports, said = burst(pmd)
    expect_good_checksums(said)
    print(f"  {ports[0]['RX-packets']} packets with checksums of the port")
    agree(pmd)
    pmd.tell("set fwd csum")
    pmd.tell("set verbose 1")
    pmd.tell("start")
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as kernel:
        kernel.bind((netdev(0)[0], 0))
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
        port = ("", VECTOR, True, MANY)
        jobs = [(variant, "soak", port, port, packets, "--rxd=256 --txpkts=64")]
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
