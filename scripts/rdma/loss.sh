#!/usr/bin/env bash
# RoCEv2 in UDP between two network namespaces whose cable loses packets: stock programs that
# compare every byte.
set -euo pipefail

usage() {
    cat <<'USAGE'
loss.sh: messages of 8 MiB between two hosts over a veth pair that loses 1 % in each direction.

  scripts/rdma/loss.sh [--minutes N] [--loss PERCENT] [--ipv6] [--cxctl FILE]

It needs root: it makes two network namespaces, a veth pair, and tc's netem on both ends. Where the
kernel has no netem, both processes lose what they would send (cxctl run --loss). In each round
rstream -T v of rsockets sends 8 MiB to and fro on a connection of rdma_cm, and compares every byte.
Without --minutes there is one round. The exit status is 1 if bytes were wrong or a connection was
lost, 77 if the machine does not have what it takes.

  --minutes N      rounds until so many minutes are over; default: 0, one round
  --loss PERCENT   default: 1
  --ipv6           over IPv6; default: IPv4
  --cxctl FILE     default: target/release/cxctl, with libibverbs.so beside it
USAGE
}

minutes=0
loss=1
addresses=(192.0.2.1 192.0.2.2)
bits=24
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cxctl=${CARGO_TARGET_DIR:-$root/target}/release/cxctl
while [ $# -gt 0 ]; do
    case $1 in
    --minutes) minutes=${2:?--minutes needs a number}; shift ;;
    --loss) loss=${2:?--loss needs a number}; shift ;;
    --ipv6) addresses=(2001:db8::1 2001:db8::2) bits=64 ;;
    --cxctl) cxctl=${2:?--cxctl needs a file}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
    esac
    shift
done

missing() { echo "skipped: $1"; exit 77; }
for program in ip tc rstream; do
    command -v "$program" >/dev/null ||
        missing "$program is not installed (apt-get install iproute2 rdmacm-utils)"
done
[ "$(id -u)" -eq 0 ] || missing "it takes root to make network namespaces"

near=ferrocx-near-$$
far=ferrocx-far-$$
folder=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    ip netns delete "$near" 2>/dev/null || true
    ip netns delete "$far" 2>/dev/null || true
    rm -rf "$folder"
}
trap cleanup EXIT
ip netns add "$near" 2>/dev/null || missing "no network namespace can be made here"
ip netns add "$far"
ip -n "$near" link add veth0 type veth peer name veth0 netns "$far"
add_address() {
    local options=()
    # Nobody else has it, and it is there at once.
    [[ $2 != *:* ]] || options=(nodad)
    ip -n "$1" address add "$2/$bits" dev veth0 "${options[@]}"
}
add_address "$near" "${addresses[0]}"
add_address "$far" "${addresses[1]}"
for host in "$near" "$far"; do
    ip -n "$host" link set veth0 up
    ip -n "$host" link set lo up
done
by=netem
options=()
for host in "$near" "$far"; do
    tc -n "$host" qdisc add dev veth0 root netem loss "$loss%" limit 100000 2>/dev/null || by=cxctl
done
[ $by = netem ] || options=(--loss "$(awk -v loss="$loss" 'BEGIN { print int(loss * 10000) }')")

# end HOST IP ARGUMENT...: one end of a stream.
end() {
    local host=$1 ip=$2
    shift 2
    exec ip netns exec "$host" "$cxctl" run --address "$ip" "${options[@]}" -- \
        rstream -T v -S 8388608 -C 1 -I 4 "$@"
}

# The time that a round may take: seven retries of a second each, many times over.
limit=300
deadline=$((SECONDS + 60 * minutes))
rounds=0
failed=0
while :; do
    (end "$near" "${addresses[0]}" -b "${addresses[0]}") >"$folder/server" 2>&1 &
    server=$!
    until ip netns exec "$near" grep -q '@ferrocx-cm/' /proc/net/unix; do
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    status=0
    (end "$far" "${addresses[1]}" -s "${addresses[0]}") >"$folder/client" 2>&1 & client=$!
    (sleep $limit && kill "$client" "$server") 2>/dev/null & watch=$!
    wait "$client" || status=$?
    [ $status -eq 0 ] || kill "$server" 2>/dev/null || true
    wait "$server" || status=$?
    kill "$watch" 2>/dev/null || true
    server=
    rounds=$((rounds + 1))
    if [ $status -ne 0 ]; then
        failed=$((failed + 1))
        tail -n 5 "$folder/server" "$folder/client"
    fi
    [ $SECONDS -lt $deadline ] || break
done
sent() { ip netns exec "$1" cat /sys/class/net/veth0/statistics/tx_packets; }
printf '%d rounds of 8 messages of 8 MiB, %s %% lost by %s, %d packets on the cable: %d rounds' \
    $rounds "$loss" $by $(($(sent "$near") + $(sent "$far"))) $failed
echo " with wrong bytes or a lost connection"
[ $failed -eq 0 ]
