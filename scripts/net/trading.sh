#!/usr/bin/env bash
# tick2trade beside the kernel: our TCP against the kernel's, tick to trade over both, and what
# tshark says of every packet.
set -euo pipefail

usage() {
    cat <<'USAGE'
trading.sh: tick2trade against the kernel's sockets, and before tshark's eyes.

  scripts/net/trading.sh [--ticks N] [--svg FILE]

  1. Our TCP talks to the kernel's through a wire that loses, repeats and reorders: every byte must
     arrive; zero window, RST, FIN; a lone lost order again within 5 ms. All twice, the second time
     with SYN cookies.
  2. tshark reads a capture of exchange and engine: every MoldUDP64, SoupBinTCP and IGMP packet, and
     not one complaint.
  3. Our capture is played again, three times and at its own pace: the same orders, to the byte.
  4. The trader is killed in the middle and started again: at the end it has the shares that the
     exchange executed, no order was doubled, and none is open. A bridge with a querier lies between
     the two: no datagram of the feed goes the trader's way before it joins, and none after it left.
     What tshark captured there is played again, too. A quoter is killed while orders of it stand:
     the next one knows of every share of them. Its kill switch is thrown, and then it is ended, by
     signals.
  5. 1 % of each line is lost, 1 % comes late, and 10,000 messages at a time are lost on both lines:
     in the end the books are the exchange's, and the table has the times of recovery.
  6. Tick to trade over our queues on the model, in memory and by a TAP, and over the kernel's
     sockets by the same TAP, same exchange, same engine (default: 20000 orders each). No figure is
     a NIC's.
Needs root. Exit status: 0 passed, 1 something is wrong, 77 skipped.
USAGE
}

# shellcheck source=scripts/net/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ticks=20000 svg=
while [ $# -gt 0 ]; do
    case "$1" in
    --ticks) ticks=${2:?--ticks needs a number}; shift ;;
    --svg) svg=$(realpath "${2:?--svg needs a file}"); shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
    esac
    shift
done

need_net tshark jq
need_tap
start_work
need_rust
cd "$net_root"
tick2trade=''
program tick2trade release ferrocx-tick2trade bin tick2trade
kernel_tcp=$(cargo test -q --locked "$(selection ferrocx-tick2trade)" --test kernel_tcp --no-run \
    --message-format json | jq -r 'select(.target.name == "kernel_tcp") | .executable')

kernel=''
namespace kernel trade
for tap in fx0:198.18.0.2 fx1:198.18.1.2; do
    ip -n "$kernel" tuntap add "${tap%:*}" mode tap
    ip -n "$kernel" addr add "${tap#*:}/24" dev "${tap%:*}"
    ip -n "$kernel" link set "${tap%:*}" up
done
ip -n "$kernel" neigh add 198.18.1.1 lladdr 02:e0:00:00:01:01 dev fx1

echo "== result"
for cookies in 0 2; do
    echo "---- our TCP against the kernel's, tcp_syncookies=$cookies"
    ip netns exec "$kernel" bash -c "echo $cookies >/proc/sys/net/ipv4/tcp_syncookies"
    FERROCX_TAP=fx1 ip netns exec "$kernel" "$kernel_tcp" --nocapture | grep -v '^$'
done

echo "---- tshark reads 500 orders, 1 % of each line lost"
"$tick2trade" measure --closed --ticks 500 --interval-us 100 --loss-ppm 10000 \
    --pcap "$work/trade.pcapng" >/dev/null
without_soup=(-d "udp.port==26400,moldudp64" -d "udp.port==26401,moldudp64"
    -d "udp.port==26500,moldudp64"
    -o ip.check_checksum:TRUE -o udp.check_checksum:TRUE -o tcp.check_checksum:TRUE)
as=("${without_soup[@]}" -d "tcp.port==9000,soupbintcp")
# frames FILTER: how many frames of the capture match.
frames() { tshark -r "$work/trade.pcapng" "${as[@]}" -Y "$1" 2>/dev/null | wc -l; }
for wanted in moldudp64:1000 soupbintcp:1000 igmp:2 arp:2; do
    count=$(frames "${wanted%:*}")
    echo "${wanted%:*}: $count frames"
    [ "$count" -ge "${wanted#*:}" ] || die "at least ${wanted#*:} expected"
