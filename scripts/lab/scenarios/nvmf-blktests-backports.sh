# about: the same as nvmf-blktests, with the newer kernel of the backports as the host
# ci: no
# machine: vfio
# kernel: backports
# program: ferrocx-cxctl cxctl ferrocx-nvmf-target nvmf-target
# timeout: 3000
# shellcheck shell=bash source=scripts/lab/blktests.sh source-path=SCRIPTDIR
source /host/lab/blktests.sh
