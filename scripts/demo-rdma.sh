#!/usr/bin/env bash
# Stock RDMA programs on the software ConnectX: no card, kernel driver, module or privilege.
set -euo pipefail

usage() {
    cat <<'USAGE'
demo-rdma.sh: install what is missing, build libibverbs.so.1, and run stock RDMA programs on it.

  scripts/demo-rdma.sh
  scripts/demo-rdma.sh --debug     build without optimisation: for checks, not for figures
  scripts/demo-rdma.sh --all       also more of UCX and MPI, libfabric, DAPL, fio, an iSER
                                   target, a guest that QEMU migrates, the rest of librdmacm's tools
  scripts/demo-rdma.sh --debian SUITE   the programs of another release of Debian, trixie or sid
  scripts/demo-rdma.sh --help

Each program is run twice, as server and as client, by processes that share nothing but sockets. As
root it installs Debian's packages of the programs and then runs them as user 65534, without
capabilities. A program counts as passed when both of its ends exit with 0.

Another release is unpacked into a folder by mmdebstrap, once (minutes, 1 GB), and its programs run
with it as their root; that needs root, and mounts that nobody else sees.

Environment:
  CARGO_TARGET_DIR      build folder; default: target
  FERROCX_RDMA_ROOTS    where other releases are unpacked; default: ~/.cache/ferrocx-rdma
  FERROCX_NO_INSTALL    set to 1 to install nothing
USAGE
}

profile=(--release)
built=release
all=0
suite=
options=("$@")
while [ $# -gt 0 ]; do
    case $1 in
    --debug) profile=() built=debug ;;
    --all) all=1 ;;
    --debian) suite=${2-} && shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
    esac
    shift
