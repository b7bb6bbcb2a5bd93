# about: our NVMe over RDMA target over a cable that loses one frame in a hundred, with stock Linux
# ci: no
# machine: vfio
# model: --loss 10000 --watch-dma 16777216
# program: ferrocx-cxctl cxctl ferrocx-nvmf-target nvmf-target
# timeout: 900
# shellcheck shell=bash source=scripts/lab/nvmf.sh source-path=SCRIPTDIR
source /host/lab/nvmf.sh

ready_for_nvmf
configure 'services = [4420]' <<TOML
[[subsystem.namespace]]
size = "64MiB"
TOML
start_target
connect -i 2 -k 30 -c 2 -l 300
fio_verify small "$(disk 1)" --rw=randwrite --bs=4k --iodepth=16 --size=4M
fio_verify mixed "$(disk 1)" --rw=randrw --bsrange=512-256k --iodepth=8 --size=16M \
    --serialize_overlap=1
filled "$(disk 1)" /etc
intact "$(disk 1)" /etc
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
