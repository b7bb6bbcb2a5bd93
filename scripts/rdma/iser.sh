#!/usr/bin/env bash
# A disk of tgtd over iSER: QEMU writes patterns through libiscsi and looks whether it reads them,
# and what the target has in its file is compared.
set -euo pipefail

usage() {
    cat <<'USAGE'
iser.sh CXCTL: start tgtd, write to its disk over iSER by qemu-io, and compare.

Needs tgtd and tgtadm (tgt), qemu-io and qemu-img (qemu-utils, qemu-block-extra). Runs as an
ordinary user; what it makes is in a temporary folder.
USAGE
}
case ${1-} in
'' | -*) usage; [ "${1-}" = --help ] && exit 0 || exit 2 ;;
esac
cxctl=$1

folder=$(mktemp -d)
target=
# tgtd does not end by any other signal, and by tgtadm only when all connections are forgotten.
trap '[ -z "$target" ] || kill -KILL $target 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
readonly NAME=iqn.2026-11.org.ferrocx:disk
# libiscsi 1.19 refuses commands of more than 256 KiB over iSER.
readonly BLOCKS=100 BLOCK_BYTES=196608 STRIDE_BYTES=200704
readonly DISK_BYTES=33554432
truncate -s $DISK_BYTES disk
export TGT_IPC_SOCKET=$folder/socket

"$cxctl" run -- tgtd -f --iser port=3260,pool_sz_mb=64 --iscsi portal=127.0.0.1:14339 &
target=$!
administer() { tgtadm --lld iser --mode "$@"; }
until administer sys --op show >/dev/null 2>&1; do
    kill -0 $target || { echo "tgtd has ended"; exit 1; }
    sleep 0.1
done
administer target --op new --tid 1 -T "$NAME"
administer logicalunit --op new --tid 1 --lun 1 -b "$folder/disk"
# tgtd wants both for iSER: an address, and the name that QEMU says.
administer target --op bind --tid 1 -I ALL
administer target --op bind --tid 1 -Q iqn.2008-11.org.linux-kvm

url=iser://127.0.0.1:3260/$NAME/1
writes=() reads=()
for ((block = 0; block < BLOCKS; block++)); do
    at=$((block * STRIDE_BYTES)) pattern=$((block + 1))
    writes+=(-c "write -q -P $pattern $at $BLOCK_BYTES")
    reads+=(-c "read -q -P $pattern $at $BLOCK_BYTES")
    head -c $BLOCK_BYTES /dev/zero | tr '\0' "\\$(printf %o $pattern)"
    head -c $((STRIDE_BYTES - BLOCK_BYTES)) /dev/zero
done >wanted
truncate -s $DISK_BYTES wanted

"$cxctl" run -- qemu-io -f raw "${writes[@]}" "$url"
cmp disk wanted
"$cxctl" run -- qemu-io -f raw "${reads[@]}" "$url"
"$cxctl" run -- qemu-img dd -f raw -O raw bs=128k if="$url" of=back
cmp back wanted
kill -0 $target
echo "$BLOCKS blocks of $BLOCK_BYTES bytes written, read and compared"