done
[[ $suite =~ ^[a-z]*$ ]] || { usage >&2; exit 2; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
need_rust
# Of another release, everything is in its folder, and what is mounted there nobody else sees.
if [ -n "$suite" ]; then
    is_root || skip "the programs of another release run in a root of their own, which needs root"
    if [ -z "${FERROCX_RDMA_UNSHARED-}" ]; then
        FERROCX_RDMA_UNSHARED=1 exec unshare -m "$0" "${options[@]}"
    fi
    install_missing mmdebstrap:mmdebstrap
fi
[ -n "$suite" ] ||
    install_missing ibv_devinfo:ibverbs-utils ib_send_lat:perftest rping:rdmacm-utils \
        ucx_perftest:ucx-utils mpirun.openmpi:openmpi-bin mpicc.openmpi:libopenmpi-dev cc:gcc \
        setpriv:util-linux pgrep:procps
[ $all -eq 0 ] || [ -n "$suite" ] ||
    install_missing fi_pingpong:libfabric-bin mpirun.mpich:mpich mpicc.mpich:libmpich-dev \
        dtest:dapl2-utils fio:fio qemu-system-x86_64:qemu-system-x86 qemu-io:qemu-utils \
        python3:python3-minimal
for program in ibv_devinfo ib_send_lat rping; do
    [ -n "$suite" ] || have "$program" ||
        skip "$program is not installed (apt-get install ibverbs-utils perftest rdmacm-utils)"
done

is_built "$built" || cargo build "${profile[@]}" --locked -q -p ferrocx-verbs-abi -p ferrocx-cxctl

# make_tree: unpacks the release, unless that was done before.
make_tree() {
    local roots=${FERROCX_RDMA_ROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/ferrocx-rdma}
    tree=$roots/$suite
    [ ! -e "$tree/.done" ] || return 0
    say "unpacking Debian $suite into $tree (minutes, once)"
    rm -rf "$tree"
    mkdir -p "$tree"
    apt-config dump 2>/dev/null | grep '^Acquire::' >"$roots/apt.conf" || true
    local packages=ibverbs-utils,ibverbs-providers,perftest,rdmacm-utils,procps,gcc,libc6-dev
    packages+=,ucx-utils,libfabric-bin,openmpi-bin,libopenmpi-dev,qperf
    mmdebstrap --variant=minbase --format=tar --include="$packages" --aptopt="$roots/apt.conf" \
        --dpkgopt=force-unsafe-io "$suite" - 2>"$roots/$suite.log" |
        tar -x -C "$tree" --exclude='./dev/*' ||
        skip "no Debian $suite could be unpacked; see $roots/$suite.log"
    echo '127.0.0.1 localhost' >"$tree/etc/hosts"
    touch "$tree/.done"
}

# An ordinary user need not be able to read the build folder. `there` is `folder` as programs of
# another release see it.
tree=
if [ -n "$suite" ]; then
    make_tree
    for mount in proc dev sys; do mount --rbind "/$mount" "$tree/$mount"; done
    folder=$(mktemp -d -p "$tree/tmp")
else
    folder=$(mktemp -d)
fi
trap 'rm -rf "$folder"' EXIT
there=${folder#"$tree"}
cp "${CARGO_TARGET_DIR:-target}/$built"/{cxctl,libibverbs.so} "$folder"
chmod -R a+rX "$folder"

# ordinary COMMAND...: runs it as an ordinary user, in a folder of nobody's.
ordinary() {
    cd /
    local user=(setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all
        --no-new-privs)
    # Its own programs, wherever this machine has its.
    [ -z "$tree" ] || PATH=/usr/sbin:/usr/bin:/sbin:/bin exec chroot "$tree" "${user[@]}" "$@"
    [ "$(id -u)" -eq 0 ] || exec "$@"
    exec "${user[@]}" "$@"
}

# says PATTERN COMMAND...: whether what a program prints, however it ends, has the pattern.
says() {
    local pattern=$1 said
    shift
    said=$( (ordinary "$@") 2>&1) || true
    grep -q -e "$pattern" <<<"$said"
}

failed=0
# Seconds that both ends of a program have. They take two on an idle machine; on one with much else
# to do, processes wait for a processor more often than they have one.
limit=300
# ended STATUS PROGRAM...: says how both ends of a program ended, and its last figures.
ended() {
    local status=$1 figures
    shift
    if [ "$status" -eq 0 ]; then
        figures=$(grep -aE '^( *[0-9]|Final:)' "$folder/log" | tail -n 1 | tr -s ' \t' ' ' || true)
        printf 'passed  %-44s %s\n' "$*" "$figures"
    else
        tail -n 20 "$folder/log"
        printf 'FAILED  %s, status %s\n' "$*" "$status"
        failed=1
    fi
}

# Devices of programs, where they have others than one model: of both ends, or where each has
# arguments of its own, of the server.
devices=()

# start PROGRAM...: runs both ends of a program.
start() {
    (ordinary timeout $limit "$there/cxctl" run -n 2 "${devices[@]}" -- "$@") >"$folder/log" 2>&1
}

# both PROGRAM...: runs both ends, and prints how they ended.
both() {
    local status=0
    start "$@" || status=$?
    ended $status "$@"
}

# impaired PROGRAM...: the same on a wire that loses, repeats and reorders, and is captured; tshark,
# where it is installed, must find nothing in the captures to complain of.
impaired() {
    local status=0 frames
    frames=$(mktemp -d "$folder/frames.XXXX")
    chmod a+rwx "$frames"
    (ordinary timeout $limit "$there/cxctl" run -n 2 --loss 10000 --duplicate 10000 \
        --reorder 10000 --capture "${frames#"$tree"}" -- "$@") >"$folder/log" 2>&1 || status=$?
    for capture in "$frames"/*.pcapng; do
        have tshark || break
        tshark -r "$capture" -T fields -e _ws.malformed -e infiniband.bth.opcode \
            >"$folder/dissected" 2>>"$folder/log" && grep -q '[0-9]' "$folder/dissected" || status=1
        ! grep -i malformed "$folder/dissected" >>"$folder/log" || status=1
    done
    ended $status "$@" '(1 % lost, captured)'
}

# interrupted PROGRAM...: the same, while the server has no processor for two seconds.
interrupted() {
    local status=0 run server=
    start "$@" &
    run=$!
    until server=$(pgrep -s 0 -oxf "$*") || ! kill -0 $run 2>/dev/null; do sleep 0.1; done
    sleep 3
    # One that has failed already is reported below.
    if [ -n "$server" ] && kill -STOP "$server"; then
        sleep 2
        kill -CONT "$server" || true
    fi
    wait $run || status=$?
    ended $status "$@" "(stopped for 2 s)"
}

# apart SERVER... -- CLIENT...: runs the ends of a program that have arguments of their own. The
# client calls the server by an address that every machine has. With `stays` set, the server waits
# for further clients, and is ended; `as` is what the pair is called; `proof` is what both have to
# say where they end with 0 whatever happened.
apart() {
    local status=0 theirs=0 run server=() looks=0
    while [ "$1" != -- ]; do server+=("$1") && shift; done
    shift
    (ordinary timeout $limit "$there/cxctl" run "${devices[@]}" -- "${server[@]}") \
        >"$folder/server" 2>&1 &
    run=$!
    # It is there when it listens, or after ten seconds: a member of a group does not.
    until grep -q '@ferrocx-cm/' /proc/net/unix || ! kill -0 $run 2>/dev/null ||
        [ $((looks += 1)) -gt 200 ]; do
        sleep 0.05
    done
    (ordinary timeout $limit "$there/cxctl" run -- "$@") >"$folder/log" 2>&1 || status=$?
    # One that is to stay and has not fails the pair.
    [ -z "${stays-}" ] || kill -0 $run 2>/dev/null || status=1
    # A server whose client has failed waits for the next one, too.
    [ $status -eq 0 ] && [ -z "${stays-}" ] || kill $run 2>/dev/null || true
    wait $run || theirs=$?
    [ -n "${stays-}" ] || [ $status -ne 0 ] || status=$theirs
    [ -z "${proof-}" ] ||
        [ "$(grep -lae "$proof" "$folder/server" "$folder/log" | wc -l)" -eq 2 ] || status=1
    cat "$folder/server" >>"$folder/log"
    ended $status "${as:-${server[*]}, $*}"
}

# inside COMMAND...: runs it where the programs are, as the user that this script has.
inside() {
    if [ -n "$tree" ]; then
        PATH=/usr/sbin:/usr/bin chroot "$tree" "$@"
    else
        "$@"
    fi
}

# wanted PROGRAM...: whether all of them are there; says which is not.
wanted() {
    local program
    for program in "$@"; do
        # shellcheck disable=SC2016 # The inner shell expands it.
        ! inside sh -c 'command -v "$1"' sh "$program" >/dev/null || continue
        printf 'skipped %s: %s is not installed\n' "$1" "$program"
        return 1
    done
}

# alone COMMAND...: runs what starts both ends itself, and prints how it ended.
alone() {
    local status=0
    (ordinary timeout $limit "$@") >"$folder/log" 2>&1 || status=$?
    ended $status "${as:-${*//"$there/"/}}"
}

