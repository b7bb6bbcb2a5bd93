/* An MPI program that checks what it gets: messages there and back between two ranks, messages
 * between neighbours, and collectives. Ends with 0 only if every value was right, on every rank.
 * Run by scripts/demo-rdma.sh. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX = 1 << 20 };

static int wrong;

/* What rank `from` sends to rank `to` at place `at`, in round `round`. */
static int value(int from, int to, int at, int round)
{
    return from * 7919 + to * 104729 + at * 31 + round;
}

static void expect(int got, int wanted, const char *what)
{
    if (got != wanted && wrong++ < 5)
        fprintf(stderr, "%s: got %d, wanted %d\n", what, got, wanted);
}

/* Ranks 0 and 1 send 8 bytes there and back, `times` times. The half of that, in microseconds. */
static double ping_pong(int rank, int times)
{
    double start = MPI_Wtime();
    int out[2], in[2];
    for (int time = 0; time < times && rank < 2; time++) {
        for (int turn = 0; turn < 2; turn++) {
            if (rank == turn) {
                out[0] = value(rank, 1 - rank, 0, time);
                out[1] = value(rank, 1 - rank, 1, time);
                MPI_Send(out, 2, MPI_INT, 1 - rank, 0, MPI_COMM_WORLD);
            } else {
                MPI_Recv(in, 2, MPI_INT, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                expect(in[0], value(1 - rank, rank, 0, time), "ping-pong");
                expect(in[1], value(1 - rank, rank, 1, time), "ping-pong");
            }
        }
    }
    return (MPI_Wtime() - start) * 1e6 / times / 2;
}

static void neighbours(int rank, int ranks, int count, int round, int *out, int *in)
{
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    for (int at = 0; at < count; at++)
        out[at] = value(rank, to, at, round);
    MPI_Sendrecv(out, count, MPI_INT, to, round, in, count, MPI_INT, from, round, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    for (int at = 0; at < count; at++)
        expect(in[at], value(from, rank, at, round), "message");
}

static void collectives(int rank, int ranks, int round, int *out, int *in)
{
    int count = MAX / ranks / 4, sum = 0;
    for (int to = 0; to < ranks; to++)
        for (int at = 0; at < count; at++)
            out[to * count + at] = value(rank, to, at, round);
    MPI_Alltoall(out, count, MPI_INT, in, count, MPI_INT, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        for (int at = 0; at < count; at++)
            expect(in[from * count + at], value(from, rank, at, round), "alltoall");
    out[0] = value(rank, 0, 0, round);
    MPI_Allreduce(out, in, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        sum += value(from, 0, 0, round);
    expect(in[0], sum, "allreduce");
    for (int at = 0; at < count; at++)
        in[at] = rank == round % ranks ? value(rank, 0, at, round) : 0;
    MPI_Bcast(in, count, MPI_INT, round % ranks, MPI_COMM_WORLD);
    for (int at = 0; at < count; at++)
        expect(in[at], value(round % ranks, 0, at, round), "broadcast");
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int rank, ranks, all = 0, *out = malloc(MAX * sizeof(int)), *in = malloc(MAX * sizeof(int));
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double half = ping_pong(rank, 1000);
    for (int round = 0; round < 20; round++) {
        neighbours(rank, ranks, 1 << round, round, out, in);
        collectives(rank, ranks, round, out, in);
    }
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks, %d wrong values, 8 bytes one way in %.1f us\n", ranks, all, half);
    MPI_Finalize();
    return all != 0;
}
