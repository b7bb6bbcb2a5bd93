/*
 * A guest for QEMU whose memory says itself whether it is whole: live migration is judged by it.
 *
 * It fills 32 MiB with numbers that follow from each other, and then looks through all of them over
 * and over, and writes one of the 32 blocks anew each time: numbers of before in the middle of new
 * ones do not follow. Each round prints a character on port 0xe9, `X` when something was wrong.
 */

/* Multiboot 0.6.96, "Header layout": magic, flags, checksum. */
__attribute__((section(".text.header"), used))
static const unsigned header[] = {0x1badb002, 0, -0x1badb002u};

enum { BLOCKS = 32, WORDS = 1 << 18 };

static unsigned (*const memory)[WORDS] = (unsigned (*)[WORDS])0x1000000;

static unsigned next(unsigned number) { return number * 1664525u + 1013904223u; }

static void print(char character)
{
    __asm__ volatile("outb %0, $0xe9" : : "a"(character));
}

static void fill(unsigned *block, unsigned number)
{
    for (unsigned word = 0; word < WORDS; word++, number = next(number))
        block[word] = number;
}

static int is_whole(const volatile unsigned *block)
{
    unsigned number = block[0];
    for (unsigned word = 1; word < WORDS; word++) {
        number = next(number);
        if (block[word] != number)
            return 0;
    }
    return 1;
}

__attribute__((used)) static void run(void)
{
    for (unsigned block = 0; block < BLOCKS; block++)
        fill(memory[block], block);
    for (unsigned round = BLOCKS;; round++) {
        char said = '.';
        for (unsigned block = 0; block < BLOCKS; block++)
            if (!is_whole(memory[block]))
                said = 'X';
        print(said);
        fill(memory[round % BLOCKS], round);
    }
}

__attribute__((naked, used)) void _start(void)
{
    __asm__ volatile("mov $0x90000, %esp\n\tcall run");
}
