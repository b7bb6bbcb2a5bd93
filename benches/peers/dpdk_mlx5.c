/*
 * What DPDK's mlx5 driver takes for a packet, for cases `rx_*` and `tx_*` of our own benches: its
 * burst functions on queues in plain memory, and this program plays the device, outside of what is
 * counted. Built by scripts/peers.sh against the driver's own headers, which know what such a queue
 * consists of, and linked with the functions of the installed libdpdk.
 *
 * As ours: rings of 512, bursts of 32, frames of 60 bytes (64 with their checksum) in buffers of one
 * pool with a cache of 512; hash and checksum results of each received packet are handed out. What
 * was received is freed, and what is sent is taken, outside of what is counted; what was sent is freed
 * inside. `_ff` is the driver's fast free, testpmd's default: all buffers are of one pool, without
 * clones, which ours finds out by itself.
 *
 * Usage: dpdk_mlx5 MODE ROUNDS, a round of 15 bursts
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ethdev_driver.h>
#include <mlx5_common.h>
#include <mlx5_prm.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mbuf_dyn.h>
#include <rte_mempool.h>

#include "mlx5.h"
#include "mlx5_rx.h"
#include "mlx5_rxtx.h"
#include "mlx5_tx.h"
#include "mlx5_utils.h"

enum { BURST = 32, BURSTS = 15, ROUND = BURST * BURSTS, RING = 512, LOG_RING = 9, BYTES = 60 };

/* Strides of a large buffer, of 2 KiB each, as the driver makes them. */
enum { LOG_STRIDES = 6, LOG_STRIDE_BYTES = 11 };

static uint32_t generation;
static uint32_t records[64] __rte_cache_aligned;
static uint64_t doorbell[16] __rte_cache_aligned;
static struct rte_mempool *pool;

static void *zeroed(size_t bytes)
{
    void *memory;

    if (posix_memalign(&memory, 4096, (bytes + 4095) & ~(size_t)4095))
        rte_panic("no memory\n");
    memset(memory, 0, bytes);
    return memory;
}

/* One region that everything lies in. */
static void add_region(struct mlx5_mr_ctrl *keys)
{
    keys->dev_gen_ptr = &generation;
    keys->cache[0].start = 4096;
    keys->cache[0].end = UINTPTR_MAX;
    keys->cache[0].lkey = 0x11223344;
    keys->cache_bh.len = keys->cache_bh.size = 2; /* the empty one and this */
}

struct receiver {
    struct mlx5_rxq_data *queue;
    struct mlx5_cqe *entries;
    uint32_t told; /* packets of the device's */
    int strides, is_compressed;
};

static void complete(struct receiver *rx, volatile struct mlx5_cqe *cqe, uint32_t number)
{
    cqe->pkt_info = 0;
    cqe->rx_hash_res = rte_cpu_to_be_32(0x1234567 + number);
    cqe->hdr_type_etc = rte_cpu_to_be_16(1 << 2 | 2 << 4 | MLX5_CQE_RX_L2_HDR_VALID |
                         MLX5_CQE_RX_L3_HDR_VALID | MLX5_CQE_RX_L4_HDR_VALID);
    cqe->lro_num_seg = 1;
    cqe->timestamp = rte_cpu_to_be_64(1000 + number);
    cqe->sop_drop_qpn = rte_cpu_to_be_32(0xffffff);
    cqe->byte_cnt = rte_cpu_to_be_32((rx->strides ? 1u << MLX5_MPRQ_STRIDE_NUM_SHIFT : 0) | BYTES);
    cqe->wqe_counter =
        rte_cpu_to_be_16(rx->strides ? number & ((1 << LOG_STRIDES) - 1) : number);
    cqe->op_own = MLX5_CQE_RESP_SEND << 4 | !!(number & RING);
}

