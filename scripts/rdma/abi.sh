#!/usr/bin/env bash
# The interface of libibverbs.so.1 compared with the newest rdma-core of Debian.
set -euo pipefail

usage() {
    cat <<'USAGE'
abi.sh: fetch libibverbs and its headers from Debian's newest suite and compare them with ours.

  scripts/rdma/abi.sh
  scripts/rdma/abi.sh --help

Every name and version that the library exports must be in verbs-lite/abi/symbols.txt, and a C
program that asserts the size and the places of our structures must compile against the headers.
Packages are fetched by apt into a folder of the build, and unpacked there; nothing is installed,
and no right is needed. Without a network the check is skipped.

Environment:
  CARGO_TARGET_DIR    build folder; default: target
  FERROCX_ABI_SUITE   the suite; default: sid
USAGE
}

case ${1-} in
-h | --help) usage; exit 0 ;;
'') ;;
*) usage >&2; exit 2 ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
suite=${FERROCX_ABI_SUITE:-sid}
folder=${CARGO_TARGET_DIR:-$root/target}/abi-$suite
keys=/usr/share/keyrings/debian-archive-keyring.gpg
have apt-get || skip "apt-get is not there: the packages are Debian's"
[ -r $keys ] || skip "no $keys (apt-get install debian-archive-keyring)"
have objdump || skip "objdump is not installed (apt-get install binutils)"
have cc || skip "cc is not installed (apt-get install gcc)"
mirror=$(debian_mirror)
[ -n "$mirror" ] || skip "apt's sources name no mirror of Debian"

# A state of apt's of our own: the machine's lists stay as they are.
rm -rf "$folder"
mkdir -p "$folder"/{lists/partial,archives/partial,packages}
touch "$folder/status"
echo "deb [signed-by=$keys] $mirror $suite main" >"$folder/sources.list"
# How this machine reaches its mirror (proxy, time-outs) holds here too.
apt-config dump | grep '^Acquire::' >"$folder/apt.conf" || true
cat >>"$folder/apt.conf" <<CONF
Dir::Etc::sourcelist "$folder/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State "$folder";
Dir::State::status "$folder/status";
Dir::Cache "$folder";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
APT::Sandbox::User "";
CONF
export APT_CONFIG=$folder/apt.conf
cd "$folder/packages"
apt-get -qq update >"$folder/log" 2>&1 ||
    skip "Debian $suite cannot be reached: $(tail -n 1 "$folder/log")"
apt-get -qq download libibverbs1 libibverbs-dev librdmacm-dev >>"$folder/log" 2>&1 ||
    { tail -n 5 "$folder/log"; exit 1; }
for package in *.deb; do dpkg-deb -x "$package" "$folder/root"; done

cd "$root"
echo "== result"
printf '%s\n' "$folder"/packages/libibverbs1_*.deb |
    sed 's/.*libibverbs1_/Debian '"$suite"': rdma-core /'
FERROCX_RDMA_CORE=$folder/root cargo test -q --locked "$(selection ferrocx-verbs-abi)" --lib \
    system_tests -- --show-output | grep -vE '^(running 0 tests|test result: ok. 0 passed.*|)$'
