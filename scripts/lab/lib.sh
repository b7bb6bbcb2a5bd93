# Helpers for scenarios, inside the guest.
# shellcheck shell=bash
# What the host's environment says to scenarios.
# shellcheck source=/dev/null
source /host/lab/settings

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

# reboot_guest STAGE [HOW]: the scenario, which has its boot for itself, starts again with this
# stage. HOW is orderly (the default: drivers shut their devices down) or power-failure.
reboot_guest() {
    step "reboot (${2:-orderly}), then: $1"
    echo "$1" >/host/stage
    dmesg >>/host/dmesg.log
    touch /host/rebooting
    sync
    [ "${2:-orderly}" = orderly ] && busybox reboot -f
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

# ask_host WHAT [ARGUMENT...]: what only the host can do: `unplug ID` of a device, `vanish PORT` and
# `return PORT` of the model, `counts` for its counters in /host/counts.json, `cores` for what the
# threads of the guest's cores have run, in nanoseconds in /host/cores, `hmp LINE` for QEMU's
# monitor.
# Returns when it was told; a guest takes part in an unplugging. QEMU 11.1 aborts when a device of
# the model is unplugged (with MSI-X), and when the model's process ends.
ask_host() {
    step "host: $*"
    echo "$*" >/host/ask.new
    mv /host/ask.new /host/ask
    while [ -e /host/ask ]; do sleep 0.02; done
}

# Echo replies that the kernel has received, both IP versions.
echo_replies() {
    # shellcheck disable=SC2016 # fields of awk
    "$@" awk '/^Icmp: [0-9]/ { n += $11 } /^Icmp6InEchoReplies/ { n += $2 } END { print n + 0 }' \
        /proc/net/snmp /proc/net/snmp6
}

replies_reach() { local count=$1; shift; [ "$(echo_replies "$@")" -ge "$count" ]; }

# all_answered [PREFIX...] ping -c COUNT ARGUMENT...: every request is answered in the end.
#
# ping waits for the last answers two round trips only, and on an emulated machine those vary; the
# kernel counts them whenever they come.
all_answered() {
    local prefix=() before count report
    while [ "$1" != ping ]; do prefix+=("$1"); shift; done
    count=$3
    before=$(echo_replies "${prefix[@]}")
    report=$("${prefix[@]}" "$@" 2>&1)
    grep 'packets transmitted' <<<"$report"
    until_true 15 replies_reach $((before + count)) "${prefix[@]}" && return
    echo "$report"
    step "$(($(echo_replies "${prefix[@]}") - before)) of $count requests were answered"
    return 1
}

# unexpected_dmesg ALLOWED...: the kernel's lines about mlx5 that no allowed pattern explains.
unexpected_dmesg() {
    local known=() allowed
    for allowed in "$@"; do known+=(-e "$allowed"); done
    dmesg | grep -i mlx5 | grep -vE "${known[@]}"
}
