#!/usr/bin/env bash
# What our instructions cost: per case of benches/src/cases, instructions per element by callgrind
# (exact, independent of the machine) and TSC ns per element (of this machine, now).
set -euo pipefail

usage() {
    cat <<'EOF'
Usage: scripts/instructions.sh [--peers] [--json FILE] [CASE...]

Prints, for each case (default: all), instructions and ns per element. Each case runs under
callgrind, warm, and only the measured part is counted, not the device that is played around it.
Where libdpdk is installed, its packet buffers are measured in the same run and compared.

Limits are those of the issues that asked for them where they are met: buffers get+put at most 1.0
of rte_pktmbuf_alloc_bulk+free_bulk, rx_burst 64, rx_compressed 50, rx_one 60, tx_burst 40, tx_vlan
60, tx_tso 150, two segments 80, inlined copies of 60 bytes 110, requests of verbs 0.3 of libmlx5's,
tick_to_doorbell and every other tick of one message that ends in an order 1200. send_one_128 was to
be 60, and has 4 more since TCP's checksum gets the zero that is TCP's. All others are a little
above what the case came down to, so that none grows unnoticed. The last column has what libmlx5
takes for the same, counted once and noted here; with --peers, what libmlx5 and DPDK's driver take,
counted now by scripts/peers.sh.
The exit status is 1 if one is exceeded.

model_forward_64 counts the model, not the driver: a frame of 64 bytes in from its generator and out
to it again. docs/guide/src/tuning.md says what the verbs' rows consist of.

nvmf_read_N and nvmf_write_N, for batches of N commands of 4 KiB, count the target of
apps/nvmf-target with verbs and doorbells. The issue that asked for them allows 1500 a command of
one and 700 a command of 32. nvmf_atomic-read_1 and nvmf_atomic-write_1 are the same for RAM with
atomic = true, in blocks of 512 bytes.
EOF
}

json=
with_peers=
cases=()
while [ $# -gt 0 ]; do
    case "$1" in
        -h | --help) usage; exit 0 ;;
        --peers) with_peers=1 ;;
        --json) json=${2:?--json needs a file}; shift ;;
        -*) echo "instructions.sh: unknown option $1; see --help" >&2; exit 2 ;;
        *) cases+=("$1") ;;
    esac
    shift
done
if ! command -v valgrind >/dev/null; then
    echo "skipped: valgrind is not installed (apt install valgrind)"
    exit 77
fi

cd "$(dirname "$0")/.."
# shellcheck source=scripts/program.sh
source scripts/program.sh
program cost release ferrocx-benches bin cost
[ ${#cases[@]} -gt 0 ] ||
    mapfile -t cases < <("$cost" list && printf 'nvmf_%s\n' {read,write}_{1,32} \
        atomic-{read,write}_1)
nvmf=
[[ " ${cases[*]} " != *" nvmf_"* ]] ||
    program nvmf release ferrocx-nvmf-target example instructions

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# function_of CASE: the function whose instructions count. Of one frame at a time, and of verbs, it
# is the program's own call, to its return: neither the loop around it nor what becomes of the
# frame; of 32 requests or completions it is the function that has the loop over them, as libmlx5
# has it in a call. Of all others it is the measured part (benches/src/lib.rs).
function_of() {
    local verbs='ferrocx_benches::cases::verbs'
    case "$1" in
        send_one_*_stamped) echo 'ferrocx_benches::cases::one::send_one_stamped' ;;
        send_one_*) echo 'ferrocx_benches::cases::one::send_one' ;;
        rx_one*) echo 'ferrocx_benches::cases::queues::rx_one' ;;
        verbs_post_send_inline_8) echo "$verbs::send::post_eight" ;;
        verbs_post_send_inline_8_32) echo "$verbs::send::post_eight_run" ;;
        verbs_post_send_inline_*_32) echo "$verbs::send::post_inline_run" ;;
        verbs_post_send_inline_*) echo "$verbs::send::post_inline" ;;
        verbs_post_*recv_list_32) echo "$verbs::recv::post_list" ;;
        verbs_post_recv_32 | verbs_post_srq_recv_32) echo "$verbs::recv::post_all" ;;
        verbs_post_recv | verbs_post_srq_recv) echo "$verbs::recv::post_one" ;;
        verbs_post_opaque) echo "$verbs::send::post_opaque" ;;
        verbs_post_*_32) echo "$verbs::send::post_all" ;;
        verbs_post_*) echo "$verbs::send::post_one" ;;
        verbs_poll_cq) echo "$verbs::send::poll_one" ;;
        verbs_poll_cq_32 | verbs_end_unsignaled_32) echo "$verbs::send::poll_all" ;;
        verbs_poll_batch_32) echo "$verbs::send::poll_batch" ;;
        verbs_taking_32) echo "$verbs::send::take_all" ;;
        verbs_poll_empty) echo "$verbs::recv::poll_empty" ;;
        verbs_poll_*_32) echo "$verbs::recv::poll_all" ;;
        verbs_poll_*) echo "$verbs::recv::poll_one" ;;
        *) echo 'ferrocx_benches::measured*' ;;
    esac
}

