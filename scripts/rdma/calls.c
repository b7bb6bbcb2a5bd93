/*
 * Calls of libibverbs as programs make them, for scripts/rdma/instructions.py: two queue pairs of
 * one process are each other's peers. Completions stand in their queue before they are polled, so
 * each poll finds what its case says. The cases are those of benches/peers/libmlx5.c that begin
 * with `face_`.
 *
 * Usage: calls CASE ROUNDS MILLISECONDS; CASE ends with the length of its lists. A round is 128
 * requests or completions; so long the device may take for them.
 */
#include <string.h>
#include <unistd.h>

#include "measured.h"

enum { DEPTH = 256, INLINE = 64, MAX_SGE = 4, QKEY = 0x11 };

/* Cases that post requests: their names without the count, and what the requests are. */
static const struct posted {
    const char *name;
    enum ibv_wr_opcode opcode;
    unsigned flags;
    int segments;
    unsigned bytes; /* of each */
    int fills;      /* it takes a receive of the peer's */
} POSTED[] = {
    { "face_post", IBV_WR_RDMA_WRITE, 0, 1, 8, 0 },
    { "face_post_inline", IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, 1, 8, 0 },
    { "face_post_inline64", IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, 1, 64, 0 },
    { "face_post_inline_2sge", IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, 2, 8, 0 },
    { "face_post_inline_imm", IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_INLINE, 1, 8, 1 },
    { "face_post_fenced", IBV_WR_RDMA_WRITE, IBV_SEND_FENCE, 1, 8, 0 },
    { "face_post_2sge", IBV_WR_RDMA_WRITE, 0, 2, 8, 0 },
    { "face_post_4sge", IBV_WR_RDMA_WRITE, 0, 4, 8, 0 },
    { "face_post_write_imm", IBV_WR_RDMA_WRITE_WITH_IMM, 0, 1, 8, 1 },
    { "face_post_send", IBV_WR_SEND, 0, 1, 8, 1 },
    { "face_post_send_imm", IBV_WR_SEND_WITH_IMM, 0, 1, 8, 1 },
    { "face_post_read", IBV_WR_RDMA_READ, 0, 1, 8, 0 },
    { "face_post_datagram", IBV_WR_SEND, 0, 1, 8, 1 },
    { "face_post_fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1, 8, 0 },
};
static const struct posted *const WRITE = &POSTED[0], *const SEND = &POSTED[9];

static const int REMOTE =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq_ex *cq, *other_cq;
static struct ibv_qp *qp, *other;
static struct ibv_ah *address;
static struct ibv_sge buffer, landing, pieces[MAX_SGE];
static useconds_t patience_us;

static void *made(void *object)
{
    if (!object)
        fail("the device gives too little");
    return object;
}

static struct ibv_cq_ex *make_cq(void)
{
    struct ibv_cq_init_attr_ex attr = { .cqe = 4 * DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS };

    return made(ibv_create_cq_ex(context, &attr));
}

static struct ibv_qp *make_qp(struct ibv_cq_ex *of, enum ibv_qp_type type)
{
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = ibv_cq_ex_to_cq(of),
        .recv_cq = ibv_cq_ex_to_cq(of),
        .cap = { DEPTH, DEPTH, MAX_SGE, 1, INLINE },
        .qp_type = type,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND,
    };

    if (type == IBV_QPT_RC)
        attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE;

    return made(ibv_create_qp_ex(context, &attr));
}

static void modify(struct ibv_qp *of, struct ibv_qp_attr *attr, enum ibv_qp_state to, int mask)
{
    attr->qp_state = to;
    if (ibv_modify_qp(of, attr, mask | IBV_QP_STATE))
        fail("a queue pair is not connected");
}

