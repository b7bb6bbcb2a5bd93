#!/usr/bin/env bash
# The kernel pings; a raw packet queue pair of verbs-lite on the software ConnectX answers.
set -euo pipefail

usage() {
    cat <<'USAGE'
raw.sh: `ping -f` of the kernel through a TAP, answered by a raw packet queue pair, 0 lost.

  scripts/net/raw.sh [--count N]

  --count N   echo requests of each size (default 10000)

The answers are those of `raw_on_model`, an example of ferrocx-verbs-lite: ARP, neighbour discovery,
ICMP and ICMPv6, in frames up to the MTU. Needs root; works in a network namespace that it makes and
deletes. Exit status: 0 passed, 1 a request was lost, 77 skipped.
USAGE
}

# shellcheck source=scripts/net/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

count=10000
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage; exit 0 ;;
    --count) count=$2; shift ;;
    *) usage >&2; exit 2 ;;
    esac
    shift
done

need_net ping
need_tap
start_work
need_rust
raw_on_model=''
program raw_on_model dev ferrocx-verbs-lite example raw_on_model
ns=
namespace ns raw
ip -n "$ns" tuntap add fx0 mode tap
ip -n "$ns" addr add 198.18.0.1/24 dev fx0
ip -n "$ns" addr add fd00:18::1/64 dev fx0 nodad
ip -n "$ns" link set fx0 up
# What clean_up ends and shows.
ip netns exec "$ns" "$raw_on_model" fx0 >"$work/testpmd.out" 2>"$work/testpmd.err" &
testpmd_pid=$!
until_true 20 ip netns exec "$ns" ping -c 1 -W 1 198.18.0.2 || die "no answer to ping"
until_true 20 ip netns exec "$ns" ping -c 1 -W 1 fd00:18::2 || die "no answer to ping -6"

echo "== result"
cat "$work/testpmd.out"
echo "address     data  $count requests each; one that is lost ends the test"
# Frames of 60 and 64 bytes, longer ones, the whole MTU.
for ask in 198.18.0.2:{18,22,56,1000,1472} fd00:18::2:{56,1452}; do
    address=${ask%:*} size=${ask##*:}
    out=$(ip netns exec "$ns" ping -q -f -M "do" -c "$count" -s "$size" "$address") || true
    line=$(grep 'packets transmitted' <<<"$out") || die "ping said: $out"
    printf '%-10s %5d  %s, %s\n' "$address" "$size" "${line%%, time*}" \
        "$(sed -n 's/^rtt \([^,]*\),.*/rtt \1/p' <<<"$out")"
    grep -q "^$count packets transmitted, $count received, 0% packet loss" <<<"$line" ||
        die "requests were lost"
done
kill "$testpmd_pid" || die "the program ended by itself"
wait "$testpmd_pid" 2>/dev/null || true
testpmd_pid=
