# Our NVMe over RDMA target on vfio-pci, the second port, with the guest's own nvme-rdma, nvme-cli
# and fio as its host on the first.
# shellcheck shell=bash source=scripts/lab/rdma.sh source-path=SCRIPTDIR
source /host/lab/rdma.sh

# Said by newer kernels when their flow tables grow.
HEALTHY+=('Flow counters bulk query buffer size increased')
readonly OURS=0000:02:00.0 OURS_AT=10.0.0.2 THEIRS_AT=10.0.0.1
readonly NQN=nqn.2026-11.org.ferrocx:ram SOCKET=/run/nvmf.sock
TARGET= # its process
WAIT='sleep' # what it does when it has nothing to do
LIMITS=('queues = 24') # lines of its limits

# configure LINE...: the file of our target, with these lines for all of it. What any host may use
# under NQN, and what else there is, comes on standard input.
configure() {
    {
        printf '%s\n' "address = \"$OURS_AT/24\"" 'mtu = 4300' "$@" '[limits]' "${LIMITS[@]}" \
            '[[subsystem]]' "nqn = \"$NQN\"" 'allow_any_host = true'
        cat
    } >/run/target.toml
}

# Starts our target, and waits until it listens.
start_target() {
    step nvmf-target
    /run/nvmf-target --config /run/target.toml --device "$OURS" --wait "$WAIT" --json -v \
        >/run/target.log 2>&1 &
    TARGET=$!
    until_true 60 grep -q '^listening' /run/target.log ||
        { cat /run/target.log; fail 'the target does not listen'; }
}

# stop_target SIGNAL: it ends, with its statistics in the log.
stop_target() {
    local status=0
    kill "-$1" "$TARGET"
    wait "$TARGET" || status=$?
    cat /run/target.log >>/host/target.log
    [ "$1" = KILL ] || [ "$status" -eq 0 ] || fail "the target ended with $status"
}

# disk NSID: the block device of a namespace of ours.
disk() {
    local path subsystem
    for subsystem in /sys/class/nvme-subsystem/nvme-subsys*; do
        [ "$(cat "$subsystem/subsysnqn" 2>/dev/null)" = "$NQN" ] || continue
        for path in "$subsystem"/nvme*n*; do
            [ "$(cat "$path/nsid" 2>/dev/null)" = "$1" ] && { echo "/dev/${path##*/}"; return; }
        done
    done
    return 1
}

has_disk() { [ -b "$(disk "$1")" ]; }
has_no_disk() { ! disk "$1"; }
controllers() { nvme list-subsys 2>/dev/null | grep -c " rdma .*live"; }
is_live() { [ "$(controllers)" -ge 1 ]; }

# connect OPTION...: the kernel's host.
connect() {
    must timeout 120 nvme connect -t rdma -a "$OURS_AT" -s 4420 -n "$NQN" "$@"
    until_true 30 has_disk 1 || { cat /run/target.log; dmesg | tail; fail 'no disk appeared'; }
}

# fio_verify NAME FILE OPTION...: writes with checksums, reads back, compares. An option --name
# begins another such job, behind the one before it where it has --stonewall.
fio_verify() {
    local name=$1 file=$2
    shift 2
    check fio --filename="$file" --verify=crc32c --do_verify=1 --verify_fatal=1 \
        --ioengine=libaio --direct=1 --output="/host/fio-$name.log" --name="$name" "$@"
}

# filled DEVICE FILES [KIND]: a file system on it, ext4 or xfs, mounted, with a copy of these files.
filled() {
    case ${3:-ext4} in
        ext4) must mkfs.ext4 -q -F "$1" ;;
        xfs) must mkfs.xfs -q -f "$1" ;;
    esac
    mkdir -p /run/disk
    must mount "$1" /run/disk
    must cp -a "$2" /run/disk/copy
}

# intact DEVICE FILES [KIND]: it was filled so, is without a fault, and has the files still.
intact() {
    must umount /run/disk
    case ${3:-ext4} in
        ext4) check fsck.ext4 -fn "$1" ;;
        xfs) check xfs_repair -n "$1" ;;
    esac
    must mount "$1" /run/disk
    check diff -r --no-dereference "$2" /run/disk/copy
    must umount /run/disk
}

# rpc METHOD [PARAMS]: of the running target.
rpc() { /run/nvmf-target rpc --socket "$SOCKET" "$@"; }

# namespace_of FILE TEXT: what a controller whose file says that has of the first namespace.
namespace_of() {
    local ctrl path
    for ctrl in /sys/class/nvme/nvme*; do
        grep -qsF "$2" "$ctrl/$1" || continue
        for path in "$ctrl"/nvme*n*; do
            [ "$(cat "$path/nsid" 2>/dev/null)" = 1 ] && { echo "$path"; return; }
        done
    done
    return 1
}

# nvmet_at ADDRESS: the kernel's target offers 64 MiB of RAM there, under the name of ours.
nvmet_at() {
    local nvmet=/sys/kernel/config/nvmet
    must modprobe brd rd_nr=1 rd_size=65536
    must modprobe nvmet-rdma
    mkdir "$nvmet/subsystems/$NQN" "$nvmet/subsystems/$NQN/namespaces/1" "$nvmet/ports/1"
    echo 1 >"$nvmet/subsystems/$NQN/attr_allow_any_host"
    echo /dev/ram0 >"$nvmet/subsystems/$NQN/namespaces/1/device_path"
    echo 1 >"$nvmet/subsystems/$NQN/namespaces/1/enable"
    echo rdma >"$nvmet/ports/1/addr_trtype"
    echo ipv4 >"$nvmet/ports/1/addr_adrfam"
    echo "$1" >"$nvmet/ports/1/addr_traddr"
    echo 4420 >"$nvmet/ports/1/addr_trsvcid"
    ln -s "$nvmet/subsystems/$NQN" "$nvmet/ports/1/subsystems/$NQN" || fail 'nvmet does not listen'
}

# ready_for_nvmf: both ports, with the host's drivers and ours.
ready_for_nvmf() {
    local dev
    must modprobe vfio_iommu_type1
    must modprobe vfio-pci
    must /host/cxctl bind "$OURS" --apply
    must /host/cxctl hugepages reserve 96 --apply
    must cp /host/nvmf-target /run/
    without_key_cache
    load_rdma 1
    must modprobe nvme-rdma
    dev=$(mlx5_netdevs)
    must ip link set "$dev" mtu 4300
    must ip addr add "$THEIRS_AT/24" dev "$dev"
}
