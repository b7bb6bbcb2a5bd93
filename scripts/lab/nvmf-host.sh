# What a stock host does with our target on two cores, from discovery to a target that was killed:
# the whole of scenarios nvmf-target and nvmf-backports.
# shellcheck shell=bash source=scripts/lab/nvmf.sh source-path=SCRIPTDIR
source /host/lab/nvmf.sh

readonly KEPT=/var/lib/nvmf-target
readonly HOSTS=nqn.2026-11.org.ferrocx:host # and a number

# Everything that the kernel and nvme-cli ask a controller and a namespace.
asked() {
    local ctrl namespace
    namespace=$(disk 1)
    ctrl=/dev/$(basename "$(echo /sys/class/nvme/nvme*)")
    check nvme id-ctrl "$ctrl"
    nvme id-ctrl "$ctrl" -H | grep -q 'Fused Compare and Write Supported' ||
        fail 'the host sees no fused commands'
    nvme id-ctrl "$ctrl" | grep -q '^msdbd *: *16$' || fail 'the host sees no lists of descriptors'
    check nvme id-ns "$namespace"
    check nvme ns-descs "$namespace"
    check nvme list-ns "$ctrl"
    check nvme smart-log "$ctrl"
    check nvme error-log "$ctrl" -e 4
    check nvme fw-log "$ctrl"
    check nvme effects-log "$ctrl"
    check nvme supported-log-pages "$ctrl"
    check nvme list-ctrl "$ctrl"
    check nvme get-feature "$ctrl" -f 7
    check nvme flush "$namespace" -n 1
    check nvme write-zeroes "$namespace" -n 1 -s 0 -c 7
    check nvme verify "$namespace" -n 1 -s 0 -c 7
    check nvme dsm "$namespace" -n 1 -d -s 0 -b 8
    head -c 512 /dev/zero >/run/zeros
    check nvme compare "$namespace" -n 1 -s 0 -c 0 -z 512 -d /run/zeros
    head -c 512 /dev/urandom >/run/noise
    ! nvme compare "$namespace" -n 1 -s 0 -c 0 -z 512 -d /run/noise ||
        { echo 'other data compared equal' >>/host/reason; FAILURES=$((FAILURES + 1)); }
    check blkdiscard -f -o 0 -l 1M "$namespace"
    check blkdiscard -z -f -o 1M -l 1M "$namespace"
}

# mixed NSID: data of all sizes and depths, on the disk itself.
mixed() {
    local small=(--rw=randwrite --bsrange=512-16k --iodepth=128 --size=8M)
    local large=(--rw=randwrite --bsrange=64k-1M --iodepth=4 --size=32M)
    local both=(--rw=randrw --bsrange=512-1M --iodepth=16 --size=24M --serialize_overlap=1)
    local four=(--rw=randwrite --bs=4k --iodepth=32 --size=4M --numjobs=4 --offset_increment=8M)
    local sync=(--rw=write --bs=4k --iodepth=1 --size=1M --fsync=16)
    # In one fio, whose start takes seconds in a guest.
    fio_verify "$1-small" "$(disk "$1")" "${small[@]}" --name=large --stonewall "${large[@]}" \
        --name=both --stonewall "${both[@]}" --name=four --stonewall "${four[@]}" \
        --name=sync --stonewall "${sync[@]}"
}

# filed NSID: a file system, and what was put into it.
filed() {
    local namespace
    namespace=$(disk "$1")
    filled "$namespace" /etc
    fio_verify "$1-file" /run/disk/file --rw=randrw --bs=4k --iodepth=8 --size=4M
    check fstrim -v /run/disk
    intact "$namespace" /etc
}

has_size() { [ "$(blockdev --getsize64 "$(disk "$1")" 2>/dev/null)" = "$2" ]; }

