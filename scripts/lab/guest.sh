# Sourced by vm-lab: starts the model and a guest, and clears both away.
# shellcheck shell=bash
# Uses root, lab, cache, SKIP and the functions of vm-lab, and QEMU and IMAGE of build.sh.
: "${root:?}" "${lab:?}" "${cache:?}"

# Seconds that a guest may take to boot; to undo what a scenario did, or to power off. A machine
# that emulates several guests at once takes tens of them for either.
readonly BOOT_LIMIT=240 CLEAN_LIMIT=180

RUN=''          # folder of this boot; each scenario has one of its own in it
SOCKETS=''      # short path: a Unix socket's name has at most 107 characters
PIDS=()
MODEL=''        # pid of the model
GUEST=''        # pid of QEMU
CXCTL=''        # the program that runs it
QMP=''          # file descriptor of QEMU's monitor, once something was asked of it
DEADLINE=0      # when the guest counts as hung, in seconds of this process
REST=()         # scenarios that the last boot did not come to
# The scenario that the guest is at: its name, its folder, when it began, and what the model had
# logged and captured by then.
CURRENT='' DIR='' BEGUN=0 LOG_FROM=0 CAPTURE_FROM=0
# What the model has logged and captured by now; bytes of the capture in front of its first frame.
LOG_SIZE=0 CAPTURE_SIZE=0 CAPTURE_HEADER=0

cleanup() {
    local pid
    for pid in "${PIDS[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${PIDS[@]}"; do wait "$pid" 2>/dev/null || true; done
    [ -z "$SOCKETS" ] || rm -rf "$SOCKETS"
    [ -z "$QMP" ] || exec {QMP}>&-
    PIDS=() SOCKETS='' MODEL='' QMP=''
}

new_run() {
    local keep=${FERROCX_LAB_KEEP:-20}
    mkdir -p "$cache/runs"
    # Oldest first; names begin with the time.
    find "$cache/runs" -mindepth 1 -maxdepth 1 -type d | sort | head -n "-$keep" |
        while read -r old; do rm -rf "$old"; done
    RUN=$(mktemp -d "$cache/runs/$(date +%Y%m%d-%H%M%S)-$1.XXXX")
    SOCKETS=$(mktemp -d "${TMPDIR:-/tmp}/ferrocx-lab.XXXXXX")
    trap cleanup EXIT
    trap 'exit 130' INT TERM
    cp -r "$lab" "$RUN/lab"
    cp "$root"/scripts/rdma/suite{.py,-56.expected} "$RUN/lab"
    printf '%s\n' "FERROCX_DPDK_PACKETS=${FERROCX_DPDK_PACKETS:-0}" \
        "FERROCX_PYVERBS=${FERROCX_PYVERBS:-}" "FERROCX_NVMF_AUTH=${FERROCX_NVMF_AUTH:-}" \
        "FERROCX_STOCK=${FERROCX_STOCK:-}" \
        >"$RUN/lab/settings"
    [ -z "${FERROCX_BLKTESTS:-}" ] ||
        tar -C "$FERROCX_BLKTESTS" --exclude=.git -cf "$RUN/lab/blktests.tar" .
}

# Sets CXCTL, which is built if need be.
find_cxctl() {
    CXCTL=${FERROCX_CXCTL:-}
    # The guest is emulated and sets the pace; the debug build checks the model's own arithmetic.
    [ -n "$CXCTL" ] || built CXCTL dev ferrocx-cxctl bin cxctl
}

# built VARIABLE PROFILE PACKAGE KIND NAME: stores the path of a program of the workspace.
built() {
    command -v cargo >/dev/null || skip "cargo is missing and the scenario needs $5"
    program "$@" || die "$5 does not build"
}

# give PROGRAM: puts it into the scenario's folder, without what only a debugger reads: a guest
# takes seconds for each ten megabytes. Scenarios of one boot share the file.
give() {
    local shared
    shared=$RUN/programs/$(basename "$1")
    mkdir -p "$RUN/programs"
    [ -e "$shared" ] || strip -o "$shared" "$1" 2>/dev/null || cp "$1" "$shared"
    ln "$shared" "$DIR/"
}

