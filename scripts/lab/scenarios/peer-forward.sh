# about: TCP of two stock ports through two of ours, payloads in another device's BAR on the way
# ci: no
# ports: 4
# iommu: yes
# program: ferrocx-testpmd testpmd ferrocx-cxctl cxctl
# model: --watch-dma 16777216
# qemu: -object memory-backend-memfd,id=peer,size=16M,share=on -device ivshmem-plain,memdev=peer
# counts: dma_watched_read_bytes dma_watched_written_bytes
# capture: yes
# timeout: 400
# cmdline: iommu=pt
# shellcheck shell=bash source=scripts/lab/vfio.sh source-path=SCRIPTDIR
source /host/lab/vfio.sh

# Cables join ports 1 and 2, 3 and 4; ours are the two in the middle.
readonly OURS=(0000:02:00.0 0000:03:00.0)
peer=$(basename "$(grep -l 0x1110 /sys/bus/pci/devices/*/device | xargs dirname)")
must sh -c "echo 1 >/sys/bus/pci/devices/$peer/enable"
take "${OURS[@]}"
must /host/cxctl hugepages reserve 64 --apply
load_driver 2
# Headers of Ethernet, IPv4 and TCP with its options take 66 bytes.
start_testpmd forward --device "${OURS[0]}" --device "${OURS[1]}" --forward-mode io --promiscuous \
    --rxd 64 --txd 64 --mbuf-cache 64 --payload "pci:$peer/2" --split 66
split_ports
check answers 10.0.0.2 ip netns exec port1
check iperf
check iperf -R
check stop_testpmd forward
check_dmesg
verdict
