#!/usr/bin/env bash
# All of CI: from a fresh machine with a Rust toolchain to every test passed.
set -euo pipefail

usage() {
    cat <<'USAGE'
test.sh: run every check of the tree and say what passed, what failed, what was skipped and why.

  scripts/test.sh               everything
  scripts/test.sh STEP...       only these steps
  scripts/test.sh --list        the names of the steps
  scripts/test.sh --help        this text

As root it installs what is missing with apt-get and reserves hugepages; where rustup is, it adds a
nightly Rust with Miri. It never changes anything else. Without root, steps that need more than this
user may do are skipped, with the reason.
Network scenarios run in network namespaces that they make and delete themselves.

Exit status: 0 all passed or skipped, 1 a step failed, 2 usage.

Environment:
  CARGO_TARGET_DIR      build folder, shared by all steps; default: target
  FERROCX_NO_INSTALL    set to 1 to install nothing and reserve nothing
  FERROCX_HOSTILE_OPS   what a hostile guest does to the model in the step tests; default 60000
  FERROCX_FLOOD         hostile messages to a connection manager in the step tests; default 200000
  FERROCX_REG_CYCLES    register, use, invalidate in the step tests, that often; default 20000
  FERROCX_WAKE_UPS      switches between sleeping and polling in the step tests; default 20000
  FERROCX_INVALIDATIONS peer memory taken back under load in the step tests; default 300
  FERROCX_CALLS         sequences of calls of libibverbs in the steps tests and asan; default 12
  FERROCX_LAB_DIR       cache of the step lab, see scripts/vm-lab --help
  FERROCX_FUZZ_SECONDS  how long each fuzz target runs; default: 5
  FERROCX_FUZZ_SEED     seed of the fuzz targets, as a failed run printed it; default: a fresh one
  FERROCX_FUZZ_KEEP     set to 1 to add what was found to pmd/fuzz/corpus, reduced to what counts
  FERROCX_SIMULATION_SECONDS  how long new seeds are simulated; default: 60
USAGE
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
# Nothing is built twice here: what incremental builds write is time and disk lost. So are the lines
# of a debugger: a panic says its own.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
export CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-0}
export CARGO_PROFILE_RELEASE_DEBUG=${CARGO_PROFILE_RELEASE_DEBUG:-0}
logs=$CARGO_TARGET_DIR/test-logs
readonly SKIP=77

# shellcheck source=scripts/lib.sh
source scripts/lib.sh

steps=(fmt clippy build tests docs arrows tidy shellcheck loom miri asan fuzz simulate
    release net-ping net-raw net-tcp net-igmp net-capture net-rate net-trading rdma rdma-abi
    instructions lab)

step_fmt() { cargo fmt --all --check; }
step_clippy() { cargo clippy -q --locked --workspace --all-targets -- -D warnings; }
# Tests, and all programs that other steps start, in one build (see scripts/program.sh).
step_build() { cargo build -q --locked --workspace --lib --bins --tests --examples; }
# --show-output: what a passing test prints is kept, so that tests that skip are seen. Seven minutes
# on two cores; a test that hangs is named at the end of the log.
step_tests() { timeout 2400 cargo test --locked --no-fail-fast --workspace -- --show-output; }
step_docs() { RUSTDOCFLAGS="-D warnings" cargo doc -q --locked --workspace --no-deps; }
# Of the whole workspace, which is built: by itself the package would be built again.
step_arrows() { cargo test --locked --workspace --test arrows; }
step_tidy() { cargo test --locked --workspace --test tidy; }

step_shellcheck() {
    have shellcheck || skip "shellcheck is not installed (apt-get install shellcheck)"
    local files
    mapfile -t files < <(grep -rlE '^#!/usr/bin/env bash' .ci scripts | sort)
    shellcheck -x "${files[@]}"
}

