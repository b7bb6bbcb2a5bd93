#!/usr/bin/env bash
# Stock RDMA programs on the software ConnectX: no card, kernel driver, module or privilege.
set -euo pipefail

usage() {
    cat <<'USAGE'
demo-rdma.sh: install what is missing, build libibverbs.so.1, and run stock RDMA programs on it.

  scripts/demo-rdma.sh
  scripts/demo-rdma.sh --debug     build without optimisation: for checks, not for figures
  scripts/demo-rdma.sh --help

Each program is run twice, as server and as client, by processes that share nothing but sockets. As
root it installs Debian's packages of the programs and then runs them as user 65534, without
capabilities. A program counts as passed when both of its ends exit with 0.

Environment:
  CARGO_TARGET_DIR      build folder; default: target
  FERROCX_NO_INSTALL    set to 1 to install nothing
USAGE
}

profile=(--release)
built=release
case ${1-} in
'') ;;
--debug) profile=() built=debug ;;
-h | --help) usage; exit 0 ;;
*) usage >&2; exit 2 ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
need_rust
install_missing ibv_devinfo:ibverbs-utils ib_send_lat:perftest setpriv:util-linux
for program in ibv_devinfo ib_send_lat; do
    have "$program" || skip "$program is not installed (apt-get install ibverbs-utils perftest)"
done

cargo build "${profile[@]}" --locked -q -p ferrocx-verbs-abi -p ferrocx-cxctl
# An ordinary user need not be able to read the build folder.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "${CARGO_TARGET_DIR:-target}/$built"/{cxctl,libibverbs.so} "$folder"
chmod -R a+rX "$folder"

# ordinary COMMAND...: runs it as an ordinary user, in a folder of nobody's.
ordinary() {
    cd /
    [ "$(id -u)" -eq 0 ] || exec "$@"
    exec setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --no-new-privs "$@"
}

failed=0
# both PROGRAM...: runs both ends of a program, and prints its last figures.
both() {
    local log=$folder/log status=0 figures
    (ordinary timeout 60 "$folder/cxctl" run -n 2 -- "$@") >"$log" 2>&1 || status=$?
    if [ $status -eq 0 ]; then
        figures=$(grep -E '^ *[0-9]' "$log" | tail -n 1 | tr -s ' \t' ' ')
        printf 'passed  %-44s %s\n' "$*" "$figures"
    else
        tail -n 20 "$log"
        printf 'FAILED  %s, status %s\n' "$*" "$status"
        failed=1
    fi
}

echo "== result"
(ordinary "$folder/cxctl" run -- ibv_devinfo) | sed -n '1,4p'
for options in '' -e -N; do
    # shellcheck disable=SC2086 # No option is none.
    both ibv_rc_pingpong -g 0 -c $options
done
for service in uc ud srq; do both "ibv_${service}_pingpong" -g 0 -c; done
for verb in send read atomic; do both "ib_${verb}_lat" -F -n 1000; done
for verb in send write read; do both "ib_${verb}_bw" -F -n 500; done
both ib_send_lat -F -e -n 1000
both ib_send_lat -F -c UD -n 1000
both ib_send_bw -F --use-srq -n 500
both ib_write_bw -F -q 8 -n 200
exit $failed
