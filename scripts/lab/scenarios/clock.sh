# about: PTP hardware clock and packet timestamps of the model, read by unmodified mlx5_core
# machine: stock
# timeout: 300
# shellcheck shell=bash source=scripts/lab/netns.sh source-path=SCRIPTDIR
source /host/lab/netns.sh

# The number of a port's PTP hardware clock.
phc_of() {
    within "$1" ethtool -T "${DEV[$1]}" |
        sed -nE 's/.*(PTP Hardware Clock|provider index): ([0-9]+).*/\2/p'
}

load_driver 2
split_ports
for port in 1 2; do
    phc=$(phc_of $port)
    [ -n "$phc" ] || { within $port ethtool -T "${DEV[port]}"; fail "port $port has no clock"; }
    check within $port python3 /host/lab/hwstamp.py rate "/dev/ptp$phc" 3
done
within 2 python3 /host/lab/hwstamp.py echo 10.0.0.2 &
echo_server=$!
until_true 30 within 2 sh -c 'ss -lun | grep -q :26400'
check within 1 python3 /host/lab/hwstamp.py stamps "${DEV[1]}" 10.0.0.1 10.0.0.2 20
kill $echo_server
check_dmesg
verdict
