// Plugin of QEMU: how many instructions each of the guest's cores has executed, in its kernel and in
// its programs, as numbers that do not depend on how fast this machine emulates them.
//
// `-plugin instructions.so,counts=PATH`: the file has two numbers of 64 bits for each core, kernel and
// programs, at most a millisecond old. A core that waits in HLT executes none. A block that an
// exception leaves early counts in full.
//
// Declared here and not by qemu-plugin.h, which Debian does not package: names and types of QEMU's
// include/plugins/qemu-plugin.h, version 7 (QEMU 11.1).
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct qemu_plugin_tb;
struct qemu_plugin_scoreboard;
typedef uint64_t qemu_plugin_id_t;
typedef struct {
    struct qemu_plugin_scoreboard *score;
    size_t offset;
} qemu_plugin_u64;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
void qemu_plugin_register_vcpu_tb_trans_cb(
    qemu_plugin_id_t id, void (*translated)(struct qemu_plugin_tb *tb, void *userdata),
    void *userdata);
void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(struct qemu_plugin_tb *tb,
                                                       enum qemu_plugin_op op,
                                                       qemu_plugin_u64 entry, uint64_t imm);
struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t element_size);
uint64_t qemu_plugin_u64_get(qemu_plugin_u64 entry, unsigned int vcpu_index);
int qemu_plugin_num_vcpus(void);

#define SHOWN __attribute__((visibility("default")))
#define MOST_CORES 64

SHOWN int qemu_plugin_version = 7;

static qemu_plugin_u64 kernel, programs;
static uint64_t (*file)[2];

static void translated(struct qemu_plugin_tb *tb, void *unused) {
    (void)unused;
    // The kernel has the upper half of the addresses.
    bool upper = (int64_t)qemu_plugin_tb_vaddr(tb) < 0;
    qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
        tb, QEMU_PLUGIN_INLINE_ADD_U64, upper ? kernel : programs, qemu_plugin_tb_n_insns(tb));
}

static void *copy(void *unused) {
    for (;;) {
        int cores = qemu_plugin_num_vcpus();
        for (int core = 0; core < cores && core < MOST_CORES; core++) {
            file[core][0] = qemu_plugin_u64_get(kernel, core);
            file[core][1] = qemu_plugin_u64_get(programs, core);
        }
        usleep(1000);
    }
    return unused;
}

// info: a description of the guest, of which nothing is asked here.
SHOWN int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
    const size_t bytes = sizeof(file[0]) * MOST_CORES;
    pthread_t thread;
    int fd = -1;
    (void)info;
    if (argc == 1 && strncmp(argv[0], "counts=", 7) == 0)
        fd = open(argv[0] + 7, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || ftruncate(fd, bytes) != 0) {
        fprintf(stderr, "instructions: wants counts=PATH of a file that it can write\n");
        return 1;
    }
    file = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED) return 1;
    close(fd);
    kernel.score = qemu_plugin_scoreboard_new(2 * sizeof(uint64_t));
    programs = (qemu_plugin_u64){kernel.score, sizeof(uint64_t)};
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated, NULL);
    return pthread_create(&thread, NULL, copy, NULL);
}