# Lock-free code under every interleaving that loom's bounds allow. What it does not run, the model
# and its like, is not optimised for it.
step_loom() {
    grep -q 'cfg(loom)' mempool/Cargo.toml || skip "no crate has loom tests"
    local name plain=()
    for name in model prm bus; do
        plain+=(--config "profile.dev.package.ferrocx-$name.opt-level=0")
    done
    LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-2} RUSTFLAGS="--cfg loom" \
        CARGO_TARGET_DIR=$CARGO_TARGET_DIR/loom \
        timeout 1800 cargo test --locked "${plain[@]}" -p ferrocx-mempool -p ferrocx-verbs-lite \
        --lib loom
}

# Unsafe code under Miri: regions on the heap. Its emulation of weak memory is off because it does
# not know that words of different width share memory; data races are found all the same.
step_miri() {
    cargo +nightly miri --version >/dev/null 2>&1 ||
        skip "no Miri (rustup toolchain install nightly --component miri)"
    local flags="-Zmiri-disable-isolation -Zmiri-disable-weak-memory-emulation"
    # A panic that a test expects says its line; to find the calls above it takes seconds here.
    export CARGO_TARGET_DIR=$CARGO_TARGET_DIR/miri RUST_BACKTRACE=0
    MIRIFLAGS=$flags timeout 1800 cargo +nightly miri test --locked -p ferrocx-mempool --lib
    MIRIFLAGS="$flags -Zmiri-strict-provenance" \
        timeout 1200 cargo +nightly miri test --locked -p ferrocx-bus --lib --tests
}

# Unsafe code and what is built on it under AddressSanitizer: memory used after it was freed, past
# its end, or never freed. Real threads and more code than Miri has time for.
step_asan() {
    cargo +nightly --version >/dev/null 2>&1 ||
        skip "no nightly Rust (rustup toolchain install nightly)"
    local host asan=$CARGO_TARGET_DIR/asan
    host=$(rustc -vV | sed -n 's/^host: //p')
    mkdir -p "$asan"
    # Whoever reads what it finds needs lines.
    export CARGO_PROFILE_DEV_DEBUG=line-tables-only
    # Programs whose tests leak on purpose what a device may still own.
    printf 'leak:%s-\n' lying_device local ferrocx_bus >"$asan/leaks"
    # The flood of messages takes minutes here, and waits of two ports on a thread go by the clock.
    export LSAN_OPTIONS="suppressions=$asan/leaks:print_suppressions=0" CARGO_TARGET_DIR=$asan
    # A library that a test loads finds the sanitizer in the program.
    export RUSTFLAGS="-Zsanitizer=address -Clink-arg=-rdynamic"
    timeout 1800 cargo +nightly test -q --locked \
        --target "$host" -p ferrocx-mempool -p ferrocx-bus -p ferrocx-core -p ferrocx-verbs-lite \
        --lib "${asan_tests[@]/#/--test=}" -- --skip flood --skip connections::
    # libibverbs.so.1, called at random by several threads.
    timeout 600 cargo +nightly test -q --locked --target "$host" -p ferrocx-verbs-abi --test calls
}
asan_tests=(local ring lying_device memory queues network)

