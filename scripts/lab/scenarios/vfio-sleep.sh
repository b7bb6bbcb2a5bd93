# about: our driver sleeps until the device's interrupt, uses no processor time, and misses no ping
# machine: vfio
# program: ferrocx-testpmd testpmd ferrocx-cxctl cxctl
# timeout: 400
# shellcheck shell=bash source=scripts/lab/vfio.sh source-path=SCRIPTDIR
source /host/lab/vfio.sh

readonly OURS=0000:02:00.0

# worker_ticks: processor time of the polling thread, in hundredths of a second.
worker_ticks() {
    awk '{ sub(/.*\) /, ""); print $12 + $13 }' "$(grep -l '(lcore-' \
        /proc/"$TESTPMD"/task/*/stat | head -n 1)"
}

take "$OURS"
must /host/cxctl hugepages reserve 64 --apply
load_driver 1
must ip addr add 10.0.0.1/24 dev "$(mlx5_netdevs)"
# Nothing but pings: an idle receiver must be idle.
must sh -c "echo 1 >/proc/sys/net/ipv6/conf/$(mlx5_netdevs)/disable_ipv6"
WAIT=interrupt
start_testpmd sleep --device "$OURS" --forward-mode icmpecho --promiscuous
check answers 10.0.0.2
before=$(worker_ticks)
sleep 10
used=$(($(worker_ticks) - before))
step "the worker used $used hundredths of a second in 10 s"
[ "$used" -le 100 ] || fail "an idle worker used $used of 1000 hundredths"
grep vfio-msix /proc/interrupts
# Each of these finds a worker that sleeps.
check all_answered ping -c 20 -i 0.3 10.0.0.2
grep vfio-msix /proc/interrupts
check answers 10.0.0.2
check stop_testpmd sleep
check_dmesg
verdict
