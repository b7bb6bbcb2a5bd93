# blktests' tests of NVMe over fabrics against our target: the whole of scenarios nvmf-blktests and
# nvmf-blktests-backports.
# shellcheck shell=bash source=scripts/lab/nvmf.sh source-path=SCRIPTDIR
source /host/lab/nvmf.sh

# All that can have an external target: reference 10.6.3.
readonly TESTS=(014 018 019 021 022 023 025 026 027 028 029 041 003 004 005 006 008 040 047 061 010
    012 068)
readonly FOLDER=/run/blktests

[ -s /host/lab/blktests.tar ] ||
    skip 'FERROCX_BLKTESTS names no folder; give that of blktests, which is not ours to bring along'
mkdir -p "$FOLDER"
must tar -x -C "$FOLDER" -f /host/lab/blktests.tar
# It does not read the plus in a version of Debian's, such as 6.12.107+deb13.
sed -i 's|s/-\.\*//;s/|s/[-+].*//;s/|' "$FOLDER/common/rc"
# An emulated guest takes longer than 5 s to connect again.
[ ! -e "$FOLDER/tests/nvme/068" ] || sed -i 's/echo 5 >/echo 30 >/' "$FOLDER/tests/nvme/068"
ready_for_nvmf
# The first port of services cannot be the last one: tests take theirs away.
configure "socket = \"$SOCKET\"" 'services = [4430]' <<TOML
[[subsystem.namespace]]
size = "1MiB"
TOML
start_target
export BLKTESTS_RPC="/run/nvmf-target rpc --socket $SOCKET" BLKTESTS_TRADDR=$OURS_AT
export BLKTESTS_HOST_TRADDR=$THEIRS_AT BLKTESTS_FILE=/var/tmp/blktests.img
export NVME_TARGET_CONTROL=$FOLDER/control NVMET_TRTYPES=rdma USE_RXE=1
cp /host/lab/blktests-control.py "$NVME_TARGET_CONTROL"
chmod +x "$NVME_TARGET_CONTROL"
must modprobe nvmet-rdma # is to be there, and does nothing
must modprobe loop
for test in "${TESTS[@]}"; do
    if [ ! -e "$FOLDER/tests/nvme/$test" ]; then
        echo "$test: not in this blktests" | tee -a /host/results
        continue
    fi
    if [ "$test" = 068 ] && [ "$(uname -r | cut -d . -f 1)" -lt 7 ]; then
        echo "$test: this kernel has no delayed removal" | tee -a /host/results
        continue
    fi
    step "nvme/$test"
    # An emulated guest writes all of it in 010; 012 makes a file system that wants more, and beside
    # other work writes that for longer than 400 s.
    size=64 limit=400
    [ "$test" != 012 ] || size=400 limit=1000
    export NVME_IMG_SIZE=${size}M BLKTESTS_SIZE=${size}MiB
    begun=$SECONDS
    outcome=failed
    said=$(cd "$FOLDER" && timeout $limit ./check "nvme/$test" 2>&1) && outcome=passed
    printf '%s\n' "$said"
    ! grep -q '\[not run\]' <<<"$said" || outcome="not run: $(tail -n 1 <<<"$said" | xargs)"
    printf '%s: %s (%s s)\n' "$test" "$outcome" $((SECONDS - begun)) | tee -a /host/results
    [ "$outcome" != failed ] || {
        FAILURES=$((FAILURES + 1))
        tail -n +1 "$FOLDER"/results/*/nvme/"$test"* 2>/dev/null | tail -n 60
        nvme disconnect-all
        rpc subsystem.remove '{"nqn": "nqn.2026-11.org.ferrocx:blktests"}'
        rpc port.remove '{"port": 4420}'
    }
done
cp -r "$FOLDER/results" /host/blktests-results
stop_target TERM
check_dmesg
verdict
