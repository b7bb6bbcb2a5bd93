#!/usr/bin/env bash
# From a fresh machine with a Rust toolchain to the main jobs running, on the software ConnectX.
set -euo pipefail

usage() {
    cat <<'USAGE'
demo.sh: install what is missing, build, let the kernel ping our driver, print packet rates and how
long an order takes from its tick.

  scripts/demo.sh
  scripts/demo.sh --help

As root on Debian it installs missing packages with apt-get, reserves 64 hugepages of 2 MiB, and
runs everything; it says what it changed. Without root it changes nothing, runs the parts that need
no network interface, and says what it skipped and what to install. The histogram of tick to trade
is left in tick-to-trade.svg, in the build folder.

Environment:
  CARGO_TARGET_DIR      build folder; default: target
  FERROCX_NO_INSTALL    set to 1 to install nothing and reserve nothing
USAGE
}

case ${1-} in
'') ;;
-h | --help) usage; exit 0 ;;
*) usage >&2; exit 2 ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

skipped=()
# part NAME COMMAND...: runs a part of the demo; status 77 means skipped.
part() {
    local name=$1 status=0 out
    shift
    echo
    echo "==== $name"
    out=$(mktemp)
    "$@" 2>&1 | tee "$out" || status=$?
    if [ $status -eq 77 ]; then
        skipped+=("$name: $(sed -n 's/.*skipped: //p' "$out" | tail -n 1)")
        status=0
    fi
    rm -f "$out"
    [ $status -eq 0 ] || die "$name failed with status $status"
}

echo "==== what this machine needs"
need_rust
have cc || install_missing cc:gcc
have cc || die "no C linker, which Rust needs; install with: sudo apt-get install -y gcc libc6-dev"
install_missing ip:iproute2 ping:iputils-ping ethtool:ethtool jq:jq
reserve_hugepages 64
echo "processors: $(nproc), $(cargo --version)"

echo
echo "==== build (release)"
cargo build --release --locked -p ferrocx-testpmd -p ferrocx-tick2trade --bins
export FERROCX_TESTPMD=${CARGO_TARGET_DIR:-$root/target}/release/testpmd

part "the kernel pings, our driver on the software ConnectX answers" scripts/net/ping.sh --quick
part "64-byte packet rates over the in-memory wire" scripts/net/rate.sh

picture=${CARGO_TARGET_DIR:-$root/target}/tick-to-trade.svg
part "tick to trade: an exchange simulator and our engine, on queues of the software ConnectX" \
    "${CARGO_TARGET_DIR:-$root/target}/release/tick2trade" measure --ticks 20000 --interval-us 100 \
    --svg "$picture"
echo "histograms: $picture"

echo
echo "==== what happened"
echo "An mlx5-class NIC, in software, was brought up and run by our own user-space driver: command"
echo "queue, event queue, send and receive queues, flow tables. No kernel driver was involved, and"
echo "no hardware: the rates are those of driver and model together."
for line in "${skipped[@]}"; do echo "skipped: $line"; done
echo "demo: done"
