# Sourced by vm-lab: builds a kernel with what Debian's have not, iommufd and VFIO's device files.
# shellcheck shell=bash
# Uses lab, cache, say and the functions of build.sh.
: "${lab:?}" "${cache:?}"

readonly KERNEL_SOURCE=linux-source-6.12

# The source is Debian's package; a quarter of an hour of two cores, once.
build_kernel() {
    local work=$cache/kernel.tmp out=$cache/kernel-iommufd
    mkdir -p "$cache"
    touch "$cache/.ferrocx-lab"
    need flex flex bison libelf-dev bc
    need make make gcc
    need depmod kmod
    rm -rf "$work" "$out"
    mkdir -p "$work/package" "$work/modules"
    say "downloading $KERNEL_SOURCE"
    (cd "$work" && apt-get download "$KERNEL_SOURCE" && dpkg-deb -x "$KERNEL_SOURCE"*.deb package) \
        >"$cache/kernel.log" 2>&1 || skip "no $KERNEL_SOURCE; see $cache/kernel.log"
    tar -xJf "$work/package/usr/src/$KERNEL_SOURCE.tar.xz" -C "$work"
    say "building it; the log is $cache/kernel.log"
    (
        cd "$work/$KERNEL_SOURCE"
        make -s allnoconfig KCONFIG_ALLCONFIG="$lab/iommufd.config"
        nice make -s -j "$(nproc)" bzImage modules
        make -s modules_install INSTALL_MOD_PATH="$work/modules"
    ) >>"$cache/kernel.log" 2>&1 || die "the kernel does not build; see $cache/kernel.log"
    install_kernel "$work/$KERNEL_SOURCE" "$work/modules" "$out"
    rm -rf "$work"
}

# install_kernel TREE MODULES OUT: what a guest needs of a built kernel.
install_kernel() {
    local version
    version=$(make -s -C "$1" kernelrelease)
    mkdir -p "$3"
    cp "$1/.config" "$3/config"
    rm -f "$2/lib/modules/$version"/{build,source}
    mv "$2/lib/modules/$version" "$3/modules"
    cp "$1/arch/x86/boot/bzImage" "$3/vmlinuz"
    say "kernel $version is in $3"
}
