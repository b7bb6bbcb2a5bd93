# Programs of this workspace that scripts start, built once. Sourced by lib.sh and vm-lab.
# shellcheck shell=bash

workspace=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# test.sh has built all that it starts, with the features that the whole workspace asks for, and
# says so in FERROCX_BUILT: folders, or files of them. Cargo asked for one package gives what it
# depends on other features, and compiles it again.

# is_built FOLDER [FILE]
is_built() { [[ " ${FERROCX_BUILT-} " == *" $1/ "* || " ${FERROCX_BUILT-} " == *" $1/${2-} "* ]]; }

# selection PACKAGE: what to ask cargo for to run its tests.
selection() { is_built debug && echo --workspace || echo "--package=$1"; }

# program VARIABLE PROFILE PACKAGE KIND NAME: builds a program and stores its path. PROFILE is dev
# or release, KIND bin or example.
program() {
    local folder=${2/#dev/debug}
    [ "$4" = bin ] || folder+=/examples
    printf -v "$1" '%s' "${CARGO_TARGET_DIR:-$workspace/target}/$folder/$5"
    ! is_built "$folder" "$5" || return 0
    # Beside a guest that runs already, which has its deadlines.
    nice cargo build -q --locked --manifest-path "$workspace/Cargo.toml" --profile "$2" \
        -p "$3" "--$4" "$5" >&2
}