# instructions PROGRAM ARG...: instructions that a program executes; of our own two, only those that
# are counted, from where the program says that it is warm.
instructions() {
    local only=()
    case "$1" in
        "$cost") only=(--toggle-collect="$(function_of "$3")" --zero-before='cost::warmed*') ;;
        "$nvmf")
            only=(--toggle-collect='instructions::measured*' --zero-before='instructions::warmed*')
            ;;
    esac
    # Threads take turns: one that polls without a pause leaves the others none otherwise.
    if ! valgrind --fair-sched=try --tool=callgrind --callgrind-out-file=/dev/null \
        --log-file="$scratch/$BASHPID" "${only[@]}" "$@" >"$scratch/$BASHPID.said" 2>&1; then
        echo "instructions.sh: $* failed under callgrind, and said:" >&2
        tail -n 20 "$scratch/$BASHPID.said" "$scratch/$BASHPID" >&2
        return 1
    fi
    sed -n 's/.*Collected : //p' "$scratch/$BASHPID"
}

# share INSTRUCTIONS ELEMENTS PROGRAM...: what one element costs.
share() {
    if [ "$1" -le 0 ]; then
        echo "instructions.sh: callgrind counted nothing in ${*:3}" >&2
        return 1
    fi
    awk -v all="$1" -v elements="$2" 'BEGIN { printf "%.2f", all / elements }'
}

# per_element ELEMENTS CASE: instructions of a case of benches per element. 2000 bursts of 32, or
# what comes to as much, behind 400 in which rings and pools grow warm: 250 of the longest chains.
# shellcheck disable=SC2317 # the shell that xargs starts calls it
per_element() {
    local n count
    n=$(($1 > 32 ? 64000 / $1 : 2000))
    count=$(instructions "$cost" run "$2" 400 "$n")
    share "$count" $((n * $1)) "$2"
}

# per_buffer ARG...: instructions of the peer per buffer: 15 repetitions of 32 buffers in each
# iteration, and the difference of two runs, which removes what a start costs.
per_buffer() {
    local low high
    low=$(instructions "$scratch/rte_pktmbuf" "$@" 400)
    high=$(instructions "$scratch/rte_pktmbuf" "$@" 533)
    share $((high - low)) $((133 * 15 * 32)) "rte_pktmbuf $*"
}

# per_command CASE: instructions of nvmf-target per command. The target is polled by hand, its
# models are not counted, and timers are due once in 64 rounds: the share of them is exact.
# shellcheck disable=SC2317 # the shell that xargs starts calls it
per_command() {
    local what batch rounds count
    IFS=_ read -r _ what batch <<<"$1"
    rounds=$((batch < 8 ? 128 : 64))
    count=$(instructions "$nvmf" "$what" "$batch" "$rounds")
    share "$count" $((rounds * batch)) "$1"
}

# counted CASE: instructions of a case per element.
# shellcheck disable=SC2317 # the shell that xargs starts calls it
counted() {
    case "$1" in
        nvmf_*) per_command "$1" ;;
        *) per_element "$("$cost" elements "$1")" "$1" ;;
    esac
}

