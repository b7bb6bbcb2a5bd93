# about: MTU, VLAN, RSS, addresses, offloads, rings and self-test of unmodified mlx5e on the model
# ports: 2
# cpus: 4
# capture: yes
# timeout: 900
# shellcheck shell=bash source=scripts/lab/netns.sh source-path=SCRIPTDIR
source /host/lab/netns.sh

# What the driver says about the things done here.
HEALTHY+=(
    '(entered|left) promiscuous mode'
    'S-tagged traffic will be dropped while C-tag' # a limit of receive VLAN stripping
    'Disabling rxhash, not supported when CQE compress is active'
    'Self test (begin|out)' '\[[0-3]\] (Link|Speed|Health|Loopback) Test'
)

# Pings still pass and TCP still flows.
works() {
    settled && ping_size 0 56 1472 && iperf
}

# without FEATURE: off at both ports, traffic, on again.
without() {
    both ethtool -K DEV "$1" off && works && both ethtool -K DEV "$1" on
}

jumbo() {
    both ip link set DEV mtu 9000 && settled && ping_size 1473 4000 8972 && iperf &&
        both ip link set DEV mtu 1500
}

vlan() {
    local i
    for i in 1 2; do
        ip -n "port$i" link add link "${DEV[i]}" name vlan5 type vlan id 5 || return
        ip -n "port$i" addr add "10.5.0.$i/24" dev vlan5 || return
        ip -n "port$i" link set vlan5 up || return
    done
    until_true 60 within 1 ping -q -c 1 -W 1 10.5.0.2
    all_answered within 1 ping -c 10 -i 0.02 -s 1400 10.5.0.2
}

# Four receive queues, and many flows reach more than two of them.
spread() {
    local queue used=0
    both ethtool -L DEV combined 4 || return
    settled && ping_size 56 || return
    iperf -P 8 >/dev/null || return
    for queue in 0 1 2 3; do
        step "queue $queue of port 2 took $(counter 2 "rx${queue}_packets")"
        [ "$(counter 2 "rx${queue}_packets")" -lt 50 ] || used=$((used + 1))
    done
    [ "$used" -gt 2 ]
}

address() {
    both ip link set DEV up
    within 1 ip link set "${DEV[1]}" address 02:00:00:00:00:77 || return
    within 2 ip neigh flush all
    ping_size 56
}

# A frame for nobody is taken only while promiscuous.
promiscuous() {
    local before
    within 1 ip neigh replace 10.0.0.9 lladdr 02:00:00:00:99:99 dev "${DEV[1]}" nud permanent
    before=$(counter 2 rx_packets)
    within 1 ping -q -c 5 -i 0.02 -W 1 10.0.0.9 >/dev/null
    step "not promiscuous: $(($(counter 2 rx_packets) - before)) more packets"
    [ "$(counter 2 rx_packets)" -lt $((before + 5)) ] || return
    within 2 ip link set "${DEV[2]}" promisc on || return
    sleep 1
    before=$(counter 2 rx_packets)
    within 1 ping -q -c 5 -i 0.02 -W 1 10.0.0.9 >/dev/null
    step "promiscuous: $(($(counter 2 rx_packets) - before)) more packets"
    [ "$(counter 2 rx_packets)" -ge $((before + 5)) ] || return
    within 2 ip link set "${DEV[2]}" promisc off
}

multicast() {
    within 2 sh -c 'echo 0 >/proc/sys/net/ipv4/icmp_echo_ignore_broadcasts'
    within 2 ip addr add 239.1.2.3/32 dev "${DEV[2]}" autojoin || return
    within 1 ip route add 239.0.0.0/8 dev "${DEV[1]}" || return
    all_answered within 1 ping -c 3 -i 0.1 239.1.2.3
}

# The driver's self-test: link, speed, health, loopback.
self_test() {
    local report part
    report=$(within 1 ethtool -t "${DEV[1]}")
    echo "$report"
    for part in Link Speed Health Loopback; do
        grep -qE "^$part Test[[:space:]]+0\$" <<<"$report" || return
    done
    grep -q 'The test result is PASS' <<<"$report"
}

load_driver 2
split_ports
check both ethtool -k DEV
check jumbo
check vlan
check spread
for feature in rx-vlan-offload tx-vlan-offload tx-checksum-ip-generic tso rx-checksumming gro sg; do
    check without "$feature"
done
check both ethtool -G DEV rx 256 tx 128
check works
check both ethtool -C DEV rx-usecs 16 rx-frames 8 adaptive-rx off
check works
check both ethtool --set-priv-flags DEV rx_cqe_compress on
check works
check both ethtool --set-priv-flags DEV skb_tx_mpwqe off
check works
check address
check promiscuous
check multicast
check self_test
check works
both ethtool -S DEV >/host/ethtool.log
check_dmesg
verdict
