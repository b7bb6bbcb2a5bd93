#!/usr/bin/env bash
# Every frame that the model put on a wire, judged by Wireshark's dissectors.
set -euo pipefail

usage() {
    cat <<'USAGE'
capture.sh: captures of two runs open in tshark with no malformed frame and no wrong checksum.

  scripts/net/capture.sh

The first run is ping and ping -6 through a TAP (needs root, else it is left out, and said so); the
second is the generator, forwarded by testpmd, with sizes up to the MTU.
Exit status: 0 passed, 1 a frame is malformed, 77 skipped.
USAGE
}

# shellcheck source=scripts/net/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1-} in
'') ;;
-h | --help) usage; exit 0 ;;
*) usage >&2; exit 2 ;;
esac

have tshark || skip "tshark is not installed"
have jq || skip "jq is not installed"
start_work
build_testpmd

# judge NAME FILE LEAST: no malformed frame, no expert error, all checksums right.
judge() {
    local frames bad
    local checks=(-o ip.check_checksum:TRUE -o udp.check_checksum:TRUE -o tcp.check_checksum:TRUE)
    frames=$(tshark -r "$2" 2>"$work/tshark.err" | wc -l)
    if grep -vE 'Running as user|^$' "$work/tshark.err"; then die "tshark complains about $1"; fi
    local filter="_ws.malformed || _ws.expert.severity == error" layer
    for layer in ip tcp udp icmp icmpv6; do filter+=" || $layer.checksum.status == bad"; done
    bad=$(tshark "${checks[@]}" -r "$2" -Y "$filter" 2>/dev/null)
    [ -z "$bad" ] || { printf '%s\n' "$bad" | head -n 20; die "$1: frames are malformed"; }
    [ "$frames" -ge "$3" ] || die "$1: $frames frames captured, at least $3 expected"
    echo "$1: $frames frames, none malformed, all checksums right"
}

echo "== result"
if is_root && [ -c /dev/net/tun ] && have ping && have ip && ip netns add fx$$-capture 2>/dev/null
then
    ns=fx$$-capture
    namespaces+=("$ns")
    ip -n "$ns" tuntap add fx0 mode tap
    ip -n "$ns" addr add 198.18.0.1/24 dev fx0
    ip -n "$ns" addr add fd00:18::1/64 dev fx0 nodad
    ip -n "$ns" link set fx0 up
    start_testpmd "$ns" --wire tap:fx0 --forward-mode icmpecho --wait yield \
        --pcap "$work/ping.pcapng"
    until_true 20 ip netns exec "$ns" ping -c 1 -W 1 198.18.0.2 || die "no answer to ping"
    until_true 20 ip netns exec "$ns" ping -c 1 -W 1 fd00:18::2 || die "no answer to ping -6"
    for size in 0 1 18 56 1471 1472; do
        ip netns exec "$ns" ping -q -f -c 100 -s $size 198.18.0.2 >/dev/null
    done
    ip netns exec "$ns" ping -q -f -c 100 -s 1452 fd00:18::2 >/dev/null
    stop_testpmd
    judge ping "$work/ping.pcapng" 1400
else
    echo "ping: left out, it needs root, ip, ping and /dev/net/tun"
fi

for mode in io macswap; do
    "$testpmd" --wire generator --forward-mode $mode --size 64,65,594,1514 --count 2000 \
        --wait yield --stats 0 --pcap "$work/$mode.pcapng" \
        --json "$work/report.json" >"$work/testpmd.out" 2>"$work/testpmd.err"
    judge "$mode" "$work/$mode.pcapng" 4000
done
