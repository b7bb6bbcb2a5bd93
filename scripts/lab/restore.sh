# Sourced by guest-main: makes the guest again what it was when it had booted, so that the next
# scenario meets nothing of the one before. What cannot be undone is found by `differences`.
# shellcheck shell=bash

BOOTED=''           # what `state` said at boot
declare -A SET=()    # settings at boot, by their file
declare -A MODULE=() # modules at boot

# What a scenario may change and the next one would meet, a line each. Few processes: an emulated
# machine takes its time to start one.
state() {
    sed 's/ .*//; s/^/module /' /proc/modules | sort
    ip -o link | sed 's/^[0-9]*: \([^:@]*\).*/link \1/'
    ip rule | sed 's/^/rule /'
    ip -6 rule | sed 's/^/rule6 /'
    ip route show table all | sed 's/^/route /'
    ls -d /sys/bus/pci/devices/* /sys/bus/pci/drivers/*/0000:* /etc/modprobe.d/*
    grep . /sys/bus/pci/devices/*/driver_override \
        /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages
}

# Settings of the kernel that are no device's: they outlive it.
settings() {
    grep -s . /proc/sys/vm/nr_hugepages /proc/sys/net/ipv4/conf/{all,default}/* \
        /proc/sys/net/ipv4/icmp_* /proc/sys/net/ipv6/conf/{all,default}/*
}

# Processes that a scenario left behind: it has ended, so they are now the children of init, as is
# this shell.
programs() { grep -ls $'^PPid:\t1$' /proc/[0-9]*/status | cut -d / -f 3 | grep -vx $$; }

# remember: what to restore.
remember() {
    local name value
    while IFS=: read -r name value; do SET[$name]=$value; done < <(settings)
    while read -r name _; do MODULE[$name]=1; done </proc/modules
    BOOTED=$(state)
}

# What is not as it was at boot, and what still runs.
differences() {
    diff <(echo "$BOOTED") <(state) | grep '^[<>]'
    programs | sed 's/^/> process /'
}

# restore: the opposite of what scenarios do.
restore() {
    local try file name value
    for try in 1 2 3 4 5; do
        [ -n "$(programs)" ] || break
        # shellcheck disable=SC2046 # one word each
        kill -KILL $(programs)
        sleep 0.2
    done
    rmdir /sys/kernel/config/rdma_cm/* 2>/dev/null
    grep -Lx '(null)' /sys/bus/pci/devices/*/driver_override |
        while read -r file; do echo >"$file"; done
    # Network namespaces end in the background, and give their ports back.
    for ((try = 0; try < 100; try++)); do
        unload || break
        sleep 0.1
    done
    for file in /sys/class/net/*; do
        name=${file##*/}
        [ "$name" = lo ] || ip link delete "$name"
    done
    ip rule flush
    ip rule show | grep -q '^0:' || ip rule add pref 0 lookup local
    ip rule add pref 32766 lookup main
    ip rule add pref 32767 lookup default
    while IFS=: read -r name value; do
        [ "${SET[$name]-}" = "$value" ] || echo "${SET[$name]}" >"$name"
    done < <(settings)
    echo 1 >/proc/sys/vm/compact_memory
    # As after power-on: the ports of the model keep nothing of their last driver.
    grep -lx 0x15b3 /sys/bus/pci/devices/*/vendor |
        while read -r file; do echo 1 >"${file%vendor}reset"; done
}

# unload: removes the modules that were not there at boot and that nobody uses; false once there is
# none of them. The list is read in one go, as it changes meanwhile.
unload() {
    local name users left=1
    while read -r name _ users _; do
        [ -z "${MODULE[$name]-}" ] || continue
        left=0
        [ "$users" != 0 ] || rmmod "$name"
    done < <(cat /proc/modules)
    return $left
}
