"""Runs a command with a dma-buf of this kernel as an inherited file, and looks at it afterwards.

dma-buf.py EXPORTER MIB COMMAND...

EXPORTER is udmabuf (pages of a memfd, /dev/udmabuf) or system (the system heap,
/dev/dma_heap/system). `{}` in COMMAND stands for the number of the file. Prints how many pages of
the buffer hold anything but zeros then, as its exporter sees them, and ends with the command's
exit status.
"""
import array
import fcntl
import mmap
import os
import struct
import subprocess
import sys

PAGE = 4096
WRITE, READ_WRITE = 1, 3


def request(direction, kind, number, size):
    """The number of an ioctl. Source: Linux include/uapi/asm-generic/ioctl.h."""
    return direction << 30 | size << 16 | ord(kind) << 8 | number


def udmabuf(size):
    """A dma-buf, and a view of its pages that does not go through it. Source: Linux
    include/uapi/linux/udmabuf.h, UDMABUF_CREATE."""
    memfd = os.memfd_create("exporter", os.MFD_ALLOW_SEALING)
    os.ftruncate(memfd, size)
    fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    create = struct.pack("IIQQ", memfd, 0, 0, size)
    with open("/dev/udmabuf", "rb+", buffering=0) as device:
        # With a mutable buffer the answer is the call's own: the file's number.
        data = array.array("B", create)
        number = fcntl.ioctl(device, request(WRITE, "u", 0x42, len(create)), data)
    return number, mmap.mmap(memfd, size)


def system(size):
    """Source: Linux include/uapi/linux/dma-heap.h, DMA_HEAP_IOCTL_ALLOC."""
    data = array.array("B", struct.pack("QIIQ", size, 0, os.O_RDWR, 0))
    with open("/dev/dma_heap/system", "rb", buffering=0) as heap:
        fcntl.ioctl(heap, request(READ_WRITE, "H", 0, len(data)), data)
    number = struct.unpack("QIIQ", data.tobytes())[1]
    return number, mmap.mmap(number, size)


def main():
    exporter, mebibytes, *command = sys.argv[1:]
    size = int(mebibytes) << 20
    number, view = {"udmabuf": udmabuf, "system": system}[exporter](size)
    os.set_inheritable(number, True)
    command = [word.replace("{}", str(number)) for word in command]
    status = subprocess.run(command, close_fds=False, check=False).returncode
    written = sum(view[at:at + PAGE].count(0) < PAGE for at in range(0, size, PAGE))
    print(f"{exporter}: {written} of {size // PAGE} pages were written", flush=True)
    sys.exit(status)


main()
