# about: what packets and messages cost on PCIe: ours beside DPDK's driver and libmlx5
# machine: vfio
# program: ferrocx-testpmd testpmd ferrocx-perftest perftest ferrocx-cxctl cxctl
# timeout: 600
# ci: no
# shellcheck shell=bash source=scripts/lab/vfio.sh source-path=SCRIPTDIR
source /host/lab/vfio.sh
# shellcheck source=scripts/lab/verbs.sh source-path=SCRIPTDIR
source /host/lab/verbs.sh

# The kernel's own packets would be counted, too.
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
without_key_cache
echo 256 >/proc/sys/vm/nr_hugepages
mkdir -p /run/huge
must mount -t hugetlbfs hugetlbfs /run/huge
cp /host/testpmd /host/perftest /run/
load_rdma 2
must modprobe ib_uverbs
peer_ports "$(netdev_of mlx5_0)" 10.1.0.1 "$(netdev_of mlx5_1)" 10.1.0.2
ends mlx5_0 10.1.0.1 mlx5_1 10.1.0.2
check python3 /host/lab/pcie.py theirs "${GID[@]}"
unload_rdma
take 0000:01:00.0 0000:02:00.0
check python3 /host/lab/pcie.py ours
check python3 /host/lab/pcie.py table
check_dmesg
verdict
