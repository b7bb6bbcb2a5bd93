# about: our NVMe over RDMA target beside the kernel's, nvmet-rdma: rate, latency, processor time
# ci: no
# machine: vfio
# boot: own, the kernel's NVMe target keeps what it serves
# program: ferrocx-cxctl cxctl
# release: ferrocx-nvmf-target nvmf-target
# timeout: 1800
# instructions: yes
# shellcheck shell=bash source=scripts/lab/nvmf.sh source-path=SCRIPTDIR
source /host/lab/nvmf.sh
# shellcheck source=scripts/lab/two-ports.sh source-path=SCRIPTDIR
source /host/lab/two-ports.sh

readonly RUN_SECONDS=5
# Rows of the table: what is read or written, bytes, depth.
readonly CASES=(
    'randread 4k 1' 'randwrite 4k 1' 'randrw 4k 1'
    'randread 4k 32' 'randwrite 4k 32' 'randrw 4k 32'
    'read 1M 4' 'write 1M 4'
)

# spent: microseconds that the host's core and the target's were not idle, and then, of each, the
# instructions that it executed in the kernel and in programs.
spent() {
    {
        awk '/^cpu[01] / { print ($2 + $3 + $4 + $7 + $8) * 10000 }' /proc/stat
        od -A n -t u8 -N 32 /host/instructions
    } | tr '\n' ' '
}

# interrupts_on CORE DEVICE: all of them.
interrupts_on() {
    local irq
    for irq in /sys/bus/pci/devices/"$2"/msi_irqs/*; do
        echo "$1" >"/proc/irq/${irq##*/}/smp_affinity_list" 2>/dev/null
    done
    return 0
}

# row TARGET CASE BEFORE AFTER: what fio says of a case, for what was spent before and after it.
row() {
    python3 - "$@" <<'PY'
import json
import sys

target, case, before, after = sys.argv[1:]
job = json.load(open('/run/fio.json'))['jobs'][0]
both = [job['read'], job['write']]
count = sum(it['total_ios'] for it in both)
(host, core, host_kernel, host_programs, core_kernel, core_programs) = (
    (b - a) / count for a, b in zip(map(int, before.split()), map(int, after.split())))
print(json.dumps({
    'target': target, 'case': case, 'iops': sum(it['iops'] for it in both),
    'mean_us': sum(it['clat_ns']['mean'] * it['total_ios'] for it in both) / count / 1000,
    'p99_us': max(it['clat_ns'].get('percentile', {}).get('99.000000', 0) for it in both) / 1000,
    'host_us': host, 'target_us': core, 'host_instructions': host_kernel + host_programs,
    'core_kernel': core_kernel, 'core_programs': core_programs}))
PY
}

# measured TARGET: every case on the disk that is connected; a line of JSON each.
measured() {
    local target=$1 case kind size depth before after
    interrupts_on 0 0000:01:00.0
    for case in "${CASES[@]}"; do
        read -r kind size depth <<<"$case"
        step "$target: $kind, $size, depth $depth"
        before=$(spent)
        fio --name=case --filename="$(disk 1)" --ioengine=libaio --direct=1 --rw="$kind" \
            --bs="$size" --iodepth="$depth" --size=32M --time_based --runtime="$RUN_SECONDS" \
            --cpus_allowed=0 --norandommap --randrepeat=1 --output-format=json \
            --output=/run/fio.json || fail "fio $case"
        after=$(spent)
        row "$target" "$kind $size $depth" "$before" "$after" >>/host/rows || fail "$case"
    done
}

# ours WAIT: our target on core 1, which waits so when it has nothing to do.
ours() {
    WAIT=$1
    # All else stays on core 0, whose instructions are the host's.
    taskset -pc 0,1 $$ >&2
    start_target
    taskset -pc 0 $$ >&2
    interrupts_on 1 "$OURS"
    connect -i 1 -w "$THEIRS_AT"
    measured "ours, $1"
    must nvme disconnect -n "$NQN"
    stop_target TERM
}

# The second port goes to the kernel, whose target offers as much RAM under the same name.
offer_by_the_kernel() {
    local devs dev
    echo "$OURS" >/sys/bus/pci/drivers/vfio-pci/unbind
    echo >"/sys/bus/pci/devices/$OURS/driver_override"
    echo "$OURS" >/sys/bus/pci/drivers_probe
    load_rdma 2
    read -ra devs <<<"$(mlx5_netdevs | tr '\n' ' ')"
    for dev in "${devs[@]}"; do
        must ip addr flush dev "$dev"
        must ip link set "$dev" mtu 4300
    done
    wire_ports "${devs[0]}" "$THEIRS_AT" "${devs[1]}" "$OURS_AT"
    interrupts_on 1 "$OURS"
    nvmet_at "$OURS_AT"
}

ready_for_nvmf
configure 'cores = [1]' <<TOML
[[subsystem.namespace]]
size = "64MiB"
TOML
ours busy
ours sleep
ours sleep:200
ours interrupt
ours interrupt:1000
offer_by_the_kernel
connect -i 1 -w "$THEIRS_AT"
measured nvmet
must nvme disconnect -n "$NQN"
python3 - <<'PY' | tee /host/results
import json

rows = [json.loads(line) for line in open('/host/rows')]
print(f"{'':66}{'us not idle':>16}{'instructions of the':>30}")
print(f"{'case':18}{'target':20}{'IOPS':>8}{'mean us':>10}{'p99 us':>10}{'host':>8}{'target':>8}"
      f"{'host':>10}{'target':>10}{'programs':>10}")
for row in sorted(rows, key=lambda row: row['case']):
    print(f"{row['case']:18}{row['target']:20}{row['iops']:8.0f}{row['mean_us']:10.0f}"
          f"{row['p99_us']:10.0f}{row['host_us']:8.0f}{row['target_us']:8.0f}"
          f"{row['host_instructions']:10.0f}{row['core_kernel'] + row['core_programs']:10.0f}"
          f"{row['core_programs']:10.0f}")
PY
check_dmesg
verdict
