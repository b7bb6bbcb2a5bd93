# about: two ports of unmodified mlx5e: load and unload 20 times, link flap, reset, power failure
# ports: 2
# timeout: 400
# cmdline: modprobe.blacklist=mlx5_core,mlx5_ib
# shellcheck shell=bash source=scripts/lab/netns.sh source-path=SCRIPTDIR
source /host/lab/netns.sh

# bdf DEVICE: PCI address of a netdev.
bdf() { basename "$(readlink "/sys/class/net/$1/device")"; }

# flap DEVICE: administratively down and up again.
flap() {
    local dev=$1 round
    for round in 1 2 3 4 5; do
        ip link set "$dev" down || return
        ip link set "$dev" up || return
        until_true 20 has_carrier "$dev" || return
    done
    step "$dev came back $round times"
}

# After the power failure: nothing of the first boot is left in the device.
if [ "$(stage)" = again ]; then
    load_driver 2
    split_ports
    check ping_size 56 1472
    check_dmesg
    verdict
    exit
fi

for round in $(seq 20); do
    step "round $round"
    modprobe mlx5_core || fail 'modprobe failed'
    until_true 60 probe_is_over 2 || fail 'the driver did not finish'
    netdev_count_is 2 || fail 'a port has no netdev'
    modprobe -r mlx5_core || fail 'modprobe -r failed'
done
check_dmesg
load_driver 2
for dev in $(mlx5_netdevs); do check flap "$dev"; done

# A function-level reset between two drivers, and unbinding only one of two ports.
first=$(mlx5_netdevs | head -n 1)
address=$(bdf "$first")
must sh -c "echo $address >/sys/bus/pci/drivers/mlx5_core/unbind"
check sh -c "echo 1 >/sys/bus/pci/devices/$address/reset"
must sh -c "echo $address >/sys/bus/pci/drivers/mlx5_core/bind"
until_true 60 netdev_count_is 2 || fail 'the port did not come back after its reset'
split_ports
check ping_size 56 1472
check_dmesg
verdict
reboot_guest again
