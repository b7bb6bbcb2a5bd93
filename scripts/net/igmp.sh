#!/usr/bin/env bash
# Joins and leaves of multicast groups, judged by a Linux bridge that snoops and by tshark.
set -euo pipefail

usage() {
    cat <<'USAGE'
igmp.sh: a feed behind a Linux bridge with a querier arrives after our join, and only then.

  scripts/net/igmp.sh

A sender and our model are ports of one bridge. For IGMPv2, IGMPv3, MLDv1 and MLDv2: ten datagrams
before the join (0 arrive), ten after it (10), ten after queries were answered for longer than the
bridge remembers a member (10), ten after the leave (0). tshark then looks at our reports.
Needs root. Exit status: 0 passed, 1 a count or a frame is wrong, 77 skipped.
USAGE
}

# shellcheck source=scripts/net/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1-} in
'') ;;
-h | --help) usage; exit 0 ;;
*) usage >&2; exit 2 ;;
esac

need_net tshark
need_tap
start_work
capture='' judged=''
# end: no capture outlives the script; dumpcap would keep the namespace.
end() {
    local status=$?
    [ -z "$capture" ] || kill -INT "$capture" 2>/dev/null || true
    (exit $status)
    clean_up
}
trap end EXIT
need_rust
multicast=''
program multicast dev ferrocx example multicast
switch='' sender=''
namespace switch igmp
namespace sender feed

# no_bridge: a machine that cannot make a bridge could not make the first; later it is a failure.
no_bridge() {
    [ -z "$judged" ] || die "the bridge could not be made again after $judged"
    skip "no bridge with multicast snooping can be made here"
}

# make_bridge IPV4-VERSION IPV6-VERSION: a fresh bridge br0 that asks every second, and forgets a
# member after four.
make_bridge() {
    local old
    for old in br0 fx2; do ip -n "$switch" link del "$old" 2>/dev/null || true; done
    # The times first: the querier starts with those it has when it is enabled.
    ip -n "$switch" link add br0 type bridge mcast_snooping 1 mcast_query_response_interval 50 \
        mcast_query_interval 100 mcast_startup_query_interval 100 mcast_membership_interval 400 \
        mcast_last_member_interval 20 mcast_last_member_count 2 ||
        no_bridge
    ip -n "$switch" link set br0 type bridge mcast_igmp_version "$1" mcast_mld_version "$2"
    ip -n "$switch" link add fx2 type veth peer name fx3 netns "$sender"
    ip -n "$switch" tuntap add fx0 mode tap 2>/dev/null || true
    for port in fx0 fx2; do
        ip -n "$switch" link set "$port" master br0
        ip -n "$switch" link set "$port" up
    done
    ip -n "$switch" addr add 198.18.0.9/24 dev br0
    ip -n "$switch" link set br0 up
    ip -n "$sender" addr add 198.18.0.1/24 dev fx3
    ip -n "$sender" link set fx3 up
    ip -n "$sender" route add 239.0.0.0/8 dev fx3
    ip -n "$switch" link set br0 type bridge mcast_querier 1
}

# say_to LINE: one line to the listener, and its answer in reply.
say_to() {
    echo "$1" >&"${listener[1]}"
    read -r -t 20 reply <&"${listener[0]}" || die "the listener did not answer '$1'"
}

# tell LINE: one line to the listener, which repeats it.
tell() {
    say_to "$1"
    [ "$reply" = "$1" ] || die "$reply"
}

# ten GROUP WANTED WHAT: ten datagrams; so many must arrive.
ten() {
    local _
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        ip netns exec "$sender" bash -c "echo tick >/dev/udp/$1/26400"
    done
    say_to count
    printf '%-8s %-12s %-44s %s\n' "$version" "$1" "$3" "$reply"
    [ "$reply" = "$2 datagrams" ] || die "$2 of 10 should have arrived"
}

# round VERSION ADDRESS GROUP: the whole story of one group.
round() {
    version=$1
    coproc listener { exec ip netns exec "$switch" "$multicast" model:tap=fx0 "$2" 26400; }
    listener_pid=$!
    read -r -t 60 reply <&"${listener[0]}" || die "the listener did not start"
    tell "watch $3"
    # A bridge floods until its first query has had time to be answered.
    sleep 3
    ten "$3" 0 "before the join"
    tell "join $3"
    until_true 20 is_member "$3" || die "the bridge does not hear of the join"
    ten "$3" 10 "after the join"
    sleep 6
    ten "$3" 10 "six seconds later, queries answered"
    tell "leave $3"
    until_true 20 is_no_member "$3" || die "the bridge does not hear of the leave"
    ten "$3" 0 "after the leave"
    local input=${listener[1]}
    exec {input}>&-
    wait "$listener_pid" || die "the listener ended badly"
}

# is_member GROUP, is_no_member GROUP: what the bridge knows of a group.
is_member() { bridge -n "$switch" mdb show | grep -qF "grp $1 "; }
is_no_member() { ! is_member "$1"; }

# judge FILE COUNT: our reports have one hop and Router Alert, and no dissector complains.
judge() {
    local ours="eth.src[0:3] == 02:fe:0c && (igmp || icmpv6.type in {131, 132, 143})" count bad
    count=$(tshark -r "$1" -Y "$ours" 2>/dev/null | wc -l)
    [ "$count" -ge "$2" ] || die "$count reports in the capture, at least $2 expected"
    local alert="(ip.ttl == 1 && ip.opt.ra) || (ipv6.hlim == 1 && ipv6.opt.router_alert)"
    local wrong="_ws.malformed || _ws.expert.severity == error || igmp.checksum.status == bad"
    wrong+=" || icmpv6.checksum.status == bad || ip.checksum.status == bad"
    bad=$(tshark -o ip.check_checksum:TRUE -r "$1" -Y "($ours) && (!($alert) || ($wrong))" \
        2>/dev/null)
    [ -z "$bad" ] || { printf '%s\n' "$bad" | head -n 20; die "reports are not as they must be"; }
    echo "tshark: $count reports, leaves, dones: one hop and Router Alert in each, none malformed"
}

echo "== result"
for versions in "2 1" "3 2"; do
    read -r igmp mld <<<"$versions"
    make_bridge "$igmp" "$mld"
    ip netns exec "$switch" tshark -q -i fx0 -w "$work/$igmp.pcapng" >/dev/null 2>&1 &
    capture=$!
    until_true 20 test -s "$work/$igmp.pcapng" || die "tshark does not capture"
    round "IGMPv$igmp" 198.18.0.2 239.1.2.3
    round "MLDv$mld" fe80::2 ff15::1234
    kill -INT "$capture"
    wait "$capture" || true
    capture=''
    judge "$work/$igmp.pcapng" 8
    judged=IGMPv$igmp
done
