/*
 * What libmlx5 of rdma-core takes to post a request or to poll a completion, for the cases `verbs_*`
 * of our own benches: a context, a queue pair, a shared receive queue and a completion queue stand in
 * plain memory, and this program plays the device, outside of what is counted. Built by
 * scripts/peers.sh against rdma-core's own headers, which know what such a queue consists of.
 *
 * Locks are off, as with MLX5_SINGLE_THREADED=1: our queues have none. Cases `face_*` are those of
 * scripts/rdma/calls.c, with locks, as stock programs have them.
 *
 * Usage: libmlx5 CASE BATCH ROUNDS, CASE without the count of its batch. A round is 128 requests or
 * completions; of `face_poll_last` one. The exit status is 77 for a case that it does not know.
 */
#include <string.h>

#include "measured.h"
#include "mlx5.h"
#include "wqe.h"

enum {
    SENDS = 1024,    /* blocks of 64 bytes */
    RECEIVES = 1024, /* of one buffer each */
    SHARED = 256,
    COMPLETIONS = 1024,
    MAX_SGE = 4,
    MAX_INLINE = 928,
    QPN = 0x123456,
    USER_INDEX = 5,
};

static struct mlx5_context *context;
static struct mlx5_cq *cq;
static struct mlx5_qp *qp;
static struct mlx5_srq *srq;
static uint32_t told; /* completions that the device has written */
static int locks;     /* as programs have them that do not set MLX5_SINGLE_THREADED */

static void *zeroed(size_t bytes)
{
    void *memory;

    if (posix_memalign(&memory, 4096, (bytes + 4095) & ~(size_t)4095))
        fail("no memory");
    memset(memory, 0, bytes);
    return memory;
}

static void make_context(void)
{
    struct mlx5_bf *bf = zeroed(sizeof(*bf));
    struct verbs_context *verbs;

    context = zeroed(sizeof(*context));
    verbs = &context->ibv_ctx;
    verbs->context.ops.post_send = mlx5_post_send;
    verbs->context.ops.post_recv = mlx5_post_recv;
    verbs->context.ops.post_srq_recv = mlx5_post_srq_recv;
    verbs->context.ops.poll_cq = mlx5_poll_cq_v1;
    context->cqe_version = 1;
    context->prefer_bf = 1;
    context->bfs = bf;
    context->uidx_table[0].table = zeroed(sizeof(void *) * (MLX5_UIDX_TABLE_MASK + 1));
    context->uidx_table[0].refcnt = 1;
    bf->reg = zeroed(8192);
    bf->buf_size = 256;
    bf->uuarn = 1;
    mlx5_spinlock_init(&bf->lock, 0);
}

static void make_cq(void)
{
    struct ibv_cq_init_attr_ex attr = { .cqe = COMPLETIONS, .wc_flags = IBV_WC_STANDARD_FLAGS };

    cq = zeroed(sizeof(*cq));
    cq->verbs_cq.cq.context = &context->ibv_ctx.context;
    cq->verbs_cq.cq.cqe = COMPLETIONS - 1;
    cq->buf_a.buf = zeroed(COMPLETIONS * 64);
    cq->active_buf = &cq->buf_a;
    cq->cqe_sz = 64;
    cq->cqn = 7;
    cq->dbrec = zeroed(64);
    mlx5_spinlock_init(&cq->lock, locks);
    for (int i = 0; i < COMPLETIONS; i++)
        ((struct mlx5_cqe64 *)cq->buf_a.buf)[i].op_own = MLX5_CQE_INVALID << 4 | 1;
    mlx5_cq_fill_pfns(cq, &attr, context);
}

