# about: on the backports' kernel, our driver has no rights: lent files, or dropped after set-up
# ports: 2
# kernel: backports
# iommu: yes
# program: ferrocx-testpmd testpmd ferrocx-cxctl cxctl
# example: ferrocx-bus vfio_nvme
# qemu: -object memory-backend-memfd,id=peer,size=16M,share=on -device ivshmem-plain,memdev=peer
# capture: yes
# timeout: 400
# cmdline: iommu=pt
# shellcheck shell=bash source=scripts/lab/vfio.sh source-path=SCRIPTDIR
source /host/lab/vfio.sh

# Said by newer kernels when their flow tables grow.
HEALTHY+=('Flow counters bulk query buffer size increased')

readonly OURS=0000:02:00.0
step "Linux $(uname -r)"
[ "$(uname -r | cut -d . -f 1)" -ge 7 ] || fail 'this is not the kernel of the backports'
# has_no_rights: no thread of testpmd is root's or has a capability.
has_no_rights() {
    local status
    for status in /proc/"$TESTPMD"/task/*/status; do
        [ "$(grep -cE '^(Uid:(\s1000){4}|Cap(Prm|Eff):\s0{16})$' "$status")" -eq 3 ] && continue
        cat "$status"
        return 1
    done
}

# forwards NAME OPTION...: a run without rights answers.
forwards() {
    local name=$1
    shift
    start_testpmd "$name" --device "$OURS" --forward-mode icmpecho --promiscuous "$@"
    check answers 10.0.0.2
    check has_no_rights
    check stop_testpmd "$name"
}

take "$OURS"
must /host/cxctl hugepages reserve 64 --apply
load_driver 1
must ip addr add 10.0.0.1/24 dev "$(mlx5_netdevs)"
# Nobody but root may open the group's file: an ordinary user gets it open.
AS=(prlimit --memlock=134217728 setpriv --reuid 1000 --regid 1000 --clear-groups)
exec 10<>/dev/vfio/vfio 11<>"$(group "$OURS")"
forwards inherited --vfio-files 10,11
exec 10>&- 11>&-

python3 - "$(group "$OURS")" <<'PYTHON' &
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind("/tmp/launcher")
os.chmod("/tmp/launcher", 0o666)
listener.listen()
client = listener.accept()[0]
files = [os.open(name, os.O_RDWR) for name in ("/dev/vfio/vfio", sys.argv[1])]
socket.send_fds(client, [b"x"], files)
PYTHON
until_true 20 test -S /tmp/launcher || fail 'the launcher does not listen'
WAIT='interrupt'
forwards launcher --vfio-launcher /tmp/launcher
WAIT='sleep'

# Root opens it, and is root no more when packets come.
AS=()
forwards dropped --user 1000

# Another device's BAR as a dma-buf, which Linux 6.12 does not make.
peer=$(basename "$(grep -l 0x1110 /sys/bus/pci/devices/*/device | xargs dirname)")
must sh -c "echo vfio-pci >/sys/bus/pci/devices/$peer/driver_override"
must sh -c "echo $peer >/sys/bus/pci/drivers_probe"
exported() { /host/vfio_nvme "$peer" export | grep -x 'exported 16777216 bytes'; }
check exported
check_dmesg
verdict
