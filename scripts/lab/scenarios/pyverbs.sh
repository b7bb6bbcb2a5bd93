# about: rdma-core's own tests, those of pyverbs, as pyverbs.expected has them
# ports: 1
# timeout: 1500
# shellcheck shell=bash source=scripts/lab/rdma.sh source-path=SCRIPTDIR
source /host/lab/rdma.sh

HEALTHY+=(
    'MODIFY_CQ.* failed, status bad size'   # test_cq makes a CQ too small for what is in it
    'QP counters are not supported'         # modify_rq_counter_set_id is not advertised
    'Receive WQ counters are not supported' # the same
)

suite=/run/suite/tests
without_key_cache
load_rdma 1
must ip addr add 10.0.0.1/24 dev "$(mlx5_netdevs)"
must modprobe -a rdma_ucm ib_umad
must sysctl -q vm.nr_hugepages=32
must mkdir /run/suite
must cp -r /usr/share/doc/rdma-core/tests "$suite"
gunzip "$suite"/*.gz
step "the suite; its output is in pyverbs.log"
skipped=/host/lab/pyverbs.skipped
[ "$FERROCX_PYVERBS" != all ] || skipped=/dev/null
python3 /host/lab/pyverbs-suite.py "$suite" /host mlx5_0 /host/lab/pyverbs.expected "$skipped" \
    >/host/pyverbs.log 2>&1 || {
    sed -n '/^== worse/,$p' /host/pyverbs.log
    echo 'pyverbs did worse than expected; see pyverbs.log' >>/host/reason
    FAILURES=1
}
check_dmesg
echo '== result'
cat /host/pyverbs.expected
verdict