# Namespaces come, change and go while the host is there: it hears of each by an event. Both cores
# have queues, and statistics have what the host did.
changed() {
    local named="\"nqn\": \"$NQN\""
    check rpc namespace.add \
        "{$named, \"namespace\": {\"nsid\": 9, \"size\": \"8MiB\", \"atomic\": true}}"
    until_true 20 has_disk 9 || fail 'the host did not find a new namespace'
    fio_verify added "$(disk 9)" --rw=randwrite --bs=4k --iodepth=8 --size=2M
    check rpc namespace.resize "{$named, \"nsid\": 9, \"size\": \"4MiB\"}"
    until_true 20 has_size 9 4194304 || fail 'the host did not hear of another size'
    check rpc namespace.remove "{$named, \"nsid\": 9}"
    until_true 20 has_no_disk 9 || fail 'the host keeps a namespace that has gone'
    ! rpc namespace.remove "{$named, \"nsid\": 9}" || fail 'a namespace was removed twice'
    /run/nvmf-target stats --socket "$SOCKET" --json >/host/stats.json
    python3 - /host/stats.json <<'PY' || fail 'the statistics are wrong'
import json
import sys

stats = json.load(open(sys.argv[1]))
cores = [core['queues'] for core in stats['pollers']]
assert len(cores) == 2 and min(cores) >= 2, cores
assert any(space['nsid'] == 1 and space['reads'] > 0 for space in stats['namespaces'])
assert all(queue['commands'] > 0 for queue in stats['queues'])
PY
    /run/nvmf-target stats --socket "$SOCKET" --prometheus >/host/stats.prom
    check grep -q '^nvmf_target_host_reads_total{host="nqn.2014-08.org.nvmexpress' /host/stats.prom
}

# A block device behind a namespace: all of a loop device of the guest's.
on_a_device() {
    local loop image=/var/tmp/loop.img named="\"nqn\": \"$NQN\""
    must modprobe loop
    must truncate -s 16M "$image"
    loop=$(losetup -f --show "$image") || fail 'no loop device'
    check rpc namespace.add \
        "{$named, \"namespace\": {\"nsid\": 8, \"backend\": \"file\", \"path\": \"$loop\"}}"
    until_true 20 has_disk 8 || fail 'the host did not find the device'
    until_true 20 has_size 8 16777216 || fail 'the namespace is not all of the device'
    fio_verify device "$(disk 8)" --rw=randrw --bsrange=512-64k --iodepth=16 --size=4M \
        --serialize_overlap=1
    check blkdiscard -f -o 0 -l 1M "$(disk 8)"
    check rpc namespace.remove "{$named, \"nsid\": 8}"
    until_true 20 has_no_disk 8 || fail 'the host keeps a device that has gone'
    check losetup -d "$loop"
    rm -f "$image"
}

# The target is killed, and comes back: the host connects again by itself, and what it was told is
# written is still in the file.
killed() {
    local kept=(fio --name=kept --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=16
        --size=8M --verify=crc32c --verify_fatal=1 "--filename=$(disk 3)")
    check "${kept[@]}" --do_verify=0 --output=/host/fio-kept.log
    stop_target KILL
    start_target
    until_true 60 is_live || { nvme list-subsys; dmesg | tail -n 20; fail 'no reconnection'; }
    until_true 30 has_disk 1 || fail 'the disk did not come back'
    check "${kept[@]}" --verify_only --output=/host/fio-kept-after.log
    fio_verify again "$(disk 1)" --rw=randwrite --bs=4k --iodepth=8 --size=2M
}

way() { namespace_of address "trsvcid=$1"; }
way_is() { [ "$(cat "$(way "$1")/ana_state")" = "$2" ]; }
written_by() { awk '{ print $5 }' "$(way "$1")/stat"; }
has_written() { [ "$(written_by "$1")" -gt "$2" ]; }

# Short runs of fio, one after the other until /run/enough is there.
until_enough() {
    until [ -e /run/enough ]; do
        fio --name=ways --filename="$(disk 1)" --ioengine=libaio --direct=1 --rw=randwrite --bs=4k \
            --iodepth=8 --size=512k --verify=crc32c --do_verify=1 --verify_fatal=1 \
            --output=/host/fio-ways.log || return
    done
}

