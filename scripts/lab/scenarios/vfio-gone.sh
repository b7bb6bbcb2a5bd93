# about: our driver loses its device in mid-traffic: reset, unbound, removed, bus error, no answer
# machine: vfio
# program: ferrocx-testpmd testpmd ferrocx-cxctl cxctl
# timeout: 400
# shellcheck shell=bash source=scripts/lab/vfio.sh source-path=SCRIPTDIR
source /host/lab/vfio.sh

# A cable joins them, and each sends what the other receives; the second one is lost.
readonly KEPT=0000:01:00.0 LOST=0000:02:00.0
STATS=0.5
free_hugepages() { cat /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages; }
present() { [ -e "/sys/bus/pci/devices/$1" ]; }

# begin NAME DEVICE...: testpmd on these ports, with traffic.
begin() {
    local name=$1 options=()
    shift
    for port in "$@"; do options+=(--device "$port"); done
    start_testpmd "$name" "${options[@]}" --forward-mode txonly --rate 500 --promiscuous
    until_true 40 traffic "$name" || { cat "/host/$name.log"; fail "no traffic in $name"; }
}

# clean: nothing of the last testpmd is left, so the next one can have it all.
clean() {
    local held
    held=$(find /proc/[0-9]*/fd -lname '/dev/vfio/*' 2>/dev/null)
    [ -z "$held" ] || { step "still open: $held"; return 1; }
    [ "$(free_hugepages)" = 64 ] || { step "$(free_hugepages) of 64 hugepages"; return 1; }
}

# The kernel waits for the driver, for as long as that takes: it asks, and is answered.
requests() { dmesg | grep -c 'Relaying device request to user'; }
kernel_asks() { [ "$(requests)" -gt "$1" ]; }
asked() {
    local name=$1 waiter=$2 before=$3
    until_true $PATIENCE kernel_asks "$before" || fail "the kernel does not ask in $name"
    check loses "$name" 'the kernel asks for the device back' "$(statistics "$name")"
    wait "$waiter" || fail "$name ended with $?"
    check clean
}

take "$KEPT" "$LOST"
must /host/cxctl hugepages reserve 64 --apply

begin reset "$KEPT" "$LOST"
# From the end of the write: the reset is over then.
echo 1 >"/sys/bus/pci/devices/$LOST/reset"
check loses reset 'was reset behind the driver' "$(statistics reset)"
check clean

begin unbind "$KEPT" "$LOST"
before=$(requests)
echo "$LOST" >/sys/bus/pci/drivers/vfio-pci/unbind &
asked unbind $! "$before"
must /host/cxctl bind "$LOST" --apply

# What the kernel does when a device is unplugged in good order.
begin remove "$KEPT" "$LOST"
before=$(requests)
echo 1 >"/sys/bus/pci/devices/$LOST/remove" &
asked remove $! "$before"
present "$LOST" && fail "$LOST is still there"
echo 1 >/sys/bus/pci/rescan
present "$LOST" || fail "$LOST did not come back"
must /host/cxctl bind "$LOST" --apply

# QEMU takes its time to inject the error; the kernel's log says that it has arrived.
error_arrived() { dmesg | grep -q 'AER: Uncorrectable'; }
begin error "$KEPT" "$LOST"
ask_host hmp pcie_aer_inject_error root1 DLP
until_true $PATIENCE error_arrived || fail 'no error arrived'
check told error 'uncorrectable PCI error' "$(statistics error)"
check ended error 'uncorrectable PCI error'
check clean

# Nothing answers any more, not even to the kernel.
begin vanished "$KEPT" "$LOST"
ask_host vanish 1
check told vanished 'reads as all ones' "$(statistics vanished)"
# Closing it, the kernel resets the device, and waits a minute for one that does not answer.
ask_host return 1
check ended vanished 'reads as all ones'
check clean

begin last "$KEPT" "$LOST"
/host/cxctl hugepages >/tmp/hugepages
cat /tmp/hugepages
check grep -qE '^    [1-9][0-9]* of 2M on node 0: ' /tmp/hugepages
check stop_testpmd last
check clean
verdict
