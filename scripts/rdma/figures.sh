#!/usr/bin/env bash
# How fast stock RDMA programs are on the drop-in library, beside what people use without a card.
set -euo pipefail

usage() {
    cat <<'USAGE'
figures.sh: latency of 8 bytes and bandwidth of 64 KiB between two processes, in one table.

  scripts/rdma/figures.sh [--cxctl FILE] [--runs N]

Rows are stock programs on the drop-in library by shared memory and, as root, by UDP between two
network namespaces; the same over TCP: UCX's tcp, TCP sockets over loopback, and rstream of
rsockets beside the same program over TCP. Each figure is the best of N runs, because a machine that
does something else besides makes all of them worse. They are the model's and the machine's: no
figure here is an adapter's. What is not installed has no row.

  --cxctl FILE   default: target/release/cxctl, with libibverbs.so beside it
  --runs N       default: 3
USAGE
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cxctl=${CARGO_TARGET_DIR:-$root/target}/release/cxctl
runs=3
while [ $# -gt 0 ]; do
    case $1 in
    --cxctl) cxctl=${2:?--cxctl needs a file}; shift ;;
    --runs) runs=${2:?--runs needs a number}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
    esac
    shift
done
[ -x "$cxctl" ] || { echo "skipped: $cxctl is not built (cargo build --release)"; exit 77; }

near=ferrocx-near-$$
far=ferrocx-far-$$
cleanup() {
    ip netns delete "$near" 2>/dev/null || true
    ip netns delete "$far" 2>/dev/null || true
}
trap cleanup EXIT

# best lowest|highest COMMAND...: the best of the figures that a command prints in some runs.
best() {
    local order=-g run
    [ "$1" = lowest ] || order=-gr
    shift
    for ((run = 0; run < runs; run++)); do "$@" 2>/dev/null || true; done | sort $order | head -n 1
}

# row NAME LATENCY-COMMAND BANDWIDTH-COMMAND: the best of both, `-` where there is none.
row() {
    local latency bandwidth
    latency=$(best lowest "$2")
    bandwidth=$(best highest "$3")
    printf '%-44s %10s %10s\n' "$1" "${latency:--}" "${bandwidth:--}"
}

# The typical latency that perftest prints, in us, and its bandwidth, in GB/s of 10^9 bytes.
typical() { awk '$1 == 8 && NF >= 9 { print $5 }'; }
rate() { awk '$1 == 65536 && NF >= 5 { printf "%.2f\n", $4 * 1048576 / 1e9 }'; }
both() { timeout 60 "$cxctl" run -n 2 -- "$@"; }
memory_write_lat() { both ib_write_lat -F -s 8 -n 20000 | typical | tail -n 1; }
memory_send_lat() { both ib_send_lat -F -s 8 -n 20000 | typical | tail -n 1; }
memory_write_bw() { both ib_write_bw -F -s 65536 -n 10000 | rate | tail -n 1; }
memory_send_bw() { both ib_send_bw -F -s 65536 -n 10000 | rate | tail -n 1; }

# apart PROGRAM...: its server in one network namespace, its client in the other.
apart() {
    local status=0 server
    timeout 60 ip netns exec "$near" "$cxctl" run --address 192.0.2.1 -- "$@" >/dev/null 2>&1 &
    server=$!
    until ip netns exec "$near" grep -q ' 0A ' /proc/net/tcp /proc/net/tcp6; do
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    timeout 60 ip netns exec "$far" "$cxctl" run --address 192.0.2.2 -- "$@" 192.0.2.1 || status=$?
    kill "$server" 2>/dev/null || true
    wait "$server" || true
    return $status
}
udp_write_lat() { apart ib_write_lat -F -s 8 -n 5000 | typical; }
udp_write_bw() { apart ib_write_bw -F -s 65536 -n 3000 | rate; }