# taken SERVICE: the kernel writes by it from now on.
taken() {
    local before
    before=$(written_by "$1")
    until_true 60 has_written "$1" $((before + 16)) || fail "the way by port $1 is not taken"
}

# discovery_names PORT
discovery_names() {
    timeout 60 nvme discover -t rdma -a "$OURS_AT" -s 4420 >/run/named.log &&
        grep -q "trsvcid: *$1\b" /run/named.log
}

# A second port, the worse way, under fio: the kernel takes the better one, the other while it is
# told that there is no way by the first, and the better one again. A third that comes and goes.
switched() {
    local fio port
    must timeout 120 nvme connect -t rdma -a "$OURS_AT" -s 4421 -n "$NQN" -i 1
    until_true 30 way_is 4421 non-optimized || fail 'the kernel does not see the worse way'
    way_is 4420 optimized || fail 'the kernel does not see the better way'
    until_enough &
    fio=$!
    taken 4420
    check rpc ana.set '{"port": 4420, "state": "inaccessible"}'
    taken 4421
    way_is 4420 inaccessible || fail 'the kernel does not see that there is no way'
    check rpc ana.set '{"port": 4420, "state": "optimized"}'
    taken 4420
    touch /run/enough
    wait "$fio" || fail 'fio failed while ways changed'
    check rpc ana.set '{"port": 4421, "state": "persistent-loss"}'
    until_true 20 way_is 4421 persistent-loss || fail 'the kernel did not hear of the loss'
    check rpc port.add '{"port": 4422, "state": "non-optimized"}'
    check discovery_names 4422
    must timeout 120 nvme connect -t rdma -a "$OURS_AT" -s 4422 -n "$NQN" -i 1
    until_true 30 way_is 4422 non-optimized || fail 'the kernel does not see the way that came'
    check rpc port.remove '{"port": 4422}'
    ! discovery_names 4422 || fail 'discovery names a port that was removed'
    way_is 4422 non-optimized || fail 'the way by a port that was removed is another'
    for port in 4421 4422; do
        must nvme disconnect -d "$(basename "$(dirname "$(way "$port")")")"
    done
}

of_host() { echo "/dev/$(basename "$(namespace_of hostnqn "$HOSTS$1")")"; }
has_device() { [ -b "$(of_host "$1")" ]; }
reads() { dd "if=$1" of=/dev/null bs=512 count=1 iflag=direct status=none; }
writes() { dd if=/run/noise "of=$1" bs=512 count=1 oflag=direct conv=notrunc status=none; }

# asked_to_reserve DEVICE CALL KEY: by the kernel's own calls, which always ask for what outlives
# the target: register, reserve and release (write exclusive, registrants only), clear.
asked_to_reserve() {
    python3 - "$@" <<'PY'
import fcntl
import os
import struct
import sys

# Source: include/uapi/linux/pr.h.
path, call, key = sys.argv[1], sys.argv[2], int(sys.argv[3], 0)
number, data = {
    'register': (200, struct.pack('<QQII', 0, key, 0, 0)),
    'reserve': (201, struct.pack('<QII', key, 3, 0)),
    'release': (202, struct.pack('<QII', key, 3, 0)),
    'clear': (205, struct.pack('<QII', key, 0, 0)),
}[call]
disk = os.open(path, os.O_RDWR)
# Of what can be changed, the result is the call's.
status = fcntl.ioctl(disk, 1 << 30 | len(data) << 16 | ord('p') << 8 | number, bytearray(data))
sys.exit(f'{call}: {status:#x}' if status else 0)
PY
}

both_live() { [ "$(controllers)" -ge 2 ]; }

# reported DEVICE EXPECTED: the first bytes of the report of reservations, as od prints them:
# changes, kind, registrants, and whether it outlives the target.
reported() {
    local report
    nvme resv-report "$1" -n 1 -e -b >/host/resv-kept
    report=$(od -An -tx1 -N10 /host/resv-kept)
    [ "$report" = " $2" ] || fail "the report is$report, not $2"
}

