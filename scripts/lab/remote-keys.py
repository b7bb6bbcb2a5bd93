"""A stock verbs peer tries what it may and may not do with the keys of perftest's `target`.

remote-keys.py DEVICE GID_INDEX OWN_ADDRESS HOST PORT [CHAPTER...]

Chapters are keys, limits, invalidate, window, fmr and own-window; all of them unless told. Each
refused request must end with a remote access error here and leave the memory there as it was.
Prints a line for each attempt; exit status 1 if one ended otherwise.
"""
import ipaddress
import json
import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SGE, SendWR

MASK = (1 << 64) - 1
MEMORY = 256 << 10
BYTES = 4096
# ibv_wc_flags, rdma-core libibverbs/verbs.h. Soft-RoCE hands out the kernel's own number of it,
# 1 << 2, ib_wc_flags in Linux include/rdma/ib_verbs.h.
WITH_INV = 1 << 3
WITH_INV_RXE = 1 << 2
REMOTE_ACCESS = 0x13    # syndrome at our side, PRM "Completion with Error"
SEQ = 7
WINDOW = 50000          # first byte of a window of theirs


def pattern(seq, start, length):
    """Bytes `start` to `start + length` of message `seq`, as perftest's pattern.rs makes them."""
    out = bytearray()
    for index in range(start // 8, (start + length + 7) // 8):
        z = (seq * 0x9E3779B97F4A7C15 + ((index + 1) << 1)) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        out += (z ^ (z >> 31)).to_bytes(8, "little")
    return bytes(out[start % 8:start % 8 + length])


class Target:
    """perftest at the other end."""

    def __init__(self, host, port):
        self.file = socket.create_connection((host, port), 20).makefile("rw")

    def __call__(self, name, **arguments):
        self.file.write(json.dumps({name: arguments}) + "\n")
        self.file.flush()
        reply = json.loads(self.file.readline())
        if "error" in reply:
            raise RuntimeError(f"{name}: {reply['error']}")
        return reply["ok"]

    def key(self, name, **arguments):
        key = self(name, **arguments)
        return key["rkey"], key["addr"]

    def bind(self, offset, length, *rights, inv=False, other=False):
        return self.key("bind", offset=offset, len=length, rights=list(rights),
                        remote_invalidate=inv, other_domain=other)

    def bind_window(self, *rights):
        return self.key("bind_window", offset=WINDOW, len=1000, rights=list(rights))


class Peer:
    """The stock side: a queue pair at a time."""

    def __init__(self, device, index, address, target):
        self.device, self.context = device, Context(name=device)
        self.pd = PD(self.context)
        access = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
                  | e.IBV_ACCESS_MW_BIND)
        self.mr = MR(self.pd, 2 * BYTES, access)
        self.index, self.address, self.target = index, address, target
        self.qp, self.is_usable = None, False

    def connect(self):
        self.is_usable = True
        if self.qp:
            self.qp.close()
            self.cq.close()
        self.cq = CQ(self.context, 32)
        cap = QPCap(max_send_wr=8, max_recv_wr=8, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap)
        self.qp = QP(self.pd, init)
        there = self.target("connect", qpn=self.qp.qp_num, psn=77, ip=self.address)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
        attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic = e.IBV_MTU_1024, 4, 4
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = there["qpn"], there["psn"], 77
        attr.min_rnr_timer, attr.rnr_retry, attr.timeout, attr.retry_cnt = 12, 7, 16, 7
        ip = ipaddress.ip_address(there["ip"])
        gid = (0xFFFF << 32 | int(ip) if ip.version == 4 else int(ip)).to_bytes(16, "big").hex(":", 2)
        route = GlobalRoute(dgid=GID(gid), sgid_index=self.index)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        self.qp.to_rts(attr)

    def completion(self):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            count, done = self.cq.poll()
            if count:
                return done[0]
        raise RuntimeError("no completion in 20 s")

    def sge(self, length):
        return [SGE(self.mr.buf, length, self.mr.lkey)]

    def post(self, kind, rkey, addr=0, length=8):
        if kind == "send_inv":
            wr = SendWR(opcode=e.IBV_WR_SEND_WITH_INV, num_sge=1, sg=self.sge(length))
            wr.imm_data = rkey
        elif kind == "atomic":
            wr = SendWR(opcode=e.IBV_WR_ATOMIC_FETCH_AND_ADD, num_sge=1, sg=self.sge(8))
            wr.set_wr_atomic(rkey, addr, 1)
        else:
            opcode = e.IBV_WR_RDMA_WRITE if kind == "write" else e.IBV_WR_RDMA_READ
            wr = SendWR(opcode=opcode, num_sge=1, sg=self.sge(length))
            wr.set_wr_rdma(rkey, addr)
        self.qp.post_send(wr)
        return self.completion().status


