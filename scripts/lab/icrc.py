#!/usr/bin/env python3
"""Checks the ICRC of every RoCE packet of a capture, of version 1 and 2.

usage: icrc.py CAPTURE [WRONG]

Written from the specification (IBTA vol. 1, 7.8.1; annexes A16 and A17), not from the model: the
CRC of Ethernet over eight bytes of ones, then the packet from its network header to its padding,
with ones for what routers and receivers change. Its rule for IPv4 agrees with a packet of a
ConnectX-4 Lx, see `hardware_computes_the_same` of the model. Prints how many packets of each kind
it saw, and the numbers of the first that are wrong; ends with 1 if those are not WRONG, else 0.
"""
import struct
import sys
import zlib

KINDS = {0x0800: 'RoCEv2, IPv4', 0x86dd: 'RoCEv2, IPv6', 0x8915: 'RoCEv1'}
PORT = 4791


def frames(file):
    """Frames of a pcapng file of one byte order; blocks of other kinds are passed over."""
    data = memoryview(file.read())
    order = '<' if bytes(data[8:12]) == b'\x4d\x3c\x2b\x1a' else '>'
    at = 0
    while at + 12 <= len(data):
        kind, length = struct.unpack_from(order + 'II', data, at)
        if kind == 6:
            taken = struct.unpack_from(order + 'I', data, at + 20)[0]
            yield bytes(data[at + 28:at + 28 + taken])
        at += length


def roce(frame):
    """Kind, packet without ICRC, variant fields, ICRC; None if it is no RoCE packet."""
    at, kind = 14, struct.unpack_from('>H', frame, 12)[0]
    if kind == 0x8100:
        at, kind = 18, struct.unpack_from('>H', frame, 16)[0]
    if kind not in KINDS:
        return None
    packet = frame[at:]
    if kind == 0x0800:
        if packet[9] != 17 or struct.unpack_from('>H', packet, 22)[0] != PORT:
            return None
        end = struct.unpack_from('>H', packet, 2)[0]
        variant = {1: 255, 8: 255, 10: 255, 11: 255, 26: 255, 27: 255, 32: 255}
    else:
        end = 40 + struct.unpack_from('>H', packet, 4)[0]
        variant = {0: 0x0f, 1: 255, 2: 255, 3: 255, 7: 255}
        if kind == 0x8915:
            variant[44] = 255
        elif packet[6] != 17 or struct.unpack_from('>H', packet, 42)[0] != PORT:
            return None
        else:
            variant.update({46: 255, 47: 255, 52: 255})
    return KINDS[kind], packet[:end - 4], variant, packet[end - 4:end]


def icrc(packet, variant):
    packet = bytearray(packet)
    for at, bits in variant.items():
        packet[at] |= bits
    return zlib.crc32(b'\xff' * 8 + packet).to_bytes(4, 'little')


def main():
    seen, wrong = dict.fromkeys(KINDS.values(), 0), []
    with open(sys.argv[1], 'rb') as file:
        for number, frame in enumerate(frames(file), 1):
            found = roce(frame)
            if found is None:
                continue
            kind, packet, variant, tail = found
            seen[kind] += 1
            if icrc(packet, variant) != tail:
                wrong.append(number)
    print(', '.join(f'{kind}: {count}' for kind, count in seen.items()))
    for number in wrong[:20]:
        print(f'frame {number}: wrong ICRC')
    expected = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    if len(wrong) != expected:
        sys.exit(f'{len(wrong)} wrong ICRCs instead of {expected}')


main()
