"""Judges the device's clock through the stock driver: its rate, and timestamps of packets.

hwstamp.py rate PTP_DEVICE SECONDS
    Both clocks of the kernel pass the same time: the PTP hardware clock of the device, and
    CLOCK_MONOTONIC_RAW. Prints the ratio.

hwstamp.py stamps INTERFACE ADDRESS PEER COUNT
    Asks the driver for timestamps of all received and sent packets (SIOCSHWTSTAMP), sends
    datagrams to PEER's echo, and compares each stamp with the PTP hardware clock before and after:
    sent, and received, in between, and in this order.

hwstamp.py echo ADDRESS
    Sends datagrams back to where they came from.
"""
import ctypes
import fcntl
import os
import re
import socket
import struct
import subprocess
import sys
import time

PORT = 26400
SIOCSHWTSTAMP = 0x89B0          # linux/sockios.h
HWTSTAMP_TX_ON = 1              # linux/net_tstamp.h
HWTSTAMP_FILTER_ALL = 1
SO_TIMESTAMPING = 37            # asm-generic/socket.h
TX_HARDWARE, RX_HARDWARE, RAW_HARDWARE = 1 << 0, 1 << 2, 1 << 6


class Phc:
    """The PTP hardware clock of a device, in nanoseconds."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDONLY)
        self.clock = (~self.fd << 3) | 3    # FD_TO_CLOCKID, clock_gettime(2)

    def now(self):
        return time.clock_gettime_ns(self.clock)


def read_both(phc):
    """The PTP clock beside the raw one: the closest of several readings."""
    readings = []
    for _ in range(20):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        there = phc.now()
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        readings.append((after - before, there, (before + after) // 2))
    return min(readings)


def rate(path, seconds):
    phc = Phc(path)
    first_width, first, start = read_both(phc)
    time.sleep(float(seconds))
    last_width, last, end = read_both(phc)
    ratio = (last - first) / (end - start)
    doubt = (first_width + last_width) / (end - start)
    print(f"{path}: {ratio:.6f} of CLOCK_MONOTONIC_RAW, readings good to {doubt:.6f}")
    if abs(ratio - 1) > 0.001 + doubt:
        sys.exit("the clock runs at another rate than the driver computes from its frequency")


def hardware_clock(interface):
    text = subprocess.run(["ethtool", "-T", interface], capture_output=True, text=True).stdout
    number = re.search(r"(?:PTP Hardware Clock|Hardware timestamp provider index): (\d+)", text)
    if number is None:
        sys.exit(f"{interface} has no PTP hardware clock:\n{text}")
    return f"/dev/ptp{number[1]}"


def stamp_of(ancillary):
    """The hardware's timestamp: the third of SCM_TIMESTAMPING."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING:
            seconds, nanoseconds = struct.unpack("6q", data[:48])[4:6]
            return seconds * 1_000_000_000 + nanoseconds
    return 0


def stamps(interface, address, peer, count):
    phc = Phc(hardware_clock(interface))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    config = ctypes.create_string_buffer(
        struct.pack("3i", 0, HWTSTAMP_TX_ON, HWTSTAMP_FILTER_ALL))
    request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(config))
    fcntl.ioctl(udp, SIOCSHWTSTAMP, request)
    udp.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, TX_HARDWARE | RX_HARDWARE | RAW_HARDWARE)
    udp.bind((address, PORT))
    udp.settimeout(10)
    there_and_back = []
    for number in range(int(count)):
        before = phc.now()
        udp.sendto(struct.pack("I", number), (peer, PORT))
        data, ancillary, _, _ = udp.recvmsg(64, 512)
        after = phc.now()
        received = stamp_of(ancillary)
        deadline, sent = time.monotonic() + 10, 0
        while not sent and time.monotonic() < deadline:
            try:
                sent = stamp_of(udp.recvmsg(256, 512, socket.MSG_ERRQUEUE)[1])
            except BlockingIOError:
                time.sleep(0.001)
        if struct.unpack("I", data)[0] != number or not before <= sent <= received <= after:
            sys.exit(f"packet {number}: sent {sent}, received {received}, "
                     f"should lie between {before} and {after}")
        there_and_back.append(received - sent)
    there_and_back.sort()
    print(f"{interface}: {count} packets, every stamp between two readings of the clock; there and "
          f"back {there_and_back[len(there_and_back) // 2]} ns at the median")


def echo(address):
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((address, PORT))
    while True:
        data, sender = udp.recvfrom(64)
        udp.sendto(data, sender)


{"rate": rate, "stamps": stamps, "echo": echo}[sys.argv[1]](*sys.argv[2:])
