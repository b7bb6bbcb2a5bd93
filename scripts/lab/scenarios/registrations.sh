# about: registrations a second, by the kernel on its port and by our pipelines on theirs
# ci: no
# machine: vfio
# program: ferrocx-perftest perftest ferrocx-cxctl cxctl
# timeout: 400
# shellcheck shell=bash source=scripts/lab/verbs-lite.sh source-path=SCRIPTDIR
source /host/lab/verbs-lite.sh

without_key_cache
take "$OURS"
must /host/cxctl hugepages reserve 64 --apply
load_rdma 1
stock_port "$(netdev_of mlx5_0)"
against mlx5_0
check registrations
check_dmesg
table
verdict
