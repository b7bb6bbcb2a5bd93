# about: NVMe over RDMA and NFS over RDMA: fast registration by the kernel's own users
# machine: stock
# boot: own, the kernel's NVMe target and NFS server keep what they serve
# timeout: 900
# counts: umr_registrations local_invalidates sends_with_invalidate remote_invalidates
# shellcheck shell=bash source=scripts/lab/rdma.sh source-path=SCRIPTDIR
source /host/lab/rdma.sh
# shellcheck source=scripts/lab/two-ports.sh
source /host/lab/two-ports.sh

TARGET=10.1.0.1
INITIATOR=10.1.0.2

# fio_verify NAME FILE OPTION...: writes with checksums, reads back, compares.
fio_verify() {
    local name=$1 file=$2; shift 2
    must fio --name="$name" --filename="$file" --verify=crc32c --do_verify=1 --verify_fatal=1 \
        --ioengine=libaio --direct=1 --iodepth=8 --output="/host/fio-$name.log" "$@"
}

offer_disk() {
    local nvmet=/sys/kernel/config/nvmet
    must modprobe nvmet-rdma
    mkdir "$nvmet/subsystems/lab" "$nvmet/subsystems/lab/namespaces/1" "$nvmet/ports/1"
    echo 1 >"$nvmet/subsystems/lab/attr_allow_any_host"
    echo /dev/ram0 >"$nvmet/subsystems/lab/namespaces/1/device_path"
    echo 1 >"$nvmet/subsystems/lab/namespaces/1/enable"
    echo rdma >"$nvmet/ports/1/addr_trtype"
    echo ipv4 >"$nvmet/ports/1/addr_adrfam"
    echo "$TARGET" >"$nvmet/ports/1/addr_traddr"
    echo 4420 >"$nvmet/ports/1/addr_trsvcid"
    ln -s "$nvmet/subsystems/lab" "$nvmet/ports/1/subsystems/lab" || fail 'nvmet does not listen'
}

use_disk() {
    must modprobe nvme-rdma
    must timeout 120 nvme connect -t rdma -a "$TARGET" -s 4420 -n lab -w "$INITIATOR" -i 2
    until_true 20 test -b /dev/nvme0n1 || fail 'no NVMe disk appeared'
    fio_verify disk /dev/nvme0n1 --rw=randwrite --bsrange=512-128k --size=16M
    must mkfs.ext4 -q /dev/nvme0n1
    must mkdir /run/disk
    must mount /dev/nvme0n1 /run/disk
    fio_verify file /run/disk/file --rw=randrw --bs=4k --size=4M
    must umount /run/disk
    must fsck.ext4 -fn /dev/nvme0n1
    must nvme disconnect -n lab
    # What the target stored is what the initiator meant.
    must fsck.ext4 -fn /dev/ram0
}

offer_folder() {
    must mkfs.ext4 -q /dev/ram1
    must mkdir /run/export /run/folder
    must mount /dev/ram1 /run/export
    must modprobe rpcrdma
    must modprobe nfsd
    mount -t nfsd nfsd /proc/fs/nfsd 2>/dev/null
    # Nobody held a lease before: no need to wait for it. Writes are refused until then.
    echo 10 >/proc/fs/nfsd/nfsv4leasetime
    echo 10 >/proc/fs/nfsd/nfsv4gracetime
    must exportfs -o rw,no_root_squash,fsid=0,insecure,no_subtree_check "*:/run/export"
    rpcbind
    must rpc.nfsd --no-udp 2
    rpc.mountd
    echo "rdma 20049" >/proc/fs/nfsd/portlist || fail 'nfsd does not listen'
}

use_folder() {
    # NFS names no address of its own, and would be sent from the target to itself.
    must ip route add "$TARGET/32" dev "${devs[1]}" src "$INITIATOR" table 103
    must ip rule add pref 9 iif lo to "$TARGET" lookup 103
    must timeout 120 mount -t nfs4 -o \
        "proto=rdma,port=20049,clientaddr=$INITIATOR" "$TARGET:/" /run/folder
    grep -q 'proto=rdma' /proc/mounts || fail 'the folder is not mounted over RDMA'
    fio_verify folder /run/folder/file --rw=randrw --bsrange=4k-256k --size=8M
    must dd if=/dev/urandom of=/run/folder/random bs=1M count=4 conv=fsync status=none
    must sh -c 'sha256sum </run/folder/random >/run/sum'
    must umount /run/folder
    must sh -c 'sha256sum </run/export/random | cmp - /run/sum'
}

without_key_cache
load_rdma 2
read -ra devs <<<"$(mlx5_netdevs | tr '\n' ' ')"
wire_ports "${devs[0]}" "$TARGET" "${devs[1]}" "$INITIATOR"
must ping -q -c 3 -i 0.1 -I "$INITIATOR" "$TARGET"
must modprobe brd rd_nr=2 rd_size=65536
offer_disk
use_disk
offer_folder
use_folder
check_dmesg
verdict