# add PROFILE KIND [PACKAGE NAME]...: builds programs, examples or libraries of the workspace, and
# puts them into the scenario's folder.
add() {
    local profile=$1 kind=$2 path
    shift 2
    while [ $# -gt 1 ]; do
        built path "$profile" "$1" "$kind" "$2"
        give "$path"
        shift 2
    done
}

# start_model PORTS [option...]: a model process with one socket per port.
start_model() {
    local ports=$1 port sockets=() deadline; shift
    find_cxctl
    for ((port = 0; port < ports; port++)); do sockets+=(--socket "$SOCKETS/port$port"); done
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
    kill -0 "$MODEL" 2>/dev/null || status=1
    kill "$MODEL" 2>/dev/null || true
    wait "$MODEL" || status=$?
    [ "$status" -eq 0 ] && return
    blame "the model ended with $status; see model.log"
}

# blame REASON: the scenario has failed, whatever it says.
blame() {
    echo "$1" >>"$DIR/reason"
    echo 1 >"$DIR/status"
}

# sum_of COUNTER FILE: of all ports, as the model told at some time.
sum_of() {
    awk -F '[:,]' -v name="\"$1\"" '$1 ~ name { sum += $2 } END { print sum + 0 }' "$DIR/$2.json"
}

# judge_counts COUNTER...: counters of the model that some port must have moved.
judge_counts() {
    local name
    for name in "$@"; do
        [ "$(sum_of "$name" before)" = "$(sum_of "$name" model)" ] || continue
        blame "$name did not move, see before.json and model.json"
    done
}

# The model refused nothing.
judge_refusals() {
    local refused
    refused=$(grep -c ' WARN .*refused' "$DIR/model.log") || return 0
    blame "the model refused $refused time(s); see model.log"
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
    wrong=$(nice tshark -r "$DIR/wire.pcapng" --disable-heuristic rpcrdma_infiniband \
        --disable-heuristic eth_over_ib -o ip.check_checksum:TRUE \
        -o tcp.check_checksum:TRUE -o udp.check_checksum:TRUE \
        -o tcp.analyze_sequence_numbers:FALSE -o tcp.desegment_tcp_streams:FALSE \
        -Y '_ws.malformed || ip.checksum.status == 0 || tcp.checksum.status == 0 ||
            udp.checksum.status == 0 || icmp.checksum.status == 0' 2>"$DIR/tshark.log") || {
        blame "tshark could not read the capture; see tshark.log"
    }
    judge_icrc "$(header "$CURRENT" wrong-icrcs 0)"
    [ -n "$wrong" ] || return 0
    printf '%s\n' "$wrong" >"$DIR/wrong-frames.log"
    blame "$(wc -l <"$DIR/wrong-frames.log") wrong frames; see wrong-frames.log"
}

# judge_icrc WRONG: a second implementation of the ICRC agrees with every RoCE packet but so many,
# which the scenario spoils itself. tshark does not compute it.
judge_icrc() {
    if ! command -v python3 >/dev/null; then
        say "python3 is missing: the ICRCs of the capture are not judged"
        return
    fi
    nice python3 "$lab/icrc.py" "$DIR/wire.pcapng" "$1" >"$DIR/icrc.log" 2>&1 && return
    blame "$(tail -n 1 "$DIR/icrc.log"); see icrc.log"
}

# device PORT: the properties of a port for QEMU, in JSON.
device() {
    # Behind a root port the function is a PCIe endpoint with a link, as on a mainboard.
    printf '{"driver":"vfio-user-pci","id":"port%s","bus":"root%s",' "$1" "$1"
    printf '"socket":{"type":"unix","path":"%s"}}' "$SOCKETS/port$1"
}

# All that QEMU emulates, but what costs an emulator more than it gives the guest: with erms and
# fsrm the kernel clears and copies pages byte by byte; each change of protection keys empties the
# TLB, as between a program and a kernel thread; smap ends a translated block at each access to a
# program's memory, xsave, mpx and what AVX has make more registers to save at each change of
# tasks, and la57 a fifth level of page tables.
readonly CPU=max,erms=off,fsrm=off,pku=off,smap=off,mpx=off,la57=off,avx=off,avx2=off,xsave=off

# What an emulated machine does without. Its processors speculate about nothing that a kernel would
# have to hide. They have one counter of time; held against an HPET that waited for its turn it
# counts as unstable, and every look at a clock asks the HPET from then on. Waits for RCU are told
# to other processors instead of waited out. Large pages stay: without them a device behind the
# IOMMU has a mapping for each page of a program's, more than the model takes.
readonly CMDLINE='mitigations=off tsc=reliable rcupdate.rcu_expedited=1'

# qemu_command PORTS MEMORY CPUS IOMMU CMDLINE [KERNEL]: fills the array COMMAND. The drivers that a
# scenario loads itself are not loaded at boot.
qemu_command() {
    local ports=$1 memory=$2 cpus=$3 iommu=$4 cmdline=$5 port machine=q35,memory-backend=mem
    local kernel=$IMAGE/${6:-stable} extra=()
    cmdline="modprobe.blacklist=mlx5_core,mlx5_ib $CMDLINE $cmdline"
    # A kernel that is not of the image.
    [ -d "$kernel" ] || kernel=$cache/kernel-$6
    [ -s "$kernel/vmlinuz" ] || skip "there is no kernel $6; \`vm-lab kernel\` makes it"
    [ ! -s "$kernel/initrd.img" ] || extra+=(-initrd "$kernel/initrd.img")
    mkfifo "$SOCKETS/monitor.in" "$SOCKETS/monitor.out"
    extra+=(-chardev "pipe,id=monitor,path=$SOCKETS/monitor" -mon 'monitor,mode=control')
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
    COMMAND=("${QEMU[@]}" -name lab,debug-threads=on -M "$machine" "${extra[@]}" -cpu "$CPU"
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

# QEMU counts what the guest's cores execute, in a file of the scenario, "instructions".
count_instructions() {
    need cc gcc libc6-dev
    cc -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden \
        -o "$RUN/instructions.so" "$lab/instructions.c" || die "instructions.c: cc failed"
    COMMAND+=(-plugin "$RUN/instructions.so,counts=$DIR/instructions")
}

# qmp COMMAND [ARGUMENTS]: tells QEMU's monitor, whose answers are in monitor.log.
qmp() {
    if [ -z "$QMP" ]; then
        exec {QMP}<>"$SOCKETS/monitor.in"
        cat "$SOCKETS/monitor.out" >"$RUN/monitor.log" &
        PIDS+=($!)
        printf '{"execute":"qmp_capabilities"}\n' >&"$QMP"
    fi
    printf '{"execute":"%s","arguments":%s}\n' "$1" "${2:-{\}}" >&"$QMP"
}

# attend FOLDER: does what the guest asks for in a file there, and says so by taking it away. A
# scenario asks by ask_host, guest-main for `begin NAME` and `ran NAME`.
attend() {
    local what argument more
    read -r what argument more <"$1/ask"
    case $what in
        begin) begin_scenario "$argument" ;;
        ran)
            model_status "$DIR/model.json"
            DEADLINE=$((SECONDS + CLEAN_LIMIT))
            ;;
        unplug) qmp device_del '{"id":"'"$argument"'"}' ;;
        hmp) qmp human-monitor-command '{"command-line":"'"$argument $more"'"}' ;;
        counts) model_status "$1/counts.json" ;;
        vanish | return) "$CXCTL" model "$what" "$SOCKETS/control" "port$argument" ;;
        *) echo "the guest asked for '$what'" >>"$1/reason" ;;
    esac
    rm "$1/ask"
}

