# about: our target serves a drive of QEMU's by our NVMe driver, and a BAR, to a stock host
# ci: no
# ports: 2
# iommu: yes
# cmdline: iommu=pt
# model: --watch-dma 16777216
# qemu: -object memory-backend-memfd,id=peer,size=16M,share=on -device ivshmem-plain,memdev=peer
# qemu: -drive
# qemu: if=none,id=disk,file.driver=null-co,file.size=96M,file.read-zeroes=on,format=raw,snapshot=on
# qemu: -device pcie-root-port,id=root9,chassis=9
# qemu: -device nvme,id=nvme0,bus=root9,serial=lab,drive=disk,mdts=6
# qemu: -blockdev driver=null-co,node-name=slow,size=1048576,latency-ns=8000000000
# qemu: -device nvme,id=nvme1,serial=slow,drive=slow
# program: ferrocx-cxctl cxctl ferrocx-nvmf-target nvmf-target
# example: ferrocx-nvme nvme_drive
# timeout: 900
# shellcheck shell=bash source=scripts/lab/nvmf.sh source-path=SCRIPTDIR
source /host/lab/nvmf.sh

# drive_of SERIAL: the address of QEMU's drive that has it. The kernel's driver tells.
drive_of() {
    local ctrl
    for ctrl in /sys/class/nvme/nvme*; do
        grep -q "^$1 *$" "$ctrl/serial" 2>/dev/null && { cat "$ctrl/address"; return; }
    done
    return 1
}

# to_vfio ADDRESS: takes a device from its driver, for ours.
to_vfio() {
    step "vfio-pci takes $1"
    echo vfio-pci >"/sys/bus/pci/devices/$1/driver_override"
    echo "$1" >"/sys/bus/pci/devices/$1/driver/unbind"
    echo "$1" >/sys/bus/pci/drivers_probe
}

# A drive that fails under a load: it is reset, and the host hears nothing of it. For a moment it
# may not reach memory, at which QEMU's drive reports a fatal status.
reset_under_load() {
    local fio try
    fio_verify reset "$(disk 1)" --rw=randwrite --bsrange=512-64k --iodepth=16 --size=16M \
        --time_based --runtime=20 &
    fio=$!
    for try in 1 2 3 4 5 6 7 8; do
        sleep 2
        must python3 - "/sys/bus/pci/devices/$DRIVE/config" <<'PYTHON'
import os, sys, time
config = os.open(sys.argv[1], os.O_RDWR)
command = int.from_bytes(os.pread(config, 2, 4), "little")
os.pwrite(config, (command & ~4).to_bytes(2, "little"), 4)
time.sleep(0.004)
os.pwrite(config, command.to_bytes(2, "little"), 4)
PYTHON
    done
    wait "$fio" || fail 'fio noticed the resets'
    try=$(grep -c 'drive is reset' /run/target.log)
    step "the drive was reset $try times"
    [ "$try" -gt 0 ] || fail 'the drive was not reset'
    if dmesg | grep -E 'critical medium error|I/O error'; then
        fail 'the host was told of the resets'
    fi
}

# A load whose disk goes away under it: it fails, and does not hang.
unplugged() {
    local fio status=0
    fio --name=unplugged --filename="$(disk 1)" --ioengine=libaio --direct=1 --rw=randwrite \
        --bs=4k --iodepth=16 --time_based --runtime=120 --output=/host/fio-unplugged.log &
    fio=$!
    sleep 3
    ask_host unplug nvme0
    wait "$fio" || status=$?
    [ "$status" -ne 0 ] || fail 'fio did not notice that its drive had gone'
    until_true 30 grep -q 'a drive has gone' /run/target.log || fail 'the target did not notice'
    until_true 20 test ! -e "/sys/bus/pci/devices/$DRIVE" || fail 'the kernel did not get it back'
    grep -q 'the kernel asks for the device back' /run/target.log || fail 'it was not asked'
    dmesg | grep -E 'critical medium error|I/O error' | tail -n 2
    dmesg | grep -q 'critical medium error' || fail 'the host was told of no error of the medium'
    fio_verify others "$(disk 2)" --rw=randrw --bs=4k --iodepth=16 --size=4M
    check rpc namespace.remove "{\"nqn\": \"$NQN\", \"nsid\": 1}"
}

