# Helpers for scenarios in which our perftest on vfio-pci talks to rdma-core's tools in the same
# guest: ours is the second port, theirs the first.
# shellcheck shell=bash source=scripts/lab/vfio.sh source-path=SCRIPTDIR
source /host/lab/vfio.sh
# shellcheck source=scripts/lab/verbs.sh source-path=SCRIPTDIR
source /host/lab/verbs.sh

# From memory: read over the host's shared folder, page by page, it takes seconds to start.
cp /host/perftest /run/
readonly OURS=0000:02:00.0
readonly OUR_MAC=02:fe:0c:00:00:02 # the model counts its ports from 1
LIMIT=90
readonly OUR_LINK_LOCAL=fe80::fe:cff:fe00:2
readonly OUR_ADDRESS=10.1.0.2 STOCK_ADDRESS=10.1.0.1
STOCK_NETDEV=
OUR_OPTIONS=() # more options of ours

# stock_port NETDEV: the netdev below the stock side, with room for every path MTU.
stock_port() {
    local address
    STOCK_NETDEV=$1
    must ip link set lo up
    must ip link set "$STOCK_NETDEV" mtu 4300
    must ip addr add "$STOCK_ADDRESS/24" dev "$STOCK_NETDEV"
    for address in "$OUR_ADDRESS" "$OUR_LINK_LOCAL"; do
        must ip neigh replace "$address" lladdr "$OUR_MAC" dev "$STOCK_NETDEV" nud permanent
    done
}

# against DEVICE: the stock side from now on.
against() {
    STOCK=$1
    until_true 20 gid_index "$STOCK" "$STOCK_ADDRESS" || fail "$STOCK has no GID of its address"
    STOCK_GID=$(gid_index "$STOCK" "$STOCK_ADDRESS")
    STOCK_MAC=$(cat "/sys/class/net/$STOCK_NETDEV/address")
}

# words SERVICE OPTION...: the two command lines, THEIRS and OURS_LINE, for a ping-pong in which
# both ends look at what they get. Options are those of both tools, --ipv6, and --srq of ours.
words() {
    local service=$1
    shift
    THEIRS=("ibv_${service}_pingpong" -d "$STOCK" -c)
    # An emulated Soft-RoCE can take its time.
    OURS_LINE=(/run/perftest pingpong "$service" --device "$OURS" -c --ack-timeout 18)
    local gid=$STOCK_GID address=(--ip "$OUR_ADDRESS/24" --peer-mac "$STOCK_MAC") count=20
    while [ $# -gt 0 ]; do
        case $1 in
            # Link-local addresses tell the MAC.
            --ipv6) gid=$(link_local "$STOCK") address=() ;;
            -m) THEIRS+=(-m "$2"); OURS_LINE+=(--mtu "$2"); shift ;;
            -n) count=$2; shift ;;
            -s) THEIRS+=(-s "$2"); OURS_LINE+=(-s "$2"); shift ;;
            --srq) OURS_LINE+=(--srq) ;;
            *) fail "unknown option $1" ;;
        esac
        shift
    done
    THEIRS+=(-g "$gid" -n "$count")
    OURS_LINE+=("${address[@]}" -n "$count" "${OUR_OPTIONS[@]}")
}

# as_client SERVICE OPTION...: the stock tool waits, ours comes.
as_client() {
    words "$@"
    meet "$STOCK <- ours  $*" "${THEIRS[@]}" -- "${OURS_LINE[@]}" localhost
}

# as_server SERVICE OPTION...: ours waits, the stock tool comes.
as_server() {
    words "$@"
    meet "ours <- $STOCK  $*" "${OURS_LINE[@]}" -- "${THEIRS[@]}" localhost
}

# tried_keys [CHAPTER...]: a stock program does with keys of ours what it may, and tries what it
# may not.
tried_keys() {
    local line
    meet "keys of ours, tried by $STOCK" /run/perftest target rc --device "$OURS" \
        --ip "$OUR_ADDRESS/24" --peer-mac "$STOCK_MAC" "${OUR_OPTIONS[@]}" -- \
        python3 /host/lab/remote-keys.py "$STOCK" "$STOCK_GID" "$STOCK_ADDRESS" 127.0.0.1 18515 "$@"
    cp /run/client.log "/host/keys-$STOCK.log"
    while read -r line; do RESULTS+=("    $line"); done </run/client.log
}

# registrations: a second, by the kernel on its port, by our pipelines on theirs.
registrations() {
    local line depth threads count
    line=$(python3 /host/lab/reg-mr.py "$STOCK" 4096 300) || return
    RESULTS+=("$STOCK, without its cache of keys: $line")
    for depth in 1 8 64; do
        for threads in 1 2; do
            [ "$depth $threads" != "8 2" ] || continue
            count=$((depth > 1 ? 500 : 100))
            line=$(/run/perftest fastreg bw --device "$OURS" --depth "$depth" -s 4096 \
                --threads "$threads" -n $count --json - 2>/dev/null) || return
            line=$(sed -n 's/.*"messages_per_second": \([0-9]*\).*/\1/p' <<<"$line")
            RESULTS+=("ours, FAST_REG_MR and LOCAL_INV of 4096 bytes, $threads pipeline(s) of \
$depth key(s): $line per second")
        done
    done
}
