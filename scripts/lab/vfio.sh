# Helpers for scenarios in which our testpmd drives ports through the guest's VFIO.
# cxctl hands them over.
# shellcheck shell=bash source=scripts/lab/netns.sh source-path=SCRIPTDIR
source /host/lab/netns.sh

TESTPMD=      # pid of the last one started
AS=()         # a command that changes the user, before testpmd
WAIT="sleep"  # how testpmd waits
STATS=5       # seconds between its statistics

# take PORT...: vfio-pci has these ports, and this user may open their groups.
take() {
    local port
    must modprobe vfio_iommu_type1
    must modprobe vfio-pci
    for port in "$@"; do must /host/cxctl bind "$port" --apply; done
}

# group PORT: the file of its IOMMU group.
group() { echo "/dev/vfio/$(basename "$(readlink "/sys/bus/pci/devices/$1/iommu_group")")"; }

# start_testpmd NAME OPTION...: with its output in /host/NAME.log and its report beside it.
start_testpmd() {
    local name=$1
    shift
    # From a folder that any user may enter; the report lies where that user may write.
    cp /host/testpmd /tmp/testpmd
    step "testpmd $*"
    "${AS[@]}" /tmp/testpmd "$@" --wait "$WAIT" --stats "$STATS" --duration 150 \
        --json "/tmp/$name.json" -v >"/host/$name.log" 2>&1 &
    TESTPMD=$!
}

# stop_testpmd NAME: as with Ctrl-C; its totals must add up.
stop_testpmd() {
    local status=0
    kill -INT "$TESTPMD"
    wait "$TESTPMD" || status=$?
    cp "/tmp/$1.json" /host/ || status=1
    [ "$status" -eq 0 ] && grep -q '"balanced": true' "/host/$1.json" && return
    cat "/host/$1.log"
    return 1
}

# answers ADDRESS [PREFIX...]: the address answers soon, then every echo request of every size; the
# prefix says where to ping from.
answers() {
    local address=$1 size
    shift
    until_true 60 "$@" ping -q -c 1 -W 1 "$address" || { step "no answer yet"; return 1; }
    for size in 0 56 1472; do
        all_answered "$@" ping -c 20 -i 0.02 -M "do" -s "$size" "$address" || return
    done
    all_answered "$@" ping -c 500 -q -f "$address"
}

# traffic NAME: statistics of this run have shown frames that came in.
traffic() { grep -qE ' s  in +[0-9.]*[1-9][0-9.]* ?[kM]?pps' "/host/$1.log"; }

# now_ms: sets NOW to milliseconds of uptime. What measures starts no process: an emulated one takes
# its time.
NOW=0
now_ms() {
    local uptime rest
    read -r uptime rest </proc/uptime
    NOW=$((10#${uptime/./} * 10))
}

# log_says NAME PATTERN: without a process, too.
log_says() {
    local lines
    mapfile lines <"/host/$1.log"
    [[ ${lines[*]} =~ $2 ]]
}

# told NAME WORDS SINCE: testpmd names within a second of SINCE (milliseconds of uptime) what
# happened to its port.
told() {
    local name=$1 words=$2 since=$3
    until log_says "$name" "port lost .*$words"; do
        now_ms
        [ $((NOW - since)) -lt 10000 ] || break
    done
    now_ms
    step "$name: told after $((NOW - since)) ms"
    [ $((NOW - since)) -le 1000 ]
}

# ended NAME WORDS: testpmd ends by itself within 10 s, with an error that says so too.
ended() {
    local name=$1 words=$2 since status=0
    now_ms
    since=$NOW
    while kill -0 "$TESTPMD" 2>/dev/null && [ $((NOW - since)) -lt 10000 ]; do now_ms; done
    step "$name: ended $((NOW - since)) ms later"
    kill -KILL "$TESTPMD" 2>/dev/null
    wait "$TESTPMD" || status=$?
    cat "/host/$name.log"
    [ "$status" -eq 1 ] && grep -qE "^error: .*$words" "/host/$name.log"
}

# loses NAME WORDS SINCE: both.
loses() { told "$@" && ended "$1" "$2"; }
