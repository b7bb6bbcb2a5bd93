#!/usr/bin/env python3
"""Requests whose data take unusual ways, over libmlx5, between two devices of one host.

usage: requests.py DEVICE INDEX PEER INDEX

INDEX is the GID to use; the two ends know each other's from sysfs. Short SENDs, and short READs and
atomics of a queue pair that signals every request: libmlx5 lets their data travel in completions
and copies them into the buffers itself. Every byte is compared: the pingpong tools with -c look at
one byte a page. Atomics under masks: libmlx5 has no call for them, so they are
posted as raw work requests, whose bytes are written here; what comes of them is compared with the
vendor's pseudo-code. Ends with 1 at the first difference.
"""
import os
import random
import struct
import sys
import time

import pyverbs.enums as e
import pyverbs.providers.mlx5.mlx5_enums as dve
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.providers.mlx5.mlx5dv import (Mlx5Context, Mlx5DVContextAttr, Mlx5DVQPInitAttr,
                                           Mlx5QP, Wqe)
from pyverbs.qp import QPAttr, QPCap, QPInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR

ACCESS = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE |
          e.IBV_ACCESS_REMOTE_ATOMIC)
LEN = 4096
MASKED_SWAP, MASKED_ADD = 0x14, 0x15


class End:
    """One end: a memory region and a queue pair that signals every request."""

    def __init__(self, device, index):
        self.device, self.index = device, int(index)
        self.context = Mlx5Context(Mlx5DVContextAttr(), name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 16)
        self.mr = MR(self.pd, LEN, ACCESS)
        mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        init = QPInitAttrEx(qp_type=e.IBV_QPT_RC, pd=self.pd, scq=self.cq, rcq=self.cq,
                            cap=QPCap(8, 8, 2, 2), sq_sig_all=1, comp_mask=mask,
                            send_ops_flags=e.IBV_QP_EX_WITH_SEND)
        raw = Mlx5DVQPInitAttr(comp_mask=dve.MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
                               send_ops_flags=dve.MLX5DV_QP_EX_WITH_RAW_WQE)
        self.qp = Mlx5QP(self.context, init, raw)

    def gid(self):
        with open(f'/sys/class/infiniband/{self.device}/ports/1/gids/{self.index}') as file:
            return file.read().strip()

    def connect(self, peer):
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ACCESS
        attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic = e.IBV_MTU_1024, 4, 4
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = peer.qp.qp_num, 1, 1
        attr.min_rnr_timer, attr.rnr_retry, attr.timeout, attr.retry_cnt = 1, 7, 14, 7
        route = GlobalRoute(dgid=GID(peer.gid()), sgid_index=self.index)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        self.qp.to_rts(attr)

    def done(self):
        """Waits for a completion; libmlx5 copies an answer that travelled in it."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            count, done = self.cq.poll()
            if count:
                return done[0].status
        sys.exit('no completion')


def same(what, found, expected):
    if found != expected:
        sys.exit(f'{what}: {found} is not {expected}')


def halves(end, length):
    return [SGE(end.mr.buf, length // 2, end.mr.lkey),
            SGE(end.mr.buf + length // 2, length - length // 2, end.mr.lkey)]


def send(ours, theirs, length):
    data = random.randbytes(length)
    ours.mr.write(data, length)
    theirs.mr.write(b'\xee' * (length + 1), length + 1)
    theirs.qp.post_recv(RecvWR(num_sge=2, sg=halves(theirs, length)))
    ours.qp.post_send(SendWR(opcode=e.IBV_WR_SEND, num_sge=1,
                             sg=[SGE(ours.mr.buf, length, ours.mr.lkey)]))
    same(f'SEND of {length}, status', ours.done(), e.IBV_WC_SUCCESS)
    same(f'receive of {length}, status', theirs.done(), e.IBV_WC_SUCCESS)
    same(f'SEND of {length}', theirs.mr.read(length + 1, 0), data + b'\xee')


def read(ours, theirs, length):
    data = random.randbytes(length)
    theirs.mr.write(data, length, 64)
    ours.mr.write(b'\xee' * (length + 1), length + 1)
    request = SendWR(opcode=e.IBV_WR_RDMA_READ, num_sge=2, sg=halves(ours, length))
    request.set_wr_rdma(theirs.mr.rkey, theirs.mr.buf + 64)
    ours.qp.post_send(request)
    same(f'READ of {length}, status', ours.done(), e.IBV_WC_SUCCESS)
    same(f'READ of {length}', ours.mr.read(length + 1, 0), data + b'\xee')


def atomic(ours, theirs, opcode, add, compare, old, new):
    theirs.mr.write(struct.pack('=Q', old), 8, 64)
    ours.mr.write(b'\xee' * 8, 8)
    request = SendWR(opcode=opcode, num_sge=1, sg=[SGE(ours.mr.buf, 8, ours.mr.lkey)])
    # add or compare first, then what is swapped in
    if opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD:
        request.set_wr_atomic(theirs.mr.rkey, theirs.mr.buf + 64, add)
    else:
        request.set_wr_atomic(theirs.mr.rkey, theirs.mr.buf + 64, compare, add)
    ours.qp.post_send(request)
    same('atomic, status', ours.done(), e.IBV_WC_SUCCESS)
    same('atomic, answer', struct.unpack('=Q', ours.mr.read(8, 0))[0], old)
    same('atomic, memory', struct.unpack('=Q', theirs.mr.read(8, 64))[0], new)


def added(old, add, boundary, bits):
    """Field by field, as the vendor's documentation prints it."""
    result = carry = 0
    for bit in range(bits):
        total = (old >> bit & 1) + (add >> bit & 1) + carry
        result |= (total & 1) << bit
        carry = 0 if boundary >> bit & 1 else total >> 1
    return result