# model_status FILE: what the model counts; by then what it captured is in its file, too.
model_status() {
    [ -z "$MODEL" ] || "$CXCTL" model status "$SOCKETS/status" >"$1" 2>>"$RUN/model.log" || true
}

# Sets LOG_SIZE and CAPTURE_SIZE to what the model has logged and captured by now.
measure_logs() {
    [ ! -e "$RUN/model.log" ] || LOG_SIZE=$(stat -c %s "$RUN/model.log")
    [ ! -e "$RUN/wire.pcapng" ] || CAPTURE_SIZE=$(stat -c %s "$RUN/wire.pcapng")
}

# cut_out FROM TO FILE: these bytes of it.
cut_out() {
    dd if="$3" iflag=skip_bytes,count_bytes skip="$1" count=$(($2 - $1)) bs=1M status=none
}

# begin_scenario NAME: the guest is about to begin it, or goes on with it after a reboot.
begin_scenario() {
    [ "$1" != "$CURRENT" ] || return 0
    [ -z "$CURRENT" ] || end_scenario
    CURRENT=$1 DIR=$RUN/$1 BEGUN=$SECONDS
    model_status "$DIR/before.json"
    measure_logs
    LOG_FROM=$LOG_SIZE CAPTURE_FROM=$CAPTURE_SIZE
    DEADLINE=$((SECONDS + ${FERROCX_LAB_TIMEOUT:-$(header "$1" timeout 300)}))
    say "$1: started, results in $DIR"
}

