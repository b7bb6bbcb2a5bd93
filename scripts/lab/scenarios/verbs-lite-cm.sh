# about: our connection manager and groups on vfio-pci against rping, ucmatose and mckey, both roles
# machine: vfio
# program: ferrocx-cxctl cxctl
# example: ferrocx-verbs-lite rping
# capture: yes
# refusals: none
# timeout: 600
# shellcheck shell=bash source=scripts/lab/rdma.sh source-path=SCRIPTDIR
source /host/lab/rdma.sh
# shellcheck source=scripts/lab/two-ports.sh source-path=SCRIPTDIR
source /host/lab/two-ports.sh

readonly OURS=0000:02:00.0 GROUP=239.1.2.3
readonly LIMIT=120 # seconds; an emulated machine under load is slow to start either end
OURS_AT='' THEIRS_AT='' BITS='' STOCK=''
RESULTS=()

listens() { rdma resource show cm_id | grep -q LISTEN; }
has_joined() { grep -qs 'joined dgid' /run/stock.log; }
we_wait() { grep -qs 'listening\|connections\|joined' /run/ours.log; }

# ready PID COMMAND...: repeats the command until it succeeds or the process has ended.
ready() {
    local pid=$1
    shift
    while kill -0 "$pid" 2>/dev/null; do
        "$@" && return
        sleep 0.1
    done
    return 1
}

# ours WORDS...: our end, until it ends.
ours() {
    timeout $LIMIT /run/rping --device "$OURS" --address "$OURS_AT/$BITS" "$@" >>/run/ours.log 2>&1
}

# Line by line: what it says is waited for.
stock() { timeout $LIMIT stdbuf -oL "$@" >>/run/stock.log 2>&1; }

# Both ends; ours is the server or the client.
# meet NAME ROLE OURS... -- STOCK...
WAITS=listens # how a stock server is known to wait
meet() {
    local name=$1 role=$2 own=() pid status=0 begun=${EPOCHREALTIME/./}
    shift 2
    while [ "$1" != -- ]; do own+=("$1"); shift; done
    shift
    : >/run/ours.log
    : >/run/stock.log
    if [ "$role" = server ]; then
        ours "${own[@]}" &
        pid=$!
        ready "$pid" we_wait || status='ours did not start'
        stock "$@" || status="stock $?"
        wait "$pid" || status="$status, ours $?"
    else
        stock "$@" &
        pid=$!
        ready "$pid" "$WAITS" || status='stock did not start'
        ours "${own[@]}" || status="ours $?"
        wait "$pid" || status="$status, stock $?"
    fi
    if [ "$status" != 0 ]; then
        FAILURES=$((FAILURES + 1))
        echo "$name: $status" >>/host/reason
        step "FAILED: $name: $status"
        tail -n 20 /run/ours.log /run/stock.log
    fi
    RESULTS+=("$(printf '%-9s %5d ms  %s' "$([ "$status" = 0 ] && echo ok || echo FAILED)" \
        $(((${EPOCHREALTIME/./} - begun) / 1000)) "$name, stock $STOCK")")
    step "${RESULTS[-1]}"
}

# over OURS THEIRS BITS: the tools in both roles between two addresses.
over() {
    OURS_AT=$1 THEIRS_AT=$2 BITS=$3
    meet "rping to us, $OURS_AT" server rping-server --size 1000 -- \
        rping -c -a "$OURS_AT" -C 5 -V -S 1000
    meet "rping from us, $THEIRS_AT" client rping-client "$THEIRS_AT" --count 5 --size 1000 -- \
        rping -s -a "$THEIRS_AT" -C 5 -V -S 1000
    meet "ucmatose to us, $OURS_AT" server cmatose-server --count 5 --connections 4 -- \
        ucmatose -s "$OURS_AT" -c 4 -C 5 -S 64
    meet "ucmatose from us, $THEIRS_AT" client cmatose-client "$THEIRS_AT" --count 5 \
        --connections 4 -- ucmatose -b "$THEIRS_AT" -c 4 -C 5 -S 64
}

# Datagrams to a group, from either end to the other: mckey, which on Soft-RoCE does not wait until
# its datagrams are sent. rdma_cm joins no IPv6 group over RoCEv2.
groups() {
    local sender=(mckey -m "$GROUP" -b "$THEIRS_AT" -C 10 -S 1000 -s) gid
    if [ "$STOCK" = rxe0 ]; then
        gid=$(gid_index rxe0 "$THEIRS_AT")
        sender=(python3 /host/lab/multicast.py rxe0 "$gid" "$GROUP" 10 1000)
    fi
    meet "group $GROUP to us, ${sender[0]}" server mckey-server "$GROUP" --count 10 \
        --size 1000 -- "${sender[@]}"
    WAITS=has_joined
    meet "group $GROUP from us, mckey" client mckey-client "$GROUP" --count 10 --size 1000 -- \
        mckey -m "$GROUP" -b "$THEIRS_AT" -C 10 -S 1000
    WAITS=listens
}

# all DEVICE: everything, against this one.
all() {
    STOCK=$1
    over 10.0.0.2 10.0.0.1 24
    groups
    over fd00::2 fd00::1 64
}

must modprobe vfio_iommu_type1
must modprobe vfio-pci
must /host/cxctl bind "$OURS" --apply
must /host/cxctl hugepages reserve 64 --apply
# From memory: read page by page from the host, it took up to 20 s to start.
must cp /host/rping /run/
without_key_cache
load_rdma 1
must modprobe rdma_ucm
dev=$(mlx5_netdevs)
must ip addr add 10.0.0.1/24 dev "$dev"
must ip addr add fd00::1/64 dev "$dev" nodad
all mlx5_0
# The port is an Ethernet port only from here on; Soft-RoCE runs on its netdev.
must sh -c 'echo mlx5_core.rdma.0 >/sys/bus/auxiliary/drivers/mlx5_ib.rdma/unbind'
must modprobe rdma_rxe
must rdma link add rxe0 type rxe netdev "$dev"
until_true 20 is_active rxe0 || fail 'rxe0 is not active'
all rxe0
check_dmesg
echo '== result'
printf '%s\n' "${RESULTS[@]}"
verdict
