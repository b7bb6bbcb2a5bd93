/* A stand-in for NVIDIA's driver library: the functions that the provider calls, on memory of the
 * host. The ordinal of the device chooses what goes wrong. Declarations: "CUDA Driver API". */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GOOD, NO_DMA_BUF, NOT_MAPPABLE, OUT_OF_MEMORY, BAD_DESCRIPTOR, DEVICES };
enum { CUDA_SUCCESS, CUDA_INVALID_VALUE = 1, CUDA_OUT_OF_MEMORY = 2, CUDA_INVALID_DEVICE = 101 };
#define ALLOCATIONS 64

static struct allocation { uint64_t address; size_t len; int fd; int sync; } table[ALLOCATIONS];
static int live, retained;
static __thread intptr_t current; /* ordinal + 1 of the current context */

/* For the test: allocations and contexts that were not given back. */
int standin_live(void) { return live; }
int standin_retained(void) { return retained; }

static struct allocation *find(uint64_t address) {
    for (int i = 0; i < ALLOCATIONS; i++)
        if (table[i].len && address - table[i].address < table[i].len) return &table[i];
    return NULL;
}

int cuInit(unsigned flags) { return flags ? CUDA_INVALID_VALUE : CUDA_SUCCESS; }

int cuDeviceGet(int *device, int ordinal) {
    if (ordinal < 0 || ordinal >= DEVICES) return CUDA_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

int cuDeviceGetName(char *name, int len, int device) {
    (void)device;
    strncpy(name, "Stand-in GPU", len);
    return CUDA_SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case 33: *value = 0x3b; return CUDA_SUCCESS;
    case 34: *value = device; return CUDA_SUCCESS;
    case 50: *value = 0; return CUDA_SUCCESS;
    case 124: *value = device != NO_DMA_BUF; return CUDA_SUCCESS;
    default: return CUDA_INVALID_VALUE;
    }
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    __atomic_add_fetch(&retained, 1, __ATOMIC_SEQ_CST);
    *context = (void *)(intptr_t)(device + 1);
    return CUDA_SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    __atomic_sub_fetch(&retained, 1, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

int cuCtxSetCurrent(void *context) {
    current = (intptr_t)context;
    return CUDA_SUCCESS;
}

int cuCtxSynchronize(void) { return current ? CUDA_SUCCESS : CUDA_INVALID_VALUE; }

/* Device memory: a memfd that is not mapped, at addresses that mean nothing to the processor. */
int cuMemAlloc_v2(uint64_t *address, size_t len) {
    static uint64_t next = 0x7fd000000000;
    if (!current || current - 1 == OUT_OF_MEMORY) return CUDA_OUT_OF_MEMORY;
    for (int i = 0; i < ALLOCATIONS; i++) {
        if (table[i].len) continue;
        int fd = memfd_create("gpu", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, len)) return CUDA_OUT_OF_MEMORY;
        table[i] = (struct allocation){ next, len, fd, 0 };
        *address = next;
        next += (len + (2 << 20) - 1) & ~(uint64_t)((2 << 20) - 1);
        __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
        return CUDA_SUCCESS;
    }
    return CUDA_OUT_OF_MEMORY;
}

int cuMemFree_v2(uint64_t address) {
    struct allocation *a = find(address);
    if (!current || !a || a->address != address) return CUDA_INVALID_VALUE;
    close(a->fd);
    a->len = 0;
    __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

int cuMemHostAlloc(void **base, size_t len, unsigned flags) {
    if (!current || current - 1 == OUT_OF_MEMORY || flags != 3) return CUDA_OUT_OF_MEMORY;
    __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
    return posix_memalign(base, 4096, len) ? CUDA_OUT_OF_MEMORY : CUDA_SUCCESS;
}

int cuMemFreeHost(void *base) {
    free(base);
    __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

int cuMemHostGetDevicePointer_v2(uint64_t *address, void *base, unsigned flags) {
    *address = (uint64_t)(uintptr_t)base;
    return flags ? CUDA_INVALID_VALUE : CUDA_SUCCESS;
}

int cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
    struct allocation *a = find(address);
    if (!a) return CUDA_INVALID_VALUE;
    switch (attribute) {
    case 2: *(unsigned *)value = 2; return CUDA_SUCCESS;
    case 11: *(uint64_t *)value = a->address; return CUDA_SUCCESS;
    case 12: *(size_t *)value = a->len; return CUDA_SUCCESS;
    default: return CUDA_INVALID_VALUE;
    }
}

int cuPointerSetAttribute(const void *value, int attribute, uint64_t address) {
    struct allocation *a = find(address);
    if (!a || attribute != 6) return CUDA_INVALID_VALUE;
    a->sync = *(const unsigned *)value;
    return CUDA_SUCCESS;
}

int cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t len, int type,
                                  unsigned long long flags) {
    struct allocation *a = find(address);
    /* Registered memory must be marked, and a stand-in's file starts where the allocation does. */
    if (!a || !a->sync || type != 1 || flags || address != a->address || len > a->len)
        return CUDA_INVALID_VALUE;
    switch (current - 1) {
    case NOT_MAPPABLE: *(int *)handle = open("/dev/null", O_RDWR | O_CLOEXEC); break;
    case BAD_DESCRIPTOR: *(int *)handle = -1; break;
    default: *(int *)handle = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);
    }
    return CUDA_SUCCESS;
}

int cuGetErrorString(int code, const char **text) {
    switch (code) {
    case CUDA_OUT_OF_MEMORY: *text = "out of memory"; return CUDA_SUCCESS;
    case CUDA_INVALID_DEVICE: *text = "invalid device ordinal"; return CUDA_SUCCESS;
    default: *text = NULL; return CUDA_INVALID_VALUE;
    }
}
