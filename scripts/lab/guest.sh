# Sourced by vm-lab: starts the model and a guest, and clears both away.
# shellcheck shell=bash
# Uses root, lab, cache, SKIP and the functions of vm-lab, and QEMU and IMAGE of build.sh.
: "${root:?}" "${lab:?}" "${cache:?}"

RUN=''          # results of this run
SOCKETS=''      # short path: a Unix socket's name has at most 107 characters
PIDS=()
MODEL=''        # pid of the model
CXCTL=''        # the program that runs it
MONITOR=no      # whether the guest may ask for what only the host can do

cleanup() {
    local pid
    for pid in "${PIDS[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${PIDS[@]}"; do wait "$pid" 2>/dev/null || true; done
    [ -z "$SOCKETS" ] || rm -rf "$SOCKETS"
}

new_run() {
    local keep=${FERROCX_LAB_KEEP:-10}
    mkdir -p "$cache/runs"
    # Oldest first; names begin with the time.
    find "$cache/runs" -mindepth 1 -maxdepth 1 -type d | sort | head -n "-$keep" |
        while read -r old; do rm -rf "$old"; done
    RUN=$(mktemp -d "$cache/runs/$(date +%Y%m%d-%H%M%S)-$1.XXXX")
    SOCKETS=$(mktemp -d "${TMPDIR:-/tmp}/ferrocx-lab.XXXXXX")
    trap cleanup EXIT
    trap 'exit 130' INT TERM
    cp -r "$lab" "$RUN/lab"
}

# The path of a cxctl, built if need be.
find_cxctl() {
    if [ -n "${FERROCX_CXCTL:-}" ]; then
        printf '%s\n' "$FERROCX_CXCTL"
        return
    fi
    command -v cargo >/dev/null || skip "cargo is missing and FERROCX_CXCTL names no cxctl"
    # The guest is emulated and sets the pace; the debug build checks the model's own arithmetic.
    nice cargo build --quiet --manifest-path "$root/Cargo.toml" -p ferrocx-cxctl >&2 ||
        die "cxctl does not build"
    printf '%s/debug/cxctl\n' "${CARGO_TARGET_DIR:-$root/target}"
}

# add_example PACKAGE NAME: builds an example of the workspace and puts it into the run's folder.
add_example() {
    command -v cargo >/dev/null || skip "cargo is missing and the scenario needs example $2"
    nice cargo build --quiet --manifest-path "$root/Cargo.toml" -p "$1" --example "$2" >&2 ||
        die "example $2 does not build"
    give "${CARGO_TARGET_DIR:-$root/target}/debug/examples/$2"
}

# give PROGRAM: puts it into the run's folder, without what only a debugger reads: a guest takes
# seconds for each ten megabytes.
give() { strip -o "$RUN/$(basename "$1")" "$1" 2>/dev/null || cp "$1" "$RUN/"; }

