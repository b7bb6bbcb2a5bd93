"""Sends datagrams to a group as rdma_cm's mckey does, and waits until they are sent.

multicast.py DEVICE GID_INDEX GROUP COUNT BYTES

mckey destroys its queue pair right after posting, and Soft-RoCE with it what was not sent yet.
"""
import ipaddress
import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

QKEY = 0x01234567       # RDMA_UDP_QKEY, rdma-core librdmacm/rdma_cma.h
MULTICAST = 0xFFFFFF    # queue pair of every group


def main():
    device, index, group, count, size = sys.argv[1:]
    context = Context(name=device)
    pd = PD(context)
    mr = MR(pd, int(size), e.IBV_ACCESS_LOCAL_WRITE)
    cq = CQ(context, 8)
    cap = QPCap(max_send_wr=8, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=cq, rcq=cq, cap=cap))
    attr = QPAttr(port_num=1)
    attr.qkey = QKEY
    qp.to_rts(attr)
    ip = ipaddress.ip_address(group)
    gid = (0xFFFF << 32 | int(ip) if ip.version == 4 else int(ip)).to_bytes(16, "big").hex(":", 2)
    route = GlobalRoute(dgid=GID(gid), sgid_index=int(index), hop_limit=1)
    ah = AH(pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
    deadline = time.monotonic() + 20
    for _ in range(int(count)):
        wr = SendWR(opcode=e.IBV_WR_SEND_WITH_IMM, num_sge=1, sg=[SGE(mr.buf, int(size), mr.lkey)])
        wr.imm_data = socket.htonl(qp.qp_num)
        wr.set_wr_ud(ah, MULTICAST, QKEY)
        qp.post_send(wr)
        done = []
        while not done:
            _, done = cq.poll()
            if time.monotonic() > deadline:
                sys.exit("a datagram was not sent in 20 s")
        if done[0].status != e.IBV_WC_SUCCESS:
            sys.exit(f"a datagram failed: status {done[0].status}")


main()
