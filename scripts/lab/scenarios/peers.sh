# about: the lab itself: rdma_rxe, the tools and the kernel's RDMA users work on a veth pair
# ci: no
# ports: 0
# timeout: 400
# shellcheck shell=bash source=scripts/lab/two-ports.sh source-path=SCRIPTDIR
source /host/lab/two-ports.sh

must modprobe rdma_rxe
must ip link add wire0 type veth peer name wire1
wire_ports wire0 10.1.0.1 wire1 10.1.0.2
must ping -q -c 3 -i 0.1 -I 10.1.0.1 10.1.0.2
must rdma link add rxe0 type rxe netdev wire0
must rdma link add rxe1 type rxe netdev wire1
gid0=$(gid_index rxe0 10.1.0.1) || fail 'rxe0 has no RoCEv2 GID'
gid1=$(gid_index rxe1 10.1.0.2) || fail 'rxe1 has no RoCEv2 GID'
for test in rc uc ud; do
    pair_of "ibv_${test}_pingpong" -d rxe0 -g "$gid0" -n 50 -- \
        "ibv_${test}_pingpong" -d rxe1 -g "$gid1" -n 50 10.1.0.1
done
pair_of ib_write_lat -d rxe0 -x "$gid0" -n 50 -F -- \
    ib_write_lat -d rxe1 -x "$gid1" -n 50 -F 10.1.0.1
pair_of rping -s -a 10.1.0.1 -C 20 -v -- rping -c -a 10.1.0.1 -I 10.1.0.2 -C 20

# NVMe over RDMA: the kernel's registration, invalidation and send-with-invalidate.
must modprobe brd rd_nr=1 rd_size=65536
must modprobe nvmet-rdma
must modprobe nvme-rdma
nvmet=/sys/kernel/config/nvmet
mkdir "$nvmet/subsystems/lab" "$nvmet/subsystems/lab/namespaces/1" "$nvmet/ports/1"
echo 1 >"$nvmet/subsystems/lab/attr_allow_any_host"
echo /dev/ram0 >"$nvmet/subsystems/lab/namespaces/1/device_path"
echo 1 >"$nvmet/subsystems/lab/namespaces/1/enable"
echo rdma >"$nvmet/ports/1/addr_trtype"
echo ipv4 >"$nvmet/ports/1/addr_adrfam"
echo 10.1.0.1 >"$nvmet/ports/1/addr_traddr"
echo 4420 >"$nvmet/ports/1/addr_trsvcid"
ln -s "$nvmet/subsystems/lab" "$nvmet/ports/1/subsystems/lab"
must nvme connect -t rdma -a 10.1.0.1 -s 4420 -n lab -w 10.1.0.2
until_true 10 test -b /dev/nvme0n1 || fail 'no NVMe disk appeared'
must fio --name=verify --filename=/dev/nvme0n1 --rw=randwrite --bs=4k --size=2M --direct=1 \
    --verify=crc32c --do_verify=1 --output=/host/fio.log
must nvme disconnect -n lab
