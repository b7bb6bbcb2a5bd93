/*
 * get + put of 32 objects from the per-core cache of an rte_mempool (cache 512), the same work as
 * the case `pool_get_put_32` of our own benches. Built by scripts/instructions.sh against the
 * installed libdpdk; prints nanoseconds per object, the median of 15 repetitions.
 *
 * Usage: rte_mempool ITERATIONS
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_lcore.h>
#include <rte_mempool.h>

enum { BULK = 32, CACHE = 512, OBJECTS = 8191, OBJECT_BYTES = 64, REPETITIONS = 15 };

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    char *eal[] = {argv[0], "--no-huge", "--no-pci", "--no-shconf", "--log-level=1", "-m", "64",
               "-l", "0", NULL};
    const long iterations = argc > 1 ? atol(argv[1]) : 100000;
    double per_object[REPETITIONS];
    void *objects[BULK];

    if (iterations <= 0 || rte_eal_init(9, eal) < 0) {
        fprintf(stderr, "usage: rte_mempool ITERATIONS (above 0)\n");
        return 1;
    }
    struct rte_mempool *pool = rte_mempool_create("peer", OBJECTS, OBJECT_BYTES, CACHE, 0, NULL,
                              NULL, NULL, NULL, SOCKET_ID_ANY, 0);
    if (pool == NULL) {
        fprintf(stderr, "rte_mempool_create failed\n");
        return 1;
    }
    for (int rep = 0; rep < REPETITIONS; rep++) {
        const uint64_t start = rte_rdtsc_precise();
        for (long i = 0; i < iterations; i++) {
            if (rte_mempool_get_bulk(pool, objects, BULK) != 0)
                return 1;
            __asm__ volatile("" : : "r"(objects) : "memory");
            rte_mempool_put_bulk(pool, objects, BULK);
        }
        const uint64_t cycles = rte_rdtsc_precise() - start;
        per_object[rep] = (double)cycles / (double)iterations / BULK * 1e9 / (double)rte_get_tsc_hz();
    }
    qsort(per_object, REPETITIONS, sizeof per_object[0], by_value);
    printf("%.3f\n", per_object[REPETITIONS / 2]);
    return 0;
}