# add_programs [PACKAGE NAME]...: builds programs of the workspace, and puts them into the run's
# folder.
add_programs() {
    while [ $# -gt 1 ]; do
        add_program "$1" "$2"
        shift 2
    done
}

# add_program PACKAGE NAME: one of them.
add_program() {
    command -v cargo >/dev/null || skip "cargo is missing and the scenario needs $2"
    nice cargo build --quiet --manifest-path "$root/Cargo.toml" -p "$1" --bin "$2" >&2 ||
        die "$2 does not build"
    give "${CARGO_TARGET_DIR:-$root/target}/debug/$2"
}

# start_model PORTS [option...]: a model process with one socket per port.
start_model() {
    local ports=$1 cxctl port sockets=() deadline; shift
    cxctl=$(find_cxctl)
    for ((port = 0; port < ports; port++)); do sockets+=(--socket "$SOCKETS/port$port"); done
    CXCTL=$cxctl
    "$CXCTL" -v model serve "${sockets[@]}" --status "$SOCKETS/status" \
        --control "$SOCKETS/control" "$@" \
        >"$RUN/model.log" 2>&1 &
    MODEL=$!
    PIDS+=("$MODEL")
    deadline=$((SECONDS + 10))
    for ((port = 0; port < ports; port++)); do
        until [ -S "$SOCKETS/port$port" ]; do
            if ! kill -0 "$MODEL" 2>/dev/null; then
                cat "$RUN/model.log" >&2
                die "the model did not start"
            fi
            [ $SECONDS -lt $deadline ] || die "the model opened no socket; see $RUN/model.log"
            sleep 0.05
        done
    done
}

# Ends the model in good order; it must do so itself, and say nothing of a defect.
stop_model() {
    local status=0
    "$CXCTL" model status "$SOCKETS/status" >"$RUN/model.json" 2>>"$RUN/model.log" || true
    kill -0 "$MODEL" 2>/dev/null || status=1
    kill "$MODEL" 2>/dev/null || true
    wait "$MODEL" || status=$?
    [ "$status" -eq 0 ] && return
    echo "the model ended with $status; see model.log" >>"$RUN/reason"
    echo 1 >"$RUN/status"
}

# judge_counts COUNTER...: counters of the model that some port must have moved.
judge_counts() {
    local name
    for name in "$@"; do
        grep -qE "\"$name\": [1-9]" "$RUN/model.json" && continue
        echo "$name is 0 in model.json" >>"$RUN/reason"
        echo 1 >"$RUN/status"
    done
}

# The model refused nothing. A driver that is shut down may acknowledge a last event after its
# device has gone.
judge_refusals() {
    local refused
    refused=$(grep ' WARN .*refused' "$RUN/model.log" |
        grep -vc 'doorbell on a page that is not allocated') || return 0
    echo "the model refused $refused time(s); see model.log" >>"$RUN/reason"
    echo 1 >"$RUN/status"
}

# tshark finds nothing wrong with any frame, its checksums included.
judge_capture() {
    local wrong
    if ! command -v tshark >/dev/null; then
        say "tshark is missing: the capture is not judged"
        return
    fi
    # tshark 4.0 takes payloads of a few bytes for RPC over RDMA or Ethernet over InfiniBand, and
    # finds them too short for that.
    wrong=$(nice tshark -r "$RUN/wire.pcapng" --disable-heuristic rpcrdma_infiniband \
        --disable-heuristic eth_over_ib -o ip.check_checksum:TRUE \
        -o tcp.check_checksum:TRUE -o udp.check_checksum:TRUE \
        -o tcp.analyze_sequence_numbers:FALSE -o tcp.desegment_tcp_streams:FALSE \
        -Y '_ws.malformed || ip.checksum.status == 0 || tcp.checksum.status == 0 ||
            udp.checksum.status == 0 || icmp.checksum.status == 0' 2>"$RUN/tshark.log") || {
        echo "tshark could not read the capture; see tshark.log" >>"$RUN/reason"
        echo 1 >"$RUN/status"
    }
    judge_icrc "$(header "$name" wrong-icrcs 0)"
    [ -n "$wrong" ] || return 0
    printf '%s\n' "$wrong" >"$RUN/wrong-frames.log"
    echo "$(wc -l <"$RUN/wrong-frames.log") wrong frames; see wrong-frames.log" >>"$RUN/reason"
    echo 1 >"$RUN/status"
}

# judge_icrc WRONG: a second implementation of the ICRC agrees with every RoCE packet but so many,
# which the scenario spoils itself. tshark does not compute it.
judge_icrc() {
    if ! command -v python3 >/dev/null; then
        say "python3 is missing: the ICRCs of the capture are not judged"
        return
    fi
    nice python3 "$lab/icrc.py" "$RUN/wire.pcapng" "$1" >"$RUN/icrc.log" 2>&1 && return
    echo "$(tail -n 1 "$RUN/icrc.log"); see icrc.log" >>"$RUN/reason"
    echo 1 >"$RUN/status"
}

# device PORT: the properties of a port for QEMU, in JSON.
device() {
    # Behind a root port the function is a PCIe endpoint with a link, as on a mainboard.
    printf '{"driver":"vfio-user-pci","id":"port%s","bus":"root%s",' "$1" "$1"
    printf '"socket":{"type":"unix","path":"%s"}}' "$SOCKETS/port$1"
}

# qemu_command PORTS MEMORY CPUS IOMMU CMDLINE [KERNEL]: fills the array COMMAND.
qemu_command() {
    local ports=$1 memory=$2 cpus=$3 iommu=$4 cmdline=$5 port machine=q35,memory-backend=mem
    local kernel=$IMAGE/${6:-stable} extra=()
    # A kernel that is not of the image.
    [ -d "$kernel" ] || kernel=$cache/kernel-$6
    [ -s "$kernel/vmlinuz" ] || skip "there is no kernel $6; \`vm-lab kernel\` makes it"
    [ ! -s "$kernel/initrd.img" ] || extra+=(-initrd "$kernel/initrd.img")
    if [ "$MONITOR" = yes ]; then
        mkfifo "$SOCKETS/monitor.in" "$SOCKETS/monitor.out"
        extra+=(-chardev "pipe,id=monitor,path=$SOCKETS/monitor" -mon 'monitor,mode=control')
    fi
    [ ! -d "$kernel/modules" ] ||
        extra+=(-virtfs
            "local,path=$kernel/modules,mount_tag=modules,security_model=none,readonly=on")
    if [ "$iommu" = yes ]; then
        # With it the device sees only what the guest maps, as behind the IOMMU of a host.
        machine+=,kernel-irqchip=split
        extra+=(-device 'intel-iommu,intremap=on,caching-mode=on')
        cmdline="intel_iommu=on $cmdline"
    fi
    # shellcheck disable=SC2054 # commas are QEMU's
    COMMAND=("${QEMU[@]}" -M "$machine" "${extra[@]}" -cpu max
        -accel "${FERROCX_LAB_ACCEL:-tcg,thread=multi}" -m "$memory" -smp "$cpus"
        -object "memory-backend-memfd,id=mem,size=$memory,share=on"
        -nographic -nic none -vga none
        -kernel "$kernel/vmlinuz"
        -append "console=ttyS0 root=/dev/vda rw init=/lab-init panic=-1 loglevel=6 $cmdline"
        -drive "file=$IMAGE/guest.ext4,if=virtio,format=raw,snapshot=on"
        -virtfs "local,path=$RUN,mount_tag=host,security_model=none")
    for ((port = 0; port < ports; port++)); do
        COMMAND+=(-device "pcie-root-port,id=root$port,chassis=$((port + 1))"
            -device "$(device "$port")")
    done
}

# qmp COMMAND [ARGUMENTS]: tells QEMU's monitor, whose answers are in monitor.log.
qmp() {
    printf '{"execute":"%s","arguments":%s}\n' "$1" "${2:-{\}}" >"$SOCKETS/monitor.in"
}

open_monitor() {
    cat "$SOCKETS/monitor.out" >"$RUN/monitor.log" &
    PIDS+=($!)
    qmp qmp_capabilities
}

# Does what the guest asks for by ask_host, and says so by taking the question away.
attend() {
    local what argument more
    read -r what argument more <"$RUN/ask"
    case $what in
        unplug) qmp device_del '{"id":"'"$argument"'"}' ;;
        hmp) qmp human-monitor-command '{"command-line":"'"$argument $more"'"}' ;;
        counts) "$CXCTL" model status "$SOCKETS/status" >"$RUN/counts.json" ;;
        vanish | return) "$CXCTL" model "$what" "$SOCKETS/control" "port$argument" ;;
        *) echo "the guest asked for '$what'" >>"$RUN/reason" ;;
    esac
    rm "$RUN/ask"
}

