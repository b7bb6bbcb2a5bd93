# about: messages and keys of ours lie in the BAR of another device, stock peers reach them there
# ports: 2
# iommu: yes
# program: ferrocx-perftest perftest ferrocx-cxctl cxctl
# model: --watch-dma 16777216
# qemu: -object memory-backend-memfd,id=peer,size=16M,share=on -device ivshmem-plain,memdev=peer
# watched: 90
# capture: yes
# timeout: 400
# cmdline: iommu=pt modprobe.blacklist=mlx5_core,mlx5_ib
# shellcheck shell=bash source=scripts/lab/verbs-lite.sh source-path=SCRIPTDIR
source /host/lab/verbs-lite.sh

# A device whose BAR 2 is 16 MiB of memory that the guest's kernel does not own.
peer=$(basename "$(grep -l 0x1110 /sys/bus/pci/devices/*/device | xargs dirname)")
step "the peer is $peer"
must sh -c "echo 1 >/sys/bus/pci/devices/$peer/enable"
OUR_OPTIONS=(--peer "pci:$peer/2")

without_key_cache
take "$OURS"
must /host/cxctl hugepages reserve 64 --apply
load_rdma 1
stock_port "$(netdev_of mlx5_0)"
against mlx5_0
as_client rc -s 262144 -m 4096 -n 20
as_server rc -s 262144 -m 4096 -n 20 --ipv6
as_client ud -s 1000
# FMRs and windows over such memory are refused.
tried_keys keys limits invalidate window
check_dmesg
table
verdict
