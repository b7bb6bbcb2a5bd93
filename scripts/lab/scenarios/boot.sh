# about: the lab itself: a guest without a device boots, and has the drivers that judge the model
# ci: no
# ports: 0
# timeout: 300
# shellcheck shell=bash source=scripts/lab/lib.sh source-path=SCRIPTDIR
source /host/lab/lib.sh

for module in mlx5_core mlx5_ib rdma_rxe vfio-pci vfio_iommu_type1 nvme-rdma nvmet-rdma rpcrdma; do
    must modinfo -F filename "$module"
done
for tool in ethtool iperf3 ping lspci tcpdump ibv_devinfo ib_send_lat rping nvme fio; do
    must command -v "$tool"
done
step "the guest runs Linux $(uname -r)"