static void make_qp(void)
{
    const struct ibv_qp_init_attr_ex functions = {
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND,
    };
    struct ibv_qp *verbs;

    qp = zeroed(sizeof(*qp));
    qp->rsc.type = MLX5_RSC_TYPE_QP;
    qp->rsc.rsn = USER_INDEX;
    context->uidx_table[0].table[USER_INDEX] = &qp->rsc;
    verbs = &qp->verbs_qp.qp;
    qp->ibv_qp = verbs;
    verbs->context = &context->ibv_ctx.context;
    verbs->qp_type = IBV_QPT_RC;
    verbs->qp_num = QPN;
    verbs->state = IBV_QPS_RTS;
    verbs->send_cq = verbs->recv_cq = &cq->verbs_cq.cq;
    qp->bf = context->bfs;
    qp->db = zeroed(64);
    qp->atomics_enabled = 1;
    qp->max_inline_data = MAX_INLINE;
    qp->buf.buf = zeroed(RECEIVES * 16 + SENDS * 64 + 4096);
    qp->rq.wqe_shift = 4;
    qp->rq.wqe_cnt = qp->rq.max_post = RECEIVES;
    qp->rq.max_gs = qp->rq.qp_state_max_gs = 1;
    qp->rq.wrid = zeroed(RECEIVES * 8);
    mlx5_spinlock_init(&qp->rq.lock, locks);
    qp->sq.offset = RECEIVES * 16;
    qp->sq.wqe_shift = 6;
    qp->sq.wqe_cnt = qp->sq.max_post = SENDS;
    qp->sq.max_gs = qp->sq.qp_state_max_gs = MAX_SGE;
    qp->sq.wrid = zeroed(SENDS * 8);
    qp->sq.wqe_head = zeroed(SENDS * 4);
    qp->sq.wr_data = zeroed(SENDS * 4);
    if (mlx5_qp_fill_wr_pfns(qp, &functions, NULL))
        fail("no functions that build requests");
    qp->sq_start = qp->buf.buf + qp->sq.offset;
    qp->sq.qend = qp->sq_start + SENDS * 64;
    mlx5_spinlock_init(&qp->sq.lock, locks);
}

static void make_srq(void)
{
    srq = zeroed(sizeof(*srq));
    srq->rsc.type = MLX5_RSC_TYPE_SRQ;
    srq->max = srq->nwqes = SHARED;
    srq->max_gs = 1;
    srq->wqe_shift = 5;
    srq->buf.buf = zeroed(SHARED * 32);
    srq->db = zeroed(64);
    srq->wrid = zeroed(SHARED * 8);
    srq->free_wqe_bitmap = zeroed(SHARED);
    mlx5_spinlock_init(&srq->lock, locks);
    for (int i = 0; i < SHARED; i++) {
        struct mlx5_wqe_srq_next_seg *next = srq->buf.buf + i * 32;

        next->next_wqe_index = htobe16((i + 1) & (SHARED - 1));
    }
    srq->tail = SHARED - 1;
    srq->vsrq.srq.context = &context->ibv_ctx.context;
}

/* One completion of the device's, of entry `counter`. */
static void complete(int is_send, uint16_t counter)
{
    struct mlx5_cqe64 *cqe = (struct mlx5_cqe64 *)cq->buf_a.buf + (told & (COMPLETIONS - 1));

    cqe->srqn_uidx = htobe32(USER_INDEX);
    cqe->sop_drop_qpn = htobe32((is_send ? MLX5_OPCODE_SEND : 0) << 24 | QPN);
    cqe->byte_cnt = htobe32(8);
    cqe->wqe_counter = htobe16(counter);
    cqe->op_own = (is_send ? MLX5_CQE_REQ : MLX5_CQE_RESP_SEND) << 4 | !!(told & COMPLETIONS);
    told++;
}

static struct ibv_sge buffers[32][MAX_SGE];

