# Helpers for scenarios in which two ports of one guest talk to each other over their wire.
# shellcheck shell=bash source=scripts/lab/lib.sh source-path=SCRIPTDIR
source /host/lab/lib.sh

# wire_ports DEV1 ADDRESS1 DEV2 ADDRESS2: sends traffic between the two addresses over the wire.
#
# Linux delivers traffic between its own addresses through lo. Here the local table is asked only
# after two rules that send it out of the right port. They hold for locally made packets (iif lo):
# without that, arriving ones would be sent out again.
wire_ports() {
    local dev1=$1 address1=$2 dev2=$3 address2=$4 dev
    echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
    for dev in "$dev1" "$dev2"; do
        echo 0 >"/proc/sys/net/ipv4/conf/$dev/rp_filter"
        echo 1 >"/proc/sys/net/ipv4/conf/$dev/accept_local"
        echo 1 >"/proc/sys/net/ipv4/conf/$dev/arp_ignore"
        echo 2 >"/proc/sys/net/ipv4/conf/$dev/arp_announce"
        must ip link set "$dev" up
    done
    must ip addr add "$address1/24" dev "$dev1"
    must ip addr add "$address2/24" dev "$dev2"
    must ip rule add pref 10 iif lo from "$address1" to "$address2" lookup 101
    must ip rule add pref 10 iif lo from "$address2" to "$address1" lookup 102
    must ip route add "$address2/32" dev "$dev1" table 101
    must ip route add "$address1/32" dev "$dev2" table 102
    must ip rule add pref 100 lookup local
    must ip rule del pref 0
    must ip neigh replace "$address2" lladdr "$(cat "/sys/class/net/$dev2/address")" \
        dev "$dev1" nud permanent
    must ip neigh replace "$address1" lladdr "$(cat "/sys/class/net/$dev1/address")" \
        dev "$dev2" nud permanent
}

# gid_index RDMA_DEVICE ADDRESS [TYPE]: the index of the RoCEv2 GID of an IPv4 address, or of the
# one of another type.
gid_index() {
    local hex index type=${3:-RoCE v2} port=/sys/class/infiniband/$1/ports/1
    local -a octets indices
    IFS=. read -ra octets <<<"$2"
    hex=$(printf '%02x%02x:%02x%02x' "${octets[@]}")
    # All of the table in one process: there are 256 entries, and a process takes 25 ms to start.
    mapfile -t indices < <(cd "$port/gids" && grep -li "ffff:$hex" -- *)
    for index in "${indices[@]}"; do
        [ "$(<"$port/gid_attrs/types/$index")" = "$type" ] || continue
        echo "$index"
        return 0
    done
    return 1
}

# pair_of SERVER... -- CLIENT...: starts the server, runs the client once it may connect; both must
# succeed.
pair_of() {
    local server=()
    while [ "$1" != -- ]; do server+=("$1"); shift; done
    shift
    step "${server[*]}  <->  $*"
    timeout 60 "${server[@]}" >/run/server.log 2>&1 &
    local pid=$!
    sleep 1
    timeout 60 "$@" || { cat /run/server.log; fail "$* ended with $?"; }
    wait "$pid" || { cat /run/server.log; fail "${server[*]} ended with $?"; }
}