# watched KIND: bytes of data that our port has read or written in the BAR, when it was last asked.
watched() {
    sed -n "s/.*\"dma_watched_$1_bytes\": \([0-9]*\).*/\1/p" /host/counts.json | tail -n 1
}

# Data that lie in another device's BAR, where our port reads and writes them.
in_a_bar() {
    local bar wrote read
    bar=$(disk 3)
    [ "$(blockdev --getsize64 "$bar")" = 16777216 ] || fail 'the namespace is not all of the BAR'
    ask_host counts
    wrote=$(watched written) read=$(watched read)
    fio_verify bar-small "$bar" --rw=randwrite --bsrange=512-16k --iodepth=64 --size=4M
    fio_verify bar-mixed "$bar" --rw=randrw --bsrange=512-1M --iodepth=16 --size=8M \
        --serialize_overlap=1
    ask_host counts
    wrote=$(($(watched written) - wrote)) read=$(($(watched read) - read))
    step "in the BAR: $wrote bytes written, $read read"
    if [ "$wrote" -lt 4194304 ] || [ "$read" -lt 8388608 ]; then
        fail 'data were somewhere else'
    fi
    filled "$bar" /etc
    intact "$bar" /etc
}

must modprobe nvme
until_true 10 drive_of lab || fail 'the kernel does not find the drive'
until_true 10 drive_of slow || fail 'the kernel does not find the slow drive'
DRIVE=$(drive_of lab)
SLOW=$(drive_of slow)
PEER=$(basename "$(grep -l 0x1110 /sys/bus/pci/devices/*/device | xargs dirname)")
must sh -c "echo 1 >/sys/bus/pci/devices/$PEER/enable"
must modprobe vfio_iommu_type1
must modprobe vfio-pci
to_vfio "$DRIVE"
to_vfio "$SLOW"
must modprobe -r nvme
must timeout 200 /host/nvme_drive "$DRIVE"
must timeout 100 /host/nvme_drive "$SLOW" late

ready_for_nvmf
configure "socket = \"$SOCKET\"" 'cores = [0, 1]' <<TOML
[[subsystem.namespace]]
backend = "nvme"
path = "$DRIVE"
[[subsystem.namespace]]
size = "16MiB"
[[subsystem.namespace]]
backend = "peer"
path = "pci:$PEER/2"
TOML
must /run/nvmf-target doctor --config /run/target.toml
start_target
connect -i 2
namespace=$(disk 1)
[ "$(blockdev --getsize64 "$namespace")" = 100663296 ] || fail 'it is not all of the drive'
fio_verify small "$namespace" --rw=randwrite --bsrange=512-16k --iodepth=64 --size=4M
fio_verify large "$namespace" --rw=randwrite --bsrange=64k-1M --iodepth=4 --size=32M
fio_verify mixed "$namespace" --rw=randrw --bsrange=512-1M --iodepth=16 --size=16M \
    --serialize_overlap=1
fio_verify sync "$namespace" --rw=write --bs=4k --iodepth=1 --size=1M --fsync=16
check blkdiscard -f -o 0 -l 1M "$namespace"
check blkdiscard -z -f -o 1M -l 1M "$namespace"
check nvme verify "$namespace" -n 1 -s 0 -c 7
filled "$namespace" /etc
fio_verify file /run/disk/file --rw=randrw --bs=4k --iodepth=8 --size=4M
check fstrim -v /run/disk
intact "$namespace" /etc
# Once more, to see that it is the drive that has it and not the target.
must nvme disconnect -n "$NQN"
stop_target TERM
start_target
connect -i 2
namespace=$(disk 1)
must mount "$namespace" /run/disk
check diff -r --no-dereference /etc /run/disk/copy
must umount /run/disk
until_true 20 has_disk 3 || fail 'no namespace in the BAR'
in_a_bar
reset_under_load
unplugged
must nvme disconnect -n "$NQN"
stop_target TERM
cat /host/target.log
verdict
