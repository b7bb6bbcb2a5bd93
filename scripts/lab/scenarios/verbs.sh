# about: the verbs tools of rdma-core and perftest between two ports of the model
# machine: stock
# capture: yes
# refusals: none
# counts: inline_receives inline_answers
# timeout: 400
# shellcheck shell=bash source=scripts/lab/verbs.sh source-path=SCRIPTDIR
source /host/lab/verbs.sh

# The same over RoCEv1, whose entries of the GID table stand in front of those of RoCEv2.
version_1() {
    local GID=() end
    for end in 0 1; do
        GID+=("$(gid_index "${DEVICE[$end]}" "${ADDRESS[$end]}" 'IB/RoCE v1')") ||
            fail "${DEVICE[$end]} has no RoCEv1 GID of ${ADDRESS[$end]}"
    done
    step "RoCEv1, GIDs ${GID[*]}"
    for test in rc uc ud srq; do pingpong "ibv_${test}_pingpong" -n 20 -c -s 1000; done
    perftest ib_write_bw -n 20 -s 65536 -q 2
    perftest ib_read_bw -n 20 -s 65536 -q 2
    perftest ib_atomic_lat -n 20 -A FETCH_AND_ADD
    check answers
}

# The connection manager over RoCEv1: its datagrams, and the connections that it makes.
manager_version_1() {
    local end
    for end in 0 1; do default_version "${DEVICE[$end]}" 'IB/RoCE v1'; done
    meet 'rping over RoCEv1, data verified' rping -s -a "${ADDRESS[0]}" -C 10 -V -S 1000 -- \
        rping -c -a "${ADDRESS[0]}" -I "${ADDRESS[1]}" -C 10 -V -S 1000
    manager udaddy -C 10 -c 4 -S 1000
    for end in 0 1; do default_version "${DEVICE[$end]}" 'RoCE v2'; done
}

# default_version DEVICE TYPE: what the connection manager uses there.
default_version() {
    local config=/sys/kernel/config/rdma_cm
    mkdir -p "$config/$1"
    must set_file "$config/$1/ports/1/default_roce_mode" "$2"
}

set_file() { echo "$2" >"$1"; }

# Datagrams to a group, joined over the connection manager.
joined() { ip maddr show dev "$(netdev_of mlx5_0)" | grep -q 239.1.2.3; }
multicast() {
    READY=joined meet 'mckey, multicast' mckey -m 239.1.2.3 -b "${ADDRESS[0]}" -C 10 -S 1000 -- \
        mckey -m 239.1.2.3 -b "${ADDRESS[1]}" -C 10 -S 1000 -s
}

# Data that travel in completions, and atomics under masks; both ends in one process.
answers() {
    local line
    line=$(python3 /host/lab/requests.py mlx5_0 "${GID[0]}" mlx5_1 "${GID[1]}" 2>&1) || {
        echo "$line"
        return 1
    }
    RESULTS+=("$(printf '%-6s %s, CQEs of %s bytes' ok "$line" "${MLX5_CQE_SIZE:-64}")")
}

without_key_cache
load_rdma 2
must modprobe rdma_ucm
peer_ports "$(netdev_of mlx5_0)" 10.1.0.1 "$(netdev_of mlx5_1)" 10.1.0.2
ends mlx5_0 10.1.0.1 mlx5_1 10.1.0.2

# With -c these look at every byte that arrives.
for test in rc uc ud srq; do pingpong "ibv_${test}_pingpong" -n 50 -c -s 1000; done
for test in rc ud srq; do pingpong "ibv_${test}_pingpong" -n 20 -e; done
# Short messages that travel in their completions, of 64 bytes and of 128, and those just too long.
for size in 1 32 33; do
    for test in rc uc srq; do pingpong "ibv_${test}_pingpong" -n 20 -c -s $size; done
done
for size in 64 65; do MLX5_CQE_SIZE=128 pingpong ibv_rc_pingpong -n 20 -c -s $size; done
check answers
MLX5_CQE_SIZE=128 check answers
pingpong ibv_rc_pingpong -n 2 -c -m 256 -s 1048576
pingpong ibv_rc_pingpong -n 20 -N -t
over_ipv6 ibv_rc_pingpong -n 20 -c
over_ipv6 ibv_ud_pingpong -n 20 -c -s 1000
pingpong ibv_xsrq_pingpong
pingpong ibv_xsrq_pingpong -e

for test in send write; do
    for service in RC UC; do
        perftest "ib_${test}_lat" -c $service -n 20 -s 1
        perftest "ib_${test}_bw" -c $service -n 20 -s 65536 -q 2
    done
done
perftest ib_send_lat -c UD -n 20 -s 64
# It arms over the completion that an event told of: no second event may come of that.
perftest ib_send_lat -e -n 50 -s 64
perftest ib_send_bw -c UD -n 20 -s 1024
perftest ib_send_bw -n 5 -s 1048576
perftest ib_write_bw -n 5 -s 1048576 -q 2
perftest ib_read_lat -n 20 -s 1
perftest ib_read_bw -n 20 -s 65536 -q 2
perftest ib_read_bw -n 5 -s 524288 -b
perftest ib_atomic_lat -n 20 -A FETCH_AND_ADD
perftest ib_atomic_bw -n 20 -A CMP_AND_SWAP
perftest ib_send_bw -n 20 -s 4096 -e -r 64 --use-srq -q 4
perftest ib_write_lat -n 20 -s 64 -R
meet 'rping, data verified' rping -s -a "${ADDRESS[0]}" -C 10 -V -S 1000 -- \
    rping -c -a "${ADDRESS[0]}" -I "${ADDRESS[1]}" -C 10 -V -S 1000
manager ucmatose -C 10 -c 4 -S 1000
manager udaddy -C 10 -c 4 -S 1000
meet 'rdma_client' rdma_server -p 7471 -- rdma_client -s "${ADDRESS[0]}" -p 7471
for kind in r x; do
    meet "rdma_xclient -c $kind" rdma_xserver -c $kind -- rdma_xclient -s "${ADDRESS[0]}" -c $kind
done
copy 512
multicast
version_1
manager_version_1
# The cables mark packets as having met congestion; the ports tell each other.
for name in np_ecn_marked_roce_packets np_cnp_sent rp_cnp_handled; do check counted $name; done
check_dmesg
table
verdict
