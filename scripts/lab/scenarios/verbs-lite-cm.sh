# about: our connection manager on vfio-pci against stock rping and ucmatose, both roles
# ports: 2
# iommu: yes
# program: ferrocx-cxctl cxctl
# example: ferrocx-verbs-lite rping
# capture: yes
# timeout: 500
# cmdline: iommu=pt modprobe.blacklist=mlx5_core,mlx5_ib
# shellcheck shell=bash source=scripts/lab/rdma.sh source-path=SCRIPTDIR
source /host/lab/rdma.sh

readonly OURS=0000:02:00.0
OURS_AT=10.0.0.2 THEIRS_AT=10.0.0.1 BITS=24 STOCK=mlx5_0
RESULTS=()

# ours MODE [PEER] [OPTION...]: our end.
ours() {
    local mode=$1; shift
    /host/rping --device "$OURS" --address "$OURS_AT/$BITS" "$mode" "$@"
}

listens() { rdma resource show cm_id | grep -q LISTEN; }
we_listen() { grep -qs 'listening\|connections' /run/ours.log; }

# Both ends, each with its log; ours is the server or the client.
# meet NAME ROLE OURS... -- STOCK...
meet() {
    local name=$1 role=$2 own=() pid status=0 begun=${EPOCHREALTIME/./}
    shift 2
    while [ "$1" != -- ]; do own+=("$1"); shift; done
    shift
    if [ "$role" = server ]; then
        timeout 60 /host/rping --device "$OURS" --address "$OURS_AT/$BITS" "${own[@]}" \
            >/run/ours.log 2>&1 &
        pid=$!
        until_true 20 we_listen || status=1
        timeout 60 "$@" >/run/stock.log 2>&1 || status="stock $?"
        wait "$pid" || status="$status, ours $?"
    else
        timeout 60 "$@" >/run/stock.log 2>&1 &
        pid=$!
        until_true 10 listens || status=1
        timeout 60 /host/rping --device "$OURS" --address "$OURS_AT/$BITS" "${own[@]}" \
            >/run/ours.log 2>&1 || status="ours $?"
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

# The tools in both roles.
tools() {
    meet "rping to us, $OURS_AT" server rping-server --size 1000 -- \
        rping -c -a "$OURS_AT" -C 5 -V -S 1000
    meet "rping from us, $THEIRS_AT" client rping-client "$THEIRS_AT" --count 5 --size 1000 -- \
        rping -s -a "$THEIRS_AT" -C 5 -V -S 1000
    meet "ucmatose to us, $OURS_AT" server cmatose-server --count 5 --connections 4 -- \
        ucmatose -s "$OURS_AT" -c 4 -C 5 -S 64
    meet "ucmatose from us, $THEIRS_AT" client cmatose-client "$THEIRS_AT" --count 5 \
        --connections 4 -- ucmatose -b "$THEIRS_AT" -c 4 -C 5 -S 64
}

must modprobe vfio_iommu_type1
must modprobe vfio-pci
must /host/cxctl bind "$OURS" --apply
must /host/cxctl hugepages reserve 64 --apply
without_key_cache
load_rdma 1
must modprobe rdma_ucm
dev=$(mlx5_netdevs)
must ip addr add "$THEIRS_AT/$BITS" dev "$dev"
must ip addr add fd00::1/64 dev "$dev" nodad
tools
OURS_AT=fd00::2 THEIRS_AT=fd00::1 BITS=64
tools
check_dmesg
echo '== result'
printf '%s\n' "${RESULTS[@]}"
verdict