class Judge:
    """Tries things and keeps the count."""

    def __init__(self, peer, target):
        self.peer, self.target, self.failures = peer, target, 0

    def say(self, good, what, how):
        self.failures += not good
        print(f"{'ok    ' if good else 'FAILED'} {what}: {how}", flush=True)

    def allowed(self, what, kind, rkey, addr=0, length=8):
        if not self.peer.is_usable:
            self.peer.connect()
        status = self.peer.post(kind, rkey, addr, length)
        self.say(status == e.IBV_WC_SUCCESS, what, f"status {status}")

    def refused(self, what, kind, rkey=0, addr=0, length=8, ready=None):
        """On a connection of its own: it does not survive. `ready` gives key and address there."""
        self.peer.connect()
        if ready:
            rkey, addr = ready()
        self.peer.mr.write(bytes([0xA5] * length), length)
        status = self.peer.post(kind, rkey, addr, length)
        same = self.target("compare", seq=SEQ)
        good = status == e.IBV_WC_REM_ACCESS_ERR and same["same"]
        self.say(good, f"{kind} {what}", f"status {status}, memory {same}")
        self.peer.is_usable = False


def life_of_a_key(judge, peer, target):
    """Bound, used, ended here, bound again."""
    rkey, addr = target.bind(8192, 4096, "read", "write", "atomic")
    judge.allowed("READ", "read", rkey, addr, 1000)
    right = peer.mr.read(1000, 0) == pattern(SEQ, 8192, 1000)
    judge.say(right, "what was read", "every byte" if right else "is wrong")
    peer.mr.write(pattern(SEQ + 1, 9000, 500), 500)
    judge.allowed("WRITE", "write", rkey, addr + 808, 500)
    range_ = target("compare", seq=SEQ)
    right = 9000 <= range_["start"] < 9010 and 9490 < range_["end"] <= 9500
    peer.mr.write(bytes(500), 500)
    judge.allowed("READ of it", "read", rkey, addr + 808, 500)
    right = right and peer.mr.read(500, 0) == pattern(SEQ + 1, 9000, 500)
    judge.say(right, "what was written", range_)
    judge.allowed("fetch and add", "atomic", rkey, addr)
    target("fill", seq=SEQ)
    target("end", rkey=rkey)
    for kind in "read", "write", "atomic":
        judge.refused("after LOCAL_INV", kind, rkey, addr)
    again, addr = target.bind(8192, 4096, "read", "write", "atomic")
    same_index = again >> 8 == rkey >> 8 and again != rkey
    judge.say(same_index, "bound again", f"key {rkey:#x}, then {again:#x}")
    judge.allowed("READ by the new key", "read", again, addr)
    for kind in "read", "write":
        judge.refused("by the old key byte", kind, rkey, addr)
    judge.allowed("READ by the new key after that", "read", again, addr)
    target("end", rkey=again)


