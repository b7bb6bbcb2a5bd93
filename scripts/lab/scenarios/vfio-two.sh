# about: our driver forwards between two devices of one process, two stock ports ping through it
# ports: 4
# iommu: yes
# program: ferrocx-testpmd testpmd ferrocx-cxctl cxctl
# capture: yes
# timeout: 400
# cmdline: iommu=pt
# shellcheck shell=bash source=scripts/lab/vfio.sh source-path=SCRIPTDIR
source /host/lab/vfio.sh

# Cables join ports 1 and 2, 3 and 4; ours are the two in the middle.
readonly OURS=(0000:02:00.0 0000:03:00.0)
take "${OURS[@]}"
must /host/cxctl hugepages reserve 64 --apply
load_driver 2
declare -A LOCKED
for name in apart together; do
    options=(--device "${OURS[0]}" --device "${OURS[1]}" --forward-mode io --promiscuous)
    [ "$name" = apart ] || options+=(--one-address-space)
    start_testpmd "$name" "${options[@]}"
    # The ports hear each other only through it.
    [ "$name" = together ] || split_ports
    check answers 10.0.0.2 ip netns exec port1
    check answers 10.0.0.1 ip netns exec port2
    LOCKED[$name]=$(awk '$1 == "VmLck:" { print $2 }' "/proc/$TESTPMD/status")
    check stop_testpmd "$name"
done
# Both ports use both pools: in one address space, the kernel locks each of them once only.
step "locked: ${LOCKED[apart]} KiB in two address spaces, ${LOCKED[together]} KiB in one"
((${LOCKED[together]} * 4 <= ${LOCKED[apart]} * 3)) || fail 'shared memory is mapped twice'
check_dmesg
verdict
