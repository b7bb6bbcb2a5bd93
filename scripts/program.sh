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
# or release, KIND bin, example, or lib, a library that programs load.
program() {
    local folder=${2/#dev/debug} file=$5 selected=("--$4" "$5")
    case $4 in
        example) folder+=/examples ;;
        lib) file=lib$5.so selected=(--lib) ;;
    esac
    printf -v "$1" '%s' "${CARGO_TARGET_DIR:-$workspace/target}/$folder/$file"
    ! is_built "$folder" "$file" || return 0
    # Beside a guest that runs already, which has its deadlines.
    nice cargo build -q --locked --manifest-path "$workspace/Cargo.toml" --profile "$2" \
        -p "$3" "${selected[@]}" >&2
}