# ranks MPI COUNT TRANSPORTS: messages and collectives among so many processes, of openmpi or mpich.
ranks() {
    local program=$folder/mpi.$1
    wanted "mpicc.$1" "mpirun.$1" || return 0
    if [ ! -e "$program" ]; then
        cp scripts/rdma/mpi.c "$folder"
        inside "mpicc.$1" -O1 -Wall -Werror -o "$there/mpi.$1" "$there/mpi.c"
        chmod a+rx "$program"
    fi
    # A rank's way to the others, and nothing else: no shared memory, no TCP.
    local options=(-np "$2" --oversubscribe --mca pml ucx --mca btl ^openib -x UCX_TLS
        -x UCX_MAX_RNDV_RAILS -x UCX_RNDV_THRESH)
    [ "$1" = openmpi ] || options=(-n "$2" -genv MPIR_CVAR_NOLOCAL 1)
    UCX_TLS=$3 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        as="mpirun.$1 mpi.c, $2 ranks, $3" \
        alone "mpirun.$1" "${options[@]}" "$there/cxctl" run "${devices[@]}" -- "$there/mpi.$1"
}

# of_ucx TRANSPORTS TEST...: its own measurements over these transports.
of_ucx() {
    wanted ucx_perftest || return 0
    # Some builds are MPI programs unless they are told not to be.
    local transports=$1 test options=()
    if says '-P <0|1>' ucx_perftest -h; then options=(-P 0); fi
    for test in "${@:2}"; do
        UCX_TLS=$transports both ucx_perftest "${options[@]}" -t "$test" -n 1000 -w 100
    done
}

echo "== result"
(ordinary "$there/cxctl" run -- ibv_devinfo) | sed -n '1,4p'
# perftest of 2025 asks for a capability of mlx5's own library first, and gives up without it.
perf=()
if says no_ddp ib_send_lat --help; then perf=(--no_ddp); fi
for options in '' -e -N; do
    # shellcheck disable=SC2086 # No option is none.
    both ibv_rc_pingpong -g 0 -c $options
