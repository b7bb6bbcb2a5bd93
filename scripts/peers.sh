#!/usr/bin/env bash
# What others' drivers take for what our benches do, in instructions, as instructions.sh counts.
set -euo pipefail

usage() {
    cat <<'EOF'
Usage: scripts/peers.sh [CASE...]

Prints, for each case of scripts/instructions.sh that has a peer (default: all of them), what the
peer takes for one packet, request or completion:

  verbs_*    libmlx5 of rdma-core, locks off, from the call of a function to its return
  face_*     the same with locks: the rows of scripts/rdma/instructions.py, which calls this
  rx_*, tx_* DPDK's mlx5 driver, bursts of 32 on rings of 512

Both work on queues in plain memory; benches/peers plays the device. They are built from the
distribution's source packages with gcc -O2 (DPDK's own functions are those of the installed
libdpdk-dev), once, in target/peers. Where something is missing, one line says what, and the exit
status is 77.
EOF
}

case "${1:-}" in
    -h | --help) usage; exit 0 ;;
    -*) echo "peers.sh: unknown option $1; see --help" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
work=${CARGO_TARGET_DIR:-$PWD/target}/peers
here=$PWD/benches/peers
mkdir -p "$work"

packages=(libibverbs-dev libnl-3-dev libnl-route-3-dev ninja-build cmake pkg-config dpkg-dev gcc
    valgrind)
peers=(libmlx5)
is_alone=${1:+yes}
for name in "$@"; do
    [[ $name == face_* ]] || is_alone=
done
if [ -z "$is_alone" ]; then
    packages+=(libdpdk-dev libnuma-dev libbsd-dev jq meson python3-pyelftools)
    peers+=(dpdk)
fi
missing=()
for package in "${packages[@]}"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "skipped: apt-get install ${missing[*]}"
    exit 77
fi

# source_of PACKAGE[=VERSION] [SUITE]: its original source, unpacked in $work/NAME. The lists of
# this are its own: nothing of the system changes. apt checks what it fetches.
source_of() {
    local name=${1%%=*} suite=${2:-} apt=$work/apt${2:+-$2} sources
    [ ! -e "$work/$name/.unpacked" ] || return 0
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$work/$name.src"
    sources=$apt/source.sources
    sed 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >"$sources"
    [ -z "$suite" ] || sed -i "0,/^Suites:.*/s//Suites: $suite/" "$sources"
    local options=(-o "Dir::Etc::sourcelist=$sources" -o Dir::Etc::sourceparts=- -o
        "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update >"$work/apt.log" 2>&1 || return 1
    # A mirror that lacks a part of the package gives the rest: only the original is needed.
    (cd "$work/$name.src" && apt-get "${options[@]}" source --download-only "$1") \
        >>"$work/apt.log" 2>&1 || true
    compgen -G "$work/$name.src/${name}_*.orig.tar.*" >/dev/null || return 1
    rm -rf "${work:?}/$name"
    mkdir "$work/$name"
    tar -xf "$work/$name.src/$name"_*.orig.tar.* -C "$work/$name" --strip-components=1
    touch "$work/$name/.unpacked"
}

# The suite of Debian whose rdma-core is measured: the same on every machine.
rdma_suite=trixie

build_libmlx5() {
    local tree=$work/rdma-core build=$work/rdma-core/of-peers
    source_of rdma-core "$rdma_suite" || return 1
    if [ ! -f "$build/lib/statics/libmlx5.a" ]; then
        CFLAGS='-O2 -g' cmake -S "$tree" -B "$build" -GNinja -DCMAKE_BUILD_TYPE=None \
            -DENABLE_STATIC=1 -DNO_MAN_PAGES=1 -DNO_PYVERBS=1 -DENABLE_RESOLVE_NEIGH=0 \
            >"$work/libmlx5.log" 2>&1 || return 1
        ninja -C "$build" lib/statics/libmlx5.a lib/statics/libibverbs.a util/librdma_util.a \
            ccan/libccan.a >>"$work/libmlx5.log" 2>&1 || return 1
    fi
    gcc -w -O2 -D_GNU_SOURCE -I"$build/include" -I"$tree/providers/mlx5" -I"$tree" \
        "$here/libmlx5.c" -o "$work/libmlx5" \
        -Wl,--start-group "$build"/lib/statics/lib{mlx5,ibverbs}.a \
        "$build/util/librdma_util.a" "$build/ccan/libccan.a" -Wl,--end-group -lpthread -ldl \
        >>"$work/libmlx5.log" 2>&1
}

build_dpdk() {
    local tree=$work/dpdk libraries version flags
    libraries=$(dirname "$(gcc -print-file-name=librte_eal.a)")
    version=$(dpkg-query -W -f '${Version}' libdpdk-dev)
    source_of "dpdk=$version" || return 1
    if [ ! -f "$tree/of-peers/compile_commands.json" ]; then
        (cd "$tree" && PATH=/usr/bin:/bin:/usr/sbin:/sbin meson setup --buildtype=plain \
            -Dplatform=generic -Ddefault_library=static -Dtests=false \
            -Denable_drivers=bus/auxiliary,bus/pci,bus/vdev,common/mlx5,net/mlx5,mempool/ring \
            of-peers) >"$work/dpdk.log" 2>&1 || return 1
    fi
    # What one file of the driver is compiled with: folders and definitions.
    flags=$(jq -r '[.[] | select(.file | endswith("net/mlx5/mlx5_rx.c"))][0].command' \
        "$tree/of-peers/compile_commands.json" | tr ' ' '\n' |
        grep -E '^-[IDU]|^-include$|^rte_config.h$' | tr '\n' ' ')
    local archives=()
    for name in common_mlx5 bus_auxiliary bus_pci bus_vdev pci ethdev net mbuf mempool ring eal \
        telemetry kvargs meter metrics hash rcu cryptodev security; do
        archives+=("$libraries/librte_$name.a")
    done
    # shellcheck disable=SC2086 # separate words
    (cd "$tree/of-peers" && gcc -w -O2 -std=gnu11 $flags -march=corei7 -c "$here/dpdk_mlx5.c" \
        -o "$work/dpdk_mlx5.o") >>"$work/dpdk.log" 2>&1 || return 1
    gcc -o "$work/dpdk_mlx5" "$work/dpdk_mlx5.o" -Wl,--whole-archive \
        "$libraries"/librte_{mempool_ring,net_mlx5}.a -Wl,--no-whole-archive -Wl,--start-group \
        "${archives[@]}" -Wl,--end-group -libverbs -lmlx5 -lnuma -lbsd -lpthread -ldl -lm \
        >>"$work/dpdk.log" 2>&1
}

# dpdk_of CASE: which of the driver's functions does the same, and what it is asked for
# (benches/peers/dpdk_mlx5.c): of those that can, the one with the fewest instructions.
dpdk_of() {
    case "$1" in
        rx_burst) echo 'rx_vec mlx5_rx_burst_vec' ;;
        rx_burst_timestamps) echo 'rx_vec_timestamps mlx5_rx_burst_vec' ;;
        rx_compressed) echo 'rx_vec_zip mlx5_rx_burst_vec' ;;
        rx_striding) echo 'rx_mprq_vec mlx5_rx_burst_mprq_vec' ;;
        tx_burst) echo 'tx_none_empw_ff mlx5_tx_burst_none_empw' ;;
        tx_checksums) echo 'tx_sc_empw mlx5_tx_burst_sc_empw' ;;
        tx_single_requests) echo 'tx_none_ff mlx5_tx_burst_none' ;;
        tx_inline_60) echo 'tx_i_empw mlx5_tx_burst_i_empw' ;;
        tx_inline_60_single) echo 'tx_i mlx5_tx_burst_i' ;;
        *) return 1 ;;
    esac
}

