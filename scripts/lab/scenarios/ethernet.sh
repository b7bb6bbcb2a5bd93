# about: ping and iperf3 between two ports of the model, driven by unmodified mlx5e
# ports: 2
# capture: yes
# timeout: 600
# cmdline: modprobe.blacklist=mlx5_core,mlx5_ib
# shellcheck shell=bash source=scripts/lab/netns.sh source-path=SCRIPTDIR
source /host/lab/netns.sh

load_driver 2
split_ports
check ping_size 0 1 18 56 1000 1472
check within 1 ping -q -c 5 -i 0.1 -W 2 fd00::2
must within 1 ping -q -f -c 500 -W 2 10.0.0.2
check iperf
check iperf -R
check iperf -u -b 10M
check iperf -u -b 10M -R
both ethtool -S DEV >/host/ethtool.log
both ip -s link show DEV
check_dmesg
verdict
