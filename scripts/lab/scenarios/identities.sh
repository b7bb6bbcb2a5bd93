# about: a ConnectX-5, a virtual function and a ConnectX-6 Dx, unmodified mlx5e, meet at a switch
# ports: 3
# model: --identity cx5 --identity cx5-vf --identity cx6dx --wire switch --wire switch --wire switch
# capture: yes
# timeout: 500
# shellcheck shell=bash source=scripts/lab/netns.sh source-path=SCRIPTDIR
source /host/lab/netns.sh

must lspci -nn -d 15b3:
load_driver 3
for dev in $(mlx5_netdevs); do must ethtool -i "$dev"; done
check_dmesg
split_ports
# Every port hears every other; a frame for one does not reach the third.
for pair in '1 2' '1 3' '2 3'; do
    read -r from to <<<"$pair"
    check until_true 60 within "$from" ping -q -c 1 -W 1 "10.0.0.$to"
    third=$((6 - from - to))
    before=$(counter "$third" rx_packets_phy)
    check all_answered within "$from" ping -c 20 -i 0.02 -s 1000 "10.0.0.$to"
    step "port $third saw $(($(counter "$third" rx_packets_phy) - before)) more frames"
    check test "$(counter "$third" rx_packets_phy)" -lt $((before + 10))
done
check_dmesg
verdict
