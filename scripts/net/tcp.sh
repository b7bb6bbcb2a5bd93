#!/usr/bin/env bash
# TCP between two network stacks, through our driver and two ports of the model.
set -euo pipefail

usage() {
    cat <<'USAGE'
tcp.sh: iperf3 between two namespaces joined by testpmd, both directions, no error counted.

  scripts/net/tcp.sh [--seconds N]

  --seconds N   length of each transfer (default 10)

Each namespace has a TAP interface that is the wire of a model port; testpmd forwards between the
ports with checksum offload on: the device checks each received packet and writes the checksums of
each sent one, which testpmd has zeroed. Needs root. Exit status: 0 passed, 1 failed, 77 skipped.
USAGE
}

# shellcheck source=scripts/net/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

seconds=10
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage; exit 0 ;;
    --seconds) seconds=$2; shift ;;
    *) usage >&2; exit 2 ;;
    esac
    shift
done

need_net iperf3 jq
need_tap
start_work
build_testpmd
a='' b='' middle=''
namespace a a
namespace b b
namespace middle m

for name in fxa fxb; do ip -n "$middle" tuntap add $name mode tap; done
start_testpmd "$middle" --wire tap:fxa --wire tap:fxb --promiscuous --forward-mode io --checksum \
    --rxd 1024 --txd 1024
# The descriptor of a TAP stays with testpmd when the interface moves; it must be open first.
for name in fxa fxb; do ip -n "$middle" link set $name up; done
has_carrier() { ip -n "$middle" link show "$1" | grep -q LOWER_UP; }
until_true 20 has_carrier fxa || die "testpmd did not open fxa"
until_true 20 has_carrier fxb || die "testpmd did not open fxb"
ip -n "$middle" link set fxa netns "$a"
ip -n "$middle" link set fxb netns "$b"
ip -n "$a" addr add 198.18.1.1/24 dev fxa
ip -n "$b" addr add 198.18.1.2/24 dev fxb
ip -n "$a" link set fxa up
ip -n "$b" link set fxb up
until_true 20 ip netns exec "$a" ping -c 1 -W 1 198.18.1.2 || die "no way from a to b"

listens() { [ -n "$(ip netns exec "$b" ss -Hltn 'sport = :5201')" ]; }
# transfer NAME OPTION...: one iperf3 run from a to a server in b, as JSON.
transfer() {
    local name=$1
    shift
    ip netns exec "$b" iperf3 -s -1 -D --pidfile "$work/iperf3.pid" >/dev/null
    until_true 10 listens || die "iperf3 does not listen"
    ip netns exec "$a" iperf3 -c 198.18.1.2 -t "$seconds" --json "$@" >"$work/$name.json" ||
        die "iperf3 $name failed: $(jq -r .error "$work/$name.json")"
    jq -e 'has("error") | not' "$work/$name.json" >/dev/null ||
        die "iperf3 $name: $(jq -r .error "$work/$name.json")"
    jq -r --arg name "$name" '.end | "\($name): \(.sum_received.bits_per_second / 1e6 | floor) " +
        "Mbit/s, \(.sum_received.bytes) bytes, \(.sum_sent.retransmits) retransmits"' \
        "$work/$name.json"
}
echo "== result"
transfer a-to-b
transfer b-to-a --reverse
stop_testpmd

errors=$(report '[.ports[] | .errors | to_entries[] | select(.value > 0)] | length')
dropped=$(report '.totals.dropped | length')
report '.ports[] | "port \(.port): received \(.counts.received.frames), forwarded " +
    "\(.counts.forwarded.frames), dropped \(.counts.dropped), errors \(.errors)"'
[ "$errors" = 0 ] || die "an error counter is not 0"
[ "$dropped" = 0 ] || die "frames were dropped"