# The lines of the model's log that say what it refused, most telling part of a failed run.
refusals() {
    grep -E 'WARN|ERROR' "$RUN/model.log" 2>/dev/null | head -n 20 || true
}

run_scenario() {
    local name=$1 ports status=0 limit options reason guest
    SECONDS=0
    new_run "$name"
    echo "$name" >"$RUN/scenario"
    ports=$(header "$name" ports 0)
    limit=${FERROCX_LAB_TIMEOUT:-$(header "$name" timeout 300)}
    read -ra options <<<"$(header "$name" model '')"
    [ "$(header "$name" capture no)" = no ] || options+=(--capture "$RUN/wire.pcapng")
    [ "$ports" -eq 0 ] || start_model "$ports" "${options[@]}"
    read -ra options <<<"$(header "$name" program '')"
    add_programs "${options[@]}"
    read -ra options <<<"$(header "$name" example '')"
    [ ${#options[@]} -eq 0 ] || add_example "${options[@]}"
    MONITOR=$(header "$name" monitor no)
    qemu_command "$ports" "$(header "$name" memory 1G)" "$(header "$name" cpus 2)" \
        "$(header "$name" iommu no)" "$(header "$name" cmdline '')" \
        "$(header "$name" kernel stable)"
    read -ra options <<<"$(header "$name" qemu '')"
    COMMAND+=("${options[@]}")
    say "$name: started, results in $RUN"
    "${COMMAND[@]}" </dev/null >"$RUN/console.log" 2>&1 &
    guest=$!
    PIDS+=("$guest")
    [ "$MONITOR" = no ] || open_monitor
    wait_for "$guest" "$limit" || echo "the guest did not finish in $limit s" >>"$RUN/reason"
    [ -z "$MODEL" ] || stop_model
    [ "$(header "$name" refusals any)" != none ] || judge_refusals
    [ ! -e "$RUN/wire.pcapng" ] || judge_capture
    read -ra options <<<"$(header "$name" counts '')"
    judge_counts "${options[@]}"
    [ -s "$RUN/status" ] && status=$(cat "$RUN/status") || status=1
    [ -s "$RUN/reason" ] || [ "$status" -eq 0 ] ||
        echo 'see guest.log and console.log' >"$RUN/reason"
    reason=$(cat "$RUN/reason" 2>/dev/null || true)
    case $status in
        0) say "$name: passed ($SECONDS s)" ;;
        "$SKIP") say "$name: skipped: $reason" ;;
        *) report_failure "$name" "$reason"; status=1 ;;
    esac
    exit "$status"
}

