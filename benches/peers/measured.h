/*
 * What is counted of calls of libibverbs, by benches/peers/libmlx5.c of libmlx5 and by
 * scripts/rdma/calls.c of whatever library a program finds: the instructions in `measured_*`, each
 * of which has the loop over calls that a program has.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { EACH = 128 /* requests or completions of a round; whole calls of 32 */ };

static struct ibv_send_wr sends[32];
static struct ibv_recv_wr receives[32];
static struct ibv_wc ended[32];
static int batch;

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

__attribute__((noinline)) void measured_post_send(struct ibv_qp *of)
{
    struct ibv_send_wr *bad;

    for (int i = 0; i < EACH; i += batch)
        if (ibv_post_send(of, sends, &bad))
            fail("a request was refused");
}

__attribute__((noinline)) void measured_post_recv(struct ibv_qp *of)
{
    struct ibv_recv_wr *bad;

    for (int i = 0; i < EACH; i += batch)
        if (ibv_post_recv(of, receives, &bad))
            fail("a receive was refused");
}

__attribute__((noinline)) void measured_post_srq_recv(struct ibv_srq *of)
{
    struct ibv_recv_wr *bad;

    for (int i = 0; i < EACH; i += batch)
        if (ibv_post_srq_recv(of, receives, &bad))
            fail("a shared receive was refused");
}

/* Requests to write a buffer, built by functions. */
__attribute__((noinline)) void measured_wr(struct ibv_qp_ex *of, const struct ibv_sge *buffer,
                                           uint32_t rkey)
{
    for (int i = 0; i < EACH; i += batch) {
        ibv_wr_start(of);
        for (int j = 0; j < batch; j++) {
            of->wr_id = j;
            of->wr_flags = IBV_SEND_SIGNALED;
            ibv_wr_rdma_write(of, rkey, buffer->addr);
            ibv_wr_set_sge(of, buffer->lkey, buffer->addr, buffer->length);
        }
        if (ibv_wr_complete(of))
            fail("a request was refused");
    }
}

/* Calls that ask for as many completions as there is room for, and find `expected`. */
__attribute__((noinline)) void measured_poll(struct ibv_cq *of, int calls, int room, int expected)
{
    for (int i = 0; i < calls; i++)
        if (ibv_poll_cq(of, room, ended) != expected)
            fail("not as many completions as expected");
}

/* The same by functions; of each completion the program reads what most programs read. */
__attribute__((noinline)) uint64_t measured_poll_ex(struct ibv_cq_ex *of)
{
    struct ibv_poll_cq_attr attr = { 0 };
    uint64_t sum = 0;

    for (int i = 0; i < EACH; i += batch) {
        if (ibv_start_poll(of, &attr))
            fail("completions are missing");
        for (int j = 1;; j++) {
            sum += of->wr_id + of->status + ibv_wc_read_opcode(of) + ibv_wc_read_byte_len(of);
            if (j == batch)
                break;
            if (ibv_next_poll(of))
                fail("completions are missing");
        }
        ibv_end_poll(of);
    }
    return sum;
}

__attribute__((noinline)) void measured_poll_ex_empty(struct ibv_cq_ex *of)
{
    struct ibv_poll_cq_attr attr = { 0 };

    for (int i = 0; i < EACH; i++)
        if (ibv_start_poll(of, &attr) != ENOENT)
            fail("something was there");
}
