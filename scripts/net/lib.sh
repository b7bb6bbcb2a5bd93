# Helpers of the network scenarios: namespaces that are ours alone, a testpmd in one of them.
# shellcheck shell=bash

net_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=scripts/lib.sh
source "$net_root/scripts/lib.sh"

work=
testpmd_pid=
namespaces=()

# need_net COMMAND...: skips unless root may make namespaces and the commands are there.
need_net() {
    local command
    is_root || skip "not root: network namespaces cannot be made"
    for command in ip "$@"; do
        have "$command" || skip "$command is not installed"
    done
    local probe=fx$$probe
    ip netns add $probe 2>/dev/null || skip "network namespaces cannot be made here"
    ip netns del $probe
}

need_tap() {
    [ -c /dev/net/tun ] || skip "no /dev/net/tun: TAP interfaces cannot be made"
}

# start_work: a folder for logs, and the promise to clean up.
start_work() {
    work=$(mktemp -d)
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

clean_up() {
    local status=$? name
    trap - EXIT
    if [ -n "$testpmd_pid" ] && kill -0 "$testpmd_pid" 2>/dev/null; then
        kill -INT "$testpmd_pid" 2>/dev/null || true
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            kill -0 "$testpmd_pid" 2>/dev/null || break
            sleep 0.2
        done
        kill -KILL "$testpmd_pid" 2>/dev/null || true
    fi
    for name in "${namespaces[@]}"; do
        ip netns del "$name" 2>/dev/null || true
    done
    if [ $status -ne 0 ] && [ $status -ne 77 ] && [ -n "$work" ]; then
        say "---- testpmd said:"
        tail -n 30 "$work"/testpmd.* >&2 2>/dev/null || true
    fi
    [ -z "$work" ] || rm -rf "$work"
    exit $status
}

# namespace VARIABLE SUFFIX: makes a namespace named after this process and stores its name.
namespace() {
    local name=fx$$-$2
    ip netns add "$name"
    namespaces+=("$name")
    ip -n "$name" link set lo up
    printf -v "$1" '%s' "$name"
}

# build_testpmd: the release build; sets testpmd.
build_testpmd() {
    need_rust
    testpmd=${FERROCX_TESTPMD:-}
    [ -n "$testpmd" ] || program testpmd release ferrocx-testpmd bin testpmd
    [ -x "$testpmd" ] || die "no testpmd at $testpmd"
}

# start_testpmd NAMESPACE OPTION...: starts it there, with a report in $work/report.json.
start_testpmd() {
    local name=$1
    shift
    rm -f "$work/report.json"
    ip netns exec "$name" "$testpmd" "$@" --stats 0 --json "$work/report.json" \
        >"$work/testpmd.out" 2>"$work/testpmd.err" &
    testpmd_pid=$!
}

# stop_testpmd: Ctrl-C, a clean end, and totals that add up.
stop_testpmd() {
    local status=0 pid=$testpmd_pid
    kill -INT "$pid" 2>/dev/null || die "testpmd ended by itself"
    wait "$pid" || status=$?
    testpmd_pid=
    [ $status -eq 0 ] || die "testpmd ended with status $status"
    [ "$(value balanced)" = true ] || die "the totals of testpmd do not add up"
}

# value KEY: the first value of a key in the last report; needs no jq.
value() {
    sed -n "s/^ *\"$1\": \([^,]*\),*\$/\1/p" "$work/report.json" | head -n 1
}

# report FILTER: what jq makes of the last report.
report() {
    jq -r "$1" "$work/report.json"
}

# until_true SECONDS COMMAND...: repeats the command until it succeeds.
until_true() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $deadline ] || return 1
        [ -z "$testpmd_pid" ] || kill -0 "$testpmd_pid" 2>/dev/null || die "testpmd ended early"
        sleep 0.1
    done
}