done
for service in uc ud srq; do both "ibv_${service}_pingpong" -g 0 -c; done
for verb in send write read atomic; do both "ib_${verb}_lat" -F "${perf[@]}" -n 1000; done
for verb in send write read; do both "ib_${verb}_bw" -F "${perf[@]}" -n 500; done
both ib_send_lat -F "${perf[@]}" -e -n 1000
both ib_send_lat -F "${perf[@]}" -c UD -n 1000
both ib_send_bw -F "${perf[@]}" --use-srq -n 500
both ib_write_bw -F "${perf[@]}" -q 8 -n 200
impaired ibv_rc_pingpong -g 0 -c -n 100
# What follows finds its peer by librdmacm, the stock one.
both ib_send_lat -R -F "${perf[@]}" -n 1000
apart rping -s -V -C 20 -- rping -c -V -C 20 -a 127.0.0.1
apart ucmatose -c 4 -- ucmatose -c 4 -s 127.0.0.1
apart udaddy -- udaddy -s 127.0.0.1
apart rdma_server -- rdma_client -s 127.0.0.1
apart rstream -S 4096 -C 200 -T v -- rstream -S 4096 -C 200 -T v -s 127.0.0.1
interrupted ib_write_bw -F "${perf[@]}" -D 5
# To the second of two devices.
devices=(--device model --device model)
both ibv_rc_pingpong -d ferrocx1 -g 0 -c
devices+=(--address 127.89.0.1 --address 127.89.0.2)
apart rping -s -V -C 20 -- rping -c -V -C 20 -a 127.89.0.2
devices=()
rc=rc_verbs,ud_verbs:aux ud=ud_verbs
# Of sid's UCX 1.23, built without RDMA, there is nothing to run, nor of what runs over it.
has_ucx=1
inside sh -c 'ls /usr/lib/*/ucx/libuct_ib.so.0' >/dev/null 2>&1 || has_ucx=0
if [ $has_ucx -eq 1 ]; then
    of_ucx $rc tag_lat ucp_put_lat
    ranks openmpi 2 $rc,self
else
    echo 'skipped UCX, Open MPI, MPICH: there is no libuct_ib.so.0 of UCX'
fi
[ $all -eq 1 ] || exit $failed

# Options of perftest, each with the tests that have it.
for test in {send,write,read,atomic}_bw; do
    both "ib_$test" -F "${perf[@]}" -q 8 -n 200
    both "ib_$test" -F "${perf[@]}" -b -n 300
done
for test in {send,write,read,atomic}_{bw,lat}; do both "ib_$test" -F "${perf[@]}" -R -n 300; done
for test in {send,read,atomic}_{bw,lat}; do both "ib_$test" -F "${perf[@]}" -e -n 300; done
for test in {send,write}_{bw,lat}; do
    both "ib_$test" -F "${perf[@]}" -I 64 -s 32 -n 300
    both "ib_$test" -F "${perf[@]}" -c UC -n 300
done
for test in send_{bw,lat}; do
    both "ib_$test" -F "${perf[@]}" -c UD -n 300
    both "ib_$test" -F "${perf[@]}" --use-srq -n 200
done
for test in {send,write,read}_bw; do both "ib_$test" -F "${perf[@]}" -a -n 50; done
both ibv_xsrq_pingpong -g 0
for test in {send,write,read,atomic}_{bw,lat}; do
    both "ib_$test" -F "${perf[@]}" -c XRC -n 300
done
for options in -b '-q 4' --use-srq; do
    # shellcheck disable=SC2086 # An option and its number.
    both ib_send_bw -F "${perf[@]}" -c XRC $options -n 200
done
apart ucmatose -c 10 -C 20 -- ucmatose -c 10 -C 20 -s 127.0.0.1
apart mckey -m 239.1.1.1 -p 0x0111 -b 127.0.0.1 -- mckey -m 239.1.1.1 -b 127.0.0.1 -s
for endpoint in 'verbs -e msg' 'verbs -e dgram' 'verbs;ofi_rxm -e rdm' 'verbs;ofi_rxd -e rdm'; do
    # shellcheck disable=SC2086 # Provider, option and endpoint are words of their own.
    both fi_pingpong -c -I 50 -p $endpoint
done

