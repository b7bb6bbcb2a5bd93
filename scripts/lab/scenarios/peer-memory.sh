# about: messages, keys and payloads of ours lie in another device's BAR, stock peers reach them
# ports: 2
# iommu: yes
# program: ferrocx-perftest perftest ferrocx-cxctl cxctl ferrocx-testpmd testpmd
# model: --watch-dma 16777216
# qemu: -object memory-backend-memfd,id=peer,size=16M,share=on -device ivshmem-plain,memdev=peer
# watched: 100
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

# Ethernet: what follows the first 64 bytes of a packet lies in the BAR, and is sent from there.
# Behind 42 bytes of headers, 22 bytes of an echo request still fit the first buffer.
start_testpmd payload --device "$OURS" --forward-mode icmpecho --promiscuous --mtu 4300 \
    --mbuf-size 4608 --rxd 64 --txd 64 --mbuf-cache 64 --payload "pci:$peer/2" --split 64
until_true 60 ping -q -c 1 -W 1 "$OUR_ADDRESS" || step 'no answer yet'
for size in 0 22 23 24 1000 4272; do
    check all_answered ping -c 20 -i 0.02 -M "do" -s "$size" "$OUR_ADDRESS"
done
check all_answered ping -c 300 -q -f -s 4272 "$OUR_ADDRESS"
check stop_testpmd payload

# The same BAR, lent by VFIO: the device has no driver of the kernel.
must sh -c "echo vfio-pci >/sys/bus/pci/devices/$peer/driver_override"
must sh -c "echo $peer >/sys/bus/pci/drivers_probe"
OUR_OPTIONS=(--peer "vfio:$peer/2")
as_client rc -s 262144 -m 4096 -n 20

# A dma-buf of the kernel's own exporter, under the model in this process: every byte is compared,
# and its pages change under the exporter, too. A container of VFIO refuses such pages by name.
dma_buf() { python3 /host/lab/dma-buf.py udmabuf 16 "$@"; }
refused_dma_buf() {
    dma_buf /host/testpmd --device "$OURS" --payload "dmabuf:{}" --rxd 64 --txd 64 \
        --mbuf-cache 64 --duration 1 >/host/dma-buf.log 2>&1 && return 1
    cat /host/dma-buf.log
    grep -q '^error: .*neither pages that it can pin' /host/dma-buf.log
}
check dma_buf /host/perftest write bw --verify -s 65536 -n 20 --depth 16 --peer "dmabuf:{}"
check refused_dma_buf
check_dmesg
table
verdict
