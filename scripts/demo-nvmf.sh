#!/usr/bin/env bash
# A Linux host in a guest mounts a file system from our NVMe over RDMA target: no card.
set -euo pipefail

usage() {
    cat <<'USAGE'
demo-nvmf.sh: serve apps/nvmf-target/examples/ram.toml on the software ConnectX, and let an
unmodified Linux in a QEMU guest connect to it, put a file system on the disk, use and check it.

  scripts/demo-nvmf.sh
  scripts/demo-nvmf.sh --help

The target is a process of this machine. The guest has a port of another software ConnectX, which
the stock mlx5 driver and nvme-rdma drive; a bridge joins the two TAP interfaces that are their
wires. All interfaces are in a network namespace that ends with the script. It needs no root where
users may make namespaces. The first run fetches and unpacks a Debian guest: see scripts/vm-lab.

Environment:
  CARGO_TARGET_DIR      build folder; default: target
  FERROCX_LAB_DIR       where guest and results are; see scripts/vm-lab --help

Exit status: 0 the guest's checks passed, 77 skipped, anything else failed.
USAGE
}

inside=
case ${1-} in
'') ;;
--inside) inside=1 ;; # of the namespace
-h | --help) usage; exit 0 ;;
*) usage >&2; exit 2 ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
built=${CARGO_TARGET_DIR:-target}/release

if [ -z "$inside" ]; then
    need_rust
    install_missing ip:iproute2 unshare:util-linux
    have ip || skip "ip is not installed (apt-get install iproute2)"
    [ -c /dev/net/tun ] || skip "no /dev/net/tun: TAP interfaces cannot be made"
    namespace=(unshare --net)
    is_root || namespace=(unshare --map-root-user --net)
    "${namespace[@]}" true || skip "this user may not make network namespaces; try as root"
    cargo build --release --locked -q -p ferrocx-nvmf-target -p ferrocx-cxctl
    # The guest is fetched where there is a network.
    scripts/vm-lab build
    exec "${namespace[@]}" "$root/scripts/demo-nvmf.sh" --inside
fi

# The scenario's wire has the second of these names.
ip link add fxbridge type bridge mcast_snooping 0
for interface in fxtarget fxguest; do
    ip tuntap add "$interface" mode tap
    ip link set "$interface" master fxbridge up
done
ip link set fxbridge up

log=$(mktemp)
"$built/nvmf-target" --config apps/nvmf-target/examples/ram.toml --device model:tap=fxtarget \
    --wait sleep -v >"$log" 2>&1 &
target=$!
trap 'kill "$target" 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 100); do
    ! grep -q '^listening' "$log" || break
    kill -0 "$target" || break
    sleep 0.1
done
grep '^listening' "$log" || { cat "$log"; die "the target does not listen"; }

status=0
FERROCX_CXCTL=$built/cxctl scripts/vm-lab run nvmf-demo || status=$?
kill "$target"
wait "$target" || status=1
echo "== what the target says"
cat "$log"
exit "$status"