done
requests=$(frames 'moldudp64 && udp.dstport == 9001')
[ "$requests" -ge 1 ] || die "no request for lost messages in the capture"
complaint='_ws.malformed || _ws.expert.severity == error || ip.checksum.status == bad'
complaint+=' || udp.checksum.status == bad || tcp.checksum.status == bad'
complaint+=' || igmp.checksum.status == bad || (igmp && (ip.ttl != 1 || !ip.opt.ra))'
complaint+=' || udp && !moldudp64 || tcp.len > 0 && !soupbintcp && !tcp.analysis.retransmission'
bad=$(frames "$complaint")
[ "$bad" -eq 0 ] || {
    tshark -r "$work/trade.pcapng" "${as[@]}" -Y "$complaint" 2>/dev/null | head -n 20
    die "tshark complains about $bad frames"
}
echo "complaints: none"

# same_orders FILE: plays a capture three times and at four times its pace; its orders are the same.
same_orders() {
    "$tick2trade" replay --runs 3 --symbol NVDA --orders "$work/orders" "$1" | tail -n 1
    "$tick2trade" replay --pace 4 --symbol NVDA --orders "$work/orders.paced" "$1" >/dev/null
    cmp "$work/orders" "$work/orders.paced" || die "other orders at another pace"
    [ -s "$work/orders" ] || die "the capture led to no order"
}

echo "---- a capture of ours is played again"
same_orders "$work/trade.pcapng"

echo "---- killed in the middle, and back"
ip -n "$kernel" link add br0 type bridge mcast_snooping 1 mcast_query_response_interval 50 \
    mcast_query_interval 100 mcast_startup_query_interval 100 \
    mcast_last_member_interval 20 mcast_last_member_count 2
# The trader's port of the bridge is a cable to another one, which floods: it is up, and may be
# listened to, while the trader is not.
ip -n "$kernel" link add br1 type bridge mcast_snooping 0
ip -n "$kernel" link add up0 type veth peer name down0
for port in fx2:br0 up0:br0 down0:br1 fx3:br1; do
    case $port in fx*) ip -n "$kernel" tuntap add "${port%:*}" mode tap ;; esac
    ip -n "$kernel" link set "${port%:*}" master "${port#*:}"
    ip -n "$kernel" link set "${port%:*}" up
done
ip -n "$kernel" link set br1 up
ip -n "$kernel" addr add 198.18.2.9/24 dev br0
ip -n "$kernel" link set br0 up
ip -n "$kernel" link set br0 type bridge mcast_querier 1
sleep 3
in_kernel() { ip netns exec "$kernel" "$@"; }
# In the background a function would be a shell of its own, which takes the signals; and what starts
# there ignores SIGINT.
ip netns exec "$kernel" tshark -q -i fx2 -i down0 -w "$work/bridge.pcapng" >/dev/null 2>&1 &
capture=$!
until_true 20 test -s "$work/bridge.pcapng" || die "tshark does not capture"
# The limits are wide: it is the exchange's count that is compared.
cat >"$work/taker.toml" <<'TOML'
device = "model:tap=fx3"
address = "198.18.0.2/24"
lines = ["239.1.1.1:26400", "239.1.1.2:26401"]
orders = "198.18.0.1:9000"
requests = "198.18.0.1:9001"
snapshots = "198.18.0.1:9002"
user = "ferro"
cancel_at_start = false
measure = true
symbols = ["NVDA"]
[limits]
position_shares = 100000000
credit = "100000000000"
rate = 65536
[feed]
attempts = 1000
[strategy]
kind = "taker"
at_most = "150"
TOML
sed -e 's/NVDA/AAPL/; s/"taker"/"quoter"/; s/at_most = .*/spread = "0.03"/' "$work/taker.toml" \
    >"$work/quoter.toml"
in_kernel "$tick2trade" exchange --tap fx2 --ticks 4000 --interval-us 2000 >"$work/exchange.out" &
exchange=$!
# Heartbeats of both lines, that nobody asked for.
sleep 2.5
ip netns exec "$kernel" "$tick2trade" trade --config "$work/taker.toml" >"$work/first.out" 2>&1 &
first=$!
until_true 20 grep -q open "$work/first.out" || die "order entry did not open"
sleep 3
in_kernel bridge mdb show dev br0 | grep -q 239.1.1.1 || die "the bridge knows of no member"
kill -KILL $first
wait $first 2>/dev/null || true
in_kernel "$tick2trade" trade --config "$work/taker.toml" --pcap "$work/second.pcapng" \
    >"$work/second.out"
wait $exchange || die "the exchange ended badly"
sed 's/^/exchange: /' "$work/exchange.out"
tail -n 1 "$work/second.out" | sed 's/^/trader: /'
# numbers FILE: those of its last line, in their order.
numbers() { tail -n 1 "$1" | grep -oE -e '-?[0-9]+' | paste -s -d ' '; }
read -r _ orders numbers highest executed _ < <(numbers "$work/exchange.out")
read -r _ _ next stand unfit position < <(numbers "$work/second.out")
resumed=$(sed -n 's/.*the next order is \([0-9]*\),.*/\1/p' "$work/second.out")
[ "$orders" -eq "$numbers" ] || die "$orders orders of $numbers numbers: some were doubled"
if [ "$resumed" -le 1 ] || [ "$highest" -le "$resumed" ]; then
    die "it did not trade before and after"
