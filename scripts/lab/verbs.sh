# Helpers for scenarios in which RDMA tools talk between two ports, and for their table of results.
# shellcheck shell=bash source=scripts/lab/rdma.sh source-path=SCRIPTDIR
source /host/lab/rdma.sh
# shellcheck source=scripts/lab/two-ports.sh source-path=SCRIPTDIR
source /host/lab/two-ports.sh

# The two ends: RDMA device, address and index of its RoCEv2 GID. Servers run on the first.
DEVICE=() ADDRESS=() GID=()
RESULTS=()

netdev_of() { cat "/sys/class/infiniband/$1/ports/1/gid_attrs/ndevs/0"; }

# peer_ports NETDEV1 ADDRESS1 NETDEV2 ADDRESS2: the wire is the only way between the two.
peer_ports() {
    wire_ports "$@"
    # Tools that do not name their own address: the far one is reached from the other port.
    must ip rule add pref 11 iif lo to "$2" lookup 102
    must ip rule add pref 12 iif lo to "$4" lookup 101
}

# ends DEVICE1 ADDRESS1 DEVICE2 ADDRESS2: server and client from now on.
ends() {
    DEVICE=("$1" "$3") ADDRESS=("$2" "$4") GID=()
    until_true 20 gid_index "$1" "$2" || fail "$1 has no RoCEv2 GID of $2"
    until_true 20 gid_index "$3" "$4" || fail "$3 has no RoCEv2 GID of $4"
    GID=("$(gid_index "$1" "$2")" "$(gid_index "$3" "$4")")
}

# Counters of both ends that are not zero.
rdma_counters() {
    local device
    for device in "${DEVICE[@]}"; do
        grep . "/sys/class/infiniband/$device/ports/1/hw_counters"/* | grep -v ':0$'
        ip -s link show "$(netdev_of "$device")"
    done
}

# counted NAME: together for both ends; a counter that stays at 0 was not put to the test.
counted() {
    local name=$1 device sum=0
    for device in "${DEVICE[@]}"; do sum=$((sum + $(attribute "$device" "hw_counters/$name"))); done
    RESULTS+=("$name $sum")
    [ $sum -gt 0 ]
}

# A server waits for connections, over TCP or the RDMA connection manager.
listens() {
    grep -qs ' 0A ' /proc/net/tcp /proc/net/tcp6 || rdma resource show cm_id | grep -q LISTEN
}
is_quiet() { ! listens; }
is_ready() { "$READY" || ! kill -0 "$1" 2>/dev/null; }

# What a tool says of its speed, on one line.
speed() {
    [ -s "$1" ] || return 0
    awk '/seconds =/ || /exchanges in/ { print $0 } /^ *[0-9]+ +[0-9]+ +[0-9.]+/ {
            print (NF > 5 ? "typical " $5 " us" : "average " $4 " MiB/s") }' "$1" | tail -n 1
}

# A cable may lose the acknowledgement of the last message. A tool that has ended meanwhile answers
# no repetition, and the other one runs out of retries, as on any hardware.
is_out_of_retries() {
    grep -qsE 'retry counter exceeded|status 12' /run/server.log /run/client.log
}

# whole COMMAND...: only where every program is asked for.
whole() { [ "$FERROCX_STOCK" != all ] || "$@"; }

# meet NAME SERVER... -- CLIENT...: both have to succeed; a line of the table. A server that would
# serve for ever (STAYS=yes) is ended once the client has succeeded. READY: when a server is; it may
# take as long for that as it may run.
STAYS=no READY=listens TRIES=1
meet() {
    local name=$1 server=() pid status=0 served=0 begun=${EPOCHREALTIME/./} verdict
    shift
    while [ "$1" != -- ]; do server+=("$1"); shift; done
    shift
    until_true 10 is_quiet || step 'something listens already'
    rm -f /run/server.log /run/client.log
    timeout "${LIMIT:-40}" "${server[@]}" >/run/server.log 2>&1 &
    pid=$!
    until_true "${LIMIT:-40}" is_ready "$pid" && kill -0 "$pid" 2>/dev/null || status=1
    [ $status -ne 0 ] || timeout "${LIMIT:-40}" "$@" >/run/client.log 2>&1 || status=$?
    [ "$status $STAYS" = '0 no' ] || kill "$pid" 2>/dev/null
    wait "$pid" || served=$?
    [ "$STAYS" = yes ] || [ "$served" -eq 0 ] || status="$status, server $served"
    if [ "$status" != 0 ] && [ "$TRIES" -gt 1 ] && is_out_of_retries; then
        step "once more, the last acknowledgement was lost: $name"
        TRIES=$((TRIES - 1)) meet "$name" "${server[@]}" -- "$@"
        return
    fi
    verdict=ok
    if [ "$status" != 0 ]; then
        verdict=FAILED
        FAILURES=$((FAILURES + 1))
        echo "$name" >>/host/reason
        step "FAILED with $status: ${server[*]}  <->  $*"
        tail -n 20 /run/server.log /run/client.log
        rdma_counters
        [ $FAILURES -lt 5 ] || { table; fail "$FAILURES failures are enough"; }
    fi
    RESULTS+=("$(printf '%-6s %5d ms  %-58s %s' "$verdict" \
        $(((${EPOCHREALTIME/./} - begun) / 1000)) "$name" "$(speed /run/client.log)")")
    step "${RESULTS[-1]}"
}

# pingpong TOOL ARGUMENT...
pingpong() {
    local tool=$1; shift
    meet "$tool $*" "$tool" -d "${DEVICE[0]}" -g "${GID[0]}" "$@" -- \
        "$tool" -d "${DEVICE[1]}" -g "${GID[1]}" "$@" "${ADDRESS[0]}"
}

# over_ipv6 TOOL ARGUMENT...: the same between the link-local addresses.
over_ipv6() {
    local GID=("$(link_local "${DEVICE[0]}")" "$(link_local "${DEVICE[1]}")")
    pingpong "$@"
}

# link_local DEVICE: index of the RoCEv2 GID of its link-local address, the first of its kind.
link_local() {
    local types=/sys/class/infiniband/$1/ports/1/gid_attrs/types index
    for index in 0 1; do
        grep -qs 'RoCE v2' "$types/$index" && echo "$index" && return
    done
}

# perftest TOOL ARGUMENT...
perftest() {
    local tool=$1; shift
    meet "$tool $*" "$tool" -d "${DEVICE[0]}" -x "${GID[0]}" -F "$@" -- \
        "$tool" -d "${DEVICE[1]}" -x "${GID[1]}" -F "$@" "${ADDRESS[0]}"
}

# manager TOOL ARGUMENT...: a tool of the connection manager, its server with the same arguments.
manager() {
    local tool=$1; shift
    meet "$tool $*" "$tool" -b "${ADDRESS[0]}" "$@" -- \
        "$tool" -b "${ADDRESS[1]}" -s "${ADDRESS[0]}" "$@"
}

# copy KIB: a file copied over rsockets arrives as it was.
copy() {
    dd if=/dev/urandom of=/run/sent bs=1k count="$1" status=none
    STAYS=yes meet "rcopy, $1 KiB" rcopy -- rcopy /run/sent "${ADDRESS[0]}:/run/received"
    check cmp /run/sent /run/received
}

table() {
    echo '== result'
    printf '%s\n' "${RESULTS[@]}"
}
