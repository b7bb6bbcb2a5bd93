# about: messages, keys and payloads of ours lie in another device's BAR, stock peers reach them
# machine: vfio
# program: ferrocx-perftest perftest ferrocx-cxctl cxctl ferrocx-testpmd testpmd
# capture: yes
# timeout: 400
# shellcheck shell=bash source=scripts/lab/verbs-lite.sh source-path=SCRIPTDIR
source /host/lab/verbs-lite.sh

# moved KIND LEAST: since the last call, the last port has moved (read or written) so many bytes of
# data at least in the BAR, and says how many it moved in all. Data are what messages and packets
# carry; descriptors and completions are none.
declare -A BEFORE=()
DATA=0 IN_BAR=0
moved() {
    local kind=$1 least=$2 data bar
    data=$(count_of "dma_data_${kind}_bytes")
    bar=$(count_of "dma_watched_${kind}_bytes")
    DATA=$((data - ${BEFORE[data $kind]:-0}))
    IN_BAR=$((bar - ${BEFORE[bar $kind]:-0}))
    BEFORE[data $kind]=$data
    BEFORE[bar $kind]=$bar
    step "$kind: $DATA bytes of data, $IN_BAR of them in the BAR"
    [ "$IN_BAR" -ge "$least" ]
}
count_of() { sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" /host/counts.json | tail -n 1; }

# moves_from_here: what moved until now does not count.
moves_from_here() {
    ask_host counts
    moved read 0
    moved written 0
}

# all_moved LEAST: that, both ways, and no byte of data was anywhere else.
all_moved() {
    local kind
    ask_host counts
    for kind in read written; do
        moved "$kind" "$1" && [ "$IN_BAR" -eq "$DATA" ] || return
    done
}

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
moves_from_here
as_client rc -s 262144 -m 4096 -n 20
as_server rc -s 262144 -m 4096 -n 20 --ipv6
as_client ud -s 1000
# FMRs and windows over such memory are refused.
tried_keys keys limits invalidate window
check all_moved 10485760

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
ask_host counts
for kind in read written; do
    # Of the flood alone; the 64 bytes in front of each payload are data, too.
    check moved "$kind" $((300 * 4250))
done

# The same BAR, lent by VFIO: the device has no driver of the kernel.
must sh -c "echo vfio-pci >/sys/bus/pci/devices/$peer/driver_override"
must sh -c "echo $peer >/sys/bus/pci/drivers_probe"
OUR_OPTIONS=(--peer "vfio:$peer/2")
as_client rc -s 262144 -m 4096 -n 20
check all_moved 5242880

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