/* The device: completions of a round, or of each burst one compressed session of 32. */
static void receive(struct receiver *rx)
{
    for (unsigned i = 0; i < ROUND; i++) {
        volatile struct mlx5_cqe *cqe = &rx->entries[rx->told & (RING - 1)];
        unsigned in_burst = i % BURST;

        if (!rx->is_compressed) {
            complete(rx, cqe, rx->told);
        } else if (in_burst == 0) {
            complete(rx, cqe, rx->told);
            cqe->byte_cnt = rte_cpu_to_be_32(BURST);
            cqe->op_own |= MLX5_COMPRESSED << 2;
            for (unsigned j = 0; j < BURST; j++) {
                unsigned place = j < 8 ? 1 : j & ~7u;
                volatile struct mlx5_mini_cqe8 *mini =
                    (volatile void *)&rx->entries[(rx->told + place) & (RING - 1)];

                mini[j & 7].rx_hash_result = rte_cpu_to_be_32(0x1234567 + j);
                mini[j & 7].byte_cnt = rte_cpu_to_be_32(BYTES);
            }
        }
        rx->told++;
    }
}

static void add_strides(struct mlx5_rxq_data *queue)
{
    unsigned buffers = RING >> LOG_STRIDES;
    size_t bytes = sizeof(struct mlx5_mprq_buf) + RTE_PKTMBUF_HEADROOM +
               ((1 << LOG_STRIDE_BYTES) + sizeof(struct rte_mbuf_ext_shared_info)) *
                   (1 << LOG_STRIDES);

    queue->log_strd_num = LOG_STRIDES;
    queue->log_strd_sz = LOG_STRIDE_BYTES;
    queue->mprq_max_memcpy_len = 128;
    queue->wqes = zeroed(buffers * sizeof(struct mlx5_wqe_mprq));
    queue->mprq_bufs = zeroed((buffers + 1) * sizeof(void *));
    queue->mprq_mp = rte_mempool_create("mprq", 64, bytes, 0, 0, NULL, NULL, NULL, NULL, 0, 0);
    if (!queue->mprq_mp)
        rte_panic("no pool of large buffers\n");
    for (unsigned i = 0; i <= buffers; i++) {
        struct mlx5_mprq_buf *buf;

        if (rte_mempool_get(queue->mprq_mp, (void **)&buf))
            rte_panic("no large buffer\n");
        memset(buf, 0, sizeof(*buf));
        buf->mp = queue->mprq_mp;
        buf->refcnt = 1;
        if (i < buffers)
            (*queue->mprq_bufs)[i] = buf;
        else
            queue->mprq_repl = buf;
    }
}

static void make_receiver(struct receiver *rx, const char *mode)
{
    struct mlx5_rxq_ctrl *control = zeroed(sizeof(*control) + 4096);
    struct mlx5_rxq_data *queue = &control->rxq;
    struct rte_mbuf *pattern = &queue->fake_mbuf;

    rx->strides = !!strstr(mode, "mprq");
    rx->is_compressed = !!strstr(mode, "zip");
    rx->queue = queue;
    rx->entries = zeroed(RING * sizeof(struct mlx5_cqe));
    queue->csum = queue->rss_hash = 1;
    queue->cqe_n = LOG_RING;
    queue->elts_n = rx->strides ? LOG_RING - LOG_STRIDES : LOG_RING;
    queue->rq_db = &records[0];
    queue->cq_db = &records[1];
    queue->byte_mask = UINT32_MAX;
    queue->mp = pool;
    queue->cqes = (void *)rx->entries;
    queue->rq_repl_thresh = MLX5_VPMD_RXQ_RPLNSH_THRESH(RING);
    queue->rxseg_n = 1;
    add_region(&queue->mr_ctrl);
    queue->elts = zeroed((RING + 8) * sizeof(void *));
    if (strstr(mode, "timestamps")) {
        queue->hw_timestamp = 1;
        if (rte_mbuf_dyn_rx_timestamp_register(&queue->timestamp_offset,
                               &queue->timestamp_rx_flag))
            rte_panic("no field for time stamps\n");
    }
    if (rx->strides)
        add_strides(queue);
    else
        queue->wqes = zeroed(RING * sizeof(struct mlx5_wqe_data_seg));
    for (unsigned i = 0; i < RING; i++) {
        struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);

        mbuf->port = 0;
        mbuf->data_len = mbuf->pkt_len = rte_pktmbuf_tailroom(mbuf);
        (*queue->elts)[i] = mbuf;
        rx->entries[i].op_own = MLX5_CQE_INVALID << 4 | 1;
    }
    pattern->data_off = RTE_PKTMBUF_HEADROOM;
    rte_mbuf_refcnt_set(pattern, 1);
    pattern->nb_segs = 1;
    memcpy(&queue->mbuf_initializer, &pattern->rearm_data, 16);
    for (unsigned i = 0; i < 4; i++)
        (*queue->elts)[RING + i] = pattern;
    if (mlx5_rxq_initialize(queue))
        rte_panic("the receive queue cannot be filled\n");
}

