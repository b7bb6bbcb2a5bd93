# about: blktests' tests of NVMe over fabrics, stock Linux as their host, against our target
# ci: no
# machine: vfio
# program: ferrocx-cxctl cxctl ferrocx-nvmf-target nvmf-target
# timeout: 3000
# shellcheck shell=bash source=scripts/lab/blktests.sh source-path=SCRIPTDIR
source /host/lab/blktests.sh
