# about: our driver as an ordinary user with the group's file only: VF id, 4 KiB pages, killed twice
# ports: 2
# model: --identity cx5-vf
# iommu: yes
# program: ferrocx-testpmd testpmd ferrocx-cxctl cxctl
# capture: yes
# timeout: 400
# cmdline: iommu=pt
# shellcheck shell=bash source=scripts/lab/vfio.sh source-path=SCRIPTDIR
source /host/lab/vfio.sh

readonly OURS=0000:02:00.0
free_hugepages() { cat /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages; }

# refused WORDS: testpmd does not start, and says why.
refused() {
    start_testpmd refused "${options[@]}"
    wait "$TESTPMD" && fail "testpmd ran although: $1"
    cat /host/refused.log
    grep -q "^error: .*$1" /host/refused.log
}

take "$OURS"
options=(--device "$OURS" --forward-mode icmpecho --promiscuous)
AS=(setpriv --reuid 1000 --regid 1000 --clear-groups)
check refused 'Permission denied.*; give this user the file'
AS=()
limit=/sys/module/vfio_iommu_type1/parameters/dma_entry_limit
before=$(cat "$limit")
echo 1 >"$limit"
check refused 'no room for another DMA mapping beside 1; use fewer'
echo "$before" >"$limit"
must chown 1000 "$(group "$OURS")"
load_driver 1
must ip addr add 10.0.0.1/24 dev "$(mlx5_netdevs)"

# Too little that may be locked is one sentence, and leaves nothing behind.
AS=(prlimit --memlock=65536 setpriv --reuid 1000 --regid 1000 --clear-groups)
start_testpmd memlock "${options[@]}"
wait "$TESTPMD" && fail 'testpmd ran with 64 KiB of locked memory'
check grep -q '^error: .* bytes of locked memory, the limit is 65536; raise it' /host/memlock.log
cat /host/memlock.log

AS=(prlimit --memlock=134217728 setpriv --reuid 1000 --regid 1000 --clear-groups)
for pages in 4K 2M; do
    [ "$pages" = 4K ] || must /host/cxctl hugepages reserve 64 --apply
    before=$(free_hugepages)
    # Killed while it answers, the next one must find the device usable and no page lost.
    start_testpmd "killed-$pages" "${options[@]}"
    check answers 10.0.0.2
    victim=$TESTPMD
    [ "$pages" = 4K ] || check refused '; another process uses the group'
    TESTPMD=$victim
    ping -q -f -c 100000 -W 1 10.0.0.2 >/dev/null 2>&1 &
    flood=$!
    sleep 1
    kill -KILL "$TESTPMD"
    wait "$TESTPMD"
    kill "$flood"
    wait "$flood"
    [ "$(free_hugepages)" = "$before" ] || fail "$(free_hugepages) hugepages are free, not $before"
    start_testpmd "after-$pages" "${options[@]}"
    check answers 10.0.0.2
    check stop_testpmd "after-$pages"
    if [ "$pages" = 4K ]; then
        check grep -q 'using 4 KiB pages' "/host/after-$pages.log"
    else
        grep -q 'using 4 KiB pages' "/host/after-$pages.log" && fail 'hugepages were not used'
    fi
done
check_dmesg
verdict
