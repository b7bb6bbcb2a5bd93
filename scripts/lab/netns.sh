# Helpers for scenarios that put each port into a network namespace of its own.
# shellcheck shell=bash source=scripts/lab/mlx5.sh source-path=SCRIPTDIR
source /host/lab/mlx5.sh

DEV=()  # DEV[1], DEV[2], …: the netdev of each port

# Linux would short-cut traffic between its own addresses; not between namespaces.
split_ports() {
    local i=0 dev
    for dev in $(mlx5_netdevs); do
        i=$((i + 1))
        DEV[i]=$dev
        must ip netns add "port$i"
        must ip link set "$dev" netns "port$i"
        must ip -n "port$i" link set lo up
        must ip -n "port$i" addr add "10.0.0.$i/24" dev "$dev"
        must ip -n "port$i" addr add "fd00::$i/64" dev "$dev" nodad
        must ip -n "port$i" link set "$dev" up
    done
    for ((i = 1; i < ${#DEV[@]} + 1; i++)); do
        until_true 40 link_up "$i" || fail "port $i has no carrier in its namespace"
    done
    settled || fail 'the ports do not hear each other'
}

# Linux starts to send a while after the carrier is there, and a queue that was just made anew may
# have lost what was in it: waits for a first ping to pass. From then on none may be lost.
settled() { until_true 60 within 1 ping -q -c 1 -W 1 10.0.0.2; }

# within PORT COMMAND...
within() {
    local port=$1; shift
    ip netns exec "port$port" "$@"
}

link_up() { within "$1" cat "/sys/class/net/${DEV[$1]}/carrier" | grep -q 1; }

# both COMMAND...: with each port's netdev in place of the word DEV.
both() {
    local i
    for i in 1 2; do
        within "$i" "${@/#DEV/${DEV[i]}}" || return
    done
}

# ping_size SIZE...: payload sizes, unfragmented; none may be lost.
ping_size() {
    local size
    for size in "$@"; do
        all_answered within 1 ping -c 10 -i 0.02 -M "do" -s "$size" 10.0.0.2 || return
    done
}

# iperf ARGUMENT...: from port 1 to port 2; little enough for every frame to be looked at later.
iperf() {
    within 2 iperf3 -s -1 -D -I /run/iperf.pid --logfile /host/iperf-server.log
    until_true 20 within 2 sh -c 'ss -ltn | grep -q :5201' || return
    within 1 iperf3 -c 10.0.0.2 -n 4M "$@" >/host/iperf.log || { cat /host/iperf.log; return 1; }
    grep -E 'sender|receiver' /host/iperf.log
}

# counter PORT NAME: one value of ethtool -S.
counter() { within "$1" ethtool -S "${DEV[$1]}" | awk -v name="$2:" '$1 == name { print $2 }'; }