static void count_receives(const char *mode, eth_rx_burst_t burst, long rounds)
{
    struct rte_mbuf *packets[ROUND];
    struct receiver rx = { 0 };

    make_receiver(&rx, mode);
    for (long round = 0; round < rounds; round++) {
        unsigned got = 0;

        receive(&rx);
        for (unsigned i = 0; i < BURSTS; i++)
            got += burst(rx.queue, packets + got, BURST);
        if (got != ROUND)
            rte_panic("%u packets of %u arrived\n", got, ROUND);
        for (unsigned i = 0; i < got; i++)
            if (packets[i]->data_len != BYTES ||
                !(packets[i]->ol_flags & RTE_MBUF_F_RX_RSS_HASH) ||
                !(packets[i]->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_GOOD) ||
                (rx.queue->hw_timestamp &&
                 !(packets[i]->ol_flags & rx.queue->timestamp_rx_flag)))
                rte_panic("a packet of %u bytes with flags %lx\n", packets[i]->data_len,
                      packets[i]->ol_flags);
        rte_mempool_put_bulk(pool, (void **)packets, got);
    }
}

/* The device: what was announced has been sent. */
static void complete_sends(struct mlx5_txq_data *queue, uint16_t *told)
{
    uint32_t last = rte_be_to_cpu_32((uint32_t)*(volatile uint64_t *)doorbell);

    for (; *told != queue->cq_pi; ++*told) {
        volatile struct mlx5_cqe *cqe = &queue->cqes[*told & queue->cqe_m];

        cqe->wqe_counter = rte_cpu_to_be_16((uint16_t)(last >> 8));
        cqe->op_own = MLX5_CQE_REQ << 4 | !!(*told & queue->cqe_s);
    }
}

static struct mlx5_txq_data *make_sender(const char *mode)
{
    int is_inline = !!strstr(mode, "tx_i");
    struct mlx5_txq_ctrl *control = zeroed(sizeof(*control) + RING * sizeof(void *) + 4096);
    struct mlx5_txq_data *queue = &control->txq;
    struct mlx5_proc_priv *private = zeroed(sizeof(*private) + 64);
    unsigned completions = rte_align32pow2(RTE_MAX(
        RING / MLX5_TX_COMP_THRESH + 1 + MLX5_TX_COMP_THRESH_INLINE_DIV, 4u));
    struct mlx5_cqe *entries = zeroed(completions * sizeof(*entries));

    for (unsigned i = 0; i < completions; i++)
        entries[i].op_own = MLX5_CQE_INVALID << 4 | 1;
    queue->elts_n = LOG_RING;
    queue->elts_s = RING;
    queue->elts_m = RING - 1;
    queue->wqe_n = LOG_RING + is_inline;
    queue->wqe_s = 1u << queue->wqe_n;
    queue->wqe_m = queue->wqe_s - 1;
    queue->wqe_thres = queue->wqe_s / MLX5_TX_COMP_THRESH_INLINE_DIV;
    queue->cqe_n = rte_log2_u32(completions);
    queue->cqe_s = completions;
    queue->cqe_m = completions - 1;
    queue->db_nc = 1; /* the driver's own choice on x86: one fence a burst */
    queue->fast_free = !!strstr(mode, "_ff");
    if (is_inline) {
        queue->inlen_send = MLX5_SEND_DEF_INLINE_LEN + 16;
        queue->inlen_empw = MLX5_EMPW_DEF_INLINE_LEN;
    }
    queue->vlan_en = 1;
    queue->qp_num_8s = 0x1234 << 8;
    add_region(&queue->mr_ctrl);
    queue->wqes = zeroed(queue->wqe_s * sizeof(struct mlx5_wqe));
    queue->wqes_end = queue->wqes + queue->wqe_s;
    queue->fcqs = zeroed(completions * sizeof(*queue->fcqs));
    queue->cqes = entries;
    queue->qp_db = &records[16];
    queue->cq_db = &records[32];
    private->uar_table_sz = 1;
    private->uar_table[0].db = doorbell;
    rte_eth_devices[0].process_private = private;
    return queue;
}

