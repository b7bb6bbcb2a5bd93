# about: the VFIO transport on a stranger's device: QEMU's NVMe controller, behind the kernel's VFIO
# ports: 0
# iommu: yes
# example: ferrocx-bus vfio_nvme
# qemu: -blockdev driver=null-co,node-name=null,size=1048576
# qemu: -device pcie-root-port,id=root9,chassis=9
# qemu: -device nvme,id=nvme0,bus=root9,serial=lab,drive=null
# timeout: 400
# shellcheck shell=bash source=scripts/lab/lib.sh source-path=SCRIPTDIR
source /host/lab/lib.sh

# refused PATTERN COMMAND...: the command succeeds and says what the pattern asks for.
refused() {
    local pattern=$1 text; shift
    step "$*"
    text=$("$@" 2>&1) || fail "$* ended with $?: $text"
    echo "$text"
    grep -qE "$pattern" <<<"$text" || fail "no '$pattern' in: $text"
}

address=$(basename "$(grep -l 0x010802 /sys/bus/pci/devices/*/class | xargs dirname)")
device=/sys/bus/pci/devices/$address
must modprobe nvme
until_true 10 test -e "$device/driver" || fail 'the nvme driver did not take the controller'
refused 'PCI id 1b36:0010, which this driver does not know' /host/vfio_nvme "$address" refused
refused 'is bound to nvme, not to vfio-pci; run `cxctl bind' /host/vfio_nvme "$address" refused

must modprobe vfio-pci
must modprobe vfio_iommu_type1
echo vfio-pci >"$device/driver_override"
echo "$address" >"$device/driver/unbind"
echo "$address" >/sys/bus/pci/drivers_probe
must /host/vfio_nvme "$address"
echo 8 >/proc/sys/vm/nr_hugepages
must /host/vfio_nvme "$address"

step 'address spaces for several devices'
shared=$(/host/vfio_nvme "$address" space 2>&1) || fail "sharing ended with $?: $shared"
echo "$shared"
for words in 'it is in it already; open it once' 'are mapped already in the kernel; another'; do
    grep -q "$words" <<<"$shared" || fail "no '$words'"
done

# Root is above the limit of locked memory unless it gives the capability away.
limited() { (ulimit -l 1024 && setpriv --bounding-set=-ipc_lock --inh-caps=-all "$@"); }
refused 'needs 4194304 bytes of locked memory, the limit is 1048576' \
    limited /host/vfio_nvme "$address" memlock
step "the IOMMU's faults: $(dmesg | grep -c 'DMAR: \[DMA Write')"
dmesg | grep -q 'DMAR: \[DMA Write' || fail 'the IOMMU refused nothing'

# Unplugged by QEMU, the kernel asks for the device and waits until it is given back.
/host/vfio_nvme "$address" unplug >/host/unplug.log 2>&1 &
holder=$!
until_true 20 grep -q holding /host/unplug.log || fail "$(cat /host/unplug.log)"
ask_host unplug nvme0
wait "$holder" || fail "the holder ended with $?: $(cat /host/unplug.log)"
until_true 10 test ! -e "$device" || fail 'the device was not unplugged'
cat /host/unplug.log
dmesg | grep 'Relaying device request' | tail -n 1
grep -q 'the kernel asks for the device back' /host/unplug.log || fail 'it was not asked for'
