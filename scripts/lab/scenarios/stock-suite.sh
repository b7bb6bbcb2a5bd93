# about: rdma-core 56's own tests through our libibverbs in the guest, as suite-56.expected has them
# ci: no
# ports: 0
# program: ferrocx-cxctl cxctl
# library: ferrocx-verbs-abi ibverbs
# timeout: 900
# shellcheck shell=bash source=scripts/lab/lib.sh source-path=SCRIPTDIR
source /host/lab/lib.sh

# The pages that one of the tests maps, and those of the model's host.
must sysctl -q vm.nr_hugepages=64
must cp /host/cxctl /host/libibverbs.so /run/
must mkdir -p /run/suite
must cp -r /usr/share/doc/rdma-core/tests /run/suite/tests
gunzip /run/suite/tests/*.gz
step "the suite; its output is in stock-suite.log"
/run/cxctl run -- /usr/bin/python3 /host/lab/suite.py /run/suite/tests \
    /host/lab/suite-56.expected >/host/result 2>/host/stock-suite.log || {
    cat /host/result >>/host/reason
    FAILURES=1
}
echo '== result'
cat /host/result
verdict