# kept ONE TWO: a reservation of the first host's outlives a target that is killed, and no release.
kept() {
    check asked_to_reserve "$1" register 0xc1
    check asked_to_reserve "$1" reserve 0xc1
    ! writes "$2" || fail 'a host without a registration wrote'
    stop_target KILL
    start_target
    until_true 60 both_live || { nvme list-subsys; fail 'two hosts did not come back'; }
    check writes "$1"
    ! writes "$2" || fail 'a reservation was forgotten'
    check reads "$2"
    # Five changes, write exclusive for registrants, one of them, and that it is kept.
    reported "$2" '05 00 00 00 03 01 00 00 00 01'
    check asked_to_reserve "$1" release 0xc1
    check writes "$2"
    reported "$2" '05 00 00 00 00 01 00 00 00 01'
    check asked_to_reserve "$1" reserve 0xc1
    ! writes "$2" || fail 'a host without a registration wrote after a release'
    ! asked_to_reserve "$1" clear 0xc2 || fail "another key than the host's cleared"
    check asked_to_reserve "$1" clear 0xc1
    check writes "$2"
    reported "$2" '06 00 00 00 00 00 00 00 00 01'
    # The same by nvme-cli, which asks for nothing that is kept.
    check nvme resv-register "$1" -n 1 --nrkey=0xd1 --rrega=0
    check nvme resv-acquire "$1" -n 1 --crkey=0xd1 --rtype=3 --racqa=0
    ! writes "$2" || fail 'a host without a registration wrote after a clear'
    check nvme resv-release "$1" -n 1 --crkey=0xd1 --rtype=3 --rrela=1
    check writes "$2"
}

# Two hosts of this kernel and a reservation between them, by nvme-cli and by the kernel's calls.
reserved() {
    local host one two
    must modprobe -r nvme-rdma nvme-fabrics nvme-core
    must modprobe nvme-core multipath=N
    must modprobe nvme-rdma
    must grep -q N /sys/module/nvme_core/parameters/multipath
    for host in 1 2; do
        must timeout 120 nvme connect -t rdma -a "$OURS_AT" -s 4420 -n "$NQN" -i 1 -c 2 \
            -q "$HOSTS$host" -I "00000000-0000-4000-8000-00000000000$host"
        until_true 30 has_device "$host" || fail "host $host has no device"
    done
    one=$(of_host 1) two=$(of_host 2)
    check nvme resv-register "$one" -n 1 --nrkey=0xa1 --rrega=0
    check nvme resv-acquire "$one" -n 1 --crkey=0xa1 --rtype=3 --racqa=0
    check writes "$one"
    check reads "$two"
    ! writes "$two" || fail 'a host without a registration wrote'
    check nvme resv-register "$two" -n 1 --nrkey=0xb2 --rrega=0
    check writes "$two"
    nvme resv-report "$one" -n 1 -e -b >/host/resv-report
    check nvme resv-acquire "$two" -n 1 --crkey=0xb2 --prkey=0xa1 --rtype=1 --racqa=1
    ! writes "$one" || fail 'a host whose registration was preempted wrote'
    check reads "$one"
    nvme get-log "${one%n*}" --log-id=0x80 --log-len=64 -b >/host/resv-notice
    check nvme resv-release "$two" -n 1 --crkey=0xb2 --rtype=1 --rrela=0
    check writes "$one"
    python3 - <<'PY' || fail 'what nvme-cli was told of the reservation is wrong'
import struct

report = open('/host/resv-report', 'rb').read()
# Write exclusive for registrants; two of them; nothing outlives the target.
assert struct.unpack_from('<IBHxxB', report) == (2, 3, 2, 0), report[:64]
keys = {struct.unpack_from('<Q', report, at + 8)[0]: report[at + 2] for at in (64, 128)}
assert keys == {0xa1: 1, 0xb2: 0}, keys
notice = open('/host/resv-notice', 'rb').read()
# The first, of a registration that was preempted; no more; namespace 1.
assert struct.unpack_from('<QBBxxI', notice) == (1, 1, 0, 1), notice
PY
    check nvme resv-register "$two" -n 1 --crkey=0xb2 --rrega=1
    kept "$one" "$two"
    must nvme disconnect -n "$NQN"
}

