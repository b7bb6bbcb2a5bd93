# about: two ports of mlx5e: load and unload 20 times, link flap, reset, reboot, power failure
# machine: stock
# boot: own, it reboots the guest
# timeout: 900
# shellcheck shell=bash source=scripts/lab/netns.sh source-path=SCRIPTDIR
source /host/lab/netns.sh

# bdf DEVICE: PCI address of a netdev.
bdf() { basename "$(readlink "/sys/class/net/$1/device")"; }

has_no_carrier() { ! has_carrier "$1"; }

# flap DEVICE NEIGHBOUR: administratively down and up again; both see it.
flap() {
    local dev=$1 neighbour=$2 round
    for round in 1 2 3; do
        ip link set "$dev" down || return
        until_true 40 has_no_carrier "$neighbour" || return
        ip link set "$dev" up || return
        until_true 40 has_carrier "$neighbour" || return
        until_true 40 has_carrier "$dev" || return
    done
    step "$dev went and came back $round times, and $neighbour saw it"
}

# After a reboot: nothing of the boot before is left in the device.
if [ -n "$(stage)" ]; then
    load_driver 2
    split_ports
    check ping_size 56 1472
    check_dmesg
    verdict
    [ "$(stage)" != rebooted ] || reboot_guest failed power-failure
    exit
fi

for round in $(seq 20); do
    step "round $round"
    modprobe mlx5_core || fail 'modprobe failed'
    until_true 120 probe_is_over 2 || fail 'the driver did not finish'
    netdev_count_is 2 || fail 'a port has no netdev'
    modprobe -r mlx5_core || fail 'modprobe -r failed'
done
check_dmesg
load_driver 2
mapfile -t devs < <(mlx5_netdevs)
check flap "${devs[0]}" "${devs[1]}"
check flap "${devs[1]}" "${devs[0]}"

# A function-level reset between two drivers, and unbinding only one of two ports.
address=$(bdf "${devs[0]}")
must sh -c "echo $address >/sys/bus/pci/drivers/mlx5_core/unbind"
check sh -c "echo 1 >/sys/bus/pci/devices/$address/reset"
must sh -c "echo $address >/sys/bus/pci/drivers/mlx5_core/bind"
until_true 120 netdev_count_is 2 || fail 'the port did not come back after its reset'
split_ports
check ping_size 56 1472
check_dmesg
verdict
reboot_guest rebooted