# Judges the current scenario: by what the guest says, and by what the model has logged, captured
# and counted meanwhile.
end_scenario() {
    local options status reason verdict
    # Also writes what is captured, if the model still runs.
    model_status /dev/null
    measure_logs
    if [ -e "$RUN/model.log" ]; then
        cut_out "$LOG_FROM" "$LOG_SIZE" "$RUN/model.log" >"$DIR/model.log"
        [ "$(header "$CURRENT" refusals any)" != none ] || judge_refusals
        read -ra options <<<"$(header "$CURRENT" counts '')"
        judge_counts "${options[@]}"
    fi
    if [ "$(header "$CURRENT" capture no)" = yes ]; then
        cut_out 0 "$CAPTURE_HEADER" "$RUN/wire.pcapng" >"$DIR/wire.pcapng"
        cut_out "$CAPTURE_FROM" "$CAPTURE_SIZE" "$RUN/wire.pcapng" >>"$DIR/wire.pcapng"
        judge_capture
    fi
    [ -s "$DIR/status" ] && status=$(cat "$DIR/status") || status=1
    [ -s "$DIR/reason" ] || [ "$status" -eq 0 ] ||
        echo 'see guest.log and console.log' >"$DIR/reason"
    reason=$(cat "$DIR/reason" 2>/dev/null || true)
    case $status in
        0) verdict=passed; say "$CURRENT: passed ($((SECONDS - BEGUN)) s)" ;;
        "$SKIP") verdict=skipped; say "$CURRENT: skipped: $reason" ;;
        *) verdict=failed; report_failure "$reason" ;;
    esac
    # What keeps the guest from serving another scenario fails none: the next one gets a new guest.
    [ ! -s "$DIR/left" ] || say "$CURRENT left behind: $(paste -s -d ',' "$DIR/left")"
    echo "$verdict $CURRENT" >>"$FERROCX_LAB_TALLY"
    CURRENT=''
}

report_failure() {
    say "$CURRENT: FAILED: $1"
    if [ -s "$DIR/guest.log" ]; then
        tail -n 25 "$DIR/guest.log" >&2
    else
        tail -n 25 "$RUN/console.log" >&2
    fi
    # The lines of the model's log that say what it refused: most telling part of a failed run.
    grep -sE 'WARN|ERROR' "$DIR/model.log" | head -n 20 >&2 || true
    say "all logs: $DIR and $RUN"
}

