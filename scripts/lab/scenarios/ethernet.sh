# about: ping and iperf3 between two ports of the model, driven by unmodified mlx5e
# ports: 2
# timeout: 300
# cmdline: modprobe.blacklist=mlx5_core,mlx5_ib
# shellcheck shell=bash source=scripts/lab/mlx5.sh source-path=SCRIPTDIR
source /host/lab/mlx5.sh

# Each port in its own network namespace: Linux would short-cut traffic between its own addresses.
split_ports() {
    local i=0 dev
    for dev in $(mlx5_netdevs); do
        i=$((i + 1))
        must ip netns add "port$i"
        must ip link set "$dev" netns "port$i"
        must ip -n "port$i" link set lo up
        must ip -n "port$i" addr add "10.0.0.$i/24" dev "$dev"
        must ip -n "port$i" addr add "fd00::$i/64" dev "$dev" nodad
        must ip -n "port$i" link set "$dev" up
        eval "dev$i=$dev"
    done
}

# within PORT COMMAND...
within() {
    local port=$1; shift
    ip netns exec "port$port" "$@"
}

# ping_all SIZE...: sizes of the payload; none may be lost.
ping_all() {
    local size
    for size in "$@"; do
        must within 1 ping -q -c 20 -i 0.01 -W 2 -M "do" -s "$size" 10.0.0.2
        must within 2 ping -q -c 20 -i 0.01 -W 2 -M "do" -s "$size" 10.0.0.1
    done
}

iperf() {
    within 2 iperf3 -s -1 -D -I /run/iperf.pid --logfile /host/iperf-server.log
    until_true 5 within 2 sh -c 'ss -ltn | grep -q :5201' || fail 'iperf3 does not listen'
    must within 1 iperf3 -c 10.0.0.2 -t 5 "$@"
}

load_driver 2
split_ports
ping_all 0 1 18 56 1000 1472
must within 1 ping -q -c 5 -i 0.1 -W 2 fd00::2
must within 1 ping -q -f -c 500 -W 2 10.0.0.2
iperf
iperf -R
iperf -u -b 20M
iperf -u -b 20M -R
for i in 1 2; do
    dev=dev$i
    must within "$i" ethtool -S "${!dev}" >"/host/ethtool-$i.log"
    must within "$i" ip -s link show "${!dev}"
done
check_dmesg
