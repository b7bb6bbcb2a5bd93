/*
 * rte_pktmbuf_alloc_bulk + rte_pktmbuf_free_bulk of 32 packet buffers through the per-core cache of
 * their pool (cache 512), the same work as the case `mbuf_get_put_32` of our own benches. With
 * `raw`, rte_mempool_get_bulk + rte_mempool_put_bulk of the same pool: the pointers alone, headers
 * untouched. Built by scripts/instructions.sh against the installed libdpdk; prints nanoseconds per
 * buffer, the median of 15 repetitions.
 *
 * Usage: rte_pktmbuf [raw] ITERATIONS
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>

enum { BULK = 32, CACHE = 512, BUFFERS = 8191, REPETITIONS = 15 };

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int run(struct rte_mempool *pool, int raw, long iterations)
{
    struct rte_mbuf *bufs[BULK];

    for (long i = 0; i < iterations; i++) {
        if (raw ? rte_mempool_get_bulk(pool, (void **)bufs, BULK)
            : rte_pktmbuf_alloc_bulk(pool, bufs, BULK))
            return -1;
        __asm__ volatile("" : : "r"(bufs) : "memory");
        if (raw)
            rte_mempool_put_bulk(pool, (void **)bufs, BULK);
        else
            rte_pktmbuf_free_bulk(bufs, BULK);
    }
    return 0;
}

int main(int argc, char **argv)
{
    char *eal[] = {argv[0], "--no-huge", "--no-pci", "--no-shconf", "--log-level=1", "-m", "64",
               "-l", "0", NULL};
    const int raw = argc > 1 && strcmp(argv[1], "raw") == 0;
    const long iterations = argc > 1 + raw ? atol(argv[1 + raw]) : 100000;
    double per_buffer[REPETITIONS];

    if (iterations <= 0 || rte_eal_init(9, eal) < 0) {
        fprintf(stderr, "usage: rte_pktmbuf [raw] ITERATIONS (above 0)\n");
        return 1;
    }
    struct rte_mempool *pool = rte_pktmbuf_pool_create("peer", BUFFERS, CACHE, 0,
                               RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
    if (pool == NULL) {
        fprintf(stderr, "rte_pktmbuf_pool_create failed\n");
        return 1;
    }
    for (int rep = 0; rep < REPETITIONS; rep++) {
        const uint64_t start = rte_rdtsc_precise();
        if (run(pool, raw, iterations) < 0)
            return 1;
        const uint64_t cycles = rte_rdtsc_precise() - start;
        per_buffer[rep] = (double)cycles / (double)iterations / BULK * 1e9 / (double)rte_get_tsc_hz();
    }
    qsort(per_buffer, REPETITIONS, sizeof per_buffer[0], by_value);
    printf("%.3f\n", per_buffer[REPETITIONS / 2]);
    return 0;
}
