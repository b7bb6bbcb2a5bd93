# about: our NVMe over RDMA target is killed, cut off and attacked under load: Linux's data stay
# ci: no
# machine: vfio
# program: ferrocx-cxctl cxctl ferrocx-nvmf-target nvmf-target
# timeout: 1800
# shellcheck shell=bash source=scripts/lab/nvmf.sh source-path=SCRIPTDIR
source /host/lab/nvmf.sh

readonly OTHER=nqn.2026-11.org.ferrocx:other HOSTILE=nqn.2026-11.org.ferrocx:hostile
# Seconds that the host may be silent, and that the port is down.
readonly KEEP_ALIVE=5 DARK=20
RESULTS=() # rows of the table

# result WHAT: the next row, with the seconds since the step began.
result() { RESULTS+=("$(printf '%-52s %4d s' "$1" $((SECONDS - BEGUN)))"); }
begin() { step "== $*"; BEGUN=$SECONDS; }

written() { awk '{ print $5 }' "/sys/block/$(basename "$(disk "$1")")/stat"; }
has_written() { [ "$(written "$1")" -ge "$2" ]; }

# loaded NAME NSID OPTION...: fio writes to a namespace, and reads back in the end; FIO is its
# process. It takes a quarter of a minute at least, and returns when it has begun.
loaded() {
    local name=$1 nsid=$2 before
    shift 2
    before=$(written "$nsid")
    fio --name="$name" --filename="$(disk "$nsid")" --ioengine=libaio --direct=1 --rw=randwrite \
        --bs=4k --iodepth=16 --size=16M --rate_iops=,256 --verify=crc32c --do_verify=1 \
        --verify_fatal=1 --output="/host/fio-$name.log" "$@" &
    FIO=$!
    until_true 60 has_written "$nsid" $((before + 200)) || fail "fio $name does not write"
}

# survived NAME: all that fio was told is written is there.
survived() { wait "$FIO" || fail "fio $1: see fio-$1.log"; }

hosts_are() {
    rpc controller.list | python3 -c 'import json, sys
assert len(json.load(sys.stdin)) == int(sys.argv[1])' "$1"
}

# Sizes and depths of the issue, for a minute.
minute() {
    local depth
    begin 'a minute of 512 bytes to 1 MiB at depths of 1 to 128'
    for depth in 1 16 128; do
        fio_verify "minute-$depth" "$(disk 1)" --rw=randrw --bsrange=512-1M --iodepth="$depth" \
            --size=32M --time_based --runtime=20 --serialize_overlap=1
    done
    result 'a minute of fio, 512 bytes to 1 MiB, depth 1 to 128'
}

# Another file system than that of nvmf-target, which takes 300 MB at least.
filed() {
    local namespace files=/usr/lib/python3/dist-packages named="\"nqn\": \"$NQN\""
    local file='"backend": "file", "path": "/var/tmp/xfs.img", "size": "320MiB"'
    begin 'xfs on a file'
    check rpc namespace.add "{$named, \"namespace\": {\"nsid\": 3, $file}}"
    until_true 30 has_disk 3 || fail 'no namespace 3'
    namespace=$(disk 3)
    filled "$namespace" "$files" xfs
    fio_verify xfs /run/disk/file --rw=randrw --bs=4k --iodepth=8 --size=4M
    check fstrim -v /run/disk
    intact "$namespace" "$files" xfs
    check rpc namespace.remove "{$named, \"nsid\": 3}"
    rm -f /var/tmp/xfs.img
    result 'xfs: copied, fio, trimmed, repaired nothing, same files'
}

killed() {
    begin 'the target is killed under load, and comes back'
    loaded killed 1
    stop_target KILL
    start_target
    until_true 120 is_live || fail 'no reconnection after a kill'
    survived killed
    result 'target killed under load, restarted: file right'
}

reset() {
    local ctrl
    begin 'the controller is reset under load'
    loaded reset 1
    ctrl=/dev/$(basename "$(dirname "$(namespace_of address trsvcid=4420)")")
    for _ in 1 2; do
        check nvme reset "$ctrl"
        until_true 60 is_live || fail 'not live after a reset'
    done
    survived reset
    result 'controller reset twice under load'
}

dark() {
    local dev
    begin "the link is down for $DARK s under load"
    dev=$(mlx5_netdevs)
    loaded dark 1
    must ip link set "$dev" down
    sleep "$DARK"
    must ip link set "$dev" up
    until_true 60 has_carrier "$dev" || fail 'no carrier'
    until_true 120 is_live || fail 'no reconnection after the link came back'
    survived dark
    result "link down for $DARK s under load"
}