if [ $has_ucx -eq 1 ]; then
    of_ucx $rc tag_bw stream_lat ucp_get ucp_fadd
    of_ucx $ud tag_lat tag_bw stream_lat
    ranks openmpi 2 $ud,self
    ranks mpich 2 $rc,self
    ranks mpich 2 $ud,self
    for mpi in openmpi mpich; do
        for transports in $rc,self $ud,self; do
            ranks $mpi 4 "$transports"
            ranks $mpi 8 "$transports"
        done
    done
    # Long messages by two devices at once.
    devices=(--device model --device model)
    export UCX_MAX_RNDV_RAILS=2 UCX_RNDV_THRESH=8k
    ranks openmpi 2 $rc,self
    ranks openmpi 4 $rc,self
    unset UCX_MAX_RNDV_RAILS UCX_RNDV_THRESH
    devices=()
fi

# UCX's storage protocol between a client and a server, which compare what they read and write.
if [ $has_ucx -eq 1 ] && wanted io_demo; then
    demo=(io_demo -p 14337 -q -d '8:65536')
    stays=1 as='io_demo -q' UCX_TLS=$rc apart "${demo[@]}" -- \
        "${demo[@]}" -o write,read -i 200 -c 1 127.0.0.1
fi

# DAPL over rdma_cm; the client compares what comes back.
if wanted dtest; then
    echo 'cma u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "127.0.0.1 0" ""' \
        >"$folder/dat.conf"
    export DAT_OVERRIDE=$there/dat.conf
    as='dtest -D' proof='Test Complete. PASSED' \
        apart dtest -P cma -D -b 65536 -- dtest -P cma -D -b 65536 -h 127.0.0.1
    as=dtestx proof='test PASSED' apart dtestx -P cma -- dtestx -P cma -h 127.0.0.1
    as=dtestsrq proof='Test Complete' apart dtestsrq -P cma -- dtestsrq -P cma -h 127.0.0.1
fi

# fio, which checks what was sent by a checksum; what was written or read it does not look at. It
# asks for no repetition when no buffer waits: hence one for each message.
if wanted fio; then
    fio=(fio --thread --name=rdma --ioengine=rdma --port=14338 --bs=64k --size=4m)
    check=(--verify=crc32c --verify_state_save=0)
    as='fio --verb=send --verify=crc32c' apart "${fio[@]}" --rw=read --iodepth=64 "${check[@]}" -- \
        "${fio[@]}" --rw=write --verb=send --iodepth=4 "${check[@]}" --do_verify=0 \
        --hostname=127.0.0.1
    for verb in write read; do
        as="fio --verb=$verb" apart "${fio[@]}" --rw=read -- \
            "${fio[@]}" --rw=write --verb=$verb --iodepth=4 --hostname=127.0.0.1
    done
fi

# An iSER target, and QEMU's disk over it. To install the target would start it.
if [ -z "$tree" ] && ! have tgtd && have apt-get && may_install; then
    (cd "$folder" && apt-get -q download tgt && dpkg-deb -x tgt_*.deb .) >"$folder/log" 2>&1 || true
    PATH=$PATH:$folder/usr/sbin
fi
if wanted tgtd tgtadm qemu-io qemu-img; then
    # It has a module for that, no command, and lists it without having it.
    has_iser() { ! says "Unknown protocol 'iser'" qemu-img info iser://127.0.0.1:1/none/0; }
    has_iser || [ -n "$tree" ] || install_missing iser:qemu-block-extra
    if has_iser; then
        cp scripts/rdma/iser.sh "$folder"
        alone "$there/iser.sh" "$there/cxctl"
    else
        echo 'skipped tgtd: qemu-img has no iser (apt-get install qemu-block-extra)'
    fi
fi

# A guest that goes on elsewhere, its memory compared.
if wanted qemu-system-x86_64 python3; then
    cp scripts/rdma/{guest.c,migrate.py} "$folder"
    if inside gcc -m32 -O1 -Wall -Werror -ffreestanding -fno-pic -fno-stack-protector -nostdlib \
        -static -Wl,-n,--build-id=none,-Ttext=0x100000 -o "$there/guest" "$there/guest.c" \
        >"$folder/log" 2>&1; then
        chmod a+rx "$folder/guest"
        for capability in '' rdma-pin-all; do
            # shellcheck disable=SC2086 # No capability is none.
            alone python3 "$there/migrate.py" "$there/cxctl" "$there/guest" $capability
        done
    else
        echo "skipped qemu-system-x86_64: gcc makes no program for i386: $(tail -n 1 "$folder/log")"
    fi
fi
exit $failed