def limits(judge, target):
    """Out of bounds by one byte, wrong rights, another domain."""
    rkey, addr = target.bind(12288 + 100, 1000, "read", "write")
    judge.allowed("READ of the last byte", "read", rkey, addr + 999, 1)
    for kind in "read", "write":
        judge.refused("one byte past the end", kind, rkey, addr + 999, 2)
        judge.refused("behind the end", kind, rkey, addr + 1000, 1)
        judge.refused("one byte before the start", kind, rkey, addr - 1, 2)
    judge.refused("without the right", "atomic", rkey, addr + 4)
    target("end", rkey=rkey)
    rkey, addr = target.bind(16384, 4096, "read")
    judge.refused("without the right", "write", rkey, addr)
    judge.allowed("READ by a key for reading", "read", rkey, addr)
    target("end", rkey=rkey)
    rkey, addr = target.bind(16384, 4096, "write")
    judge.refused("without the right", "read", rkey, addr)
    target("end", rkey=rkey)
    rkey, addr = target.bind(16384, 4096, "read", "write", "atomic", other=True)
    for kind in "read", "write", "atomic":
        judge.refused("in another domain", kind, rkey, addr)
    target("end", rkey=rkey)


def remote_invalidate(judge, peer, target):
    """This side ends a key of theirs."""
    rkey, addr = target.bind(20480, 4096, "read", "write", inv=True)
    judge.allowed("READ", "read", rkey, addr)
    judge.allowed("SEND with invalidate", "send_inv", rkey, length=24)
    came = target("receive")
    judge.say(came == {"bytes": 24, "invalidated": rkey}, "its receive", came)
    for kind in "read", "write":
        judge.refused("after remote invalidate", kind, rkey, addr)
    kept, addr = target.bind(20480, 4096, "read")
    # The message itself is right: its receiver alone is told, and ends the connection (class J).
    judge.allowed("SEND with invalidate of a key that is not for that", "send_inv", kept)
    peer.is_usable = False
    judge.allowed("READ by that key", "read", kept, addr)
    target("end", rkey=kept)


def window(judge, peer, target):
    """Their side uses, and ends, a memory window of this side."""
    peer.connect()
    with MW(peer.pd, e.IBV_MW_TYPE_2) as mw:
        info = MWBindInfo(peer.mr, peer.mr.buf + BYTES, BYTES,
                          e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ)
        wr = SendWR(opcode=e.IBV_WR_BIND_MW)
        wr.set_bind_wr(mw, info)
        peer.qp.post_send(wr)
        judge.say(peer.completion().status == e.IBV_WC_SUCCESS, "window bound", hex(wr.rkey))
        where = {"addr": peer.mr.buf + BYTES, "rkey": wr.rkey, "len": 1500, "seq": 3}
        done = target("post", operation="write", **where)
        right = done["syndrome"] == 0 and peer.mr.read(1500, BYTES) == pattern(3, 0, 1500)
        judge.say(right, "their WRITE through the window", done)
        done = target("post", operation="read", **where)
        judge.say(done == {"syndrome": 0, "data": True}, "their READ through the window", done)
        peer.qp.post_recv(RecvWR(num_sge=1, sg=self_sge(peer)))
        done = target("post", operation="send_inv", **{**where, "len": 16})
        wc = peer.completion()
        flag = WITH_INV_RXE if peer.device.startswith("rxe") else WITH_INV
        ended = (wc.status, wc.wc_flags & flag, wc.imm_data)
        right = done["syndrome"] == 0 and ended == (e.IBV_WC_SUCCESS, flag, wr.rkey)
        judge.say(right, "their SEND with invalidate", f"{done}, {ended}")
        done = target("post", operation="write", **where)
        judge.say(done["syndrome"] == REMOTE_ACCESS, "their WRITE after that", done)
    peer.is_usable = False


def self_sge(peer):
    return peer.sge(64)


