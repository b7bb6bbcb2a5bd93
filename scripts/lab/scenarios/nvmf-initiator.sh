# about: our NVMe over RDMA host on vfio-pci against the kernel's target: verified, and under load
# ci: no
# machine: vfio
# boot: own, the kernel's NVMe target keeps what it serves
# program: ferrocx-cxctl cxctl ferrocx-nvmf-target nvmf-target
# timeout: 600
# shellcheck shell=bash source=scripts/lab/nvmf.sh source-path=SCRIPTDIR
source /host/lab/nvmf.sh

# bench OPTION...: our host.
bench() {
    timeout 120 /run/nvmf-target bench "$THEIRS_AT:4420" --nqn "$NQN" --device "$OURS" \
        --address "$OURS_AT/24" --mtu 4300 --wait sleep "$@"
}

# What the kernel has of the first places is what was to be written there.
written() {
    python3 - <<'PY'
import struct
import sys

WORD = (1 << 64) - 1


def mixed(state):
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9 & WORD
    state = (state ^ state >> 27) * 0x94d049bb133111eb & WORD
    return state ^ state >> 31


disk = open('/dev/ram0', 'rb')
for place in range(8):
    words = [mixed(place + (at + 1) * 0x9e3779b97f4a7c15 & WORD) for at in range(512)]
    if disk.read(4096) != struct.pack('<512Q', *words):
        sys.exit(f'place {place} has other bytes')
PY
}

ready_for_nvmf
nvmet_at "$THEIRS_AT"
check bench --rw verify --size 64KiB --span 4MiB --depth 8
check bench --rw verify --size 512 --span 64KiB --depth 100
check bench --rw verify --queues 2 --span 1MiB --lend
check written
check bench --rw mixed --queues 2 --seconds 2 --lend
check bench --rw read --depth 1 --seconds 1 --json
! bench --rw read --nsid 9 || fail 'a namespace of none was read'
! bench --rw read --size 700 || fail 'parts of blocks were read'
check_dmesg
verdict
