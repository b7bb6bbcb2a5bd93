# about: behind the guest's IOMMU, vfio-pci takes the model and offers it to user space
# ci: no
# ports: 1
# iommu: yes
# timeout: 300
# shellcheck shell=bash source=scripts/lab/lib.sh source-path=SCRIPTDIR
source /host/lab/lib.sh

bdf=$(lspci -D -n -d 15b3: | cut -d ' ' -f 1)
[ -n "$bdf" ] || fail 'no ConnectX in the guest'
device=/sys/bus/pci/devices/$bdf
must modprobe vfio_iommu_type1
must modprobe vfio-pci
echo vfio-pci >"$device/driver_override"
echo "$bdf" >/sys/bus/pci/drivers_probe
[ "$(basename "$(readlink "$device/driver")")" = vfio-pci ] || fail 'vfio-pci did not take it'
group=$(basename "$(readlink "$device/iommu_group")")
step "$bdf is alone in IOMMU group $group: $(ls "/sys/kernel/iommu_groups/$group/devices")"
[ "$(ls "/sys/kernel/iommu_groups/$group/devices")" = "$bdf" ] || fail 'the group has others'
[ -c "/dev/vfio/$group" ] || fail "no /dev/vfio/$group"
must test -f "$device/reset"