static void count_sends(const char *mode, eth_tx_burst_t burst, long rounds)
{
    struct mlx5_txq_data *queue = make_sender(mode);
    unsigned opcode, wanted = strstr(mode, "empw") ? MLX5_OPCODE_ENHANCED_MPSW : MLX5_OPCODE_SEND;
    struct rte_mbuf *packets[ROUND];
    uint16_t told = 0;

    for (long round = 0; round < rounds; round++) {
        unsigned sent = 0;

        if (rte_mempool_get_bulk(pool, (void **)packets, ROUND))
            rte_panic("the pool is empty\n");
        for (unsigned i = 0; i < ROUND; i++) {
            rte_pktmbuf_reset(packets[i]);
            packets[i]->data_len = packets[i]->pkt_len = BYTES;
            memset(rte_pktmbuf_mtod(packets[i], void *), i, BYTES);
            if (strstr(mode, "_sc"))
                packets[i]->ol_flags = RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM |
                               RTE_MBUF_F_TX_UDP_CKSUM;
        }
        for (unsigned i = 0; i < BURSTS; i++) {
            sent += burst(queue, packets + sent, BURST);
            complete_sends(queue, &told);
        }
        if (sent != ROUND)
            rte_panic("%u packets of %u were sent\n", sent, ROUND);
    }
    opcode = rte_be_to_cpu_32((uint32_t)doorbell[0]) & 0xff;
    if (opcode != wanted)
        rte_panic("the last request has opcode %x\n", opcode);
}

static const struct {
    const char *mode;
    eth_rx_burst_t receive;
    eth_tx_burst_t send;
} MODES[] = {
    { "rx", mlx5_rx_burst, NULL },
    { "rx_vec", mlx5_rx_burst_vec, NULL },
    { "rx_vec_timestamps", mlx5_rx_burst_vec, NULL },
    { "rx_vec_zip", mlx5_rx_burst_vec, NULL },
    { "rx_mprq", mlx5_rx_burst_mprq, NULL },
    { "rx_mprq_vec", mlx5_rx_burst_mprq_vec, NULL },
    { "tx_none", NULL, mlx5_tx_burst_none },
    { "tx_none_ff", NULL, mlx5_tx_burst_none },
    { "tx_none_empw", NULL, mlx5_tx_burst_none_empw },
    { "tx_none_empw_ff", NULL, mlx5_tx_burst_none_empw },
    { "tx_sc_empw", NULL, mlx5_tx_burst_sc_empw },
    { "tx_i", NULL, mlx5_tx_burst_i },
    { "tx_i_empw", NULL, mlx5_tx_burst_i_empw },
};

int main(int argc, char **argv)
{
    char *eal[] = { argv[0], "--no-huge", "--no-pci", "--no-shconf", "--no-telemetry",
            "--log-level=3", "-m", "64", "-l", "0", NULL };
    long rounds = argc == 3 ? atol(argv[2]) : 0;

    if (rounds <= 0 || rte_eal_init(10, eal) < 0) {
        fprintf(stderr, "usage: dpdk_mlx5 MODE ROUNDS\n");
        return 1;
    }
    mlx5_set_ptype_table();
    mlx5_set_cksum_table();
    mlx5_set_swp_types_table();
    pool = rte_pktmbuf_pool_create("peer", 8191, 512, 0, RTE_MBUF_DEFAULT_BUF_SIZE,
                       SOCKET_ID_ANY);
    if (!pool)
        rte_panic("no pool\n");
    for (size_t i = 0; i < RTE_DIM(MODES); i++) {
        if (strcmp(argv[1], MODES[i].mode))
            continue;
        if (MODES[i].receive)
            count_receives(argv[1], MODES[i].receive, rounds);
        else
            count_sends(argv[1], MODES[i].send, rounds);
        return 0;
    }
    fprintf(stderr, "dpdk_mlx5: no mode %s\n", argv[1]);
    return 1;
}