# counted FUNCTION PROGRAM ARG... N: instructions in FUNCTION and what it calls.
counted() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect="$1" "${@:2}" 2>&1 \
        >/dev/null | sed -n 's/.*Collected : //p'
}

# per_element ELEMENTS FUNCTION PROGRAM ARG...: instructions per element, set-up removed.
per_element() {
    local low high
    low=$(counted "${@:2}" 100)
    high=$(counted "${@:2}" 200)
    [ -n "$low" ] && [ -n "$high" ] && [ "$high" -gt "$low" ] || return 1
    awk -v d=$((high - low)) -v e=$((100 * $1)) 'BEGIN { printf "%.1f", d / e }'
}

# peer_of CASE: its row, or nothing if it has no peer.
peer_of() {
    local name=$1 batch=1 elements=128 mode function_name instructions
    case $name in
        verbs_* | face_*)
            case $name in
                verbs_post_send_inline_32) ;;
                *_32 | face_*_16 | face_*_1) batch=${name##*_} name=${name%_*} ;;
            esac
            [ "$name" != face_poll_last ] || elements=1
            # 77: it has no such case.
            "$work/libmlx5" "$name" "$batch" 1 2>"$work/$1.log" || {
                [ $? -ne 77 ] || return 0
                echo "peers.sh: libmlx5 $name $batch: $(tail -n 1 "$work/$1.log")" >&2
                return 1
            }
            instructions=$(per_element $elements 'measured_*' "$work/libmlx5" "$name" "$batch")
            ;;
        *)
            read -r mode function_name < <(dpdk_of "$name") || return 0
            instructions=$(per_element 480 "$function_name" "$work/dpdk_mlx5" "$mode")
            ;;
    esac
    printf '%-29s %8s\n' "$1" "$instructions"
}

for peer in "${peers[@]}"; do
    # In a condition `set -e` is off: each step of these says so itself when it fails.
    if ! "build_$peer"; then
        echo "skipped: $peer cannot be built; the ends of apt.log and $peer.log in $work:"
        tail -qn 1 "$work/apt.log" "$work/$peer.log" 2>/dev/null || true
        exit 77
    fi
done
if [ $# -eq 0 ]; then
    mapfile -t cases < <(sed -n 's/^ *{ "\(verbs_[a-z0-9_]*\)", .*/\1\n\1_32/p' "$here/libmlx5.c"
        printf 'verbs_post_send_inline_%s\n' {1,8,16,32,64,128,928}{,_32}
        printf 'verbs_%s\n' post_{,srq_}recv{,_32} poll_{cq,recv,srq_recv}{,_32} poll_empty
        sed -n 's/^        \([rt]x_[a-z0-9_]*\)) echo .*/\1/p' "$0")
    set -- "${cases[@]}"
fi
export work
export -f peer_of per_element counted dpdk_of
printf '%s\n' "$@" | xargs -P "$(nproc)" -I '{}' bash -c 'set -eo pipefail; peer_of {}' | sort
