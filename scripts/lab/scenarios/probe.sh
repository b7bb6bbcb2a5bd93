# about: unmodified mlx5_core and mlx5e bring up a port, five times, without one complaint
# ports: 1
# timeout: 400
# shellcheck shell=bash source=scripts/lab/mlx5.sh source-path=SCRIPTDIR
source /host/lab/mlx5.sh

must lspci -nn -d 15b3:
for round in $(seq "${ROUNDS:-5}"); do
    step "round $round"
    load_driver 1
    check_dmesg
    unload_driver
done
check_dmesg
load_driver 1
for dev in $(mlx5_netdevs); do
    must ethtool -i "$dev"
    must ethtool "$dev"
    must ip -s link show "$dev"
done
check_dmesg
