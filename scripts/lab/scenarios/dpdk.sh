# about: DPDK's testpmd on both ports: its receive and send paths, offloads, RSS, flow rules
# ports: 2
# refusals: none
# timeout: 400
# shellcheck shell=bash source=scripts/lab/rdma.sh source-path=SCRIPTDIR
source /host/lab/rdma.sh

# The kernel's own packets would be counted with DPDK's.
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
without_key_cache
echo 256 >/proc/sys/vm/nr_hugepages
mkdir -p /run/huge
must mount -t hugetlbfs hugetlbfs /run/huge
load_rdma 2
must modprobe ib_uverbs
check python3 /host/lab/dpdk.py "$FERROCX_DPDK_PACKETS"
check_dmesg
verdict