def fmr(judge, peer, target):
    """An FMR of theirs in strict mode: two pages, the later one first."""
    pages = 40960, 36864
    rkey, addr = target.key("map_fmr", pages=pages)
    at = addr + 4000
    judge.allowed("READ across the FMR's pages", "read", rkey, at, 200)
    right = peer.mr.read(200, 0) == pattern(SEQ, 44960, 96) + pattern(SEQ, 36864, 104)
    judge.say(right, "what was read", "every byte" if right else "is wrong")
    peer.mr.write(pattern(SEQ + 1, 0, 200), 200)
    judge.allowed("WRITE across the FMR's pages", "write", rkey, at, 200)
    range_ = target("compare", seq=SEQ)
    right = 36864 <= range_["start"] < 36874 and 45046 < range_["end"] <= 45056
    peer.mr.write(bytes(200), 200)
    judge.allowed("READ of it", "read", rkey, at, 200)
    right = right and peer.mr.read(200, 0) == pattern(SEQ + 1, 0, 200)
    judge.say(right, "what was written", range_)
    target("fill", seq=SEQ)
    for kind in "read", "write":
        judge.refused("behind an FMR", kind, rkey, addr + 8190, 4)
    target("end", rkey=rkey)
    for kind in "read", "write":
        judge.refused("after the FMR was unmapped", kind, rkey, addr)
    again, addr = target.key("map_fmr", pages=pages)
    judge.say(again >> 8 == rkey >> 8 and again != rkey, "mapped again",
              f"key {rkey:#x}, then {again:#x}")
    judge.allowed("READ by the FMR's new key", "read", again, addr)
    for kind in "read", "write":
        judge.refused("by the FMR's old key", kind, rkey, addr)
    target("end", rkey=again)
    for kind in "read", "write":
        judge.refused("after the FMR was unmapped again", kind, again, addr)


def own_window(judge, peer, target):
    """A memory window of theirs, which belongs to the connection that bound it."""
    peer.connect()
    rkey, addr = target.bind_window("read", "write")
    judge.allowed("READ of their window", "read", rkey, addr, 1000)
    right = peer.mr.read(1000, 0) == pattern(SEQ, WINDOW, 1000)
    judge.say(right, "what was read", "every byte" if right else "is wrong")
    peer.mr.write(pattern(SEQ + 1, 0, 16), 16)
    judge.allowed("WRITE to its last bytes", "write", rkey, addr + 984, 16)
    range_ = target("compare", seq=SEQ)
    right = 50984 <= range_["start"] < 50990 and 50994 < range_["end"] <= 51000
    judge.say(right, "what was written", range_)
    target("fill", seq=SEQ)
    target("end", rkey=rkey)

    def bound(*rights, by=0):
        rkey, addr = target.bind_window(*rights)
        left.append(rkey)
        return rkey, addr + by

    def ended():
        rkey, addr = target.bind_window("read", "write")
        target("end", rkey=rkey)
        return rkey, addr

    def ended_from_here():
        rkey, addr = target.bind_window("read", "write")
        judge.allowed("SEND that ends their window", "send_inv", rkey, length=24)
        came = target("receive")
        judge.say(came == {"bytes": 24, "invalidated": rkey}, "its receive", came)
        return rkey, addr

    def of_another_connection():
        key = bound("read", "write")
        peer.connect()
        return key

    for what, length, rights, ready in [
        ("one byte past the end of a window", 2, "rw", lambda *r: bound(*r, by=999)),
        ("one byte before a window", 2, "rw", lambda *r: bound(*r, by=-1)),
        ("without the right of a window", 8, "r", bound),
        ("without the right of a window", 8, "w", bound),
        ("through a window of another connection", 8, "rw", lambda *_: of_another_connection()),
        ("after LOCAL_INV of a window", 8, "rw", lambda *_: ended()),
        ("after remote invalidate of a window", 8, "rw", lambda *_: ended_from_here()),
    ]:
        granted = [{"r": "read", "w": "write"}[right] for right in rights]
        for kind in "read", "write":
            if len(granted) == 1 and kind in granted:
                continue
            left = []
            judge.refused(what, kind, length=length, ready=lambda: ready(*granted))
            for rkey in left:
                target("end", rkey=rkey)


CHAPTERS = {
    "keys": life_of_a_key,
    "limits": lambda judge, peer, target: limits(judge, target),
    "invalidate": remote_invalidate,
    "window": window,
    "fmr": fmr,
    "own-window": own_window,
}


def main():
    device, index, address, host, port, *chapters = sys.argv[1:]
    target = Target(host, int(port))
    peer = Peer(device, int(index), address, target)
    judge = Judge(peer, target)
    target("fill", seq=SEQ)
    for chapter in chapters or CHAPTERS:
        CHAPTERS[chapter](judge, peer, target)
    if judge.failures:
        sys.exit(f"{judge.failures} attempt(s) ended otherwise")


main()
