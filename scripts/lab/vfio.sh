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

# Ends a wait for testpmd that would have no end, before the driver's own limits (a command's is
# 60 s) do. How soon it is told is judged by its statistics, not by the clock: an emulated machine
# under load takes its time for everything.
readonly PATIENCE=40

log_says() { grep -qE "$2" "/host/$1.log"; }

# statistics NAME: lines of statistics until it was told of a loss, or until now.
statistics() { sed '/port lost/q' "/host/$1.log" | grep -c ' s  in '; }

# told NAME WORDS SINCE: testpmd names what happened to its port. The thread that looks for it five
# times in half a second also prints the statistics; at most two lines since there were SINCE.
told() {
    local name=$1 words=$2 since=$3 lines
    until_true $PATIENCE log_says "$name" "port lost .*$words"
    lines=$(($(statistics "$name") - since))
    step "$name: told after $lines line(s) of statistics, one each $STATS s"
    [ $lines -le 2 ] && log_says "$name" "port lost .*$words"
}

is_over() { ! kill -0 "$TESTPMD"; }

# ended NAME WORDS: testpmd ends by itself, with an error that says so too.
ended() {
    local name=$1 words=$2 status=0
    until_true $PATIENCE is_over
    kill -KILL "$TESTPMD" 2>/dev/null
    wait "$TESTPMD" || status=$?
    cat "/host/$name.log"
    [ "$status" -eq 1 ] && log_says "$name" "^error: .*$words"
}

# loses NAME WORDS SINCE: both.
loses() { told "$@" && ended "$1" "$2"; }
