# Helpers for scenarios, inside the guest.
# shellcheck shell=bash

fail() { echo "FAILED: $*"; echo "$*" >>/host/reason; exit 1; }
skip() { echo "skipped: $*"; echo "$*" >>/host/reason; exit 77; }
step() { printf '[%7.2f] %s\n' "$(cut -d ' ' -f 1 /proc/uptime)" "$*"; }

# must COMMAND...: shows the command, fails the scenario if it fails.
must() {
    step "$*"
    "$@" || fail "$* ended with $?"
}

# check COMMAND...: like must, but goes on; verdict at the end fails the scenario then.
FAILURES=0
check() {
    step "$*"
    "$@" && return
    step "FAILED with $?: $*"
    echo "$*" >>/host/reason
    FAILURES=$((FAILURES + 1))
}

# verdict: the last line of a scenario that uses check.
verdict() {
    [ "$FAILURES" -eq 0 ] || { echo "FAILED: $FAILURES check(s)"; exit 1; }
}

# reboot_guest STAGE: as if the power had failed; the scenario starts again with this stage.
reboot_guest() {
    step "reboot, then: $1"
    echo "$1" >/host/stage
    dmesg >>/host/dmesg.log
    touch /host/rebooting
    sync
    echo b >/proc/sysrq-trigger
    sleep 60
}

# The stage given to reboot_guest, or nothing in the first boot.
stage() { cat /host/stage 2>/dev/null || true; }

# until_true SECONDS COMMAND...: repeats the command until it succeeds.
until_true() {
    local deadline=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.1
    done
}

# unexpected_dmesg ALLOWED...: the kernel's lines about mlx5 that no allowed pattern explains.
unexpected_dmesg() {
    local known=() allowed
    for allowed in "$@"; do known+=(-e "$allowed"); done
    dmesg | grep -i mlx5 | grep -vE "${known[@]}"
}
