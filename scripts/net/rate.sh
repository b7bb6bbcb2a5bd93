#!/usr/bin/env bash
# The packet rate of driver and model together, and where the time goes.
set -euo pipefail

usage() {
    cat <<'USAGE'
rate.sh: a table of 64-byte packet rates over the model's in-memory wire.

  scripts/net/rate.sh [--seconds N] [--size BYTES] [--burst N] [--descriptors N]

One queue, one worker core; the model with its generator runs on another core. The figures are the
model's: they say what driver and model cost together, nothing about a NIC. Needs no root. With a
debug build in FERROCX_TESTPMD, as in CI, they say nothing at all, but that no frame was lost.
Exit status: 0 done, 1 a frame was lost or damaged, 77 skipped.
USAGE
}

# shellcheck source=scripts/net/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

seconds=3 size=64 burst=64 descriptors=2048
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage; exit 0 ;;
    --seconds) seconds=$2; shift ;;
    --size) size=$2; shift ;;
    --burst) burst=$2; shift ;;
    --descriptors) descriptors=$2; shift ;;
    *) usage >&2; exit 2 ;;
    esac
    shift
done

start_work
build_testpmd

row='%-8s %7s %6s %8s %7s %7s %7s %7s %7s\n'
# percent PART WHOLE, million VALUE: with one and two digits behind the point.
percent() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", b ? a * 100 / b : 0 }'; }
million() { awk -v a="$1" 'BEGIN { printf "%.2f", a / 1e6 }'; }
echo "== result"
[[ $testpmd != */debug/* ]] || echo "a debug build: no figures, but every frame is looked at"
echo "$size-byte frames (no FCS), 1 queue of $descriptors, burst $burst, $seconds s each," \
    "$(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
# shellcheck disable=SC2059
printf "$row" mode Mpps lost damaged empty% rx% work% tx% model%
for mode in io mac macswap; do
    "$testpmd" --wire generator --forward-mode $mode --size "$size" --duration "$seconds" \
        --burst "$burst" --rxd "$descriptors" --txd "$descriptors" --stats 0 \
        --json "$work/report.json" >"$work/testpmd.out" 2>"$work/testpmd.err"
    [ "$(value balanced)" = true ] || die "the totals of testpmd do not add up"
    # shellcheck disable=SC2059
    printf "$row" $mode "$(million "$(value forwarded_fps)")" "$(value lost)" \
        "$(value damaged)" "$(value empty_percent)" "$(value receive_percent)" \
        "$(value work_percent)" "$(value send_percent)" \
        "$(percent "$(value model_busy_steps)" "$(value model_steps)")"
    [ "$(value lost)$(value damaged)" = 00 ] || die "frames were lost or damaged"
done
echo "empty%, rx%, work%, tx%: shares of the worker core's time, from sampled turns."
echo "model%: share of the model's steps that found work; one such takes as long as many idle ones."
