# Helpers for scenarios that use the stock RDMA driver, mlx5_ib.
# shellcheck shell=bash source=scripts/lab/mlx5.sh source-path=SCRIPTDIR
source /host/lab/mlx5.sh

# Without its cache of some 6000 memory keys per port the driver loads in a quarter of the time.
without_key_cache() {
    mkdir -p /run/modprobe.d
    echo 'options mlx5_core prof_sel=0' >/run/modprobe.d/lab.conf
}

# The RDMA devices of the driver, one per line.
rdma_devices() {
    local dev
    for dev in /sys/class/infiniband/mlx5_*; do
        [ -e "$dev" ] && basename "$dev"
    done
    return 0
}

rdma_count_is() { [ "$(rdma_devices | wc -l)" -eq "$1" ]; }

# attribute DEVICE NAME: a file of its port.
attribute() { cat "/sys/class/infiniband/$1/ports/1/$2"; }

is_active() { attribute "$1" state | grep -q ACTIVE; }

# has_gid DEVICE: it has an address, and that is one of RoCEv2.
has_gid() { grep -qs 'RoCE v2' "/sys/class/infiniband/$1/ports/1/gid_attrs/types"/*; }

# load_rdma PORTS: mlx5_core and mlx5_ib, until every port is active and has an address.
load_rdma() {
    local dev
    load_driver "$1"
    must modprobe mlx5_ib
    until_true 60 rdma_count_is "$1" || { dmesg | grep mlx5; fail "no RDMA device on each port"; }
    for dev in $(rdma_devices); do
        until_true 20 is_active "$dev" || fail "$dev is not active"
        until_true 20 has_gid "$dev" || fail "$dev has no RoCEv2 address"
    done
}

unload_rdma() {
    must modprobe -r mlx5_ib
    rdma_count_is 0 || fail 'an RDMA device outlived its driver'
    unload_driver
}
