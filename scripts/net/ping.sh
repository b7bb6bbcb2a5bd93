#!/usr/bin/env bash
# The kernel pings; our driver on the software ConnectX answers.
set -euo pipefail

usage() {
    cat <<'USAGE'
ping.sh: `ping -f` of the kernel, answered by testpmd icmpecho on the model, 0 lost.

  scripts/net/ping.sh [--count N] [--quick]

  --count N   echo requests of each size (default 10000)
  --quick     one wire and one MTU only

Sizes go up to the MTU (1500 and 9000), through a TAP and through a veth pair, IPv4 and IPv6.
Needs root; works in a network namespace that it makes and deletes. Exit status: 0 passed, 1 a
request was lost, 77 skipped.
USAGE
}

# shellcheck source=scripts/net/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

count=10000 wires=(tap packet) mtus=(1500 9000)
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage; exit 0 ;;
    --count) count=$2; shift ;;
    --quick) wires=(tap) mtus=(1500) ;;
    *) usage >&2; exit 2 ;;
    esac
    shift
done

need_net ping jq
need_tap
start_work
build_testpmd
ns=
namespace ns ping

# make_wire KIND MTU: the kernel's interface is fx0; sets wire to testpmd's option.
make_wire() {
    case $1 in
    tap)
        ip -n "$ns" tuntap add fx0 mode tap
        wire=tap:fx0
        ;;
    packet)
        ip -n "$ns" link add fx0 type veth peer name fx1
        # Frames on the wire must be whole: a veth pair would leave checksums to the receiver.
        ip netns exec "$ns" ethtool -K fx0 tx off tso off gso off gro off >/dev/null
        ip -n "$ns" link set fx1 up mtu "$2"
        wire=packet:fx1
        ;;
    esac
    ip -n "$ns" addr add 198.18.0.1/24 dev fx0
    ip -n "$ns" addr add fd00:18::1/64 dev fx0 nodad
    ip -n "$ns" link set fx0 up mtu "$2"
}

# flood KIND MTU ADDRESS SIZE: one line of the result, or the end.
flood() {
    local out line
    out=$(ip netns exec "$ns" ping -q -f -M "do" -c "$count" -s "$4" "$3") || true
    line=$(grep 'packets transmitted' <<<"$out") || die "ping said: $out"
    printf '%-6s %5d  %-10s %5d  %s, %s\n' "$1" "$2" "$3" "$4" \
        "${line%%, time*}" "$(sed -n 's/^rtt \([^,]*\),.*/rtt \1/p' <<<"$out")"
    grep -q "^$count packets transmitted, $count received, 0% packet loss" <<<"$line" ||
        die "requests were lost"
}

echo "== result"
echo "wire     mtu  address     data  $count requests each; one that is lost ends the test"
for kind in "${wires[@]}"; do
    if [ "$kind" = packet ] && ! have ethtool; then
        say "skipped: veth, ethtool is not installed"
        continue
    fi
    for mtu in "${mtus[@]}"; do
        make_wire "$kind" "$mtu"
        start_testpmd "$ns" --wire "$wire" --forward-mode icmpecho --mtu "$mtu"
        until_true 20 ip netns exec "$ns" ping -c 1 -W 1 198.18.0.2 || die "no answer to ping"
        until_true 20 ip netns exec "$ns" ping -c 1 -W 1 fd00:18::2 || die "no answer to ping -6"
        # Frames of 60 and 64 bytes, one buffer, more than one buffer, the whole MTU.
        sizes=(18 22 56 1000 $((mtu - 28)))
        [ "$mtu" -le 1500 ] || sizes=(2100 $((mtu - 28)))
        for size in "${sizes[@]}"; do flood "$kind" "$mtu" 198.18.0.2 "$size"; done
        flood "$kind" "$mtu" fd00:18::2 56
        flood "$kind" "$mtu" fd00:18::2 $((mtu - 48))
        stop_testpmd
        report '"testpmd: received \(.totals.received.frames) = answered " +
            "\(.totals.forwarded.frames) + dropped \(.totals.dropped)"'
        ip -n "$ns" link del fx0
    done
done
