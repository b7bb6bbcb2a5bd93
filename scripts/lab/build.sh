# Sourced by vm-lab: makes the cached QEMU and the cached guest.
# shellcheck shell=bash
# Uses lab, cache, say and skip of vm-lab; fills QEMU with the command that starts it, and IMAGE.
: "${lab:?}" "${cache:?}"

readonly SUITE=trixie
readonly GUEST_PACKAGES=linux-image-amd64,initramfs-tools,zstd,kmod,udev,busybox,iproute2,\
iputils-ping,iputils-arping,ethtool,iperf3,tcpdump,pciutils,procps,rdma-core,ibverbs-utils,\
ibverbs-providers,rdmacm-utils,perftest,python3-pyverbs,python3-scapy,nvme-cli,fio,\
e2fsprogs,xfsprogs,ucx-utils,\
nfs-kernel-server,nfs-common,\
librte-net-mlx5-25,librte-mempool-ring25,librte-bitratestats25,librte-bpf25,librte-cmdline25,\
librte-crypto-scheduler25,librte-gro25,librte-gso25,librte-latencystats25,librte-net-bnxt25,\
librte-net-bond25,librte-net-dpaa25,librte-net-i40e25,librte-net-iavf25,librte-net-ice25,\
librte-net-ixgbe25,librte-pdump25
# dpdk-testpmd is in a package for developers that asks for every driver there is; above are the
# libraries that the program itself asks for.
# shellcheck disable=SC2016 # expanded by mmdebstrap's shell
readonly TESTPMD_HOOK='chroot "$1" sh -ec "cd /tmp && apt-get download dpdk-dev &&
    dpkg --fsys-tarfile dpdk-dev_*.deb | tar -x -C / ./usr/bin/dpdk-testpmd && rm dpdk-dev_*.deb"'
# Only what mounts the root disk; everything else is loaded from it. Boots faster than MODULES=most.
readonly INITRD_MODULES='virtio_pci virtio_blk ext4'
# Nor udev, which would look for more: 3.5 s of 14 of a boot. It also hands on /dev, which this
# script does instead.
readonly NO_UDEV=(--dpkgopt='path-exclude=/usr/share/initramfs-tools/hooks/udev'
    --dpkgopt='path-exclude=/usr/share/initramfs-tools/scripts/*/udev')
# shellcheck disable=SC2016 # expanded in the guest
readonly MOVE_DEV='#!/bin/sh
[ "$1" = prereqs ] || mount -n -o move /dev "$rootmnt/dev"'
# The guest carries two kernels: the suite's own, and the newer one of its backports.
readonly KERNELS='stable backports'
# Adds the backports to the sources; nothing comes from there unasked.
# shellcheck disable=SC2016 # expanded by mmdebstrap's shell
readonly BACKPORTS_HOOK='sed -n "s/ '$SUITE' / '$SUITE'-backports /p" "$1/etc/apt/sources.list" \
    >"$1/etc/apt/sources.list.d/backports.list"'

QEMU=()
IMAGE=''

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
            --setup-hook="$BACKPORTS_HOOK" \
            --setup-hook='printf "%s\n" "Package: *" "Pin: release n='$SUITE'-backports" \
                "Pin-Priority: 500" >"$1/etc/apt/preferences.d/backports"'
    fi
    # Where it looks for all of its files, beside what runs it: without, it takes modules of the
    # host's QEMU for those that were not unpacked, and does not start.
    ln -sfn ../../.. "$lib/qemu-bundle"
    QEMU=("$lib/ld-linux-x86-64.so.2" --library-path "$lib:$lib/pulseaudio"
        "$cache/qemu/usr/bin/$own")
    "${QEMU[@]}" -device help 2>/dev/null | grep -q '"vfio-user-pci"' ||
        skip "the QEMU below $cache/qemu has no vfio-user-pci"
}

# Changes when what goes into the guest changes.
guest_recipe() {
    {
        echo "$SUITE $GUEST_PACKAGES $TESTPMD_HOOK $INITRD_MODULES $KERNELS ${NO_UDEV[*]} $MOVE_DEV"
        cat "$lab/guest-init"
    } | sha256sum
}

# take_kernels ROOT DIR: the kernels of the guest by age, to DIR/NAME/vmlinuz and initrd.img.
take_kernels() {
    local boot=$1/boot dir=$2 name version versions
    mapfile -t versions < <(cd "$boot" && printf '%s\n' vmlinuz-* | sort -V)
    for name in $KERNELS; do
        version=${versions[0]#vmlinuz-}
        versions=("${versions[@]:1}")
        mkdir -p "$dir/$name"
        cp "$boot/vmlinuz-$version" "$dir/$name/vmlinuz"
        cp "$boot/initrd.img-$version" "$dir/$name/initrd.img"
        cp "$boot/config-$version" "$dir/$name/config"
    done
    [ ${#versions[@]} -eq 0 ] || die "kernels that nobody asked for: ${versions[*]}"
}

# Fills IMAGE with the folder of the guest's image and kernels. Each recipe has its own, so that
# guests of an older one, which may be running, keep theirs.
find_guest() {
    local dir as_root=()
    IMAGE=$cache/guest-$(guest_recipe | cut -c 1-12)
    [ ! -s "$IMAGE/guest.ext4" ] || return 0
    # shellcheck disable=SC2016 # expanded by mmdebstrap's shell
    make_root "$cache/guest" "$GUEST_PACKAGES" \
        "${NO_UDEV[@]}" \
        --essential-hook='cd "$1/etc" && mkdir -p initramfs-tools/conf.d && cd initramfs-tools
            mkdir -p scripts/init-bottom
            echo MODULES=list >conf.d/lab
            printf "%s\n" '"$INITRD_MODULES"' >modules
            printf "%s\n" '"'$MOVE_DEV'"' >scripts/init-bottom/dev
            chmod 755 scripts/init-bottom/dev' \
        --setup-hook="$BACKPORTS_HOOK" \
        --customize-hook='chroot "$1" apt-get install -y -q --no-install-recommends \
            -t '$SUITE'-backports linux-image-amd64' \
        --customize-hook="$TESTPMD_HOOK"
    install -m 755 "$lab/guest-init" "$cache/guest/lab-init"
    dir=$IMAGE.tmp
    rm -rf "$dir"; mkdir "$dir"
    # Files of an unprivileged user become root's inside the image.
    [ "$(id -u)" -eq 0 ] || as_root=(unshare --map-root-user)
    "${as_root[@]}" mke2fs -q -t ext4 -L lab -d "$cache/guest" "$dir/guest.ext4" 3G
    # The kernels and their initrds are all that is still needed outside the image.
    take_kernels "$cache/guest" "$dir"
    rm -rf "$cache/guest"
    mv "$dir" "$IMAGE"
}

build() {
    [ "$(uname -m)" = x86_64 ] || skip "the lab's guest is x86-64, this host is $(uname -m)"
    mkdir -p "$cache"
    touch "$cache/.ferrocx-lab"
    exec 8>"$cache/lock"
    flock 8
    if [ -z "$(find "$cache" -maxdepth 1 -name 'guest-*' -print -quit)" ] ||
        [ ! -d "$cache/qemu" ]; then
        # The keyring is only missing on hosts that are not Debian.
        need mmdebstrap mmdebstrap debian-archive-keyring uidmap
        need mke2fs e2fsprogs
    fi
    find_qemu
    find_guest
    exec 8>&-
}
