# about: a disk of a target outside the guest: run by scripts/demo-nvmf.sh, which starts the target
# ci: no
# ports: 1
# model: --wire tap:fxguest
# boot: own, its wire leads out of the lab
# shellcheck shell=bash source=scripts/lab/nvmf.sh source-path=SCRIPTDIR
source /host/lab/nvmf.sh

readonly AT=192.0.2.1

load_rdma 1
must ip addr add 192.0.2.2/24 dev "$(mlx5_netdevs)"
must modprobe nvme-rdma
until_true 20 ping -c 1 -W 1 "$AT" || fail "no target at $AT; scripts/demo-nvmf.sh starts one"
must timeout 120 nvme discover -t rdma -a "$AT" -s 4420
must timeout 120 nvme connect -t rdma -a "$AT" -s 4420 -n "$NQN" -i 2
until_true 30 has_disk 1 || fail 'no disk appeared'
must nvme list
filled "$(disk 1)" /etc
must df -h /run/disk
intact "$(disk 1)" /etc
must nvme disconnect -n "$NQN"
check_dmesg
verdict
