#!/usr/bin/env bash
# UCX's own tests on the drop-in library: what the programs that use UCX count on.
set -euo pipefail

usage() {
    cat <<'USAGE'
gtest.sh: builds UCX 1.13 with its tests from Debian 12's sources, and runs those of verbs.

  scripts/rdma/gtest.sh [--cxctl FILE] [--folder FOLDER] [FILTER]

Without FILTER these are all tests of `rc_verbs`, `ud_verbs` and `ib`, seven minutes; 'rc/*' and
'ud/*' are those of UCX's protocols over them, 15 minutes each. To build takes ten minutes and 3 GB,
once. The exit status is 1 when a test fails that is not known to (below), 77 where there are no
sources, compilers or libraries; as root, what is missing is installed.

  --cxctl FILE      default: target/release/cxctl, with libibverbs.so beside it
  --folder FOLDER   where UCX is built; default: ~/.cache/ferrocx-rdma/ucx
USAGE
}

# It asks which PCI device the adapter is; the model is none.
readonly KNOWN=ib/test_md.sys_device/0
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cxctl=${CARGO_TARGET_DIR:-$root/target}/release/cxctl
folder=${XDG_CACHE_HOME:-$HOME/.cache}/ferrocx-rdma/ucx
filter='rc_verbs/*:ud_verbs/*:ib/*'
while [ $# -gt 0 ]; do
    case $1 in
    --cxctl) cxctl=${2:?--cxctl needs a file}; shift ;;
    --folder) folder=${2:?--folder needs a folder}; shift ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) filter=$1 ;;
    esac
    shift
done
# shellcheck source=scripts/lib.sh
source "$root/scripts/lib.sh"
[ -x "$cxctl" ] || skip "$cxctl is not built (cargo build --release)"
cxctl=$(realpath "$cxctl")
readonly VERSION=1.13.1
top=$folder/ucx-$VERSION

build() {
    install_missing autoconf:autoconf automake:automake libtoolize:libtool g++:g++ make:make \
        curl:curl patch:patch libibverbs.pc:libibverbs-dev librdmacm.pc:librdmacm-dev
    local program file mirror
    for program in autoconf automake libtoolize g++ make curl patch; do
        have "$program" || skip "$program is not installed"
    done
    have apt-get || skip "apt-get is not there: the sources are Debian's"
    mirror=$(debian_mirror)
    [ -n "$mirror" ] || skip "apt's sources name no mirror of Debian"
    mkdir -p "$folder"
    say "building UCX $VERSION and its tests in $folder (ten minutes, once)"
    rm -rf "$top"
    for file in "ucx_$VERSION.orig" "ucx_$VERSION-1.debian"; do
        curl -fsS -o "$folder/$file" "${mirror%/}/pool/main/u/ucx/$file.tar.xz" ||
            skip "$mirror has no $file.tar.xz"
    done
    tar -C "$folder" -xf "$folder/ucx_$VERSION.orig"
    tar -C "$top" -xf "$folder/ucx_$VERSION-1.debian"
    while read -r file; do
        patch -s -d "$top" -p1 <"$top/debian/patches/$file"
    done < <(grep -v '^#' "$top/debian/patches/series")
    # It is called through a pointer, and so cannot always be inlined.
    sed -i '/void uct_iface_release_desc/s/^UCT_INLINE_API/static inline/' "$top/src/uct/api/uct.h"
    # Tests of 2022 under later compilers: their warnings are not ours to mend.
    (cd "$top" && ./autogen.sh && ./configure --enable-gtest --with-verbs --with-rdmacm \
        --without-java --without-go --without-mpi --disable-doxygen-doc &&
        make -j"$(nproc)" -C src &&
        make -j"$(nproc)" -C test/gtest CXXFLAGS='-O1 -w -fpermissive' gtest) \
        >"$folder/build.log" 2>&1 || skip "UCX does not build; see $folder/build.log"
    touch "$folder/.done"
}

[ -e "$folder/.done" ] || build
cd "$top/test/gtest"
libraries=$top/src/ucs/.libs:$top/src/uct/.libs:$top/src/ucp/.libs:$top/src/ucm/.libs
log=$folder/tests.log
status=0
LD_LIBRARY_PATH=$libraries UCX_MODULE_DIR=$top/modules "$cxctl" run -- ./gtest \
    --gtest_filter="$filter" >"$log" 2>&1 || status=$?
count() { grep -c "^\[ *$1 $2" "$log" || true; }
skipped=$(count SKIP '')
echo "== result"
echo "$(($(count OK '.*ms)') - skipped)) passed, $skipped skipped, $(count FAILED '.*ms)') failed"
# A program that did not come to its end has failed, too.
grep -q '^\[==========\].*ran' "$log" || { tail -n 20 "$log"; exit 1; }
new=$(sed -n 's/^\[ *FAILED *\] \([^ ,]*\).*ms)$/\1/p' "$log" | grep -vxF "$KNOWN" || true)
[ -z "$new" ] || { echo "$new"; exit 1; }
[ "$status" -le 1 ]
