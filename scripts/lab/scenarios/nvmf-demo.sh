# about: a disk of a target outside the guest: run by scripts/demo-nvmf.sh, which starts the target
# ci: no
# ports: 1
# model: --wire tap:fxguest
# boot: own, its wire leads out of the lab
# shellcheck shell=bash source=scripts/lab/rdma.sh source-path=SCRIPTDIR
source /host/lab/rdma.sh

readonly AT=192.0.2.1 NQN=nqn.2026-11.org.ferrocx:ram
has_disk() { [ -b /dev/nvme0n1 ]; }

load_rdma 1
must ip addr add 192.0.2.2/24 dev "$(mlx5_netdevs)"
must modprobe nvme-rdma
until_true 20 ping -c 1 -W 1 "$AT" || fail "no target at $AT; scripts/demo-nvmf.sh starts one"
must timeout 120 nvme discover -t rdma -a "$AT" -s 4420
must timeout 120 nvme connect -t rdma -a "$AT" -s 4420 -n "$NQN" -i 2
until_true 30 has_disk || fail 'no disk appeared'
must nvme list
must mkfs.ext4 -q /dev/nvme0n1
mkdir -p /run/disk
must mount /dev/nvme0n1 /run/disk
must cp -a /etc /run/disk/copy
must df -h /run/disk
must umount /run/disk
must fsck.ext4 -fn /dev/nvme0n1
must mount /dev/nvme0n1 /run/disk
must diff -r --no-dereference /etc /run/disk/copy
must umount /run/disk
must nvme disconnect -n "$NQN"
check_dmesg
verdict