# What each of the verbs' cases may cost, and what the same costs with libmlx5 of rdma-core 56.1:
# 0.3 of that where it is reached, else a little above what the case came down to, for the reasons
# in docs/guide/src/tuning.md. Of libmlx5, `mlx5_post_send` and its kin are counted, from call to
# return, on queues in memory, without locks, a doorbell for each call: `gcc -O2`, x86-64.
verbs_rows() {
    cat <<'EOF'
verbs_end_unsignaled_32 40 -
verbs_fast_reg_cycle 735 -
verbs_fast_reg_cycle_32 625 -
verbs_fast_reg_post 288 -
verbs_local_inv_post 95 -
verbs_poll_batch_32 110 107
verbs_poll_cq 95 179
verbs_poll_cq_32 81 107
verbs_poll_empty 27 83
verbs_poll_recv 100 242
verbs_poll_recv_32 89 170
verbs_poll_srq_recv 191 271
verbs_poll_srq_recv_32 174 199
verbs_post_compare_swap 106 355
verbs_post_compare_swap_32 91 198
verbs_post_datagram 111 372
verbs_post_datagram_32 94 191
verbs_post_fenced 104 347
verbs_post_fenced_32 80 190
verbs_post_fetch_add 105 351
verbs_post_fetch_add_32 89 194
verbs_post_opaque 125 347
verbs_post_read 104 347
verbs_post_read_32 76 190
verbs_post_recv 67 130
verbs_post_recv_32 70 73
verbs_post_recv_list_32 60 73
verbs_post_send 100 336
verbs_post_send_1sge 104 347
verbs_post_send_1sge_32 77 190
verbs_post_send_2sge 148 373
verbs_post_send_2sge_32 133 216
verbs_post_send_32 72 179
verbs_post_send_3sge 179 423
verbs_post_send_3sge_32 162 242
verbs_post_send_4sge 205 449
verbs_post_send_4sge_32 191 268
verbs_post_send_imm 99 333
verbs_post_send_imm_32 74 176
verbs_post_send_inline_1 109 364
verbs_post_send_inline_128 157 418
verbs_post_send_inline_128_32 133 216
verbs_post_send_inline_16 107 359
verbs_post_send_inline_16_32 74 205
verbs_post_send_inline_1_32 69 210
verbs_post_send_inline_32 122 360
verbs_post_send_inline_32_32 100 206
verbs_post_send_inline_64 142 384
verbs_post_send_inline_64_32 119 206
verbs_post_send_inline_8 84 361
verbs_post_send_inline_8_32 49 207
verbs_post_send_inline_928 303 447
verbs_post_send_inline_928_32 278 319
verbs_post_send_inv 99 331
verbs_post_send_inv_32 75 174
verbs_post_send_mbuf 109 347
verbs_post_send_mbuf_32 92 190
verbs_post_signaled 104 347
verbs_post_signaled_32 78 190
verbs_post_srq_recv 84 134
verbs_post_srq_recv_32 81 80
verbs_post_srq_recv_list_32 68 80
verbs_post_write_imm 104 349
verbs_post_write_imm_32 79 192
verbs_taking_32 66 107
EOF
}

failed=0
rows=()
echo "== result"
printf '%-29s %14s %14s %8s %8s\n' case instructions ns limit peer
report() { # NAME INSTRUCTIONS NS LIMIT PEER
    printf '%-29s %14s %14s %8s %8s\n' "$1" "$2" "$3" "${4:--}" "${5:-}"
    rows+=("{\"case\":\"$1\",\"instructions\":$2,\"ns\":$3}")
    if [ -n "${4:-}" ] && awk -v a="$2" -v b="$4" 'BEGIN { exit !(a > b) }'; then
        echo "  ^ above its limit of $4 instructions"
        failed=1
    fi
}

if [ -n "$with_peers" ]; then
    scripts/peers.sh "${cases[@]}" >"$scratch/peers" || {
        status=$?
        cat "$scratch/peers"
        exit $status
    }
fi

peer_instructions=
if pkg-config --exists libdpdk 2>/dev/null; then
    # shellcheck disable=SC2046 # pkg-config prints separate words
    cc -O3 $(pkg-config --cflags libdpdk) benches/peers/rte_pktmbuf.c \
        -o "$scratch/rte_pktmbuf" $(pkg-config --libs libdpdk)
    peer_instructions=$(per_buffer)
    report "peer: rte_pktmbuf bulk 32" "$peer_instructions" \
        "$("$scratch/rte_pktmbuf" 100000 2>/dev/null)"
    raw_instructions=$(per_buffer raw)
    report "peer: rte_mempool bulk 32" "$raw_instructions" \
        "$("$scratch/rte_pktmbuf" raw 100000 2>/dev/null)"
else
    echo "skipped: no rte_pktmbuf to compare with, libdpdk is not installed (libdpdk-dev)"
fi

# The counts do not depend on what else runs, so all cores count; the times below are taken alone.
export cost nvmf scratch
export -f function_of instructions share per_element per_command counted
# shellcheck disable=SC2016 # the shell that xargs starts expands it
printf '%s\n' "${cases[@]}" | xargs -P "$(nproc)" -I '{}' bash -c \
    'set -eo pipefail; counted {} >"$scratch/{}"'