# run_boot NAME...: scenarios of one machine, in one boot of it. Those that this boot did not come
# to, because one before them failed or left something behind, are in REST.
run_boot() {
    local name
    start_machine "$@"
    "${COMMAND[@]}" </dev/null >"$RUN/console.log" 2>&1 &
    GUEST=$!
    PIDS+=("$GUEST")
    DEADLINE=$((SECONDS + BOOT_LIMIT))
    wait_for "$GUEST" || {
        [ -n "$CURRENT" ] || begin_scenario "$1"
        blame "the guest did not answer any more; ended after $((SECONDS - BEGUN)) s"
    }
    [ -n "$CURRENT" ] || begin_scenario "$1" # the guest did not even boot
    [ -z "$MODEL" ] || stop_model
    end_scenario
    rm -f "$RUN/wire.pcapng"
    cleanup
    REST=()
    for name in "$@"; do [ -e "$RUN/$name/started" ] || REST+=("$name"); done
    # One that did not boot has had its chance.
    [ "${#REST[@]}" -lt $# ] || REST=("${@:2}")
}

# start_machine NAME...: the folders of a boot and what lies in them, the model, and COMMAND.
start_machine() {
    local name ports options capture=()
    new_run "$1$([ $# -eq 1 ] || echo "+$(($# - 1))")"
    printf '%s\n' "$@" >"$RUN/order"
    for name in "$@"; do
        DIR=$RUN/$name
        mkdir "$DIR"
        cp -rl "$RUN/lab" "$DIR/lab"
        read -ra options <<<"$(header "$name" program '')"
        add dev bin "${options[@]}"
        read -ra options <<<"$(header "$name" release '')"
        add release bin "${options[@]}"
        read -ra options <<<"$(header "$name" example '')"
        add dev example "${options[@]}"
        read -ra options <<<"$(header "$name" library '')"
        add dev lib "${options[@]}"
        [ "$(header "$name" capture no)" = no ] || capture=(--capture "$RUN/wire.pcapng")
    done
    ports=$(header "$1" ports 0)
    read -ra options <<<"$(header "$1" model '')"
    if [ "$ports" -gt 0 ]; then
        start_model "$ports" "${options[@]}" "${capture[@]}"
        model_status /dev/null
        measure_logs
        CAPTURE_HEADER=$CAPTURE_SIZE
    fi
    qemu_command "$ports" "$(header "$1" memory 2G)" "$(header "$1" cpus 2)" \
        "$(header "$1" iommu no)" "$(header "$1" cmdline '')" "$(header "$1" kernel stable)"
    read -ra options <<<"$(header "$1" qemu '')"
    COMMAND+=("${options[@]}")
    [ "$(header "$1" instructions no)" = no ] || count_instructions
    echo "boot $1" >>"$FERROCX_LAB_TALLY"
}

# wait_for PID: does what the guest asks for until its end; false if it had to be ended.
wait_for() {
    local tick
    mkfifo "$SOCKETS/tick"
    exec {tick}<>"$SOCKETS/tick"
    while kill -0 "$1" 2>/dev/null; do
        if [ $SECONDS -ge "$DEADLINE" ]; then
            kill "$1" 2>/dev/null || true
            wait "$1" 2>/dev/null || true
            exec {tick}>&-
            return 1
        fi
        [ ! -e "$RUN/ask" ] || attend "$RUN"
        [ ! -e "$DIR/ask" ] || attend "$DIR"
        # What a guest asks for is part of what it measures: look often, and without a process.
        read -rt 0.05 -u "$tick" || true
    done
    exec {tick}>&-
    wait "$1" 2>/dev/null || true
}

run_shell() {
    [ -t 0 ] || die "shell needs a terminal"
    new_run shell
    touch "$RUN/interactive"
    [ "$1" -eq 0 ] || start_model "$1"
    qemu_command "$1" 2G 2 no ''
    say "results in $RUN, /host in the guest; leave with exit, or Ctrl-A X"
    "${COMMAND[@]}"
}
