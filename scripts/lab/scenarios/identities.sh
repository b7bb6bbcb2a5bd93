# about: probe with the identity of a ConnectX-5 virtual function
# ports: 1
# model: --identity cx5-vf
# timeout: 150
# cmdline: modprobe.blacklist=mlx5_core,mlx5_ib
# shellcheck shell=bash source=scripts/lab/scenarios/probe.sh source-path=SCRIPTDIR
ROUNDS=1
source /host/lab/scenarios/probe.sh
