# about: stock RDMA programs on vfio-pci by our libibverbs against the same on mlx5_ib and rdma_rxe
# machine: vfio
# program: ferrocx-cxctl cxctl
# library: ferrocx-verbs-abi ibverbs
# capture: yes
# timeout: 500
# shellcheck shell=bash source=scripts/lab/vfio.sh source-path=SCRIPTDIR
source /host/lab/vfio.sh
# shellcheck source=scripts/lab/verbs.sh source-path=SCRIPTDIR
source /host/lab/verbs.sh

LIMIT=90
readonly OURS=0000:02:00.0 OUR_ADDRESS=10.1.0.2 STOCK_ADDRESS=10.1.0.1

# What both ends run is the same file of Debian's; ours finds another library behind it.
OUR_RUN=(env FERROCX_LOG=info /run/cxctl run --device "$OURS" --address "$OUR_ADDRESS/24"
    --mtu 4200)

listening() { listens || grep -qs 'listening' /run/server.log; }
READY=listening

# against DEVICE: the stock side from now on.
against() {
    STOCK=$1
    until_true 20 gid_index "$STOCK" "$STOCK_ADDRESS" || fail "$STOCK has no GID of its address"
    STOCK_GID=$(gid_index "$STOCK" "$STOCK_ADDRESS")
}

# both NAME DEVICE-OPTION GID-OPTION TOOL ARGUMENT...: the tool at both ends, in both roles. They
# meet by TCP.
both() {
    local device=$1 gid=$2 ours theirs
    shift 2
    ours=("${OUR_RUN[@]}" "$@" "$device" ferrocx0 "$gid" 0)
    theirs=("$@" "$device" "$STOCK" "$gid" "$STOCK_GID")
    meet "ours <- $STOCK  $*" "${ours[@]}" -- "${theirs[@]}" localhost
    meet "$STOCK <- ours  $*" "${theirs[@]}" -- "${ours[@]}" localhost
}

programs() {
    both -d -g ibv_rc_pingpong -c -n 50 -s 100000
    whole both -d -g ibv_rc_pingpong -c -n 50 -e
    whole both -d -g ibv_uc_pingpong -c -n 50
    both -d -g ibv_ud_pingpong -c -n 50 -s 1000
    both -d -x ib_write_bw -F -n 50 -s 65536
}

# What rdma_rxe has no queues for, or takes too long over.
more_programs() {
    both -d -g ibv_srq_pingpong -c -n 50
    both -d -x ib_send_lat -F -n 50 -e
    whole both -d -x ib_read_lat -F -n 50
    whole both -d -x ib_atomic_bw -F -n 50
}

# By rdma_cm, whose commands our library answers for the stock librdmacm at our end.
connections() {
    meet "ours <- $STOCK  rping" "${OUR_RUN[@]}" rping -s -a "$OUR_ADDRESS" -C 5 -V -S 1000 -- \
        rping -c -a "$OUR_ADDRESS" -C 5 -V -S 1000
    meet "$STOCK <- ours  rping" rping -s -a "$STOCK_ADDRESS" -C 5 -V -S 1000 -- \
        "${OUR_RUN[@]}" rping -c -a "$STOCK_ADDRESS" -C 5 -V -S 1000
}

# UCX has other sockets that listen; this is the one for meeting, port 13337.
ucx_listens() { grep -qs ':3419 .* 0A ' /proc/net/tcp /proc/net/tcp6; }

# ucx TRANSPORTS TEST: ucx_perftest, whose ends say by the environment what they use.
ucx() {
    local ours theirs tool=(ucx_perftest -P 0 -t "$2" -n 100 -w 10 -s 4096)
    local READY=ucx_listens
    ours=(env UCX_TLS="$1" UCX_NET_DEVICES=ferrocx0:1 UCX_IB_GID_INDEX=0
        "${OUR_RUN[@]}" "${tool[@]}")
    theirs=(env UCX_TLS="$1" UCX_NET_DEVICES="$STOCK:1" UCX_IB_GID_INDEX="$STOCK_GID"
        "${tool[@]}")
    meet "ours <- $STOCK  ucx_perftest $*" "${ours[@]}" -- "${theirs[@]}" localhost
    meet "$STOCK <- ours  ucx_perftest $*" "${theirs[@]}" -- "${ours[@]}" localhost
}

demo_listens() { grep -qs 'started listener' /run/server.log; }

# demo: UCX's storage protocol over RC and rdma_cm; client and server compare what they read and
# write. On rdma_rxe, UCX 1.18's handler of asynchronous events may fail an assertion of its own
# behind the client's verdict: there the verdict is what counts.
demo() {
    local ours theirs tool=(io_demo -p 14337 -q -d '8:65536') load=(-o 'write,read' -i 50 -c 1)
    local READY=demo_listens STAYS=yes
    ours=(env UCX_TLS=rc_verbs UCX_NET_DEVICES=ferrocx0:1 UCX_IB_GID_INDEX=0
        "${OUR_RUN[@]}" "${tool[@]}")
    theirs=(env UCX_TLS=rc_verbs UCX_NET_DEVICES="$STOCK:1" UCX_IB_GID_INDEX="$STOCK_GID"
        "${tool[@]}")
    # shellcheck disable=SC2016 # The inner shell's own.
    local judged=(bash -c '"$@" || grep -q "Client exit with status .OK" /run/client.log' --)
    [ "$STOCK" = rxe0 ] || judged=()
    meet "ours <- $STOCK  io_demo" "${ours[@]}" -- \
        "${judged[@]}" "${theirs[@]}" "${load[@]}" "$OUR_ADDRESS"
    meet "$STOCK <- ours  io_demo" "${theirs[@]}" -- "${ours[@]}" "${load[@]}" "$STOCK_ADDRESS"
}

# An adapter that works for nobody, and one without an address: one sentence each.
refusals() {
    local said
    said=$(/run/cxctl run --device "$OURS" --address "$OUR_ADDRESS" -- ibv_devinfo 2>&1)
    [[ "$said" == *'192.168.0.1/24'* ]] || fail "an address without its subnet: $said"
    said=$(/run/cxctl run --device 0000:01:00.0 --address 10.1.0.9/24 -- ibv_devinfo 2>&1)
    [[ "$said" == *vfio-pci* ]] || fail "a port of the kernel's: $said"
}

cp /host/cxctl /host/libibverbs.so /run/
take "$OURS"
load_rdma 1
must modprobe rdma_ucm
dev=$(netdev_of mlx5_0)
must ip link set lo up
must ip link set "$dev" mtu 4200
must ip addr add "$STOCK_ADDRESS/24" dev "$dev"

against mlx5_0
refusals
programs
more_programs
connections
ucx rc_verbs,ud_verbs:aux tag_bw
whole ucx rc_verbs,ud_verbs:aux ucp_put_lat
whole ucx ud_verbs tag_lat
whole demo

# The port is an Ethernet port only from here on; Soft-RoCE runs on its netdev.
must sh -c 'echo mlx5_core.rdma.0 >/sys/bus/auxiliary/drivers/mlx5_ib.rdma/unbind'
must modprobe rdma_rxe
must rdma link add rxe0 type rxe netdev "$dev"
against rxe0
programs
whole both -d -x ib_send_lat -F -n 50
# UCX's UD endpoints run out of their time on rdma_rxe also where it is at both ends.
whole demo
connections
check_dmesg
table
verdict
