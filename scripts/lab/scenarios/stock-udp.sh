# about: stock RDMA programs by our libibverbs in UDP sockets against the same on rdma_rxe
# machine: stock
# program: ferrocx-cxctl cxctl
# library: ferrocx-verbs-abi ibverbs
# timeout: 400
# shellcheck shell=bash source=scripts/lab/verbs.sh source-path=SCRIPTDIR
source /host/lab/verbs.sh

# Ours have a network namespace of their own, and in it nothing but a veth. Soft-RoCE tells a
# program of a message before it acknowledges it (rxe_resp.c: RESPST_COMPLETE, then
# RESPST_ACKNOWLEDGE), so one that ends at once can take the last acknowledgement with it.
# The other way it asks again for as long as the tools want 7 retries (rxe_comp.c).
LIMIT=90 TRIES=2
# Whose counters tell of a failure.
DEVICE=(rxe0)
within() { ip netns exec ours "$@"; }

# Whoever waits may be in either namespace.
listens() {
    grep -qs ' 0A ' /proc/net/tcp /proc/net/tcp6 || rdma resource show cm_id | grep -q LISTEN ||
        within grep -qs -e ' 0A ' -e ferrocx-cm /proc/net/tcp /proc/net/tcp6 /proc/net/unix
}

# addresses NETDEV ADDRESS...: at once, for nobody else has them.
addresses() {
    local dev=$1 address
    shift
    for address in "$@"; do
        case $address in
        *:*) must ip "${OF[@]}" addr add "$address" dev "$dev" nodad ;;
        *) must ip "${OF[@]}" addr add "$address" dev "$dev" ;;
        esac
    done
}

# ends OURS STOCK GID: the addresses from now on, and what rdma_rxe's GID has to be.
ends() {
    OURS=$1 THEIRS=$2 WANTED=$3
    until_true 20 gid || fail "rxe0 has no GID of $THEIRS"
    STOCK_GID=$(gid)
    OUR_RUN=(ip netns exec ours env FERROCX_LOG=info /run/cxctl run --address "$OURS")
}

# The index of rdma_rxe's GID.
gid() {
    local file
    file=$(grep -lix "$WANTED" /sys/class/infiniband/rxe0/ports/1/gids/*) && basename "$file"
}

# both DEVICE-OPTION GID-OPTION TOOL ARGUMENT...: the tool at both ends, in both roles. They meet by
# TCP over IPv4.
both() {
    local device=$1 gid=$2 ours theirs
    shift 2
    ours=("${OUR_RUN[@]}" "$@" "$device" ferrocx0 "$gid" 0)
    theirs=("$@" "$device" rxe0 "$gid" "$STOCK_GID")
    meet "$OURS <- rxe0  $*" "${ours[@]}" -- "${theirs[@]}" 10.2.0.2
    meet "rxe0 <- $OURS  $*" "${theirs[@]}" -- "${ours[@]}" 10.2.0.1
}

# What an address of another kind could break.
programs() {
    both -d -g ibv_rc_pingpong -c -n 5 -s 100000
    both -d -g ibv_ud_pingpong -c -n 50 -s 1000
}

# What differs by the operation, and not by the address below it.
more_programs() {
    both -d -g ibv_uc_pingpong -c -n 50
    # Sixteen queue pairs, each with a last acknowledgement to lose.
    TRIES=3 both -d -g ibv_srq_pingpong -c -n 50
    both -d -x ib_write_bw -F -n 10 -s 65536
    # Soft-RoCE serves 128 reads at a time, a port of the model starts 16.
    both -d -x ib_read_bw -F -n 20 -s 65536 -o 16
    both -d -x ib_send_lat -F -n 50
    both -d -x ib_atomic_bw -F -n 50 -o 16
}

# By rdma_cm.
connections() {
    local rping=(rping -C 5 -V -S 1000)
    meet "$OURS <- rxe0  rping" "${OUR_RUN[@]}" "${rping[@]}" -s -a "$OURS" -- \
        "${rping[@]}" -c -a "$OURS"
    meet "rxe0 <- $OURS  rping" "${rping[@]}" -s -a "$THEIRS" -- \
        "${OUR_RUN[@]}" "${rping[@]}" -c -a "$THEIRS"
}

# A group, from either end to the other: mckey, which on Soft-RoCE does not wait until its datagrams
# are sent.
groups() {
    local group=239.1.2.3 READY=has_joined tool
    tool=(stdbuf -oL mckey -m "$group" -C 10 -S 1000)
    meet "$OURS <- rxe0  $group" "${OUR_RUN[@]}" "${tool[@]}" -b "$OURS" -- \
        python3 /host/lab/multicast.py rxe0 "$STOCK_GID" "$group" 10 1000
    meet "rxe0 <- $OURS  $group" "${tool[@]}" -b "$THEIRS" -- \
        "${OUR_RUN[@]}" "${tool[@]}" -b "$OURS" -s
}
has_joined() { grep -qs 'joined dgid' /run/server.log; }

# Two of ours on one machine, which meet by a ring.
among_ours() {
    local other=(ip netns exec ours /run/cxctl run --address "$1") rping=(rping -C 5 -V -S 1000)
    meet "$OURS <- $1  rping" "${OUR_RUN[@]}" "${rping[@]}" -s -a "$OURS" -- \
        "${other[@]}" "${rping[@]}" -c -a "$OURS"
    meet "$OURS <- $1  ibv_ud_pingpong" "${OUR_RUN[@]}" ibv_ud_pingpong -g 0 -c -n 50 -- \
        "${other[@]}" ibv_ud_pingpong -g 0 -c -n 50 10.2.0.2
}

cp /host/cxctl /host/libibverbs.so /run/
must modprobe rdma_ucm
must modprobe rdma_rxe
must ip link set lo up
must ip netns add ours
must ip link add veth0 type veth peer name veth1 netns ours
must ip link set veth0 up
must within ip link set lo up
must within ip link set veth1 up
OF=()
addresses veth0 10.2.0.1/24 fd02::1/64 fe80::1/64
OF=(-n ours)
addresses veth1 10.2.0.2/24 fd02::2/64 fd02::3/64 fe80::2/64
must rdma link add rxe0 type rxe netdev veth0

zeros=0000:0000:0000:0000:0000
ends 10.2.0.2 10.2.0.1 "$zeros:ffff:0a02:0001"
programs
more_programs
connections
groups
ends fd02::2 fd02::1 "fd02:$zeros:0000:0001"
programs
whole more_programs
connections
among_ours fd02::3
ends fe80::2%veth1 fe80::1 "fe80:$zeros:0000:0001"
programs
table
verdict