# Random inputs that look for new paths: each target of pmd/fuzz for FERROCX_FUZZ_SECONDS, from the
# inputs that pmd/fuzz/corpus keeps and a seed that is printed. What broke one lies in the artifacts
# folder that the log names; it becomes a test of the crate that broke. No sanitizer but the checks
# of debug builds: the step asan and Miri look at unsafe code.
step_fuzz() {
    cargo +nightly --version >/dev/null 2>&1 ||
        skip "no nightly Rust (rustup toolchain install nightly)"
    have c++ || skip "no C++ compiler, which libFuzzer needs (apt-get install g++)"
    local host passes
    export artifacts=$CARGO_TARGET_DIR/fuzz/artifacts found=$CARGO_TARGET_DIR/fuzz/found
    export seed=${FERROCX_FUZZ_SEED:-$((RANDOM * 32768 + RANDOM + 1))}
    host=$(rustc -vV | sed -n 's/^host: //p')
    passes="-sanitizer-coverage-level=4 -sanitizer-coverage-inline-8bit-counters"
    passes+=" -sanitizer-coverage-pc-table -sanitizer-coverage-trace-compares"
    export CARGO_TARGET_DIR=$CARGO_TARGET_DIR/fuzz
    # Not --locked: its lock is one of its own, and lags when a crate of ours gains a dependency.
    RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module ${passes//-san/-Cllvm-args=-san}" timeout 1800 \
        cargo +nightly build -q --release --bins --target "$host" \
        --manifest-path pmd/fuzz/Cargo.toml
    mkdir -p "$artifacts"
    export programs=$CARGO_TARGET_DIR/$host/release
    echo "== result"
    echo "again: FERROCX_FUZZ_SEED=$seed"
    find pmd/fuzz/fuzz_targets -name '*.rs' -printf '%f\n' | sort |
        xargs -P "$(nproc)" -I '{}' bash -c 'fuzz_one {}'
}

# Bytes and files of the inputs that are kept for a target at most; the test tidy looks.
export FUZZ_CORPUS_BYTES=102400 FUZZ_CORPUS_FILES=200

# fuzz_one FILE: runs one target; its name, executions and paths, or the end of its log. Its inputs
# and what it finds lie in a folder of the build; pmd/fuzz/corpus changes when it is told to.
fuzz_one() {
    local name=${1%.rs} log=$artifacts/${1%.rs}.log
    local kept=pmd/fuzz/corpus/$name new=$found/$name
    mkdir -p "$new" "$kept"
    if ! "$programs/$name" -seed="$seed" -len_control=0 -max_len=4096 -timeout=120 \
        -max_total_time="${FERROCX_FUZZ_SECONDS:-5}" -artifact_prefix="$artifacts/$name-" \
        "$new" "$kept" >"$log" 2>&1; then
        tail -n 60 "$log"
        echo "$name failed; the input is named above, all of the log is $log"
        return 1
    fi
    printf '%-18s %s\n' "$name" "$(grep -E 'DONE' "$log" | tr -s ' \t' ' ')"
    [ "${FERROCX_FUZZ_KEEP:-0}" != 1 ] || fuzz_keep "$name"
}

# fuzz_keep NAME: the smallest inputs that reach what all found so far reach, as many as fit.
fuzz_keep() {
    local kept=pmd/fuzz/corpus/$1 least=$found/$1.least file total=0 count=0
    rm -rf "$least"
    mkdir -p "$least"
    "$programs/$1" -merge=1 -max_len=4096 "$least" "$kept" "$found/$1" >>"$artifacts/$1.log" 2>&1
    rm -f "$kept"/*
    while read -r size file; do
        total=$((total + size))
        count=$((count + 1))
        [ "$total" -le "$FUZZ_CORPUS_BYTES" ] || break
        [ "$count" -le "$FUZZ_CORPUS_FILES" ] || break
        cp "$file" "$kept/"
    done < <(find "$least" -type f -printf '%s %p\n' | sort -n)
}
export -f fuzz_one fuzz_keep

# Hosts, cards and faults from seeds that are new each time, and printed.
step_simulate() {
    local simulation
    program simulation dev ferrocx-simulation bin simulation
    mkdir -p "$logs/simulation"
    echo "== result"
    "$simulation" --seconds "${FERROCX_SIMULATION_SECONDS:-60}" \
        --out "$logs/simulation" 2>/dev/null
}

# All that later steps want optimised, in one build that keeps every core busy.
step_release() {
    cargo build -q --locked --release -p ferrocx-benches -p ferrocx-tick2trade \
        -p ferrocx-nvmf-target --bin=cost --bin=tick2trade --example=instructions
}
step_net-ping() { scripts/net/ping.sh; }
step_net-raw() { scripts/net/raw.sh; }
step_net-tcp() { scripts/net/tcp.sh; }
step_net-igmp() { scripts/net/igmp.sh; }
step_net-capture() { scripts/net/capture.sh; }
step_net-rate() { scripts/net/rate.sh; }
step_net-trading() { scripts/net/trading.sh; }
# Stock RDMA programs as an ordinary user, on our libibverbs.so.1.
step_rdma() { scripts/demo-rdma.sh --debug; }
# Names and layouts of our libibverbs.so.1, compared with the newest rdma-core of Debian.
step_rdma-abi() { scripts/rdma/abi.sh; }

# Instructions of the driver's own code, counted by callgrind.
step_instructions() {
    have valgrind || skip "valgrind is not installed (apt-get install valgrind)"
    echo "== result"
    scripts/instructions.sh
}

# Unmodified Linux drivers in QEMU guests judge the model: one line for each scenario.
step_lab() {
    local status=0
    scripts/vm-lab build || return
    scripts/vm-lab ci >"$logs/lab-scenarios.log" 2>&1 || status=$?
    # One scenario that skips itself does not hide what the others found.
    [ "$status" -ne $SKIP ] || ! grep -q ': passed' "$logs/lab-scenarios.log" || status=0
    cat "$logs/lab-scenarios.log"
    echo "== result"
    sed -nE 's/^vm-lab: ([a-z0-9-]+: (passed|skipped|FAILED).*|lab: .*)/\1/p' \
        "$logs/lab-scenarios.log"
    return "$status"
}

# in_step NAME: the step alone, its output in its log, and the processor time of it and of what it
# started in NAME.times.
in_step() (
    trap 'times >"$logs/$step.times"' EXIT
    set -e
    step=$1
    "step_$1"
) >"$logs/$1.log" 2>&1

# processors [NAME...]: seconds of processor time that these steps took, tries before the last too.
processors() {
    local name files=()
    for name in "$@"; do files+=("$logs/$name".*times); done
    # "0m1.234s 0m0.567s", user and system, of the shell and of what it started.
    awk '{ for (i = 1; i <= NF; i++) { split($i, t, /[ms]/); s += t[1] * 60 + t[2] } }
        END { printf "%.0f", s }' "${files[@]}"
}

# Steps that run beside others, from the one on before which they stand here: they keep one core
# busy, or mostly wait.
declare -A beside=([clippy]=miri [tests]=asan [docs]=simulate [loom]=net-igmp) early=() begun=()

# begin NAME: starts a step beside others, if it was asked for and has not been its turn.
begin() {
    [[ " ${wanted[*]} " == *" $1 "* && -z ${begun[$1]-} ]] || return 0
    begun[$1]=1
    in_step "$1" &
    early[$1]=$!
}

# ended NAME: runs a step, or waits for its end if it has begun; the status is the step's.
ended() {
    local process=${early[$1]-}
    if [ -n "$process" ]; then
        unset "early[$1]"
        wait "$process"
    else
        begun[$1]=1
        in_step "$1"
    fi
}

# What a step that passed has built, for those behind it.
built_by() {
    case $1 in
    build)
        FERROCX_BUILT+=" debug/ debug/examples/"
        # The steps net-* judge what arrives, not how fast: here the build that checks itself does.
        export FERROCX_TESTPMD=${FERROCX_TESTPMD:-$CARGO_TARGET_DIR/debug/testpmd}
        ;;
    release) FERROCX_BUILT+=" release/cost release/tick2trade release/examples/instructions" ;;
    esac
}

# run_step NAME: runs a step, or waits for it, and records how it ended. Programs of others that go
# by the clock can be too late on a machine that does something else: what they judge gets a second
# try, which is told.
run_step() {
    local name=$1 status=0 start=$SECONDS log=$logs/$1.log reason took
    printf 'test: %-12s ' "$name"
    # Behind || or in a condition a step would go on after a command that failed.
    set +e
    ended "$name"
    status=$?
    if [[ $name == @(net-*|rdma|rdma-abi) && $status -ne 0 && $status -ne $SKIP ]]; then
        mv "$log" "$logs/$name.first.log"
        mv "$logs/$name.times" "$logs/$name.first.times"
        printf 'failed with %s, log %s; again: ' "$status" "$logs/$name.first.log"
        ended "$name"
        status=$?
        [ $status -ne 0 ] || second+=("$name")
    fi
    set -e
    took="$((SECONDS - start)) s, $(processors "$name") of processors"
    case $status in
    0)
        echo "passed ($took)"
        passed+=("$name")
        built_by "$name"
        ;;
    "$SKIP")
        reason=$(sed -n 's/.*skipped: //p' "$log" | tail -n 1)
        echo "skipped: ${reason:-see $log}"
        skipped+=("$name: ${reason:-see $log}")
        ;;
    *)
        echo "FAILED with $status ($took), log $log:"
        { broken_tests "$log" && echo; tail -n 60 "$log"; } | sed 's/^/    /'
        failed+=("$name")
        ;;
    esac
}

# broken_tests LOG: what the tests that broke in a log of cargo's printed, with their names.
broken_tests() {
    awk '/^failures:$/ { on = 1 } on && n++ < 200; /^test result:/ { on = 0 }' "$1"
}

# Tests that passed without testing, because this machine lacks something.
skipped_tests() {
    local log=$logs/tests.log
    [ -f "$log" ] || return 0
    { grep -ohE 'skipped: .*' "$log" || true; } | sort | uniq -c | sort -rn
}

summary() {
    local line
    echo
    for log in fuzz simulate net-ping net-raw net-tcp net-igmp net-capture net-rate \
        net-trading rdma rdma-abi instructions lab; do
        [[ " ${passed[*]-} " == *" $log "* ]] || continue
        echo "---- $log"
        sed -n '/^== result/,$p' "$logs/$log.log"
    done
    echo "---- summary"
    if [[ " ${passed[*]-} ${failed[*]-} " == *" tests "* ]]; then
        awk '/^test result:/ { p += $4; f += $6; i += $8 }
             END { printf "tests: %d passed, %d failed, %d ignored\n", p, f, i }' "$logs/tests.log"
        line=$(skipped_tests)
        [ -z "$line" ] || printf 'tests that skipped themselves (count, reason):\n%s\n' "$line"
    fi
    for line in "${failed[@]}"; do
        echo "failed: $line"
        broken_tests "$logs/$line.log" | sed 's/^/    /'
    done
    for line in "${skipped[@]}"; do echo "skipped: $line"; done
    for line in "${second[@]}"; do echo "passed at the second try: $line"; done
    echo "$((SECONDS / 60)) min $((SECONDS % 60)) s, $(processors "${wanted[@]}") s of processors"
    echo "${#passed[@]} passed, ${#failed[@]} failed, ${#skipped[@]} skipped"
}

passed=() failed=() skipped=() second=()
wanted=("$@")
case ${1-} in
-h | --help) usage; exit 0 ;;
--list) printf '%s\n' "${steps[@]}"; exit 0 ;;
esac
for name in "${wanted[@]}"; do
    [[ " ${steps[*]} " == *" $name "* ]] || { usage >&2; exit 2; }
done
[ ${#wanted[@]} -gt 0 ] || wanted=("${steps[@]}")

mkdir -p "$logs"
rm -f "$logs"/*.log "$logs"/*times
export FERROCX_BUILT=
need_rust
install_missing ip:iproute2 ping:iputils-ping iperf3:iperf3 tshark:tshark ethtool:ethtool \
    valgrind:valgrind shellcheck:shellcheck jq:jq python3:python3 c++:g++ pkg-config:pkg-config \
    libdpdk.pc:libdpdk-dev libibverbs.pc:libibverbs-dev ibv_devinfo:ibverbs-utils \
    ib_send_lat:perftest rping:rdmacm-utils pgrep:procps objdump:binutils cc:gcc \
    mmdebstrap:mmdebstrap mke2fs:e2fsprogs
[[ " ${wanted[*]} " != *" "@(miri|asan|fuzz)" "* ]] || install_nightly miri rust-src
reserve_hugepages 64
for name in "${wanted[@]}"; do
    # Not behind ||, where a step would go on after a command that failed.
    if [ -n "${beside[$name]-}" ]; then begin "${beside[$name]}"; fi
    run_step "$name"
done
summary
[ ${#failed[@]} -eq 0 ]
