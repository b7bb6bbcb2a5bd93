# about: our NVMe over RDMA target over a cable that loses one frame in a hundred, with stock Linux
# ci: no
# machine: vfio
# model: --loss 10000 --watch-dma 16777216
# program: ferrocx-cxctl cxctl ferrocx-nvmf-target nvmf-target
# timeout: 900
# shellcheck shell=bash source=scripts/lab/nvmf.sh source-path=SCRIPTDIR
source /host/lab/nvmf.sh

ready_for_nvmf
cat >/run/target.toml <<TOML
address = "$OURS_AT/24"
mtu = 4300
[[subsystem]]
nqn = "$NQN"
allow_any_host = true
[[subsystem.namespace]]
size = "64MiB"
TOML
start_target
connect -i 2 -k 30 -c 2 -l 300
fio_verify small "$(disk 1)" --rw=randwrite --bs=4k --iodepth=16 --size=4M
fio_verify mixed "$(disk 1)" --rw=randrw --bsrange=512-256k --iodepth=8 --size=16M \
    --serialize_overlap=1
must mkfs.ext4 -q -F "$(disk 1)"
mkdir -p /run/disk
must mount "$(disk 1)" /run/disk
must cp -a /etc /run/disk/copy
must umount /run/disk
check fsck.ext4 -fn "$(disk 1)"
must mount "$(disk 1)" /run/disk
check diff -r --no-dereference /etc /run/disk/copy
must umount /run/disk
missed=0
for name in packet_seq_err out_of_sequence local_ack_timeout_err; do
    missed=$((missed + $(attribute "$(rdma_devices)" "hw_counters/$name")))
done
step "the host's port missed packets or answers $missed times"
[ "$missed" -ge 10 ] || fail 'the cable loses nothing'
must nvme disconnect -n "$NQN"
stop_target TERM
cat /host/target.log
verdict
