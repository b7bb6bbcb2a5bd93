# about: the verbs tools between a port of the model and Soft-RoCE (rdma_rxe), in both roles
# machine: stock
# capture: yes
# wrong-icrcs: 20
# refusals: none
# timeout: 400
# shellcheck shell=bash source=scripts/lab/verbs.sh source-path=SCRIPTDIR
source /host/lab/verbs.sh

# A packet for the general services queue pair of the second port, as `count` frames of the first;
# `flip` spoils the ICRC. Its check sequence is computed here once more, and judged by rdma_rxe.
readonly PACKET='
import socket, struct, sys, zlib
netdev, there, here, source, target, count, flip = sys.argv[1:]
mac = lambda text: bytes.fromhex(text.replace(":", ""))
payload = bytes(range(256))
bth = bytes.fromhex("6400ffff00000001") + bytes(4)
deth = bytes.fromhex("8001000000000001")
udp = struct.pack(">HHHH", 0xc000, 4791, 8 + 12 + 8 + 256 + 4, 0)
def ip(tos, ttl, checksum):
    return struct.pack(">BBHHHBBH4s4s", 0x45, tos, 20 + 8 + 12 + 8 + 256 + 4, 0, 0x4000, ttl, 17,
                       checksum, socket.inet_aton(source), socket.inet_aton(target))
total = sum(struct.unpack(">10H", ip(0, 64, 0)))
total = (total & 0xffff) + (total >> 16)
masked = (bytes(8 * [0xff]) + ip(0xff, 0xff, 0xffff) + udp[:6] + bytes([0xff] * 2)
          + bth[:4] + bytes([0xff]) + bth[5:] + deth + payload)
icrc = struct.pack("<I", zlib.crc32(masked) ^ int(flip))
frame = (mac(there) + mac(here) + bytes([8, 0]) + ip(0, 64, ~total & 0xffff) + udp + bth + deth
         + payload + icrc)
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
sender.bind((netdev, 0))
for _ in range(int(count)):
    sender.send(frame)
'

received() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts; }

has_received() { [ "$(received)" -ge "$1" ]; }

# rdma_rxe counts a packet once its ICRC is right.
icrc_is_judged() {
    local before right wrong
    before=$(received)
    python3 -c "$PACKET" "$MODEL_NETDEV" "$(cat "/sys/class/net/$RXE_NETDEV/address")" \
        "$(cat "/sys/class/net/$MODEL_NETDEV/address")" 10.1.0.1 10.1.0.2 20 0 || return
    until_true 20 has_received $((before + 20))
    right=$(($(received) - before))
    python3 -c "$PACKET" "$MODEL_NETDEV" "$(cat "/sys/class/net/$RXE_NETDEV/address")" \
        "$(cat "/sys/class/net/$MODEL_NETDEV/address")" 10.1.0.1 10.1.0.2 20 1 || return
    sleep 1
    wrong=$(($(received) - before - right))
    RESULTS+=("rdma_rxe took $right of 20 packets with a right ICRC, $wrong of 20 with a wrong one")
    [ "$right" -eq 20 ] && [ "$wrong" -eq 0 ]
}

# The tools, from the second end to the first.
tools() {
    local test
    for test in rc uc ud; do pingpong "ibv_${test}_pingpong" -n 20 -c -s 1000; done
    pingpong ibv_rc_pingpong -n 3 -c -s 100003
    pingpong ibv_srq_pingpong -n 20 -c -s 1000
    over_ipv6 ibv_rc_pingpong -n 20 -c -s 1000
    over_ipv6 ibv_ud_pingpong -n 20 -c -s 1000
    perftest ib_send_lat -n 10 -s 1
    perftest ib_send_bw -n 10 -s 65536 -q 2
    perftest ib_write_bw -n 10 -s 65536 -q 2
    # Soft-RoCE serves 128 reads at a time, a port of the model starts 16.
    perftest ib_read_bw -n 10 -s 65536 -q 2 -o 16
    perftest ib_atomic_bw -n 10 -A FETCH_AND_ADD -o 16
    perftest ib_atomic_bw -n 10 -A CMP_AND_SWAP -o 16
    perftest ib_send_bw -c UD -n 10 -s 1024
    meet 'rping, data verified' rping -s -a "${ADDRESS[0]}" -C 5 -V -S 1000 -- \
        rping -c -a "${ADDRESS[0]}" -I "${ADDRESS[1]}" -C 5 -V -S 1000
    manager ucmatose -C 5 -c 2 -S 1000
    manager udaddy -C 5 -c 2 -S 1000
}

without_key_cache
load_rdma 2
must modprobe rdma_ucm
must modprobe rdma_rxe
MODEL_NETDEV=$(netdev_of mlx5_0)
RXE_NETDEV=$(netdev_of mlx5_1)
# The second port is an Ethernet port only; Soft-RoCE runs on its netdev.
must sh -c 'echo mlx5_core.rdma.1 >/sys/bus/auxiliary/drivers/mlx5_ib.rdma/unbind'
must rdma link add rxe0 type rxe netdev "$RXE_NETDEV"
peer_ports "$MODEL_NETDEV" 10.1.0.1 "$RXE_NETDEV" 10.1.0.2
check icrc_is_judged
RESULTS+=('server mlx5_0, client rxe0')
ends mlx5_0 10.1.0.1 rxe0 10.1.0.2
tools
RESULTS+=('server rxe0, client mlx5_0')
ends rxe0 10.1.0.2 mlx5_0 10.1.0.1
tools
check_dmesg
table
verdict
