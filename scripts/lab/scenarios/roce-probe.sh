# about: unmodified mlx5_ib on one and on two ports, loaded and unloaded, without one complaint
# machine: stock
# refusals: none
# timeout: 240
# shellcheck shell=bash source=scripts/lab/rdma.sh source-path=SCRIPTDIR
source /host/lab/rdma.sh

# What ibv_devinfo says of a device, and what it has to say.
inspect() {
    local dev=$1 info
    info=$(ibv_devinfo -v -d "$dev") || return
    printf '%s\n' "$info" >"/host/devinfo-$dev.log"
    for line in 'transport:[[:space:]]+InfiniBand' 'vendor_id:[[:space:]]+0x02c9' \
        'vendor_part_id:[[:space:]]+4119' 'state:[[:space:]]+PORT_ACTIVE' \
        'link_layer:[[:space:]]+Ethernet' 'GID\[ *[0-9]+\]:.*RoCE v2'; do
        grep -qE "$line" <<<"$info" || { step "$dev: no line with $line"; return 1; }
    done
    result+=("$dev: $(grep -c 'RoCE v2' <<<"$info") GIDs$(
        awk '/state:|_mtu:|fw_ver:|max_qp:/ { printf ", %s %s", $1, $2 }' <<<"$info")")
}

# Taken from its driver and given back, with the RDMA driver in place.
rebind() {
    local address=$1 driver=/sys/bus/pci/drivers/mlx5_core
    echo "$address" >"$driver/unbind" && until_true 20 rdma_count_is 1 || return
    echo "$address" >"$driver/bind" && until_true 60 rdma_count_is 2
}

# The port of an RDMA device follows its netdev.
flap() {
    local dev=$1 netdev
    netdev=$(basename "/sys/class/infiniband/$dev/device/net"/*)
    ip link set "$netdev" down && until_true 20 is_down "$dev" || return
    ip link set "$netdev" up && until_true 20 is_active "$dev" && until_true 20 has_gid "$dev"
}

# The parameters of congestion control, as mlx5_ib reads and writes them.
congestion() {
    local params=/sys/kernel/debug/mlx5/$1/cc_params name
    mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug || return
    [ "$(cat "$params/np_min_time_between_cnps") $(cat "$params/np_cnp_dscp")" = '4 48' ] || return
    for name in rp_ai_rate:77 np_cnp_dscp:46 np_cnp_prio:3 rp_clamp_tgt_rate:1; do
        echo "${name#*:}" >"$params/${name%:*}" || return
        [ "$(cat "$params/${name%:*}")" = "${name#*:}" ] || return
    done
    [ "$(cat "$params/np_min_time_between_cnps")" = 4 ] || return
    result+=("$1: $(find "$params" -type f | wc -l) parameters of congestion control")
}

is_down() { attribute "$1" state | grep -q DOWN; }

result=()
second=0000:02:00.0
must sh -c "echo nobody >/sys/bus/pci/devices/$second/driver_override"
load_rdma 1
check inspect mlx5_0
check_dmesg
unload_rdma
must sh -c "echo >/sys/bus/pci/devices/$second/driver_override"
without_key_cache
load_rdma 2
check_dmesg
must modprobe -r mlx5_ib
rdma_count_is 0 || fail 'an RDMA device outlived its driver'
must modprobe mlx5_ib
until_true 20 rdma_count_is 2 || fail 'an RDMA device did not come back'
check rebind "$second"
for dev in $(mlx5_netdevs); do must ip link set "$dev" up; done
for dev in $(rdma_devices); do
    check until_true 20 is_active "$dev"
    check until_true 20 has_gid "$dev"
    check inspect "$dev"
    check flap "$dev"
done
check congestion 0000:01:00.0
check_dmesg
unload_rdma
check_dmesg
echo '== result'
printf '%s\n' "${result[@]}"
verdict