/* A case of sends: its name without the count, and what its requests are. */
static const struct sent {
    const char *name;
    enum ibv_wr_opcode opcode;
    unsigned flags;
    int segments;
    int bytes; /* of each */
} SENT[] = {
    { "verbs_post_send_1sge", IBV_WR_RDMA_WRITE, 0, 1, 64 },
    { "verbs_post_send_mbuf", IBV_WR_RDMA_WRITE, 0, 1, 64 },
    { "verbs_post_send_2sge", IBV_WR_RDMA_WRITE, 0, 2, 64 },
    { "verbs_post_send_3sge", IBV_WR_RDMA_WRITE, 0, 3, 64 },
    { "verbs_post_send_4sge", IBV_WR_RDMA_WRITE, 0, 4, 64 },
    { "face_post", IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 1, 64 },
    { "face_post_inline", IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_INLINE, 1, 8 },
    { "face_post_inline64", IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_INLINE, 1, 64 },
    { "face_post_inline_2sge", IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_INLINE, 2, 8 },
    { "face_post_inline_imm", IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED | IBV_SEND_INLINE, 1,
      8 },
    { "face_post_datagram", IBV_WR_SEND, IBV_SEND_SIGNALED, 1, 64 },
    { "face_post_fenced", IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_FENCE, 1, 64 },
    { "face_post_2sge", IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 2, 64 },
    { "face_post_4sge", IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 4, 64 },
    { "face_post_write_imm", IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED, 1, 64 },
    { "face_post_send", IBV_WR_SEND, IBV_SEND_SIGNALED, 1, 64 },
    { "face_post_send_imm", IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED, 1, 64 },
    { "face_post_read", IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 1, 64 },
    { "face_post_fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED, 1, 8 },
    { "verbs_post_signaled", IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 1, 64 },
    { "verbs_post_fenced", IBV_WR_RDMA_WRITE, IBV_SEND_FENCE, 1, 64 },
    { "verbs_post_write_imm", IBV_WR_RDMA_WRITE_WITH_IMM, 0, 1, 64 },
    { "verbs_post_read", IBV_WR_RDMA_READ, 0, 1, 64 },
    { "verbs_post_send", IBV_WR_SEND, 0, 1, 64 },
    { "verbs_post_send_imm", IBV_WR_SEND_WITH_IMM, 0, 1, 64 },
    { "verbs_post_send_inv", IBV_WR_SEND_WITH_INV, 0, 1, 64 },
    { "verbs_post_datagram", IBV_WR_SEND, 0, 1, 64 },
    { "verbs_post_fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1, 8 },
    { "verbs_post_compare_swap", IBV_WR_ATOMIC_CMP_AND_SWP, 0, 1, 8 },
};

static struct sent what_is_sent(const char *name)
{
    struct sent sent = { .segments = 0 };
    int bytes;

    if (sscanf(name, "verbs_post_send_inline_%d", &bytes) == 1 && bytes <= MAX_INLINE)
        return (struct sent){ name, IBV_WR_SEND, IBV_SEND_INLINE, 1, bytes };
    for (size_t i = 0; i < sizeof(SENT) / sizeof(SENT[0]); i++)
        if (!strcmp(name, SENT[i].name))
            sent = SENT[i];
    return sent;
}

/* One list of `batch` requests of this kind, and one of receives. */
static void write_lists(const struct sent *sent)
{
    char *memory = zeroed(32 * MAX_SGE * 4096);
    struct mlx5_ah *ah = zeroed(sizeof(*ah));
    int is_datagram = sent->name && strstr(sent->name, "datagram");

    if (is_datagram)
        qp->verbs_qp.qp.qp_type = IBV_QPT_UD;
    for (int i = 0; i < batch; i++) {
        struct ibv_send_wr *send = &sends[i];

        for (int j = 0; j < MAX_SGE; j++)
            buffers[i][j] = (struct ibv_sge){ (uintptr_t)memory + 4096 * (MAX_SGE * i + j),
                                              sent->bytes ? sent->bytes : 64, 0x1234 };
        *send = (struct ibv_send_wr){
            .wr_id = i,
            .next = i + 1 < batch ? send + 1 : NULL,
            .sg_list = buffers[i],
            .num_sge = sent->segments,
            .opcode = sent->opcode,
            .send_flags = sent->flags,
        };
        if (sent->opcode == IBV_WR_SEND_WITH_INV)
            send->invalidate_rkey = 0x99;
        if (is_datagram) {
            send->wr.ud.ah = &ah->ibv_ah;
            send->wr.ud.remote_qpn = 5;
            send->wr.ud.remote_qkey = 6;
        } else if (sent->bytes == 8 && !(sent->flags & IBV_SEND_INLINE)) {
            send->wr.atomic.remote_addr = 0x1000;
            send->wr.atomic.rkey = 0x77;
        } else {
            send->wr.rdma.remote_addr = 0x100000;
            send->wr.rdma.rkey = 0x77;
        }
        receives[i] = (struct ibv_recv_wr){
            .wr_id = i,
            .next = i + 1 < batch ? &receives[i + 1] : NULL,
            .sg_list = buffers[i],
            .num_sge = 1,
        };
    }
}

/* The device: the completion of a request, or of a receive, which stood in its queue. */
static void complete_one(int is_send)
{
    uint16_t counter = told;

    if (is_send) {
        qp->sq.wrid[counter & (SENDS - 1)] = counter;
        qp->sq.wqe_head[counter & (SENDS - 1)] = counter;
    } else if (qp->verbs_qp.qp.srq) {
        counter &= SHARED - 1;
    } else {
        qp->rq.wrid[counter & (RECEIVES - 1)] = counter;
        qp->rq.head++;
    }
    complete(is_send, counter);
}

static void complete_all(int is_send)
{
    for (int i = 0; i < EACH; i++)
        complete_one(is_send);
}

int main(int argc, char **argv)
{
    const char *name = argc == 4 ? argv[1] : "";
    long rounds = argc == 4 ? atol(argv[3]) : 0;
    struct ibv_cq *polled;
    struct sent sent;
    int freed = 0;

    batch = argc == 4 ? atoi(argv[2]) : 0;
    if (rounds <= 0 || (batch != 1 && batch != 16 && batch != 32))
        fail("usage: libmlx5 CASE BATCH ROUNDS, a batch of 1, 16 or 32");
    locks = !strncmp(name, "face_", 5);
    sent = what_is_sent(name);
    make_context();
    make_cq();
    make_qp();
    make_srq();
    write_lists(&sent);
    polled = &cq->verbs_cq.cq;
    if (strstr(name, "srq"))
        qp->verbs_qp.qp.srq = &srq->vsrq.srq;
    for (long round = 0; round < rounds; round++) {
        if (sent.segments) {
            measured_post_send(&qp->verbs_qp.qp);
            qp->sq.tail = qp->sq.head;
        } else if (!strcmp(name, "face_wr")) {
            measured_wr(&qp->verbs_qp.qp_ex, &buffers[0][0], 0x77);
            qp->sq.tail = qp->sq.head;
        } else if (!strcmp(name, "face_poll_ex")) {
            complete_all(1);
            measured_poll_ex(&cq->verbs_cq.cq_ex);
        } else if (!strcmp(name, "face_poll_ex_empty")) {
            measured_poll_ex_empty(&cq->verbs_cq.cq_ex);
        } else if (!strcmp(name, "face_poll_last")) {
            complete_one(1);
            measured_poll(polled, 1, 16, 1);
        } else if (!strcmp(name, "verbs_post_recv") || !strcmp(name, "face_post_recv")) {
            measured_post_recv(&qp->verbs_qp.qp);
            qp->rq.tail = qp->rq.head;
        } else if (!strcmp(name, "verbs_post_srq_recv")) {
            measured_post_srq_recv(&srq->vsrq.srq);
            for (int i = 0; i < EACH; i++)
                mlx5_free_srq_wqe(srq, freed++ & (SHARED - 1));
        } else if (!strcmp(name, "verbs_poll_empty") || !strcmp(name, "face_poll_empty")) {
            measured_poll(polled, EACH / batch, batch, 0);
        } else if (!strcmp(name, "verbs_poll_cq") || !strcmp(name, "face_poll")) {
            complete_all(1);
            measured_poll(polled, EACH / batch, batch, batch);
        } else if (!strcmp(name, "verbs_poll_recv") || !strcmp(name, "verbs_poll_srq_recv") ||
                   !strcmp(name, "face_poll_recv")) {
            complete_all(0);
            measured_poll(polled, EACH / batch, batch, batch);
        } else {
            return 77;
        }
    }
    /* The work has really happened. */
    if (sent.segments && qp->db[MLX5_SND_DBR] != htobe32(qp->sq.cur_post & 0xffff))
        fail("nothing was posted");
    if (!strcmp(name, "verbs_post_recv") &&
        qp->db[MLX5_RCV_DBR] != htobe32(rounds * EACH & 0xffff))
        fail("no receive was posted");
    return 0;
}
