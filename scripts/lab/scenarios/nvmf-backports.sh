# about: the same as nvmf-target, with the newer kernel of the backports as the host
# ci: no
# machine: vfio
# kernel: backports
# program: ferrocx-cxctl cxctl ferrocx-nvmf-target nvmf-target
# refusals: none
# timeout: 900
# shellcheck shell=bash source=scripts/lab/lib.sh source-path=SCRIPTDIR
source /host/lab/lib.sh
[ "$(uname -r | cut -d . -f 1)" -ge 7 ] || fail 'this is not the kernel of the backports'
# shellcheck source=scripts/lab/nvmf-host.sh source-path=SCRIPTDIR
source /host/lab/nvmf-host.sh
judged
