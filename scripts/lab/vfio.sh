# Helpers for scenarios in which our testpmd drives ports through the guest's VFIO.
# cxctl hands them over.
# shellcheck shell=bash source=scripts/lab/netns.sh source-path=SCRIPTDIR
source /host/lab/netns.sh

TESTPMD=      # pid of the last one started
AS=()         # a command that changes the user, before testpmd
WAIT=sleep    # how testpmd waits

# take PORT...: vfio-pci has these ports, and this user may open their groups.
take() {
    local port
    must modprobe vfio_iommu_type1
    must modprobe vfio-pci
    for port in "$@"; do must /host/cxctl bind "$port" --apply; done
}

# group PORT: the file of its IOMMU group.
group() { echo "/dev/vfio/$(basename "$(readlink "/sys/bus/pci/devices/$1/iommu_group")")"; }

# start_testpmd NAME OPTION...: with its output in /host/NAME.log and its report beside it.
start_testpmd() {
    local name=$1
    shift
    # From a folder that any user may enter; the report lies where that user may write.
    cp /host/testpmd /tmp/testpmd
    step "testpmd $*"
    "${AS[@]}" /tmp/testpmd "$@" --wait "$WAIT" --stats 5 --duration 150 --json "/tmp/$name.json" \
        -v >"/host/$name.log" 2>&1 &
    TESTPMD=$!
}

# stop_testpmd NAME: as with Ctrl-C; its totals must add up.
stop_testpmd() {
    local status=0
    kill -INT "$TESTPMD"
    wait "$TESTPMD" || status=$?
    cp "/tmp/$1.json" /host/ || status=1
    [ "$status" -eq 0 ] && grep -q '"balanced": true' "/host/$1.json" && return
    cat "/host/$1.log"
    return 1
}

# answers ADDRESS [PREFIX...]: the address answers soon, then every echo request of every size; the
# prefix says where to ping from.
answers() {
    local address=$1 size
    shift
    until_true 60 "$@" ping -q -c 1 -W 1 "$address" || { step "no answer yet"; return 1; }
    for size in 0 56 1472; do
        all_answered "$@" ping -c 20 -i 0.02 -M "do" -s "$size" "$address" || return
    done
    all_answered "$@" ping -c 500 -q -f "$address"
}
