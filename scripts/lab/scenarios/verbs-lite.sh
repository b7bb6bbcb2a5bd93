# about: our verbs on vfio-pci against rdma-core's tools on mlx5_ib and on rdma_rxe
# machine: vfio
# program: ferrocx-perftest perftest ferrocx-cxctl cxctl
# capture: yes
# timeout: 500
# shellcheck shell=bash source=scripts/lab/verbs-lite.sh source-path=SCRIPTDIR
source /host/lab/verbs-lite.sh

without_key_cache
take "$OURS"
must /host/cxctl hugepages reserve 64 --apply
load_rdma 1
stock_port "$(netdev_of mlx5_0)"

against mlx5_0
as_client srq -s 1000 -n 100
as_server rc -s 65536 -m 256 -n 5
as_client rc -s 1048576 -m 4096 -n 2 --ipv6
as_server uc -s 1000 --ipv6
as_client ud -s 1000
as_server ud -s 1000 --srq
tried_keys

# The port is an Ethernet port only from here on; Soft-RoCE runs on its netdev.
must sh -c 'echo mlx5_core.rdma.0 >/sys/bus/auxiliary/drivers/mlx5_ib.rdma/unbind'
must modprobe rdma_rxe
must rdma link add rxe0 type rxe netdev "$STOCK_NETDEV"
against rxe0
as_client rc -s 100000 -n 5 --ipv6
as_server rc -s 1000 --srq
as_server srq -s 1000 -n 100
as_client uc -s 1000 --srq
as_server ud -s 1000
tried_keys
check_dmesg
table
verdict