static void join(struct ibv_qp *of, struct ibv_qp *to)
{
    struct ibv_qp_attr attr = {
        .port_num = 1,
        .qp_access_flags = REMOTE,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = to->qp_num,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 1 },
        .max_rd_atomic = 16,
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = 1,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
    };

    if (ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid))
        fail("no address");
    modify(of, &attr, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    modify(of, &attr, IBV_QPS_RTR,
           IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    modify(of, &attr, IBV_QPS_RTS,
           IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC);
}

/* Queue pairs of datagrams need no peer; what they send to has a queue key. */
static void start_datagrams(struct ibv_qp *of)
{
    struct ibv_qp_attr attr = { .port_num = 1, .qkey = QKEY };

    modify(of, &attr, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    modify(of, &attr, IBV_QPS_RTR, 0);
    modify(of, &attr, IBV_QPS_RTS, IBV_QP_SQ_PSN);
}

static void make(enum ibv_qp_type type)
{
    struct ibv_ah_attr way = { .is_global = 1, .port_num = 1, .grh.hop_limit = 1 };
    struct ibv_device **list = made(ibv_get_device_list(NULL));
    void *memory = made(aligned_alloc(4096, 4096));

    context = made(ibv_open_device(list[0]));
    ibv_free_device_list(list);
    pd = made(ibv_alloc_pd(context));
    mr = made(ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE | REMOTE));
    cq = make_cq();
    other_cq = make_cq();
    qp = make_qp(cq, type);
    other = make_qp(other_cq, type);
    buffer = (struct ibv_sge){ (uintptr_t)memory, 8, mr->lkey };
    landing = (struct ibv_sge){ (uintptr_t)memory, 64, mr->lkey };
    if (type == IBV_QPT_RC) {
        join(qp, other);
        join(other, qp);
        return;
    }
    start_datagrams(qp);
    start_datagrams(other);
    if (ibv_query_gid(context, 1, 0, &way.grh.dgid))
        fail("no address");
    address = made(ibv_create_ah(pd, &way));
}

/* One list of `length` requests of this kind, which are signaled, and one of receives. */
static void write_lists(const struct posted *kind, int length)
{
    for (int i = 0; i < MAX_SGE; i++)
        pieces[i] = (struct ibv_sge){ buffer.addr, kind->bytes, buffer.lkey };
    for (int i = 0; i < length; i++) {
        int more = i + 1 < length;

        sends[i] = (struct ibv_send_wr){
            .wr_id = i,
            .next = more ? &sends[i + 1] : NULL,
            .sg_list = pieces,
            .num_sge = kind->segments,
            .opcode = kind->opcode,
            .send_flags = kind->flags | IBV_SEND_SIGNALED,
            .wr.rdma = { buffer.addr, mr->rkey },
        };
        if (kind->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            sends[i].wr.atomic.remote_addr = buffer.addr;
            sends[i].wr.atomic.rkey = mr->rkey;
        }
        if (address) {
            sends[i].wr.ud.ah = address;
            sends[i].wr.ud.remote_qpn = other->qp_num;
            sends[i].wr.ud.remote_qkey = QKEY;
        }
        receives[i] = (struct ibv_recv_wr){
            .wr_id = i,
            .next = more ? &receives[i + 1] : NULL,
            .sg_list = &landing,
            .num_sge = 1,
        };
    }
}

/* Takes everything that there is, until it is `count`. */
static void drain(struct ibv_cq_ex *of, int count)
{
    while (count > 0) {
        int found = ibv_poll_cq(ibv_cq_ex_to_cq(of), 32, ended);

        for (int i = 0; i < found; i++)
            if (ended[i].status != IBV_WC_SUCCESS)
                fail(ibv_wc_status_str(ended[i].status));
        count -= found;
    }
}

static void post(struct ibv_qp *of, int count)
{
    struct ibv_send_wr *bad;

    for (int i = 0; i < count; i += 32)
        if (ibv_post_send(of, sends, &bad))
            fail("a request was refused");
}

/* As many receives as a round has, from the list of 32. */
static void post_receives(struct ibv_qp *of)
{
    struct ibv_recv_wr *bad;

    for (int i = 0; i < EACH; i += 32)
        if (ibv_post_recv(of, receives, &bad))
            fail("a receive was refused");
}

/* Until all that was posted has ended; nobody polls, so that all of it stands in the queues. */
static void wait_for_device(void)
{
    usleep(patience_us);
}

int main(int argc, char **argv)
{
    const char *name = argc == 4 ? argv[1] : "";
    long rounds = argc == 4 ? atol(argv[2]) : 0;
    const char *last = strrchr(name, '_');
    const struct posted *posted = NULL;
    struct ibv_cq *plain;
    size_t len;

    batch = last ? atoi(last + 1) : 0;
    if (rounds <= 0 || (batch != 1 && batch != 16 && batch != 32))
        fail("usage: calls CASE ROUNDS MILLISECONDS, a case that ends with 1, 16 or 32");
    patience_us = 1000 * atoi(argv[3]);
    len = last - name;
    make(strstr(name, "datagram") ? IBV_QPT_UD : IBV_QPT_RC);
    plain = ibv_cq_ex_to_cq(cq);
#define IS(text) (len == strlen(text) && !strncmp(name, text, len))
    for (size_t i = 0; i < sizeof(POSTED) / sizeof(POSTED[0]); i++)
        if (IS(POSTED[i].name))
            posted = &POSTED[i];
    for (long round = 0; round < rounds; round++) {
        write_lists(WRITE, 32);
        if (posted) {
            if (posted->fills)
                post_receives(other);
            write_lists(posted, batch);
            measured_post_send(qp);
            drain(cq, EACH);
            if (posted->fills)
                drain(other_cq, EACH);
        } else if (IS("face_wr")) {
            measured_wr(ibv_qp_to_qp_ex(qp), &buffer, mr->rkey);
            drain(cq, EACH);
        } else if (IS("face_poll")) {
            post(qp, EACH);
            wait_for_device();
            measured_poll(plain, EACH / batch, batch, batch);
        } else if (IS("face_poll_ex")) {
            post(qp, EACH);
            wait_for_device();
            measured_poll_ex(cq);
        } else if (IS("face_poll_last")) {
            /* One completion for 32 sends, and no other one behind it. */
            for (int i = 0; i < 31; i++)
                sends[i].send_flags = 0;
            post(qp, 32);
            wait_for_device();
            measured_poll(plain, 1, 16, 1);
        } else if (IS("face_poll_empty")) {
            measured_poll(plain, EACH, 16, 0);
        } else if (IS("face_poll_ex_empty")) {
            measured_poll_ex_empty(cq);
        } else if (IS("face_post_recv") || IS("face_poll_recv")) {
            write_lists(SEND, 32);
            if (IS("face_post_recv")) {
                write_lists(SEND, batch);
                measured_post_recv(qp);
                write_lists(SEND, 32);
            } else {
                post_receives(qp);
            }
            post(other, EACH);
            if (IS("face_post_recv")) {
                drain(cq, EACH);
            } else {
                wait_for_device();
                measured_poll(plain, EACH / batch, batch, batch);
            }
            drain(other_cq, EACH);
        } else {
            return 77;
        }
    }
    return 0;
}