# ucx_tcp TEST BYTES: ucx_perftest over TCP, without its table.
ucx_tcp() {
    local server status=0
    UCX_TLS=tcp UCX_NET_DEVICES=lo timeout 60 ucx_perftest >/dev/null 2>&1 &
    server=$!
    sleep 1
    UCX_TLS=tcp UCX_NET_DEVICES=lo timeout 60 ucx_perftest -t "$1" -s "$2" -n 20000 -w 2000 -f \
        127.0.0.1 || status=$?
    kill "$server" 2>/dev/null || true
    wait "$server" || true
    return $status
}
# Without its table, the last line is numbers: count, typical, average and overall latency, then
# bandwidth in MB/s.
numbers() { grep -E '^ *[0-9]+ ' | tail -n 1; }
ucx_tcp_lat() { ucx_tcp ucp_put_lat 8 | numbers | awk '{ print $2 }'; }
ucx_tcp_bw() { ucx_tcp ucp_put_bw 65536 | numbers | awk '{ printf "%.2f\n", $6 * 1048576 / 1e9 }'; }

# qperf_tcp ARGUMENT...: qperf between two processes over loopback.
qperf_tcp() {
    local server status=0
    timeout 60 qperf >/dev/null 2>&1 &
    server=$!
    sleep 0.5
    timeout 60 qperf 127.0.0.1 -t 2 "$@" || status=$?
    kill "$server" 2>/dev/null || true
    wait "$server" || true
    return $status
}
tcp_lat() { qperf_tcp -m 8 tcp_lat | awk '$1 == "latency" { print $3 * ($4 == "ms" ? 1000 : 1) }'; }
tcp_bw() {
    qperf_tcp -m 64K tcp_bw |
        awk '$1 == "bw" { printf "%.2f\n", $3 * ($4 ~ /MB/ ? 1e-3 : 1) }'
}

# stream ARGUMENT...: rstream's latency or rate; half a round trip in us, GB/s.
stream() {
    local server status=0
    timeout 60 "$@" >/dev/null 2>&1 &
    server=$!
    sleep 1
    timeout 60 "$@" -s 127.0.0.1 || status=$?
    kill "$server" 2>/dev/null || true
    wait "$server" || true
    return $status
}
stream_lat() { awk 'END { print $8 }'; }
stream_bw() { awk 'END { printf "%.2f\n", $7 / 8 }'; }
rsockets_lat() { stream "$cxctl" run -- rstream -S 8 -C 20000 | stream_lat; }
rsockets_bw() { stream "$cxctl" run -- rstream -S 65536 -C 1 -I 20000 | stream_bw; }
twin_lat() { stream rstream -T s -S 8 -C 20000 | stream_lat; }
twin_bw() { stream rstream -T s -S 65536 -C 1 -I 20000 | stream_bw; }

have() { command -v "$1" >/dev/null; }
echo "== result"
printf '%-44s %10s %10s\n' "best of $runs runs, $(nproc) processors" 'us, 8 B' 'GB/s, 64K'
row 'ib_write on the model, shared memory' memory_write_lat memory_write_bw
row 'ib_send on the model, shared memory' memory_send_lat memory_send_bw
if [ "$(id -u)" -eq 0 ] && have ip && ip netns add "$near" 2>/dev/null; then
    ip netns add "$far"
    ip -n "$near" link add veth0 type veth peer name veth0 netns "$far"
    ip -n "$near" address add 192.0.2.1/24 dev veth0
    ip -n "$far" address add 192.0.2.2/24 dev veth0
    for host in "$near" "$far"; do ip -n "$host" link set veth0 up; done
    row 'ib_write on the model, UDP over veth' udp_write_lat udp_write_bw
fi
! have ucx_perftest || row 'ucp_put, UCX over TCP' ucx_tcp_lat ucx_tcp_bw
! have qperf || row 'TCP over loopback (qperf)' tcp_lat tcp_bw
if have rstream; then
    row 'rstream, rsockets on the model' rsockets_lat rsockets_bw
    row 'rstream, TCP' twin_lat twin_bw
fi
