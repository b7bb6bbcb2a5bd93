# about: our NVMe over RDMA target beside the kernel's, nvmet-rdma: rate, latency, instructions
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

readonly THEIRS=0000:01:00.0 RUN_SECONDS=5
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

# work HOST KIND SIZE DEPTH: a case of the kernel's host, with fio, or of ours.
work() {
    local rw=${2#rand}
    case $1 in
        linux)
            fio --name=case --filename="$(disk 1)" --ioengine=libaio --direct=1 --rw="$2" \
                --bs="$3" --iodepth="$4" --size=32M --time_based --runtime="$RUN_SECONDS" \
                --norandommap --randrepeat=1 --output-format=json --output=/run/case.json
            ;;
        ours)
            timeout 120 /run/nvmf-target bench "$OURS_AT:4420" --nqn "$NQN" --device "$THEIRS" \
                --address "$THEIRS_AT/24" --mtu 4300 --rw "${rw/#rw/mixed}" \
                --size "${3/k/K}iB" --depth "$4" --seconds "$RUN_SECONDS" --json >/run/case.json
            ;;
    esac
}

# row HOST TARGET CASE BEFORE AFTER: what is said of a case, for what was spent before and after it.
row() {
    python3 - "$@" <<'PY'
import json
import sys

host, target, case, before, after = sys.argv[1:]
said = json.load(open('/run/case.json'))
if host == 'linux':
    both = [said['jobs'][0]['read'], said['jobs'][0]['write']]
    count, iops = (sum(it[name] for it in both) for name in ('total_ios', 'iops'))
    p50, p99 = (max(it['clat_ns'].get('percentile', {}).get(name, 0) for it in both) / 1000
                for name in ('50.000000', '99.000000'))
else:
    count, iops, p50, p99 = said['commands'], said['iops'], said['us']['p50'], said['us']['p99']
us, core_us, host_kernel, host_programs, kernel, programs = (
    (b - a) / count for a, b in zip(map(int, before.split()), map(int, after.split())))
print(json.dumps({
    'host': host, 'target': target, 'case': case, 'iops': iops, 'p50_us': p50, 'p99_us': p99,
    'host_us': us, 'target_us': core_us, 'host_instructions': host_kernel + host_programs,
    'kernel': kernel, 'programs': programs}))
PY
}

# measured HOST TARGET: every case on what is connected; a line of JSON each.
measured() {
    local case kind size depth before after
    for case in "${CASES[@]}"; do
        read -r kind size depth <<<"$case"
        step "host $1, $2: $kind, $size, depth $depth"
        before=$(spent)
        work "$1" "$kind" "$size" "$depth" || fail "$case of $1"
        after=$(spent)
        row "$1" "$2" "$kind $size $depth" "$before" "$after" >>/host/rows || fail "$case of $1"
    done
}

# with_host HOST TARGET: every case of one host; Linux's is connected for them.
with_host() {
    [ "$1" = ours ] || {
        interrupts_on 0 "$THEIRS"
        connect -i 1 -w "$THEIRS_AT"
    }
    measured "$1" "$2"
    [ "$1" = ours ] || must nvme disconnect -n "$NQN"
}

# ours HOST WAIT: our target on core 1, which waits so when it has nothing to do.
ours() {
    WAIT=$2
    # All else stays on core 0, whose instructions are the host's.
    taskset -pc 0,1 $$ >&2
    start_target
    taskset -pc 0 $$ >&2
    interrupts_on 1 "$OURS"
    with_host "$1" "ours, $2"
    stop_target TERM
}

# give DEVICE [DRIVER]: to this driver, or to the kernel's own.
give() {
    step "$1 to ${2:-mlx5_core}"
    echo "$1" >"/sys/bus/pci/devices/$1/driver/unbind"
    echo "${2-}" >"/sys/bus/pci/devices/$1/driver_override"
    echo "$1" >/sys/bus/pci/drivers_probe
}

# Both ports go to the kernel, whose target offers as much RAM under the same name.
offer_by_the_kernel() {
    local port devs=()
    give "$THEIRS"
    give "$OURS"
    load_rdma 2
    for port in "$THEIRS" "$OURS"; do
        devs+=("$(ls "/sys/bus/pci/devices/$port/net")")
        must ip addr flush dev "${devs[-1]}"
        must ip link set "${devs[-1]}" mtu 4300
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
for wait in busy sleep sleep:200 interrupt interrupt:1000; do ours linux "$wait"; done
must /host/cxctl hugepages reserve 192 --apply
give "$THEIRS" vfio-pci
for wait in busy interrupt; do ours ours "$wait"; done
offer_by_the_kernel
with_host linux nvmet
give "$THEIRS" vfio-pci
with_host ours nvmet
python3 - <<'PY' | tee /host/results
import json

rows = [json.loads(line) for line in open('/host/rows')]
print(f"{'':64}{'us not idle':>16}{'instructions of the':>30}")
print(f"{'case':16}{'host':7}{'target':17}{'IOPS':>8}{'p50 us':>8}{'p99 us':>8}{'host':>8}"
      f"{'target':>8}{'host':>10}{'target':>10}{'programs':>10}")
for row in sorted(rows, key=lambda row: (row['case'], row['host'])):
    print(f"{row['case']:16}{row['host']:7}{row['target']:17}{row['iops']:8.0f}"
          f"{row['p50_us']:8.0f}{row['p99_us']:8.0f}{row['host_us']:8.0f}{row['target_us']:8.0f}"
          f"{row['host_instructions']:10.0f}{row['kernel'] + row['programs']:10.0f}"
          f"{row['programs']:10.0f}")
PY
check_dmesg
verdict
