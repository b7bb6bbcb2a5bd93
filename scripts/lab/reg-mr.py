"""How many times a second the kernel registers memory and ends it: reg-mr.py DEVICE BYTES COUNT

Calls libibverbs directly, so that the interpreter adds little to the system calls.
"""
import ctypes
import mmap
import sys
import time

LOCAL_AND_REMOTE_WRITE = 3  # IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE

name, length, count = sys.argv[1].encode(), int(sys.argv[2]), int(sys.argv[3])
verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
for function in "get_device_list", "open_device", "alloc_pd", "reg_mr", "dereg_mr":
    getattr(verbs, f"ibv_{function}").restype = ctypes.c_void_p
verbs.ibv_dereg_mr.restype = ctypes.c_int
verbs.ibv_get_device_name.restype = ctypes.c_char_p
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
devices = verbs.ibv_get_device_list(None)
device = next(d for d in devices if verbs.ibv_get_device_name(ctypes.c_void_p(d)) == name)
context = ctypes.c_void_p(verbs.ibv_open_device(ctypes.c_void_p(device)))
domain = ctypes.c_void_p(verbs.ibv_alloc_pd(context))
memory = mmap.mmap(-1, max(length, 4096))
address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
size, access = ctypes.c_size_t(length), ctypes.c_int(LOCAL_AND_REMOTE_WRITE)
begun = time.monotonic()
for _ in range(count):
    region = verbs.ibv_reg_mr(domain, address, size, access)
    if not region or verbs.ibv_dereg_mr(ctypes.c_void_p(region)):
        sys.exit(f"ibv_reg_mr or ibv_dereg_mr failed: errno {ctypes.get_errno()}")
seconds = time.monotonic() - begun
print(f"ibv_reg_mr and ibv_dereg_mr of {length} bytes: {count / seconds:.0f} per second")
