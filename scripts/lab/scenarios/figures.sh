# about: how long bring-up takes and what iperf3 reaches between two ports
# ci: no
# ports: 2
# model: --no-roce
# timeout: 600
# shellcheck shell=bash source=scripts/lab/netns.sh source-path=SCRIPTDIR
source /host/lab/netns.sh

uptime_ms() { awk '{ printf "%d", $1 * 1000 }' /proc/uptime; }
figure() { step "figure: $*"; }

# rate WHAT ARGUMENT...: what the receiver of ten seconds of iperf3 saw, after three to warm up.
rate() {
    local what=$1; shift
    within 2 iperf3 -s -1 -D -I /run/iperf.pid --logfile /host/iperf-server.log
    until_true 10 within 2 sh -c 'ss -ltn | grep -q :5201'
    within 1 iperf3 -c 10.0.0.2 -t 10 -O 3 "$@" >/host/iperf.log || fail "iperf3 $*"
    figure "$what: $(grep receiver /host/iperf.log | tr -s ' ')"
}

figure "kernel to user space: $(cat /host/boot-seconds) s"
start=$(uptime_ms)
modprobe mlx5_core || fail 'modprobe failed'
until_true 120 netdev_count_is 2 || fail 'no netdevs'
figure "modprobe to two netdevs: $(($(uptime_ms) - start)) ms"
for dev in $(mlx5_netdevs); do ip link set "$dev" up; done
for dev in $(mlx5_netdevs); do until_true 40 has_carrier "$dev" || fail 'no carrier'; done
figure "modprobe to two carriers: $(($(uptime_ms) - start)) ms"
split_ports
within 1 ping -q -c 200 -i 0.01 10.0.0.2 | sed -n 's/^rtt/figure: ping rtt/p'
rate 'TCP, port 1 to 2'
rate 'TCP, port 2 to 1' -R
rate 'UDP 1400 bytes, port 1 to 2' -u -b 0 -l 1400
rate 'UDP 1400 bytes, port 2 to 1' -u -b 0 -l 1400 -R