fi
[ "$next" -eq $((highest + 1)) ] || die "the next order would be $next, behind $highest"
[ "$position" -eq "$executed" ] || die "$position shares held, $executed executed"
[ $((stand + unfit)) -eq 0 ] || die "$stand orders stand, $unfit answers do not fit"
grep '^wire to wire, by the device' "$work/second.out" || die "no order has the device's stamps"
own="$work/second.pcapng"
# seen_by_trader FILTER: how many frames of the trader's own capture match.
seen_by_trader() { tshark -r "$own" "${as[@]}" -Y "$1" 2>/dev/null | wc -l; }
sent='frame.packet_flags_direction == 2 && tcp.len > 0'
stamped=$(seen_by_trader "$sent && !(frame.comment contains \"no stamp\")")
feed=$(seen_by_trader moldudp64)
echo "the trader's own capture: $feed packets of the feed, $stamped orders with the device's stamps"
if [ "$feed" -lt 1000 ] || [ "$stamped" -lt 10 ]; then
    die "the trader's own capture lacks feed or stamps"
fi
# Behind each "login accepted" tshark's dissector of SoupBinTCP (4.0) makes another conversation of
# the same connection. Where that segment ends inside a packet, as in front of a day's answers that
# are heard again, it looks for packets at wrong places from there on, and complains of segments
# that are sound. So it is asked for what we send, each segment of which starts with a packet; all
# else is judged without it.
complaint='_ws.malformed || _ws.expert.severity == error || ip.checksum.status == bad'
complaint+=' || udp.checksum.status == bad || tcp.checksum.status == bad || udp && !moldudp64'
complaint+=' || tcp.analysis.lost_segment || tcp.analysis.ack_lost_segment'
complaint+=' || tcp.analysis.out_of_order'
# complaints FILE: how many frames of a capture of the trader's tshark complains about.
complaints() { tshark -r "$1" "${without_soup[@]}" -Y "$complaint" 2>/dev/null | wc -l; }
bad=$(complaints "$own")
[ "$bad" -eq 0 ] || {
    tshark -r "$own" "${without_soup[@]}" -Y "$complaint" 2>/dev/null | head -n 20
    die "tshark complains about $bad frames of the trader's own capture"
}
ours='tcp.dstport == 9000 && tcp.len > 0'
strange="$ours && !soupbintcp && !tcp.analysis.retransmission"
bad=$(seen_by_trader "$strange")
[ "$bad" -eq 0 ] || {
    tshark -r "$own" "${as[@]}" -x -Y "$strange" 2>/dev/null | head -n 40
    die "$bad segments of ours are no packets of SoupBinTCP"
}
# A frame is taken out, one that was not sent again: tshark would have said so.
gone=$(tshark -r "$own" -Y "$ours" -T fields -e tcp.stream -e tcp.seq -e frame.number 2>/dev/null |
    awk '{ times[$1, $2]++; place[NR] = $1 SUBSEP $2; frame[NR] = $3 }
        END { for (n = 20; n <= NR; n++) if (times[place[n]] == 1) { print frame[n]; exit } }')
editcap "$own" "$work/cut.pcapng" "$gone"
[ "$(complaints "$work/cut.pcapng")" -gt 0 ] || die "nobody misses an order that is cut out"
echo "the trader's own capture: no complaint, and one when frame $gone is cut out"

echo "---- the feed goes the trader's way while it is a member, and only then"
sleep 1
left_at=$(date +%s.%N)
ip netns exec "$kernel" "$tick2trade" exchange --tap fx2 --ticks 1 >/dev/null &
exchange=$!
sleep 2.5
kill -TERM $exchange
wait $exchange || die "the second exchange ended badly"
kill -TERM $capture
wait $capture || true
# seen PORT FILTER: datagrams of the feed's groups that passed a port.
seen() {
    tshark -r "$work/bridge.pcapng" -Y "frame.interface_name == \"$1\" && udp && ip.dst == $2" \
        2>/dev/null | wc -l
}
for group in 239.1.1.1 239.1.1.2; do
    joined=$(tshark -r "$work/bridge.pcapng" -T fields -e frame.number -Y \
        "frame.interface_name == \"down0\" && igmp.type in {0x16, 0x22} && igmp.maddr == $group" \
        2>/dev/null | head -n 1)
    [ -n "$joined" ] || die "no report of $group in the capture"
    before=$(seen down0 "$group && frame.number < $joined")
    sent_before=$(seen fx2 "$group && frame.number < $joined")
    within=$(seen down0 "$group")
    after=$(seen down0 "$group && frame.time_epoch >= $left_at")
    sent_after=$(seen fx2 "$group && frame.time_epoch >= $left_at")
    echo "$group: $before of $sent_before datagrams before the join, $within as a member," \
        "$after of $sent_after after the leave"
    if [ "$sent_before" -lt 2 ] || [ "$sent_after" -lt 2 ]; then
        die "nothing was sent that could have been kept away"
    fi
    [ $((before + after)) -eq 0 ] || die "the feed came to a port without a member"
    [ "$within" -ge 1000 ] || die "at least 1000 datagrams expected while it was a member"
done
tshark -r "$work/bridge.pcapng" -Y 'frame.interface_name == "down0"' -w "$work/down0.pcapng" \
    2>/dev/null
same_orders "$work/down0.pcapng"

echo "---- killed while orders stand, and back"
# quoter FILE: starts one, whose counts are in $work/counts.json after each SIGUSR2.
quoter() {
    ip netns exec "$kernel" "$tick2trade" trade --config "$work/quoter.toml" \
        --json "$work/counts.json" >"$1" 2>&1 &
    quoter=$!
    until_true 20 grep -q open "$1" || die "order entry did not open: $(cat "$1")"
}
# counts FILTER: whether the quoter's counts are so now.
counts() {
    kill -USR2 $quoter
    sleep 0.1
    jq -e "$1" "$work/counts.json" >/dev/null
}
in_kernel "$tick2trade" exchange --tap fx2 --ticks 3000 --interval-us 2000 >"$work/exchange.out" &
exchange=$!
quoter "$work/first.out"
until_true 20 counts '.orders.standing >= 1 and .orders.next_urn >= 20' || die "no order stands"
kill -KILL $quoter
wait $quoter 2>/dev/null || true
quoter "$work/second.out"
wait $quoter || die "the quoter ended badly: $(cat "$work/second.out")"
wait $exchange || die "the exchange ended badly"
sed 's/^/exchange: /' "$work/exchange.out"
tail -n 1 "$work/second.out" | sed 's/^/quoter: /'
read -r _ orders numbers highest _ bought sold left < <(numbers "$work/exchange.out")
read -r _ _ next stand unfit position < <(numbers "$work/second.out")
[ "$orders" -eq "$numbers" ] || die "$orders orders of $numbers numbers: some were doubled"
[ "$next" -eq $((highest + 1)) ] || die "the next order would be $next, behind $highest"
[ "$position" -eq $((bought - sold)) ] || die "$position shares, $bought bought, $sold sold"
[ "$stand" -eq "$left" ] || die "$stand orders stand here, $left there"
[ "$unfit" -eq 0 ] || die "$unfit answers do not fit"

echo "---- the kill switch, and the end"
ip netns exec "$kernel" "$tick2trade" exchange --tap fx2 --ticks 100000 --interval-us 2000 \
    >"$work/exchange.out" &
exchange=$!
quoter "$work/first.out"
until_true 20 counts '.orders.standing >= 1' || die "no order stands"
kill -USR1 $quoter
until_true 20 counts '.orders | .standing == 0 and .asking == 0 and .stops % 16 == 8' ||
    die "the exchange did not answer the kill: $(cat "$work/first.out")"
until_true 20 counts '.orders.next_urn' || die "the quoter does not count"
killed_at=$(jq .orders.next_urn "$work/counts.json")
sleep 1
kill -INT $quoter
wait $quoter || die "the quoter ended badly: $(cat "$work/first.out")"
read -r _ _ next stand _ < <(numbers "$work/first.out")
[ "$next" -eq "$killed_at" ] || die "orders left behind the kill: $next, and $killed_at then"
kill -TERM $exchange
wait $exchange || die "the exchange ended badly"
read -r _ _ _ _ _ _ _ left < <(numbers "$work/exchange.out")
[ $((stand + left)) -eq 0 ] || die "$stand orders stand here, $left there"
echo "killed behind order $((killed_at - 1)): none left, none stands"

echo "---- losses, late packets, and 10000 messages of both lines at a time"
"$tick2trade" measure --closed --ticks 2000 --interval-us 200 --loss-ppm 10000 \
    --reorder-ppm 10000 --burst 10000 --json "$work/burst.json"
jq -e '.[] | select(.name == "recovery of gaps") | .count >= 1' "$work/burst.json" >/dev/null ||
    die "no recovery was measured"

echo "---- tick to trade"
ip netns exec "$kernel" "$tick2trade" measure --ticks "$ticks" --interval-us 200 --baseline fx0 \
    ${svg:+--svg "$svg"}