def masked(ours, theirs, opcode, size):
    """A masked atomic of random operands. Source of the layout: UCX's mlx5 transport."""
    bits, unit = size * 8, '>I' if size == 4 else '>Q'
    old, value, compare, first, second = (random.getrandbits(bits) for _ in range(5))
    if opcode == MASKED_SWAP:
        if random.random() < 0.5:
            compare = old & second | compare & ~second
        hit = (old ^ compare) & second == 0
        new = old & ~first | value & first if hit else old
        operands = [value, compare, first, second]
    else:
        new = added(old, value, first, bits)
        operands = [value, first]
    segment = b''.join(struct.pack(unit, operand) for operand in operands).ljust(16, b'\0')
    native = '=I' if size == 4 else '=Q'
    theirs.mr.write(b'\x77' * 16, 16, 64)
    theirs.mr.write(struct.pack(native, old), size, 72)
    ours.mr.write(b'\xee' * 8, 8)
    code = (8 | size.bit_length() - 3) << 24 | opcode
    units = 3 + len(segment) // 16
    wqe = struct.pack('>IIII', code, ours.qp.qp_num << 8 | units, dve.MLX5_WQE_CTRL_CQ_UPDATE, 0)
    wqe += struct.pack('>QII', theirs.mr.buf + 72, theirs.mr.rkey, 0) + segment
    wqe += struct.pack('>IIQ', size, ours.mr.lkey, ours.mr.buf)
    ours.qp.wr_start()
    ours.qp.wr_raw_wqe(Wqe([wqe]))
    ours.qp.wr_complete()
    what = f'masked {opcode:#x} of {size} bytes'
    same(f'{what}, status', ours.done(), e.IBV_WC_SUCCESS)
    # Eight bytes come back in the order of the host, as Linux has it set; four are big-endian.
    answer = struct.unpack('>I' if size == 4 else '=Q', ours.mr.read(size, 0))[0]
    same(f'{what}, answer', answer, old)
    around = b'\x77' * 8 + struct.pack(native, new) + b'\x77' * (8 - size)
    same(f'{what}, memory', theirs.mr.read(16, 64), around)


def main():
    device, index, peer, peer_index = sys.argv[1:]
    ours, theirs = End(device, index), End(peer, peer_index)
    ours.connect(theirs)
    theirs.connect(ours)
    sizes = (1, 2, 31, 32, 33, 63, 64, 65, 100, 2000)
    for length in sizes:
        send(ours, theirs, length)
    # libmlx5 of rdma-core 56 looks for the answer one byte in front of a completion of 128 bytes,
    # instead of in its first half; later versions do not.
    is_wide = os.environ.get('MLX5_CQE_SIZE') == '128'
    reads = [length for length in sizes if not is_wide or length > 64]
    for length in reads:
        read(ours, theirs, length)
    add, swap = e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_ATOMIC_CMP_AND_SWP
    atomic(ours, theirs, add, 5, 0, 0x1122334455667788, 0x112233445566778d)
    atomic(ours, theirs, swap, 7, 0x1122334455667788, 0x1122334455667788, 7)
    atomic(ours, theirs, swap, 7, 9, 0x1122334455667788, 0x1122334455667788)
    for _ in range(50):
        for opcode in (MASKED_SWAP, MASKED_ADD):
            for size in (4, 8):
                masked(ours, theirs, opcode, size)
    print(f'{len(sizes)} SENDs, {len(reads)} READs, 3 atomics, 200 masked atomics')


main()
