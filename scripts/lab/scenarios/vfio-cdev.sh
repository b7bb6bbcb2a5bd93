# about: our driver on VFIO's device files and iommufd, on a kernel that has them (vm-lab kernel)
# ci: no
# ports: 2
# kernel: iommufd
# iommu: yes
# program: ferrocx-testpmd testpmd ferrocx-cxctl cxctl
# capture: yes
# timeout: 400
# cmdline: iommu=pt
# shellcheck shell=bash source=scripts/lab/vfio.sh source-path=SCRIPTDIR
source /host/lab/vfio.sh

readonly OURS=0000:02:00.0

# forwards NAME OPTION...: a run on the device's file answers.
forwards() {
    local name=$1
    shift
    start_testpmd "$name" --device "$OURS" --forward-mode icmpecho --promiscuous "$@"
    check answers 10.0.0.2
    step "files: $(find "/proc/$TESTPMD/fd" -lname '/dev/*' -printf '%l ')"
    check stop_testpmd "$name"
}

step "Linux $(uname -r)"
take "$OURS"
file=/dev/vfio/devices/$(ls "/sys/bus/pci/devices/$OURS/vfio-dev")
must test -c "$file" -a -c /dev/iommu
must /host/cxctl hugepages reserve 64 --apply
load_driver 1
must ip addr add 10.0.0.1/24 dev "$(mlx5_netdevs)"

# The device's file is taken unasked, and the group's where it is asked for.
start_testpmd auto --device "$OURS" --forward-mode icmpecho --promiscuous
check answers 10.0.0.2
check test -n "$(find "/proc/$TESTPMD/fd" -lname "$file")"
check stop_testpmd auto
forwards group --vfio-interface group

AS=(prlimit --memlock=134217728 setpriv --reuid 1000 --regid 1000 --clear-groups)
exec 10<>/dev/iommu 11<>"$file"
forwards inherited --vfio-files 10,11
exec 10>&- 11>&-

# An ordinary user who may open the group's file only gets by with it.
must chown 1000 "$(group "$OURS")"
forwards fallback
check_dmesg
verdict
