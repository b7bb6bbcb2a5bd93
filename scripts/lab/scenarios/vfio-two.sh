# about: our driver forwards between two devices of one process, two stock ports ping through it
# ports: 4
# iommu: yes
# program: ferrocx-testpmd testpmd ferrocx-cxctl cxctl
# capture: yes
# timeout: 400
# cmdline: iommu=pt modprobe.blacklist=mlx5_core,mlx5_ib
# shellcheck shell=bash source=scripts/lab/vfio.sh source-path=SCRIPTDIR
source /host/lab/vfio.sh

# Cables join ports 1 and 2, 3 and 4; ours are the two in the middle.
readonly OURS=(0000:02:00.0 0000:03:00.0)
take "${OURS[@]}"
must /host/cxctl hugepages reserve 64 --apply
load_driver 2
start_testpmd two --device "${OURS[0]}" --device "${OURS[1]}" --forward-mode io --promiscuous
split_ports
check answers 10.0.0.2 ip netns exec port1
check answers 10.0.0.1 ip netns exec port2
check stop_testpmd two
check_dmesg
verdict
