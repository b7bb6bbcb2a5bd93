# about: our driver on the guest's own VFIO and IOMMU answers ping of the stock driver on port 0
# machine: vfio
# program: ferrocx-testpmd testpmd
# capture: yes
# timeout: 500
# shellcheck shell=bash source=scripts/lab/mlx5.sh source-path=SCRIPTDIR
source /host/lab/mlx5.sh

readonly OURS=0000:02:00.0
device=/sys/bus/pci/devices/$OURS
must modprobe vfio_iommu_type1
must modprobe vfio-pci
echo vfio-pci >"$device/driver_override"
echo "$OURS" >/sys/bus/pci/drivers_probe
[ "$(basename "$(readlink "$device/driver")")" = vfio-pci ] || fail 'vfio-pci did not take port 1'
echo 64 >/proc/sys/vm/nr_hugepages
load_driver 1
dev=$(mlx5_netdevs)

/host/testpmd --device "$OURS" --forward-mode icmpecho --wait sleep --promiscuous --stats 5 \
    --duration 90 --json /host/testpmd.json -v >/host/testpmd.log 2>&1 &
testpmd=$!
until_true 30 grep -q . /host/testpmd.log || step 'testpmd is silent'
must ip addr add 10.0.0.1/24 dev "$dev"
until_true 40 ping -q -c 1 -W 1 10.0.0.2 || step 'no answer yet'
for size in 0 56 1000 1472; do
    check all_answered ping -c 20 -i 0.02 -M "do" -s "$size" 10.0.0.2
done
check all_answered ping -c 500 -q -f 10.0.0.2
kill -INT "$testpmd"
wait "$testpmd" || { echo "testpmd ended with $?" >>/host/reason; FAILURES=1; }
cat /host/testpmd.log
check_dmesg
verdict
