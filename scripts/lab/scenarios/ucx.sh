# about: UCX by DevX between two ports of the model: its own queue pairs, shared receives and keys
# machine: stock
# timeout: 400
# shellcheck shell=bash source=scripts/lab/verbs.sh source-path=SCRIPTDIR
source /host/lab/verbs.sh

# UCX has other sockets that listen; this is the one for meeting, port 13337.
ucx_listens() { grep -qs ':3419 .* 0A ' /proc/net/tcp /proc/net/tcp6; }

# ucx TRANSPORTS TEST [OPTION...]
ucx() {
    local READY=ucx_listens end own=()
    local tool=(ucx_perftest -P 0 -t "$2" -n 100 -w 10 "${@:3}")
    for end in 0 1; do
        own[end]="UCX_NET_DEVICES=${DEVICE[$end]}:1 UCX_IB_GID_INDEX=${GID[$end]}"
    done
    # shellcheck disable=SC2086 # two variables each
    meet "ucx_perftest $*" env UCX_TLS="$1" ${own[0]} "${tool[@]}" -- \
        env UCX_TLS="$1" ${own[1]} "${tool[@]}" localhost
}

# Without DevX these transports do not exist, and what UCX asks of it must not be refused but for
# a page of capabilities that a ConnectX-5 has not.
by_devx() {
    local refused
    UCX_NET_DEVICES=mlx5_0:1 ucx_info -d >/run/transports.log 2>&1
    grep -q 'Transport: rc_mlx5' /run/transports.log || fail "UCX has no rc_mlx5"
    refused=$(grep 'failed on mlx5' /run/transports.log /run/server.log /run/client.log)
    [ -z "$refused" ] || fail "$refused"
}

load_rdma 2
must ip link set lo up
peer_ports "$(netdev_of mlx5_0)" 10.1.0.1 "$(netdev_of mlx5_1)" 10.1.0.2
ends mlx5_0 10.1.0.1 mlx5_1 10.1.0.2

LIMIT=90 # seconds; the first of them reads its libraries from a cold disk
ucx rc_mlx5,ud_mlx5:aux tag_bw -s 4096
ucx ud_mlx5 tag_lat -s 4096
whole ucx rc_mlx5,ud_mlx5:aux tag_bw -s 1048576
whole ucx rc_mlx5,ud_mlx5:aux ucp_put_lat -s 4096
whole ucx rc_mlx5,ud_mlx5:aux ucp_get -s 65536
whole ucx rc_mlx5,ud_mlx5:aux ucp_fadd -s 8
whole ucx rc_mlx5,ud_mlx5:aux stream_lat -s 1000
whole ucx rc_verbs,ud_verbs:aux tag_bw -s 4096
whole ucx all tag_bw -s 65536
by_devx
check_dmesg
table
verdict