for name in "${cases[@]}"; do
    limit='' peer=''
    case "$name" in
        verbs_*)
            read -r limit peer < <(verbs_rows | sed -n "s/^$name //p") ||
                { echo "instructions.sh: verbs_rows has no line for $name" >&2; exit 1; }
            ;;
        rx_burst) limit=64 ;;
        rx_burst_free) limit=70 ;;
        rx_one) limit=60 ;;
        rx_burst_of_1) limit=218 ;;
        rx_burst_timestamps) limit=73 ;;
        rx_one_timestamps) limit=72 ;;
        rx_compressed) limit=50 ;;
        rx_compressed_of_1) limit=229 ;;
        rx_striding) limit=111 ;;
        rx_striding_1500_free) limit=336 ;;
        rx_compressed_16) limit=59 ;;
        rx_compressed_2) limit=190 ;;
        rx_compressed_plain) limit=62 ;;
        rx_one_compressed) limit=260 ;;
        rx_one_striding) limit=415 ;;
        rx_striding_timestamps) limit=123 ;;
        rx_striding_compressed) limit=250 ;;
        rx_scatter_2 | rx_split) limit=235 ;;
        rx_scatter_8_60 | rx_scatter_8_1500 | rx_split_60) limit=76 ;;
        rx_scatter_8_9000) limit=490 ;;
        rx_tx_burst) limit=107 ;;
        tx_burst) limit=40 ;;
        tx_checksums) limit=43 ;;
        tx_vlan) limit=60 ;;
        tx_single_requests) limit=55 ;;
        tx_tso) limit=150 ;;
        tx_tso_chain_2) limit=210 ;;
        tx_tso_chain_3) limit=255 ;;
        tx_inline_1) limit=87 ;;
        tx_inline_17) limit=87 ;;
        tx_inline_60 | tx_inline_61 | tx_inline_60_single) limit=110 ;;
        tx_inline_128) limit=147 ;;
        tx_inline_256) limit=208 ;;
        tx_vlan_inline_60) limit=113 ;;
        tx_mixed) limit=73 ;;
        tx_segments_2 | tx_segments_2_checksums) limit=80 ;;
        tx_vlan_segments_2) limit=87 ;;
        tx_segments_2_inline) limit=238 ;;
        tx_segments_3) limit=107 ;;
        tx_segments_4) limit=125 ;;
        tx_segments_5) limit=153 ;;
        tx_segments_8) limit=220 ;;
        tx_clones) limit=163 ;;
        tx_clones_vlan) limit=214 ;;
        tx_header_and_clone) limit=298 ;;
        tx_external) limit=155 ;;
        tx_other_pool) limit=119 ;;
        tx_stamped) limit=595 ;;
        tx_headed_18) limit=180 ;;
        tx_headed_18_segments_2) limit=200 ;;
        send_one_128) limit=64 ;;
        send_one_128_stamped) limit=370 ;;
        send_one_128_blueflame) limit=250 ;;
        tick_to_doorbell | tick_attributed) limit=1200 ;;
        tick_executed | tick_executed_at_price | tick_deleted) limit=1120 ;;
        tick_cancelled) limit=1095 ;;
        tick_replaced) limit=1190 ;;
        tick_to_replace) limit=1200 ;;
        tick_to_cancel) limit=1010 ;;
        tick_beside_books) limit=455 ;;
        tick_other_line) limit=560 ;;
        tick_full_table) limit=1310 ;;
        tick_packet_2) limit=1580 ;;
        tick_packet_8) limit=3390 ;;
        tick_level_1000) limit=14300 ;;
        # Of the last count where there is no libdpdk.
        mbuf_get_put_32) limit=${peer_instructions:-60.2} ;;
        model_forward_64) limit=1735 ;;
        nvmf_read_1) limit=790 ;;
        nvmf_read_32) limit=570 ;;
        nvmf_write_1) limit=1500 ;;
        nvmf_write_32) limit=700 ;;
        nvmf_atomic-read_1) limit=4560 ;;
        nvmf_atomic-write_1) limit=4840 ;;
    esac
    ns=null
    [[ $name == nvmf_* ]] || ns=$("$cost" ns "$name")
    [ -z "$with_peers" ] || peer=$(sed -n "s/^$name  *//p" "$scratch/peers")
    report "$name" "$(cat "$scratch/$name")" "$ns" "$limit" "$peer"
done

if [ -n "$json" ]; then
    (IFS=,; printf '[%s]\n' "${rows[*]}") >"$json"
fi
exit $failed
