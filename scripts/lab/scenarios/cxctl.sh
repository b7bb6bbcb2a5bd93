# about: cxctl takes a port from mlx5_core and gives it back 20 times, refuses one in use, doctors
# machine: vfio
# program: ferrocx-cxctl cxctl
# timeout: 500
# shellcheck shell=bash source=scripts/lab/netns.sh source-path=SCRIPTDIR
source /host/lab/netns.sh

# What a port says that becomes part of a bridge.
HEALTHY+=('(entered|left) (allmulticast|promiscuous) mode' 'S-tagged traffic will be dropped')
readonly PORT=0000:02:00.0
driver() { basename "$(readlink "/sys/bus/pci/devices/$PORT/driver")"; }
netdev() { ls "/sys/bus/pci/devices/$PORT/net" 2>/dev/null; }

# refused WORDS COMMAND...: the command fails with 1 and says these words.
refused() {
    local words=$1 status=0 out
    shift
    out=$("$@" 2>&1) || status=$?
    step "$* answered $status: $out"
    [ "$status" -eq 1 ] && grep -q "$words" <<<"$out"
}

# doctor_says CODE CHECK...: the exit code, and a line for each check that is not ok.
doctor_says() {
    local code=$1 status=0 name
    shift
    "${AS[@]}" /tmp/cxctl doctor "$PORT" >/tmp/doctor || status=$?
    cat /tmp/doctor
    [ "$status" -eq "$code" ] || { step "exit code $status, not $code"; return 1; }
    for name in "$@"; do
        grep -qE "^(problem|warning) +$name .*; mend: " /tmp/doctor || return 1
    done
    [ "$(grep -cvE '^ok ' /tmp/doctor)" -eq $# ] || { step "more than $*"; return 1; }
}
AS=()

# From a folder that an ordinary user may enter.
must cp /host/cxctl /tmp/
check doctor_says 4 vfio-pci vfio-type1 vfio-node driver hugepages isolated
load_driver 2
check refused 'modprobe vfio-pci' /tmp/cxctl bind "$PORT" --apply
must modprobe vfio_iommu_type1
must modprobe vfio-pci
must /tmp/cxctl hugepages reserve 64 --apply
must /tmp/cxctl hugepages
check doctor_says 4 driver isolated
must /tmp/cxctl status

must ip addr add 10.9.0.1/24 dev "$(netdev)"
check refused '10.9.0.0/24' /tmp/cxctl bind "$PORT" --apply
must ip route add default via 10.9.0.2
check refused 'to default' /tmp/cxctl bind "$PORT" --apply
must ip addr flush dev "$(netdev)"
must ip link add br0 type bridge
must ip link set "$(netdev)" master br0
check refused 'used by br0' /tmp/cxctl bind "$PORT" --apply
must ip link del br0
must ip netns add other
must ip link set "$(netdev)" netns other
check refused 'in another network namespace' /tmp/cxctl bind "$PORT" --apply
must ip netns del other
has_netdev() { [ -n "$(netdev)" ]; }
until_true 20 has_netdev || fail 'the interface did not come back from its namespace'
[ "$(driver)" = mlx5_core ] || fail 'a refusal changed the driver'

must /tmp/cxctl bind "$PORT"
[ "$(driver)" = mlx5_core ] || fail 'a dry run changed the driver'
for round in $(seq 20); do
    step "round $round"
    /tmp/cxctl bind "$PORT" --apply >/dev/null || fail "bind failed in round $round"
    [ "$(driver)" = vfio-pci ] || fail 'vfio-pci does not have it'
    if [ "$round" = 1 ]; then
        check doctor_says 3 isolated
        # Root may lock anything; an ordinary user may not even open the group.
        AS=(setpriv --reuid 1000 --regid 1000 --clear-groups prlimit --memlock=65536)
        check doctor_says 4 memlock group-node isolated
        AS=()
        exec 9<>"/dev/vfio/$(basename "$(readlink "/sys/bus/pci/devices/$PORT/iommu_group")")"
        check refused 'is in use by' /tmp/cxctl unbind "$PORT" --apply
        exec 9>&-
    fi
    /tmp/cxctl unbind "$PORT" --apply >/dev/null || fail "unbind failed in round $round"
    [ "$(driver)" = mlx5_core ] || fail 'mlx5_core did not get it back'
done
must ip link set "$(netdev)" up
until_true 20 has_carrier "$(netdev)" || fail 'no carrier after 20 rounds'
split_ports
check ping_size 56 1472
check_dmesg
verdict
