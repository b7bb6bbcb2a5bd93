# Helpers of the scripts in this folder: messages, installing, hugepages.
# shellcheck shell=bash

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }
skip() { say "skipped: $*"; exit 77; }
have() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" -eq 0 ]; }

# shellcheck source=scripts/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/program.sh"

# Debian keeps ip, ethtool and sysctl in folders that a user's PATH may lack.
PATH=$PATH:/usr/sbin:/sbin

need_rust() {
    if ! have cargo && [ -x "$HOME/.cargo/bin/cargo" ]; then PATH=$HOME/.cargo/bin:$PATH; fi
    have cargo || die "no cargo; install Rust 1.90 or later from https://rustup.rs"
}

may_install() { [ "${FERROCX_NO_INSTALL:-0}" != 1 ]; }

# install_missing COMMAND:PACKAGE...: as root installs the packages whose command is missing, or
# whose library if NAME.pc of pkg-config stands in place of a command; otherwise says what to
# install. Never fails: what stays missing is found where it is needed.
install_missing() {
    local pair wanted missing=()
    for pair in "$@"; do
        wanted=${pair%%:*}
        if [[ $wanted == *.pc ]]; then
            pkg-config --exists "${wanted%.pc}" 2>/dev/null || missing+=("${pair#*:}")
        else
            have "$wanted" || missing+=("${pair#*:}")
        fi
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! is_root || ! have apt-get || ! may_install; then
        say "missing: ${missing[*]}; install with: sudo apt-get install -y ${missing[*]}"
        return 0
    fi
    say "installing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    local log
    log=$(mktemp)
    if ! { apt-get -q update && apt-get -q install -y --no-install-recommends "${missing[@]}"; } \
        >"$log" 2>&1 </dev/null; then
        say "apt-get did not install all of it; its last lines:"
        tail -n 3 "$log" >&2
    fi
    rm -f "$log"
}

# debian_mirror: the mirror of Debian that this machine uses; nothing where apt's sources name none.
debian_mirror() {
    apt-get indextargets --format "\$(REPO_URI)" |
        awk '/\/debian\/*$/ { mirror = $0 } END { print mirror }'
}

# install_nightly COMPONENT...: a nightly Rust with these components, where rustup may add them.
# Never fails: steps that need them look for themselves.
install_nightly() {
    local log
    log=$(mktemp)
    if ! have rustup || ! may_install; then
        say "for all tests: rustup toolchain install nightly; rustup component add" \
            "--toolchain nightly $*"
    elif ! { { cargo +nightly --version ||
        rustup toolchain install nightly --profile minimal --no-self-update; } &&
        rustup component add --toolchain nightly "$@"; } >"$log" 2>&1; then
        say "rustup did not install nightly with $*; its last lines:"
        tail -n 3 "$log" >&2
    fi
    rm -f "$log"
}

# reserve_hugepages COUNT: makes COUNT free 2 MiB pages where this user may, and says so.
reserve_hugepages() {
    local dir=/sys/kernel/mm/hugepages/hugepages-2048kB free total want=$1
    if [ ! -d $dir ]; then
        say "this kernel has no 2 MiB hugepages; 4 KiB pages are used"
        return
    fi
    free=$(($(cat $dir/free_hugepages) - $(cat $dir/resv_hugepages)))
    total=$(cat $dir/nr_hugepages)
    [ "$free" -lt "$want" ] || return 0
    local target=$((total + want - free))
    if is_root && may_install &&
        { echo $target >$dir/nr_hugepages; } 2>/dev/null; then
        say "reserved 2 MiB hugepages: $total before, $(cat $dir/nr_hugepages) now" \
            "(undo: echo $total > $dir/nr_hugepages)"
    else
        say "$free free 2 MiB hugepages, $want wanted; 4 KiB pages are used where they run out" \
            "(reserve: echo $target | sudo tee $dir/nr_hugepages)"
    fi
}
