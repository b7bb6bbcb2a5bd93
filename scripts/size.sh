#!/usr/bin/env bash
# How many lines the driver's own crates have, tests left out.
set -euo pipefail

usage() {
    cat <<'EOF'
Usage: scripts/size.sh [COMMIT]

Prints, for prm, core, pmd and verbs-lite and of all four, the lines of their src folders, and those
of them that are neither blank nor a comment: of the working tree, or of a commit. Tests do not
count: files named tests.rs or *_tests.rs, files in a folder named tests, and modules under
#[cfg(test)]. docs/guide/src/size.md says what the numbers mean.
EOF
}

case "${1-}" in
    -h | --help) usage; exit 0 ;;
    -*) echo "size.sh: unknown option $1; see --help" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."

files() { # FOLDER
    if [ -n "$commit" ]; then
        git ls-tree -r --name-only "$commit" -- "$1"
    else
        find "$1" -type f 2>/dev/null
    fi | grep '\.rs$' | grep -Ev '/tests/|(/|_)tests\.rs$' || true
}

text() { # FILE
    if [ -n "$commit" ]; then git show "$commit:$1"; else cat "$1"; fi
}

commit=${1-}
[ -z "$commit" ] || commit=$(git rev-parse --verify --quiet "$commit^{commit}") ||
    { echo "size.sh: $1 is no commit of this repository" >&2; exit 2; }
printf '%-12s %7s %7s\n' crate lines code
for crate in pmd/prm pmd/core pmd verbs-lite; do
    files "$crate/src" | while IFS= read -r file; do
        text "$file"
    done | awk -v crate="${crate##*/}" '
        /^#\[cfg\(test\)\]$/ { marked = 1; next }
        marked && /^#\[/ { next }
        marked && /^mod [a-z_]+ \{$/ { marked = 0; inside = 1 }
        inside { if (/^}$/) inside = 0; next }
        { marked = 0; lines++ }
        !/^ *($|\/\/)/ { code++ }
        END { print crate, lines + 0, code + 0 }'
done | awk '{ printf "%-12s %7d %7d\n", $1, $2, $3; lines += $2; code += $3 }
    END { printf "%-12s %7d %7d\n", "all four", lines, code }'
