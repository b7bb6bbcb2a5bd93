# Sourced by vm-lab: makes the cached QEMU and the cached guest.
# shellcheck shell=bash
# Uses lab, cache, say and skip of vm-lab; fills QEMU with the command that starts it.
: "${lab:?}" "${cache:?}"

readonly SUITE=trixie
readonly GUEST_PACKAGES=linux-image-amd64,initramfs-tools,zstd,kmod,udev,busybox,iproute2,\
iputils-ping,iputils-arping,ethtool,iperf3,tcpdump,pciutils,procps,rdma-core,ibverbs-utils,\
ibverbs-providers,rdmacm-utils,perftest,python3-pyverbs,nvme-cli,fio,e2fsprogs,\
nfs-kernel-server,nfs-common
# Only what mounts the root disk; everything else is loaded from it. Boots faster than MODULES=most.
readonly INITRD_MODULES='virtio_pci virtio_blk ext4'

QEMU=()

# need COMMAND PACKAGE...: installs the packages if we may, else says what to install.
need() {
    local command=$1; shift
    command -v "$command" >/dev/null && return
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null &&
        [ "${FERROCX_NO_INSTALL:-0}" != 1 ]; then
        say "installing $*"
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" \
            >"$cache/apt.log" 2>&1 && return
        DEBIAN_FRONTEND=noninteractive apt-get update -q >>"$cache/apt.log" 2>&1 || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" \
            >>"$cache/apt.log" 2>&1 && return
        skip "could not install $*; see $cache/apt.log"
    fi
    skip "$command is missing: apt-get install $* (as root)"
}

# The Debian mirror the host itself uses, or nothing: then mmdebstrap knows one.
host_mirror() {
    if [ -n "${FERROCX_LAB_MIRROR:-}" ]; then
        printf '%s\n' "$FERROCX_LAB_MIRROR"
        return
    fi
    command -v apt-get >/dev/null || return 0
    # shellcheck disable=SC2016 # apt's own placeholders
    apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)' \
        'Created-By: Packages' 2>/dev/null |
        awk -F'|' '$1 == "Debian" && $2 == "Debian" && $3 == "main" { print $4; exit }'
}

# make_root DIR PACKAGES [mmdebstrap option...]: a Debian root unpacked below DIR, without /dev.
make_root() {
    local dir=$1 packages=$2 mirror tmp; shift 2
    tmp=$dir.tmp
    rm -rf "$tmp"; mkdir -p "$tmp"
    mirror=$(host_mirror)
    # How the host reaches its mirror (proxy, time-outs, expiry of a snapshot) holds here too.
    command -v apt-config >/dev/null && apt-config dump | grep '^Acquire::' >"$cache/apt.conf"
    say "making $(basename "$dir") from Debian $SUITE (minutes, once)"
    if ! nice mmdebstrap --variant=minbase --format=tar --include="$packages" \
        --aptopt="$cache/apt.conf" "$@" "$SUITE" - ${mirror:+"$mirror"} \
        2>"$dir.log" | tar -x -C "$tmp" --exclude='./dev/*'; then
        tail -n 5 "$dir.log" >&2
        rm -rf "$tmp"
        skip "no Debian $SUITE could be made; see $dir.log"
    fi
    rm -rf "$dir"; mv "$tmp" "$dir"
}

# A QEMU of the host does if it knows the device; else one is unpacked and run by its own loader.
find_qemu() {
    local own=qemu-system-x86_64 lib=$cache/qemu/usr/lib/x86_64-linux-gnu
    if command -v "$own" >/dev/null &&
        "$own" -device help 2>/dev/null | grep -q '"vfio-user-pci"'; then
        QEMU=("$own")
        return
    fi
    if [ ! -x "$cache/qemu/usr/bin/$own" ]; then
        # shellcheck disable=SC2016 # expanded by mmdebstrap's shell
        make_root "$cache/qemu" qemu-system-x86,seabios \
            --setup-hook='sed -n "s/ '$SUITE' / '$SUITE'-backports /p" "$1/etc/apt/sources.list" \
                >"$1/etc/apt/sources.list.d/backports.list"' \
            --setup-hook='printf "%s\n" "Package: *" "Pin: release n='$SUITE'-backports" \
                "Pin-Priority: 500" >"$1/etc/apt/preferences.d/backports"'
    fi
    export QEMU_MODULE_DIR=$lib/qemu
    QEMU=("$lib/ld-linux-x86-64.so.2" --library-path "$lib:$lib/pulseaudio"
        "$cache/qemu/usr/bin/$own" -L "$cache/qemu/usr/share/qemu"
        -L "$cache/qemu/usr/share/seabios")
    "${QEMU[@]}" -device help 2>/dev/null | grep -q '"vfio-user-pci"' ||
        skip "the QEMU below $cache/qemu has no vfio-user-pci"
}

# Changes when what goes into the guest changes.
guest_recipe() {
    { echo "$SUITE $GUEST_PACKAGES $INITRD_MODULES"; cat "$lab/guest-init"; } | sha256sum
}

find_guest() {
    local image=$cache/guest.ext4 as_root=()
    if [ "$(cat "$cache/guest.recipe" 2>/dev/null)" = "$(guest_recipe)" ]; then
        return
    fi
    # shellcheck disable=SC2016 # expanded by mmdebstrap's shell
    make_root "$cache/guest" "$GUEST_PACKAGES" \
        --essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d"
            echo MODULES=list >"$1/etc/initramfs-tools/conf.d/lab"
            printf "%s\n" '"$INITRD_MODULES"' >"$1/etc/initramfs-tools/modules"'
    install -m 755 "$lab/guest-init" "$cache/guest/lab-init"
    truncate -s 0 "$image"
    # Files of an unprivileged user become root's inside the image.
    [ "$(id -u)" -eq 0 ] || as_root=(unshare --map-root-user)
    "${as_root[@]}" mke2fs -q -t ext4 -L lab -d "$cache/guest" "$image" 3G
    # The kernel and its initrd are all that is still needed outside the image.
    cp -L "$cache/guest/vmlinuz" "$cache/vmlinuz"
    cp -L "$cache/guest/initrd.img" "$cache/initrd.img"
    rm -rf "$cache/guest"
    guest_recipe >"$cache/guest.recipe"
}

build() {
    [ "$(uname -m)" = x86_64 ] || skip "the lab's guest is x86-64, this host is $(uname -m)"
    mkdir -p "$cache"
    touch "$cache/.ferrocx-lab"
    exec 8>"$cache/lock"
    flock 8
    if [ ! -s "$cache/guest.recipe" ] || [ ! -d "$cache/qemu" ]; then
        # The keyring is only missing on hosts that are not Debian.
        need mmdebstrap mmdebstrap debian-archive-keyring uidmap
        need mke2fs e2fsprogs
    fi
    find_qemu
    find_guest
    exec 8>&-
}