report_failure() {
    say "$1: FAILED: $2"
    [ ! -s "$RUN/guest.log" ] || tail -n 25 "$RUN/guest.log" >&2
    [ -s "$RUN/guest.log" ] || tail -n 25 "$RUN/console.log" >&2
    refusals >&2
    say "all logs: $RUN"
}

# wait_for PID SECONDS: false if the process had to be ended.
wait_for() {
    local deadline=$((SECONDS + $2))
    while kill -0 "$1" 2>/dev/null; do
        if [ $SECONDS -ge $deadline ]; then
            kill "$1" 2>/dev/null || true
            wait "$1" 2>/dev/null || true
            return 1
        fi
        if [ "$MONITOR" = no ]; then
            sleep 0.2
        else
            # What a guest asks for is part of what it measures.
            [ ! -e "$RUN/ask" ] || attend
            sleep 0.05
        fi
    done
    wait "$1" 2>/dev/null || true
}

run_shell() {
    [ -t 0 ] || die "shell needs a terminal"
    new_run shell
    touch "$RUN/interactive"
    [ "$1" -eq 0 ] || start_model "$1"
    qemu_command "$1" 1G 2 no 'modprobe.blacklist=mlx5_core,mlx5_ib'
    say "results in $RUN, /host in the guest; leave with exit, or Ctrl-A X"
    "${COMMAND[@]}"
}