# fetched: READs of our target that the host's port has answered.
fetched() { attribute "$(rdma_devices)" hw_counters/rx_read_requests; }

# With 16 KiB in a capsule, the most that there can be, none of them is fetched; more is.
in_capsules() {
    local before
    nvme id-ctrl "/dev/$(basename "$(echo /sys/class/nvme/nvme*)")" |
        grep -q '^ioccsz *: *1028$' || fail 'the host is told of other capsules'
    before=$(fetched)
    fio_verify capsules "$(disk 1)" --rw=randwrite --bsrange=512-16k --iodepth=32 --size=4M
    [ "$(fetched)" -eq "$before" ] || fail "$(($(fetched) - before)) READs for data in capsules"
    fio_verify beyond "$(disk 1)" --rw=randwrite --bs=20k --iodepth=8 --size=1M
    [ "$(fetched)" -gt "$before" ] || fail 'no READ for data that no capsule takes'
}

# What our target is to offer: RAM, nothing, and a file by two services.
offered() {
    configure "socket = \"$SOCKET\"" "reservations = \"$KEPT\"" \
        'services = [4420, 4421, 8009]' 'cores = [0, 1]' \
        'ana = { 4420 = "optimized", 4421 = "non-optimized" }' <<TOML
[[subsystem.namespace]]
size = "64MiB"
[[subsystem.namespace]]
size = "1GiB"
backend = "null"
[[subsystem.namespace]]
backend = "file"
path = "/var/tmp/nvmf.img"
size = "48MiB"
[[subsystem]]
nqn = "nqn.2026-11.org.ferrocx:private"
hosts = ["nqn.2026-11.org.ferrocx:nobody"]
TOML
}

# Both ports, and our target.
begun() {
    ready_for_nvmf
    must mkdir -p "$KEPT"
    offered
    must /run/nvmf-target doctor --config /run/target.toml
    start_target
}

# All of it.
judged() {
    local nsid
    begun
    must timeout 60 nvme discover -t rdma -a "$OURS_AT" -s 4420 | tee /host/discover.log
    grep -q "subnqn: *$NQN" /host/discover.log || fail 'discovery does not name the subsystem'
    ! grep -q private /host/discover.log || fail 'discovery names what is not for this host'
    check timeout 60 nvme discover -t rdma -a "$OURS_AT" -s 8009
    ! timeout 60 nvme connect -t rdma -a "$OURS_AT" -s 4420 -n nqn.2026-11.org.ferrocx:private ||
        fail 'a host that is not on the list was let in'
    connect -i 4 -W 1 -P 1 -k 5 -c 2
    asked
    changed
    on_a_device
    switched
    for nsid in 1 3; do
        until_true 20 has_disk "$nsid" || fail "namespace $nsid did not appear"
        mixed "$nsid"
        filed "$nsid"
    done
    check nvme reset "/dev/$(basename "$(echo /sys/class/nvme/nvme*)")"
    until_true 30 is_live || fail 'not live after a reset'
    fio_verify reset "$(disk 1)" --rw=randwrite --bs=4k --iodepth=8 --size=2M
    killed
    must nvme disconnect -n "$NQN"
    until_true 20 has_no_disk 1 || fail 'the disk stayed'
    stop_target TERM
    LIMITS+=('in_capsule_bytes = 16384')
    offered
    start_target
    connect -i 2 -Q 16 --disable-sqflow
    in_capsules
    fio_verify small-queues "$(disk 1)" --rw=randwrite --bs=4k --iodepth=32 --size=2M
    must nvme disconnect -n "$NQN"
    reserved
    stop_target TERM
    rm -f /var/tmp/nvmf.img
    check_dmesg
    cat /host/target.log
    verdict
}
