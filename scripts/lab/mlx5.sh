# Helpers for scenarios that load the stock mlx5 driver.
# shellcheck shell=bash source=scripts/lab/lib.sh source-path=SCRIPTDIR
source /host/lab/lib.sh

# Lines the driver prints on a healthy device; a scenario adds what its own actions make it say.
HEALTHY=(
    'ommand line: '                             # names the modules it does not load
    'firmware version: [0-9]'                   # identity
    'Gb/s available PCIe bandwidth'             # the link of the slot
    'PTM is not supported by PCIe'              # QEMU's root ports have no precision time
    'MLX5E: StrdRq\([01]\) RqSz\([0-9]+\)'      # queue defaults of the netdev
    'Link (up|down)'                            # carrier
    'enabling device \([0-9a-f]+ -> [0-9a-f]+\)' # PCI command register
)

# The netdevs of the driver, one per line.
mlx5_netdevs() {
    local dev
    for dev in /sys/bus/pci/drivers/mlx5_core/*/net/*; do
        [ -e "$dev" ] && basename "$dev"
    done
    return 0
}

# Every port has its netdev, or the driver gave up on one: no need to wait longer.
probe_is_over() { netdev_count_is "$1" || dmesg | grep -q 'probe with driver mlx5_core.* failed'; }

netdev_count_is() { [ "$(mlx5_netdevs | wc -l)" -eq "$1" ]; }

has_carrier() { [ "$(cat "/sys/class/net/$1/carrier" 2>/dev/null)" = 1 ]; }

# load_netdevs PORTS: loads mlx5_core and waits for a netdev on each port.
load_netdevs() {
    must modprobe mlx5_core
    until_true 120 probe_is_over "$1" || step 'the driver is not done in 120 s'
    netdev_count_is "$1" || { dmesg | grep mlx5; fail "no netdev on each of $1 ports"; }
}

# load_driver PORTS: loads mlx5_core and waits for a netdev with carrier on each port.
#
# Linux holds a port down until its netdev is up, and its neighbour sees that.
load_driver() {
    local dev
    load_netdevs "$1"
    for dev in $(mlx5_netdevs); do must ip link set "$dev" up; done
    for dev in $(mlx5_netdevs); do
        until_true 40 has_carrier "$dev" || fail "$dev has no carrier"
        step "$dev is up, $(cat "/sys/class/net/$dev/address")"
    done
}

unload_driver() {
    must modprobe -r mlx5_core
    netdev_count_is 0 || fail 'a netdev outlived its driver'
}

# Every line of the kernel about mlx5 is known to be harmless or fails the scenario.
check_dmesg() {
    local lines
    lines=$(unexpected_dmesg "${HEALTHY[@]}") || return 0
    printf '%s\n' "$lines"
    fail "$(printf '%s\n' "$lines" | wc -l) unexpected line(s) of mlx5 in dmesg"
}
