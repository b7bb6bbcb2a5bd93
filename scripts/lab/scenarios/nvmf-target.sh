# about: our NVMe over RDMA target on vfio-pci, with stock nvme-rdma, fio and ext4 as its host
# machine: vfio
# program: ferrocx-cxctl cxctl ferrocx-nvmf-target nvmf-target
# refusals: none
# timeout: 900
# shellcheck shell=bash source=scripts/lab/nvmf-host.sh source-path=SCRIPTDIR
source /host/lab/nvmf-host.sh
judged
