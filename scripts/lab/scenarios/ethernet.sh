# about: ping and iperf3 between two ports of the model, driven by unmodified mlx5e
# machine: stock
# capture: yes
# timeout: 600
# shellcheck shell=bash source=scripts/lab/netns.sh source-path=SCRIPTDIR
source /host/lab/netns.sh

same_count() { [ "$(counter "$1" "$2")" -eq "$(counter "$3" "$4")" ]; }

load_driver 2
split_ports
check ping_size 0 1 18 56 1000 1472
check all_answered within 1 ping -c 5 -i 0.1 fd00::2
check all_answered within 1 ping -c 2000 -q -f 10.0.0.2
check all_answered within 2 ping -c 2000 -q -f -s 1400 10.0.0.1
check iperf
check iperf -R
check iperf -u -b 10M
check iperf -u -b 10M -R
# What one port sent the other received: the cable and the counters lose nothing.
for ways in '1 2' '2 1'; do
    read -r from to <<<"$ways"
    until_true 10 same_count "$from" tx_packets_phy "$to" rx_packets_phy
    step "port $from sent $(counter "$from" tx_packets_phy) frames," \
        "port $to received $(counter "$to" rx_packets_phy)"
    check same_count "$from" tx_packets_phy "$to" rx_packets_phy
done
both ethtool -S DEV >/host/ethtool.log
both ip -s link show DEV
check_dmesg
verdict
