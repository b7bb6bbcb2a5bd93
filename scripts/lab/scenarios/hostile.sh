# about: a guest stores at random to registers and configuration; the next driver finds all in order
# ports: 1
# boot: own, it leaves the configuration of the port at random
# iommu: yes
# timeout: 500
# shellcheck shell=bash source=scripts/lab/mlx5.sh source-path=SCRIPTDIR
source /host/lab/mlx5.sh

# Behind the IOMMU, without a driver, every address that the device is told is a fault.
readonly ATTACK='
import mmap, os, random, sys
device, seed = sys.argv[1], int(sys.argv[2])
dice = random.Random(seed)
fd = os.open(device + "/resource0", os.O_RDWR | os.O_SYNC)
bar = memoryview(mmap.mmap(fd, 32 << 20)).cast("I")
config = os.open(device + "/config", os.O_RDWR)
registers = [0x10, 0x14, 0x18, 0x1fc, 0x200, 0x100c, 0x200c]
doorbells = [0x20, 0x40, 0x48, 0x800, 0x804, 0x900]
for store in range(20000):
    kind = dice.randrange(8)
    value = dice.choice([0, 1, 1 << dice.randrange(32), dice.getrandbits(32)])
    if kind < 3:
        bar[dice.choice(registers) // 4] = value
    elif kind < 6:
        bar[(dice.randrange(3, 64) * 4096 + dice.choice(doorbells)) // 4] = value
    elif kind < 7:
        bar[dice.randrange(len(bar))] = value
    else:
        bar[dice.choice(registers) // 4]
    if store % 500 == 0:
        # Not the BARs: Linux has put them where the stores go.
        os.pwrite(config, value.to_bytes(4, "little"), dice.randrange(0x40, 0x1000) & ~3)
        os.pwrite(config, b"\x06\x00", 4)
'

device=$(dirname "$(grep -l 0x15b3 /sys/bus/pci/devices/*/vendor | head -n 1)")
for seed in 1 2 3; do
    must sh -c "echo 1 >$device/enable"
    must python3 -c "$ATTACK" "$device" "$seed"
    must sh -c "echo 1 >$device/reset"
    must sh -c "echo 0 >$device/enable"
done
load_driver 1
check_dmesg
unload_driver
check_dmesg
