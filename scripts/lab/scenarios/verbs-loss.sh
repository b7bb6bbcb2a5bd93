# about: reliable connections over a cable that loses, repeats, overtakes and damages frames
# machine: bad-cables
# timeout: 400
# shellcheck shell=bash source=scripts/lab/verbs.sh source-path=SCRIPTDIR
source /host/lab/verbs.sh

# A queue pair whose peer is gone: how a SEND ends, and after how long. Timeout 4.096 us * 2^n.
readonly NOBODY='
import sys, time
from pyverbs.addr import AHAttr, GlobalRoute, GID
from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR
device, index, peer, timeout, retries = sys.argv[1:]
context = Context(name=device)
pd, cq = PD(context), CQ(context, 4)
mr = MR(pd, 64, e.IBV_ACCESS_LOCAL_WRITE)
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(1, 1, 1, 1)))
route = GlobalRoute(dgid=GID(peer), sgid_index=int(index))
attr = QPAttr(port_num=1)
attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic = e.IBV_MTU_1024, 1, 1
attr.dest_qp_num, attr.rq_psn, attr.sq_psn = 0xabcde, 1, 1
attr.min_rnr_timer, attr.rnr_retry = 1, 7
attr.timeout, attr.retry_cnt = int(timeout), int(retries)
attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
qp.to_rts(attr)
begun = time.monotonic()
qp.post_send(SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(mr.buf, 64, mr.lkey)]))
done = []
while not done and time.monotonic() < begun + 20:
    _, done = cq.poll()
seconds = time.monotonic() - begun
status = done[0].status if done else None
configured = 4.096e-6 * 2 ** int(timeout) * (int(retries) + 1)
print(f"timeout {timeout}, retries {retries}: status {status} after {seconds:.3f} s, "
      f"{configured:.3f} s configured")
sys.exit(not (status == e.IBV_WC_RETRY_EXC_ERR and configured <= seconds < configured + 0.5))
'

gone() {
    local line status=0
    line=$(python3 -c "$NOBODY" "${DEVICE[1]}" "${GID[1]}" \
        "$(attribute "${DEVICE[0]}" "gids/${GID[0]}")" "$@") || status=$?
    RESULTS+=("peer gone, $line")
    return $status
}

LIMIT=60
TRIES=3
without_key_cache
load_rdma 2
must modprobe rdma_ucm
peer_ports "$(netdev_of mlx5_0)" 10.1.0.1 "$(netdev_of mlx5_1)" 10.1.0.2
ends mlx5_0 10.1.0.1 mlx5_1 10.1.0.2
pingpong ibv_rc_pingpong -n 100 -c -s 1000
pingpong ibv_rc_pingpong -n 20 -c -s 65536
pingpong ibv_rc_pingpong -n 3 -c -m 256 -s 262144
pingpong ibv_srq_pingpong -n 20 -c -s 10000
meet 'rping, data verified' rping -s -a "${ADDRESS[0]}" -C 20 -V -S 20000 -- \
    rping -c -a "${ADDRESS[0]}" -I "${ADDRESS[1]}" -C 20 -V -S 20000
copy 2048
perftest ib_write_bw -n 20 -s 65536 -q 2
perftest ib_read_bw -n 20 -s 65536 -q 2
perftest ib_atomic_bw -n 100 -A FETCH_AND_ADD
for name in packet_seq_err local_ack_timeout_err out_of_sequence duplicate_request; do
    check counted $name
done
check gone 14 7
check gone 17 1
check gone 18 0
check counted req_transport_retries_exceeded
check_dmesg
table
verdict