# A namespace goes while its commands are under way: they fail, and nothing else does.
removed() {
    local gone named="\"nqn\": \"$NQN\""
    begin 'a namespace is removed under load'
    check rpc namespace.add "{$named, \"namespace\": {\"nsid\": 9, \"size\": \"16MiB\"}}"
    until_true 30 has_disk 9 || fail 'no namespace 9'
    loaded gone 9 --do_verify=0
    gone=$FIO
    loaded stays 1
    check rpc namespace.remove "{$named, \"nsid\": 9}"
    until_true 30 has_no_disk 9 || fail 'the host keeps a namespace that has gone'
    ! wait "$gone" || fail 'fio did not notice that its namespace had gone'
    survived stays
    result 'namespace removed under load: the others stay'
}

# The hostile host's device, whose name has no path in it where paths are joined.
of_hostile() { echo "/dev/$(basename "$(namespace_of hostnqn "$HOSTILE")" | sed 's/c[0-9]*n/n/')"; }

# Another host of this kernel does what it should not, while the first works.
attacked() {
    local ctrl opcode
    begin 'a hostile host beside one that works'
    must timeout 120 nvme connect -t rdma -a "$OURS_AT" -s 4420 -n "$OTHER" -i 1 -q "$HOSTILE" \
        -I 00000000-0000-4000-8000-000000000066
    until_true 30 namespace_of hostnqn "$HOSTILE" || fail 'the other host has no disk'
    loaded beside 1
    ctrl=/dev/$(basename "$(dirname "$(namespace_of hostnqn "$HOSTILE")")")
    # Without data of the host, which nvme-cli would wait for.
    for opcode in 0x00 0x04 0x10 0x22 0xc2 0xfe; do
        step "admin command $opcode"
        ! timeout 20 nvme admin-passthru "$ctrl" -O "$opcode" -n 77 --cdw10=-1 -l 4096 -r ||
            fail "admin command $opcode was carried out"
    done
    ! timeout 20 nvme get-log "$ctrl" --log-id=0xee --log-len=4096 || fail 'a log of none'
    ! timeout 20 nvme io-passthru "$(of_hostile)" -O 2 -n 1 --cdw10=-1 --cdw11=-1 -l 4096 -r ||
        fail 'blocks beyond the end were read'
    for _ in 1 2 3; do
        ! timeout 20 nvme connect -t rdma -a "$OURS_AT" -s 4420 -n "$NQN:none" -q "$HOSTILE" \
            -I 00000000-0000-4000-8000-000000000066 || fail 'a subsystem of none'
    done
    check timeout 60 nvme reset "$ctrl"
    survived beside
    must nvme disconnect -n "$OTHER"
    result 'two hosts, one of them hostile'
}

# The host falls silent: what it had is the target's again when its keep-alive time is over.
vanished() {
    local dev silent
    begin 'the host vanishes'
    dev=$(mlx5_netdevs)
    hosts_are 1 || fail 'not one controller before'
    must ip link set "$dev" down
    silent=$SECONDS
    until_true 60 hosts_are 0 || fail 'the controller of a host that has gone stays'
    step "nothing is left of it after $((SECONDS - silent)) s"
    [ $((SECONDS - silent)) -le $((KEEP_ALIVE + 10)) ] || fail 'that was too long'
    /run/nvmf-target stats --socket "$SOCKET" --json >/host/stats.json
    python3 - /host/stats.json <<'PY' || fail 'queues or buffers are left over'
import json
import sys

stats = json.load(open(sys.argv[1]))
assert stats['queues'] == [], stats['queues']
PY
    must ip link set "$dev" up
    until_true 120 is_live || fail 'no reconnection of the host that was silent'
    result "host vanishes, keep alive of $KEEP_ALIVE s: nothing left"
}

ready_for_nvmf
configure "socket = \"$SOCKET\"" <<TOML
[[subsystem.namespace]]
backend = "file"
path = "/var/tmp/nvmf.img"
size = "48MiB"
[[subsystem]]
nqn = "$OTHER"
allow_any_host = true
[[subsystem.namespace]]
size = "16MiB"
TOML
start_target
connect -i 2 -k "$KEEP_ALIVE" -c 2 -l 300
filed
minute
killed
reset
dark
removed
vanished
attacked
must nvme disconnect -n "$NQN"
stop_target TERM
rm -f /var/tmp/nvmf.img
printf '%s\n' "${RESULTS[@]}" | tee /host/results
verdict
