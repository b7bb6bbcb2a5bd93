# about: stock Linux shows our NVMe over RDMA target that it has a key, or is refused
# machine: vfio
# program: ferrocx-cxctl cxctl ferrocx-nvmf-target nvmf-target
# refusals: none
# timeout: 600
# shellcheck shell=bash source=scripts/lab/nvmf.sh source-path=SCRIPTDIR
source /host/lab/nvmf.sh

readonly HOST=nqn.2026-11.org.ferrocx:host HOSTID=00000000-0000-4000-8000-000000000001
RESULTS=()

# key NAME BYTES HASH: a new key of nvme-cli's into a file that only we can read.
key() {
    (umask 077 && nvme gen-dhchap-key -n "$HOST" -l "$2" -m "$3" >"/run/$1") ||
        fail 'nvme-cli makes no key'
}

# asks_for HASH GROUP KEY [CONTROLLER_KEY]: of our target, from now on.
asks_for() {
    local own=''
    [ -z "${4:-}" ] || own=", \"controller_secret_file\": \"/run/$4\""
    check rpc key.set "{\"nqn\": \"$NQN\", \"key\": {\"host\": \"$HOST\",
        \"secret_file\": \"/run/$3\", \"hashes\": [\"$1\"], \"groups\": [\"$2\"]$own}}"
}

# comes KEY [CONTROLLER_KEY] [OPTION...]: Linux connects with these keys.
comes() {
    local keys=()
    [ "$1" = - ] || keys+=(-S "$(cat "/run/$1")")
    [ "${2:--}" = - ] || keys+=(-C "$(cat "/run/$2")")
    shift "$(($# > 2 ? 2 : $#))"
    timeout 120 nvme connect -t rdma -a "$OURS_AT" -s 4420 -n "$NQN" -q "$HOST" -I "$HOSTID" \
        -i 1 "${keys[@]}" "$@"
}

# shown: how the only host that is there has shown who it is.
shown() {
    rpc controller.list | python3 -c 'import json, sys
print(json.load(sys.stdin)[0]["authentication"])'
}

shows() { [ "$(shown)" = "$1" ]; }
nobody_is_there() { [ "$(rpc controller.list)" = '[]' ]; }
goes() {
    must nvme disconnect -n "$NQN"
    until_true 20 nobody_is_there || fail 'a controller stayed'
}

# taken HASH GROUP KEY [CONTROLLER_KEY]: Linux gets in with these, and they are what was used.
taken() {
    local hash=$1 group=$2 expected="$1, $2${4:+, both ways}"
    asks_for "$@"
    shift 2
    must comes "$@"
    until_true 30 has_disk 1 || fail "no disk with $expected"
    shows "$expected" || fail "$expected was to be used, and $(shown) was"
    RESULTS+=("$expected")
}

# stranger WHAT KEY [CONTROLLER_KEY]: Linux does not get in with these.
stranger() {
    local what=$1
    shift
    ! comes "$@" || fail "a host was let in: $what"
    until_true 20 nobody_is_there || fail "a controller stayed: $what"
    RESULTS+=("refused: $what")
}

ready_for_nvmf
configure "socket = \"$SOCKET\"" <<TOML
[[subsystem.namespace]]
size = "16MiB"
TOML
start_target
key one 32 0
key two 48 2
key three 64 3
taken sha256 null one
goes
taken sha512 ffdhe2048 two three
fio_verify in "$(disk 1)" --rw=randwrite --bs=4k --iodepth=8 --size=1M
# Another key, while commands go on; the file in sysfs begins it.
asks_for sha384 ffdhe3072 one three
fio_verify again "$(disk 1)" --rw=randwrite --bs=4k --iodepth=8 --size=1M --loops=2 &
fio=$!
control=$(dirname "$(namespace_of hostnqn "$HOST")")
cat /run/one >"$control/dhchap_secret" || fail 'no other key'
until_true 20 shows 'sha384, ffdhe3072, both ways' || fail "not again: $(shown)"
RESULTS+=("again: $(shown)")
wait "$fio" || fail 'fio failed while the host authenticated itself again'
goes
asks_for sha384 ffdhe2048 one two
stranger 'no key' -
stranger 'another key' two
stranger 'the target has another key' one three
if [ "$FERROCX_NVMF_AUTH" = all ]; then
    for hash in sha256 sha384 sha512; do
        for group in null ffdhe2048 ffdhe3072 ffdhe4096 ffdhe6144 ffdhe8192; do
            taken "$hash" "$group" two one
            goes
        done
    done
fi
# Whoever has no key may come as ever.
must rpc key.remove "{\"nqn\": \"$NQN\", \"host\": \"$HOST\"}"
must comes -
until_true 30 has_disk 1 || fail 'no disk without a key'
shows None || fail 'a host without a key is said to have one'
goes
! grep -q 'DHHC-1' /run/target.log || fail 'a key is in the log'
stop_target TERM
printf '%s\n' "${RESULTS[@]}" | tee /host/results
check_dmesg
verdict
